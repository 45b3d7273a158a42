"""From a service's error reply to the error that a caller sees, in words that say what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wstore.errors import (
    AccessDenied,
    CredentialsMissing,
    IntegrityError,
    InvalidArgument,
    InvalidPath,
    NoSpace,
    NotFound,
    PreconditionFailed,
    StoreError,
    Unavailable,
    UnsupportedOperation,
    WStoreError,
)
from wstore.stores.s3.documents import parse_error
from wstore.stores.s3.replies import retry_after_s

if TYPE_CHECKING:
    from wstore.stores.s3.replies import Reply

_MAX_MESSAGE = 300
_REQUEST_IDS = ("x-amz-request-id", "x-guploader-uploadid")

_DENIED = {
    "AccessDenied": "access denied: these credentials may not do this",
    "AllAccessDisabled": "access to this bucket is disabled",
    "AccountProblem": "there is a problem with the account",
    "AuthenticationRequired": "the credentials are missing, wrong or no longer valid",
    "InvalidAccessKeyId": "wrong credentials: the service does not know this access key id",
    "SignatureDoesNotMatch": "wrong credentials: the secret key does not fit the access key id",
    "ExpiredToken": "the session token has expired: renew the credentials",
    "TokenRefreshRequired": "the session token must be renewed",
    "InvalidToken": "wrong credentials: the session token is not valid",
    "RequestTimeTooSkewed": "this machine's clock differs too much from the service's: set it",
    "RequestExpired": "this machine's clock differs too much from the service's: set it",
}
_RETRYABLE = frozenset(
    {
        "ConditionalRequestConflict",
        "InternalError",
        "OperationAborted",
        "RequestLimitExceeded",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "rateLimitExceeded",
    }
)
_DAMAGED = frozenset(
    {"BadDigest", "IncompleteBody", "InvalidDigest", "XAmzContentChecksumMismatch"}
)
_WRONG_REGION = frozenset(
    {
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
        "IncorrectEndpoint",
        "PermanentRedirect",
        "TemporaryRedirect",
    }
)
_BY_CODE: dict[str, type[WStoreError]] = {
    "EntityTooLarge": InvalidArgument,
    "EntityTooSmall": InvalidArgument,
    "InvalidBucketName": InvalidPath,
    "InvalidObjectName": InvalidPath,
    "KeyTooLongError": InvalidPath,
    "NotImplemented": UnsupportedOperation,
    "QuotaExceeded": NoSpace,
}


@dataclass(frozen=True, slots=True)
class Failure:
    """An error reply, read. `code` is "" where the body named none (HEAD has no body)."""

    status: int
    code: str
    message: str
    request_id: str
    region: str
    retry_after_s: float | None

    @classmethod
    def of(cls, reply: Reply) -> Failure:
        """Read any reply as a failure, also a 200 whose body is an `<Error>`."""
        found = parse_error(reply.body)
        return cls(
            status=reply.status,
            code=printable(found.code, 80) if found else "",
            message=printable(found.message, _MAX_MESSAGE) if found else "",
            request_id=printable(
                next(filter(None, map(reply.headers.get, _REQUEST_IDS)), "")
                or (found.request_id if found else ""),
                80,
            ),
            region=printable(
                reply.headers.get("x-amz-bucket-region", "") or (found.region if found else ""), 40
            ),
            retry_after_s=retry_after_s(reply.headers),
        )

    def error(self, *, url: str, bucket: str, region: str | None) -> WStoreError:
        """The error to raise. `region` is the one that the request was signed for; None: the service
        has none."""
        if self.status == 404 or self.code in {"NoSuchKey", "NoSuchBucket", "NoSuchUpload"}:
            return NotFound(self._not_found(bucket), url=url)
        if self.code in _WRONG_REGION or self.status in {301, 302, 307, 308}:
            return StoreError(self._text(self._wrong_region(bucket, region)), url=url)
        if self.code in _DENIED or (self.status in {401, 403} and self.code not in _RETRYABLE):
            kind = CredentialsMissing if self.code == "ExpiredToken" else AccessDenied
            return kind(self._text(_DENIED.get(self.code, self._denied())), url=url)
        if self.code in _DAMAGED:
            damaged = IntegrityError(self._text("the body was damaged on its way"), url=url)
            damaged.retryable = True
            return damaged
        if self.code in _BY_CODE:
            return _BY_CODE[self.code](self._text("the service refused"), url=url)
        if self.status == 501:
            return UnsupportedOperation(self._text("this service cannot do this"), url=url)
        if self.status == 507:
            return NoSpace(self._text("the service has no space left"), url=url)
        if self.code in _RETRYABLE or self.status in {408, 429} or self.status >= 500:
            text = self._text("the service asks to try again later")
            return Unavailable(text, url=url, retry_after_s=self.retry_after_s)
        if self.status == 412:
            return PreconditionFailed(self._text("the object has another content"), url=url)
        return StoreError(self._text("the service refused the request"), url=url)

    def _text(self, lead: str) -> str:
        said = f"{self.code}: {self.message}" if self.code else self.message
        facts = [f"HTTP {self.status}", *([said] if said else [])]
        if self.request_id:
            facts.append(f"request {self.request_id}")
        return f"{lead} ({'; '.join(facts)})"

    def _not_found(self, bucket: str) -> str:
        if self.code == "NoSuchBucket":
            return self._text(f"there is no bucket {bucket!r}")
        if self.code == "NoSuchUpload":
            return self._text("there is no such unfinished upload")
        if self.code:
            return self._text("no such object")
        return self._text(f"no such object, or no bucket {bucket!r}")

    def _denied(self) -> str:
        return "access denied (also the answer for a missing key where listing is not allowed)"

    def _wrong_region(self, bucket: str, region: str | None) -> str:
        if region is None:
            return "the request was redirected: check the endpoint"
        if self.region and self.region != region:
            return (
                f"bucket {bucket!r} is in region {self.region!r}, the request was for {region!r}: "
                f"set AWS_REGION={self.region}"
            )
        return (
            f"the request for region {region!r} was redirected: check AWS_REGION and the endpoint"
        )


def printable(text: str, limit: int) -> str:
    """Foreign text made safe for a log line: no control characters, at most `limit` characters."""
    cut = text[:limit]
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
