"""Blocks whose elements stay on a torch device: only changes and proofs cross to the host.

A frame that is made here is proven by digests, which the device computes; one whose codec needs the whole
block on the host (`context`, dense ones) is made there, from a copy of the block. Imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wstore.errors import IntegrityError
from wstore_codecs import tensors, torch_tensors
from wstore_codecs.auto import Auto
from wstore_codecs.base import SparseCodec
from wstore_codecs.digest import TensorDigest
from wstore_codecs.frame_header import label_of, spread_of
from wstore_codecs.proof import Proof, proves
from wstore_codecs.torch_kernels import sparse as torch_sparse
from wstore_codecs.torch_kernels.digest import torch_lanes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from wstore_codecs.base import Codec, Encoded
    from wstore_codecs.changes import Changes
    from wstore_codecs.cutting import Unit
    from wstore_codecs.targets import Piece
    from wstore_codecs.tensors import Bits


def encode_changes(
    unit: Unit,
    new: torch.Tensor,
    old: torch.Tensor,
    codec: Codec,
    base_proof: Proof | None,
) -> tuple[Encoded, Proof, Proof] | None:
    """A delta between two tensors on one device, with the proofs of both; None when it has to be made
    on the host: another kind of codec, or no delta that is smaller than the block.

    Raises:
        IntegrityError: `old` is not what `base_proof` proves: whoever applied the delta to the true base
            would get another block than `new`, of the very digest that the delta promises.
    """
    sparse = codec.sparse if isinstance(codec, Auto) else codec
    if not isinstance(sparse, SparseCodec) or sparse.needs_whole_base:
        return None
    a, b = (torch_tensors.plain(one, name="").contiguous() for one in (old, new))
    changes = torch_sparse.find(a, b, sparse.rule(unit.dtype))
    if isinstance(codec, Auto) and not codec.is_sparse(changes):
        return None
    encoded = sparse.encode_changes(changes, unit.dtype)
    if encoded.nbytes >= a.nbytes:
        return None
    spread = spread_of(unit)
    after = TensorDigest(torch_lanes(b, spread))
    before = after - TensorDigest(torch_sparse.patch_lanes(a, changes, spread))
    known = None if base_proof is None else base_proof.digest
    if known is not None and known != before:
        raise IntegrityError(f"{label_of(unit)}: the base is not the block that base_proof proves")
    return encoded, Proof(digest=before), Proof(digest=after)


class DeviceTarget:
    """A block in a tensor on a device, of any strides."""

    def __init__(self, unit: Unit, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces
        self._unit = unit
        (self._piece,) = pieces
        device = tensors.on_device(self._piece.array)
        assert device is not None  # who makes one has looked
        self._tensor = torch_tensors.plain(device, name=self._piece.box.tensor)

    def agrees(self, proof: Proof) -> bool:
        if proof.digest is not None:
            return self._piece.digest() == proof.digest
        return proves(proof, self.load(), spread_of(self._unit))

    def load(self) -> Bits:
        return self._piece.bits().reshape(-1)

    def store(self, bits: Bits) -> None:
        self._piece.write(bits.reshape(self._piece.box.extent))

    def held(self) -> list[Bits]:
        return [self.load()]

    def restore(self, held: Sequence[Bits]) -> None:
        self.store(held[0])

    def patch(self, changes: Changes) -> None:
        self._rewrite(changes, torch_sparse.patch)

    def unpatch(self, changes: Changes) -> None:
        self._rewrite(changes, torch_sparse.unpatch)

    def _rewrite(self, changes: Changes, move: Callable[[torch.Tensor, Changes], None]) -> None:
        flat = self._tensor.contiguous()
        move(flat, changes)
        if flat.data_ptr() != self._tensor.data_ptr():
            self._tensor.copy_(flat)
