"""The scheme gs:// through gcsfs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wstore.stores.fsspec.gcs_store import GcsJsonStore
from wstore.stores.gcs.config import GcsConfig
from wstore.stores.registry import Remembered, Scheme

if TYPE_CHECKING:
    from wstore.stores.base import Store


def scheme_of(scheme: str) -> Scheme:
    """gs, whatever service and identity the environment names: the same as through the XML API."""
    return Scheme(open_gcs_json, Remembered(GcsConfig.from_environment))


def open_gcs_json(bucket: str) -> Store:
    """The bucket as the environment describes its service, bare. No request is sent."""
    return GcsJsonStore(bucket, GcsConfig.from_environment())
