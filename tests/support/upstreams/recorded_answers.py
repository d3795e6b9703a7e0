"""An upstream without a socket: a function computes the answer to each request."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from provider_rules.judge import ADDED_BY_HTTP, refusal_now

from proxy.base.errors import UpstreamBroken
from proxy.http.headers import Headers
from proxy.upstreams.base import PulledResponse, UpstreamRequest


@dataclass(frozen=True)
class Asked:
    """A request as the upstream got it; ``payload`` is empty if the ``body`` is empty, or no JSON.

    ``rooted`` says that the path does not stand below the upstream's ``/v1``.
    """

    method: str
    path: str
    headers: Headers
    payload: dict[str, Any]
    rooted: bool = False
    body: bytes = b""


@dataclass
class Given:
    """An answer: ``body`` in one piece, or ``pieces``; ``breaks`` makes the connection fail at its end."""

    body: bytes = b""
    status: int = 200
    content_type: str = "application/json"
    headers: Headers = ()
    pieces: Sequence[bytes] = field(default_factory=list)
    breaks: bool = False

    @property
    def chunks(self) -> Sequence[bytes]:
        """The pieces of the body."""
        return self.pieces or [self.body]


class _Response(PulledResponse):
    def __init__(self, given: Given) -> None:
        self._given = given
        self.status = given.status
        self.content_type = given.content_type
        self.headers: Headers = [("Content-Type", given.content_type), *given.headers]

    async def chunks(self) -> AsyncIterator[bytes]:
        for piece in self._given.chunks:
            if piece:
                yield piece
        if self._given.breaks:
            raise UpstreamBroken("the connection was reset")

    async def read(self, limit: int) -> bytes:
        return b"".join([piece async for piece in self.chunks()])[:limit]

    async def aclose(self) -> None:
        return None


class Scripted:
    """The upstream; ``asked`` are its requests in order.

    ``provider`` is whose rules it keeps; empty for the one of the test.
    """

    name = "scripted"
    provider = ""

    def __init__(self, answer: Callable[[Asked], Given]) -> None:
        self._answer = answer
        self.asked: list[Asked] = []

    async def open(self, request: UpstreamRequest) -> _Response:
        body = request.body if isinstance(request.body, bytes) and request.body else b"{}"
        said = orjson.loads(body) if body[:1] != b"-" else {}
        asked = Asked(request.method, request.path, request.headers, said, request.rooted, body)
        self.asked.append(asked)
        headers = [*ADDED_BY_HTTP, *request.headers]
        if refused := refusal_now(request.method, request.path, headers, body, self.provider):
            return _Response(Given(refused.data, refused.status))
        return _Response(self._answer(self.asked[-1]))

    async def aclose(self) -> None:
        raise AssertionError("whoever borrows an upstream does not close it")
