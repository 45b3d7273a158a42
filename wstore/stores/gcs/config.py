"""How to reach Google Cloud Storage: everything that the environment says, as one value."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from wstore.errors import InvalidArgument
from wstore.stores.gcs.dialect import GCS
from wstore.stores.s3.config import Target
from wstore.stores.s3.environment import Environment, Secret, clean_endpoint, is_this_machine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wstore.stores.s3.dialect import Dialect

ENDPOINT = "https://storage.googleapis.com"
_EMULATOR = "STORAGE_EMULATOR_HOST"

_SECRETS = "GOOGLE_APPLICATION_CREDENTIALS"


@dataclass(frozen=True, slots=True)
class GcsConfig:
    """One service, one identity. Hashable; its repr holds no secret; it does not pickle with one.

    Attributes:
        endpoint: "scheme://host[:port]"; Google's own, a private one, or an emulator's.
        emulator: the endpoint is that of an emulator, which speaks no other API than JSON.
        token: an access token given directly, which is never renewed.
        key: the JSON of a service account's key.
        key_file: a file with such JSON.
        default_credentials: the values of the variables by which google-auth finds application default
            credentials (a file, gcloud's directory). It reads them itself; here they make a changed
            environment another configuration.
        anonymous: requests carry no token.
        billing_project: is charged for the requests (requester pays), None for the bucket's own.
        ca_bundle: PEM file with the authorities to trust, None for the system's.
        connect_timeout_s: seconds to establish a connection.
        idle_timeout_s: seconds without a byte in either direction; no limit on the total.
        checksum: uploads carry a CRC-32C that the service verifies.

    Raises:
        InvalidArgument: a token would be sent over plain http to another machine.
    """

    endpoint: str = ENDPOINT
    emulator: bool = False
    token: Secret | None = field(default=None, repr=False)
    key: Secret | None = field(default=None, repr=False)
    key_file: str | None = None
    default_credentials: tuple[str | None, ...] = ()
    anonymous: bool = False
    billing_project: str | None = None
    ca_bundle: str | None = None
    connect_timeout_s: float = 10.0
    idle_timeout_s: float = 60.0
    checksum: bool = True

    def __post_init__(self) -> None:
        parts = urlsplit(self.endpoint)
        host = parts.hostname or ""
        if parts.scheme == "http" and not is_this_machine(host) and not self.anonymous:
            raise InvalidArgument(
                "the Google Cloud Storage endpoint is plain http on another machine, where a token could "
                "be read on its way: use https, or set GOOGLE_SKIP_SIGNATURE=true to send none"
            )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> GcsConfig:
        """Read the GOOGLE_*, CLOUDSDK_* and WSTORE_* variables; an empty variable counts as unset.

        An endpoint of one's own wins over an emulator (`STORAGE_EMULATOR_HOST`), which gets no token
        unless one is given directly.

        Raises:
            InvalidArgument: a variable has a value that means nothing, or the endpoint holds a
                password.
        """
        values = Environment(environment)
        first = values.first
        endpoint, emulator = first("WSTORE_GCS_ENDPOINT"), emulator_url(environment)
        if endpoint is not None:
            emulator, endpoint = None, clean_endpoint(endpoint, GCS.service, _SECRETS)
        token = _secret(first("GOOGLE_BEARER_TOKEN", "CLOUDSDK_AUTH_ACCESS_TOKEN"))
        key = _secret(first("GOOGLE_SERVICE_ACCOUNT_KEY"))
        key_file = values.file("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH")
        if key is not None and key_file is not None:
            raise InvalidArgument(
                "GOOGLE_SERVICE_ACCOUNT_KEY and GOOGLE_SERVICE_ACCOUNT are both set: unset one"
            )
        given = token is not None or key is not None or key_file is not None
        return cls(
            endpoint=endpoint or emulator or ENDPOINT,
            emulator=emulator is not None,
            token=token,
            key=key,
            key_file=key_file,
            default_credentials=(
                first("GOOGLE_APPLICATION_CREDENTIALS"),
                first("CLOUDSDK_CONFIG"),
            ),
            anonymous=values.true("GOOGLE_SKIP_SIGNATURE") or (emulator is not None and not given),
            billing_project=first("GOOGLE_CLOUD_QUOTA_PROJECT"),
            ca_bundle=values.file("WSTORE_GCS_CA_BUNDLE"),
            connect_timeout_s=values.seconds("WSTORE_CONNECT_TIMEOUT", 10.0),
            idle_timeout_s=values.seconds("WSTORE_IDLE_TIMEOUT", 60.0),
            checksum=values.checksum("WSTORE_GCS_CHECKSUM"),
        )

    @property
    def dialect(self) -> Dialect:
        """The XML API's."""
        return GCS

    @property
    def region(self) -> None:
        """Requests are signed for no region."""
        return None

    def target(self, bucket: str) -> Target:
        """Every bucket is in the path, so that its name needs to be no host name."""
        parts = urlsplit(self.endpoint)
        return Target(parts.scheme, parts.netloc, bucket_in_path=True)

    def request_headers(self) -> dict[str, str]:
        """What every request carries."""
        return {} if self.billing_project is None else {"x-goog-user-project": self.billing_project}

    def object_headers(self) -> dict[str, str]:
        """Every new object is marked as not to be served from a cache without asking: what the public
        may read, Google would else serve an hour old."""
        return {"cache-control": "no-cache"}


def emulator_url(environment: Mapping[str, str] = os.environ) -> str | None:
    """The emulator that `STORAGE_EMULATOR_HOST` names, with or without a scheme, as a URL. "default" is
    gcsfs's word for none.

    Raises:
        InvalidArgument: the value is no host.
    """
    text = Environment(environment).first(_EMULATOR)
    if text is None or text == "default":
        return None
    return clean_endpoint(text if "://" in text else f"http://{text}", "emulator's", _SECRETS)


def _secret(text: str | None) -> Secret | None:
    return None if text is None else Secret(text.strip())
