"""Applying frames in place: all blocks or none, whatever fails; in part, in copies, over versions."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import time
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import as_strided

from tests.wstore_codecs.frames import DELTAS, changed, same, weights
from wstore.errors import IntegrityError, InvalidArgument, NoSpace, UnalignedSlice
from wstore_codecs import dtypes, frame_header, shielding, slices
from wstore_codecs import journal as journal_module
from wstore_codecs.apply import apply, apply_to_copies
from wstore_codecs.block import Block
from wstore_codecs.cutting import Member, cut, plan
from wstore_codecs.digest import digest_block, digest_update
from wstore_codecs.frame import Frame, encode, encode_unit
from wstore_codecs.journal import Journal
from wstore_codecs.slices import slice_proof
from wstore_codecs.targets import Held, HostTarget
from wstore_codecs.tensors import box_view

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from wstore_codecs.changes import Changes
    from wstore_codecs.cutting import Unit
    from wstore_codecs.digest import TensorDigest
    from wstore_codecs.targets import State
    from wstore_codecs.tensors import Bits, HostArray

BF16, F32 = dtypes.dtype("BF16"), dtypes.dtype("F32")
MOST = 80_000


class Model:
    """A small model, its next versions, and their frames."""

    def __init__(self, codec: str = "ulp", versions: int = 1, density: float = 0.03) -> None:
        shapes = {"embed": (320, 500), "w": (250, 300), "norm": (300,), "scale": (), "none": (0, 3)}
        self.states = [
            {n: weights(BF16, shape, at) for at, (n, shape) in enumerate(shapes.items())}
        ]
        self.units: list[Unit] = plan(
            (BF16, Member(block, shape))
            for name, shape in shapes.items()
            for block in cut(Block.whole(name, shape), MOST)
        )
        self.frames: list[Frame] = []
        for version in range(versions):
            old = self.states[-1]
            new = {n: changed(a, BF16, density, seed=version) for n, a in old.items()}
            self.states.append(new)
            self.frames += [self.frame(unit, new, old, codec) for unit in self.units]

    @staticmethod
    def frame(
        unit: Unit, new: dict[str, HostArray], old: dict[str, HostArray], codec: str
    ) -> Frame:
        def pick(state: dict[str, HostArray]) -> list[HostArray]:
            return [box_view(state[m.block.tensor], m.block) for m in unit.members]

        return Frame.parse(encode_unit(unit, pick(new), pick(old), codec=codec).tobytes())

    def copy(self) -> dict[str, HostArray]:
        return {name: array.copy() for name, array in self.states[0].items()}


def _equal(one: dict[str, HostArray], two: dict[str, HostArray]) -> bool:
    return one.keys() == two.keys() and all(same(one[name], two[name]) for name in one)


@pytest.mark.parametrize("codec", [*DELTAS, "auto", "auto:max", "planes", "raw"])
@pytest.mark.parametrize("threads", [1, 3])
def test_in_place(codec: str, threads: int) -> None:
    model = Model(codec)
    state = model.copy()
    memory = {name: array.ctypes.data for name, array in state.items()}
    done = apply(model.frames, state, threads=threads)
    assert _equal(state, model.states[1])
    assert memory == {name: array.ctypes.data for name, array in state.items()}
    assert set(done.proofs) == set(model.units)
    if codec in DELTAS:
        differ = sum(
            int((a.view(np.uint16) != b.view(np.uint16)).sum())
            for a, b in zip(model.states[0].values(), model.states[1].values(), strict=True)
        )
        assert (done.changed, done.replaced) == (differ, 0)


@pytest.mark.parametrize("codec", DELTAS)
def test_several_versions_in_one_pass(codec: str) -> None:
    model = Model(codec, versions=4)
    state = model.copy()
    apply(model.frames, state, threads=2)
    assert _equal(state, model.states[-1])


def test_strided_and_torch_states() -> None:
    model = Model("context")
    tensors = {
        name: torch.from_numpy(np.require(array.view(np.int16), requirements="F")).view(
            torch.bfloat16
        )
        for name, array in model.copy().items()
    }
    apply(model.frames, tensors)
    for name, tensor in tensors.items():
        assert tensor.view(torch.int16).numpy().tobytes() == model.states[1][name].tobytes(), name


@pytest.mark.parametrize("codec", [*DELTAS, "planes"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_wrong_base_anywhere_changes_nothing(codec: str, threads: int) -> None:
    model = Model("ulp")
    frames = [
        model.frame(unit, model.states[1], model.states[0], codec if at else "ulp")
        for at, unit in enumerate(model.units)
    ]
    state = model.copy()
    block = frames[0].header.unit.members[0].block
    state[block.tensor][block.slices()].view(np.uint16).reshape(-1)[-1] ^= 4
    before = {name: array.copy() for name, array in state.items()}
    with pytest.raises(IntegrityError, match="another version, or the frame was applied already"):
        apply(frames, state, threads=threads)
    assert _equal(state, before)


@pytest.mark.parametrize("codec", DELTAS)
def test_applying_twice_is_refused(codec: str) -> None:
    model = Model(codec)
    state = model.copy()
    apply(model.frames, state)
    with pytest.raises(IntegrityError, match="Nothing was written"):
        apply(model.frames, state)
    assert _equal(state, model.states[1])


def _lying(frame: Frame) -> Frame:
    """The same frame with a result that is not what it leads to: found out only once it is applied."""
    head = bytearray(frame.pieces[0])
    head[48] ^= 1  # the hash of the result, after that of the base
    whole = frame_header.seal(bytes(head[:-8])) + frame.tobytes()[len(head) :]
    return Frame.parse(whole)


@pytest.mark.parametrize("codec", [*DELTAS, "planes"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_wrong_result_takes_everything_back(codec: str, threads: int, tmp_path: Path) -> None:
    model = Model(codec, versions=2)
    units = len(model.units)
    for journal in (Journal(), Journal(memory_bytes=10_000, spill=tmp_path)):
        for at in range(units):
            frames = list(model.frames)
            # A frame without base has its result's hash where others have their base's: start at 32.
            frames[units + at] = _lying(frames[units + at])
            if codec == "planes":
                frames = frames[units:]
                frames[at] = _lying_whole(model.frames[units + at])
            state = model.copy()
            with pytest.raises(IntegrityError, match="the result is not the block"):
                apply(frames, state, threads=threads, journal=journal)
            assert _equal(state, model.states[0])
    assert not list(tmp_path.iterdir())


def _lying_whole(frame: Frame) -> Frame:
    head = bytearray(frame.pieces[0])
    head[32] ^= 1
    return Frame.parse(frame_header.seal(bytes(head[:-8])) + frame.tobytes()[len(head) :])


@pytest.mark.parametrize("written", [1, 2])
def test_impatient_interrupts_take_everything_back(
    written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model("ulp")
    state, calls, patched = model.copy(), itertools.count(), itertools.count(1)
    patch = HostTarget.patch
    reached = False

    def patching(self: HostTarget, changes: Changes) -> None:
        nonlocal reached
        patch(self, changes)
        if next(patched) == written:
            reached = True
            while next(calls) < 3:
                time.sleep(0.001)

    def interrupted(futures: Sequence[Future[None]]) -> object:
        while not reached:
            time.sleep(0.001)
        if next(calls) < 3:
            raise KeyboardInterrupt
        return wait(futures)

    monkeypatch.setattr(HostTarget, "patch", patching)
    monkeypatch.setattr(shielding, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        apply(model.frames, state, threads=1)
    assert _equal(state, model.states[0])


@pytest.mark.parametrize("call", [1, 2, 3])
def test_no_memory_for_a_strided_block(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, while and after it is rewritten."""
    base = weights(BF16, (300, 300))
    state = {"w": np.asfortranarray(base)}
    frame = encode(changed(base, BF16, 0.05), base, codec="ulp", name="w")
    load, calls = HostTarget.load, itertools.count(1)

    def short(self: HostTarget) -> Bits:
        if next(calls) == call:
            raise MemoryError
        return load(self)

    monkeypatch.setattr(HostTarget, "load", short)
    with pytest.raises(MemoryError):
        apply([frame], state)
    assert same(np.ascontiguousarray(state["w"]), base)


