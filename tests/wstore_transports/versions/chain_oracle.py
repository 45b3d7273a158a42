"""The truth about a root of deltas and anchors, from the raw objects: the json module and a few rules of its
own, no code shared with what it judges.

A version's tensors are lists of numbers. Whole weights are objects that hold such a list, deltas objects that
hold pairs [index, value].
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wstore.stores.memory import MemoryStore

Content = dict[str, list[int]]
Raw = dict[str, Any]  # what json makes of a document


class ChainOracle:
    """One root, by its place in a store."""

    def __init__(self, store: MemoryStore, place: str) -> None:
        self._store = store
        self.place = place

    def raw(self, name: str) -> bytes | None:
        try:
            return bytes(self._store.read(f"{self.place}/{name}", 0, 1 << 20).data)
        except FileNotFoundError:
            return None

    def names(self, below: str = "") -> list[str]:
        start = f"{self.place}/"
        listed = self._store.list(f"{start}{below}", recursive=True)
        return [entry.key.removeprefix(start) for entry in listed]

    def log(self) -> list[Raw]:
        numbers = sorted(int(name[4:16]) for name in self.names("log/"))
        assert numbers == list(range(1, len(numbers) + 1)), "the log has a gap"
        return [json.loads(self.raw(f"log/{n:012d}.json") or b"") for n in numbers]

    def committed(self) -> dict[int, Raw]:
        epoch, found = 0, {}
        for record in self.log():
            if record["document"] == "log.fence":
                epoch = int(record["number"])
            elif record["document"] in ("log.weights", "log.anchor"):
                assert record["epoch"] == epoch, "a fenced publisher wrote"
            if record["document"] == "log.weights":
                found[int(record["number"])] = record
        return found

    def alive(self) -> dict[int, Raw]:
        versions: dict[int, Raw] = {}
        for record in self.log():
            if record["document"] == "log.weights":
                versions[int(record["number"])] = record
            elif record["document"] == "log.floor":
                keep = set(record["keep"])
                versions = {n: r for n, r in versions.items() if n >= record["floor"] or n in keep}
        return versions

    def anchors(self) -> dict[int, Raw]:
        """By version, the records that say where whole weights of versions alive are."""
        found, alive = {}, self.alive()
        for record in self.log():
            if record["document"] == "log.weights" and record["kind"] == "full":
                found[int(record["number"])] = record
            elif record["document"] == "log.anchor":
                assert record["version"] not in found, "two anchors of one version"
                found[int(record["version"])] = record
        return {number: record for number, record in found.items() if number in alive}

    def newest_anchor(self) -> tuple[int, int, int]:
        """The newest version with whole weights, the record that says so, and how many ever had."""
        newest = count = said = 0
        for record in self.log():
            if record["document"] == "log.anchor":
                assert record["version"] > newest, "an anchor of no use"
                newest, said, count = record["version"], record["number"], count + 1
            elif record["document"] == "log.weights" and record["kind"] == "full":
                newest, said, count = record["number"], record["number"], count + 1
        return newest, said, count

    def contents(self, number: int) -> list[Content]:
        """What a version alive holds, by each way that there is: its whole weights, and its delta to the
        version before, when that is alive."""
        found, alive = [], self.alive()
        anchor = self.anchors().get(number)
        if anchor is not None:
            found.append(self._whole(anchor))
        base = alive[number]["base"]
        if base in alive:
            found += [self._after(alive[number], content) for content in self.contents(base)[:1]]
        return found

    def _whole(self, record: Raw) -> Content:
        return {name: data for name, data, _ in self._objects(record)}

    def _after(self, record: Raw, base: Content) -> Content:
        content = {name: list(values) for name, values in base.items()}
        for name, changes, encoding in self._objects(record):
            for index, value in changes if encoding == "frame" else []:
                content[name][index] = value
        return content

    def _objects(self, record: Raw) -> list[tuple[str, Any, str]]:
        manifest = json.loads(self.raw(record["manifest"]["name"]) or b"")
        found = []
        for name, tensor in manifest["tensors"].items():
            (block,) = tensor["blocks"]
            data = None
            if block["object"] >= 0:
                raw = self.raw(manifest["objects"][block["object"]]["name"])
                assert raw is not None, "an object of a version is missing"
                data = json.loads(raw)
            found.append((name, data, block["encoding"]))
        return found
