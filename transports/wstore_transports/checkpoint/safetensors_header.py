"""The header of a safetensors file: parsed from untrusted bytes, and built. Pure.

Format (https://github.com/huggingface/safetensors): u64 little-endian length n of the header, n bytes
of JSON that starts with "{" and may end in spaces, then the tensors' bytes. The JSON object maps each
name to `{"dtype", "shape", "data_offsets": [begin, end]}` (offsets from the end of the header), and
"__metadata__" to strings by name. Tensors cover the data without holes or overlap, in any order.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypeGuard

from wstore.errors import IntegrityError, InvalidArgument, NewerFormat
from wstore_codecs import dtypes
from wstore_codecs.block import check_shape

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from wstore_codecs.block import Shape
    from wstore_codecs.dtypes import DType

MAX_HEADER = 100_000_000
"""Bytes of JSON that the format allows."""
MAX_NAME = 64 << 10
"""Bytes of a tensor's name that this package allows."""
MAX_DIMENSIONS = 64
"""Dimensions that numpy and torch can hold."""
PREFIX = 8
"""Bytes before the JSON."""

_METADATA = "__metadata__"
_LIMIT = 1 << 63


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies in the file.

    Attributes:
        dtype: its element type.
        shape: its dimensions.
        offset: of its first byte, from the start of the *file*.
        nbytes: its length in bytes.
    """

    dtype: DType
    shape: Shape
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """A file's table of contents, validated.

    Attributes:
        tensors: by name, in order of their offset.
        metadata: free strings by name; empty when the file has none.
        data_start: bytes before the first tensor: 8 + the JSON's length.
        size: bytes of the whole file.
    """

    tensors: Mapping[str, TensorEntry]
    metadata: Mapping[str, str]
    data_start: int
    size: int


def header_span(prefix: bytes | memoryview, *, file_size: int, url: str) -> int:
    """How many bytes from the file's start hold the header, from its first 8 bytes.

    Raises:
        IntegrityError: fewer than 8 bytes, or a length over the format's cap or the file's end.
    """
    if len(prefix) < PREFIX or file_size < PREFIX:
        raise IntegrityError(f"a file of {file_size} bytes has no safetensors header", url=url)
    length = int.from_bytes(prefix[:PREFIX], "little")
    if length > MAX_HEADER:
        raise IntegrityError(
            f"the header claims {length} bytes, the format allows {MAX_HEADER}: not safetensors",
            url=url,
        )
    if PREFIX + length > file_size:
        raise IntegrityError(
            f"the header claims {length} bytes in a file of {file_size}: cut short", url=url
        )
    return PREFIX + length


def parse_header(data: bytes | memoryview, *, file_size: int, url: str) -> Header:
    """The header of a file whose first bytes are `data` (at least `header_span`; more is ignored).

    Fields of an entry that the format does not name are ignored.

    Raises:
        IntegrityError: not a valid safetensors file of that size; names `url` and the tensor.
        NewerFormat: a dtype of the format that this version does not read (below one byte).
    """
    span = header_span(data[:PREFIX], file_size=file_size, url=url)
    if len(data) < span:
        raise IntegrityError(f"{len(data)} bytes of a header of {span}: cut short", url=url)
    table = _load_object(bytes(data[PREFIX:span]), url=url)
    metadata = table.pop(_METADATA, {})
    if not _is_str_to_str(metadata):
        raise IntegrityError(f"{_METADATA} does not map strings to strings", url=url)
    entries = {name: _entry(name, row, span, url=url) for name, row in table.items()}
    tensors = dict(sorted(entries.items(), key=lambda item: (item[1].offset, item[1].nbytes)))
    end = span
    for name, entry in tensors.items():
        if entry.offset != end:
            what = "a hole before" if entry.offset > end else "an overlap at"
            raise IntegrityError(f"{what} tensor {name!r}, at byte {entry.offset}", url=url)
        end += entry.nbytes
    if end != file_size:
        what = "cut short" if end > file_size else "trailing bytes"
        raise IntegrityError(
            f"the header describes a file of {end} bytes, this one has {file_size}: {what}", url=url
        )
    return Header(tensors, metadata, span, end)


def build_header(
    tensors: Iterable[tuple[str, DType, Sequence[int]]],
    *,
    metadata: Mapping[str, str] | None = None,
    url: str = "",
) -> tuple[bytes, Header]:
    """The header's bytes (with the 8-byte length) and its parsed form, deterministic.

    The data starts at a multiple of 8 and tensors are placed by element width, widest first, else in
    the order given, so each tensor lies at a multiple of its element's width.

    Raises:
        InvalidArgument: a name that comes twice or is absurd, metadata that is not str to str, or a
            header over the format's 100 MB (the message says to split the tensors over files).
    """
    table: dict[str, object] = {}
    if metadata:
        if not _is_str_to_str(metadata):
            raise InvalidArgument(
                "metadata must map str to str (convert numbers with str())", url=url
            )
        table[_METADATA] = dict(metadata)
    placed: list[tuple[str, DType, Shape, int]] = []
    end = 0
    for name, dtype, shape in sorted(tensors, key=lambda row: -row[1].itemsize):
        trouble = _name_trouble(name)
        if trouble or name in table:
            raise InvalidArgument(f"tensor {name[:80]!r} {trouble or 'comes twice'}", url=url)
        check_shape(shape, tensor=name)
        nbytes = math.prod(shape) * dtype.itemsize
        table[name] = {
            "dtype": dtype.name,
            "shape": list(shape),
            "data_offsets": [end, end + nbytes],
        }
        placed.append((name, dtype, tuple(shape), end))
        end += nbytes
    text = _encode(table, url=url)
    start = PREFIX + len(text)
    entries = {
        name: TensorEntry(dtype, shape, start + at, math.prod(shape) * dtype.itemsize)
        for name, dtype, shape, at in placed
    }
    header = Header(entries, dict(metadata or {}), start, start + end)
    return len(text).to_bytes(PREFIX, "little") + text, header


def _encode(table: dict[str, object], *, url: str) -> bytes:
    try:
        text = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument("metadata holds text that is not valid Unicode", url=url) from error
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise InvalidArgument(
            f"the header of {len(table)} tensors takes {len(text)} bytes and the safetensors format "
            f"allows {MAX_HEADER}: split the tensors over more files",
            url=url,
        )
    return text


def _load_object(text: bytes, *, url: str) -> dict[str, object]:
    """The JSON object, with names unique in every object of it."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        table = dict(pairs)
        if len(table) != len(pairs):
            twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
            raise IntegrityError(f"the header names {twice[:80]!r} twice", url=url)
        return table

    def constant(word: str) -> NoReturn:
        raise IntegrityError(f"the header holds {word}, which is not JSON", url=url)

    if not text.startswith(b"{"):
        raise IntegrityError("the header does not start with '{': not safetensors", url=url)
    try:
        table = json.loads(text.decode("utf-8"), object_pairs_hook=unique, parse_constant=constant)
    except IntegrityError:
        raise
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"the header is not valid JSON: {error}", url=url) from error
    if not isinstance(table, dict):
        raise IntegrityError("the header is not a JSON object", url=url)
    return table


