"""What can go wrong with one request: the faults that a `FaultServer` plays, one value each.

A fault is any object with `play(exchange)`; the exchange gives it the request, the store behind, and
the raw connection. Sizes are bytes, fractions are of the body that a faultless server would send.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from wstore.testing.fake_messages import Reply, error_reply

if TYPE_CHECKING:
    from wstore.testing.fake_messages import Request
    from wstore.testing.fake_service import FakeService


class Exchange(Protocol):
    """One request in progress, in the thread of its connection."""

    @property
    def request(self) -> Request:
        """The request; its body is empty before `receive`."""

    @property
    def store(self) -> FakeService: ...

    def receive(self, limit: int | None = None) -> None:
        """Read the request's body, or only its first `limit` bytes."""

    def handle(self) -> Reply:
        """Let the store serve the request (after `receive`)."""

    def head(self, reply: Reply, length: int) -> None:
        """Send status and headers, with `length` as Content-Length."""

    def body(self, data: bytes) -> None:
        """Send bytes; nothing for a HEAD request."""

    def close(self) -> None:
        """End the connection cleanly (FIN)."""

    def reset(self) -> None:
        """Break the connection (RST)."""

    def hang(self) -> None:
        """Keep silent until the server stops, then break the connection."""


class Fault(Protocol):
    """How one request is answered."""

    def play(self, exchange: Exchange) -> None: ...


def send(exchange: Exchange, reply: Reply) -> None:
    """Send a reply as it is."""
    exchange.head(reply, len(reply.body))
    exchange.body(reply.body)


@dataclass(frozen=True, slots=True)
class Honest:
    """No fault: place it in a script to let a number of requests pass."""

    def play(self, exchange: Exchange) -> None:
        exchange.receive()
        send(exchange, exchange.handle())


@dataclass(frozen=True, slots=True)
class Status:
    """The store answers with an error and does nothing: 503 SlowDown, 429, 500, 403, 409, ..."""

    status: int
    code: str = "InternalError"
    retry_after_s: float | None = None

    def play(self, exchange: Exchange) -> None:
        exchange.receive()
        headers = {} if self.retry_after_s is None else {"retry-after": f"{self.retry_after_s:g}"}
        send(exchange, error_reply(self.status, self.code, headers))


@dataclass(frozen=True, slots=True)
class WrongRegion:
    """301 PermanentRedirect to another region's endpoint, as for a bucket of another region."""

    region: str = "eu-west-1"

    def play(self, exchange: Exchange) -> None:
        exchange.receive()
        headers = {"x-amz-bucket-region": self.region}
        send(exchange, error_reply(301, "PermanentRedirect", headers))


@dataclass(frozen=True, slots=True)
class ErrorInside200:
    """Status 200 with an error document as body and nothing done, as CompleteMultipartUpload may."""

    code: str = "InternalError"

    def play(self, exchange: Exchange) -> None:
        exchange.receive()
        send(exchange, replace(error_reply(200, self.code), status=200))


@dataclass(frozen=True, slots=True)
class Cut:
    """The body stops after `fraction` of it: clean FIN, or RST with `reset`. The headers are right."""

    fraction: float
    reset: bool = False

    def play(self, exchange: Exchange) -> None:
        exchange.receive()
        reply = exchange.handle()
        exchange.head(reply, len(reply.body))
        exchange.body(reply.body[: int(len(reply.body) * self.fraction)])
        if self.reset:
            # A reset overtakes bytes that the client has not yet read; let them arrive.
            time.sleep(0.05)
            exchange.reset()
        else:
            exchange.close()


@dataclass(frozen=True, slots=True)
class ShortBody:
    """Right Content-Range, but body and Content-Length hold only the first `fraction` of it."""

    fraction: float = 0.5

    def play(self, exchange: Exchange) -> None:
        exchange.receive()
        reply = exchange.handle()
        send(exchange, replace(reply, body=reply.body[: int(len(reply.body) * self.fraction)]))


@dataclass(frozen=True, slots=True)
class LyingLength:
    """Content-Length is `delta` more (then the connection ends) or less than what is sent."""

    delta: int

    def play(self, exchange: Exchange) -> None:
        exchange.receive()
        reply = exchange.handle()
        exchange.head(reply, max(0, len(reply.body) + self.delta))
        exchange.body(reply.body)
        exchange.close()


