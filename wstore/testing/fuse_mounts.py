"""Two FUSE mounts of one SeaweedFS folder: on one machine, what two hosts of a shared file system are.

Each mount has a daemon and a cache of its own, and the kernel remembers for each of them apart. The
daemons run under the same guard as the servers: they end with the process that started them, and a
watcher takes the mounts away then.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wstore.errors import MissingPackage, StoreError
from wstore.testing.guarding import START_TIMEOUT_S, guarded, tail_of
from wstore.testing.servers import weed_binary, weed_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

DEVICE = Path("/dev/fuse")
INSTALL = "apt-get install -y fuse3"
_FOLDER = "/shared"

# Runs as `python -c UNMOUNT directory`: when its standard input ends, the mount is taken away, however
# the process that held the other end of the pipe came to its end. Repeated while a daemon still mounts.
_UNMOUNT = """
import os, subprocess, sys, time
while os.read(0, 4096):
    pass
for _ in range(20):
    done = subprocess.run(["umount", "-l", sys.argv[1]], capture_output=True)
    if done.returncode:
        subprocess.run(["fusermount3", "-u", "-z", sys.argv[1]], capture_output=True)
    if not os.path.ismount(sys.argv[1]):
        break
    time.sleep(0.05)
"""


@dataclass(frozen=True, slots=True)
class FuseMount:
    """One mount, as the `host` of a test: `path` is the shared folder as that host sees it."""

    path: Path
    filer: str
    work: Path

    @contextmanager
    def mounted(self) -> Iterator[int]:
        """The mount is there and answers; yields the daemon's process group, to be killed in tests.

        May be entered again after it was left. Nothing stays mounted on exit.

        Raises:
            MissingPackage: mounting needs `fusermount3`. StoreError: it did not come up.
        """
        _require_fuse()
        for directory in (self.path, self.work):
            directory.mkdir(parents=True, exist_ok=True)
        log = self.work / "mount.log"
        with _taken_away(self.path), guarded(self._command(), log, weed_environment()) as daemon:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not _answers(self.path):
                if daemon.poll() is not None or time.monotonic() > deadline:
                    raise StoreError(f"no mount at {self.path}: {tail_of(log)}")
                time.sleep(0.05)
            yield daemon.pid

    def _command(self) -> list[str]:
        return [
            weed_binary(),
            "mount",
            f"-filer={self.filer}",
            f"-filer.path={_FOLDER}",
            f"-dir={self.path}",
            f"-cacheDir={self.work / 'cache'}",
            f"-localSocket={self.work / 'mount.sock'}",
        ]


@contextmanager
def two_mounts(filer: str, directory: Path) -> Iterator[tuple[FuseMount, FuseMount]]:
    """Two mounts of one folder, with the options that users have by default.

    Args:
        filer: a SeaweedFS filer, "host:port.grpcport".
        directory: mount points, caches and logs go below it.
    """
    first, second = (
        FuseMount(directory / name, filer, directory / f"{name}-work") for name in ("a", "b")
    )
    with ExitStack() as stack:
        stack.enter_context(first.mounted())
        stack.enter_context(second.mounted())
        yield first, second


def kill_daemon(group: int) -> None:
    """End a mount's daemon as a crash would: the mount stays, and answers "not connected"."""
    os.killpg(group, signal.SIGKILL)


def fuse_is_missing() -> bool:
    """Whether this machine cannot have FUSE mounts at all: a container without the device."""
    return not DEVICE.exists()


def _require_fuse() -> None:
    """Root mounts by itself; others need the helper that has the right to."""
    if os.geteuid() != 0 and shutil.which("fusermount3") is None:
        raise MissingPackage(f"mounting needs `fusermount3`: {INSTALL}")


def _answers(path: Path) -> bool:
    try:
        return os.path.ismount(path) and os.listdir(path) is not None
    except OSError as error:
        if error.errno in (errno.ENOTCONN, errno.EIO, errno.ENOENT):
            return False
        raise


@contextmanager
def _taken_away(path: Path) -> Iterator[None]:
    """Unmount `path` on exit, and by another process where this one does not come to its exit."""
    watcher = subprocess.Popen(
        [sys.executable, "-S", "-c", _UNMOUNT, str(path)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    assert watcher.stdin is not None
    try:
        yield
    finally:
        watcher.stdin.close()
        watcher.wait()
