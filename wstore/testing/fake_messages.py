"""Requests and replies as the servers of `fault_server` see them, and the objects that they keep."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

XML = {"content-type": "application/xml"}


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came: header names in lower case, `key` and `query` decoded."""

    method: str
    bucket: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes = b""

    @property
    def range(self) -> str:
        """The Range header, such as "bytes=0-99", or ""."""
        return self.headers.get("range", "")

    @property
    def piece(self) -> int | None:
        """The part number (from 1, as S3 counts) when this request concerns one piece of an upload."""
        return int(self.query["partNumber"]) if "partNumber" in self.query else None


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. `content-length` is added when it is sent."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """The content of one key: `etag` without quotes, `headers` such as x-amz-meta-*.

    `generation` is a number that no other content of the service has.
    """

    data: bytes
    etag: str
    generation: int
    modified_s: float
    headers: dict[str, str]


class Refused(Exception):
    """The request's answer is an error."""

    def __init__(self, status: int, code: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(code)
        self.reply = error_reply(status, code, headers)


def error_reply(
    status: int, code: str, headers: Mapping[str, str] | None = None, message: str = "as scripted"
) -> Reply:
    """The XML error document under `status`."""
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    return Reply(status, XML | dict(headers or {}), body)
