"""Frames that were written once decode for ever. These tests read the files and never write them."""

from __future__ import annotations

import pytest

from tests.wstore_codecs.frames import same
from tests.wstore_codecs.golden_frames import FOLDER, Case, cases, part
from wstore_codecs.frame import Frame, decode
from wstore_codecs.part import TAIL, FrontReader, index_range, parse_index


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_a_golden_frame_decodes(case: Case) -> None:
    old, now = case.arrays()
    frame = Frame.parse((FOLDER / f"{case.name}.bin").read_bytes())
    assert frame.header.codec == case.codec
    assert same(decode(frame, old), now)


def test_what_is_written_today_has_the_golden_header() -> None:
    """All but the bodies, which may change with the version of a compression library."""
    for case in cases():
        golden = Frame.parse((FOLDER / f"{case.name}.bin").read_bytes()).header
        today = case.encode().header
        assert (today.unit, today.base, today.result) == (golden.unit, golden.base, golden.result)
        assert today.codec == golden.codec


def test_the_golden_part() -> None:
    data = (FOLDER / "part.bin").read_bytes()
    start, stop = index_range(data[-TAIL:], len(data))
    rows = parse_index(data[start:stop], data[-TAIL:])
    frames = FrontReader().feed(data)
    assert [frame.tobytes() for frame in frames] == [
        data[row.offset : row.offset + row.nbytes] for row in rows
    ]
    assert rows[0].nbytes == frames[0].nbytes
    assert len(part()) == len(data)


def test_every_file_is_read() -> None:
    names = {path.stem for path in FOLDER.glob("*.bin")}
    assert names == {*(case.name for case in cases()), "part"}
