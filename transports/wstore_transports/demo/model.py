"""The two sides of a demo model, whatever it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wstore_codecs.tensors import Array


class Served(Protocol):
    """An engine's own copy of the weights."""

    def weights(self) -> Mapping[str, Array]:
        """The live weights by name, to be filled in place."""

    def loss(self) -> float | None:
        """On held-out data; None where there is none."""


class Trained(Served, Protocol):
    """The trainer's copy."""

    def train(self) -> float | None:
        """Take one step; the training loss, None where nothing is trained."""
