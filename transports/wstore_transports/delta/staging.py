"""Brings what a route needs to this host, and proves it; the engine goes on serving meanwhile."""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

import xxhash

from wstore.errors import IntegrityError, NotFound
from wstore.transfer import run_parallel
from wstore_codecs.apply import apply_fresh
from wstore_codecs.block import Block
from wstore_codecs.frame import Frame
from wstore_codecs.slices import slice_proof
from wstore_codecs.targets import Held
from wstore_transports.checkpoint.fetch import Fetcher, plan
from wstore_transports.checkpoint.targets import allocate
from wstore_transports.delta.cached_copies import CachedCopies
from wstore_transports.delta.staged import KeptFrame, Loaded, Staged, drop_all, segments_of
from wstore_transports.delta.wanted import check_same, wanted_frames
from wstore_transports.versions.parallel import in_parallel

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence

    from wstore.path import StoragePath
    from wstore_codecs.cutting import Unit
    from wstore_codecs.slices import SliceProof
    from wstore_codecs.tensors import Array
    from wstore_transports.checkpoint.targets import Framework
    from wstore_transports.delta.ahead import Ahead, PartAhead
    from wstore_transports.delta.origin import Origin
    from wstore_transports.delta.route import Route, Whole
    from wstore_transports.delta.shared_cache import SharedCache
    from wstore_transports.delta.spool import Spool
    from wstore_transports.delta.wanted import Holding, WantedFrame
    from wstore_transports.versions import Version
    from wstore_transports.versions.copies import Copies
    from wstore_transports.versions.documents import Manifest, ObjectRef

_log = logging.getLogger("wstore.delta")

REQUESTS = 8
"""Objects that are read at once."""

WHOLE_FROM = 0.9
"""Share of an object that must be wanted for it to be read whole."""

LOAD_BUDGET = 256 << 20
"""Bytes that loading whole weights may hold beside them."""


