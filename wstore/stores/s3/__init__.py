"""S3 and what speaks its protocol. Imported on first use of an `s3://` URL, not with `wstore`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wstore.stores.s3.config import S3Config
from wstore.stores.s3.store import S3Store

if TYPE_CHECKING:
    from wstore.stores.base import Store

__all__ = ["S3Config", "S3Store", "open_s3"]


def open_s3(bucket: str) -> Store:
    """The bucket as the environment describes its service (`S3Config.from_environment`), bare: it
    does not repeat anything. No request is sent.

    Raises:
        InvalidArgument: the environment holds a value that means nothing.
        InvalidPath: no bucket can have this name.
    """
    return S3Store(bucket, S3Config.from_environment())
