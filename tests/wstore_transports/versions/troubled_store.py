"""A way to a store on which the n-th write or delete crashes, or loses or delays its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wstore.errors import ConnectionFailed
from wstore.stores.wrap.base import Call, Wrapper

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore.stores.base import ObjectInfo
    from wstore.stores.memory import MemoryStore


class Crash(Exception):
    """The process died here."""


@dataclass
class Trouble:
    """What happens to the n-th write or delete from now (None: nothing)."""

    kind: str = "none"
    countdown: int = 0


class TroubledStore(Wrapper):
    """One process's way to the store. `late` keeps writes that will land when nobody expects them."""

    def __init__(self, inner: MemoryStore, late: list[Callable[[], object]]) -> None:
        super().__init__(inner)
        self.trouble = Trouble()
        self.before_log_write: Callable[[], None] | None = None
        self._late = late

    def write(
        self,
        key: str,
        data: memoryview,
        *,
        expect: object = None,
        write_id: str | None = None,
    ) -> ObjectInfo:
        kept = memoryview(bytes(data))  # a write that lands late needs bytes of its own
        return super().write(key, kept, expect=expect, write_id=write_id)  # type: ignore[arg-type]

    def around(self, call: Call, run: Callable[[], object]) -> object:  # type: ignore[override]
        if call.op not in ("write", "delete"):
            return run()
        if self.before_log_write is not None and "/log/" in call.key:
            before, self.before_log_write = self.before_log_write, None
            before()
        self.trouble.countdown -= 1
        if self.trouble.countdown != 0:
            return run()
        match self.trouble.kind:
            case "crash before":
                raise Crash
            case "crash after":
                run()
                raise Crash
            case "lost answer":
                run()
                raise ConnectionFailed("the answer was lost")
            case "lost request":
                raise ConnectionFailed("the request was lost")
            case "late":
                self._late.append(run)
                raise ConnectionFailed("it will land later")
            case _:
                return run()