class Stager:
    """Stages routes of one origin.

    Args:
        spool: where encoded frames are kept.
        cache: through which this host's engines read; None: each for itself.
        threads: blocks that are decoded at once, where weights are loaded whole.
    """

    def __init__(
        self, origin: Origin, spool: Spool, *, cache: SharedCache | None, threads: int
    ) -> None:
        self._origin = origin
        self._spool = spool
        self._cache = cache
        self._threads = threads

    def stage(
        self,
        route: Route,
        holding: Holding,
        known: Manifest | None,
        *,
        framework: Framework,
        ahead: Ahead | None,
        cancel: threading.Event | None,
    ) -> Staged:
        """Read all that a route needs.

        Args:
            ahead: what was read of it already.
            known: the manifest of the version that is held, to check the first delta against.
            framework: of memory for whole weights.

        Raises:
            VersionGone: retention was faster. IntegrityError: naming tensor and URL. NoSpace, Cancelled;
                the store's errors. Nothing is held then.
        """
        started = time.monotonic()
        with ThreadPoolExecutor(1, "wstore-load") as pool:
            whole = route.whole
            loading = (
                None
                if whole is None
                else pool.submit(self._load, whole, holding, framework, cancel)
            )
            kept: list[list[KeptFrame]] = []
            try:
                before = known if whole is None else None
                manifest, fetched = self._fetch_deltas(route, holding, before, kept, ahead, cancel)
                if loading is not None and route.deltas:
                    oldest = route.deltas[0]
                    _check_follows(oldest, loading.result()[0], self._origin.manifest(oldest))
                if loading is None or whole is None:
                    if manifest is None:
                        raise AssertionError("a route without a step")
                    staged = Staged(route, manifest, holding, None, fetched, kept)
                else:
                    staged = self._follow(route, holding, loading.result(), manifest, kept)
                    staged.fetched_nbytes = fetched + whole.nbytes
            except BaseException:
                drop_all(kept)
                raise
        staged.seconds["fetch"] = time.monotonic() - started
        return staged

    def _follow(
        self,
        route: Route,
        holding: Holding,
        loaded: tuple[Manifest, dict[str, Array]],
        manifest: Manifest | None,
        kept: list[list[KeptFrame]],
    ) -> Staged:
        """Whole weights, brought to the target by the deltas."""
        first, arrays = loaded
        slices: dict[Unit, SliceProof] = {}
        state = _state(first, holding, arrays)
        for frames in segments_of(kept):
            slices = missing_slices(frames, state, slices)
            apply_fresh(frames, state, slices=slices, threads=self._threads)
        drop_all(kept)
        return Staged(route, manifest or first, holding, Loaded(arrays, slices), 0, [])

    def _load(
        self,
        whole: Whole,
        holding: Holding,
        framework: Framework,
        cancel: threading.Event | None,
    ) -> tuple[Manifest, dict[str, Array]]:
        manifest = self._origin.whole(whole.version, whole.anchor)
        targets = []
        for name, tensor in manifest.tensors.items():
            box = holding.get(name, Block.whole(name, tensor.shape))
            if box is not None:
                targets.append(allocate(name, tensor, box, framework))
        objects = [self._copies(whole.version, ref) for ref in manifest.objects]
        fetcher = Fetcher(objects, verify=True, budget=LOAD_BUDGET, progress=None, cancel=cancel)
        try:
            fetcher.read(plan(targets))
        except NotFound as error:
            raise self._origin.explained(whole.version, error) from error
        return manifest, {target.name: target.array for target in targets}

    def _fetch_deltas(
        self,
        route: Route,
        holding: Holding,
        before: Manifest | None,
        kept: list[list[KeptFrame]],
        ahead: Ahead | None,
        cancel: threading.Event | None,
    ) -> tuple[Manifest | None, int]:
        """The frames of all deltas, oldest first, into `kept`; the last manifest, and bytes read."""
        manifests = in_parallel(self._origin.manifest, route.deltas)
        jobs: list[_Job] = []
        for version, manifest in zip(route.deltas, manifests, strict=True):
            if before is not None:
                _check_follows(version, before, manifest)
            before = manifest
            jobs += _jobs(version, manifest, holding)
        results: list[list[KeptFrame]] = [[] for _ in jobs]

        def run(index: int) -> None:
            results[index] = self._read(jobs[index], ahead, cancel)

        try:
            run_parallel(len(jobs), run, concurrency=REQUESTS, cancel=cancel)
        finally:
            for version in route.deltas:
                found = (r for job, r in zip(jobs, results, strict=True) if job.version is version)
                kept.append([one for result in found for one in result])
        return (manifests[-1] if manifests else None), sum(job.nbytes for job in jobs)

    def _read(
        self, job: _Job, ahead: Ahead | None, cancel: threading.Event | None
    ) -> list[KeptFrame]:
        ref = job.ref
        part = None if ahead is None else ahead.part(ref.name)
        found = {} if part is None else _from_ahead(job, part)
        missing = [frame for frame in job.frames if frame.offset not in found]
        if missing:

            def use(path: StoragePath) -> Mapping[int, tuple[memoryview, Frame]]:
                return _read_frames(job, missing, path, cancel)

            try:
                found |= self._copies(job.version, ref).read(use, cancel)
            except NotFound as error:
                raise self._origin.explained(job.version, error) from error
        kept: list[KeptFrame] = []
        try:
            for frame in job.frames:
                kept.append(KeptFrame(self._spool, *found[frame.offset]))
        except BaseException:
            drop_all([kept])
            raise
        return kept

    def _copies(self, version: Version, ref: ObjectRef) -> Copies:
        copies = self._origin.copies(version, ref.name)
        if self._cache is None:
            return copies
        return CachedCopies(self._cache, version.place.root_id, ref, copies)


def _read_frames(
    job: _Job,
    wanted: Sequence[WantedFrame],
    path: StoragePath,
    cancel: threading.Event | None,
) -> dict[int, tuple[memoryview, Frame]]:
    """Frames of one copy of a job's object, proven, by offset.

    An object that is wanted almost whole is read whole, and one hash proves all its frames. Raises
    IntegrityError.
    """
    size = job.ref.size
    if sum(frame.nbytes for frame in wanted) >= WHOLE_FROM * size:
        (data,) = path.read_ranges([(0, size)], cancel=cancel)
        pieces = [(0, data)]
        trusted = xxhash.xxh3_128_hexdigest(data) == job.ref.hash
    else:
        replies = path.read_ranges([(one.offset, one.nbytes) for one in wanted], cancel=cancel)
        pieces = [(frame.offset, data) for frame, data in zip(wanted, replies, strict=True)]
        trusted = False
    found = {}
    for frame in wanted:
        data = _cut(frame, pieces)
        if not trusted:
            check_hash(frame, data, path.url)
        found[frame.offset] = data, check_frame(frame, data, job.manifest, path.url)
    return found


def _from_ahead(job: _Job, part: PartAhead) -> dict[int, tuple[memoryview, Frame]]:
    """The frames of a job that were read already, proven, by offset; what is not sound is read again."""
    url, trusted = job.version.object(job.ref.name).url, part.proves(job.ref)
    found = {}
    try:
        pieces = part.views()
        for frame in job.frames:
            data = _cut(frame, pieces)
            if len(data) < frame.nbytes:
                continue  # it was not read
            if not trusted:
                check_hash(frame, data, url)
            ready = part.ready.get(frame.offset)
            found[frame.offset] = data, check_frame(frame, data, job.manifest, url, ready)
    except IntegrityError as error:
        _log.debug("what was read ahead is not used from here on: %s", error)
    return found


