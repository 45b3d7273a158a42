"""The variant that comes with wstore: fp8 weights with a scale for each block of 128 x 128.

`X.weight` becomes `X.weight` (F8_E4M3, same shape) and `X.weight_scale_inv` (F32, a number a block), the
layout of DeepSeek-V3's checkpoints, which vLLM, SGLang and transformers load as quantisation "fp8" with
"weight_block_size": [128, 128]. An element's value is its fp8 number times its block's scale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from wstore.errors import InvalidArgument
from wstore_codecs import tensors as arrays
from wstore_transports.checkpoint.pieces import Shard
from wstore_transports.delta import fp8_host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wstore_codecs.block import Shape
    from wstore_codecs.dtypes import DType
    from wstore_codecs.tensors import Array, HostArray

    Choice: TypeAlias = Callable[[str, Shape, DType], bool]

FLOATS = frozenset({"BF16", "F16", "F32", "F64"})
"""The element types that are quantised."""

_KEPT = frozenset(
    {"lm_head", "embed_out", "output", "score", "gate", "router", "shared_expert_gate"}
)
_EMBEDDINGS = frozenset({"wte", "wpe"})


def linear_weights(name: str, shape: Shape, dtype: DType) -> bool:
    """Whether a tensor is the weight of a linear layer, by its name: the usual choice for fp8.

    Matrices of floats called "*.weight", but none whose module (the word before ".weight") is the output
    head, a router of experts, an embedding or a norm. These stay as they are in transformers, which
    converts nn.Linear modules except the output embeddings, and in published fp8 checkpoints, whose
    "modules_to_not_convert" lists the routers too.
    """
    *_, module, word = ("", "", *name.split("."))
    return (
        len(shape) == 2
        and dtype.name in FLOATS
        and word == "weight"
        and module not in _KEPT
        and module not in _EMBEDDINGS
        and "embed" not in module
        and "norm" not in module
    )


class BlockwiseFp8:
    """A transform of tensors for `variants=`: deterministic, and the same bits from numpy and torch.

    A block's scale is its largest magnitude / 448, in float32, and 1 for a block of zeros; elements are
    divided by it and rounded to the nearest fp8 number, ties to even, at most 448 in magnitude. Blocks at
    the lower and right edges may be smaller. What is fp8 already passes through, so applying it twice
    changes nothing. For any number of threads.

    Args:
        block: rows and columns of a block; vLLM's kernels want (128, 128).
        only: which tensors to quantise, by name, whole shape and dtype; all others pass through unchanged.
            For layers of your model that stay in full precision (a vision tower, the last layers), combine
            `linear_weights` with a rule of your own, and list them in the engine's configuration.

    Raises:
        InvalidArgument: a block of less than one row or column.
    """

    def __init__(
        self, *, block: tuple[int, int] = (128, 128), only: Choice = linear_weights
    ) -> None:
        if min(block) < 1:
            raise InvalidArgument(f"a block of {block} rows and columns has no element")
        self.block = block
        self._only = only

    def __call__(self, name: str, array: Array | Shard) -> Iterator[tuple[str, Array | Shard]]:
        """What to publish in place of this tensor: itself, or its fp8 and then its scales.

        Both are of the kind that was handed in (numpy or torch, on the same device) and own their memory;
        of a shard come shards.

        Raises:
            InvalidArgument: chosen by `only`, but no matrix of floats; a shard that cuts through a block;
                a NaN or an infinity (fp8 has no infinity, and one such element would spoil the scale of
                its whole block unseen). Names the tensor.
        """
        local = array.array if isinstance(array, Shard) else array
        info = arrays.describe(local, name=name)
        shape = array.global_shape if isinstance(array, Shard) else info.shape
        if not self._only(name, shape, info.dtype):
            yield name, array
            return
        if len(shape) != 2 or len(info.shape) != 2 or info.dtype.name not in FLOATS:
            raise InvalidArgument(
                f"tensor {name!r}: {info.dtype.name} {shape} is no matrix of floats; choose others with "
                "only="
            )
        scales_name = f"{name}_scale_inv"
        if not isinstance(array, Shard):
            codes, scales = self._quantise(name, local, info.dtype)
            yield name, codes
            yield scales_name, scales
            return
        origin = self._block_origin(name, array, info.shape)
        codes, scales = self._quantise(name, local, info.dtype)
        yield name, Shard(codes, array.global_shape, array.origin)
        yield scales_name, Shard(scales, self._blocks(shape), origin)

    def _quantise(self, name: str, local: Array, dtype: DType) -> tuple[Array, Array]:
        codes: Array
        scales: Array
        device = arrays.on_device(local)
        if device is not None:
            from wstore_codecs import torch_tensors
            from wstore_transports.delta import fp8_torch

            codes, scales = fp8_torch.quantise(torch_tensors.plain(device, name=name), self.block)
            self._check(name, scales.cpu().numpy())
            return codes, scales
        host = arrays.bit_view(local, name=name).view(dtype.numpy)
        codes, scales = fp8_host.quantise(host, self.block)
        self._check(name, scales)
        return _as_torch(codes, scales) if hasattr(local, "untyped_storage") else (codes, scales)

    def _check(self, name: str, scales: HostArray) -> None:
        bad = np.argwhere(np.isnan(scales))
        if len(bad):
            row, column = (int(at) * size for at, size in zip(bad[0], self.block, strict=True))
            raise InvalidArgument(
                f"tensor {name!r} has a NaN, an infinity or a number beyond float32 in {len(bad)} of "
                f"{scales.size} blocks, first in that at row {row}, column {column}: it has no fp8 form"
            )

    def _blocks(self, shape: Shape) -> Shape:
        return tuple(-(-length // size) for length, size in zip(shape, self.block, strict=True))

    def _block_origin(self, name: str, shard: Shard, extent: Shape) -> Shape:
        """The shard's place counted in blocks."""
        for axis, size in enumerate(self.block):
            start, length = shard.origin[axis], shard.global_shape[axis]
            for bound in (start, start + extent[axis]):
                if bound % size and bound != length:
                    raise InvalidArgument(
                        f"tensor {name!r}: a shard ends at {bound} of dimension {axis}, inside a block of "
                        f"{size}; cut at multiples of {size}, or gather the tensor and publish it from "
                        "one rank"
                    )
        return self._blocks(shard.origin)


def _as_torch(codes: HostArray, scales: HostArray) -> tuple[Array, Array]:
    import torch

    from wstore_transports.delta import fp8_torch

    return fp8_torch.from_host(codes, torch.float8_e4m3fn), torch.from_numpy(scales)
