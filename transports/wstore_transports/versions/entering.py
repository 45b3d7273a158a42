"""How each rank of a publisher comes to its root and its session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wstore.errors import InvalidArgument
from wstore_transports.versions import layout
from wstore_transports.versions.root import Root

if TYPE_CHECKING:
    from wstore.path import StoragePath
    from wstore_transports.versions.session import PublishSession


def enter(
    path: StoragePath, *, rank: int, ranks: int, run: str, launch: str, timeout_s: float
) -> tuple[Root, PublishSession]:
    """Begin a session (rank 0: making the root where there is none), or join it (the other ranks).

    Args:
        launch: what all ranks of this start of the job share and no earlier start had.
        timeout_s: how long the other ranks wait for rank 0.

    Raises:
        InvalidArgument: values that do not fit together. WaitTimeout: rank 0 did not come.
        NewerFormat, IntegrityError, AccessDenied: of the root.
    """
    if not 0 <= rank < ranks:
        raise InvalidArgument(f"rank {rank} is not one of {ranks} ranks")
    if ranks > 1 and not launch:
        raise InvalidArgument(
            "several ranks need `launch`: a text that all of them share and no earlier start had"
        )
    if rank == 0:
        root = Root.create(path)
        return root, root.begin_session(run, ranks=ranks, launch=launch)
    (path / layout.MARKER).wait(timeout_s)
    root = Root.open(path)
    session = root.join_session(run, rank=rank, ranks=ranks, launch=launch, timeout=timeout_s)
    return root, session
