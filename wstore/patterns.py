"""Glob patterns over the segments of keys, with pathlib's meaning. Pure.

"*", "?" and "[...]" match inside one segment (hidden names too, case-sensitive); a segment "**" matches
any number of segments, also none; as the last one it matches all below, as pathlib does since 3.13.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wstore.errors import InvalidArgument, InvalidPath

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAGIC = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A parsed pattern: its segments ("**" never twice in a row), and whether only directories match."""

    segments: tuple[str, ...]
    directories_only: bool


def parse(pattern: str) -> Pattern:
    """Raises InvalidArgument for an empty or absolute pattern, InvalidPath for a ".." in it."""
    if pattern.startswith("/"):
        raise InvalidArgument(f"a pattern is relative, not {pattern!r}")
    segments: list[str] = []
    for segment in pattern.split("/"):
        if segment == "..":
            raise InvalidPath(f"'..' may not be part of a pattern: {pattern!r}")
        if segment in ("", ".") or (segment == "**" and segments[-1:] == ["**"]):
            continue
        segments.append(segment)
    if not segments:
        raise InvalidArgument(f"an empty pattern: {pattern!r}")
    return Pattern(tuple(segments), directories_only=pattern.endswith("/"))


def is_magic(segment: str) -> bool:
    """Whether the segment can match other names than itself."""
    return _MAGIC.search(segment) is not None


def literal_head(segment: str) -> str:
    """The characters that every match of the segment starts with."""
    found = _MAGIC.search(segment)
    return segment[: found.start()] if found else segment


def match_segment(name: str, segment: str) -> bool:
    """Whether one name matches one segment (not "**")."""
    return _compiled(segment).match(name) is not None


def match_all(names: Sequence[str], segments: Sequence[str]) -> bool:
    """Whether the names match the whole pattern, "**" included. Linear in names x segments."""
    states = _skip({0}, segments)
    for name in names:
        following = set()
        for state in states:
            if state == len(segments):
                continue
            if segments[state] == "**":
                following.add(state)
            elif match_segment(name, segments[state]):
                following.add(state + 1)
        states = _skip(following, segments)
        if not states:
            return False
    return len(segments) in states


def match_tail(names: Sequence[str], pattern: str) -> bool:
    """Whether the last names match the pattern's segments one to one ("**" acts like "*")."""
    segments = parse(pattern).segments
    if len(segments) > len(names):
        return False
    tail = names[len(names) - len(segments) :]
    return all(match_segment(name, segment) for name, segment in zip(tail, segments, strict=True))


def _skip(states: set[int], segments: Sequence[str]) -> set[int]:
    """Adds the states reached by letting "**" match nothing more."""
    for state in sorted(states):
        if state < len(segments) and segments[state] == "**":
            states.add(state + 1)
    return states


@functools.lru_cache(maxsize=512)
def _compiled(segment: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(segment))
