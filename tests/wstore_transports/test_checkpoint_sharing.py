"""What is shared between versions is sound: damage is found before it is handed on, and stops nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from wstore.errors import IntegrityError
from wstore.path import StoragePath
from wstore.stores.memory import MemoryStore
from wstore.stores.wrap.base import Call, Wrapper
from wstore_transports.checkpoint import CheckpointReader, CheckpointWriter, weights_digest
from wstore_transports.checkpoint.reader import leased_snapshot
from wstore_transports.checkpoint.verify import verify_snapshot
from wstore_transports.versions import Attempt

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore_codecs.tensors import Array

FROZEN = np.arange(600_000, dtype=np.float32)


def with_frozen(step: int) -> dict[str, Array]:
    return {"w": np.full((1000,), step, np.float32), "frozen": FROZEN}


class CountsReads(Wrapper):
    """Counts bytes read of weights."""

    nbytes = 0

    def around(self, call: Call, run: Callable[[], object]) -> object:  # type: ignore[override]
        if call.op == "read" and call.key.endswith(".safetensors"):
            self.nbytes += call.length
        return run()


def spoil(store: MemoryStore, part: str, how: str) -> None:
    """Delete, cut or flip a bit in every object whose name has `part`."""
    for key in [entry.key for entry in store.list("root/", recursive=True) if part in entry.key]:
        data = bytearray(store.read(key, 0, 1 << 30).data)
        if how == "gone":
            store.delete(key)
            continue
        if how == "cut":
            del data[-100:]
        else:
            data[-50] ^= 1
        store.write(key, memoryview(data))


def written_each(place: StoragePath, *steps: int) -> list[int]:
    """Bytes that one writer wrote for each of these steps; each version is read back and proven."""
    written = []
    with CheckpointWriter(place) as writer:
        for step in steps:
            written.append(writer.write(step, with_frozen(step)).written_nbytes)
            assert weights_digest(CheckpointReader(place).load()) == weights_digest(
                with_frozen(step)
            )
            with leased_snapshot(place, None) as snapshot:
                assert verify_snapshot(snapshot, deep=False).problems == ()
    return written


@pytest.mark.parametrize("how", ["gone", "cut", "flipped"])
def test_a_damaged_object_is_not_handed_on(how: str, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore("spoilt")
    place = StoragePath("memory://spoilt/root", store=store)
    written_each(place, 1)
    spoil(store, ".safetensors", how)
    first, second, third = written_each(place, 2, 3, 4)
    assert first > FROZEN.nbytes
    assert "written again" in caplog.text
    assert max(second, third) < FROZEN.nbytes  # sound again, so shared again


def test_an_object_that_goes_while_its_writer_lives_is_written_again() -> None:
    store = MemoryStore("going")
    with CheckpointWriter(StoragePath("memory://going/root", store=store)) as writer:
        writer.write(1, with_frozen(1))
        spoil(store, ".safetensors", "gone")
        assert writer.write(2, with_frozen(2)).written_nbytes > FROZEN.nbytes


def test_what_another_writer_stored_is_read_once_before_it_is_shared() -> None:
    counting = CountsReads(MemoryStore("counted"))
    place = StoragePath("memory://counted/root", store=counting)
    for reads in (0, 1):
        with CheckpointWriter(place) as writer:
            for step in range(3):
                writer.write(step, with_frozen(step))
        assert reads * FROZEN.nbytes <= counting.nbytes <= reads * 1.1 * FROZEN.nbytes


@pytest.mark.parametrize("how", ["gone", "cut", "flipped"])
def test_a_damaged_manifest_stops_no_later_version(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore("unlisted")
    place = StoragePath("memory://unlisted/root", store=store)
    written_each(place, 1)
    spoil(store, "/manifest.json", how)
    first, second = written_each(place, 2, 3)
    assert first > FROZEN.nbytes > second
    assert "nothing is shared with version 2" in caplog.text


def test_a_rank_that_cannot_read_what_is_shared_writes_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = StoragePath("memory://unread/root", store=MemoryStore("unread"))
    with CheckpointWriter(place) as writer:
        writer.write(1, with_frozen(1))

        def damaged(self: Attempt) -> None:
            raise IntegrityError("cut")

        monkeypatch.setattr(Attempt, "shared", damaged)
        assert writer.write(2, with_frozen(2)).written_nbytes > FROZEN.nbytes
