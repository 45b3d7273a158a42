"""Stores over fsspec: any of its protocols, and Google Cloud Storage's JSON API over gcsfs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from wstore.errors import MissingPackage

if TYPE_CHECKING:
    from wstore.stores.registry import Scheme

__all__ = ["scheme_of"]


def scheme_of(scheme: str) -> Scheme:
    """How the stores of a URL scheme are opened through fsspec.

    Raises:
        InvalidPath: fsspec knows no such protocol.
        MissingPackage: the protocol's package is not installed.
    """
    kind = "gcs_scheme" if scheme in {"gs", "gcs"} else "fsspec_scheme"
    try:
        module = import_module(f"wstore.stores.fsspec.{kind}")
    except ImportError as error:
        if kind != "gcs_scheme":
            raise
        text = "Google Cloud Storage through fsspec needs gcsfs: pip install 'wstore[gcs]'"
        raise MissingPackage(text, url=f"{scheme}://") from error
    found: Scheme = module.scheme_of(scheme)
    return found
