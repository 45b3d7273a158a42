"""One version that is being handed in, to the chain of the model and to those of its variants."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeAlias

from wstore import telemetry
from wstore.errors import InvalidArgument
from wstore_transports.delta.observing import tell_publish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType
    from typing import Self

    from wstore_codecs.tensors import Array
    from wstore_transports.checkpoint.pieces import Shard
    from wstore_transports.delta.chain import Chain, Work
    from wstore_transports.delta.reports import PublishReport

Transform: TypeAlias = "Callable[[str, Array | Shard], Iterable[tuple[str, Array | Shard]]]"
"""What a variant makes of one tensor: none, one or several, such as quantised weights and their scales."""


class VersionInHand:
    """One version that is being handed in; made by `Publisher.version`. A context manager."""

    def __init__(
        self, chains: list[Chain], transforms: list[Transform], step: int, *, full: bool
    ) -> None:
        self._chains = chains
        self._transforms = transforms
        self._step = step
        self._full = full
        self._works: list[Work] = []
        self._launched: list[PublishReport] = []
        self._operation = telemetry.span("publish", chains[0].root.path.url, level=logging.INFO)

    @property
    def report(self) -> PublishReport:
        """What was done, for the model itself; once the `with` was left."""
        return self.reports[0]

    @property
    def reports(self) -> list[PublishReport]:
        """The same for the model and each of its variants."""
        if not self._launched:
            raise InvalidArgument("the report of a version is there once its `with` was left")
        return self._launched

    def add(self, name: str, value: Array | Shard) -> None:
        """Hand a tensor in. Raises InvalidArgument, and what an upload that has failed raised."""
        for work, transform in zip(self._works, self._transforms, strict=True):
            for made, array in transform(name, value):
                work.pending.add(made, array)

    def __enter__(self) -> Self:
        self._operation.__enter__()
        try:
            for chain in self._chains:
                self._works.append(chain.begin(self._step, full=self._full))
        except BaseException as error:
            self._give_up(error)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._give_up(error)
            return
        pairs = list(zip(self._chains, self._works, strict=True))
        try:
            # All or none: no flight before every form of the weights is encoded.
            reports = [chain.finish(work) for chain, work in pairs]
            for (chain, work), report in zip(pairs, reports, strict=True):
                chain.launch(work)
                self._launched.append(report)
        except BaseException as failure:
            self._give_up(failure)
            raise
        tell_publish(self._operation, self.report)
        self._operation.__exit__(None, None, None)

    def _give_up(self, error: BaseException) -> None:
        """End what was opened and not launched."""
        self._operation.__exit__(type(error), error, error.__traceback__)
        done = len(self._launched)
        for chain, work in zip(self._chains[done:], self._works[done:], strict=False):
            chain.give_up(work, error)
