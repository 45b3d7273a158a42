"""Forked children of a test."""

from __future__ import annotations

import os
import signal
import time


def wait_for(pid: int, timeout_s: float = 60.0) -> None:
    """Until the child has ended.

    Raises:
        AssertionError: it has not within `timeout_s` seconds; it is killed.
    """
    deadline = time.monotonic() + timeout_s
    while os.waitpid(pid, os.WNOHANG)[0] != pid:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError("the child hangs")
        time.sleep(0.02)