def test_one_lost_block_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model("ulp")
    frames = [*model.frames[:-1], _lying(model.frames[-1])]
    state, unpatch, calls = model.copy(), HostTarget.unpatch, itertools.count()

    def lost(self: HostTarget, changes: Changes) -> None:
        if next(calls) == 0:
            raise OSError("the undo file is gone")
        unpatch(self, changes)

    monkeypatch.setattr(HostTarget, "unpatch", lost)
    with pytest.raises(IntegrityError, match="putting back 1 of the old blocks: reload"):
        apply(frames, state)
    first = model.frames[0].header.unit.members[0].block
    for unit in model.units:
        for block in (member.block for member in unit.members):
            now, old = (s[block.tensor][block.slices()] for s in (state, model.states[0]))
            assert same(now, old) is (block != first)


@pytest.mark.parametrize("call", [1, 2])
def test_slices_of_a_group_change_together(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    old = {name: weights(BF16, (300,), seed) for seed, name in enumerate("ab")}
    new = {name: changed(array, BF16, 0.3) for name, array in old.items()}
    (unit,) = plan([(BF16, Member.whole(name, (300,))) for name in old])
    frame = encode_unit(unit, list(new.values()), list(old.values()), codec="ulp")
    assert frame.header.base is not None
    state = {name: Held(array[:200].copy(), (300,), (0,)) for name, array in old.items()}
    proofs = {unit: slice_proof(unit, state, frame.header.base)}
    calls = itertools.count(1)

    def short(*given: Any) -> TensorDigest:
        if next(calls) == call:
            raise MemoryError
        return digest_update(*given)

    monkeypatch.setattr(slices, "digest_update", short)
    with pytest.raises(MemoryError):
        apply([frame], state, slices=proofs)
    assert all(same(np.asarray(state[name].array), old[name][:200]) for name in old)
    apply([frame], state, slices=proofs)
    assert all(same(np.asarray(state[name].array), new[name][:200]) for name in new)


def test_a_spill_that_fills_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = Model("planes")
    state, write, calls = model.copy(), os.pwrite, itertools.count()

    def full(file: int, data: memoryview, at: int) -> int:
        if next(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data[:10_000], at)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(NoSpace, match="No space left"):
        apply(model.frames, state, journal=Journal(200_000, tmp_path))
    assert _equal(state, model.states[0])


def test_a_spill_is_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two blocks do not share what is left of the memory: the second one goes to the file whole."""
    base = {name: weights(BF16, (300, 300), seed) for seed, name in enumerate("ab")}
    frames = [encode(array, codec="raw", name=name) for name, array in base.items()]
    room = Journal(270_000, tmp_path)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100_000))
    with pytest.raises(NoSpace, match="which has 100000"):
        apply(frames, base, journal=room)
    monkeypatch.undo()
    with pytest.raises(InvalidArgument, match="spill directory cannot be used"):
        apply(frames, base, journal=Journal(270_000, tmp_path / "none"))


@pytest.mark.parametrize("codec", ["planes", "context"])
def test_without_room_for_undo_nothing_is_written(codec: str, tmp_path: Path) -> None:
    model = Model(codec)
    state = model.copy()
    with pytest.raises(NoSpace, match="no spill directory"):
        apply(model.frames, state, journal=Journal(memory_bytes=100))
    assert _equal(state, model.states[0])
    apply(model.frames, state, journal=Journal(memory_bytes=100, spill=tmp_path))
    assert _equal(state, model.states[1])


def test_sparse_deltas_need_no_room() -> None:
    model = Model("ulp")
    state = model.copy()
    apply(model.frames, state, journal=Journal(memory_bytes=0))
    assert _equal(state, model.states[1])


@pytest.mark.parametrize("codec", ["ulp", "context", "planes"])
def test_copies_leave_the_old_arrays_alone(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(codec)
    monkeypatch.delattr(journal_module.Keeper, "keep")  # nothing is put away
    state = model.copy()
    embed = [f for f in model.frames if f.header.unit.members[0].block.tensor == "embed"]
    made = apply_to_copies(embed, state)
    assert _equal(state, model.states[0])
    assert set(made) == {"embed"}
    assert same(np.asarray(made["embed"]), model.states[1]["embed"])


def test_what_does_not_fit_the_state() -> None:
    model = Model("ulp")
    state = model.copy()
    for name, wrong, message in (
        ("w", None, "no tensor 'w'"),
        ("w", state["w"].astype(np.float32), "is F32"),
        ("w", state["w"].T, r"BF16 \(300, 250\)"),
        ("w", np.broadcast_to(state["w"][:1], (250, 300)), "read-only"),
        ("w", torch.zeros(300, dtype=torch.bfloat16).expand(250, 300), "expanded"),
        ("w", as_strided(np.zeros(600, BF16.numpy), (250, 300), (2, 2)), "expanded"),
        ("scale", state["scale"][()], "cannot be written in place"),
        ("w", Held(state["w"], (400, 300), (0, 0)), r"BF16 \(400, 300\) in the state"),
        ("w", Held(state["w"], (250, 300), (1, 0)), "leaves the shape"),
    ):
        broken: dict[str, object] = {n: a for n, a in state.items() if n != name}
        if wrong is not None:
            broken[name] = wrong
        with pytest.raises(InvalidArgument, match=message):
            apply(model.frames, cast("State", broken))
        assert _equal(state, model.states[0])


def test_frames_or_tensors_that_overlap() -> None:
    model = Model("ulp")
    state = model.copy()
    whole = encode(
        model.states[1]["w"][:100],
        model.states[0]["w"][:100],
        name="w",
        shape=(250, 300),
        codec="ulp",
    )
    with pytest.raises(InvalidArgument, match="overlap"):
        apply([*model.frames, whole], state)
    base = weights(BF16, (400, 300))
    new = changed(base, BF16, 0.1)
    one = base.copy()
    tied = {"a": one, "b": one}
    frames = [encode(new, base, name=name, codec="ulp") for name in "ab"]
    with pytest.raises(InvalidArgument, match="'a' and 'b' share memory"):
        apply(frames, tied)
    assert same(tied["a"], base)


def test_interleaved_views_of_one_tensor_do_not_overlap() -> None:
    """q, k and v as column views of a fused weight."""
    fused = weights(BF16, (200, 900))
    parts = {name: fused[:, at::3] for at, name in enumerate("qkv")}
    new = {name: changed(np.ascontiguousarray(a), BF16, 0.1) for name, a in parts.items()}
    frames = [encode(new[name], parts[name], name=name, codec="ulp") for name in parts]
    apply(frames, parts)
    assert all(same(np.ascontiguousarray(parts[name]), new[name]) for name in parts)


@pytest.mark.parametrize("codec", ["ulp", "xor", "planes"])
def test_slices(codec: str) -> None:
    model = Model(codec, versions=2)
    first, last = model.states[0], model.states[-1]

    def held(state: dict[str, HostArray]) -> dict[str, Held | HostArray | None]:
        return {
            "embed": Held(state["embed"][100:217, 3:400].copy(), (320, 500), (100, 3)),
            "w": Held(state["w"][:, 150:].copy(), (250, 300), (0, 150)),
            "norm": Held(state["norm"][10:20].copy(), (300,), (10,)),
            "scale": state["scale"].copy(),
            "none": None,
        }

    mine, want = held(first), held(last)
    proofs = {}
    if codec != "planes":
        with pytest.raises(UnalignedSlice, match="nothing proves it"):
            apply(model.frames, mine)
        proofs = {
            unit: slice_proof(unit, mine, frame.header.base)
            for unit, frame in zip(model.units, model.frames, strict=False)
            if frame.header.base is not None
        }
    half = len(model.units)
    apply(model.frames[:half], mine, slices=proofs)
    if codec != "planes":
        with pytest.raises(IntegrityError, match="another version"):
            apply(model.frames[:half], mine, slices=proofs)
    apply(model.frames[half:], mine, slices=proofs, threads=2)
    for name, entry in want.items():
        have = mine[name]
        if isinstance(entry, Held):
            assert isinstance(have, Held)
            assert same(np.asarray(have.array), np.asarray(entry.array)), name
        elif entry is not None:
            assert same(np.asarray(have), entry), name
    touched = mine["w"]
    assert isinstance(touched, Held)
    np.asarray(touched.array).view(np.uint16)[5, 5] ^= 1
    again = [model.frame(u, model.states[2], model.states[2], "ulp") for u in model.units]
    with pytest.raises(IntegrityError, match="another version"):
        apply(again, mine, slices=proofs)


def test_a_slice_of_a_context_block_is_refused() -> None:
    model = Model("context")
    state: dict[str, Held | HostArray] = {**model.copy()}
    state["w"] = Held(model.states[0]["w"][:, :7].copy(), (250, 300), (0, 0))
    with pytest.raises(UnalignedSlice, match="needs the whole old block"):
        apply(model.frames, state)


def test_a_failed_apply_leaves_slices_and_their_proofs() -> None:
    model = Model("ulp")
    state: dict[str, Held | HostArray] = {**model.copy()}
    part = model.states[0]["w"][:, 20:90].copy()
    state["w"] = Held(part.copy(), (250, 300), (0, 20))
    proofs = {
        f.header.unit: slice_proof(f.header.unit, state, f.header.base)
        for f in model.frames
        if f.header.base is not None
    }
    kept = dict(proofs)
    norm = next(at for at, unit in enumerate(model.units) if unit.grouped)
    frames = [f if at != norm else _lying(f) for at, f in enumerate(model.frames)]
    with pytest.raises(IntegrityError, match="the result is not"):
        apply(frames, state, slices=proofs)
    assert proofs == kept
    entry = state["w"]
    assert isinstance(entry, Held)
    assert same(np.asarray(entry.array), part)


def test_digest_proofs_alone() -> None:
    """What a trainer on a GPU writes: the holder checks by digests."""
    from wstore_codecs.base import SparseCodec
    from wstore_codecs.base import codec as codec_of
    from wstore_codecs.changes import find, rule_of
    from wstore_codecs.frame import build
    from wstore_codecs.proof import Proof

    base = weights(BF16, (300, 300))
    new = changed(base, BF16, 0.05)
    unit = plan([(BF16, Member.whole("w", (300, 300)))])[0]
    ulp = codec_of("ulp")
    assert isinstance(ulp, SparseCodec)
    changes = find(base.view(np.uint16).reshape(-1), new.view(np.uint16).reshape(-1), rule_of(BF16))
    frame = build(
        unit,
        ulp.encode_changes(changes, BF16),
        Proof(digest=digest_block(base)),
        Proof(digest=digest_block(new)),
    )
    frame = Frame.parse(frame.tobytes())
    state = {"w": base.copy()}
    apply([frame], state)
    assert same(state["w"], new)
    with pytest.raises(IntegrityError):
        apply([frame], state)
