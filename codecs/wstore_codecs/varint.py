"""LEB128: unsigned integers below 2^64 in one to ten bytes, seven bits each, the lowest first."""

from __future__ import annotations

from wstore.errors import IntegrityError


def pack(value: int) -> bytes:
    """The shortest form of an integer in [0, 2^64)."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class Cursor:
    """Reads small fields from bytes in order; each read past the end raises IntegrityError.

    Args:
        data: what to read.
        what: what these bytes are, for the error.
    """

    def __init__(self, data: memoryview, *, what: str) -> None:
        self._data = data
        self._at = 0
        self._what = what

    @property
    def at(self) -> int:
        """How many bytes have been read."""
        return self._at

    def take(self, count: int) -> memoryview:
        """The next `count` bytes, without a copy."""
        end = self._at + count
        if count < 0 or end > len(self._data):
            raise IntegrityError(
                f"{self._what} is cut short: {count} bytes wanted at {self._at} of {len(self._data)}"
            )
        view = self._data[self._at : end]
        self._at = end
        return view

    def byte(self) -> int:
        """The next byte."""
        if self._at == len(self._data):
            self.take(1)
        self._at += 1
        return self._data[self._at - 1]

    def varint(self) -> int:
        """The next LEB128 integer; only the shortest form of a number below 2^64 is accepted."""
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise IntegrityError(f"{self._what}: an integer of more than ten bytes")
        if value >> 64 or (byte == 0 and shift):
            raise IntegrityError(
                f"{self._what}: an integer that is too large or not in its short form"
            )
        return value

    def rest(self) -> memoryview:
        """All that is left."""
        return self.take(len(self._data) - self._at)

    def finish(self) -> None:
        """Raises IntegrityError when something is left."""
        if self._at != len(self._data):
            raise IntegrityError(f"{self._what}: {len(self._data) - self._at} bytes too many")
