"""How one service words what all services of S3's protocol say: header names, tags, limits.

Google Cloud Storage's XML API is S3's with names of its own, so the modules of this package serve both;
a `Dialect` is all that differs between them on the wire. Who signs, and where the service is, says the
service's configuration (`Service`).
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from wstore.stores.base import Expect, GiB, MiB, PieceLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from wstore.stores.s3.config import Target


def normal_tag(etag: str) -> str:
    """An ETag in the one form that is compared and sent back: in quotes, whoever left them out."""
    return '"' + etag.strip().strip('"') + '"' if etag.strip() else ""


@dataclass(frozen=True, slots=True)
class Dialect:
    """Header names in lower case.

    Attributes:
        service: what messages call the service.
        scheme: of the URLs in messages.
        endpoint_variable, ca_variable: the environment variables to look at when it cannot be reached.
        read_tag: a tag as the service writes it, in the form that is compared; "" for what is none.
        tag_header, tag_element: where a reply's head and a listing carry the tag.
        obstore_tag: where obstore's reply carries it.
        obstore_pin: the option by which obstore demands a tag. None: the reply's tag is compared, which
            is as strict, since one reply has one content.
        match_header: demands a tag, of reads and writes.
        absent: demands that there is no object.
        metadata: prefix of the headers that stay on an object.
        copy_source, copy_match: name the object to copy, and demand its tag.
        checksum: the header of a body's checksum, and what stands before the CRC-32C in it.
        checksum_extra: goes with each such header.
        upload_extra: begins an upload whose pieces have checksums.
        piece_checksums: a completed upload repeats the checksums of its pieces.
        limits: what the service accepts.
        max_copy: the largest object, in bytes, that one request copies.
    """

    service: str
    scheme: str
    endpoint_variable: str
    ca_variable: str
    read_tag: Callable[[str], str]
    tag_header: str
    tag_element: str
    obstore_tag: Literal["e_tag", "version"]
    obstore_pin: Literal["if_match"] | None
    match_header: str
    absent: tuple[str, str]
    metadata: str
    copy_source: str
    copy_match: str
    checksum: tuple[str, str]
    checksum_extra: tuple[tuple[str, str], ...]
    upload_extra: tuple[tuple[str, str], ...]
    piece_checksums: bool
    limits: PieceLimits
    max_copy: int

    @property
    def write_id(self) -> str:
        """The header that stamps a write."""
        return f"{self.metadata}wstore-write"

    def tag_of(self, headers: Mapping[str, str]) -> str:
        """The tag in a reply's head; "" where it has none."""
        return self.read_tag(headers.get(self.tag_header, ""))

    def pin(self, tag: str | None) -> dict[str, str]:
        """What a read of that tag sends. Of one that cannot be this service's, nothing: no content has
        it, and the reply's own tag will tell."""
        return {} if tag is None or not self.read_tag(tag) else {self.match_header: tag}

    def expectation(self, expect: Expect | str) -> dict[str, str]:
        """What a write sends to make `expect` binding. A tag must be one that `read_tag` accepts."""
        if isinstance(expect, str):
            return {self.match_header: expect}
        return dict([self.absent]) if expect is Expect.ABSENT else {}

    def checksum_headers(self, crc: int) -> dict[str, str]:
        """The headers that let the service verify a body of that CRC-32C."""
        name, lead = self.checksum
        text = base64.b64encode(crc.to_bytes(4, "big")).decode()
        return {name: lead + text, **dict(self.checksum_extra)}

    def stores_other(self, sent: Mapping[str, str], reply: Mapping[str, str]) -> bool:
        """Whether the reply to a body says that another checksum than the sent one is stored."""
        name, lead = self.checksum
        if name not in sent or name not in reply:
            return False
        said = [part.strip() for part in reply[name].split(",")]
        return any(part.startswith(lead) and part != sent[name] for part in said)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request as it is sent, but for what shows who asks.

    Attributes:
        path: encoded, exactly as it is sent.
        query: names and values, not yet encoded.
        headers: names in lower case, `host` among them.
        body: None: protected by other means, so that its hash need not be signed.
    """

    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    headers: Mapping[str, str]
    body: memoryview | None


class Authority(Protocol):
    """Who signs the requests of one service."""

    def authorised(self, request: Outgoing) -> dict[str, str]:
        """All headers to send: the request's, and what shows who asks.

        Raises:
            CredentialsMissing: nothing is known to sign with; the text says what to do.
        """

    def renewed(self) -> bool:
        """Told that the service did not accept (HTTP 401) what this thread's last request showed:
        whether the next one shows something newer, so that a repeat is worth it."""


class Service(Protocol):
    """One service as its configuration describes it (`S3Config`, `GcsConfig`)."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def region(self) -> str | None:
        """What requests are signed for; None where the service knows no regions."""

    @property
    def ca_bundle(self) -> str | None: ...

    @property
    def connect_timeout_s(self) -> float: ...

    @property
    def idle_timeout_s(self) -> float: ...

    @property
    def checksum(self) -> bool: ...

    def target(self, bucket: str) -> Target:
        """Where the requests for a bucket go."""

    def request_headers(self) -> dict[str, str]:
        """What every request carries."""

    def object_headers(self) -> dict[str, str]:
        """What every new object is created with."""


# Limits: "Amazon S3 multipart upload limits", Amazon S3 User Guide.
S3 = Dialect(
    service="S3",
    scheme="s3",
    endpoint_variable="AWS_ENDPOINT_URL",
    ca_variable="AWS_CA_BUNDLE",
    read_tag=normal_tag,
    tag_header="etag",
    tag_element="ETag",
    obstore_tag="e_tag",
    obstore_pin="if_match",
    match_header="if-match",
    absent=("if-none-match", "*"),
    metadata="x-amz-meta-",
    copy_source="x-amz-copy-source",
    copy_match="x-amz-copy-source-if-match",
    checksum=("x-amz-checksum-crc32c", ""),
    checksum_extra=(("x-amz-sdk-checksum-algorithm", "CRC32C"),),
    upload_extra=(("x-amz-checksum-algorithm", "CRC32C"),),
    piece_checksums=True,
    limits=PieceLimits(
        min_piece=5 * MiB,
        max_piece=5 * GiB,
        max_pieces=10_000,
        max_put=5 * GiB,
        max_object=10_000 * 5 * GiB,
    ),
    max_copy=5 * GiB,
)
