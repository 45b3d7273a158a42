"""`model.safetensors.index.json`: which file holds which tensor, as the Hugging Face libraries read it.

Format: {"metadata": {"total_size": bytes of all tensors}, "weight_map": {tensor name: file name}}. Tied
names that are stored under another one do not appear, as in files those libraries write.
"""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING

import msgspec

from wstore.errors import WStoreError
from wstore_transports.versions.manifest import in_one_block

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wstore_transports.versions import Version
    from wstore_transports.versions.documents import Manifest

_log = logging.getLogger("wstore.checkpoint")

INDEX = "model.safetensors.index.json"


def index_json(weight_map: Mapping[str, str], total_size: int) -> bytes:
    """The document's bytes; deterministic."""
    document = {
        "metadata": {"total_size": total_size},
        "weight_map": dict(sorted(weight_map.items())),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def weight_map(manifest: Manifest, directory: str) -> dict[str, str] | None:
    """The map of a version whose files in `directory` hold exactly its tensors, each whole; else None.

    With shards, or with files shared from earlier versions (which may hold outdated tensors as well),
    a reader that takes all tensors of the files it finds would be misled, so there is no index then.
    """
    found: dict[str, str] = {}
    files = [ref.name.rpartition("/") for ref in manifest.objects]
    for name, tensor in manifest.tensors.items():
        if in_one_block(tensor):
            parent, _, file = files[tensor.blocks[0].object]
            if parent != directory:
                return None
            found[name] = file
            continue
        places = {manifest.objects[block.object].name for block in tensor.blocks}
        place = places.pop()
        parent, _, file = place.rpartition("/")
        starts = {tuple(block.origin) for block in tensor.blocks}
        if places or parent != directory or (0,) * len(tensor.shape) not in starts:
            return None
        if not _in_one_run(manifest, name):
            return None
        found[name] = file
    return found


def write_index(version: Version, manifest: Manifest) -> None:
    """Put the index beside a committed version's files, where that makes them readable in place.

    Not a part of the version: it says nothing that the manifest does not, and `download` makes its own.
    So where the store refuses it, that is logged, and the version stands.
    """
    directory = version.record.manifest.name.rpartition("/")[0]
    found = weight_map(manifest, directory)
    if found is not None:
        total = sum(block.nbytes for t in manifest.tensors.values() for block in t.blocks)
        try:
            version.object(f"{directory}/{INDEX}").write_file(index_json(found, total))
        except WStoreError as error:
            _log.warning("version %d has no index beside its files: %s", version.number, error)


def _in_one_run(manifest: Manifest, name: str) -> bool:
    """Whether the tensor's blocks lie one behind the other, as one entry of a file."""
    blocks = sorted(manifest.tensors[name].blocks, key=lambda block: block.offset)
    return all(
        a.offset + a.nbytes == b.offset and tuple(a.origin) < tuple(b.origin)
        for a, b in itertools.pairwise(blocks)
    )
