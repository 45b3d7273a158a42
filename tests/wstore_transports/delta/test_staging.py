"""What is read of a delta: whole parts and single frames, damaged ones, and what was read ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.wstore_transports.delta.models import copies, equal, model, train
from wstore.errors import IntegrityError
from wstore.path import StoragePath
from wstore_codecs.frame import Frame
from wstore_transports.delta import Publisher, Subscriber
from wstore_transports.delta.ahead import PartAhead
from wstore_transports.delta.binding import bind
from wstore_transports.delta.rehearsal import Rehearsal
from wstore_transports.delta.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.wstore_transports.delta.models import Weights
    from wstore_codecs.changes import Changes
    from wstore_transports.versions import Version


class Behind(NamedTuple):
    """An engine one delta behind, and the one part of that."""

    engine: Subscriber
    state: Weights
    new: Weights
    part: Path
    version: Version


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[Behind]:
    weights = model()
    with Publisher(tmp_path.as_posix()) as publisher:
        publisher.publish(0, weights)
        publisher.flush()
        engine = Subscriber(tmp_path.as_posix())
        state = engine.load()
        train(weights, 1)
        publisher.publish(1, weights)
        publisher.flush()
        version = engine.latest()
        (ref,) = version.manifest().objects
        part = tmp_path / ref.name
        part.chmod(0o644)
        yield Behind(engine, state, weights, part, version)
        engine.close()


def first_frame(version: Version) -> tuple[int, int]:
    """Where it lies: offset and bytes."""
    return min(
        (block.offset, block.nbytes)
        for tensor in version.manifest().tensors.values()
        for block in tensor.blocks
        if block.encoding == "frame"
    )


@pytest.mark.parametrize(
    ("left", "alone"),
    [("nothing", False), ("nothing", True), ("half", False), ("half", True), ("most", False)],
)
def test_a_part_that_is_cut_short(behind: Behind, left: str, alone: bool) -> None:
    """Readers of all, and of one tensor, hear which tensor and object it is, and hold what they held."""
    offset, nbytes = first_frame(behind.version)
    last = max(
        block.offset + block.nbytes
        for tensor in behind.version.manifest().tensors.values()
        for block in tensor.blocks
    )
    keep = {"nothing": 0, "half": offset + nbytes // 2, "most": last - 1}[left]
    behind.part.write_bytes(behind.part.read_bytes()[:keep])
    state: Weights = behind.state
    if alone:
        state = dict.fromkeys(behind.state)
        state["head"] = state["embed"] = behind.state["embed"]
    before = copies(behind.state)
    with pytest.raises(IntegrityError, match=r"tensor '.*hash that the manifest gives") as caught:
        behind.engine.sync(state)
    assert caught.value.url == StoragePath(behind.part).url
    assert equal(behind.state, before)


def test_what_is_damaged_and_not_needed_does_no_harm(behind: Behind) -> None:
    """The last byte is of the index: the part as a whole is another, each frame is sound."""
    data = bytearray(behind.part.read_bytes())
    data[-1] ^= 1
    behind.part.write_bytes(data)
    behind.engine.sync(behind.state)
    assert equal(behind.state, behind.new)


def test_a_flipped_bit_names_its_tensor(behind: Behind) -> None:
    data = bytearray(behind.part.read_bytes())
    offset, nbytes = first_frame(behind.version)
    data[offset + nbytes - 1] ^= 1
    behind.part.write_bytes(data)
    names = {
        name
        for name, tensor in behind.version.manifest().tensors.items()
        if any(block.offset == offset for block in tensor.blocks)
    }
    with pytest.raises(IntegrityError, match="hash that the manifest gives") as caught:
        behind.engine.prefetch(state=behind.state)
    assert any(repr(name) in str(caught.value) for name in names)


def test_what_was_spilled_proves_nothing(behind: Behind) -> None:
    """Its hash was taken before the bytes went to a file."""
    (ref,) = behind.version.manifest().objects
    data = memoryview(behind.part.read_bytes())
    for spool, proves in ((Spool(), True), (Spool(0), False)):
        part = PartAhead(ref.hash, [(0, spool.keep(data))])
        assert part.proves(ref) is proves
        assert not PartAhead("", part.pieces).proves(ref)
        assert bytes(part.views()[0][1]) == bytes(data)
        part.drop()
        spool.close()


def test_decoding_ahead_keeps_its_budget(behind: Behind, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many threads decode, and no frame is decoded twice."""
    data = memoryview(behind.part.read_bytes())
    frames = [
        Frame.parse_proven(data[block.offset : block.offset + block.nbytes])
        for name, tensor in behind.version.manifest().tensors.items()
        for block in tensor.blocks
        if block.encoding == "frame" and name == "embed"
    ]
    plenty = [frame.decoded(1 << 30) for frame in frames]
    sizes = [frame.listed.nbytes for frame in plenty if frame.listed is not None]
    budget = sum(sizes) - 1
    monkeypatch.setattr("wstore_transports.delta.rehearsal.DECODED_BYTES", budget)
    rehearsal = Rehearsal(bind(behind.state, behind.version.manifest()), {})
    made = rehearsal.prepare(frames, threads=3)
    taken: list[Changes] = [frame.listed for frame in made if frame.listed is not None]
    assert sum(one.nbytes for one in taken) <= budget
    again = rehearsal.prepare(plenty, threads=3)
    assert [frame.listed for frame in again] == [frame.listed for frame in plenty]