def _cut(frame: WantedFrame, pieces: Sequence[tuple[int, memoryview]]) -> memoryview:
    """The frame's bytes from pieces of its object, which ascend; fewer where they are not all there."""
    index = bisect_right(pieces, frame.offset, key=itemgetter(0)) - 1
    if index < 0:
        return memoryview(b"")
    start, piece = pieces[index]
    return piece[frame.offset - start :][: frame.nbytes]


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """Frames of one object of one version."""

    version: Version
    manifest: Manifest
    frames: tuple[WantedFrame, ...]

    @property
    def ref(self) -> ObjectRef:
        return self.manifest.objects[self.frames[0].object]

    @property
    def nbytes(self) -> int:
        return sum(frame.nbytes for frame in self.frames)


def _jobs(version: Version, manifest: Manifest, holding: Holding) -> list[_Job]:
    by_object: dict[int, list[WantedFrame]] = {}
    for frame in wanted_frames(manifest, holding):
        by_object.setdefault(frame.object, []).append(frame)
    return [_Job(version, manifest, tuple(frames)) for frames in by_object.values()]


def _check_follows(version: Version, before: Manifest, manifest: Manifest) -> None:
    try:
        check_same(before, manifest)
    except IntegrityError as error:
        error.url = version.object(version.record.manifest.name).url
        raise


def check_hash(wanted: WantedFrame, data: memoryview, url: str) -> memoryview:
    """`data` itself. Raises IntegrityError unless its hash is the one that a manifest gives."""
    if len(data) != wanted.nbytes or xxhash.xxh3_128_hexdigest(data) != wanted.hash:
        raise IntegrityError(
            f"tensor {wanted.blocks[0][0]!r}: bytes {wanted.offset} to {wanted.offset + wanted.nbytes} "
            "do not have the hash that the manifest gives",
            url=url,
        )
    return data


def check_frame(
    wanted: WantedFrame,
    data: memoryview,
    manifest: Manifest,
    url: str,
    ready: Frame | None = None,
) -> Frame:
    """The frame that these bytes, which are proven, are. Raises IntegrityError unless it is what a manifest
    says.

    Args:
        ready: what was parsed of these very bytes already.
    """
    try:
        frame = ready or Frame.parse_proven(data)
        wanted.check(frame, manifest)
    except IntegrityError as error:
        error.url = url
        raise
    return frame


def missing_slices(
    frames: Sequence[Frame],
    state: Mapping[str, Array | Held | None],
    known: Mapping[Unit, SliceProof],
) -> dict[Unit, SliceProof]:
    """Proofs of the units that a state holds in part and nobody has a proof of yet, with the known ones; but
    for those of units that were cut in another way."""
    units = {frame.header.unit for frame in frames}
    proofs = {unit: proof for unit, proof in known.items() if unit in units}
    proofs.update(_apart(known, units) if len(proofs) < len(known) else {})
    for frame in frames:
        header = frame.header
        if header.base is None or header.unit in proofs:
            continue
        members = header.unit.members
        whole = all(_held_whole(state.get(member.block.tensor), member.block) for member in members)
        if not whole:
            proofs[header.unit] = slice_proof(header.unit, state, header.base)
    return proofs


def _apart(known: Mapping[Unit, SliceProof], units: set[Unit]) -> dict[Unit, SliceProof]:
    """The proofs of units that have nothing in common with these."""
    cut: dict[str, list[Block]] = {}
    for unit in units:
        for member in unit.members:
            cut.setdefault(member.block.tensor, []).append(member.block)
    return {
        unit: proof
        for unit, proof in known.items()
        if not any(
            member.block.clip(block) is not None
            for member in unit.members
            for block in cut.get(member.block.tensor, ())
        )
    }


def _held_whole(entry: Array | Held | None, block: Block) -> bool:
    if entry is None:
        return False
    if not isinstance(entry, Held) or tuple(entry.array.shape) == entry.shape:
        return True
    have = Block(block.tensor, tuple(entry.origin), tuple(entry.array.shape))
    return have.contains(block)


def _state(
    manifest: Manifest, holding: Holding, arrays: Mapping[str, Array]
) -> dict[str, Array | Held | None]:
    state: dict[str, Array | Held | None] = {}
    for name, tensor in manifest.tensors.items():
        box = holding.get(name, Block.whole(name, tensor.shape))
        state[name] = None if box is None else Held(arrays[name], tuple(tensor.shape), box.origin)
    return state
