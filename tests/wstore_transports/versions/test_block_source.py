"""Exact byte ranges: whatever the cuts and the box, the runs bring each wanted byte to its place once."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wstore.errors import InvalidArgument
from wstore_codecs import block as boxes
from wstore_transports.versions import Block, BlockSource, Manifest, ObjectRef, Tensor
from wstore_transports.versions.block_source import touched

Cuts = list[list[int]]


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], Cuts, boxes.Block]:
    shape = draw(st.lists(st.integers(1, 5), max_size=3))
    cuts = [sorted({0, n, *draw(st.lists(st.integers(0, n), max_size=2))}) for n in shape]
    spans = [sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    origin = tuple(low for low, _ in spans)
    return shape, cuts, boxes.Block("w", origin, tuple(high - low for low, high in spans))


def stored(array: np.ndarray, cuts: Cuts) -> tuple[Manifest, bytes]:
    data, blocks = b"pad", []
    for cell in product(*(list(pairwise(axis)) for axis in cuts)):
        part = np.ascontiguousarray(array[tuple(slice(*span) for span in cell)])
        extent = [high - low for low, high in cell]
        origin = [low for low, _ in cell]
        blocks.append(
            Block(origin=origin, extent=extent, object=0, offset=len(data), nbytes=part.nbytes)
        )
        data += part.tobytes()
    tensor = Tensor(dtype="I16", shape=list(array.shape), blocks=blocks)
    manifest = Manifest(
        root="0" * 32,
        run="run",
        attempt="1.0123456789abcdef",
        step=0,
        kind="full",
        objects=[ObjectRef(name="x", size=len(data))],
        tensors={"w": tensor},
        aliases={"tied": "w"},
    )
    return manifest, data


@given(case=cases(), name=st.sampled_from(["w", "tied"]))
def test_runs_bring_every_byte_once(case: tuple[list[int], Cuts, boxes.Block], name: str) -> None:
    shape, cuts, box = case
    array = np.arange(int(np.prod(shape)), dtype="<i2").reshape(shape)
    manifest, data = stored(array, cuts)
    source = BlockSource(manifest)
    wanted = np.ascontiguousarray(array[box.slices()])
    out, times = bytearray(wanted.nbytes), np.zeros(wanted.nbytes, int)
    for block in source.blocks(name, box):
        for run in source.ranges(name, block, box):
            out[run.place : run.place + run.nbytes] = data[run.offset : run.offset + run.nbytes]
            times[run.place : run.place + run.nbytes] += 1
    assert bytes(out) == wanted.tobytes()
    assert (times == 1).all()


@given(case=cases())
def test_touched_blocks_hold_the_box_and_no_other_does(
    case: tuple[list[int], Cuts, boxes.Block],
) -> None:
    shape, cuts, box = case
    tensor = stored(np.zeros(shape, "<i2"), cuts)[0].tensors["w"]
    found = list(touched(tensor, box))
    assert sum(common for _, _, common in found) == box.size
    wanted = np.zeros(shape, bool)
    wanted[box.slices()] = True
    for block in tensor.blocks:
        place = boxes.Block("w", tuple(block.origin), tuple(block.extent))
        common = int(wanted[place.slices()].sum())
        assert [(p, n) for b, p, n in found if b is block] == ([(place, common)] if common else [])


def test_a_frame_is_read_whole_and_the_same_is_not_read() -> None:
    manifest, _ = stored(np.zeros((2, 3), "<i2"), [[0, 2], [0, 3]])
    source = BlockSource(manifest)
    box = boxes.Block("w", (0, 1), (1, 1))
    frame = Block(origin=[0, 0], extent=[2, 3], object=0, offset=7, nbytes=99, encoding="frame")
    (run,) = source.ranges("w", frame, box)
    assert (run.offset, run.nbytes) == (7, 99)
    same = Block(origin=[0, 0], extent=[2, 3], object=-1, offset=0, nbytes=0, encoding="same")
    assert list(source.ranges("w", same, box)) == []


def test_wrong_names_and_boxes_are_refused() -> None:
    source = BlockSource(stored(np.zeros((2, 3), "<i2"), [[0, 2], [0, 3]])[0])
    with pytest.raises(InvalidArgument, match="no tensor"):
        source.blocks("nope")
    for box in (boxes.Block("w", (0, 0), (2, 4)), boxes.Block("w", (0,), (2,))):
        with pytest.raises(InvalidArgument):
            source.blocks("w", box)
