"""The loops that numba compiles: `digest` (additive digest), `sparse` (find and apply changes), `classes`
(changes split by the old value), `planes` (byte planes).

Each kernel is compiled alone, for explicit signatures: it calls nothing but intrinsics of its own file,
and its constants are there too, because numba's cache is renewed when that one file changes.
"""

from __future__ import annotations


def warm() -> None:
    """Compile every kernel, or load it from the cache."""
    from wstore_codecs.kernels import classes, digest, planes, sparse

    for module in (classes, digest, planes, sparse):
        module.warm()
