"""The ranks of one tensor-parallel engine act together: all apply a version, or none does."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, TypeVar

from wstore.errors import InvalidArgument, MissingPackage
from wstore_transports.errors import GroupFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch.distributed import ProcessGroup

TIMEOUT_S = 60.0
"""How long a rank waits for the others, unless told otherwise."""

MAX_TEXT_BYTES = 1 << 20
"""What one rank may tell the others at once."""

_MAX_DETAIL = 2000


T = TypeVar("T")


class Group(Protocol):
    """The ranks of an engine. All of them make the same calls in the same order.

    Attributes:
        rank: this one's, from 0.
        size: how many there are.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def gather(self, text: str) -> list[str]:
        """Each rank's text, in the order of ranks, on every rank. Waits for all.

        Raises:
            GroupFailed: a rank did not answer in time, or the connection to it broke. The group cannot be
                used any more: nobody knows which calls the others have seen.
        """


class Alone:
    """The group of an engine with one rank."""

    rank = 0
    size = 1

    def gather(self, text: str) -> list[str]:
        """The text."""
        return [text]


class TorchGroup:
    """The ranks of a `torch.distributed` process group (gloo, NCCL or another). For one thread.

    Texts travel as tensors of bytes, on the current CUDA device where the group knows no other: nothing
    is pickled.

    Args:
        group: None for the default group.
        timeout_s: how long `gather` waits for the other ranks.

    Raises:
        MissingPackage: torch is missing. InvalidArgument: this process is not in the group, or
            there is none yet.
    """

    def __init__(self, group: ProcessGroup | None = None, timeout_s: float = TIMEOUT_S) -> None:
        try:
            import torch.distributed as dist
        except ImportError as error:
            raise MissingPackage(
                "a group of ranks needs torch: pip install wstore[torch]"
            ) from error
        found = group
        if found is None and dist.is_available():
            found = dist.group.WORLD
        if found is None:
            raise InvalidArgument(
                "no process group: call torch.distributed.init_process_group first"
            )
        self._group = found
        self.rank = dist.get_rank(found)
        self.size = dist.get_world_size(found)
        if self.rank < 0:
            raise InvalidArgument("this process is not in the process group that it was given")
        self._timeout_s = timeout_s
        self._device = _device(self._group)
        self._broken: Exception | None = None

    def gather(self, text: str) -> list[str]:
        """As `Group.gather`.

        Raises:
            GroupFailed: see there. InvalidArgument: a rank's text is over 1 MiB; all ranks raise it.
        """
        if self._broken is not None:
            raise GroupFailed(
                "the group failed before; its ranks must be started anew"
            ) from self._broken
        try:
            return self._gather(text.encode(errors="backslashreplace"))
        except (RuntimeError, TimeoutError) as error:  # all that torch raises for a lost peer
            self._broken = error
            raise GroupFailed(
                f"rank {self.rank}: another rank of the group of {self.size} gave no answer within "
                f"{self._timeout_s:g} s, or is lost: {error}"
            ) from error

    def _gather(self, data: bytes) -> list[str]:
        import torch

        length = torch.tensor([len(data)], dtype=torch.int64, device=self._device)
        lengths = [int(each.item()) for each in self._all(length)]
        if max(lengths) > MAX_TEXT_BYTES:
            raise InvalidArgument(f"a rank has {max(lengths)} bytes to tell, over {MAX_TEXT_BYTES}")
        padded = bytearray(data.ljust(max(1, *lengths), b"\0"))
        mine = torch.frombuffer(padded, dtype=torch.uint8).to(self._device)
        return [
            bytes(each[:count].tolist()).decode()
            for each, count in zip(self._all(mine), lengths, strict=True)
        ]

    def _all(self, mine: torch.Tensor) -> list[torch.Tensor]:
        import torch
        import torch.distributed as dist

        each = [torch.empty_like(mine) for _ in range(self.size)]
        work = dist.all_gather(each, mine, group=self._group, async_op=True)
        if work is None:
            raise InvalidArgument("this process is not in the process group that it was given")
        work.wait(timedelta(seconds=self._timeout_s))
        return [one.cpu() for one in each]


def agree(group: Group, ok: bool, detail: str) -> None:
    """Return on every rank when all say `ok`, else raise on every rank.

    A rank that is lost in the middle of this may have raised or returned; those that are left raise, but
    for ones that had its answer already. Its engine is then broken in any case.

    Args:
        detail: what went wrong here, where `ok` is False.

    Raises:
        GroupFailed: a rank says no, or did not answer. Names the ranks and what they said.
    """
    answers = _told(group, "agree", "" if ok else f"-{detail[:_MAX_DETAIL]}")
    refusals = [f"rank {rank}: {text[1:]}" for rank, text in enumerate(answers) if text]
    if refusals:
        raise GroupFailed(f"{'; '.join(refusals)}; nothing was applied")


def same(group: Group, value: str, what: str) -> None:
    """Return on every rank when all hold the same value, else raise on every rank.

    Args:
        what: what the value is, for the error: "the version to apply".

    Raises:
        GroupFailed: they differ, each is listed; or a rank did not answer.
    """
    values = _told(group, "same", value)
    if len(set(values)) > 1:
        listed = ", ".join(f"rank {rank}: {text:.200}" for rank, text in enumerate(values))
        raise GroupFailed(f"the ranks differ in {what} ({listed}); nothing was applied")


def decide(group: Group, value: str) -> str:
    """Rank 0's value, on every rank. What the others give is not looked at.

    Raises:
        GroupFailed: a rank did not answer.
    """
    return _told(group, "decide", value if group.rank == 0 else "")[0]


def together(group: Group, work: Callable[[Callable[[], None]], T]) -> T:
    """What `work` returns, on every rank; or an error on every rank: its own where it failed, `GroupFailed`
    where another one did.

    Args:
        work: calls what it is given at the point from which it cannot fail any more; when that raises, it
            takes back what it did.
    """
    voted = False

    def confirm() -> None:
        nonlocal voted
        voted = True
        agree(group, True, "")

    try:
        return work(confirm)
    except BaseException as error:
        if not voted:
            with suppress(GroupFailed):
                agree(group, False, f"{type(error).__name__}: {error}")
        raise


def _told(group: Group, call: str, text: str) -> list[str]:
    """What each rank says, once it is sure that all of them are at the same kind of call."""
    answers = [answer.partition(":") for answer in group.gather(f"{call}:{text}")]
    others = [
        f"rank {rank} at {other!r}" for rank, (other, _, _) in enumerate(answers) if other != call
    ]
    if others:
        raise GroupFailed(
            f"rank {group.rank} is at {call!r}, {', '.join(others)}: the ranks are out of step; "
            "nothing was applied"
        )
    return [said for _, _, said in answers]


def _device(group: ProcessGroup) -> torch.device:
    """Where the group's tensors must be: "cpu:gloo,cuda:nccl" takes either."""
    import torch
    import torch.distributed as dist

    devices = [entry.partition(":")[0] for entry in dist.get_backend_config(group).split(",")]
    if "cpu" in devices:
        return torch.device("cpu")
    return torch.device(devices[0], torch.accelerator.current_device_index())
