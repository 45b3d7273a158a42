"""Plain safetensors directories and files, read as if they were a version.

The headers are untrusted and validated; the files carry no hashes, so nothing proves their values.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from wstore.errors import IntegrityError, NotFound
from wstore_transports.checkpoint.index import INDEX
from wstore_transports.checkpoint.safetensors_header import PREFIX, header_span, parse_header
from wstore_transports.checkpoint.snapshot import Snapshot
from wstore_transports.versions.documents import Block, Manifest, ObjectRef, Tensor
from wstore_transports.versions.parallel import in_parallel

if TYPE_CHECKING:
    from wstore.path import StoragePath
    from wstore_transports.checkpoint.safetensors_header import Header

MAX_INDEX_BYTES = 256 << 20
FIRST_READ = 256 << 10
"""Most headers fit in this, and so take one request."""


def open_foreign(path: StoragePath) -> Snapshot | None:
    """The content of a safetensors file, or of a directory of them; None where there is neither.

    A directory's `model.safetensors.index.json` decides which files count; without one all
    `*.safetensors` do.

    Raises:
        IntegrityError: a file or the index is not valid, a tensor is in two files, or the index names
            one that its file lacks.
    """
    if path.suffix == ".safetensors" and path.is_file():
        return _snapshot(path.parent, {path.name: read_header(path)}, None)
    try:
        index = (path / INDEX).read_range(0, MAX_INDEX_BYTES + 1)
    except NotFound:
        return _without_index(path)
    weight_map = _parse_index(index, (path / INDEX).url)
    files = sorted(set(weight_map.values()))
    return _snapshot(path, _headers(path, files), weight_map)


def read_header(path: StoragePath) -> Header:
    """A safetensors file's table of contents, with one request where it is small.

    Raises:
        IntegrityError: not a valid safetensors file. NotFound.
    """
    size = path.stat().size
    data = path.read_range(0, FIRST_READ)
    span = header_span(data[:PREFIX], file_size=size, url=path.url)
    if span > len(data):
        data += path.read_range(len(data), span - len(data))
    return parse_header(data, file_size=size, url=path.url)


def _without_index(path: StoragePath) -> Snapshot | None:
    if not path.is_dir():
        return None
    files = [child.name for child in path.iterdir() if child.suffix == ".safetensors"]
    return _snapshot(path, _headers(path, files), None) if files else None


def _headers(path: StoragePath, files: list[str]) -> dict[str, Header]:
    headers = in_parallel(lambda file: read_header(path / file), files)
    return dict(zip(files, headers, strict=True))


def _parse_index(data: bytes, url: str) -> dict[str, str]:
    if len(data) > MAX_INDEX_BYTES:
        raise IntegrityError(f"larger than the {MAX_INDEX_BYTES} bytes an index may have", url=url)
    try:
        found = json.loads(data)["weight_map"]
        pairs = [(str(name), file) for name, file in found.items()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise IntegrityError(f"not a safetensors index: {error!r}", url=url) from error
    for name, file in pairs:
        if (
            not isinstance(file, str)
            or not file
            or file.startswith(".")
            or set(file) & set("/\\\0")
        ):
            raise IntegrityError(f"tensor {name!r}: {file!r} is no file of this directory", url=url)
    return dict(pairs)


def _snapshot(
    place: StoragePath, headers: dict[str, Header], weight_map: dict[str, str] | None
) -> Snapshot:
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    for number, (file, header) in enumerate(headers.items()):
        for name, entry in header.tensors.items():
            if weight_map is not None and weight_map.get(name) != file:
                continue
            if name in tensors:
                raise IntegrityError(f"tensor {name!r} is in two files", url=(place / file).url)
            block = Block(
                origin=[0] * len(entry.shape),
                extent=list(entry.shape),
                object=number,
                offset=entry.offset,
                nbytes=entry.nbytes,
            )
            tensors[name] = Tensor(dtype=entry.dtype.name, shape=list(entry.shape), blocks=[block])
        aliases |= {tied: name for tied, name in header.metadata.items() if name in tensors}
    lacking = sorted(set(weight_map or ()) - set(tensors))
    if lacking:
        raise IntegrityError(
            f"the index names tensors that no file holds: {lacking[:10]}", url=(place / INDEX).url
        )
    manifest = Manifest(
        root="0" * 32,
        run="foreign",
        attempt="0." + "0" * 16,
        step=0,
        kind="full",
        objects=[ObjectRef(name=file, size=header.size) for file, header in headers.items()],
        tensors=tensors,
        aliases={tied: name for tied, name in aliases.items() if tied not in tensors},
    )
    return Snapshot(manifest, place, None)
