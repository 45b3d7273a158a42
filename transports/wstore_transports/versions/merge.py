"""From what the ranks say they wrote to the manifest of the whole version; pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from wstore.errors import InvalidArgument
from wstore_transports.versions import layout
from wstore_transports.versions.documents import Block, Manifest, ObjectRef, Tensor
from wstore_transports.versions.manifest import (
    check_layout,
    check_objects,
    check_tensor,
    digest_of,
    digest_of_model,
    stores_nothing,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wstore_transports.versions.documents import Done, Open, Spec


@dataclass(frozen=True, slots=True)
class Merged:
    """The manifest, and whether it names objects of the version that the attempt may share."""

    manifest: Manifest
    shares: bool


UNSTORED = "no rank stored it"
"""Ends the error about a box that ranks only vouch for."""

_Box = tuple[str, tuple[int, ...], tuple[int, ...]]


@dataclass(slots=True)
class _Gathered:
    objects: list[ObjectRef] = field(default_factory=list)
    index: dict[str, int] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    writer: dict[_Box, tuple[int, Block]] = field(default_factory=dict)
    replicas: list[tuple[_Box, int, Block]] = field(default_factory=list)


def merge(
    opened: Open, dones: Sequence[Done], *, directory: str, shared: Manifest | None
) -> Merged:
    """The manifest of the version that these ranks wrote together.

    The same box from several ranks (replicas) must be the same bytes; of those that store it the lowest
    rank's is taken. All other boxes must tile each tensor exactly, and the tensors be those of the inventory.

    Args:
        dones: one of each rank, by rank ascending.
        directory: the attempt's, relative to the root.
        shared: the manifest of version `opened.shares`.

    Raises:
        InvalidArgument, InvalidPath: what does not fit, naming the tensor and the ranks.
    """
    known = {ref.name: ref for ref in shared.objects} if shared else {}
    gathered = _Gathered()
    aliases: dict[str, str] = {}
    metadata: dict[str, str] = {}
    for done in dones:
        _check_rank(opened, done, directory, known)
        places = [_place(gathered, ref) for ref in done.objects]
        for name, tensor in done.tensors.items():
            _add(gathered, done.rank, name, tensor, places)
        _agree(aliases, done.aliases, done.rank, "alias")
        _agree(metadata, done.metadata, done.rank, "metadata")
    _check_replicas(gathered)
    tensors = {
        name: Tensor(
            dtype=tensor.dtype,
            shape=tensor.shape,
            blocks=tensor.blocks,
            digest=digest_of(tensor.blocks),
        )
        for name, tensor in sorted(gathered.tensors.items())
    }
    if opened.inventory is not None:
        _check_inventory(opened.inventory, tensors, aliases)
    manifest = Manifest(
        root=opened.root,
        run=opened.run,
        attempt=opened.attempt,
        step=opened.step,
        kind=opened.kind,
        base=opened.base,
        objects=gathered.objects,
        tensors=tensors,
        aliases=aliases,
        digest=digest_of_model(tensors, aliases),
        metadata=metadata,
    )
    check_layout(manifest)  # its digests were just made of the blocks'
    own = directory + "/"
    return Merged(manifest, any(not ref.name.startswith(own) for ref in gathered.objects))


def _check_rank(opened: Open, done: Done, directory: str, known: dict[str, ObjectRef]) -> None:
    if done.attempt != opened.attempt:
        raise InvalidArgument(f"rank {done.rank} is done with attempt {done.attempt}")
    check_objects(done.objects)
    prefix = f"{directory}/{layout.own_prefix(done.rank)}"
    for ref in done.objects:
        if not ref.name.startswith(prefix) and known.get(ref.name) != ref:
            raise InvalidArgument(
                f"rank {done.rank} lists object {ref.name!r}, which is neither its own nor one of "
                f"version {opened.shares} with the same size and hash"
            )
    for name, tensor in done.tensors.items():
        stored = [block for block in tensor.blocks if not _is_replica(block)]
        if len(stored) < len(tensor.blocks):
            tensor = Tensor(dtype=tensor.dtype, shape=tensor.shape, blocks=stored)
        check_tensor(name, tensor, done.objects, kind=opened.kind)


def _place(gathered: _Gathered, ref: ObjectRef) -> int:
    at = gathered.index.setdefault(ref.name, len(gathered.objects))
    if at == len(gathered.objects):
        gathered.objects.append(ref)
    return at


def _add(gathered: _Gathered, rank: int, name: str, tensor: Tensor, places: Sequence[int]) -> None:
    held = gathered.tensors.setdefault(
        name, Tensor(dtype=tensor.dtype, shape=tensor.shape, blocks=[])
    )
    if (held.dtype, held.shape) != (tensor.dtype, tensor.shape):
        raise InvalidArgument(
            f"tensor {name!r} is {tensor.dtype} {tensor.shape} on rank {rank} and "
            f"{held.dtype} {held.shape} on a lower one"
        )
    for block in tensor.blocks:
        box = (name, tuple(block.origin), tuple(block.extent))
        if _is_replica(block):
            gathered.replicas.append((box, rank, block))
            continue
        first = gathered.writer.setdefault(box, (rank, block))
        if first[1] is block:
            at = places[block.object] if block.object >= 0 else -1
            moved = at != block.object
            held.blocks.append(msgspec.structs.replace(block, object=at) if moved else block)
        elif first[1].digest != block.digest:
            raise _differ(box, first[0], rank)


def _is_replica(block: Block) -> bool:
    return block.encoding == "replica" and stores_nothing(block)


def _check_replicas(gathered: _Gathered) -> None:
    """What ranks hold and do not store must be stored by another one, with the same values."""
    for box, rank, block in gathered.replicas:
        writer = gathered.writer.get(box)
        if writer is None:
            raise InvalidArgument(
                f"tensor {box[0]!r}, box at {block.origin} of {block.extent}: rank {rank} holds a replica "
                f"of it, and {UNSTORED}"
            )
        if writer[1].digest != block.digest:
            raise _differ(box, writer[0], rank)


def _differ(box: _Box, first: int, second: int) -> InvalidArgument:
    name, origin, extent = box
    return InvalidArgument(
        f"tensor {name!r}, box at {list(origin)} of {list(extent)}: ranks {first} and {second} hold "
        "replicas of it with different bytes"
    )


def _agree(have: dict[str, str], new: dict[str, str], rank: int, what: str) -> None:
    for name, value in new.items():
        if have.setdefault(name, value) != value:
            raise InvalidArgument(
                f"{what} {name!r} is {value!r} on rank {rank} and {have[name]!r} on a lower one"
            )


def _check_inventory(
    inventory: dict[str, Spec], tensors: dict[str, Tensor], aliases: dict[str, str]
) -> None:
    names = tensors.keys() | aliases.keys()
    missing, extra = sorted(inventory.keys() - names), sorted(names - inventory.keys())
    if missing or extra:
        raise InvalidArgument(
            f"{len(missing)} tensors of the inventory are missing (first: {missing[:5]}), "
            f"{len(extra)} are not in it (first: {extra[:5]})"
        )
    for name, spec in inventory.items():
        held = tensors.get(aliases.get(name, name))
        if held is None or (held.dtype, held.shape) != (spec.dtype, spec.shape):
            found = f"{held.dtype} {held.shape}" if held else "absent"
            raise InvalidArgument(
                f"tensor {name!r} is {found}; the inventory says {spec.dtype} {spec.shape}"
            )


def check_tensors(base: Manifest, delta: Manifest) -> None:
    """Check that a delta holds the tensors of the version it applies to: names, dtypes, shapes, aliases.

    Raises:
        InvalidArgument: what differs.
    """
    missing = sorted(base.tensors.keys() - delta.tensors.keys())
    extra = sorted(delta.tensors.keys() - base.tensors.keys())
    if missing or extra or base.aliases != delta.aliases:
        raise InvalidArgument(
            f"a delta must hold the tensors of its base: missing {missing[:5]}, new {extra[:5]}"
            + ("" if base.aliases == delta.aliases else ", and other tied names")
        )
    for name, tensor in delta.tensors.items():
        before = base.tensors[name]
        if (before.dtype, before.shape) != (tensor.dtype, tensor.shape):
            raise InvalidArgument(
                f"tensor {name!r} is {tensor.dtype} {tensor.shape} in a delta, and {before.dtype} "
                f"{before.shape} in its base"
            )
