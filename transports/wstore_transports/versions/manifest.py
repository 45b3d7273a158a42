"""Manifests: reading and checking them, and making one from what the ranks wrote."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from wstore.errors import IntegrityError, InvalidArgument, InvalidPath
from wstore_codecs import block as boxes
from wstore_codecs.digest import TensorDigest, combine, model_digest
from wstore_codecs.dtypes import dtype
from wstore_transports.versions.documents import Block, Manifest, ObjectRef, Tensor
from wstore_transports.versions.layout import check_object_name
from wstore_transports.versions.sealing import hash_of, unseal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from wstore_transports.versions.documents import Anchor, Kind, Weights
    from wstore_transports.versions.place import Place


def read_manifest(place: Place, record: Weights) -> Manifest:
    """The manifest that a record names: size, hash, root and contents are checked.

    Raises:
        NotFound: it is gone. IntegrityError, NewerFormat.
    """
    return _read(place, record.manifest, record, kind=record.kind, base=record.base)


def read_anchor(place: Place, record: Weights, anchor: Anchor) -> Manifest:
    """The manifest of the whole weights of version `record`, a delta. Raises as `read_manifest`."""
    return _read(place, anchor.manifest, record, kind="full", base=0)


def _read(place: Place, ref: ObjectRef, record: Weights, *, kind: Kind, base: int) -> Manifest:
    path = place.object(ref.name)
    if ref.size > Manifest.max_bytes:
        raise IntegrityError(f"a manifest of {ref.size} bytes is over the limit", url=path.url)
    # One byte more than the record says, so that a longer object is seen with the same request.
    data = path.store.read(path.key, 0, ref.size + 1).data
    if len(data) != ref.size or hash_of(data) != ref.hash:
        raise IntegrityError(
            f"this manifest was changed: it is not the one that the log names for version {record.number}",
            url=path.url,
        )
    manifest = unseal(Manifest, data, url=path.url, root=place.root_id)
    expected = {
        "run": record.run,
        "attempt": record.attempt,
        "step": record.step,
        "kind": kind,
        "base": base,
        "digest": record.digest,
    }
    for field, theirs in expected.items():
        mine = getattr(manifest, field)
        if mine != theirs:
            raise IntegrityError(
                f"field `{field}` is {mine!r}; the record has {theirs!r}", url=path.url
            )
    try:
        check_manifest(manifest)
    except (InvalidArgument, InvalidPath) as error:
        raise IntegrityError(f"not a valid manifest: {error}", url=path.url) from error
    return manifest


def check_manifest(manifest: Manifest) -> None:
    """Prove that a manifest describes whole tensors, stays inside its objects, and adds up.

    Raises:
        InvalidArgument, InvalidPath: naming the tensor or object.
    """
    check_layout(manifest)
    for name, tensor in manifest.tensors.items():
        if tensor.digest != digest_of(tensor.blocks):
            raise InvalidArgument(f"tensor {name!r}: its digest is not the sum of its blocks'")
    if manifest.digest != digest_of_model(manifest.tensors, manifest.aliases):
        raise InvalidArgument("the model digest is not that of the tensors")


def check_layout(manifest: Manifest) -> None:
    """What `check_manifest` proves, but for the digests of tensors and model.

    Raises:
        InvalidArgument, InvalidPath: naming the tensor or object.
    """
    check_objects(manifest.objects)
    for name, tensor in manifest.tensors.items():
        check_tensor(name, tensor, manifest.objects, kind=manifest.kind)
        if not in_one_block(tensor):
            cover = (stored_box(name, block) for block in tensor.blocks)
            boxes.check_cover(tensor.shape, cover, tensor=name)
    check_aliases(manifest.tensors, manifest.aliases)


def check_objects(objects: Iterable[ObjectRef]) -> None:
    """Names stay inside the root, none comes twice, hashes are there. Raises InvalidArgument, InvalidPath."""
    seen: set[str] = set()
    for ref in objects:
        check_object_name(ref.name)
        if ref.name in seen:
            raise InvalidArgument(f"object {ref.name!r} is listed twice")
        if not ref.hash:
            raise InvalidArgument(f"object {ref.name!r} has no hash")
        seen.add(ref.name)


def check_tensor(
    name: str,
    tensor: Tensor,
    objects: list[ObjectRef],
    *,
    kind: str,
) -> None:
    """Each block is a box of the tensor, and its bytes lie inside its object. Raises InvalidArgument."""
    itemsize = dtype(tensor.dtype).itemsize
    fits = in_one_block(tensor)
    for block in tensor.blocks:
        if not fits and not stored_box(name, block).within(tensor.shape):
            raise InvalidArgument(
                f"{stored_box(name, block)} is not a box of tensor {name!r}, shape {tensor.shape}"
            )
        trouble = _trouble(block, itemsize, objects, kind=kind)
        if trouble:
            raise InvalidArgument(f"{stored_box(name, block)} {trouble}")


def in_one_block(tensor: Tensor) -> bool:
    """Whether one block is all of the tensor: then nothing can overlap or be missing."""
    if len(tensor.blocks) != 1:
        return False
    block = tensor.blocks[0]
    return (
        block.extent == tensor.shape
        and len(block.origin) == len(tensor.shape)
        and not any(block.origin)
    )


def _trouble(block: Block, itemsize: int, objects: list[ObjectRef], *, kind: str) -> str:
    """What is wrong with where a block is stored; "" when nothing is."""
    if not block.digest:
        return "has no digest"
    if block.encoding == "replica":
        return 'says "replica", which belongs in a done marker'
    if block.encoding == "same":
        return (
            ""
            if kind == "delta" and stores_nothing(block)
            else 'says "same", which belongs in a delta and stores nothing'
        )
    if not 0 <= block.object < len(objects):
        return f"lies in object {block.object} of {len(objects)}"
    if block.offset + block.nbytes > objects[block.object].size:
        return f"leaves its object {objects[block.object].name!r}"
    if block.encoding == "flat" and block.nbytes != math.prod(block.extent) * itemsize:
        return f"has {block.nbytes} bytes, of elements of {itemsize}"
    return "has no hash" if not block.hash else ""


def stores_nothing(block: Block) -> bool:
    """Whether the block names no bytes: as "same" and "replica" must."""
    return (block.object, block.offset, block.nbytes) == (-1, 0, 0)


def stored_box(name: str, block: Block) -> boxes.Block:
    """The box of a tensor that a document's block is."""
    return boxes.Block(name, tuple(block.origin), tuple(block.extent))


def check_aliases(tensors: Mapping[str, Tensor], aliases: Mapping[str, str]) -> None:
    """Each alias is a new name of a tensor that is there. Raises InvalidArgument."""
    for alias, name in aliases.items():
        if alias in tensors or name not in tensors:
            raise InvalidArgument(
                f"alias {alias!r} of {name!r}: it must name another, stored tensor"
            )


def digest_of(blocks: Sequence[Block]) -> str:
    """The digest of disjoint blocks together, as text."""
    if len(blocks) == 1:
        return blocks[0].digest
    return combine(TensorDigest.from_hex(block.digest) for block in blocks).hex


def digest_of_model(tensors: Mapping[str, Tensor], aliases: Mapping[str, str]) -> str:
    """The model digest over all names: stored ones, and aliases as what they stand for."""
    names = [(name, name) for name in tensors] + list(aliases.items())
    return model_digest(
        (name, held.dtype, held.shape, TensorDigest.from_hex(held.digest))
        for name, held in ((name, tensors[stored]) for name, stored in names)
    )
