"""The digest of weights in memory, to compare with a version's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wstore_codecs import tensors as arrays
from wstore_codecs.digest import digest_block, model_digest

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from wstore_codecs.digest import TensorDigest
    from wstore_codecs.tensors import Array


def weights_digest(weights: Mapping[str, Array], *, threads: int = 1) -> str:
    """The model digest of these arrays: equal to `Version.digest` exactly when they hold the version.

    Every name counts, tied ones too; the same memory is read once.
    """
    seen: dict[Hashable, TensorDigest] = {}
    rows = []
    for name, array in weights.items():
        info = arrays.describe(array, name=name)
        key = arrays.alias_key(array, name=name)
        if key not in seen:
            seen[key] = digest_block(array, name=name, threads=threads)
        rows.append((name, info.dtype.name, info.shape, seen[key]))
    return model_digest(rows)
