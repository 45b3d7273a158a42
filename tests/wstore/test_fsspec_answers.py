"""What answers of fsspec's file systems mean: errors, descriptions of files."""

from __future__ import annotations

import errno
import traceback
from datetime import UTC, datetime

import pytest

from wstore.errors import (
    AccessDenied,
    ConnectionFailed,
    CredentialsMissing,
    MissingPackage,
    NoSpace,
    NotADirectory,
    NotFound,
    StoreError,
    StoreTimeout,
    Unavailable,
    UnsupportedOperation,
    WStoreError,
)
from wstore.stores.fsspec.descriptions import described
from wstore.stores.fsspec.failures import meaning, translated


class SSHException(Exception):
    """Named as paramiko's."""


class NoCredentialsError(Exception):
    """Named as botocore's."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileNotFoundError("x"), NotFound),
        (PermissionError("x"), AccessDenied),
        (FileExistsError("x"), NotADirectory),
        (TimeoutError(), StoreTimeout),
        (ConnectionResetError(), ConnectionFailed),
        (EOFError(), ConnectionFailed),
        (SSHException("x"), ConnectionFailed),
        (NoCredentialsError("x"), CredentialsMissing),
        (ImportError("pip install x"), MissingPackage),
        (NotImplementedError(), UnsupportedOperation),
        (OSError(errno.ENOSPC, "full"), NoSpace),
        (OSError(errno.EBUSY, "slow down"), Unavailable),
        (OSError(errno.EINVAL, "odd"), StoreError),
        (ValueError("a secret"), StoreError),
    ],
)
def test_what_an_error_means(error: Exception, kind: type[WStoreError]) -> None:
    found = meaning(error, "sftp://h/k")
    assert type(found) is kind
    assert found.url == "sftp://h/k"
    assert "secret" not in str(found)


def test_a_cause_is_not_shown_by_a_traceback() -> None:
    with pytest.raises(StoreError) as caught, translated("u"):
        raise ValueError("a secret")
    error = caught.value
    assert error.__cause__ is error.__context__ is None
    shown = "".join(traceback.format_exception(error))
    assert "ValueError: " not in shown
    assert "test_a_cause_is_not_shown" in shown


def test_descriptions_of_many_protocols() -> None:
    then = datetime(2026, 11, 30, 12, tzinfo=UTC)
    s3 = described({"size": 3, "ETag": '"e"', "LastModified": then}, "u")
    assert (s3.size, s3.tag, s3.modified) == (3, "e", then)
    sftp_file = described({"size": 3, "mtime": then.replace(tzinfo=None)}, "u")
    assert sftp_file.modified == then
    assert sftp_file.tag == described({"size": 3, "mtime": then.timestamp()}, "u").tag
    assert described({"size": 3, "mtime": then.timestamp() + 1}, "u").tag != sftp_file.tag
    assert described({"size": 3, "modify": "20261130120000"}, "u").modified == then
    with pytest.raises(StoreError):
        described({"size": None}, "u")
    assert (
        described({"size": 3, "modify": "20261130120000.250"}, "u").modified.microsecond == 250_000
    )
    hdfs = described({"size": 3, "modificationTime": int(then.timestamp() * 1000) + 7}, "u")
    assert hdfs.modified == then.replace(microsecond=7000)
    http = described({"size": 3, "Last-Modified": "Mon, 30 Nov 2026 12:00:00 GMT"}, "u")
    assert http.modified == then


@pytest.mark.parametrize("raw", [{}, {"modify": "Jan 12 10:30"}, {"ETag": "", "mtime": None}])
def test_contents_that_cannot_be_told_apart(raw: dict[str, object]) -> None:
    with pytest.raises(StoreError, match="told from another"):
        described({"size": 3, **raw}, "u")
