"""Every scheme that fsspec has a protocol for."""

from __future__ import annotations

from functools import partial

from wstore.stores.fsspec.fsspec_store import FsspecStore
from wstore.stores.fsspec.protocols import class_of
from wstore.stores.registry import Remembered, Scheme
from wstore.stores.s3.config import S3Config

_S3 = frozenset({"s3", "s3a"})


def scheme_of(scheme: str) -> Scheme:
    """That protocol.

    Raises:
        InvalidPath: fsspec has no such protocol.
        MissingPackage: its package is not installed.
    """
    class_of(scheme)
    open_root = partial(FsspecStore, scheme)
    if scheme in _S3:
        return Scheme(open_root, Remembered(S3Config.from_environment))
    return Scheme(open_root)
