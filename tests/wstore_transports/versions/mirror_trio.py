"""Three places of one root: stores that count calls and fail as long as they are told to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from wstore.errors import ConnectionFailed, WStoreError
from wstore.path import StoragePath
from wstore.stores.memory import MemoryStore
from wstore.stores.wrap.base import Call, Wrapper
from wstore_transports.checkpoint import CheckpointReader
from wstore_transports.versions import Mirrors

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore_codecs.tensors import Array


CONFIG = b'{"layers": 2}'


class Mirror(Wrapper):
    """A store that counts calls and fails as long as it is told to."""

    def __init__(self, name: str) -> None:
        super().__init__(MemoryStore(name))
        self.failure: Callable[[Call], WStoreError | None] = lambda call: None
        self.calls: list[Call] = []
        self.place = StoragePath(f"memory://{name}/root", store=self)

    def around(self, call: Call, run: Callable[[], object]) -> object:  # type: ignore[override]
        self.calls.append(call)
        error = self.failure(call)
        if error is not None:
            raise error
        return run()

    def down(self, make: Callable[[], WStoreError] = lambda: ConnectionFailed("away")) -> None:
        """From now on every call fails."""
        self.failure = lambda call: make()

    def up(self) -> None:
        self.failure = lambda call: None

    def names(self, part: str) -> list[str]:
        return [e.key for e in self.inner.list("root/", recursive=True) if part in e.key]

    def damage(self, part: str, at: int = -8) -> None:
        """Flip a bit in every object whose name has `part`."""
        for key in self.names(part):
            data = bytearray(self.inner.read(key, 0, 1 << 30).data)
            data[at] ^= 1
            self.inner.write(key, memoryview(data))

    def take(self, source: Mirror, *, records: int = 10**6, data: str = "") -> None:
        """Copy from another mirror as a mirroring job does: the log last, here up to a record."""
        for part in (f"/data/{data}", "wstore.json", "/log/"):
            for key in source.names(part):
                if part != "/log/" or int(key[-17:-5]) <= records:
                    self.inner.write(key, source.inner.read(key, 0, 1 << 30).data)


@dataclass
class Trio:
    """A source with two versions, a complete mirror of it, and an empty place."""

    source: Mirror = field(default_factory=lambda: Mirror("source"))
    copy: Mirror = field(default_factory=lambda: Mirror("copy"))
    empty: Mirror = field(default_factory=lambda: Mirror("empty"))
    digests: dict[int, str] = field(default_factory=dict)

    def reader(self, *mirrors: Mirror, patience_s: float = 0.0) -> CheckpointReader:
        return CheckpointReader(Mirrors([m.place for m in mirrors], patience_s=patience_s))


def weights(value: int, tensors: int = 12) -> dict[str, Array]:
    return {f"t{i}": np.full(3000, value + i, np.int32) for i in range(tensors)}
