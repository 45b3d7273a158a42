"""Section 8 of the format page, computed as it is written there, in Python's own integers."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xxhash

from wstore_codecs.digest import TensorDigest, digest_block, model_digest

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
SECTION = PAGE.partition("\n## 8. The digest\n")[2].partition("\n## ")[0]
WORD = 1 << 64


def _formula() -> list[str]:
    """The statements of the section's first indented block."""
    block = SECTION.partition("\n\n    ")[2].partition("\n\n")[0]
    return [part.strip() for line in block.splitlines() for part in line.split(";")]


def _by_the_page(elements: Sequence[int]) -> str:
    """The digest of a tensor, given the bit patterns of its elements."""
    lanes = {"0": 0, "1": 0}
    for i, bits in enumerate(elements):
        words = {"i": i, "bits": bits}
        for statement in _formula():
            if gain := re.fullmatch(r"lane (\d) gains (.+)", statement):
                lanes[gain[1]] += eval(gain[2], {}, words)
            else:
                name, _, value = statement.partition(" = ")
                words[name] = eval(value, {}, words) % WORD
    return "".join(f"{lane % WORD:016x}" for lane in lanes.values())


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.int64])
def test_the_digest_is_what_the_page_says(dtype: type[np.generic]) -> None:
    random = np.random.default_rng(8)
    width = np.dtype(dtype).itemsize
    tensor = np.frombuffer(random.bytes(15 * width), dtype).reshape(3, 5)
    bits = tensor.reshape(-1).view(f"<u{width}").tolist()
    assert digest_block(tensor).hex == _by_the_page(bits)
    assert digest_block(tensor[:0]).hex == _by_the_page([]) == "0" * 32


def test_the_model_digest_is_what_the_page_says() -> None:
    """Of the page's own example, down to the digests that its manifest and its record carry."""
    (manifest,) = (m for m in _examples() if m["document"] == "manifest")
    header = re.search(r'"(wstore model digest \d)\\n"', SECTION)
    assert header is not None
    tensor = np.array([[1, 2], [3, 4]], np.float32)
    found = _by_the_page(tensor.reshape(-1).view("<u4").tolist())
    packed = header[1].encode() + b"\n" + struct.pack("<Q", 2)
    for name in (b"w", b"w_tied"):
        packed += struct.pack("<I", len(name)) + name + struct.pack("<I", 3) + b"F32"
        packed += struct.pack("<I2Q", 2, 2, 2)
        packed += struct.pack("<2Q", int(found[:16], 16), int(found[16:], 16))
    named = [(name, "F32", (2, 2), TensorDigest.from_hex(found)) for name in ("w_tied", "w")]
    assert manifest["tensors"]["w"]["digest"] == found
    assert manifest["digest"] == xxhash.xxh3_128_hexdigest(packed) == model_digest(named)


def _examples() -> list[dict[str, Any]]:
    return [json.loads(text) for text in re.findall(r"```json\n(.*?)\n```", PAGE, re.DOTALL)]
