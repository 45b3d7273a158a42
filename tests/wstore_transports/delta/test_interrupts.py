"""Interrupts (Ctrl-C) in the middle of what an engine and a trainer do: all of it or nothing, and they go on."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING

import pytest

from tests.wstore_transports.delta.crash_processes import Job, run
from tests.wstore_transports.delta.interrupted_processes import (
    InterruptedEngine,
    InterruptedTrainer,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.wstore_transports.delta.crash_preload"])


def _run(work: Callable[[Job], None], place: str, files: Path, seed: int, limit_s: float) -> None:
    process = _context.Process(target=run, args=(work, Job(place, files, "it", seed, {}, limit_s)))
    process.start()
    process.join(limit_s + 30)
    log = (files / "it.log").read_text()
    assert process.exitcode == 0, log[-6000:]


@pytest.mark.parametrize("codec", ["auto", "context"])
def test_an_engine_that_is_interrupted_holds_the_old_or_the_new(tmp_path: Path, codec: str) -> None:
    _run(InterruptedEngine(5, codec), f"{tmp_path}/root", tmp_path, 1, 60)


def test_a_trainer_that_is_interrupted_goes_on(tmp_path: Path) -> None:
    _run(InterruptedTrainer(5), f"{tmp_path}/root", tmp_path, 1, 60)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("codec", ["auto", "context"])
def test_an_engine_that_is_interrupted_often(tmp_path: Path, codec: str, seed: int) -> None:
    _run(InterruptedEngine(40, codec), f"memory://interrupted/{seed}", tmp_path, seed, 600)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_a_trainer_that_is_interrupted_often(tmp_path: Path, seed: int) -> None:
    _run(InterruptedTrainer(40), f"memory://interrupted/{seed}", tmp_path, seed, 600)
