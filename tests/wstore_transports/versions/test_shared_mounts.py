"""A root on a shared mount that is not exclusive: one publisher at a time, on whichever host.

They take turns here, and do not race as in `test_processes.py`: a create across two such mounts may succeed
on both (`tests/wstore/test_shared_mounts.py` measures it), so a race has no right outcome to test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from wstore.path import StoragePath
from wstore_transports.versions import Root
from wstore_transports.versions.documents import Fence, Weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wstore_transports.versions import PublishSession, Version


@pytest.mark.long  # the mounts alone take many seconds
def test_publishers_on_two_hosts_take_turns(
    shared: tuple[Path, Path],
    publish: Callable[[PublishSession, int], Version],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each host takes over once it has seen the other's newest version; no version is lost or changed."""
    roots = [Root.create(StoragePath(shared[0] / "root"))]
    (StoragePath(shared[1]) / "root/wstore.json").wait(60)
    roots.append(Root.open(StoragePath(shared[1] / "root")))
    assert all(root.single_publisher for root in roots)
    published: list[Version] = []
    for turn in range(4):
        root = roots[turn % 2]
        if published:
            assert root.wait(published[-1].number - 1, timeout=60).number == published[-1].number
        with root.begin_session(f"host-{turn % 2}") as session:
            published += [publish(session, 10 * turn + step) for step in range(2)]
    assert caplog.text.count("make sure that there is one at a time") == 4
    for root in roots:
        root.wait(published[-1].number - 1, timeout=60)
        records = root.log.records(1, root.log.refresh().number)
        weights = [record for record in records if isinstance(record, Weights)]
        assert weights == [version.record for version in published]
        assert sum(isinstance(record, Fence) for record in records) == 4
