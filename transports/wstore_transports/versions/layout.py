"""The names of everything in a root; pure. `docs/format.md` is the specification."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from wstore.errors import InvalidArgument, InvalidPath

MARKER = "wstore.json"
HEAD = "head.json"
LOG = "log"
DATA = "data"
SESSIONS = "sessions"
LEASES = "leases"
LAYOUTS = "layouts"
OPEN = "open.json"
MANIFEST = "manifest.json"
ANCHOR = "anchor.json"
POINTER = "wstore-pointer.json"
VARIANTS = "variants"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_DIRECTORY = re.compile(r"([0-9]{12})-([0-9]{1,12})[.]([0-9a-f]{16})")
_SESSION = re.compile(r"([0-9]{12})(?:-([0-9]{6,12}))?[.]json")
_LEASE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,99})-([0-9a-f]{16})[.]json")
_OWN = re.compile(r"r([0-9]{5})[.].+")


@dataclass(frozen=True, slots=True)
class AttemptName:
    """An attempt's directory: `data/<run>/<wanted>-<epoch>.<random>`; its name tells who made it."""

    run: str
    wanted: int
    attempt: str

    @property
    def epoch(self) -> int:
        """The session that the attempt belongs to."""
        return int(self.attempt.partition(".")[0])

    @property
    def directory(self) -> str:
        """Relative to the root."""
        return f"{DATA}/{self.run}/{self.wanted:012d}-{self.attempt}"


def record_name(number: int) -> str:
    """Name of log record `number`, relative to the root."""
    return f"{LOG}/{number:012d}.json"


def new_attempt(epoch: int) -> str:
    """A fresh attempt id, `<epoch>.<16 hex digits>`; random, so it is never used twice."""
    return f"{epoch}.{secrets.token_hex(8)}"


def attempt_of(name: str) -> AttemptName | None:
    """The attempt that an object name (relative to the root) lies in, or None."""
    parts = name.split("/")
    if len(parts) < 3 or parts[0] != DATA or not _NAME.fullmatch(parts[1]):
        return None
    match = _DIRECTORY.fullmatch(parts[2])
    if match is None:
        return None
    return AttemptName(parts[1], int(match[1]), f"{match[2]}.{match[3]}")


def session_name(epoch: int) -> str:
    """The counter document of a session."""
    return f"{SESSIONS}/{epoch:012d}.json"


def announcement_name(epoch: int, index: int) -> str:
    """Where a session says which directory its attempt `index` (from 1) has."""
    return f"{SESSIONS}/{epoch:012d}-{index:06d}.json"


def parse_session(name: str) -> tuple[int, int | None] | None:
    """(epoch, index) of an announcement's file name in `sessions/`, (epoch, None) of a counter's."""
    match = _SESSION.fullmatch(name)
    if match is None:
        return None
    return int(match[1]), int(match[2]) if match[2] else None


def lease_name(reader: str, nonce: str) -> str:
    """The lease document of one reader process."""
    return f"{LEASES}/{reader}-{nonce}.json"


def layout_name(run: str, engine: str) -> str:
    """Where an engine says how it holds the tensors."""
    return f"{LAYOUTS}/{run}/{engine}.json"


def is_lease(name: str) -> bool:
    """Whether a file name in `leases/` is a lease's."""
    return _LEASE.fullmatch(name) is not None


def done_name(rank: int) -> str:
    """A rank's done marker, relative to the attempt's directory."""
    return f"r{rank:05d}.done.json"


def rank_abort_name(rank: int) -> str:
    """A rank's abort marker, relative to the attempt's directory."""
    return f"r{rank:05d}.abort.json"


def anchor_done_name(rank: int) -> str:
    """A rank's marker that its part of an anchor is written, relative to the attempt's directory."""
    return f"r{rank:05d}.anchor.json"


def own_prefix(rank: int) -> str:
    """What the names of all objects that this rank writes start with."""
    return f"r{rank:05d}."


def owner_rank(name: str) -> int | None:
    """The rank that an object's file name belongs to, or None."""
    match = _OWN.fullmatch(name)
    return int(match[1]) if match else None


def check_name(name: str, what: str) -> str:
    """`name` when it may name a run, a reader or an engine.

    Raises:
        InvalidArgument: it has other characters than letters, digits, ".", "_", "-", or is too long.
    """
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{what} {name!r}: use 1 to 100 letters, digits, '.', '_', '-', the first a letter or digit"
        )
    return name


def check_object_name(name: str, *, url: str = "") -> str:
    """`name` when it is relative and stays below the root.

    Raises:
        InvalidPath: absolute, with empty, "." or ".." segments, control characters, or over 1024 bytes.
    """
    segments = name.split("/")
    bad = any(part in ("", ".", "..") for part in segments)
    if bad or "\\" in name or any(ord(c) < 32 for c in name) or len(name.encode()) > 1024:
        raise InvalidPath(f"object name {name!r} does not stay inside the root", url=url)
    return name
