"""Rank 0 waits for the done markers of all ranks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from wstore.errors import IntegrityError, NotFound
from wstore_transports.errors import AttemptAborted
from wstore_transports.versions import layout
from wstore_transports.versions.documents import Done, RankAbort
from wstore_transports.versions.parallel import in_parallel
from wstore_transports.versions.sealing import read_document

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore.path import StoragePath
    from wstore_transports.versions.documents import Open
    from wstore_transports.versions.poll import Poll


def gather(
    directory: StoragePath,
    opened: Open,
    poll: Poll,
    check: Callable[[], None],
    *,
    own: Done | None = None,
    marker: Callable[[int], str] = layout.done_name,
) -> list[Done]:
    """The done markers of all ranks, by rank.

    Each look lists the attempt's directory for names to read, and asks for the lowest missing rank's
    marker by its name, so a listing that lags delays nothing for ever.

    Args:
        check: called before each look; raises when waiting has become pointless.
        own: this process's marker, which need not be read.
        marker: a rank's marker's name.

    Raises:
        AttemptAborted: a rank gave up; says which and why.
        WaitTimeout: names the ranks that are missing. Cancelled. IntegrityError: an invalid marker.
    """
    dones: dict[int, Done] = {} if own is None else {own.rank: own}
    while True:
        poll.look(check)
        if len(dones) < opened.ranks:
            poll.look(partial(_read_markers, directory, opened, dones, marker))
        missing = [rank for rank in range(opened.ranks) if rank not in dones]
        if not missing:
            return [dones[rank] for rank in range(opened.ranks)]
        shown = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
        poll.pause(f"no done marker of {len(missing)} of {opened.ranks} ranks: {shown}")


def _read_markers(
    directory: StoragePath, opened: Open, dones: dict[int, Done], marker: Callable[[int], str]
) -> None:
    names = _json_names(directory)
    lowest = next((rank for rank in range(opened.ranks) if rank not in dones), opened.ranks)
    ready = [r for r in range(opened.ranks) if r not in dones and marker(r) in names]
    if lowest < opened.ranks and lowest not in ready:
        ready.insert(0, lowest)
    for name in sorted(names):
        rank = layout.owner_rank(name)
        if rank is not None and name == layout.rank_abort_name(rank):
            given_up = read_document(RankAbort, directory / name, root=opened.root)
            raise AttemptAborted(f"rank {rank} gave up: {given_up.reason}", url=directory.url)
    for done in in_parallel(lambda rank: _read_done(directory / marker(rank), opened, rank), ready):
        if done is not None:
            dones[done.rank] = done


def _json_names(directory: StoragePath) -> set[str]:
    try:
        names = {path.name for path in directory.iterdir()}
    except NotFound:
        return set()
    return {name for name in names if name.endswith(".json")}


def _read_done(path: StoragePath, opened: Open, rank: int) -> Done | None:
    try:
        done = read_document(Done, path, root=opened.root)
    except NotFound:
        return None
    if done.rank != rank or done.attempt != opened.attempt:
        raise IntegrityError(
            f"field `rank` or `attempt` is of another done marker ({done.rank}, {done.attempt})",
            url=path.url,
        )
    return done
