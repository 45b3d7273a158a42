"""The XML documents of S3's protocol, parsed and built by pure functions.

Replies come from outside: they are capped in size and depth, and a document type declaration (the way
to entity bombs and to foreign files) is refused. Source: Amazon S3 API Reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import unquote_plus
from xml.etree.ElementTree import Element, SubElement, TreeBuilder, tostring
from xml.parsers import expat

from wstore.errors import IntegrityError
from wstore.stores.base import Entry, ObjectInfo
from wstore.stores.s3.dialect import S3, normal_tag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from wstore.stores.s3.dialect import Dialect

MAX_DOCUMENT_BYTES = 16 << 20
_MAX_DEPTH = 16
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An `<Error>`. `region` is what S3 calls the right one, where it says so."""

    code: str
    message: str
    request_id: str
    region: str


@dataclass(frozen=True, slots=True)
class Page:
    """One page of ListObjectsV2: entries in order of their keys' bytes; `next_token` None: the last."""

    entries: tuple[Entry, ...]
    next_token: str | None


@dataclass(frozen=True, slots=True)
class PendingUpload:
    """A multipart upload that was neither completed nor aborted."""

    key: str
    upload_id: str
    initiated: datetime


@dataclass(frozen=True, slots=True)
class PendingPage:
    """One page of ListMultipartUploads; `next_marker` is (key, upload id), None on the last."""

    uploads: tuple[PendingUpload, ...]
    next_marker: tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class Piece:
    """What CompleteMultipartUpload says of one piece. `number` counts from 1, as S3 does."""

    number: int
    etag: str
    crc32c: str | None


def parse(body: bytes) -> Element:
    """A document as elements with local names.

    Raises:
        IntegrityError: not well-formed, too large, too deep, or it declares a document type.
    """
    if len(body) > MAX_DOCUMENT_BYTES:
        raise IntegrityError(f"the reply of {len(body)} bytes is over {MAX_DOCUMENT_BYTES}")
    builder = TreeBuilder()
    depth = 0

    def start(name: str, _attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > _MAX_DEPTH:
            raise IntegrityError("the reply is nested too deeply")
        builder.start(name.rpartition("}")[2], {})

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(name.rpartition("}")[2])

    def refuse(*_: object) -> None:
        raise IntegrityError("the reply declares a document type")

    parser = expat.ParserCreate(namespace_separator="}")
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(body, True)
        return builder.close()
    except expat.ExpatError as error:
        raise IntegrityError(f"the reply is not XML: {error}") from error


def parse_error(body: bytes) -> ErrorReply | None:
    """The `<Error>` in a reply; None where there is none (an empty body, a proxy's HTML)."""
    try:
        root = parse(body)
    except IntegrityError:
        return None
    if root.tag == "ErrorResponse":
        root = root.find("Error") or root
    if root.tag != "Error":
        return None
    return ErrorReply(
        code=_text(root, "Code"),
        message=": ".join(filter(None, (_text(root, "Message"), _text(root, "Details")))),
        request_id=_text(root, "RequestId"),
        region=_text(root, "Region"),
    )


def parse_listing(body: bytes, dialect: Dialect = S3) -> Page:
    """A ListBucketResult. Raises IntegrityError for anything else."""
    root = _document(body, "ListBucketResult")
    decode = _decoder(root)
    entries = [
        Entry(decode(_needed(item, "Prefix")), None) for item in root.findall("CommonPrefixes")
    ]
    for item in root.findall("Contents"):
        info = ObjectInfo(
            size=_size(_needed(item, "Size")),
            modified=_instant(_needed(item, "LastModified")),
            tag=_tag(item, dialect),
        )
        entries.append(Entry(decode(_needed(item, "Key")), info))
    entries.sort(key=lambda entry: entry.key.encode())
    more = _text(root, "IsTruncated") == "true"
    return Page(tuple(entries), _needed(root, "NextContinuationToken") if more else None)


def parse_pending(body: bytes) -> PendingPage:
    """A ListMultipartUploadsResult. Raises IntegrityError for anything else."""
    root = _document(body, "ListMultipartUploadsResult")
    decode = _decoder(root)
    uploads = tuple(
        PendingUpload(
            decode(_needed(item, "Key")),
            _needed(item, "UploadId"),
            _instant(_needed(item, "Initiated")),
        )
        for item in root.findall("Upload")
    )
    if _text(root, "IsTruncated") != "true":
        return PendingPage(uploads, None)
    marker = decode(_needed(root, "NextKeyMarker")), _text(root, "NextUploadIdMarker")
    return PendingPage(uploads, marker)


def parse_upload_id(body: bytes) -> str:
    """The id in an InitiateMultipartUploadResult."""
    return _needed(_document(body, "InitiateMultipartUploadResult"), "UploadId")


def parse_completed(body: bytes) -> str:
    """The ETag in a CompleteMultipartUploadResult."""
    return normal_tag(_needed(_document(body, "CompleteMultipartUploadResult"), "ETag"))


def parse_copied(body: bytes) -> tuple[str, datetime]:
    """ETag and time in a CopyObjectResult."""
    return _copied(_document(body, "CopyObjectResult"))


def parse_copied_piece(body: bytes) -> tuple[str, datetime]:
    """ETag and time in a CopyPartResult."""
    return _copied(_document(body, "CopyPartResult"))


def _copied(root: Element) -> tuple[str, datetime]:
    return normal_tag(_needed(root, "ETag")), _instant(_needed(root, "LastModified"))


def build_complete(pieces: Iterable[Piece]) -> bytes:
    """The body of CompleteMultipartUpload; the pieces in ascending order."""
    root = Element("CompleteMultipartUpload", xmlns=_NAMESPACE)
    for piece in pieces:
        part = SubElement(root, "Part")
        if piece.crc32c is not None:
            SubElement(part, "ChecksumCRC32C").text = piece.crc32c
        SubElement(part, "ETag").text = piece.etag
        SubElement(part, "PartNumber").text = str(piece.number)
    return tostring(root)


def _document(body: bytes, tag: str) -> Element:
    root = parse(body)
    if root.tag != tag:
        raise IntegrityError(f"the reply is <{root.tag[:40]}> where <{tag}> belongs")
    return root


def _decoder(root: Element) -> Callable[[str], str]:
    """Undo `encoding-type=url` (in which "+" is a space), where the server says that it did it."""
    if _text(root, "EncodingType") == "url":
        return lambda text: unquote_plus(text, errors="strict")
    return lambda text: text


def _text(parent: Element, name: str) -> str:
    return parent.findtext(name) or ""


def _needed(parent: Element, name: str) -> str:
    text = parent.findtext(name)
    if not text:
        raise IntegrityError(f"<{parent.tag[:40]}> in the reply has no {name}")
    return text


def _tag(item: Element, dialect: Dialect) -> str:
    tag = dialect.read_tag(_text(item, dialect.tag_element))
    if not tag:
        raise IntegrityError(f"<{item.tag[:40]}> in the reply has no {dialect.tag_element}")
    return tag


def _size(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 19:
        raise IntegrityError(f"a size in the reply is {text[:40]!r}")
    return int(text)


def _instant(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise IntegrityError(f"a time in the reply is {text[:40]!r}") from error
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
