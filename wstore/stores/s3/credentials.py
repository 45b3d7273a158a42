"""Where the access key comes from. One provider feeds both S3 clients."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from wstore.errors import CredentialsMissing
from wstore.stores.s3 import sigv4
from wstore.stores.s3.per_process import PerProcess
from wstore.stores.s3.sigv4 import Credentials

if TYPE_CHECKING:
    from collections.abc import Iterator

    from obstore.store import S3Credential

    from wstore.stores.s3.config import S3Config
    from wstore.stores.s3.dialect import Outgoing

# A key that expires is asked for again this often; botocore itself renews it 10 to 15 minutes
# before it expires, so what it hands out is good for longer than this.
_FRESH = timedelta(minutes=5)


class Provider:
    """Finds the access key, and renews it before it expires. Thread-safe and fork-safe.

    A key in the configuration wins. Everything else (profiles, SSO, web identity, containers,
    instance metadata) is botocore's business, where the extra `s3` has installed it.
    """

    __slots__ = ("_chain", "_config", "_lock")

    def __init__(self, config: S3Config) -> None:
        self._config = config
        self._chain: PerProcess[_Chain] = PerProcess(lambda: _Chain(config.profile))
        self._lock = PerProcess(threading.Lock)

    def __repr__(self) -> str:
        return "Provider()"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("credentials are not pickled; each process finds its own")

    def get(self) -> Credentials | None:
        """The key to sign with, or None where requests are anonymous.

        Raises:
            CredentialsMissing: none was found, or it could not be renewed; the text says what to do.
        """
        if self._config.anonymous:
            return None
        if self._config.credentials is not None:
            return self._config.credentials
        with self._lock.get():
            return self._chain.get().current()

    def authorised(self, request: Outgoing) -> dict[str, str]:
        """The request's headers, signed (`dialect.Authority`)."""
        credentials = self.get()
        if credentials is None:
            return dict(request.headers)
        payload = sigv4.UNSIGNED_PAYLOAD
        if request.body is not None:
            payload = hashlib.sha256(request.body).hexdigest()
        unsigned = sigv4.Unsigned(
            request.method, request.path, request.query, request.headers, payload
        )
        region = self._config.region
        return sigv4.sign(unsigned, credentials=credentials, region=region, now=datetime.now(UTC))

    def renewed(self) -> bool:
        """Never: a key is renewed before it expires."""
        return False

    def for_obstore(self) -> S3Credential:
        """The same key in obstore's form. It caches it until `expires_at`, then asks again."""
        found = self.get()
        assert found is not None, "an anonymous obstore client asks for no credentials"
        fixed = self._config.credentials is not None
        return {
            "access_key_id": found.access_key,
            "secret_access_key": found.secret_key,
            "token": found.token,
            "expires_at": None if fixed else datetime.now(UTC) + _FRESH,
        }


class _Chain:
    """botocore's chain of credential sources."""

    __slots__ = ("_source",)

    def __init__(self, profile: str | None) -> None:
        try:
            session = importlib.import_module("botocore.session")
        except ImportError as error:
            raise CredentialsMissing(
                "no S3 credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or "
                "AWS_SKIP_SIGNATURE=true for a public bucket); for profiles, SSO and instance roles "
                'install the extra: pip install "wstore[s3]"'
            ) from error
        with _translated():
            self._source = session.Session(profile=profile).get_credentials()
        if self._source is None:
            raise CredentialsMissing(
                "no S3 credentials in the environment, the shared config files or the instance: set "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE, or "
                "AWS_SKIP_SIGNATURE=true for a public bucket"
            )

    def current(self) -> Credentials:
        with _translated():
            frozen = self._source.get_frozen_credentials()
        if not frozen.access_key or not frozen.secret_key:
            raise CredentialsMissing("the S3 credentials that were found are incomplete")
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """botocore's failures to find or renew a key, as ours."""
    failures = importlib.import_module("botocore.exceptions")
    try:
        yield
    except (failures.BotoCoreError, failures.ClientError) as error:
        raise CredentialsMissing(f"S3 credentials could not be obtained: {error}") from error
