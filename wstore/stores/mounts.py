"""Which file system a path lies on, and how to make a network one look again.

The kernel's mount table (`/proc/self/mountinfo`, format in proc_pid_mountinfo(5)) names the type. NFS,
Lustre and FUSE clients cache "no such file" for up to a minute; reading the parent directory makes
them ask the server.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from itertools import islice

_MOUNTINFO = "/proc/self/mountinfo"
_ESCAPE = re.compile(r"\\([0-7]{3})")
_REFRESH_ENTRIES = 1024  # bounds the refresh of a huge directory: opening it is what revalidates

# Types whose content other hosts change. FUSE file systems have "fuse." and a name, tested by prefix.
_CLUSTER = ("beegfs", "ceph", "gfs2", "gpfs", "lustre", "ocfs2", "orangefs", "panfs", "wekafs")
_REMOTE = ("9p", "afs", "autofs", "cifs", "fuse", "nfs", "nfs4", "smb3", "smbfs", "virtiofs")
NETWORK_TYPES = frozenset(_CLUSTER + _REMOTE)


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the mount table: the device as (major, minor), where, and the type."""

    device: tuple[int, int]
    point: str
    fs_type: str

    @property
    def is_network(self) -> bool:
        """Whether other hosts may change what is stored here."""
        return self.fs_type in NETWORK_TYPES or self.fs_type.startswith("fuse.")


def parse_mountinfo(text: str) -> list[Mount]:
    """Read the text of a mountinfo file, in its order (later mounts hide earlier ones).

    A line that does not follow the format is skipped: the kernel may add fields, never remove them.
    """
    mounts = []
    for line in text.splitlines():
        fields = line.split(" ")
        # Six fixed fields, then any number of optional ones up to a lone "-", then the type.
        if "-" not in fields[6:]:
            continue
        separator = fields.index("-", 6)
        major, colon, minor = fields[2].partition(":")
        if not (colon and major.isdigit() and minor.isdigit()) or len(fields) < separator + 2:
            continue
        point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4])
        mounts.append(Mount((int(major), int(minor)), point, fields[separator + 1]))
    return mounts


_network_devices: dict[int, bool] = {}


def on_network(directory: bytes) -> bool:
    """Whether `directory`, or its nearest ancestor that exists, is on a network file system.

    The answer is kept per device number, so a poll costs one `stat`. Without a mount table (not
    Linux), every file system counts as local.
    """
    while True:
        try:
            device = os.stat(directory).st_dev
            break
        except OSError:
            parent = os.path.dirname(directory)
            if parent == directory:
                return False
            directory = parent
    if device not in _network_devices:
        _network_devices[device] = _is_network_device(device)
    return _network_devices[device]


def _is_network_device(device: int) -> bool:
    try:
        with open(_MOUNTINFO, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read()
    except OSError:
        return False
    wanted = (os.major(device), os.minor(device))
    return any(mount.is_network for mount in parse_mountinfo(text) if mount.device == wanted)


def refresh_directory(directory: bytes) -> None:
    """Open `directory` and read its first entries, so that cached "no such file" answers expire.

    Ancestors are refreshed from the nearest one that exists: they too may be hidden by the cache.
    """
    while True:
        try:
            with os.scandir(directory) as entries:
                for _ in islice(entries, _REFRESH_ENTRIES):
                    pass
        except OSError:
            parent = os.path.dirname(directory)
            if parent == directory:
                return
            directory = parent
        else:
            return
