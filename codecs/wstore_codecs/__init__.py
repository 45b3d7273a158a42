"""What bytes mean: element types, boxes of tensors, frames, deltas, digests. Pure, no I/O.

Import from the modules: `frame` (one block encoded, `encode` and `decode`), `apply` (frames onto weights in
place), `bulk` (whole states to frames), `chain` (several versions: `replay`, `fold`), `part` (frames in a
file), `base` (codecs by name), `block` and `cutting` (boxes), `digest` (the additive digest), `dtypes` and
`tensors` (arrays as bits). torch is imported only once a torch tensor is handed in, numba only when a
delta or enough elements to pay for it are.
"""

from __future__ import annotations


def warm() -> None:
    """Compile every kernel, or load it from numba's cache on disk, so that the first delta costs what the
    tenth does. About two minutes of one core the first time on a machine, some seconds after that; without
    it, each kernel is compiled on first use, for the widths of elements that occur."""
    from wstore_codecs.kernels import warm as warm_kernels

    warm_kernels()
