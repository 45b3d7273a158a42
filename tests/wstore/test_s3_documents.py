"""S3's XML: what is read out of it, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from wstore.errors import IntegrityError
from wstore.stores.base import Entry, ObjectInfo
from wstore.stores.s3 import documents

NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
BOMB = b"""<?xml version="1.0"?>
<!DOCTYPE lolz [<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>
<Error><Code>&b;</Code></Error>"""
FOREIGN_FILE = (
    b"""<!DOCTYPE r [<!ENTITY x SYSTEM "file:///etc/hostname">]><Error><Code>&x;</Code></Error>"""
)


def listing(inside: str) -> bytes:
    return (
        f'<?xml version="1.0"?><ListBucketResult {NAMESPACE}>{inside}</ListBucketResult>'.encode()
    )


def contents(key: str, size: str = "3") -> str:
    return (
        f"<Contents><Key>{key}</Key><LastModified>2026-11-30T11:40:25.000Z</LastModified>"
        f"<ETag>&quot;abc&quot;</ETag><Size>{size}</Size></Contents>"
    )


def test_listing_merges_keys_and_prefixes_in_order_of_their_bytes() -> None:
    body = listing(
        "<EncodingType>url</EncodingType><IsTruncated>false</IsTruncated>"
        + "<CommonPrefixes><Prefix>a/</Prefix></CommonPrefixes>"
        + contents("a.b") + contents("a+b%2B") + contents("%EF%BF%BD") + contents("%F0%9F%98%80")
    )  # fmt: skip
    info = ObjectInfo(3, datetime(2026, 11, 30, 11, 40, 25, tzinfo=UTC), '"abc"')
    page = documents.parse_listing(body)
    assert page.next_token is None
    assert page.entries == (
        Entry("a b+", info), Entry("a.b", info), Entry("a/", None),
        Entry("\ufffd", info), Entry("😀", info),
    )  # fmt: skip


def test_listing_that_is_not_encoded_is_taken_as_it_is() -> None:
    assert documents.parse_listing(listing(contents("a+b%20"))).entries[0].key == "a+b%20"


def test_a_truncated_page_needs_its_token() -> None:
    more = "<IsTruncated>true</IsTruncated>"
    token = "<NextContinuationToken>t</NextContinuationToken>"
    assert documents.parse_listing(listing(more + token)).next_token == "t"
    with pytest.raises(IntegrityError, match="NextContinuationToken"):
        documents.parse_listing(listing(more))


@pytest.mark.parametrize("size", ["-1", "1e3", "", "٣", "9" * 30, "0x10"])
def test_a_listing_with_an_absurd_size_is_refused(size: str) -> None:
    with pytest.raises(IntegrityError):
        documents.parse_listing(listing(contents("k", size)))


def test_an_entry_without_a_tag_is_refused() -> None:
    untagged = contents("k").replace("<ETag>&quot;abc&quot;</ETag>", "")
    with pytest.raises(IntegrityError, match="no ETag"):
        documents.parse_listing(listing(untagged))


@pytest.mark.parametrize("body", [BOMB, FOREIGN_FILE], ids=["bomb", "file"])
def test_a_document_type_is_refused(body: bytes) -> None:
    with pytest.raises(IntegrityError, match="document type"):
        documents.parse(body)
    assert documents.parse_error(body) is None


def test_deep_and_long_documents_are_refused() -> None:
    with pytest.raises(IntegrityError, match="deep"):
        documents.parse(b"<a>" * 5000)
    with pytest.raises(IntegrityError, match="over"):
        documents.parse(b" " * (documents.MAX_DOCUMENT_BYTES + 1))


@pytest.mark.parametrize("body", [b"", b"<html>", b"not xml", b"\xff\xfe", b"<Ok/>"])
def test_what_is_no_error_document_is_none(body: bytes) -> None:
    assert documents.parse_error(body) is None


def test_error_document() -> None:
    body = b"<Error><Code>SlowDown</Code><Message>x</Message><RequestId>r</RequestId></Error>"
    assert documents.parse_error(body) == documents.ErrorReply("SlowDown", "x", "r", "")


def test_pending_uploads() -> None:
    body = (
        f"<ListMultipartUploadsResult {NAMESPACE}><EncodingType>url</EncodingType>"
        "<NextKeyMarker>k%2B</NextKeyMarker><NextUploadIdMarker>u</NextUploadIdMarker>"
        "<IsTruncated>true</IsTruncated><Upload><Key>a+b</Key><UploadId>u1</UploadId>"
        "<Initiated>2010-11-10T20:48:33.000Z</Initiated></Upload></ListMultipartUploadsResult>"
    )
    page = documents.parse_pending(body.encode())
    initiated = datetime(2010, 11, 10, 20, 48, 33, tzinfo=UTC)
    assert page.uploads == (documents.PendingUpload("a b", "u1", initiated),)
    assert page.next_marker == ("k+", "u")


def test_complete_document_round_trips_through_the_parser() -> None:
    pieces = [documents.Piece(1, '"a&b"', "AAAAAA=="), documents.Piece(2, '"c"', None)]
    root = documents.parse(documents.build_complete(pieces))
    parts = [{child.tag: child.text for child in part} for part in root]
    assert parts == [
        {"ChecksumCRC32C": "AAAAAA==", "ETag": '"a&b"', "PartNumber": "1"},
        {"ETag": '"c"', "PartNumber": "2"},
    ]


def test_another_document_than_expected_is_refused() -> None:
    with pytest.raises(IntegrityError, match="belongs"):
        documents.parse_completed(b"<Error><Code>InternalError</Code></Error>")
    with pytest.raises(IntegrityError, match="UploadId"):
        documents.parse_upload_id(b"<InitiateMultipartUploadResult/>")
