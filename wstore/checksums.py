"""Digests of whole contents: CRC-32C and XXH3-128, streaming, named "crc32c:<hex>" and "xxh3:<hex>".

CRC-32C (RFC 3720, Castagnoli) is what object stores report; XXH3-128 is faster and wider. Neither is
a defence against an attacker. The libraries behind are loaded on first use.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

from wstore.errors import IntegrityError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable

_FORM = re.compile(r"(crc32c):([0-9a-f]{8})|(xxh3):([0-9a-f]{32})")
_CRC_CHUNK = 1 << 20  # the extension takes bytes only: copies stay small


class Digest(Protocol):
    """A running digest."""

    def update(self, data: memoryview) -> None:
        """Add the next bytes."""

    def text(self) -> str:
        """The digest so far, with its name: "crc32c:e3069283"."""


class Crc32c:
    """CRC-32C."""

    def __init__(self) -> None:
        import google_crc32c

        self._extend = google_crc32c.extend
        self._value = 0

    def update(self, data: memoryview) -> None:
        for start in range(0, len(data), _CRC_CHUNK):
            self._value = self._extend(self._value, bytes(data[start : start + _CRC_CHUNK]))

    def text(self) -> str:
        return f"crc32c:{self._value:08x}"


class Xxh3:
    """XXH3 with 128 bits."""

    def __init__(self) -> None:
        import xxhash

        self._state = xxhash.xxh3_128()

    def update(self, data: memoryview) -> None:
        self._state.update(data)

    def text(self) -> str:
        return f"xxh3:{self._state.hexdigest()}"


def digest_for(expected: str) -> Digest:
    """A fresh digest of the kind that `expected` names.

    Raises:
        InvalidArgument: neither "crc32c:" with 8 nor "xxh3:" with 32 lower-case hex digits.
    """
    found = _FORM.fullmatch(expected)
    if found is None:
        raise InvalidArgument(
            f"the checksum {expected!r} is neither crc32c:<8 hex> nor xxh3:<32 hex>"
        )
    return Crc32c() if found.group(1) else Xxh3()


def require(digest: Digest, expected: str, url: str) -> None:
    """Raises IntegrityError where the digest is another than expected."""
    if digest.text() != expected:
        raise IntegrityError(
            f"the data has {digest.text()}, expected {expected}; nothing was published", url=url
        )


def crc32c(chunks: Iterable[memoryview]) -> str:
    """The CRC-32C of the chunks, one after the other."""
    return _total(Crc32c(), chunks)


def xxh3(chunks: Iterable[memoryview]) -> str:
    """The XXH3-128 of the chunks, one after the other."""
    return _total(Xxh3(), chunks)


def _total(digest: Digest, chunks: Iterable[memoryview]) -> str:
    for chunk in chunks:
        digest.update(chunk)
    return digest.text()
