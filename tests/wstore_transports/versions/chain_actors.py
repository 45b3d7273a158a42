"""A trainer and readers of tiny chains: full versions, deltas, anchors; every write may fail.

Weights are lists of numbers as JSON, deltas pairs [index, value]: what they mean, `chain_oracle` knows by
itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from wstore_codecs.digest import digest_block
from wstore_transports.versions import Block, ObjectRef, Tensor
from wstore_transports.versions.sealing import hash_of

if TYPE_CHECKING:
    from tests.wstore_transports.versions.chain_oracle import Content
    from tests.wstore_transports.versions.troubled_store import TroubledStore
    from wstore_transports.delta.route import Route
    from wstore_transports.versions import (
        Attempt,
        Lease,
        Manifest,
        PublishSession,
        Root,
        Version,
    )
    from wstore_transports.versions.anchoring import Anchoring

SIZE = 3


@dataclass
class Chain:
    """One root as a trainer sees it."""

    session: PublishSession
    newest: Version | None = None
    attempt: Attempt | None = None
    content: Content = field(default_factory=dict)
    anchoring: Anchoring | None = None
    """One whose parts are written, and that is not in the log yet as far as is known."""


@dataclass
class Process:
    """A trainer: a chain for the model, one for its variant."""

    store: TroubledStore
    chains: list[Chain] = field(default_factory=list)


@dataclass
class Reader:
    """An engine: what it holds, and the route that it has chosen."""

    root: Root
    lease: Lease
    held: int = 0
    content: Content = field(default_factory=dict)
    route: Route | None = None


def write_version(attempt: Attempt, content: Content, base: Content) -> None:
    """All of the version, or what changed since the base."""
    delta = attempt.opened.kind == "delta"
    parts: dict[str, list[list[int]] | list[int] | None] = {}
    for name, values in content.items():
        changes = [
            [i, value] for i, value in enumerate(values) if not delta or base[name][i] != value
        ]
        parts[name] = (changes or None) if delta else values
    attempt.done(*_written(attempt, parts, content, "p"))


def write_anchor(anchoring: Anchoring, content: Content) -> None:
    anchoring.done(*_written(anchoring, dict(content), content, "a"))


def _written(
    to: Attempt | Anchoring,
    parts: dict[str, list[list[int]] | list[int] | None],
    content: Content,
    tail: str,
) -> tuple[list[ObjectRef], dict[str, Tensor]]:
    objects: list[ObjectRef] = []
    tensors: dict[str, Tensor] = {}
    for name, part in parts.items():
        data = b"" if part is None else json.dumps(part).encode()
        if part is not None:
            own = f"r00000.{tail}-{name}"
            to.path(own).write_file(data)
            objects.append(ObjectRef(name=to.object_name(own), size=len(data), hash=hash_of(data)))
        block = Block(
            origin=[0],
            extent=[SIZE],
            object=-1 if part is None else len(objects) - 1,
            offset=0,
            nbytes=len(data),
            encoding="same" if part is None else "frame",
            hash="" if part is None else hash_of(data),
            digest=digest_block(np.array(content[name], np.int32), (SIZE,), (0,)).hex,
        )
        tensors[name] = Tensor(dtype="I32", shape=[SIZE], blocks=[block])
    return objects, tensors


def read_route(route: Route, held: Content) -> Content:
    """What an engine gets, through the public names only."""
    content = {name: list(values) for name, values in held.items()}
    if route.whole is not None:
        version = route.whole.version
        content = dict(_objects(version, version.whole(route.whole.anchor)))
    for version in route.deltas:
        for name, changes in _objects(version, version.manifest()):
            for index, value in changes:
                content[name][index] = value
    return content


def _objects(version: Version, manifest: Manifest) -> list[tuple[str, list]]:  # type: ignore[type-arg]
    found = []
    for name, tensor in manifest.tensors.items():
        for block in tensor.blocks:
            if block.object >= 0:
                data = version.object(manifest.objects[block.object].name).read_bytes()
                assert hash_of(data) == block.hash
                found.append((name, json.loads(data)))
    return found
