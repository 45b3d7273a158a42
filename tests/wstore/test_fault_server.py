"""The fault server does what it is told: each fault as a plain HTTP client sees it."""

from __future__ import annotations

import http.client
import threading
from typing import TYPE_CHECKING

import pytest

from wstore.testing import faults
from wstore.testing.fault_server import FOREVER, FaultServer
from wstore.testing.s3_requests import Answer, request

if TYPE_CHECKING:
    from collections.abc import Mapping

DATA = bytes(range(256)) * 400


def call(
    server: FaultServer,
    method: str,
    key: str = "k",
    *,
    query: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    timeout_s: float = 10,
) -> Answer:
    return request(
        server.endpoint,
        method,
        server.bucket,
        key,
        query=query,
        headers=headers,
        body=body,
        timeout_s=timeout_s,
    )


def test_objects_ranges_conditions(fault_server: FaultServer) -> None:
    assert call(fault_server, "PUT", "a//b é+%", body=DATA).status == 200
    whole = call(fault_server, "GET", "a//b é+%")
    assert (whole.status, whole.body) == (200, DATA)
    part = call(fault_server, "GET", "a//b é+%", headers={"range": "bytes=5-9"})
    assert (part.status, part.body) == (206, DATA[5:10])
    assert part.headers["content-range"] == f"bytes 5-9/{len(DATA)}"
    assert call(fault_server, "GET", "a//b é+%", headers={"range": "bytes=-4"}).body == DATA[-4:]
    past = call(fault_server, "GET", "a//b é+%", headers={"range": f"bytes={len(DATA)}-"})
    assert past.status == 416
    head = call(fault_server, "HEAD", "a//b é+%")
    assert (head.status, int(head.headers["content-length"]), head.body) == (200, len(DATA), b"")
    stale = {"if-match": '"0"'}
    assert call(fault_server, "GET", "a//b é+%", headers=stale).status == 412
    assert call(fault_server, "PUT", "a//b é+%", headers={"if-none-match": "*"}).status == 412
    assert call(fault_server, "PUT", "a//b é+%", headers=stale).status == 412
    assert call(fault_server, "PUT", "none", headers=stale).status == 404
    assert call(fault_server, "DELETE", "a//b é+%").status == 204
    assert call(fault_server, "GET", "a//b é+%").status == 404


def test_uploads(fault_server: FaultServer) -> None:
    started = call(fault_server, "POST", query={"uploads": ""}).body.decode()
    upload = started.partition("<UploadId>")[2].partition("</UploadId>")[0]
    etags: list[str] = []
    for number in (2, 1):
        query = {"uploadId": upload, "partNumber": str(number)}
        put = call(fault_server, "PUT", query=query, body=b"%d" % number * 10)
        etags.insert(0, put.headers["etag"])
    assert fault_server.store.pending_uploads() == ["k"]
    assert b"<Key>k</Key>" in call(fault_server, "GET", "", query={"uploads": ""}).body
    parts = "".join(
        f"<Part><PartNumber>{n}</PartNumber><ETag>{etag}</ETag></Part>"
        for n, etag in enumerate(etags, 1)
    )
    body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
    done = call(fault_server, "POST", query={"uploadId": upload}, body=body)
    assert done.status == 200
    assert fault_server.get("k") == b"1" * 10 + b"2" * 10
    assert fault_server.store.pending_uploads() == []
    assert call(fault_server, "DELETE", query={"uploadId": upload}).status == 404


def test_listing_pages_and_folds(fault_server: FaultServer) -> None:
    for key in ("b/1", "b/2", "a", "c", "é"):
        fault_server.put(key, b"")
    query = {"list-type": "2", "delimiter": "/", "max-keys": "2"}
    first = call(fault_server, "GET", "", query=query).body.decode()
    assert "<Key>a</Key>" in first
    assert "<Prefix>b/</Prefix>" in first
    assert "<Key>c</Key>" not in first
    token = first.partition("<NextContinuationToken>")[2].partition("<")[0]
    second = call(fault_server, "GET", "", query=query | {"continuation-token": token})
    assert "<Key>c</Key>" in second.body.decode()
    assert "<IsTruncated>false" in second.body.decode()


def test_wrong_checksum_is_refused(fault_server: FaultServer) -> None:
    for name in ("x-amz-checksum-crc32c", "content-md5", "x-amz-checksum-crc32"):
        answer = call(fault_server, "PUT", headers={name: "AAAAAA=="}, body=b"x")
        assert (answer.status, b"BadDigest" in answer.body) == (400, True)
    assert fault_server.get("k") is None


def test_status_then_success(fault_server: FaultServer) -> None:
    fault_server.put("k", DATA)
    fault_server.script(faults.Status(503, "SlowDown"), key="k", times=2)
    fault_server.script(faults.Status(429, "TooManyRequests", retry_after_s=1), key="k", skip=0)
    answers = [call(fault_server, "GET") for _ in range(4)]
    assert [answer.status for answer in answers] == [503, 503, 429, 200]
    assert answers[2].headers["retry-after"] == "1"
    assert [entry.status for entry in fault_server.requests("GET", "k")] == [503, 503, 429, 200]


