"""Google Cloud Storage. Imported on first use of a `gs://` URL, not with `wstore`.

Two clients serve it: the XML API (`store`), and gcsfs over the JSON API for emulators, which speak no
other. `STORAGE_EMULATOR_HOST` chooses.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from wstore.stores.gcs.config import GcsConfig, emulator_url
from wstore.stores.gcs.store import GcsStore
from wstore.stores.registry import Remembered, Scheme

if TYPE_CHECKING:
    from collections.abc import Hashable

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
    """How `gs://` stores are opened: through gcsfs while an emulator is named, else the XML API."""
    xml = Scheme(open_gcs, Remembered(GcsConfig.from_environment))

    def chosen() -> Scheme:
        if emulator_url() is None:
            return xml
        json: Scheme = import_module("wstore.stores.fsspec").scheme_of(scheme)
        return json

    def configuration() -> Hashable:
        kind = chosen()
        return kind is xml, kind.configuration()

    return Scheme(lambda bucket: chosen().open(bucket), configuration)
