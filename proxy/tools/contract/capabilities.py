"""What a tool may be handed: a clock, an HTTP client, the facts of the call (rule T6).

A tool asks for a capability by the type of a parameter.  The parameter is then no part of the
schema, and the model cannot set it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Any, Protocol, runtime_checkable

import orjson

from proxy.errors import ToolFailure
from proxy.tools.contract.bounds import FetchBounds

__all__ = [
    "BoundedClient",
    "CacheControl",
    "Capabilities",
    "Clock",
    "ConnectedHttpSource",
    "Credentials",
    "HttpClient",
    "HttpFailure",
    "HttpSource",
    "IdempotencyKey",
    "QueryParams",
    "RepeatingClient",
    "TextPage",
    "TimedClient",
    "Unconnected",
    "unconnected",
]

QueryParams = Mapping[str, str | int | float]
"""Query parameters of a URL, not yet encoded."""


class Clock(Protocol):
    """The time, so that a tool never asks the machine for it."""

    def now(self, tz: tzinfo) -> datetime:
        """The current time as an aware ``datetime`` in ``tz``."""
        ...


class HttpFailure(ToolFailure):
    """A request that brought no usable answer.

    ``status`` is the HTTP status, if there was one; :attr:`json` is the answer's body, for a tool
    that turns a service's own error codes into words.  The body is a stranger's text and is no part
    of the message.
    """

    def __init__(
        self, message: str, *, status: int | None = None, body: bytes = b"", transient: bool = False
    ) -> None:
        self.status = status
        self._body = body
        passing = status is not None and (status == 429 or status >= 500)
        super().__init__(message, transient=transient or passing)

    @property
    def json(self) -> Any:
        """The body of the answer as JSON; ``None`` where there was none or it is no JSON."""
        try:
            return orjson.loads(self._body) if self._body else None
        except orjson.JSONDecodeError:
            return None


@dataclass(frozen=True, slots=True)
class TextPage:
    """A text from the web.

    ``url`` is where it was found after all redirects, ``content_type`` its media type in lower case
    without parameters, ``text`` the decoded body.
    """

    url: str
    content_type: str
    text: str


class HttpClient(Protocol):
    """Outgoing HTTP for one tool, limited to that tool's hosts and bounded in size and time.

    What the service is too busy for (429, 503) is asked again after a wait.  A POST of a tool with
    effects is, after a 503, only where the service says when to come again, or where the request bears
    an ``Idempotency-Key`` header or an :class:`IdempotencyKey`, as a header or in its body.

    Every method raises :class:`HttpFailure`, with words that are safe for the model, where it has
    no usable answer: a host that is not allowed, no connection, a status other than 2xx, a body
    that is not what was asked for or past its bound, a wait past its bound.
    """

    async def get_json(self, url: str, params: QueryParams | None = None) -> Any:
        """The decoded JSON body of the answer to GET."""
        ...

    async def post_json(
        self,
        url: str,
        body: Any,
        params: QueryParams | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The decoded JSON body of the answer to POST with ``body`` as JSON; ``None`` for no body.

        ``headers`` are further headers such as a version of the API.  Raises ``ValueError`` for
        those that belong to the client: credentials, cookies, framing.
        """
        ...

    async def get_text(self, url: str) -> TextPage:
        """A page of text (HTML, plain text, XML, JSON), redirects to allowed hosts followed."""
        ...


@runtime_checkable
class RepeatingClient(Protocol):
    """An :class:`HttpClient` that sends some requests again, and has to know which it may."""

    def for_reading(self) -> HttpClient:
        """The same client for a tool that changes nothing: each of its requests may be repeated."""
        ...


@runtime_checkable
class TimedClient(Protocol):
    """An :class:`HttpClient` with a time limit for each request."""

    def with_time(self, tool_s: float) -> HttpClient:
        """The same client for a tool whose calls may take ``tool_s`` seconds."""
        ...


@runtime_checkable
class BoundedClient(Protocol):
    """An :class:`HttpClient` that can be held to what policy lets a call's addresses be."""

    def within(self, fetches: FetchBounds) -> HttpClient:
        """The same client for one call."""
        ...


class Unconnected:
    """The client of a tool whose connection is not configured: it reaches nothing and says so."""

    def __init__(self, connection: str) -> None:
        self._connection = connection

    async def get_json(self, url: str, params: QueryParams | None = None) -> Any:
        """Always :class:`HttpFailure`."""
        raise self._failure()

    async def post_json(
        self,
        url: str,
        body: Any,
        params: QueryParams | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Always :class:`HttpFailure`."""
        raise self._failure()

    async def get_text(self, url: str) -> TextPage:
        """Always :class:`HttpFailure`."""
        raise self._failure()

    def _failure(self) -> HttpFailure:
        return unconnected(self._connection)


def unconnected(connection: str) -> HttpFailure:
    """The message about a connection that is not configured."""
    return HttpFailure(f'this tool\'s connection "{connection}" is not set up', status=401)


class Credentials(Protocol):
    """The credentials of connections, for the runner: it never sees them either (rule T6)."""

    async def prepare(self, connection: str) -> None:
        """Have what a call of that connection will need at hand, refreshed where that is due.

        Raises :class:`~proxy.errors.ToolFailure`, with words that are safe for the model, where
        there is nothing to be had.
        """
        ...


class CacheControl:
    """How long the result of this one call may be given out again.

    It can only shorten what ``cache_ttl_s`` of the tool allows.  Without ``cache_ttl_s`` it does
    nothing.
    """

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until: float | None = None

    def expire_at(self, moment: datetime) -> None:
        """Not past ``moment``, an aware ``datetime``; the earliest of several holds."""
        if moment.tzinfo is None:
            raise ValueError("expire_at takes an aware datetime")
        until = moment.timestamp()
        self._until = until if self._until is None else min(self._until, until)

    def no_store(self) -> None:
        """Not at all."""
        self._until = float("-inf")

    @property
    def until(self) -> float | None:
        """Seconds since the epoch at which the result's life ends; ``None`` for no word on it."""
        return self._until


class IdempotencyKey(str):
    """A key that names this one effect, the same for every try of it.

    A tool with effects that passes it on to a service which knows such keys may be retried.
    """

    __slots__ = ()


HttpSource = Callable[[Sequence[str]], HttpClient]
"""Gives an HTTP client that reaches the named hosts only."""

ConnectedHttpSource = Callable[[str, Sequence[str]], HttpClient]
"""Gives a client for the named connection and hosts; it adds the credentials by itself."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a provider can hand to its tools.

    ``http`` makes a client for a tool's own hosts, ``connected`` one that also carries the
    credentials of a connection.  ``extra`` maps further parameter types to the value that is handed
    over for them.
    """

    clock: Clock | None = None
    http: HttpSource | None = None
    extra: Mapping[type, Any] = field(default_factory=dict)
    connected: ConnectedHttpSource | None = None
