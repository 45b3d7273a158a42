"""The mount table: which paths other hosts may change."""

from __future__ import annotations

import errno
import os
import time

import pytest

from wstore.stores import mounts
from wstore.stores.mounts import LOCAL, FileSystem, Mount, file_system_of, parse_mountinfo

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
    assert [(mount.file_system.type, mount.file_system.is_network) for mount in mounts] == [
        ("proc", False),
        ("ext3", False),
        ("nfs4", True),
        ("lustre", True),
        ("fuse.gcsfuse", True),
        ("fuseblk", False),
    ]
    assert mounts[2] == Mount((0, 45), "/data/with space", FileSystem("nfs4"))
    assert parse_mountinfo("") == []


@pytest.mark.parametrize("name", ["nfs", "beegfs", "ceph", "gpfs", "9p", "cifs", "fuse.sshfs"])
def test_network_types(name: str) -> None:
    assert FileSystem(name).is_network


@pytest.mark.parametrize(
    ("name", "exclusive"),
    [
        ("ext4", True),
        ("nfs4", True),
        ("lustre", True),
        ("fuseblk", True),
        ("fuse.fuse-overlayfs", True),
        ("fuse.juicefs", True),
        ("fuse", False),
        ("fuse.seaweedfs", False),
        ("fuse.unheard-of", False),
    ],
)
def test_who_decides_a_create(name: str, exclusive: bool) -> None:
    assert FileSystem(name).creates_exclusively is exclusive


def test_a_type_is_looked_up_by_device() -> None:
    assert file_system_of(b"/proc/self") == FileSystem("proc")
    assert file_system_of(os.fsencode("/proc/no/such/directory")) == FileSystem("proc")
    assert not FileSystem("proc").is_network
    assert not LOCAL.is_network


@pytest.mark.parametrize("code", [errno.ENOTCONN, errno.ESTALE, errno.EACCES])
def test_a_mount_that_is_away_is_not_what_lies_below_it(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    real_stat = os.stat

    def stat_away(path: bytes, **options: bool) -> os.stat_result:
        if path == b"/proc/self":
            raise OSError(code, os.strerror(code))
        return real_stat(path, **options)

    monkeypatch.setattr(os, "stat", stat_away)
    with pytest.raises(OSError, match=os.strerror(code)):
        file_system_of(b"/proc/self")


def test_what_is_known_of_a_device_ages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of a mount that went away is given to another file system."""
    device = os.stat("/proc").st_dev
    monkeypatch.setitem(mounts._known, device, (time.monotonic(), FileSystem("nfs4")))
    assert file_system_of(b"/proc").is_network
    monkeypatch.setitem(mounts._known, device, (time.monotonic() - 60, FileSystem("nfs4")))
    assert file_system_of(b"/proc") == FileSystem("proc")
