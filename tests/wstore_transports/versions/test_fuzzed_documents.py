"""Damaged, forged and absurd documents in a root: an error that names the object, never another exception,
and never a wrong success."""

from __future__ import annotations

import json
import logging
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xxhash

from wstore.errors import WStoreError
from wstore.path import StoragePath
from wstore.stores.memory import MemoryStore
from wstore_transports.checkpoint import CheckpointReader, CheckpointWriter, weights_digest
from wstore_transports.versions import Retention, Root, collect, create, plan_gc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wstore_transports.versions import Attempt

    Write = Callable[[Attempt, int], None]

DEEP = 20_000
ABSURD: list[Any] = [
    None,
    True,
    -1,
    2**53,
    2**64,
    1e308,
    "",
    "x" * 5000,
    [],
    {},
    "..",
    "/etc",
    "\0",
]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(create, "_PAUSES_S", (0.0, 0.0, 0.0))
    logging.getLogger("wstore_transports").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("wstore_transports").setLevel(logging.NOTSET)


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Cut, flipped or lengthened bytes; never `data` itself."""
    if not data:
        return b"\xff"
    at = chance.randrange(len(data))
    match chance.randrange(4):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]
        case 2:
            return data[:at] + chance.randbytes(chance.randrange(1, 50)) + data[at:]
        case _:
            return chance.choice([b"", b"null", b"[]", b"{", b"\xff\xfe", b"[" * DEEP, b"9" * 9000])


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to each value inside a JSON value."""
    if isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*path, key)
            yield from places(inner, (*path, key))


def forged(data: bytes, chance: random.Random) -> bytes:
    """One member absurd or gone, with a `check` that fits: what a faulty writer may produce."""
    value = json.loads(data)
    value.pop("check", None)
    path = chance.choice(list(places(value)))
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    if chance.random() < 0.15:
        del holder[path[-1]]
    else:
        holder[path[-1]] = chance.choice(ABSURD)
    body = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    if chance.random() < 0.1:
        body = body[:-1] + b',"new":' + b"[" * DEEP + b"]" * DEEP + b"}"
    return body[:-1] + b',"check":"' + xxhash.xxh3_128_hexdigest(body).encode() + b'"}'


class Pristine:
    """A root with all kinds of documents, to be copied for each case."""

    def __init__(self) -> None:
        self.store = MemoryStore("pristine")
        place = StoragePath("memory://pristine/root", store=self.store)
        Root.create(place, lease_s=1e-6)
        with CheckpointWriter(place) as writer:
            for step in range(4):
                files = {"config.json": b"{}"}
                report = writer.write(
                    step, {f"t{i}": np.full(9, step) for i in range(3)}, files=files
                )
        self.digest = report.digest
        collect(Root.open(place), Retention(2), pause=lambda _: None)
        # Newer records than the floor; a living session and a lease.
        self.root = Root.open(place)
        self.session = self.root.begin_session("run", interval_s=3600)
        self.lease = self.root.lease("engine", interval_s=3600)
        self.numbers = [version.number for version in self.root.versions()]
        self.keys = [entry.key for entry in self.store.list("root/", recursive=True)]
        self.documents = [key for key in self.keys if b'"check":' in self.data(key)]

    def close(self) -> None:
        self.lease.release()
        self.session.close()

    def data(self, key: str) -> bytes:
        return bytes(self.store.read(key, 0, 1 << 20).data)

    def copy(self, key: str, data: bytes) -> MemoryStore:
        copy = MemoryStore("copy")
        for other in self.keys:
            content = memoryview(data) if other == key else self.store.read(other, 0, 1 << 20).data
            copy.write(other, content)
        return copy


@pytest.fixture(scope="module")
def pristine() -> Iterator[Pristine]:
    root = Pristine()
    yield root
    root.close()


def read_newest(root: Root, truth: Pristine) -> None:
    reader = CheckpointReader(root.path)
    assert weights_digest(reader.load()) == truth.digest


def read_all(root: Root, truth: Pristine) -> None:
    versions = root.versions()
    assert [version.number for version in versions] == truth.numbers
    assert all(len(version.manifest().tensors) == 3 for version in versions)


def plan(root: Root, truth: Pristine) -> None:
    assert all(fate.stays for fate in plan_gc(root, Retention(2)).versions)


def take_over(root: Root, truth: Pristine) -> None:
    with root.begin_session("next", interval_s=3600) as session:
        assert session.open_attempt(1).opened.epoch == session.epoch > truth.session.epoch


