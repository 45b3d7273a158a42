"""Known misbehaviour of storage libraries when a server fails: against the fault server (F).

Each test reads or writes through a StoragePath, as users do: `Limit(Retry(S3Store))` below.
"""

from __future__ import annotations

import asyncio
import random
import threading
from typing import TYPE_CHECKING

import pytest

from wstore import ConnectionFailed, ObjectChanged, StoragePath, WStoreError
from wstore.stores.s3 import S3Config, S3Store
from wstore.stores.wrap import Limit, Retry, RetryPolicy
from wstore.testing import faults
from wstore.testing.conformance.place import attempt
from wstore.testing.fault_server import FOREVER, FaultServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wstore.files import ObjectWriter

MiB = 1 << 20
DATA = random.Random(5).randbytes(1 * MiB)
PATIENT = RetryPolicy(deadline_s=60, first_pause_s=0.01, longest_pause_s=0.05)
HASTY = RetryPolicy(deadline_s=0.5, first_pause_s=0.01, longest_pause_s=0.05)


def _opened(
    server: FaultServer, idle_timeout_s: float, policy: RetryPolicy
) -> Iterator[StoragePath]:
    server.put("object", DATA)
    environment = server.endpoint.environment() | {"WSTORE_IDLE_TIMEOUT": str(idle_timeout_s)}
    store = S3Store(server.bucket, S3Config.from_environment(environment))
    yield StoragePath(f"s3://{server.bucket}/object", store=Limit(Retry(store, policy), 32))
    store.close()


@pytest.fixture
def path(fault_server: FaultServer) -> Iterator[StoragePath]:
    """`s3://bucket/object`, which holds DATA, by a client that waits and retries for long."""
    yield from _opened(fault_server, 30, PATIENT)


@pytest.fixture
def hasty(fault_server: FaultServer) -> Iterator[StoragePath]:
    """The same by a client that waits and retries for half a second."""
    yield from _opened(fault_server, 0.5, HASTY)


def test_t04_adjacent_ranges_are_capped_and_overlap(
    fault_server: FaultServer, path: StoragePath
) -> None:
    """T04 (P3): adjacent ranges share requests up to the cap, in parallel, each byte once."""
    size = len(DATA) // 64
    fault_server.script(faults.Delay(0.05), method="GET", times=FOREVER)
    got = path.read_ranges(
        [(n * size, size) for n in range(64)], request_size=8 * size, concurrency=4
    )
    assert b"".join(got) == DATA
    entries = [entry for entry in fault_server.requests("GET", "object") if entry.sent]
    assert max(entry.sent for entry in entries) <= 8 * size
    assert sum(entry.sent for entry in entries) == len(DATA)
    assert fault_server.peak_requests() >= 2


@pytest.mark.parametrize(
    "lie",
    [
        faults.ShortBody(0.5),
        faults.WrongRange(1000),
        faults.IgnoredRange(),
        faults.LyingLength(100),
        faults.LyingLength(-100),
    ],
    ids=lambda lie: type(lie).__name__,
)
def test_t07_replies_that_lie(
    fault_server: FaultServer, path: StoragePath, lie: faults.Fault
) -> None:
    """T07 (P2): half a body under a right Content-Range, another range, no range: never other bytes."""
    fault_server.script(lie, method="GET")
    got = []
    error = attempt(WStoreError, lambda: got.append(path.read_range(100, 70_000)))
    # Either the lie is not believed and the request repeated, or it is an error that names the object.
    assert "object" in str(error) if error else got == [DATA[100:70_100]]
    assert path.read_range(100, 70_000) == DATA[100:70_100]


@pytest.mark.parametrize("reset", [False, True])
def test_t10_cut_bodies_resume(fault_server: FaultServer, path: StoragePath, reset: bool) -> None:
    """T10 (P2, P4): a body cut after a third, twice, resumes at the byte where it stopped."""
    fault_server.script(faults.Cut(1 / 3, reset=reset), method="GET", key="object", times=2)
    assert path.read_range(0, len(DATA)) == DATA
    gets = fault_server.requests("GET", "object")
    assert len(gets) == 3
    starts = [int(get.request.range.removeprefix("bytes=").partition("-")[0]) for get in gets]
    # A reset may overtake bytes that the client had not yet taken; those are asked for again.
    assert starts[0] == 0
    assert starts == (sorted(starts) if reset else sorted(set(starts)))
    resumed = [get for get, start in zip(gets, starts, strict=True) if start]
    assert all("if-match" in get.request.headers for get in resumed)


