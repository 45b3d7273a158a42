"""Azure, HTTP(S), and a second memory store. Imported on first use of such a URL, not with `wstore`.

`az://` (`abfs://`, `abfss://`) and `memory://` with `client="obstore"` are served through obstore, its
own retries off. `http://` and `https://` are read by urllib3, through the pieces that read S3: obstore's
client for them says neither which headers came nor where a redirect went, so the lies of a server
could not be told from its truths.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from wstore.errors import InvalidPath
from wstore.stores.registry import Remembered, Scheme

if TYPE_CHECKING:
    from wstore.stores.base import Store

_AZURE = frozenset({"az", "abfs", "abfss"})
_HTTP = frozenset({"http", "https"})


def scheme_of(scheme: str) -> Scheme:
    """How the stores of that scheme are opened.

    Raises:
        InvalidPath: none is served here.
    """
    if scheme in _AZURE:
        return _azure(scheme)
    if scheme in _HTTP:
        return _http(scheme)
    if scheme == "memory":
        return Scheme(import_module("wstore.stores.objects.memory").open_memory, remote=False)
    known = ", ".join(sorted({*_AZURE, *_HTTP, "memory"}))
    raise InvalidPath(
        f"client='obstore' serves {known}; leave `client` out for the client of {scheme!r}",
        url=f"{scheme}://",
    )


def _azure(scheme: str) -> Scheme:
    azure = import_module("wstore.stores.objects.azure")

    def open_container(root: str) -> Store:
        store: Store = azure.open_azure(scheme, root)
        return store

    return Scheme(open_container, Remembered(azure.AzureConfig.from_environment))


def _http(scheme: str) -> Scheme:
    http = import_module("wstore.stores.objects.http_store")

    def open_host(root: str) -> Store:
        store: Store = http.open_http(scheme, root)
        return store

    return Scheme(open_host, Remembered(http.HttpConfig.from_environment))