def check_case(truth: Pristine, chance: random.Random) -> bool:
    """One damage, all uses. Returns whether any of them failed."""
    key = chance.choice(truth.documents)
    name = key.removeprefix("root/")
    pure = chance.random() < 0.5
    data = truth.data(key)
    changed = damaged(data, chance) if pure else forged(data, chance)
    failed = False
    for use in (read_newest, read_all, plan, take_over):
        store = truth.copy(key, changed)
        place = StoragePath("memory://copy/root", store=store)
        try:
            use(Root.open(place), truth)
        except WStoreError as error:
            failed = True
            assert name in str(error) or not pure, (name, changed[:2000], error)  # noqa: PT017
        except AssertionError:
            # What is forged with the means of a writer may be believed, but for what a hash covers.
            assert not pure, (name, changed[:2000])
    return failed


def run_cases(truth: Pristine, count: int) -> None:
    failures = 0
    for seed in range(count):
        try:
            failures += check_case(truth, random.Random(seed))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    assert (
        count / 5 < failures < count
    )  # the heads, leases and counters are hints: damage is harmless


def test_documents_of_a_root(pristine: Pristine) -> None:
    run_cases(pristine, 30)


@pytest.mark.long
def test_documents_of_a_root_for_long(pristine: Pristine) -> None:
    run_cases(pristine, 5000)


def spoil(store: MemoryStore, part: str, chance: random.Random, pure: bool) -> str:
    """Damage or forge the last document whose key has `part`; returns its name."""
    key = [e.key for e in store.list("root/", recursive=True) if part in e.key][-1]
    data = bytes(store.read(key, 0, 1 << 20).data)
    store.write(key, memoryview((damaged if pure else forged)(data, chance)))
    return key.removeprefix("root/")


def run_publishing(write: Write, count: int) -> None:
    """The documents of an attempt under way: one rank's words, read by the other."""
    failures = 0
    for seed in range(count):
        chance = random.Random(seed)
        store = MemoryStore("attempt")
        place = StoragePath("memory://attempt/root", store=store)
        roots = [Root.create(place), Root.open(place)]
        options = {"ranks": 2, "launch": "job"}
        zero = roots[0].begin_session("run", interval_s=3600, **options)  # type: ignore[arg-type]
        one = roots[1].join_session("run", rank=1, timeout=5, **options)  # type: ignore[arg-type]
        target = chance.choice(["open.json", "r00001.done.json", "sessions/"])
        pure = chance.random() < 0.5

        name = ""
        try:
            mine = zero.open_attempt(1)
            if target != "r00001.done.json":
                name = spoil(store, target, chance, pure)
            others = one.open_attempt(1, timeout=0)
            write(mine, 1)
            write(others, 2)
            if target == "r00001.done.json":
                name = spoil(store, target, chance, pure)
            version = mine.commit(timeout=0.05)
            assert version.number in [v.number for v in Root.open(place).versions()]
            tensor = CheckpointReader(place).load()["w"]
            assert not pure or tensor.tolist() == [[1] * 4, [2] * 4]
        except WStoreError as error:
            failures += 1
            assert name in str(error) or not pure, (seed, name, error)  # noqa: PT017
        finally:
            one.close()
            zero.close()
    assert failures > count / 4


def test_documents_of_an_attempt(write: Write) -> None:
    run_publishing(write, 25)


@pytest.mark.long
def test_documents_of_an_attempt_for_long(write: Write) -> None:
    run_publishing(write, 2000)


def run_foreign(count: int) -> None:
    """A foreign directory: its index, and the header of its file."""
    store = MemoryStore("foreign")
    source = StoragePath("memory://foreign/root", store=store)
    weights = {"a": np.arange(6.0), "b": np.arange(4)}
    with CheckpointWriter(source) as writer:
        writer.write(0, weights)
    names = ("safetensors", "safetensors.index.json")
    objects = {p.name: p.read_bytes() for p in source.rglob("*") if p.name.endswith(names)}
    (index,) = [name for name in objects if name.endswith("index.json")]
    for seed in range(count):
        chance = random.Random(seed)
        name = index if seed % 2 else chance.choice([n for n in objects if n != index])
        data = objects[name]
        if name != index:  # no hash covers the values: only the header can be told to be wrong
            span = 8 + int.from_bytes(data[:8], "little")
            changed = damaged(data[:span], chance) + data[span:]
        elif chance.random() < 0.5:
            changed = damaged(data, chance)
        else:
            changed = forged(data, chance)
        place = StoragePath(f"memory://foreign/{seed}", store=MemoryStore("foreign"))
        for file, content in (objects | {name: changed}).items():
            (place / file).write_bytes(content)
        try:
            CheckpointReader(place).load()
        except WStoreError as error:
            assert place.url in str(error), (seed, error)  # noqa: PT017


def test_foreign_documents() -> None:
    run_foreign(60)


@pytest.mark.long
def test_foreign_documents_for_long() -> None:
    run_foreign(5000)
