"""Documents: deterministic, sealed, capped, validated; newer formats refused, unknown members kept out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wstore.errors import IntegrityError, InvalidArgument, InvalidPath, NewerFormat
from wstore.path import StoragePath
from wstore.stores.memory import MemoryStore
from wstore_transports.versions import layout
from wstore_transports.versions.documents import (
    Announcement,
    Document,
    Done,
    Head,
    Layout,
    LeaseDocument,
    Manifest,
    Marker,
    Open,
    Pointer,
    RankAbort,
    Session,
    Weights,
)
from wstore_transports.versions.sealing import (
    hash_of,
    read_document,
    seal,
    unseal,
    unseal_record,
)

ROOT = "0123456789abcdef0123456789abcdef"
HEAD = Head(root=ROOT, number=12, hash="f" * 32)
FORMAT_PAGE = Path(__file__).parents[3] / "docs" / "format.md"


def resealed(fields: dict[str, object]) -> bytes:
    fields.pop("check", None)
    body = json.dumps(fields, separators=(",", ":")).encode()
    return body[:-1] + f',"check":"{hash_of(body)}"}}'.encode()


def test_seal_is_deterministic_and_comes_back() -> None:
    assert seal(HEAD) == seal(Head(hash="f" * 32, number=12, root=ROOT))
    assert unseal(Head, seal(HEAD), url="u", root=ROOT) == HEAD


@given(cut=st.integers(0, len(seal(HEAD)) - 1))
def test_a_cut_document_is_found(cut: int) -> None:
    with pytest.raises(IntegrityError, match="memory://x/head"):
        unseal(Head, seal(HEAD)[:cut], url="memory://x/head")


@given(at=st.integers(0, len(seal(HEAD)) - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_is_found(at: int, bit: int) -> None:
    data = bytearray(seal(HEAD))
    data[at] ^= 1 << bit
    with pytest.raises((IntegrityError, NewerFormat)):
        unseal(Head, data, url="u")


def test_a_hand_edit_names_the_field() -> None:
    edited = seal(HEAD).replace(b'"number":12', b'"number":13')
    with pytest.raises(IntegrityError, match="field `check`"):
        unseal(Head, edited, url="u")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("number", -1),
        ("number", "12"),
        ("number", 10**12),
        ("hash", "F" * 32),
        ("hash", "f" * 32 + "\n"),
    ],
)
def test_a_value_out_of_range_names_the_field(field: str, value: object) -> None:
    data = resealed(json.loads(seal(HEAD)) | {field: value})
    with pytest.raises(IntegrityError, match=rf"\$\.{field}"):
        unseal(Head, data, url="u")


def test_unknown_members_are_tolerated_and_covered_by_the_check() -> None:
    data = resealed(json.loads(seal(HEAD)) | {"later": [1, {"x": 2}]})
    assert unseal(Head, data, url="u") == HEAD
    with pytest.raises(IntegrityError):
        unseal(Head, data.replace(b'"x":2', b'"x":3'), url="u")


def test_a_newer_format_is_refused_before_anything_else() -> None:
    with pytest.raises(NewerFormat, match="format 2"):
        unseal(Head, b'{"format":2,"all":"different"}', url="u")


def test_another_kind_and_another_root_are_refused() -> None:
    with pytest.raises(IntegrityError, match=r"\$\.document"):
        unseal(Marker, seal(HEAD), url="u")
    with pytest.raises(IntegrityError, match="another root"):
        unseal(Head, seal(HEAD), url="u", root="e" * 32)


def test_deep_nesting_is_an_error_not_a_crash() -> None:
    with pytest.raises(IntegrityError):
        unseal(Head, b'{"format":1,"x":' + b"[" * 50_000, url="u")


def test_what_readers_would_refuse_is_not_sealed() -> None:
    """A record that nobody can read would end its root for ever: nothing may follow it."""
    for document in (Marker(root=ROOT, lease_s=0), Head(root=ROOT, number=0, hash="f" * 32)):
        with pytest.raises(InvalidArgument, match=r"\$\.(lease_s|number)"):
            seal(document)


def test_reading_is_capped() -> None:
    store = MemoryStore("cap")
    path = StoragePath("memory://cap/head.json", store=store)
    path.write_file(b" " * (Head.max_bytes + 1))
    with pytest.raises(IntegrityError, match="larger than"):
        read_document(Head, path)


@pytest.mark.parametrize("name", ["/a", "a//b", "../a", "a/..", "a/./b", "", "a\\b", "a\x00", "a/"])
def test_object_names_stay_inside(name: str) -> None:
    with pytest.raises(InvalidPath):
        layout.check_object_name(name)


def test_layout_parses_its_own_names() -> None:
    name = layout.AttemptName("run", 12, layout.new_attempt(7))
    assert layout.attempt_of(f"{name.directory}/x.bin") == name
    assert name.epoch == 7
    assert layout.parse_session("000000000007-000012.json") == (7, 12)
    assert layout.parse_session("000000000007.json") == (7, None)
    for foreign in ("data/run/other/x", "data/x", "log/000000000001.json", "model.safetensors"):
        assert layout.attempt_of(foreign) is None


KINDS: dict[str, type[Document]] = {
    "root": Marker,
    "head": Head,
    "open": Open,
    "done": Done,
    "rank-abort": RankAbort,
    "manifest": Manifest,
    "session": Session,
    "announcement": Announcement,
    "lease": LeaseDocument,
    "layout": Layout,
    "pointer": Pointer,
}


def test_the_examples_of_the_format_page_decode() -> None:
    examples = re.findall(r"```json\n(.*?)\n```", FORMAT_PAGE.read_text(), re.DOTALL)
    seen = set()
    for example in examples:
        kind = json.loads(example)["document"]
        seen.add(kind)
        if kind.startswith("log."):
            record = unseal_record(example.encode(), url="u", root=ROOT)
            assert seal(record) == example.encode()
        else:
            document = unseal(KINDS[kind], example.encode(), url="u", root=ROOT)
            assert seal(document) == example.encode()
    records = {"weights", "anchor", "fence", "floor", "abort", "end"}
    assert {*KINDS, *(f"log.{kind}" for kind in records)} <= seen


def test_records_know_their_kind() -> None:
    with pytest.raises(IntegrityError):
        unseal_record(seal(HEAD), url="u", root=ROOT)
    assert Weights.max_bytes > Head.max_bytes