@pytest.mark.parametrize("reset", [False, True])
def test_cut(fault_server: FaultServer, reset: bool) -> None:
    fault_server.put("k", DATA)
    fault_server.script(faults.Cut(0.3, reset=reset))
    with pytest.raises((ConnectionResetError, http.client.IncompleteRead)) as caught:
        call(fault_server, "GET")
    assert isinstance(caught.value, ConnectionResetError) == reset
    assert fault_server.log[0].sent == int(len(DATA) * 0.3)
    assert call(fault_server, "GET").body == DATA


def test_lying_replies(fault_server: FaultServer) -> None:
    fault_server.put("k", DATA)
    asked = {"range": "bytes=100-199"}
    lies: list[faults.Fault] = [
        faults.ShortBody(0.5),
        faults.WrongRange(7),
        faults.IgnoredRange(),
        faults.Flip(3),
        faults.LyingLength(-10),
    ]
    for lie in lies:
        fault_server.script(lie)
    short, moved, whole, flipped, less = (
        call(fault_server, "GET", headers=asked) for _ in range(len(lies))
    )
    assert short.headers["content-range"] == f"bytes 100-199/{len(DATA)}"
    assert short.body == DATA[100:150]
    assert moved.body == DATA[107:207]
    assert moved.headers["content-range"].startswith("bytes 107-206/")
    assert (whole.status, whole.body) == (200, DATA)
    assert (flipped.body[3], len(flipped.body)) == (DATA[103] ^ 1, 100)
    assert less.body == DATA[100:190]
    fault_server.script(faults.LyingLength(10))
    with pytest.raises(http.client.IncompleteRead):
        call(fault_server, "GET", headers=asked)


def test_hang_and_trickle(fault_server: FaultServer) -> None:
    fault_server.put("k", DATA)
    fault_server.script(faults.Trickle(30_000, 0.01))
    fault_server.script(faults.Hang())
    fault_server.script(faults.Hang(after=1000))
    assert call(fault_server, "GET").body == DATA
    for sent in (0, 1000):
        with pytest.raises(TimeoutError):
            call(fault_server, "GET", timeout_s=0.2)
        assert fault_server.log[-1].sent == sent


def test_replaced_object_has_another_tag(fault_server: FaultServer) -> None:
    fault_server.put("k", DATA)
    tag = call(fault_server, "HEAD").headers["etag"]
    fault_server.script(faults.Replaced())
    fault_server.script(faults.Replaced(b"new"))
    assert call(fault_server, "GET", headers={"if-match": tag}).status == 412
    assert call(fault_server, "GET").body == b"new"


def test_lost_answers_take_effect(fault_server: FaultServer) -> None:
    fault_server.script(faults.LostAnswer(), method="PUT")
    with pytest.raises((ConnectionResetError, http.client.RemoteDisconnected)):
        call(fault_server, "PUT", body=DATA)
    assert fault_server.get("k") == DATA


def test_reset_while_sending_takes_no_effect(fault_server: FaultServer) -> None:
    fault_server.script(faults.ResetWhileSending(1000), each_target=True)
    for number in (1, 2):
        query = {"uploadId": "x", "partNumber": str(number)}
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            call(fault_server, "PUT", query=query, body=DATA * 20)
        assert call(fault_server, "PUT", query=query, body=DATA).status == 404


def test_error_inside_200_conflict_and_redirect(fault_server: FaultServer) -> None:
    fault_server.script(faults.ErrorInside200("InternalError"), method="POST", query="uploadId")
    fault_server.script(faults.Status(409, "ConditionalRequestConflict"), method="PUT")
    fault_server.script(faults.WrongRegion("eu-west-1"), method="GET")
    lying = call(fault_server, "POST", query={"uploadId": "x"}, body=b"x")
    assert (lying.status, b"<Error>" in lying.body) == (200, True)
    assert call(fault_server, "PUT", body=b"x").status == 409
    moved = call(fault_server, "GET")
    assert (moved.status, moved.headers["x-amz-bucket-region"]) == (301, "eu-west-1")


def test_piece_that_always_fails(fault_server: FaultServer) -> None:
    fault_server.script(faults.Status(403, "AccessDenied"), piece=3, times=FOREVER)
    for number, status in ((2, 404), (3, 403), (3, 403)):
        query = {"uploadId": "x", "partNumber": str(number)}
        assert call(fault_server, "PUT", query=query, body=b"x").status == status


def test_peak_of_connections_and_requests(fault_server: FaultServer) -> None:
    fault_server.put("k", DATA)
    fault_server.script(faults.Delay(0.2), times=FOREVER)
    threads = [threading.Thread(target=call, args=(fault_server, "GET")) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fault_server.peak_connections == 5
    assert fault_server.peak_requests() == 5
