"""Google Cloud Storage. Imported on first use of a `gs://` URL, not with `wstore`.

Two clients serve it: the XML API (`store`), and gcsfs over the JSON API for emulators, which speak no
other. The configuration (`GcsConfig.emulator`) chooses.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from wstore.stores.gcs.config import GcsConfig
from wstore.stores.gcs.store import GcsStore
from wstore.stores.registry import Remembered, Scheme

if TYPE_CHECKING:
    from wstore.stores.base import Store

__all__ = ["GcsConfig", "GcsStore", "open_gcs", "scheme_of"]


def open_gcs(bucket: str) -> Store:
    """The bucket through the XML API as the environment describes it (`GcsConfig.from_environment`),
    bare: it does not repeat anything. No request is sent.

    Raises:
        InvalidArgument: the environment holds a value that means nothing.
        InvalidPath: no bucket can have this name.
    """
    return GcsStore(bucket, GcsConfig.from_environment())


def scheme_of(scheme: str) -> Scheme:
    """How `gs://` stores are opened: an emulator's through gcsfs, else through the XML API."""
    configuration = Remembered(GcsConfig.from_environment)

    def opened(bucket: str) -> Store:
        config = GcsConfig.from_environment()
        if not config.emulator:
            return GcsStore(bucket, config)
        json: Scheme = import_module("wstore.stores.fsspec").scheme_of(scheme)
        return json.open(bucket)

    return Scheme(opened, configuration)
