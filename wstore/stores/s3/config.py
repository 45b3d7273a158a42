"""How to reach one S3 service: everything that the environment says, as one value."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from wstore.errors import InvalidArgument
from wstore.stores.s3.sigv4 import Credentials

if TYPE_CHECKING:
    from collections.abc import Mapping

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_TRUE = frozenset({"1", "true", "yes", "on"})


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

        def first(*names: str) -> str | None:
            return next((environment[name] for name in names if environment.get(name)), None)

        def number(name: str, default: float) -> float:
            text = first(name)
            return default if text is None else _seconds(name, text)

        endpoint = first("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        return cls(
            endpoint=None if endpoint is None else clean_endpoint(endpoint),
            region=_checked_region(first("AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1"),
            credentials=_given_credentials(first),
            profile=first("AWS_PROFILE"),
            anonymous=(first("AWS_SKIP_SIGNATURE", "AWS_NO_SIGN_REQUEST") or "").lower() in _TRUE,
            ca_bundle=_existing(first("AWS_CA_BUNDLE")),
            connect_timeout_s=number("WSTORE_CONNECT_TIMEOUT", 10.0),
            idle_timeout_s=number("WSTORE_IDLE_TIMEOUT", 60.0),
            checksum=_checksum(first("WSTORE_S3_CHECKSUM") or "crc32c"),
            encryption=first("AWS_SERVER_SIDE_ENCRYPTION"),
            kms_key=first("AWS_SSE_KMS_KEY_ID"),
            requester_pays=(first("AWS_REQUEST_PAYER") or "").lower() in {"requester", *_TRUE},
        )

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


def clean_endpoint(text: str) -> str:
    """An endpoint as "scheme://host[:port]".

    Raises:
        InvalidArgument: not such a URL, or it holds a user name or password (which is not repeated).
    """
    try:
        parts: SplitResult = urlsplit(text)
        has_host, has_user = bool(parts.hostname), "@" in parts.netloc
        _ = parts.port
    except ValueError as error:
        raise InvalidArgument(
            "the S3 endpoint is not a URL: write http(s)://host[:port]"
        ) from error
    if has_user:
        raise InvalidArgument(
            "the S3 endpoint holds a user name or password: "
            "give the key in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if parts.scheme not in {"http", "https"} or not has_host or parts.query or parts.fragment:
        raise InvalidArgument("the S3 endpoint is not a URL: write http(s)://host[:port]")
    if parts.path not in {"", "/"}:
        raise InvalidArgument(f"the S3 endpoint has a path ({parts.path!r}): S3 has none there")
    return f"{parts.scheme}://{parts.netloc.lower()}"


def _given_credentials(first: _First) -> Credentials | None:
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


def _existing(path: str | None) -> str | None:
    if path is not None and not os.path.isfile(path):
        raise InvalidArgument(f"AWS_CA_BUNDLE is {path!r}, which is no file")
    return path


def _checksum(text: str) -> bool:
    if text not in {"crc32c", "off"}:
        raise InvalidArgument(f"WSTORE_S3_CHECKSUM is {text!r}; it may be crc32c or off")
    return text == "crc32c"


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e6:
        raise InvalidArgument(f"{name} is {text!r}; it must be a positive number of seconds")
    return value


if TYPE_CHECKING:
    from typing import Protocol

    class _First(Protocol):
        def __call__(self, *names: str) -> str | None: ...
