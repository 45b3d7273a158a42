"""A publisher of tiny versions, for the tests of the protocol, and mirrors of a root."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.wstore_transports.versions.mirror_trio import CONFIG, Trio, weights
from wstore.path import StoragePath
from wstore.stores.memory import MemoryStore
from wstore_codecs.digest import digest_block
from wstore_transports.checkpoint import CheckpointWriter
from wstore_transports.versions import Block, ObjectRef, Root, Tensor, mirror_site
from wstore_transports.versions.sealing import hash_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore_transports.versions import Attempt, PublishSession, Version


def write_rank(attempt: Attempt, value: int) -> None:
    """This rank's row of a tensor "w" of as many rows as ranks, filled with `value`."""
    row = np.full((1, 4), value, "<i4")
    data = row.tobytes()
    name = f"r{attempt.rank:05d}.bin"
    attempt.path(name).write_file(data)
    block = Block(
        origin=[attempt.rank, 0],
        extent=[1, 4],
        object=0,
        offset=0,
        nbytes=16,
        hash=hash_of(data),
        digest=digest_block(row, (attempt.opened.ranks, 4), (attempt.rank, 0)).hex,
    )
    ref = ObjectRef(name=attempt.object_name(name), size=16, hash=hash_of(data))
    tensor = Tensor(dtype="I32", shape=[attempt.opened.ranks, 4], blocks=[block])
    attempt.done([ref], {"w": tensor})


@pytest.fixture
def write() -> Callable[[Attempt, int], None]:
    return write_rank


@pytest.fixture
def publish() -> Callable[[PublishSession, int], Version]:
    def run(session: PublishSession, value: int) -> Version:
        with session.open_attempt(value) as attempt:
            write_rank(attempt, value)
            return attempt.commit(timeout=30)

    return run


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("test")


@pytest.fixture
def root(store: MemoryStore) -> Root:
    return Root.create(StoragePath("memory://test/root", store=store), lease_s=0.05)


@pytest.fixture
def trio(monkeypatch: pytest.MonkeyPatch) -> Trio:
    """A mirror that failed rests for longer than a test lasts, unless the test sets that anew."""
    monkeypatch.setattr(mirror_site, "FIRST_REST_S", 60.0)
    trio = Trio()
    Root.create(trio.source.place, lease_s=0.2)
    with CheckpointWriter(trio.source.place, max_file_bytes=30_000, keep=None) as writer:
        for step in range(2):
            report = writer.write(step, weights(100 * step), files={"config.json": CONFIG})
            trio.digests[report.version] = report.digest
    trio.copy.take(trio.source)
    trio.source.calls.clear()
    return trio
