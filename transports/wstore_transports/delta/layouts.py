"""What engines ask for: the boxes that each of them holds, so that blocks are cut at their bounds."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from wstore.errors import NotFound, WStoreError
from wstore_transports.versions import layout
from wstore_transports.versions.documents import Layout
from wstore_transports.versions.parallel import in_parallel
from wstore_transports.versions.sealing import read_document, seal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from wstore.path import StoragePath
    from wstore_codecs.block import Block
    from wstore_transports.versions import PublishSession, Root, Version

_log = logging.getLogger("wstore.delta")

MAX_CUTS = 64
"""Positions in one dimension of a tensor; more of them would make more frames than they save reads."""


class Registration:
    """What one engine holds, said to each publisher in turn.

    Args:
        engine: its name.
        boxes: by stored name.

    Raises:
        InvalidArgument: a bad name.
    """

    def __init__(self, engine: str, boxes: Mapping[str, Iterable[Block]]) -> None:
        self._engine = layout.check_name(engine, "engine")
        self._tensors = {
            name: [[list(box.origin), list(box.extent)] for box in held]
            for name, held in boxes.items()
        }
        self._told: tuple[str, int] | None = None

    def renew(self, version: Version) -> None:
        """Tell the publisher of a version, unless it was told. Raises the store's errors."""
        run, epoch = version.run, version.record.epoch
        if self._told == (run, epoch):
            return
        document = Layout(
            root=version.place.root_id,
            run=run,
            engine=self._engine,
            epoch=epoch,
            tensors=self._tensors,
        )
        (version.place.path / layout.layout_name(run, self._engine)).write_file(seal(document))
        self._told = run, epoch

    def renew_quietly(self, version: Version) -> None:
        """The same; a failure is logged, and tried again after the next version."""
        try:
            self.renew(version)
        except WStoreError as error:
            _log.warning("the publisher was not told what this engine holds: %s", error)


def asked_cuts(root: Root, session: PublishSession) -> dict[str, list[list[int]]]:
    """Where the engines of this session want no block to reach across, by tensor and dimension.

    What cannot be read is logged and left out: it costs the engines bytes, never correctness. Layouts for
    other epochs are of earlier runs, whose engines are gone.
    """
    directory = root.path / layout.LAYOUTS / session.run
    try:
        paths = [path for path in directory.iterdir() if path.suffix == ".json"]
    except NotFound:
        return {}
    except WStoreError as error:
        _log.warning("the engines' layouts were not read: %s", error)
        return {}
    found: dict[str, list[set[int]]] = {}
    for document in in_parallel(lambda path: _read(path, root.root_id), paths):
        if document is not None and document.epoch == session.epoch:
            _add(found, document)
    return {
        name: [sorted(cuts)[:MAX_CUTS] for cuts in axes]
        for name, axes in sorted(found.items())
        if any(axes)
    }


def _read(path: StoragePath, root_id: str) -> Layout | None:
    try:
        return read_document(Layout, path, root=root_id)
    except WStoreError as error:
        _log.warning("an engine's layout is left out: %s", error)
        return None


def _add(found: dict[str, list[set[int]]], document: Layout) -> None:
    for name, boxes in document.tensors.items():
        for box in boxes:
            if len(box) != 2 or len(box[0]) != len(box[1]):
                _log.warning("engine %s: %r is no box of tensor %r", document.engine, box, name)
                continue
            axes = found.setdefault(name, [set() for _ in box[0]])
            if len(axes) != len(box[0]):
                _log.warning("engine %s: tensor %r has other dimensions", document.engine, name)
                continue
            for axis, (start, length) in enumerate(zip(*box, strict=True)):
                axes[axis].update(at for at in (start, start + length) if at)
