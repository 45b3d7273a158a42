"""Documents to bytes and back: deterministic, capped, sealed, validated.

A sealed document is the JSON of its fields with one more member at the end, `check`: the xxh3-128 of the
document's bytes without it. So a cut or an edit of any byte is found without another object to compare
with, and members that this version does not know are covered as well.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, TypeVar

import msgspec
import xxhash

from wstore.errors import IntegrityError, InvalidArgument, NewerFormat
from wstore_transports.versions.documents import FORMAT, Document, Record, RecordBase

if TYPE_CHECKING:
    from wstore.path import StoragePath

D = TypeVar("D", bound=Document)

_CHECK = b',"check":"'
_TAIL = len(_CHECK) + 32 + len(b'"}')

_encoder = msgspec.json.Encoder(order="deterministic")
_records: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


class _Format(msgspec.Struct):
    format: int


_formats = msgspec.json.Decoder(_Format)


def hash_of(data: bytes | bytearray | memoryview) -> str:
    """xxh3-128 of `data` (seed 0) as 32 lower-case hex digits, most significant first."""
    return xxhash.xxh3_128_hexdigest(data)


def seal(document: Document) -> bytes:
    """The bytes to store: equal documents give equal bytes.

    Raises:
        InvalidArgument: readers would refuse it: it is too large, or a field is out of its range. (A log
            record that cannot be read would end the root, since none can follow it.)
    """
    body = _encoder.encode(document)
    if len(body) <= RecordBase.max_bytes:  # larger ones are lists of what was checked one by one
        try:
            _decoder(type(document)).decode(body)
        except msgspec.ValidationError as error:
            kind = type(document).__name__.lower()
            raise InvalidArgument(f"a {kind} document cannot say this: {error}") from error
    sealed = b"".join((body[:-1], _CHECK, hash_of(body).encode(), b'"}'))
    if len(sealed) > document.max_bytes:
        kind = type(document).__name__.lower()
        raise InvalidArgument(
            f"a {kind} document of {len(sealed)} bytes is over the limit of {document.max_bytes}; "
            "publish fewer or larger tensors a version, or fewer kept versions"
        )
    return sealed


def unseal(kind: type[D], data: bytes | bytearray | memoryview, *, url: str, root: str = "") -> D:
    """Decode and check one document.

    Unknown members are ignored (a later minor change may add some). `root`, when given, is the id that
    the document must carry.

    Raises:
        NewerFormat: it says so in `format`.
        IntegrityError: cut, edited, of another kind or another root; names `url` and the field.
    """
    document: D = _unseal(_decoder(kind), kind.__name__.lower(), kind.max_bytes, data, url, root)
    return document


def unseal_record(data: bytes | bytearray | memoryview, *, url: str, root: str) -> Record:
    """Decode and check one log record; as `unseal`."""
    return _unseal(_records, "log record", RecordBase.max_bytes, data, url, root)


def read_document(kind: type[D], path: StoragePath, *, root: str = "") -> D:
    """Read one document with one request, never more than its limit. Raises as `unseal`, NotFound."""
    data = read_capped(path, kind.max_bytes)
    return unseal(kind, data, url=path.url, root=root)


def read_capped(path: StoragePath, limit: int) -> bytes:
    """The whole object when it has at most `limit` bytes, in one request.

    Raises:
        IntegrityError: it is larger; no more than the limit was held.
    """
    # Straight to the store: a missing document is ordinary here, and the path's own read would look
    # whether the name is a prefix before it says so (two more requests a probe).
    data = path.store.read(path.key, 0, limit + 1).data
    if len(data) > limit:
        raise IntegrityError(
            f"larger than the {limit} bytes such a document may have", url=path.url
        )
    return bytes(data)


@cache
def _decoder(kind: type[D]) -> msgspec.json.Decoder[D]:
    return msgspec.json.Decoder(kind)


def _unseal(
    decoder: msgspec.json.Decoder[D],
    kind: str,
    limit: int,
    data: bytes | bytearray | memoryview,
    url: str,
    root: str,
) -> D:
    if len(data) > limit:
        raise IntegrityError(f"larger than the {limit} bytes a {kind} may have", url=url)
    try:
        written = _formats.decode(data).format
        if written > FORMAT:
            raise NewerFormat(
                f"a {kind} in format {written}; this version reads up to {FORMAT}: upgrade wstore",
                url=url,
            )
        document = decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise IntegrityError(f"not a valid {kind}: {error}", url=url) from error
    view = memoryview(data)
    body = xxhash.xxh3_128(view[:-_TAIL])
    body.update(b"}")
    if bytes(view[-_TAIL:]) != b"".join((_CHECK, body.hexdigest().encode(), b'"}')):
        raise IntegrityError(
            f"this {kind} was changed after it was written: its field `check` is missing or wrong",
            url=url,
        )
    if root and document.root != root:
        raise IntegrityError(
            f"this {kind} belongs to another root: its field `root` is {document.root}, not {root}",
            url=url,
        )
    return document
