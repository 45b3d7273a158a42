"""However much changed, a block takes at most four of its size beside itself."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.wstore_codecs.frames import changed, mostly_long, same, weights
from wstore_codecs import dtypes
from wstore_codecs.apply import apply
from wstore_codecs.frame import Frame, encode

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE = 1 << 20
SLACK = 256 << 10  # tables, threads, what a small block would not notice


def _peak_blocks(work: Callable[[], object], nbytes: int) -> float:
    work()  # scratch that a thread keeps, imports
    tracemalloc.start()
    try:
        work()
        return (tracemalloc.get_traced_memory()[1] - SLACK) / nbytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("density", [0.3, 0.95, pytest.param(0.5, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", mostly_long(["BF16", "F8_E4M3", "F32"], ["F8_E4M3"]))
@pytest.mark.parametrize(
    "codec", mostly_long(["auto", "auto:max", "context", "ulp", "xor"], ["auto:max"])
)
def test_a_dense_delta_takes_at_most_four_blocks(codec: str, name: str, density: float) -> None:
    dtype = dtypes.dtype(name)
    base = weights(dtype, (SIZE,))
    new = changed(base, dtype, density)
    frame = Frame.parse(encode(new, base, codec=codec, name="w").tobytes())
    assert _peak_blocks(lambda: encode(new, base, codec=codec, name="w"), base.nbytes) <= 4
    state = {"w": base.copy()}

    def once() -> None:
        np.copyto(state["w"].view("u1"), base.view("u1"))
        apply([frame], state)

    assert _peak_blocks(once, base.nbytes) <= 4
    assert same(state["w"], new)
