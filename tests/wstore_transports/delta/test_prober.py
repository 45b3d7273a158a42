"""One process looks at the store for all of a host."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from wstore_transports.delta.prober import Prober
from wstore_transports.delta.shared_cache import SharedCache

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

ROOT = "0123456789abcdef" * 2


def test_one_leads_and_the_others_see_what_it_saw(tmp_path: Path) -> None:
    cache = SharedCache(tmp_path)
    assert cache.last_seen(ROOT) == 0
    with cache.prober(ROOT) as first, cache.prober(ROOT) as second:
        assert [first.is_leader(), second.is_leader(), first.is_leader()] == [True, False, True]
        assert second.seen() == 0
        first.announce(7)
        assert second.seen() == first.seen() == cache.last_seen(ROOT) == 7
        first.announce(6)  # what was seen never falls
        assert second.seen() == cache.last_seen(ROOT) == 7
    with cache.prober(ROOT) as first, cache.prober("f" * 32) as other:
        assert other.is_leader()
        assert other.seen() == 0
        with cache.prober(ROOT) as second:
            assert second.is_leader()
            assert not first.is_leader()
        assert first.is_leader()
        assert first.seen() == 7
    assert sorted(path.name for path in (tmp_path / ROOT).iterdir()) == ["prober.lock", "tip"]


def test_another_takes_over_from_a_killed_leader(tmp_path: Path) -> None:
    def lead() -> None:
        with SharedCache(tmp_path).prober(ROOT) as prober:
            assert prober.is_leader()
            prober.announce(3)
            signal.pause()

    leader = multiprocessing.get_context("fork").Process(target=lead)
    leader.start()
    with SharedCache(tmp_path).prober(ROOT) as prober:
        deadline = time.monotonic() + 30
        while prober.seen() != 3:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert not prober.is_leader()
        leader.kill()
        leader.join()
        assert prober.is_leader()
        assert prober.seen() == 3


def test_a_leader_that_says_nothing_is_stood_in_for(tmp_path: Path) -> None:
    now = [100.0]
    with (
        Prober(tmp_path, stale_s=5, clock=lambda: now[0]) as leader,
        Prober(tmp_path, stale_s=5, clock=lambda: now[0]) as other,
    ):
        assert leader.is_leader()
        for _ in range(5):
            now[0] += 4
            leader.announce(1)
            os.utime(tmp_path / "tip", ns=(int(now[0]), int(now[0])))  # the host's clock is coarse
            assert not other.is_leader()
        now[0] += 4.9
        assert not other.is_leader()
        now[0] += 0.2
        assert other.is_leader()
        other.announce(2)
        assert other.is_leader()  # its own sign of life is none of the leader's
        assert leader.seen() == 2
        os.utime(tmp_path / "tip", ns=(7, 7))  # the leader's
        assert not other.is_leader()
        now[0] += 5
        assert other.is_leader()


def test_a_leader_that_never_spoke_is_stood_in_for(tmp_path: Path) -> None:
    now = [100.0]
    with Prober(tmp_path) as leader, Prober(tmp_path, clock=lambda: now[0]) as other:
        assert leader.is_leader()
        assert not other.is_leader()
        now[0] += 60
        assert other.is_leader()


@pytest.mark.parametrize("tip", [b"", b"-1", b"12\0", b"1" * 13, b"twelve", "\u0663".encode()])
def test_a_damaged_tip_is_no_news(tmp_path: Path, tip: bytes) -> None:
    cache = SharedCache(tmp_path)
    with cache.prober(ROOT) as prober:
        (tmp_path / ROOT / "tip").write_bytes(tip)
        assert prober.seen() == cache.last_seen(ROOT) == 0
        assert prober.is_leader()
        prober.announce(4)
        assert cache.last_seen(ROOT) == 4


def test_an_unusable_directory_leaves_everyone_alone(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    cache = SharedCache(tmp_path / "cache")
    with cache.prober(ROOT) as first, cache.prober(ROOT) as second:
        assert first.is_leader()
        assert second.is_leader()
        first.announce(5)
        assert first.seen() == 5
        assert second.seen() == cache.last_seen(ROOT) == 0


def test_a_child_of_the_leader_does_not_lead(tmp_path: Path) -> None:
    with Prober(tmp_path) as prober:
        assert prober.is_leader()
        child = os.fork()
        if child == 0:
            os._exit(int(prober.is_leader()))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert prober.is_leader()
