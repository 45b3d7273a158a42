"""The mount table: which paths other hosts may change."""

from __future__ import annotations

import os

import pytest

from wstore.stores.mounts import Mount, on_network, parse_mountinfo

LINES = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
40 27 0:45 / /data/with\040space rw shared:7 master:2 - nfs4 host:/export rw,vers=4.2
41 27 0:46 / /lustre rw - lustre 10.0.0.1@tcp:/fs rw
42 27 0:47 / /bucket rw - fuse.gcsfuse bucket rw
43 27 8:1 / /win rw - fuseblk /dev/sda1 rw
broken line
44 27 x:1 / /odd rw - nfs host:/ rw
45 27 0:48 / /short rw -"""


def test_parse() -> None:
    mounts = parse_mountinfo(LINES)
    assert [(mount.fs_type, mount.is_network) for mount in mounts] == [
        ("proc", False),
        ("ext3", False),
        ("nfs4", True),
        ("lustre", True),
        ("fuse.gcsfuse", True),
        ("fuseblk", False),
    ]
    assert mounts[2] == Mount((0, 45), "/data/with space", "nfs4")
    assert parse_mountinfo("") == []


@pytest.mark.parametrize("name", ["nfs", "beegfs", "ceph", "gpfs", "9p", "cifs", "fuse.sshfs"])
def test_network_types(name: str) -> None:
    assert Mount((0, 1), "/", name).is_network


def test_local_paths_are_local_even_when_absent() -> None:
    assert not on_network(b"/proc/self")
    assert not on_network(os.fsencode("/proc/no/such/directory"))
