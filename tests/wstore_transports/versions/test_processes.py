"""Two real processes race on a real file system."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from wstore.path import StoragePath
from wstore_transports.errors import AttemptAborted, Fenced, NoVersion, RootError
from wstore_transports.versions import ObjectRef, Root, Tensor
from wstore_transports.versions.documents import Fence, Weights
from wstore_transports.versions.sealing import hash_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Barrier
    from pathlib import Path

    from wstore.testing.s3_requests import S3Endpoint
    from wstore_transports.versions import PublishSession, Version
    from wstore_transports.versions.documents import Record
    from wstore_transports.versions.log import Tip


def trainer(
    url: str,
    name: str,
    barrier: Barrier,
    results: Queue[tuple[str, list[str], int]],
    rounds: int,
    versions: int,
) -> None:
    """Take the root over, publish until fenced, again and again."""
    root, committed, fenced = Root.create(StoragePath(url)), [], 0
    barrier.wait()
    for round_ in range(rounds):
        with root.begin_session(name, interval_s=60) as session:
            try:
                for step in range(versions):
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


def race(url: str, names: str, rounds: int, versions: int) -> None:
    """One publisher process a letter of `names`; meanwhile a reader here. Then the log is judged."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(len(names) + 1), context.Queue()
    workers = [
        context.Process(target=trainer, args=(url, name, barrier, results, rounds, versions))
        for name in names
    ]
    for worker in workers:
        worker.start()
    reader = Root.create(StoragePath(url))
    barrier.wait()
    seen = 0
    while any(worker.is_alive() for worker in workers) and results.qsize() < len(workers):
        seen = read_newest(reader, seen)
        time.sleep(0.05)
    said = [results.get(timeout=200) for _ in workers]
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0

    root = Root.open(StoragePath(url))
    records = root.log.records(1, root.log.refresh().number)
    owner, committed = "", []
    for record in records:
        if isinstance(record, Fence):
            owner = record.run
        elif isinstance(record, Weights):
            assert record.run == owner
            committed.append(record.attempt)
    assert sorted(committed) == sorted(attempt for _, theirs, _ in said for attempt in theirs)
    assert sum(isinstance(record, Fence) for record in records) == len(names) * rounds
    assert [record.number for record in root.log.state().versions.values()] == [
        record.number for record in records if isinstance(record, Weights)
    ]
    assert read_newest(root, seen) >= seen


def read_newest(root: Root, seen: int) -> int:
    """The newest version is whole, and no older than what was seen."""
    try:
        version = root.latest()
    except NoVersion:
        return seen
    assert version.number >= seen
    for ref in version.manifest().objects:
        assert hash_of(version.object(ref.name).read_bytes()) == ref.hash
    return version.number


@pytest.mark.parametrize("rounds", [1, pytest.param(3, marks=pytest.mark.long)])
def test_two_processes_never_both_commit(tmp_path: Path, rounds: int) -> None:
    race(str(tmp_path / "root"), "ab", rounds=rounds, versions=4)


@pytest.mark.long
def test_three_processes_on_s3_never_both_commit(
    seaweed: S3Endpoint,
    bucket: Callable[[S3Endpoint], str],
    s3_environment: Callable[[S3Endpoint], None],
) -> None:
    s3_environment(seaweed)
    race(f"s3://{bucket(seaweed)}/root", "abc", rounds=1, versions=3)


def test_a_forked_child_reads_while_the_parents_threads_hold_the_log(
    root: Root, publish: Callable[[PublishSession, int], Version]
) -> None:
    with root.begin_session("run") as session:
        publish(session, 1)
    lease = root.lease("parent", interval_s=3600)
    held, done = threading.Event(), threading.Event()

    def hold(_: Tip) -> Record:
        """Runs under the log's lock."""
        held.set()
        done.wait()
        raise _NothingToAppend

    def parent() -> None:
        with pytest.raises(_NothingToAppend):
            root.log.append(hold)

    thread = threading.Thread(target=parent)
    thread.start()
    held.wait()
    try:
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # a hang ends the child, not the test
            lease.release()  # the parent's: stays
            os._exit(0 if root.latest().step == 1 else 1)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        done.set()
        thread.join()
    lease.only(root.latest().number)
    lease.release()
    with pytest.raises(RootError, match="released"):
        lease.everything()


class _NothingToAppend(Exception):
    pass
