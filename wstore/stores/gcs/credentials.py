"""Access tokens through google-auth, which the extra `gcs` brings. One provider feeds both clients."""

from __future__ import annotations

import contextlib
import importlib
import json
import threading
import time
import warnings
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol, TypeVar

from wstore.errors import (
    ConnectionFailed,
    CredentialsMissing,
    InvalidArgument,
    MissingPackage,
    WStoreError,
)
from wstore.stores.s3.per_process import PerProcess

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from obstore.store import GCSCredential

    from wstore.stores.gcs.config import GcsConfig
    from wstore.stores.s3.dialect import Outgoing

T = TypeVar("T")

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
# obstore asks for the token again this often; google-auth renews it about four minutes before its end.
_FRESH = timedelta(minutes=1)
# A token that came of a refusal and is refused itself within this time is not the trouble.
_TRUSTED_S = 60.0


class _Source(Protocol):
    """google-auth's `Credentials`, as far as they are used here."""

    @property
    def token(self) -> str | None: ...

    @property
    def valid(self) -> bool: ...

    def refresh(self, request: object) -> None: ...


class Tokens:
    """Finds the access token, and renews it before it expires. Thread-safe and fork-safe.

    A token or a service account's key in the configuration wins. Everything else (application default
    credentials, gcloud's, workload identity, the machine's metadata) is google-auth's business.
    """

    __slots__ = ("_config", "_lock", "_renewed", "_source", "_used")

    def __init__(self, config: GcsConfig) -> None:
        self._config = config
        self._source: PerProcess[_Source] = PerProcess(lambda: _find(config))
        self._lock = PerProcess(threading.Lock)
        self._used = threading.local()  # .token: what this thread's last request carried
        self._renewed: tuple[str | None, float] = (None, 0.0)  # after a refusal, and when

    def __repr__(self) -> str:
        return "Tokens()"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("credentials are not pickled; each process finds its own")

    def get(self) -> str | None:
        """The token to send, or None where requests are anonymous.

        Raises:
            CredentialsMissing: none was found, or it could not be renewed; the text says what to do.
            MissingPackage: google-auth is needed and not installed.
            ConnectionFailed: who gives tokens could not be reached.
        """
        if self._config.anonymous:
            return None
        if self._config.token is not None:
            return self._config.token.text
        with self._lock.get():
            source = self._source.get()
            if not source.valid:
                _refresh(source)
            return source.token

    def authorised(self, request: Outgoing) -> dict[str, str]:
        """The request's headers and the token (`dialect.Authority`)."""
        token = self._used.token = self.get()
        if token is None:
            return dict(request.headers)
        return {**request.headers, "authorization": f"Bearer {token}"}

    def renewed(self) -> bool:
        """Renew the refused token, once: a new one that is refused as well was not the trouble."""
        if self._config.anonymous or self._config.token is not None:
            return False
        used: str | None = getattr(self._used, "token", None)
        with self._lock.get():
            source = self._source.get()
            if source.token != used:
                return True  # another thread was quicker
            newest, since = self._renewed
            if used == newest and time.monotonic() - since < _TRUSTED_S:
                return False
            _refresh(source)
            self._renewed = (source.token, time.monotonic())
            return source.token != used

    def for_obstore(self) -> GCSCredential:
        """The same token in obstore's form. It caches it until `expires_at`, then asks again."""
        token = self.get()
        assert token is not None, "an anonymous obstore client asks for no credentials"
        fixed = self._config.token is not None
        return {"token": token, "expires_at": None if fixed else datetime.now(UTC) + _FRESH}


def _find(config: GcsConfig) -> _Source:
    """The source of tokens that the configuration names, or google-auth's search."""
    auth = _module("google.auth")
    if config.key is not None:
        return _service_account(config.key.text, "GOOGLE_SERVICE_ACCOUNT_KEY")
    if config.key_file is not None:
        try:
            with open(config.key_file, encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise CredentialsMissing(f"GOOGLE_SERVICE_ACCOUNT cannot be read: {error}") from error
        return _service_account(text, "GOOGLE_SERVICE_ACCOUNT")

    def search() -> _Source:
        with warnings.catch_warnings():
            # google-auth warns of a function that it calls here itself.
            warnings.simplefilter("ignore", DeprecationWarning)
            source: _Source = auth.default(scopes=[_SCOPE])[0]
            return source

    return _translated(search)


def _service_account(text: str, variable: str) -> _Source:
    make = _module("google.oauth2.service_account").Credentials.from_service_account_info
    with contextlib.suppress(ValueError, TypeError, AttributeError, KeyError):
        source: _Source = make(json.loads(text), scopes=[_SCOPE])
        return source
    # Raised outside of any handler: what it would quote holds a private key.
    raise InvalidArgument(f"{variable} holds no service account's key (JSON with a private key)")


def _refresh(source: _Source) -> None:
    request = _module("google.auth.transport.requests").Request()
    _translated(lambda: source.refresh(request))


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingPackage(
            "tokens for Google Cloud Storage need google-auth: pip install 'wstore[gcs]' (or set "
            "GOOGLE_SKIP_SIGNATURE=true for a public bucket)"
        ) from error


def _translated(ask: Callable[[], T]) -> T:
    """What `ask` returns; google-auth's failures to find or renew a token as ours.

    Its texts may quote a token or a key: only the kind of an error is told, and ours is raised outside
    of any handler, so that it carries no other.
    """
    failures = _module("google.auth.exceptions")
    found: WStoreError
    try:
        return ask()
    except failures.TransportError as error:
        found = ConnectionFailed(
            f"who gives Google access tokens could not be reached ({type(error).__name__})"
        )
    except (failures.DefaultCredentialsError, OSError, ValueError) as error:
        found = CredentialsMissing(
            f"no usable Google credentials ({type(error).__name__}): set "
            "GOOGLE_APPLICATION_CREDENTIALS, run `gcloud auth application-default login`, or set "
            "GOOGLE_SKIP_SIGNATURE=true for a public bucket"
        )
    except failures.GoogleAuthError as error:
        text = f"the Google access token could not be renewed ({type(error).__name__})"
        found = ConnectionFailed(text) if error.retryable else CredentialsMissing(text)
    raise found
