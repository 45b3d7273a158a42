"""The truth about a root, from the raw objects: the json module and a few rules of its own, no code shared
with what it judges."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from wstore.stores.memory import MemoryStore

ROWS, COLUMNS = 4, 3
Content = dict[str, np.ndarray]
Raw = dict[str, Any]  # what json makes of a document


class Oracle:
    """The truth, from raw bytes."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def raw(self, name: str) -> bytes | None:
        try:
            return bytes(self._store.read(f"root/{name}", 0, 1 << 20).data)
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        return [entry.key[5:] for entry in self._store.list("root/", recursive=True)]

    def log(self) -> list[Raw]:
        numbers = sorted(int(n[4:16]) for n in self.names() if n.startswith("log/"))
        assert numbers == list(range(1, len(numbers) + 1)), "the log has a gap"
        return [json.loads(self.raw(f"log/{n:012d}.json") or b"") for n in numbers]

    def committed(self) -> dict[int, Raw]:
        epoch, found = 0, {}
        for record in self.log():
            kind = record["document"]
            if kind == "log.fence":
                epoch = int(record["number"])
            elif kind == "log.weights":
                assert record["epoch"] == epoch, "a fenced publisher committed"
                found[int(record["number"])] = record
        attempts = [record["attempt"] for record in found.values()]
        assert len(set(attempts)) == len(attempts), "an attempt was committed twice"
        return found

    def alive(self) -> dict[int, Raw]:
        versions = self.committed()
        for record in self.log():
            if record["document"] == "log.floor":
                keep, floor = set(record["keep"]), int(record["floor"])
                for number in list(versions):
                    if number < min(floor, int(record["number"])) and number not in keep:
                        del versions[number]
        return versions

    def content(self, record: Raw) -> Content:
        manifest = json.loads(self.raw(record["manifest"]["name"]) or b"")
        found: Content = {}
        for name, tensor in manifest["tensors"].items():
            rows: dict[int, np.ndarray] = {}
            for block in tensor["blocks"]:
                raw = self.raw(manifest["objects"][block["object"]]["name"])
                assert raw is not None, "an object of a version is missing"
                part = np.frombuffer(raw, "<i4").reshape(block["extent"])
                rows |= dict(enumerate(part, start=block["origin"][0]))
            found[name] = np.stack([rows[i] for i in range(ROWS)])
        return found