@dataclass(frozen=True, slots=True)
class WrongRange:
    """A well-formed 206 of another range: the asked one moved by `shift`."""

    shift: int = 1

    def play(self, exchange: Exchange) -> None:
        exchange.receive()
        request = exchange.request
        reply = exchange.handle()
        whole = exchange.store.get(request.bucket, request.key) or b""
        first, last = (int(n) for n in request.range.removeprefix("bytes=").split("-"))
        first, last = first + self.shift, min(last + self.shift, len(whole) - 1)
        headers = reply.headers | {"content-range": f"bytes {first}-{last}/{len(whole)}"}
        send(exchange, Reply(206, headers, whole[first : last + 1]))


@dataclass(frozen=True, slots=True)
class IgnoredRange:
    """200 with the whole object, whatever range was asked."""

    def play(self, exchange: Exchange) -> None:
        exchange.receive()
        request = exchange.request
        headers = {name: value for name, value in request.headers.items() if name != "range"}
        send(exchange, exchange.store.handle(replace(request, headers=headers)))


@dataclass(frozen=True, slots=True)
class IgnoredConditions:
    """The request is served as if it demanded nothing of the key's present state."""

    def play(self, exchange: Exchange) -> None:
        exchange.receive()
        request, conditions = exchange.request, exchange.store.conditions
        headers = {name: text for name, text in request.headers.items() if name not in conditions}
        send(exchange, exchange.store.handle(replace(request, headers=headers)))


@dataclass(frozen=True, slots=True)
class Flip:
    """One bit of the body is wrong: the lowest of byte `at` of the reply."""

    at: int = 0

    def play(self, exchange: Exchange) -> None:
        exchange.receive()
        reply = exchange.handle()
        data = bytearray(reply.body)
        data[self.at] ^= 1
        send(exchange, replace(reply, body=bytes(data)))


@dataclass(frozen=True, slots=True)
class FlipUpload:
    """One bit of the request's body is wrong when it arrives: the lowest of byte `at`."""

    at: int = 0

    def play(self, exchange: Exchange) -> None:
        exchange.receive()
        data = bytearray(exchange.request.body)
        data[self.at] ^= 1
        send(exchange, exchange.store.handle(replace(exchange.request, body=bytes(data))))


@dataclass(frozen=True, slots=True)
class Hang:
    """`after` bytes of the body, then silence on an open connection. None: not even the headers."""

    after: int | None = None

    def play(self, exchange: Exchange) -> None:
        exchange.receive()
        reply = exchange.handle()
        if self.after is not None:
            exchange.head(reply, len(reply.body))
            exchange.body(reply.body[: self.after])
        exchange.hang()


@dataclass(frozen=True, slots=True)
class Trickle:
    """The whole body, slowly: `chunk` bytes every `pause_s` seconds."""

    chunk: int
    pause_s: float

    def play(self, exchange: Exchange) -> None:
        exchange.receive()
        reply = exchange.handle()
        exchange.head(reply, len(reply.body))
        for start in range(0, len(reply.body), self.chunk):
            exchange.body(reply.body[start : start + self.chunk])
            time.sleep(self.pause_s)


@dataclass(frozen=True, slots=True)
class Delay:
    """`seconds` pass before an honest answer."""

    seconds: float

    def play(self, exchange: Exchange) -> None:
        exchange.receive()
        time.sleep(self.seconds)
        send(exchange, exchange.handle())


@dataclass(frozen=True, slots=True)
class Replaced:
    """Somebody else replaces the object by `data` before the request is served; None: only its tag."""

    data: bytes | None = None
    then: Fault = Honest()

    def play(self, exchange: Exchange) -> None:
        request = exchange.request
        if self.data is None:
            exchange.store.retag(request.bucket, request.key)
        else:
            exchange.store.put(request.bucket, request.key, self.data)
        self.then.play(exchange)


@dataclass(frozen=True, slots=True)
class LostAnswer:
    """The request takes effect, but the connection is reset before a byte of the answer."""

    def play(self, exchange: Exchange) -> None:
        exchange.receive()
        exchange.handle()
        exchange.reset()


@dataclass(frozen=True, slots=True)
class ResetWhileSending:
    """The connection is reset after `after` bytes of the request's body; nothing takes effect."""

    after: int = 0

    def play(self, exchange: Exchange) -> None:
        exchange.receive(self.after)
        exchange.reset()
