"""Which file system a path lies on, what that means, and how to make a network one look again.

The kernel's mount table (`/proc/self/mountinfo`, format in proc_pid_mountinfo(5)) names the type. NFS,
Lustre and FUSE clients cache "no such file" for up to a minute; reading the parent directory makes
them ask the server.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from itertools import islice

_MOUNTINFO = "/proc/self/mountinfo"
_ESCAPE = re.compile(r"\\([0-7]{3})")
_REFRESH_ENTRIES = 1024  # bounds the refresh of a huge directory: opening it is what revalidates
# The number of a mount that went away is given to another one: what is known of it ages.
_KNOWN_FOR_S = 10.0

# Types whose content other hosts change. FUSE file systems have "fuse." and a name, tested by prefix.
_CLUSTER = ("beegfs", "ceph", "gfs2", "gpfs", "lustre", "ocfs2", "orangefs", "panfs", "wekafs")
_REMOTE = ("9p", "afs", "autofs", "cifs", "fuse", "nfs", "nfs4", "smb3", "smbfs", "virtiofs")
NETWORK_TYPES = frozenset(_CLUSTER + _REMOTE)

# FUSE file systems over a directory of this very host: every writer goes through one kernel.
_FUSE_LOCAL = ("fuse-overlayfs", "mergerfs", "gocryptfs", "encfs", "bindfs", "ntfs-3g")
# FUSE clients of one metadata service that decides, by their own documentation; not measured here.
_FUSE_ONE_JUDGE = ("ceph", "ceph-fuse", "glusterfs", "juicefs")
_FUSE_EXCLUSIVE = frozenset(f"fuse.{name}" for name in _FUSE_LOCAL + _FUSE_ONE_JUDGE)


@dataclass(frozen=True, slots=True)
class FileSystem:
    """What follows from the type of a file system, as the mount table names it; "" is unknown."""

    type: str

    @property
    def is_fuse(self) -> bool:
        """A daemon of its own answers for each mount, and the kernel caches attributes for a while."""
        return self.type == "fuse" or self.type.startswith("fuse.")

    @property
    def is_network(self) -> bool:
        """Whether other hosts may change what is stored here."""
        return self.type in NETWORK_TYPES or self.is_fuse

    @property
    def is_lustre(self) -> bool:
        """Whether files are striped over servers."""
        return self.type == "lustre"

    @property
    def creates_exclusively(self) -> bool:
        """Whether of two hosts that link(2) one name, one is refused.

        Kernel clients (NFS, Lustre, SMB, ...) send the call to the one server that decides. A FUSE
        daemon may decide for its own mount alone: of 16 racing writers on two mounts of SeaweedFS 4.48
        one on each mount won, by link(2) as by renameat2(2) without replace. So a FUSE type counts as
        exclusive only where it is known to be.
        """
        return not self.is_fuse or self.type in _FUSE_EXCLUSIVE


LOCAL = FileSystem("")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the mount table: the device as (major, minor), where, and the type."""

    device: tuple[int, int]
    point: str
    file_system: FileSystem


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
        kind = FileSystem(fields[separator + 1])
        mounts.append(Mount((int(major), int(minor)), point, kind))
    return mounts


_known: dict[int, tuple[float, FileSystem]] = {}


def file_system_of(path: bytes) -> FileSystem:
    """The file system of `path`, or of its nearest ancestor that exists.

    The answer is kept for some seconds per device number, so a poll costs one `stat`. Without a mount
    table (not Linux), every file system counts as local.

    Raises:
        OSError: it cannot be told now. A mount that is away is not the file system that it hides.
    """
    while True:
        try:
            device = os.stat(path).st_dev
        except (FileNotFoundError, NotADirectoryError):
            parent = os.path.dirname(path)
            if parent == path:
                return LOCAL
            path = parent
        else:
            return file_system_of_device(device)


def file_system_of_device(device: int) -> FileSystem:
    """The file system of a `stat`'s device number."""
    now = time.monotonic()
    known = _known.get(device)
    if known is None or now - known[0] > _KNOWN_FOR_S:
        known = _known[device] = (now, _look_up(device))
    return known[1]


def _look_up(device: int) -> FileSystem:
    try:
        with open(_MOUNTINFO, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read()
    except OSError:
        return LOCAL
    wanted = (os.major(device), os.minor(device))
    found = (mount.file_system for mount in parse_mountinfo(text) if mount.device == wanted)
    return next(found, LOCAL)


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
