"""Queries of requests that are signed stay out of urllib3's log, which repeats whole targets.

Only what is logged inside of `queries_unlogged` is changed: other users of urllib3 log as before.
"""

from __future__ import annotations

import contextlib
import logging
import re
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOGGERS = ("urllib3.connection", "urllib3.connectionpool")
_QUERY = re.compile(r"\?.*", re.DOTALL)

_inside: ContextVar[bool] = ContextVar("wstore_queries_unlogged", default=False)


@contextlib.contextmanager
def queries_unlogged() -> Iterator[None]:
    """Inside, in this thread, urllib3 logs "?..." in place of a query."""
    before = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(before)


class _Hide(logging.Filter):
    """Changes records, drops none."""

    def filter(self, record: logging.LogRecord) -> bool:
        if _inside.get() and isinstance(record.args, tuple):
            record.args = tuple(map(_without_query, record.args))
        return True


def _without_query(value: object) -> object:
    return _QUERY.sub("?...", value) if isinstance(value, str) else value


for _name in _LOGGERS:
    logging.getLogger(_name).addFilter(_Hide())
