"""How to reach one S3 service: everything that the environment says, as one value."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from wstore.errors import InvalidArgument
from wstore.stores.s3.dialect import S3, Dialect
from wstore.stores.s3.environment import Environment, clean_endpoint
from wstore.stores.s3.sigv4 import Credentials

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_SECRETS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"


@dataclass(frozen=True, slots=True)
class Target:
    """Where the requests for one bucket go: scheme, host with port, and the path's first part.

    Attributes:
        bucket_in_path: the bucket is the path's first segment (path style), else part of `host`.
    """

    scheme: str
    host: str
    bucket_in_path: bool

    @property
    def base(self) -> str:
        """ "scheme://host"."""
        return f"{self.scheme}://{self.host}"


@dataclass(frozen=True, slots=True)
class S3Config:
    """One service, one identity. Hashable; its repr holds no secret; it does not pickle with one.

    Attributes:
        endpoint: "scheme://host[:port]" of a service other than AWS, or None.
        region: what requests are signed for.
        credentials: an access key given directly; None lets `credentials.Provider` look for one.
        profile: the section of the shared config files to use, None for the default.
        anonymous: requests are not signed.
        ca_bundle: PEM file with the authorities to trust, None for the system's.
        connect_timeout_s: seconds to establish a connection.
        idle_timeout_s: seconds without a byte in either direction; no limit on the total.
        checksum: uploads carry a CRC-32C that the service verifies.
        encryption: `x-amz-server-side-encryption`, None for the bucket's default.
        kms_key: `x-amz-server-side-encryption-aws-kms-key-id`.
        requester_pays: the caller accepts the charges of a requester-pays bucket.
    """

    endpoint: str | None = None
    region: str = "us-east-1"
    credentials: Credentials | None = field(default=None, repr=False)
    profile: str | None = None
    anonymous: bool = False
    ca_bundle: str | None = None
    connect_timeout_s: float = 10.0
    idle_timeout_s: float = 60.0
    checksum: bool = True
    encryption: str | None = None
    kms_key: str | None = None
    requester_pays: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> S3Config:
        """Read the AWS_* and WSTORE_* variables; an empty variable counts as unset.

        Raises:
            InvalidArgument: a variable has a value that means nothing, or the endpoint holds a
                password.
        """
        values = Environment(environment)
        first = values.first
        endpoint = first("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        return cls(
            endpoint=None if endpoint is None else clean_endpoint(endpoint, "S3", _SECRETS),
            region=_checked_region(first("AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1"),
            credentials=_given_credentials(first),
            profile=first("AWS_PROFILE"),
            anonymous=values.true("AWS_SKIP_SIGNATURE", "AWS_NO_SIGN_REQUEST"),
            ca_bundle=values.file("AWS_CA_BUNDLE"),
            connect_timeout_s=values.seconds("WSTORE_CONNECT_TIMEOUT", 10.0),
            idle_timeout_s=values.seconds("WSTORE_IDLE_TIMEOUT", 60.0),
            checksum=values.checksum("WSTORE_S3_CHECKSUM"),
            encryption=first("AWS_SERVER_SIDE_ENCRYPTION"),
            kms_key=first("AWS_SSE_KMS_KEY_ID"),
            requester_pays=values.true("AWS_REQUEST_PAYER")
            or (first("AWS_REQUEST_PAYER") or "").lower() == "requester",
        )

    @property
    def dialect(self) -> Dialect:
        """S3's own."""
        return S3

    def request_headers(self) -> dict[str, str]:
        """What every request carries."""
        return {"x-amz-request-payer": "requester"} if self.requester_pays else {}

    def object_headers(self) -> dict[str, str]:
        """What every new object is created with."""
        headers = {}
        if self.encryption is not None:
            headers["x-amz-server-side-encryption"] = self.encryption
        if self.kms_key is not None:
            headers["x-amz-server-side-encryption-aws-kms-key-id"] = self.kms_key
        return headers

    def target(self, bucket: str) -> Target:
        """Path style on endpoints of one's own and for buckets that are no host name, else virtual
        hosts (a dot in the bucket would not fit the certificate's wildcard)."""
        if self.endpoint is not None:
            parts = urlsplit(self.endpoint)
            return Target(parts.scheme, parts.netloc, bucket_in_path=True)
        suffix = "amazonaws.com.cn" if self.region.startswith("cn-") else "amazonaws.com"
        host = f"s3.{self.region}.{suffix}"
        if _LABEL.fullmatch(bucket) is None:
            return Target("https", host, bucket_in_path=True)
        return Target("https", f"{bucket}.{host}", bucket_in_path=False)


def _given_credentials(first: Callable[..., str | None]) -> Credentials | None:
    access, secret = first("AWS_ACCESS_KEY_ID"), first("AWS_SECRET_ACCESS_KEY")
    if access is None and secret is None:
        return None
    if access is None or secret is None:
        missing = "AWS_ACCESS_KEY_ID" if access is None else "AWS_SECRET_ACCESS_KEY"
        raise InvalidArgument(f"{missing} is not set, although the other half of the key is")
    return Credentials(access.strip(), secret.strip(), first("AWS_SESSION_TOKEN"))


def _checked_region(text: str) -> str:
    if _LABEL.fullmatch(text) is None:
        raise InvalidArgument(f"AWS_REGION is {text!r}, which is no region name")
    return text
