"""This process's environment, pointed at one server for a while."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Endpoint(Protocol):
    """A server that a client finds by the environment."""

    def applied_to(self, environment: Mapping[str, str]) -> dict[str, str]:
        """That environment, leading to this server and to no other of its kind."""


@contextmanager
def pointed_at(endpoint: Endpoint) -> Iterator[None]:
    """Inside, clients of this process and of its children reach this server, as nobody else."""
    before = dict(os.environ)
    _become(endpoint.applied_to(before))
    try:
        yield
    finally:
        _become(before)


def _become(wanted: Mapping[str, str]) -> None:
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update(wanted)
