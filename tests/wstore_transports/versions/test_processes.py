"""Two real processes race on a real file system."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING

from wstore.path import StoragePath
from wstore_transports.errors import AttemptAborted, Fenced
from wstore_transports.versions import ObjectRef, Root, Tensor
from wstore_transports.versions.documents import Fence, Weights
from wstore_transports.versions.sealing import hash_of

if TYPE_CHECKING:
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Barrier
    from pathlib import Path

ROUNDS = 3


def trainer(
    url: str, name: str, barrier: Barrier, results: Queue[tuple[str, list[str], int]]
) -> None:
    """Take the root over, publish until fenced, again and again."""
    root, committed, fenced = Root.create(StoragePath(url)), [], 0
    barrier.wait()
    for round_ in range(ROUNDS):
        with root.begin_session(name, interval_s=60) as session:
            try:
                for step in range(4):
                    with session.open_attempt(round_ * 10 + step) as attempt:
                        data = f"{name} {round_} {step}".encode()
                        attempt.path("r00000.bin").write_file(data)
                        ref = ObjectRef(
                            name=attempt.object_name("r00000.bin"),
                            size=len(data),
                            hash=hash_of(data),
                        )
                        empty = Tensor(dtype="F32", shape=[0], blocks=[])
                        attempt.done([ref], {"nothing": empty})
                        committed.append(attempt.commit(timeout=60).record.attempt)
            except (Fenced, AttemptAborted):
                fenced += 1
    results.put((name, committed, fenced))


def test_two_processes_never_both_commit(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    url = str(tmp_path / "root")
    workers = [
        context.Process(target=trainer, args=(url, name, barrier, results)) for name in ("a", "b")
    ]
    for worker in workers:
        worker.start()
    said = [results.get(timeout=200) for _ in workers]
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0

    root = Root.open(StoragePath(url))
    records = root.log.records(1, root.log.refresh().number)
    owner, seen = "", []
    for record in records:
        if isinstance(record, Fence):
            owner = record.run
        elif isinstance(record, Weights):
            assert record.run == owner
            seen.append(record.attempt)
    assert sorted(seen) == sorted(attempt for _, committed, _ in said for attempt in committed)
    assert sum(isinstance(record, Fence) for record in records) == 2 * ROUNDS
    assert [record.number for record in root.log.state().versions.values()] == [
        record.number for record in records if isinstance(record, Weights)
    ]