@pytest.mark.parametrize("data", [None, DATA[::-1], b"short"])
def test_t11_another_content_at_the_resume(
    fault_server: FaultServer, path: StoragePath, data: bytes | None
) -> None:
    """T11 (P2): the object is replaced while a body is cut: ObjectChanged, never mixed bytes."""
    fault_server.script(faults.Cut(1 / 3), method="GET", key="object")
    fault_server.script(faults.Replaced(data), method="GET", key="object")
    with pytest.raises(ObjectChanged, match="object"):
        path.read_range(0, len(DATA))


def test_t13_silence(fault_server: FaultServer, hasty: StoragePath) -> None:
    """T13 (P4): a body that stops without an end is a TimeoutError, within the deadline."""
    fault_server.script(faults.Hang(after=1000), method="GET", times=FOREVER)
    with pytest.raises(TimeoutError, match="object"):
        hasty.read_range(0, len(DATA))


def test_t13_slow_but_alive(fault_server: FaultServer, hasty: StoragePath) -> None:
    """T13 (P4): a body that takes longer than the idle timeout, but moves, arrives in one request."""
    fault_server.script(faults.Trickle(len(DATA) // 10, 0.1), method="GET")
    assert hasty.read_range(0, len(DATA)) == DATA
    assert len(fault_server.requests("GET", "object")) == 1


@pytest.mark.parametrize("status", [503, 500, 502, 504, 408])
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_t14_server_errors(
    fault_server: FaultServer, path: StoragePath, status: int, method: str
) -> None:
    """T14 (P4): the third try wins, reading and writing."""
    fault_server.script(faults.Status(status, "SlowDown"), method=method, key="object", times=2)
    if method == "GET":
        assert path.read_range(0, 10) == DATA[:10]
    else:
        path.write_bytes(b"new")
        assert fault_server.get("object") == b"new"
    statuses = [entry.status for entry in fault_server.requests(method, "object")]
    assert statuses[:2] == [status, status]
    assert statuses[2] in (200, 206)


def test_t14_retry_after(fault_server: FaultServer, path: StoragePath) -> None:
    """T14 (P4): the pause is at least what the server asked for."""
    busy = faults.Status(429, "TooManyRequests", retry_after_s=1)
    fault_server.script(busy, method="GET", key="object")
    assert path.read_range(0, 10) == DATA[:10]
    first, second = fault_server.requests("GET", "object")[:2]
    assert second.started_s - first.started_s >= 1


def test_t14_a_deadline_bounds_it(fault_server: FaultServer, hasty: StoragePath) -> None:
    """T14 (P4): a server that is busy for ever is an error that names it."""
    fault_server.script(faults.Status(503, "SlowDown"), times=FOREVER)
    with pytest.raises(OSError, match="object"):
        hasty.read_range(0, 10)


def test_t15_error_inside_200(fault_server: FaultServer, path: StoragePath) -> None:
    """T15 (P1, P4): a completion that says 200 and means an error is repeated."""
    lie = faults.ErrorInside200("InternalError")
    fault_server.script(lie, method="POST", query="uploadId", times=1)
    path.write_file(bytes(11 * MiB), piece_size=5 * MiB)
    assert fault_server.get("object") == bytes(11 * MiB)
    assert fault_server.store.pending_uploads() == []


def test_t15_error_inside_200_for_ever(fault_server: FaultServer, hasty: StoragePath) -> None:
    """T15 (P1): it is never a success; the old object stays and nothing is left."""
    lie = faults.ErrorInside200("InternalError")
    fault_server.script(lie, method="POST", query="uploadId", times=FOREVER)
    with pytest.raises(WStoreError):
        hasty.write_file(bytes(11 * MiB), piece_size=5 * MiB)
    assert fault_server.get("object") == DATA
    assert fault_server.store.pending_uploads() == []


def test_t16_exception_after_pieces_were_sent(fault_server: FaultServer, path: StoragePath) -> None:
    """T16 (P1): a writer left by an exception in the middle of an upload aborts it."""

    def write_and_fail() -> None:
        with path.open("wb") as file:
            file.write(bytes(20 * MiB))
            raise EOFError

    with pytest.raises(EOFError):
        write_and_fail()
    assert any(entry.request.piece for entry in fault_server.requests("PUT", "object"))
    assert fault_server.store.pending_uploads() == []
    assert fault_server.get("object") == DATA


@pytest.mark.parametrize(
    "fault",
    [
        faults.LostAnswer(),
        faults.Status(409, "ConditionalRequestConflict"),
        faults.ResetWhileSending(10),
        faults.Status(503, "SlowDown"),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_t23_a_create_of_our_own_is_a_success(
    fault_server: FaultServer, path: StoragePath, fault: faults.Fault
) -> None:
    """T23 (P4, P10): a create whose answer was lost, or that was refused for now, is not "exists"."""
    fault_server.script(fault, method="PUT", key="new")
    new = path.with_name("new")
    info = new.write_file(b"mine" * 100, if_absent=True)
    assert info.size == 400
    assert fault_server.get("new") == b"mine" * 100
    with pytest.raises(FileExistsError):
        new.write_file(b"second", if_absent=True)


def test_t23_somebody_elses_create_is_not_ours(
    fault_server: FaultServer, path: StoragePath
) -> None:
    """T23 (P10): an attempt failed, and before the next one another writer made the same bytes."""
    fault_server.script(faults.Status(503, "SlowDown"), method="PUT", key="new")
    fault_server.script(faults.Replaced(b"same"), method="PUT", key="new")
    with pytest.raises(FileExistsError):
        path.with_name("new").write_file(b"same", if_absent=True)


def test_t30_a_piece_that_fails_for_ever(fault_server: FaultServer, path: StoragePath) -> None:
    """T30 (P1): the upload is aborted, the old object stays, the error names the object."""
    forbidden = faults.Status(403, "AccessDenied")
    fault_server.script(forbidden, method="PUT", piece=3, times=FOREVER)
    with pytest.raises(PermissionError, match="object"):
        path.write_file(bytes(16 * MiB), piece_size=5 * MiB)
    assert fault_server.store.pending_uploads() == []
    assert fault_server.get("object") == DATA


def test_t30_a_writer_is_not_revived_by_close(fault_server: FaultServer, path: StoragePath) -> None:
    """T30 (P1): after a failed piece the file cannot be closed into an object."""
    fault_server.script(faults.Status(403, "AccessDenied"), method="PUT", times=FOREVER)
    fault_server.script(faults.Status(403, "AccessDenied"), method="POST", times=FOREVER)
    file = path.open("wb")
    for _ in range(2):
        with pytest.raises((WStoreError, ValueError)):
            _fill_and_close(file)
    assert fault_server.get("object") == DATA


def test_t31_every_piece_reset_once(fault_server: FaultServer, path: StoragePath) -> None:
    """T31 (P4): each piece is sent again from its start; the object is exact."""
    reset = faults.ResetWhileSending(100_000)
    fault_server.script(reset, method="PUT", query="partNumber", times=1, each_target=True)
    data = random.Random(31).randbytes(11 * MiB)
    path.write_file(data, piece_size=5 * MiB)
    assert fault_server.get("object") == data
    assert len(fault_server.requests("PUT", "object")) == 6


def test_t32_one_large_item_is_cut(fault_server: FaultServer, path: StoragePath) -> None:
    """T32 (P3): one item of an iterable, larger than all pieces in flight, keeps to the limit."""
    fault_server.script(faults.Delay(0.05), method="PUT", times=FOREVER)
    path.write_file(iter([bytes(16 * MiB)]), piece_size=5 * MiB, concurrency=2)
    assert fault_server.get("object") == bytes(16 * MiB)
    assert fault_server.peak_requests() <= 2


@pytest.mark.parametrize("size", [1000, 11 * MiB])
def test_t34_flipped_on_the_way_up(
    fault_server: FaultServer, hasty: StoragePath, size: int
) -> None:
    """T34 (P2): uploads carry a checksum that the server verifies: a flipped byte is never stored."""
    fault_server.script(faults.FlipUpload(500), method="PUT", key="object", times=FOREVER)
    with pytest.raises(WStoreError, match="object"):
        hasty.write_file(bytes(size), piece_size=5 * MiB)
    assert fault_server.get("object") == DATA
    assert fault_server.store.pending_uploads() == []


def test_t34_checksums_switched_off(
    fault_server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T34: with checksums off a request is plain, for services that do not know them."""
    for name, value in fault_server.endpoint.environment().items():
        monkeypatch.setenv(name, value)
    for mode, wanted in (("crc32c", True), ("off", False)):
        monkeypatch.setenv("WSTORE_S3_CHECKSUM", mode)
        StoragePath(f"s3://{fault_server.bucket}/object").write_bytes(b"weights")
        sent = fault_server.requests("PUT", "object")[-1].request.headers
        assert any("checksum" in name or name == "content-md5" for name in sent) == wanted


def test_t53_waiting_through_trouble(fault_server: FaultServer, path: StoragePath) -> None:
    """T53 (P5): 503s are waited out, a 403 is raised at once."""
    marker = path.with_name("DONE")
    fault_server.script(faults.Status(503, "SlowDown"), key="DONE", times=3)
    timer = threading.Timer(0.3, fault_server.put, ("DONE", b"done"))
    timer.start()
    assert marker.wait(60, poll=0.05).size == 4
    timer.join()
    fault_server.clear()
    fault_server.script(faults.Status(403, "AccessDenied"), times=FOREVER)
    with pytest.raises(PermissionError):
        path.with_name("NEVER").wait(60, poll=0.05)
    assert len(fault_server.requests()) <= 3


def test_t58_cancelled_while_hanging(fault_server: FaultServer, path: StoragePath) -> None:
    """T58 (P6): a cancelled task ends while its request still hangs; the next read works."""
    fault_server.script(faults.Hang(after=10), method="GET")

    async def cancelled() -> None:
        task = asyncio.create_task(path.aread_range(0, len(DATA)))
        while not fault_server.requests("GET"):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await path.aread_range(0, 10) == DATA[:10]

    asyncio.run(cancelled())


def test_t59_many_reads_few_sockets(fault_server: FaultServer, path: StoragePath) -> None:
    """T59 (P3): 500 reads at once, at most 32 of them at the server."""

    async def read_all() -> list[bytes]:
        return await asyncio.gather(*(path.aread_range(n, 8) for n in range(500)))

    assert asyncio.run(read_all()) == [DATA[n : n + 8] for n in range(500)]
    assert fault_server.peak_connections <= 32
    assert fault_server.peak_requests() <= 32


def test_t62_refusals(fault_server: FaultServer, path: StoragePath) -> None:
    """T62 (P4, P9): definite answers are raised at once, as the matching builtin."""
    for status, code, kind in (
        (403, "AccessDenied", PermissionError),
        (404, "NoSuchKey", FileNotFoundError),
        (404, "NoSuchBucket", FileNotFoundError),
    ):
        fault_server.clear()
        fault_server.script(faults.Status(status, code), key="object", times=FOREVER)
        with pytest.raises(kind, match="object"):
            path.read_range(0, 10)
        assert len(fault_server.requests("GET", "object")) <= 2


def test_t62_wrong_region(fault_server: FaultServer, path: StoragePath) -> None:
    """T62 (P9): a bucket of another region is said in words that name the region."""
    fault_server.script(faults.WrongRegion("eu-west-1"), times=FOREVER)
    with pytest.raises(WStoreError, match="eu-west-1"):
        path.write_bytes(b"x")


def test_t62_nobody_listens() -> None:
    """T62 (P9): an endpoint that nobody serves is a ConnectionError that names the object."""
    with FaultServer() as gone:
        environment = gone.endpoint.environment()
    store = S3Store("bucket", S3Config.from_environment(environment))
    path = StoragePath("s3://bucket/object", store=Retry(store, HASTY))
    with pytest.raises(ConnectionFailed, match="object"):
        path.read_range(0, 1)


def _fill_and_close(file: ObjectWriter) -> None:
    file.write(bytes(20 * MiB))
    file.close()
