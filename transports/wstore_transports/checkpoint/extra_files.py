"""Small files that go along with a version, such as "config.json"."""

from __future__ import annotations

import re

from wstore.errors import InvalidArgument

FILE_KEY = "file:"
"""The manifest's metadata maps "file:<name>" to the name of the object that holds the file."""

MAX_EXTRA_FILE = 64 << 20
"""Bytes of one extra file: it is read whole, so its size is capped."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


def check_file_name(name: str) -> str:
    """`name` when it stays inside a directory and cannot be taken for weights.

    Raises:
        InvalidArgument: it cannot be used.
    """
    weights = name.endswith((".safetensors", ".safetensors.index.json"))
    if not _NAME.fullmatch(name) or weights:
        raise InvalidArgument(
            f"extra file {name!r}: use letters, digits, '.', '_', '-', and no name of weights"
        )
    return name


def check_file(name: str, data: bytes) -> None:
    """Raises InvalidArgument for a name or a size that cannot go along."""
    check_file_name(name)
    if len(data) > MAX_EXTRA_FILE:
        raise InvalidArgument(
            f"extra file {name!r} has {len(data)} bytes; at most {MAX_EXTRA_FILE} go along"
        )
