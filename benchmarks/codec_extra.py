"""What shows only in a fresh process: the memory that codecs add, and what a first call costs.

As a script it is that process; it prints JSON:

    codec_extra.py memory FOLDER      peaks of resident memory in blocks per thread (Linux)
    codec_extra.py calls FOLDER       seconds of `warm`, and of ten calls after it

FOLDER holds arrays of two blocks, the bits of bf16 before and after a step: 2.npy, 29.npy.
"""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
from rich.table import Table

import wstore_codecs
from benchmarks.memory import peak, reset_peak
from wstore_codecs.apply import apply
from wstore_codecs.block import MAX_BLOCK_ELEMENTS
from wstore_codecs.frame import Frame, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from multiprocessing.connection import Connection

    from benchmarks.codec_data import Step
    from wstore_codecs.tensors import HostArray

    Action = Callable[[int], None]

BLOCK = MAX_BLOCK_ELEMENTS
BLOCK_BYTES = 2 * BLOCK
THREADS = 2
CALLS = 10


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a process of its own."""

    case: str
    client: str
    value: float
    unit: str


def measure(steps: Mapping[str, Step]) -> tuple[dict[str, float], list[Figure]]:
    """The ratios, and all figures."""
    with tempfile.TemporaryDirectory(prefix="wstore-bench-") as folder:
        for key, step in steps.items():
            arrays = [bits[: THREADS * BLOCK] for bits in (step.base, step.new)]
            np.save(Path(folder) / f"{key}.npy", arrays)
        memory, calls = (_in_process(action, folder) for action in ("memory", "calls"))
    figures = [
        *(Figure("memory", case, value, "blocks/thread") for case, value in memory.items()),
        *(Figure("calls", case, value, "s") for case, value in calls.items()),
    ]
    ratios = {
        "extra_blocks_per_thread": max(memory.values()),
        "first_call_s": calls["call 1"],
        "tenth_call_s": calls[f"call {CALLS}"],
    }
    return ratios, figures


def table(figures: Sequence[Figure]) -> Table:
    """The same for people."""
    made = Table(title="in a fresh process")
    for title in ("case", "what"):
        made.add_column(title, no_wrap=True)
    made.add_column("value", justify="right")
    made.add_column("unit")
    for figure in figures:
        made.add_row(figure.case, figure.client, f"{figure.value:.3f}", figure.unit)
    return made


def _in_process(action: str, folder: str) -> dict[str, float]:
    command = [sys.executable, __file__, action, folder]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, float] = json.loads(output)
    return found


def _memory(folder: Path) -> dict[str, float]:
    """The peak of each action on one and two threads, each in a fork that has done nothing else."""
    wstore_codecs.warm()
    found = {}
    for name, action in _actions(folder):
        for threads in (1, THREADS):
            found[f"{name}, {threads} threads"] = _forked(action, threads)
    return found


def _actions(folder: Path) -> Iterator[tuple[str, Action]]:
    for key, codec in (
        ("2", "auto"),
        ("2", "context"),
        ("29", "auto"),
        ("29", "context"),
        ("2", "planes"),
    ):
        base, new = _load(folder, key)
        old = None if codec == "planes" else base
        small = slice(0, 256)  # imports what the codec needs, and leaves no memory behind
        apply([_encode(codec, old, new, small)], {"": base.copy()})
        frames = [_encode(codec, old, new, _block(at)) for at in range(THREADS)]
        name = f"{codec}, {key} % changed"
        yield f"encode {name}", partial(_encode_blocks, codec, old, new)
        yield f"apply {name}", partial(_apply_blocks, frames, base)


def _encode_blocks(codec: str, base: HostArray | None, new: HostArray, threads: int) -> None:
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(lambda at: _encode(codec, base, new, _block(at)), range(threads)):
            pass


def _apply_blocks(frames: Sequence[Frame], base: HostArray, threads: int) -> None:
    apply(frames[:threads], {"": base}, threads=threads)


def _encode(codec: str, base: HostArray | None, new: HostArray, box: slice) -> Frame:
    old = None if base is None else base[box]
    return encode(new[box], old, codec=codec, shape=new.shape, origin=(box.start,))


def _block(at: int) -> slice:
    return slice(at * BLOCK, (at + 1) * BLOCK)


def _load(folder: Path, key: str) -> tuple[HostArray, HostArray]:
    base, new = np.load(folder / f"{key}.npy")
    return base.view(ml_dtypes.bfloat16), new.view(ml_dtypes.bfloat16)


def _forked(action: Action, threads: int) -> float:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_peak_blocks, args=(action, threads, sender))
    child.start()
    sender.close()
    try:
        found: float = receiver.recv()
    except EOFError:
        raise SystemExit("an action failed, see above") from None
    child.join()
    return found


def _peak_blocks(action: Action, threads: int, sender: Connection) -> None:
    before = reset_peak()
    action(threads)
    sender.send((peak() - before) / BLOCK_BYTES / threads)


def _calls(folder: Path) -> dict[str, float]:
    """Seconds of encoding and applying one block, call by call, from a cold process on."""
    base, new = _load(folder, "2")
    state, started = base.copy(), time.perf_counter()
    wstore_codecs.warm()
    found = {"warm": time.perf_counter() - started}
    for number in range(CALLS):
        state[:] = base
        started = time.perf_counter()
        apply([_encode("auto", state, new, _block(0))], {"": state})
        found[f"call {number + 1}"] = time.perf_counter() - started
    return found


if __name__ == "__main__":
    print(json.dumps({"memory": _memory, "calls": _calls}[sys.argv[1]](Path(sys.argv[2]))))