def _entry(name: str, row: object, data_start: int, *, url: str) -> TensorEntry:
    def bad(what: str) -> IntegrityError:
        return IntegrityError(f"tensor {name[:80]!r} {what}", url=url)

    trouble = _name_trouble(name)
    if trouble:
        raise bad(trouble)
    if not isinstance(row, dict):
        raise bad("is not described by an object")
    kind, shape, offsets = row.get("dtype"), row.get("shape"), row.get("data_offsets")
    if not isinstance(kind, str):
        raise bad("has no dtype")
    if kind in dtypes.SUBBYTE:
        raise NewerFormat(
            f"tensor {name[:80]!r} is {kind}; elements below one byte are not supported", url=url
        )
    if kind not in dtypes.DTYPES:
        raise bad(f"has the unknown dtype {kind[:80]!r}")
    if not _are_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        raise bad(f"has no valid shape: at most {MAX_DIMENSIONS} integers from 0 on")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise bad("has no valid data_offsets: two integers from 0 on")
    dtype = dtypes.DTYPES[kind]
    # Dimensions of 0 left out: readers that multiply in order must not overflow on the way either.
    if math.prod(n for n in shape if n) * dtype.itemsize >= _LIMIT:
        raise bad(f"has too many elements: shape {shape}")
    nbytes = math.prod(shape) * dtype.itemsize
    if offsets[1] - offsets[0] != nbytes:
        raise bad(f"spans {offsets[1] - offsets[0]} bytes; {kind} {shape} takes {nbytes}")
    return TensorEntry(dtype, tuple(shape), data_start + offsets[0], nbytes)


def _name_trouble(name: object) -> str:
    if not isinstance(name, str):
        return "has a name that is not a str"
    if name in ("", _METADATA):
        return "has a name that is reserved"
    if "\0" in name:
        return "has a name with a NUL character"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "has a name that is not valid Unicode"
    return f"has a name of {size} bytes; {MAX_NAME} are allowed" if size > MAX_NAME else ""


def _are_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < _LIMIT for n in value)


def _is_str_to_str(value: object) -> TypeGuard[dict[str, str]]:
    return isinstance(value, dict) and all(
        isinstance(k, str) and isinstance(v, str) for k, v in value.items()
    )
