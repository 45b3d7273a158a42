"""The runtime below obstore: it lives in the process that first used it, and not in its children.

Its threads do not survive `os.fork()`, so that a call in the child would wait for ever.
"""

from __future__ import annotations

from wstore.stores.s3.per_process import generation

_started_in: int | None = None


def is_usable() -> bool:
    """Whether obstore answers in this process: no process that it was forked from used it before."""
    return _started_in in (None, generation())


def note_use() -> None:
    """Say, before the first call into obstore, that its runtime starts here."""
    global _started_in
    if _started_in is None:
        _started_in = generation()
