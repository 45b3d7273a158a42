"""Copying a root to another place: everything arrives, proven, the log record last."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.wstore_transports.chains import Trainer
from wstore.errors import Cancelled, IntegrityError
from wstore.path import StoragePath
from wstore_transports.checkpoint import CheckpointReader, CheckpointWriter, weights_digest
from wstore_transports.delta import Publisher, Subscriber
from wstore_transports.errors import (
    DifferentRoots,
    IsAMirror,
    LogsParted,
    RootError,
    VersionGone,
)
from wstore_transports.examining.proving import verify_version
from wstore_transports.mirroring import Mirror, MirrorTree
from wstore_transports.versions import Retention, Root, collect
from wstore_transports.versions.create import create
from wstore_transports.versions.mirror_mark import MIRROR, MirrorMark
from wstore_transports.versions.sealing import seal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from wstore.testing.s3_requests import S3Endpoint


@pytest.fixture
def source(tmp_path: Path) -> StoragePath:
    return StoragePath(tmp_path / "source")


@pytest.fixture
def to(tmp_path: Path) -> StoragePath:
    return StoragePath(tmp_path / "mirror")


@pytest.fixture
def trainer(source: StoragePath) -> Iterator[Trainer]:
    made = Trainer(source)
    yield made
    made.publisher.close()


def names(root: StoragePath, *folders: str) -> list[str]:
    """The objects below some folders of a root, relative to it."""
    return sorted(
        path.relative_to(root) for folder in folders for path in (root / folder).rglob("*")
    )


def check(place: StoragePath, trainer: Trainer) -> None:
    """Every version that is alive at this place reads as what was published."""
    for version in Root.open(place).versions():
        assert not verify_version(version, deep=False).problems
        with Subscriber(place) as reader:
            assert weights_digest(reader.load(version.number)) == trainer.digests[version.number]


def test_deltas_anchors_and_retention(
    source: StoragePath, to: StoragePath, trainer: Trainer
) -> None:
    trainer.publish(6)
    trainer.settle()
    mirror = Mirror(source, to)
    report = mirror.copy()
    assert (report.versions, report.latest) == (6, trainer.publish(0))
    assert names(to, "log") == names(source, "log")
    assert not (to / "sessions").exists()
    check(to, trainer)
    again = mirror.copy()
    assert (again.records, again.objects) == (0, 0)
    trainer.publish(3)
    trainer.settle()
    collect(Root.open(source), Retention(keep_last=2), pause=lambda _: None)
    report = Mirror(source, to).copy()
    assert report.records
    check(to, trainer)
    before = names(to, "data")
    assert Mirror(source, to).tidy(pause=lambda _: None) is None  # nothing is opened yet
    with Root.open(to).lease("here") as lease:
        lease.only(2)
        tidied = mirror.copy(), mirror.tidy(pause=lambda _: None)
        assert tidied[1] is not None
        assert tidied[1].leased == (2,)
        kept = names(to, "data")
    assert len(kept) < len(before)
    done = mirror.tidy(pause=lambda _: None)
    assert done is not None
    assert done.deleted
    assert mirror.tidy(pause=lambda _: None) is None
    check(to, trainer)


def test_a_first_copy_after_retention(
    source: StoragePath, to: StoragePath, trainer: Trainer
) -> None:
    trainer.publish(8)
    trainer.settle()
    collect(Root.open(source), Retention(keep_last=1), pause=lambda _: None)
    alive = [version.number for version in Root.open(source).versions()]
    assert alive[0] > 1
    report = Mirror(source, to).copy()
    assert report.versions < 8
    assert [version.number for version in Root.open(to).versions()] == alive
    check(to, trainer)
    gone = trainer.digests.keys() - set(alive)
    assert gone
    with pytest.raises(VersionGone):
        Subscriber(to).load(min(gone))


def test_whole_weights_with_shared_files_and_variants(source: StoragePath, to: StoragePath) -> None:
    weights = {"a": np.arange(6.0), "b": np.zeros(1000, np.int8)}
    for place in (source, source / "variants" / "fp8"):
        with CheckpointWriter(place, max_file_bytes=100) as writer:
            writer.write(1, weights, files={"config.json": b"{}"})
            writer.write(2, {**weights, "a": weights["a"] + 1})
    tree = MirrorTree(source, to)
    report = tree.copy()
    assert report.ended
    assert report.versions == 4
    assert names(source, "log", "variants/fp8/log") == names(to, "log", "variants/fp8/log")
    for place in (to, to / "variants" / "fp8"):
        got = CheckpointReader(place).load()
        assert weights_digest(got) == weights_digest({**weights, "a": weights["a"] + 1})
    assert tree.tidy(pause=lambda _: None) == []
    alone = MirrorTree(source, to.parent / "alone", variants=False)
    assert alone.copy().versions == 2


def test_what_may_not_be_written_to(source: StoragePath, to: StoragePath, trainer: Trainer) -> None:
    trainer.publish()
    Mirror(source, to).copy()
    for act in (
        lambda: Publisher(to),
        lambda: CheckpointWriter(to),
        lambda: collect(Root.open(to), Retention()),
    ):
        with pytest.raises(IsAMirror, match="promote"):
            act()
    with pytest.raises(RootError, match="itself"):
        Mirror(source, source).copy()
    other = to.parent / "other"
    CheckpointWriter(other).close()
    with pytest.raises(DifferentRoots):
        Mirror(source, other).copy()


@pytest.mark.long
def test_a_promoted_mirror(source: StoragePath, to: StoragePath, trainer: Trainer) -> None:
    trainer.publish(2)
    mirror = Mirror(source, to)
    mirror.copy()
    (to / MIRROR).remove()
    trainer.publish()
    with pytest.raises(RootError, match="removed"):
        mirror.copy()
    with Publisher(to) as publisher:
        assert publisher.resume(Subscriber(to).load())
        publisher.publish(7, Subscriber(to).load())
    trainer.publish(2)
    (to / MIRROR).write_bytes(seal(MirrorMark(root=Root.open(to).root_id, source="")))
    with pytest.raises(LogsParted):
        Mirror(source, to).copy()
    assert Subscriber(to).latest().step == 7


@pytest.mark.parametrize(
    "how", ["changed", *(pytest.param(how, marks=pytest.mark.long) for how in ("cut", "missing"))]
)
def test_a_damaged_object(source: StoragePath, to: StoragePath, trainer: Trainer, how: str) -> None:
    first = trainer.publish()
    trainer.publish()
    newest = Root.open(source).latest()
    ref = newest.manifest().objects[0]
    path = source / ref.name
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    if how == "missing":
        path.remove()
    else:
        path.write_bytes(data if how == "changed" else data[:-1])
    with pytest.raises(IntegrityError) as caught:
        Mirror(source, to).copy()
    assert path.url in str(caught.value)
    assert Root.open(to).latest().number == first
    assert not (to / ref.name).exists()
    assert not (to / newest.record.manifest.name).exists()
    check(to, trainer)


def test_interrupted_before_the_record(
    source: StoragePath, to: StoragePath, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = trainer.publish()
    Mirror(source, to).copy()
    second = trainer.publish()

    def fails(*_: object) -> bool:
        raise Cancelled("killed here")

    with monkeypatch.context() as patch:
        patch.setattr("wstore_transports.mirroring.target.create", fails)
        with pytest.raises(Cancelled):
            Mirror(source, to).copy()
    assert Root.open(to).latest().number == first
    assert Mirror(source, to).tidy(pause=lambda _: None) is None
    mirror = Mirror(source, to)
    report = mirror.copy()
    assert (report.objects, report.latest) == (0, second)  # they were there already
    check(to, trainer)


def test_a_reader_between_the_records_of_versions_that_are_gone(
    source: StoragePath, to: StoragePath, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer.publish(5)
    trainer.settle()
    collect(Root.open(source), Retention(keep_last=1), pause=lambda _: None)
    newest = trainer.publish(0)
    left = 3

    def dies(path: StoragePath, data: bytes) -> bool:
        nonlocal left
        left -= path.parent.name == "log"
        if left < 0:
            raise Cancelled("killed here")
        return create(path, data)

    with monkeypatch.context() as patch:
        patch.setattr("wstore_transports.mirroring.target.create", dies)
        with pytest.raises(Cancelled):
            Mirror(source, to).copy()
    assert 0 < Root.open(to).latest().number < newest
    with pytest.raises(VersionGone, match="being filled"):
        Subscriber(to).load()
    Mirror(source, to).copy()
    check(to, trainer)


def test_a_reader_of_a_mirror_that_is_filled_meanwhile(
    source: StoragePath, to: StoragePath, trainer: Trainer
) -> None:
    trainer.publish(2)
    passes: list[int] = []
    tree = MirrorTree(source, to)
    following = threading.Thread(
        target=lambda: tree.follow(copied=lambda report: passes.append(report.latest)), daemon=True
    )
    with Subscriber(to) as alone, Subscriber([to, source]) as both:
        waiting = threading.Thread(target=lambda: alone.wait(timeout=60))
        waiting.start()
        following.start()
        waiting.join()
        states = [reader.load() for reader in (alone, both)]
        for _ in range(4):
            newest = trainer.publish()
            for reader, state in zip((alone, both), states, strict=True):
                while reader.held < newest:
                    reader.sync(state, timeout=60)
                    assert weights_digest(state) == trainer.digests[reader.held]
    trainer.publisher.end()
    following.join(60)
    assert not following.is_alive()
    assert passes
    assert names(to, "log") == names(source, "log")


@pytest.mark.long
def test_two_at_once(source: StoragePath, to: StoragePath, trainer: Trainer) -> None:
    trainer.publish(5)
    failures: list[BaseException] = []

    def fill() -> None:
        try:
            Mirror(source, to).copy()
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    crew = [threading.Thread(target=fill) for _ in range(4)]
    for one in crew:
        one.start()
    for one in crew:
        one.join()
    assert not failures
    check(to, trainer)


def test_another_kind_of_place(source: StoragePath, to: StoragePath, trainer: Trainer) -> None:
    trainer.publish(2)
    there = StoragePath("memory://mirrored/root")
    assert Mirror(source, there).copy().versions == 2
    assert Mirror(there, to).copy().versions == 2
    check(there, trainer)
    check(to, trainer)


@pytest.mark.long
@pytest.mark.parametrize("server", ["moto", "seaweed"])
def test_s3(
    server: str,
    to: StoragePath,
    request: pytest.FixtureRequest,
    s3_environment: Callable[[S3Endpoint], None],
    bucket: Callable[[S3Endpoint], str],
) -> None:
    endpoint: S3Endpoint = request.getfixturevalue(server)
    s3_environment(endpoint)
    source = StoragePath(f"s3://{bucket(endpoint)}/run")
    trainer = Trainer(source)
    trainer.publish(4)
    trainer.settle()
    trainer.publisher.close()
    Mirror(source, to).copy()
    check(to, trainer)
    back = StoragePath(f"s3://{bucket(endpoint)}/back")
    assert Mirror(to, back).copy().versions == 4
    check(back, trainer)
    source.store.close()


FILL = """
    import sys
    from wstore.path import StoragePath
    from wstore_transports.mirroring import MirrorTree
    tree = MirrorTree(StoragePath(sys.argv[1]), StoragePath(sys.argv[2]))
    print("on", flush=True)
    tree.copy()
    tree.tidy(pause=lambda _: None)
