"""Codecs by name: ours, and those of packages that this one has never heard of."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.wstore_codecs.frames import ALL_CODECS
from wstore.errors import IntegrityError, InvalidArgument
from wstore_codecs import base
from wstore_codecs.frame import decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CODE = '''
import numpy as np
from wstore.errors import IntegrityError
from wstore_codecs.base import Encoded


class Reversed:
    """Elements in reverse, half of them when told to lie."""

    needs_base = False

    def __init__(self, parameter):
        self.spec = "reversed" + (":" + parameter if parameter else "")

    def encode(self, new, base, dtype):
        return Encoded(self.spec, (b"reversed", np.unique(new).tobytes()))

    def decode(self, body, base, out, dtype):
        if bytes(body[:8]) != b"reversed":
            raise IntegrityError("not reversed")
        out[:] = np.frombuffer(body[8:], out.dtype)[0]
'''


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A distribution on sys.path that registers a codec."""
    (tmp_path / "strange_codec.py").write_text(CODE)
    info = tmp_path / "strange-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strange\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[wstore.codecs]\nreversed = strange_codec:Reversed\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    _forget()
    yield tmp_path
    monkeypatch.undo()
    sys.modules.pop("strange_codec", None)
    _forget()


def _forget() -> None:
    base.codec.cache_clear()
    base._factories.cache_clear()


@pytest.mark.usefixtures("stranger")
def test_a_codec_of_another_distribution() -> None:
    array = np.full((10, 10), 7, np.float32)
    frame = encode(array, codec="reversed:x")
    assert frame.header.codec == "reversed:x"
    assert np.array_equal(decode(frame.tobytes()), array)


@pytest.mark.usefixtures("stranger")
def test_a_codec_that_decodes_wrongly_is_found_out() -> None:
    with pytest.raises(IntegrityError, match="the result is not the block that was encoded"):
        decode(encode(np.arange(100) // 50, codec="reversed"))


def test_two_packages_under_one_name(stranger: Path) -> None:
    (stranger / "strange-1.0.dist-info" / "entry_points.txt").write_text(
        "[wstore.codecs]\nulp = strange_codec:Reversed\n"
    )
    _forget()
    with pytest.raises(InvalidArgument, match="two packages register the codec 'ulp'"):
        base.codec("raw")


@pytest.mark.parametrize("spec", ALL_CODECS)
def test_ours_are_registered_under_their_specs(spec: str) -> None:
    found = base.codec(spec)
    assert found.spec.split(":")[0] == spec.split(":")[0]
    assert base.codec(spec) is found


def test_names_that_are_none() -> None:
    for spec in ("", "ULP", "ulp:", ":x", "a b", "x" * 65, "ulp\n"):
        with pytest.raises(InvalidArgument, match="is not a codec's name"):
            base.codec(spec)
    with pytest.raises(InvalidArgument):
        base.codec("ulp:lzma")
