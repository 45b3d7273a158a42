"""What proves the content of a block: its xxh3-128, its additive digest, or both.

The hash is the cheaper one where the bytes are in host memory. The digest is the one that a device
computes where the weights are, that follows a delta at the cost of its changes, and that a holder of a
slice can check. Two proofs agree when what both have is equal and they have something in common.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from wstore.errors import IntegrityError, InvalidArgument
from wstore_codecs.digest import digest_flat

if TYPE_CHECKING:
    from wstore_codecs.digest import TensorDigest
    from wstore_codecs.digest_plan import IndexMap
    from wstore_codecs.tensors import Bits


@dataclass(frozen=True, slots=True)
class Proof:
    """The content of a block, by one or both of:

    Attributes:
        hash: xxh3-128 (seed 0, big-endian as its hex form) of the block's bytes, row-major.
        digest: the additive digest of the block's elements at their places in the tensor; of a group,
            at their places in the packed 1-d tensor.
    """

    hash: bytes | None = None
    digest: TensorDigest | None = None

    def __post_init__(self) -> None:
        if self.hash is None and self.digest is None:
            raise InvalidArgument("a proof needs a hash or a digest")
        if self.hash is not None and len(self.hash) != 16:
            raise InvalidArgument(f"a hash of {len(self.hash)} bytes instead of 16")

    def agrees(self, other: Proof) -> bool:
        """Whether both prove the same content. Raises IntegrityError when they cannot be compared."""
        pairs = [
            (a, b)
            for a, b in ((self.hash, other.hash), (self.digest, other.digest))
            if a is not None and b is not None
        ]
        if not pairs:
            raise IntegrityError(
                "one block is proven by a hash and the other by a digest: they cannot be compared"
            )
        return all(a == b for a, b in pairs)


def hash_bits(bits: Bits) -> bytes:
    """The xxh3-128 of contiguous bits."""
    return xxhash.xxh3_128_digest(bits.view("u1").data)


def proves(proof: Proof, bits: Bits, spread: IndexMap) -> bool:
    """Whether these contiguous host bits are what was proven: by the hash where there is one."""
    if proof.hash is not None:
        return hash_bits(bits) == proof.hash
    return digest_flat(bits, spread) == proof.digest
