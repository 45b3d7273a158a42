"""Processes that are forked from a server which has loaded what they need already."""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.context import ForkServerContext

_loaded: list[str] = []


def forked_after(modules: Sequence[str]) -> ForkServerContext:
    """The context of processes that begin with these modules imported.

    A process has one such server at a time, and it imports only when it starts: one that has loaded something
    else is replaced. Its children must have ended.
    """
    context = multiprocessing.get_context("forkserver")
    if _loaded != list(modules):
        forkserver._forkserver._stop()  # type: ignore[attr-defined]
        _loaded[:] = modules
        context.set_forkserver_preload(_loaded)
    return context
