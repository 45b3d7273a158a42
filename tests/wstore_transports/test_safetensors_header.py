"""Safetensors headers: what is built parses, and what is malformed raises before it does harm."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load

from wstore.errors import IntegrityError, InvalidArgument, NewerFormat
from wstore_codecs.dtypes import DTYPES, dtype
from wstore_transports.checkpoint import safetensors_header
from wstore_transports.checkpoint.safetensors_header import (
    MAX_HEADER,
    Header,
    build_header,
    header_span,
    parse_header,
)

URL = "s3://bucket/model.safetensors"


def parse(data: bytes) -> Header:
    return parse_header(data, file_size=len(data), url=URL)


def raw(text: bytes, body: bytes = b"") -> bytes:
    return struct.pack("<Q", len(text)) + text + body


def entry(
    kind: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8), **more: Any
) -> dict[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": offsets, **more}


def file_of(table: Any, nbytes: int) -> bytes:
    return raw(json.dumps(table).encode(), bytes(nbytes))


def test_built_headers_parse_and_are_aligned_and_deterministic() -> None:
    rows = [("a", dtype("U8"), (3,)), ("é", dtype("F32"), (2, 2)), ("s", dtype("I64"), ()),
            ("none", dtype("BF16"), (0, 4)), ("b", dtype("F32"), (1,))]  # fmt: skip
    head, header = build_header(rows, metadata={"format": "pt"})
    assert build_header(rows, metadata={"format": "pt"})[0] == head
    assert list(header.tensors) == ["s", "é", "b", "none", "a"]
    assert header.data_start == len(head)
    assert len(head) % 8 == 0
    assert all(e.offset % e.dtype.itemsize == 0 for e in header.tensors.values())
    data = head + bytes(header.size - len(head))
    assert parse(data) == header
    assert len(load(data)) == 5


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt", "ü": ""}])
def test_files_without_tensors(metadata: dict[str, str] | None) -> None:
    head, header = build_header([], metadata=metadata)
    assert parse(head) == header
    assert header.metadata == (metadata or {})
    assert load(head) == {}


MALFORMED: dict[str, bytes] = {
    "empty": b"",
    "seven bytes": bytes(7),
    "no header": bytes(8),
    "huge length": struct.pack("<Q", 1 << 63) + b"{}",
    "over the cap": struct.pack("<Q", MAX_HEADER + 1) + b"{}",
    "past the end": struct.pack("<Q", 3) + b"{}",
    "list": raw(b"[]"),
    "space first": raw(b" {}"),
    "bad json": raw(b'{"a":'),
    "bad utf-8": raw(b'{"\xff":1}'),
    "utf-16": raw("{}".encode("utf-16-le")),
    "deep": raw(b'{"a":' + b"[" * 100_000),
    "long number": raw(b'{"a":' + b"1" * 10_000 + b"}"),
    "nan": raw(b'{"a":NaN}'),
    "name twice": raw(b'{"a":%s,"a":%s}' % ((json.dumps(entry()).encode(),) * 2), bytes(8)),
    "field twice": raw(
        b'{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}', bytes(8)
    ),
    "metadata number": file_of({"__metadata__": {"v": 1}}, 0),
    "metadata list": file_of({"__metadata__": []}, 0),
    "empty name": file_of({"": entry()}, 8),
    "nul in a name": file_of({"a\0b": entry()}, 8),
    "long name": file_of({"a" * 70_000: entry()}, 8),
    "lone surrogate": raw(b'{"\\ud800":%s}' % json.dumps(entry()).encode(), bytes(8)),
    "not an object": file_of({"a": 1}, 0),
    "no dtype": file_of({"a": {"shape": [2], "data_offsets": [0, 8]}}, 8),
    "unknown dtype": file_of({"a": entry("F128")}, 8),
    "dtype number": file_of({"a": entry(4)}, 8),
    "negative shape": file_of({"a": entry(shape=[-1, -2])}, 8),
    "float shape": file_of({"a": entry(shape=[2.0])}, 8),
    "bool shape": file_of({"a": entry(shape=[True, 2])}, 8),
    "overflow": file_of({"a": entry(shape=[1 << 62, 1 << 62])}, 8),
    "overflow with zero": file_of({"a": entry(shape=[1 << 62, 1 << 62, 0], offsets=[0, 0])}, 0),
    "wraps to 8": file_of({"a": entry(shape=[(1 << 62) + 2])}, 8),
    "65 dimensions": file_of({"a": entry(shape=[1] * 64 + [2])}, 8),
    "offsets short": file_of({"a": entry(offsets=[0])}, 8),
    "offsets reversed": file_of({"a": entry(offsets=[8, 0])}, 8),
    "offsets negative": file_of({"a": entry(offsets=[-8, 0])}, 8),
    "wrong length": file_of({"a": entry(offsets=[0, 4])}, 4),
    "past the file": file_of({"a": entry()}, 7),
    "trailing": file_of({"a": entry()}, 9),
    "trailing, no tensors": raw(b"{}", b"x"),
    "hole": file_of({"a": entry(), "b": entry(offsets=[12, 20])}, 20),
    "hole at the front": file_of({"a": entry(offsets=[4, 12])}, 12),
    "overlap": file_of({"a": entry(), "b": entry(offsets=[4, 12])}, 12),
    "same bytes": file_of({"a": entry(), "b": entry()}, 8),
    "empty one inside": file_of({"a": entry(), "b": entry(shape=[0], offsets=[4, 4])}, 8),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_files_are_refused(case: str) -> None:
    with pytest.raises(IntegrityError) as caught:
        parse(MALFORMED[case])
    assert str(caught.value).startswith(URL)
    assert len(str(caught.value)) < 1000


def test_sub_byte_types_are_newer() -> None:
    with pytest.raises(NewerFormat, match="'a' is F4"):
        parse(file_of({"a": entry("F4", [16])}, 8))


def test_valid_oddities_parse() -> None:
    table = {"b": entry(offsets=[8, 16]), "e": entry(shape=[0, 3], offsets=[8, 8]), "a": entry(x=1)}
    header = parse(raw(json.dumps(table).encode() + b"   ", bytes(16)))
    assert list(header.tensors) == ["a", "e", "b"]
    assert header.tensors["e"].nbytes == 0


def test_a_header_cut_short_and_its_span() -> None:
    data = file_of({"a": entry()}, 8)
    span = header_span(data[:8], file_size=len(data), url=URL)
    assert parse_header(data[:span], file_size=len(data), url=URL).data_start == span
    with pytest.raises(IntegrityError, match="cut short"):
        parse_header(data[: span - 1], file_size=len(data), url=URL)


@pytest.mark.parametrize("cap", [1_000_000, pytest.param(MAX_HEADER, marks=pytest.mark.long)])
def test_build_refuses_a_header_over_the_cap(monkeypatch: pytest.MonkeyPatch, cap: int) -> None:
    monkeypatch.setattr(safetensors_header, "MAX_HEADER", cap)
    rows = [(f"{n:04}".ljust(60_000, "x"), dtype("F32"), (1,)) for n in range(cap // 60_000 + 1)]
    with pytest.raises(InvalidArgument, match="split the tensors over more files"):
        build_header(rows, url=URL)
    build_header(rows[:-2], url=URL)


def test_build_refuses_what_it_could_not_read_back() -> None:
    f32 = dtype("F32")
    for name in ("", "a\0b", "__metadata__", "x" * 70_000, "\ud800"):
        with pytest.raises(InvalidArgument, match="has a name"):
            build_header([(name, f32, (1,))])
    with pytest.raises(InvalidArgument, match="'a' comes twice"):
        build_header([("a", f32, (1,)), ("a", f32, (1,))])
    with pytest.raises(InvalidArgument, match="str to str"):
        build_header([], metadata={"step": 1})  # type: ignore[dict-item]
    with pytest.raises(InvalidArgument, match="not valid Unicode"):
        build_header([], metadata={"a": "\ud800"})


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    rows = draw(
        st.lists(
            st.tuples(
                st.text(min_size=1, max_size=4).filter(lambda s: "\0" not in s),
                st.sampled_from(sorted(set(DTYPES) - LIBRARY_LACKS)),
                st.lists(st.integers(0, 3), max_size=3),
            ),
            max_size=4,
            unique_by=lambda row: row[0],
        )
    )
    head, header = build_header([(n, dtype(d), tuple(s)) for n, d, s in rows])
    return head + bytes(header.size - len(head))


LIBRARY_LACKS = {"F8_E8M0"}  # its torch reader of today cannot make these
SPLICES = [
    b"",
    b"0",
    b"-1",
    b"9",
    b"F4",
    b'"',
    b",",
    b"{",
    b"}",
    b"[0]",
    b"1e9",
    b" ",
    b"null",
    b"\xff",
]


def check_mutated(data: bytes, choose: st.DataObject) -> None:
    text = bytearray(data)
    for _ in range(choose.draw(st.integers(0, 3))):
        at = choose.draw(st.integers(0, len(text)))
        cut = choose.draw(st.integers(0, 3))
        text[at : at + cut] = choose.draw(st.sampled_from(SPLICES))
    if choose.draw(st.booleans()):  # keep the length honest, so that the JSON is what is wrong
        text[:8] = struct.pack("<Q", max(0, len(text) - 8))
        text += choose.draw(st.sampled_from([b"", bytes(8), bytes(len(data))]))
    try:
        header = parse(bytes(text))
    except (IntegrityError, NewerFormat):
        return
    theirs = load(bytes(text))
    assert {name: (e.dtype.torch, e.shape) for name, e in header.tensors.items()} == {
        name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in theirs.items()
    }


@given(headers(), st.data())
def test_mutated_headers_never_crash_and_what_is_accepted_the_library_accepts(
    data: bytes, choose: st.DataObject
) -> None:
    check_mutated(data, choose)


@pytest.mark.long
@given(headers(), st.data())
@settings(max_examples=5000, deadline=None)
def test_many_mutated_headers(data: bytes, choose: st.DataObject) -> None:
    check_mutated(data, choose)
