"""A publisher of tiny versions, for the tests of the protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from wstore.path import StoragePath
from wstore.stores.memory import MemoryStore
from wstore_codecs.digest import digest_block
from wstore_transports.versions import Block, ObjectRef, Root, Tensor
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
