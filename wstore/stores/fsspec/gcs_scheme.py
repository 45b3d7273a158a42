"""The scheme gs:// through gcsfs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wstore.stores.fsspec.gcs_config import GcsJsonConfig
from wstore.stores.fsspec.gcs_store import GcsJsonStore
from wstore.stores.registry import Remembered, Scheme

if TYPE_CHECKING:
    from wstore.stores.base import Store


def scheme_of(scheme: str) -> Scheme:
    """gs, whatever service the environment names (STORAGE_EMULATOR_HOST)."""
    return Scheme(open_gcs_json, Remembered(GcsJsonConfig.from_environment))


def open_gcs_json(bucket: str) -> Store:
    """The bucket as the environment describes its service, bare. No request is sent."""
    return GcsJsonStore(bucket, GcsJsonConfig.from_environment())
