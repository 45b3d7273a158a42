"""Calls that do not come back are given up: they starve no other place, and few of them pile up."""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import TYPE_CHECKING, cast

import pytest

from wstore import Cancelled, StoragePath, probes, transfer
from wstore.probes import MAX_STUCK, Probe
from wstore.stores.memory import MemoryStore
from wstore.stores.wrap import Call, Fault, Faults
from wstore_transports.versions import mirror_look
from wstore_transports.versions.mirror_look import View
from wstore_transports.versions.mirror_site import Site
from wstore_transports.versions.poll import Poll

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wstore_transports.versions.log import Tip

EVER = 1 << 30
THREADS = MAX_STUCK - 1


class Hung:
    """A store whose requests do not come back before `release` is set."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.inside = 0
        self.store = Faults(MemoryStore(), [Fault(self._hang, lambda call: True, times=EVER)])

    def _hang(self, call: Call, run: Callable[[], object]) -> object:
        self.inside += 1
        if not self.release.wait(60):
            raise AssertionError("nobody released it")
        return run()


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hung]:
    monkeypatch.setattr(transfer, "MAX_THREADS", THREADS)
    for pool in ("_threads", "_lookers", "_callers"):
        monkeypatch.setattr(transfer, pool, transfer.Threads("test"))
    found = Hung()
    yield found
    found.release.set()


def give_up(path: StoragePath) -> None:
    """Wait, and cancel the wait when its look hangs."""
    cancel = threading.Event()
    timer = threading.Timer(0.05, cancel.set)
    timer.start()
    with pytest.raises(Cancelled):
        path.wait(None, cancel=cancel)
    timer.join()


def test_a_store_that_hangs_starves_no_other(hung: Hung) -> None:
    for number in range(THREADS + 2):
        path = StoragePath(f"memory://hung/{number}", store=hung.store)
        give_up(path)
    healthy = StoragePath("memory://healthy/x", store=MemoryStore())
    info = healthy.write_bytes(b"x")
    assert healthy.wait(0) == info
    assert next(healthy.parent.watch("*", timeout=60)) == healthy


def test_polls_that_hang_starve_no_other(hung: Hung) -> None:
    for number in range(THREADS + 2):
        cancel = threading.Event()
        timer = threading.Timer(0.05, cancel.set)
        timer.start()
        with pytest.raises(Cancelled):
            Poll(60, cancel, url=f"memory://hung/{number}").look(partial(hung.store.stat, "x"))
        timer.join()
    assert Poll(0, None, url="memory://healthy/x").look(lambda: 1) == 1


def test_mirrors_that_hang_starve_no_other(hung: Hung, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_look, "LATE_S", 0.05)

    def view(site: Site) -> View:
        if site.path.name == "hung":
            hung.store.stat("x")
        return View(site, cast("Tip", None), None)

    for _ in range(THREADS + 2):
        sites = [Site(StoragePath(f"memory://mirrors/{name}")) for name in ("hung", "healthy")]
        look = mirror_look.look_at(sites, view)
        assert [found.site for found in look.views] == sites[1:]


def test_few_looks_at_one_place_are_stuck(hung: Hung) -> None:
    path = StoragePath("memory://hung/x", store=hung.store)
    for _ in range(MAX_STUCK + 3):
        give_up(path)
    assert hung.inside == MAX_STUCK
    later = threading.Thread(target=path.wait, args=[None])
    later.start()  # it looks once one of the others has come back
    StoragePath("memory://hung/x", store=hung.store.inner).write_bytes(b"x")
    hung.release.set()
    later.join(60)
    assert not later.is_alive()
    assert path.wait(0).size == 1


def test_what_was_given_up_before_it_began_never_begins(hung: Hung) -> None:
    stuck = [Probe(partial(hung.store.stat, "x"), place=number) for number in range(THREADS)]
    for probe in stuck:
        probe.start()
    begun: list[int] = []
    queued = Probe(partial(begun.append, 1), place="queued")
    queued.start()
    queued.give_up()
    hung.release.set()
    last = Probe(partial(begun.append, 2), place="queued")
    last.start()
    assert last.done.wait(60)
    assert begun == [2]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_is_not_stuck(hung: Hung) -> None:
    path = StoragePath("memory://hung/x", store=hung.store)
    for _ in range(MAX_STUCK):
        give_up(path)
    child = os.fork()
    if child == 0:
        hung.release.set()
        probe = Probe(lambda: 1, place=(id(hung.store), "x"))
        probe.start()
        os._exit(0 if probe.done.wait(20) and not probes._places else 1)
    assert os.waitpid(child, 0)[1] == 0
