"""The trainer's side: each version as what changed since the one before."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

from wstore.errors import InvalidArgument, WStoreError
from wstore.path import StoragePath
from wstore_codecs import base as codecs
from wstore_transports.checkpoint.pieces import Collector
from wstore_transports.delta.agreement import decide
from wstore_transports.delta.chain import Chain, Settings
from wstore_transports.delta.flat import SAFETENSORS
from wstore_transports.delta.pointer import Handshake
from wstore_transports.delta.spool import MEMORY_BYTES
from wstore_transports.delta.version_in_hand import VersionInHand
from wstore_transports.versions import Retention, enter, layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from wstore_codecs.tensors import Array
    from wstore_transports.checkpoint.pieces import Shard, Tensors
    from wstore_transports.delta.agreement import Group
    from wstore_transports.delta.baseline import Where
    from wstore_transports.delta.reports import CommitReport, PublishReport
    from wstore_transports.delta.version_in_hand import Transform

ANCHOR_EVERY = 10
"""Versions from one anchor to the next, unless told otherwise."""


class Publisher:
    """Publishes versions of a model under a root; one instance a rank, used by one thread at a time.

    Starting one takes the root over: a publisher of an earlier start can commit nothing more (`Fenced`).
    The first version holds whole weights, each later one what changed; every `anchor_every` versions whole
    weights follow in the background, for readers that join. One version is in flight at a time.

    It keeps a copy of this rank's tensors (the baseline), and beside it at most `memory_bytes` of encoded
    weights and a few blocks a thread; the same for each variant.

    A context manager: leaving it normally says that the run has ended, so that waiting readers stop;
    leaving it by an exception does not.

    Attributes:
        root: the root that is published to.
    """

    def __init__(
        self,
        root: StoragePath | str,
        *,
        rank: int = 0,
        world_size: int = 1,
        codec: str = "auto",
        anchor_every: int = ANCHOR_EVERY,
        anchor_codec: str = "planes",
        keep: int | Retention | None = None,
        run: str = "main",
        launch: str = "",
        group: Group | None = None,
        data_url: str = "",
        variants: Mapping[str, Transform] | None = None,
        baseline: Where = "host",
        threads: int | None = None,
        memory_bytes: int = MEMORY_BYTES,
        spill: Path | str | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        """Open (rank 0: make or take over) the root.

        Args:
            root: where the versions live; made when absent.
            rank, world_size: this process, and how many write each version together.
            codec: of deltas: "auto"; "auto:max" for fewer bytes and more time, where engines hold whole
                tensors (those that hold slices follow from anchor to anchor then); or any codec's spec.
            anchor_every: versions from one anchor to the next.
            anchor_codec: of whole weights: "planes", "zstd", "raw"; or "safetensors" for plain files that
                any library opens, half as large again as with "planes".
            keep: newest versions to keep; older ones that no reader leases are deleted after each
                commit, in the background. None keeps all.
            run: a name for what is being trained; part of the objects' names.
            launch: what all ranks of this start of the job share and no earlier start had (a job id
                with its restart count). Needed when `world_size` > 1 and there is no `group`.
            group: the ranks, in place of `rank`, `world_size` and `launch`.
            data_url: where the versions live, when that is another place: `root` then holds a pointer to
                it, which readers follow. As readers reach it; may be a `region://` URL.
            variants: further forms of the same weights, by id, each made by a function of one tensor and
                published as a chain of its own; a reader asks for one by its id.
            baseline: where the copy of the tensors lies: "host", or "device", beside the tensors.
            threads: blocks that are encoded at once; the machine's cores when None.
            memory_bytes: of encoded weights that are kept in memory; what is more goes to local disk.
            spill: a directory for that; the system's temporary directory when None.
            timeout_s: how long ranks wait for one another.

        Raises:
            InvalidArgument: values that do not fit together. GroupFailed: a rank of `group` did not come.
                NewerFormat, IntegrityError, AccessDenied: of the root.
        """
        if anchor_every < 1:
            raise InvalidArgument(f"anchor_every={anchor_every}: at least 1")
        if anchor_codec != SAFETENSORS and codecs.codec(anchor_codec).needs_base:
            raise InvalidArgument(f"anchor_codec={anchor_codec!r} needs a base: an anchor has none")
        codecs.codec(codec)
        for variant in variants or {}:
            layout.check_name(variant, "variant")
        retention = Retention(keep_last=keep) if isinstance(keep, int) else keep
        settings = Settings(
            codec=codec,
            anchor_codec=anchor_codec,
            anchor_every=anchor_every,
            where=baseline,
            threads=threads or os.cpu_count() or 1,
            memory_bytes=memory_bytes,
            spill=spill,
            timeout_s=timeout_s,
        )
        if group is not None:
            rank, world_size = group.rank, group.size
            launch = decide(group, secrets.token_hex(16))
        self._group = group
        place = StoragePath(root)
        data = StoragePath(data_url) if data_url else place
        self._chains: list[Chain] = []
        self._transforms: list[Transform] = [_as_it_is]
        with ExitStack() as stack:
            for path in (data, *(data / layout.VARIANTS / name for name in variants or {})):
                found, session = enter(
                    path, rank=rank, ranks=world_size, run=run, launch=launch, timeout_s=timeout_s
                )
                stack.callback(session.close)
                first = not self._chains
                handshake = (
                    Handshake(place, data_url, found, run)
                    if data_url and first and rank == 0
                    else None
                )
                committed = (lambda version: None) if handshake is None else handshake.committed
                chain = Chain(found, session, settings, retention, committed=committed)
                stack.callback(chain.close)
                self._chains.append(chain)
            stack.pop_all()
        self._transforms += (variants or {}).values()
        self.root = self._chains[0].root

    def publish(
        self,
        step: int,
        tensors: Tensors | Iterable[tuple[str, Array | Shard]],
        *,
        full: bool = False,
    ) -> PublishReport:
        """Publish one version; returns when every changed block is encoded.

        From then on the tensors may change; upload and commit go on in the background. The next call waits
        for them, and raises what they raised: that version then does not exist, and this call may be
        repeated. `flush` waits for the commit.

        All ranks call this with the same step. Each passes what it holds: whole arrays, `Shard`s or
        DTensors; together they must cover every tensor exactly. What several ranks hold alike (replicas)
        is compared, and stored once.

        Args:
            step: the trainer's label; may repeat or fall.
            tensors: by name, or pairs of name and value: numpy (with ml_dtypes), torch (any device), any
                strides. All tensors of the version before; unchanged ones cost a comparison.
            full: publish whole weights that need no version before; needed where names, shapes or dtypes
                changed. They are copied first, so this returns before they are encoded.

        Raises:
            InvalidArgument: names, dtypes, shards that cannot be stored, or that are not those of the
                version before; a tensor is missing.
            AttemptAborted, WaitTimeout, ...: the version before was not committed.
            Fenced: another publisher has taken over.
            Whatever the store raises. In each case no version of this call appears.
        """
        pairs = tensors.items() if isinstance(tensors, Mapping) else tensors
        with self.version(step, full=full) as version:
            for name, value in pairs:
                version.add(name, value)
        return version.report

    def version(self, step: int, *, full: bool = False) -> VersionInHand:
        """The same, tensor by tensor: `with publisher.version(step) as version: version.add(name, value)`,
        in any order, as an optimizer produces them. Encoding and upload begin with the first.

        A tensor must not change between its `add` and the end of the `with`. An exception inside aborts
        the version. Arguments and errors as `publish`.
        """
        return VersionInHand(self._chains, self._transforms, step, full=full)

    def resume(self, tensors: Tensors | Iterable[tuple[str, Array | Shard]]) -> bool:
        """Continue the chain of the run before: these are the weights that the trainer starts from.

        Call it before the first `publish`, on all ranks, with the weights as they were restored. When
        their digests are those of the newest version, the next version is a delta to that; else, and
        without this call, it is a full one. Several ranks need a `group` to know of each other; without
        one, a rank that differs fails the first version, and the second is a full one.

        Returns:
            Whether the chain goes on.

        Raises:
            InvalidArgument: something was published already; as `publish`. IntegrityError, NewerFormat.
        """
        if any(chain.begun for chain in self._chains):
            raise InvalidArgument("resume comes before the first version", url=self.root.path.url)
        pairs = tensors.items() if isinstance(tensors, Mapping) else tensors
        collectors = [Collector() for _ in self._chains]
        for name, value in pairs:
            for collector, transform in zip(collectors, self._transforms, strict=True):
                for made, array in transform(name, value):
                    collector.add(made, array)
        goes_on = True
        for chain, collector in zip(self._chains, collectors, strict=True):
            mine = chain.resume(collector.inventory())
            if self._group is not None and "no" in self._group.gather("yes" if mine else "no"):
                chain.forget()
                mine = False
            goes_on = goes_on and mine
        return goes_on

    def flush(self) -> CommitReport | None:
        """Wait until the version in flight is committed and the baseline has followed.

        Returns:
            What became of the newest version (of the model itself, not its variants); None before the
            first.

        Raises:
            What the background raised: then the version does not exist, unless a note says so.
        """
        _each(self._chains, Chain.settle)
        return self._chains[0].last

    def end(self) -> None:
        """Say that no version will follow (rank 0), so that readers who wait get `RunEnded`."""
        _each(self._chains, Chain.end)

    def close(self) -> None:
        """Stop the background work: what is in flight is finished, an anchor under way too, for
        `timeout_s` at most. Idempotent. Raises what the version in flight raised."""
        _each(self._chains, Chain.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.end()
        finally:
            try:
                self.close()
            except WStoreError as failure:
                if error is None:
                    raise
                error.add_note(f"and the version in flight failed: {failure}")


def _as_it_is(name: str, value: Array | Shard) -> Iterable[tuple[str, Array | Shard]]:
    return ((name, value),)


def _each(chains: list[Chain], call: Callable[[Chain], None]) -> None:
    """Call for all, whatever one of them raises; then raise the first."""
    failures: list[BaseException] = []
    for chain in chains:
        try:
            call(chain)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)
    if failures:
        raise failures[0]