"""


def fill(source: StoragePath, to: StoragePath, kill_after_s: float | None) -> int:
    """Run a mirror as a process; kill -9 it some time after it has begun. Its exit status."""
    words = [sys.executable, "-c", textwrap.dedent(FILL), str(source), str(to)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            return process.wait(kill_after_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def killed_often(
    source: StoragePath, to: StoragePath, trainer: Trainer, rounds: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    killed = 0
    for _ in range(rounds):
        trainer.publish(2)
        if rng.random() < 0.3:
            trainer.settle()
            collect(Root.open(source), Retention(keep_last=2), pause=lambda _: None)
        killed += fill(source, to, float(rng.uniform(0.0, 0.15))) != 0
        if (to / "wstore.json").exists() and Root.open(to).log.refresh().standing.latest:
            try:
                with Subscriber(to) as reader:
                    state = reader.load()
            except VersionGone:
                continue
            assert weights_digest(state) == trainer.digests[reader.held]
    assert killed
    assert fill(source, to, None) == 0
    assert names(to, "log") == names(source, "log")
    check(to, trainer)


@pytest.mark.long
def test_killed_many_times(tmp_path: Path) -> None:
    for seed in range(8):
        source, to = StoragePath(tmp_path / "s"), StoragePath(tmp_path / "m")
        trainer = Trainer(source)
        killed_often(source, to, trainer, 12, seed)
        trainer.publisher.close()
        shutil.rmtree(tmp_path / "s")
        shutil.rmtree(tmp_path / "m")
