"""What a child process is asked to do, and the ties to its parent."""

from __future__ import annotations

import os
import sys
import threading
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

Mode: TypeAlias = Literal["checkpoint", "delta"]
"""How versions go from the trainer to the engines."""


class Job(Struct, frozen=True, kw_only=True):
    """One child's work, handed over as JSON in its first argument.

    Attributes:
        url: the root.
        mode: whole weights each time, or what changed.
        after: versions up to this one are from earlier runs.
        versions: how many to publish or to follow.
        steps: optimizer steps between two versions.
        model: a safetensors file to publish instead of training; "" to train.
        seed: of data order and of made-up steps.
        timeout_s: how long to wait for another process.
    """

    url: str
    mode: Mode
    after: int
    versions: int
    steps: int
    model: str
    seed: int
    timeout_s: float


def encode(job: Job) -> str:
    """The job as an argument."""
    return msgspec.json.encode(job).decode()


def take() -> Job:
    """This process's job; from now on the process ends when its parent does."""
    threading.Thread(target=_end_with_parent, name="wstore-parent", daemon=True).start()
    return msgspec.json.decode(sys.argv[1].encode(), type=Job)


def _end_with_parent() -> None:
    """Standard input is a pipe that only the parent holds: it ends when the parent does."""
    while os.read(0, 4096):
        pass
    os._exit(1)
