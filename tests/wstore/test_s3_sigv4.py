"""Signature Version 4: AWS's published examples, and botocore as an oracle for everything odd."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import pytest

from wstore.stores.s3 import sigv4

# "Examples: Signature Calculations in AWS Signature Version 4", Amazon S3 API Reference.
KEY = sigv4.Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
NOW = datetime(2013, 5, 24, tzinfo=UTC)
HOST = {"host": "examplebucket.s3.amazonaws.com"}
WELCOME = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"
PUT_HEADERS = {
    "date": "Fri, 24 May 2013 00:00:00 GMT",
    "x-amz-storage-class": "REDUCED_REDUNDANCY",
}
EXAMPLES = {
    "get object": (
        sigv4.Unsigned("GET", "/test.txt", (), HOST | {"range": "bytes=0-9"}, sigv4.EMPTY_SHA256),
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
    ),
    "put object": (
        sigv4.Unsigned("PUT", sigv4.encode_path("test$file.text"), (), HOST | PUT_HEADERS, WELCOME),
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
    ),
    "bucket lifecycle": (
        sigv4.Unsigned("GET", "/", (("lifecycle", ""),), HOST, sigv4.EMPTY_SHA256),
        "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
    ),
    "list objects": (
        sigv4.Unsigned("GET", "/", (("prefix", "J"), ("max-keys", "2")), HOST, sigv4.EMPTY_SHA256),
        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
    ),
}
ODD_KEYS = [
    "a b", "a%20b", "a%b", "a+b", "é/ü", "a#1", "a?b", "a&b=c", "x:y", "q'\"<>", "emoji😀", "br[1]*?.txt",
    "a//b", "//", "./a", "a/.", "..", "a/../b", "dir/", "tab\t", "line\nfeed", "\x01", "~t", "back\\slash",
    "(a)!$,;@", "%2F", "e\u0301",
]  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_published_example(name: str) -> None:
    request, signature = EXAMPLES[name]
    signed = sigv4.sign(request, credentials=KEY, region="us-east-1", now=NOW)
    assert signed["authorization"].endswith(f"Signature={signature}")


@pytest.mark.parametrize("key", ODD_KEYS)
def test_odd_keys_sign_as_botocore_signs_them(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Path, query with a session token, and an unsigned payload with a checksum header."""
    path = sigv4.encode_path("bucket", key)
    query = (("prefix", key), ("partNumber", "1"))
    headers = {"host": "127.0.0.1:9000", "x-amz-checksum-crc32c": "AAAAAA==", "if-match": '"a  b"'}
    credentials = sigv4.Credentials("AKIA", "secret", "token")
    request = sigv4.Unsigned("PUT", path, query, headers, sigv4.UNSIGNED_PAYLOAD)
    ours = sigv4.sign(request, credentials=credentials, region="eu-west-1", now=NOW)

    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: NOW.replace(tzinfo=None))
    theirs = botocore.awsrequest.AWSRequest(
        "PUT",
        f"http://127.0.0.1:9000{path}?{sigv4.encode_query(query)}",
        headers=headers,
        data=b"data",
    )
    theirs.context["payload_signing_enabled"] = False
    theirs.context["client_config"] = None
    monkeypatch.setattr(botocore.auth.S3SigV4Auth, "payload", lambda *_: sigv4.UNSIGNED_PAYLOAD)
    login = botocore.credentials.Credentials("AKIA", "secret", "token")
    botocore.auth.S3SigV4Auth(login, "s3", "eu-west-1").add_auth(theirs)
    assert ours["authorization"] == theirs.headers["Authorization"]


def test_nothing_in_a_path_is_normalised() -> None:
    assert sigv4.encode_path("b", "a//../.") == "/b/a//../."
    assert sigv4.encode_path("b", "a%2Fb c") == "/b/a%252Fb%20c"


def test_query_is_sorted_by_encoded_name() -> None:
    assert sigv4.encode_query((("b", "2"), ("a", "x y"), ("uploads", ""))) == "a=x%20y&b=2&uploads="


def test_credentials_are_in_no_repr_and_do_not_pickle() -> None:
    secret = sigv4.Credentials("AKIAxyz", "very-secret", "very-token")
    assert repr(secret) == "Credentials()"
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(secret)
