"""One transfer in a process of its own; prints the peak resident memory that it added, in MiB (Linux).

    memory.py up|down|copy|read_into URL LOCAL_FILE

What the transfer starts from or fills is touched beforehand, and connections are open: the figure is
what the transfer itself holds.
"""

from __future__ import annotations

import sys
from pathlib import Path

from wstore import StoragePath

MiB = 1 << 20


def main(action: str, url: str, local: str) -> None:
    path = StoragePath(url)
    (path.parent / "warm-up").write_bytes(bytes(MiB))
    (path.parent / "warm-up").read_bytes()
    target = bytearray(path.stat().size) if action == "read_into" else bytearray()
    for page in range(0, len(target), 4096):
        target[page] = 1
    before = reset_peak()
    if action == "up":
        path.upload(local)
    elif action == "down":
        path.download(local)
    elif action == "copy":
        path.copy(StoragePath(local))
    elif path.read_into(target) != len(target):
        raise SystemExit("short read")
    print((peak() - before) / MiB)


def reset_peak() -> int:
    """Forget the peak so far; returns the bytes resident now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak() -> int:
    """The most bytes resident since the last reset."""
    return _status("VmHWM")


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {field}")


if __name__ == "__main__":
    main(*sys.argv[1:])
