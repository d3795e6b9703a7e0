"""The capabilities that a tool can receive: a clock, an HTTP client, the facts of the call (rule T6).

A tool requests a capability by the type of a parameter. Such a parameter is not part of the schema, and the
model cannot set it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any, Protocol

import orjson
from msgspec import Struct, field

from proxy.base.errors import ToolFailure
from proxy.tools.contract.bounds import FetchBounds

QueryParams = Mapping[str, str | int | float]
"""Query parameters of a URL, not yet encoded."""


class Clock(Protocol):
    """The source of the time, so that a tool never reads the machine's clock."""

    def now(self, tz: tzinfo) -> datetime:
        """Return the current time as an aware ``datetime`` in ``tz``."""


class HttpFailure(ToolFailure):
    """A request without a usable response.

    ``status`` is the HTTP status, if there was one. :attr:`json` is the body of the response, for a tool
    that explains a service's own error codes. The body is untrusted text and not part of the message.
    """

    def __init__(
        self, message: str, *, status: int | None = None, body: bytes = b"", transient: bool = False
    ) -> None:
        self.status = status
        self._body = body
        passing = status is not None and (status == 429 or status >= 500)
        super().__init__(message, transient=transient or passing)

    @property
    def body(self) -> bytes:
        """The body of the response; empty if there is none."""
        return self._body

    @property
    def json(self) -> Any:
        """The decoded JSON body of the response; ``None`` if there is no body or it is not JSON."""
        try:
            return orjson.loads(self._body) if self._body else None
        except orjson.JSONDecodeError:
            return None


@dataclass(frozen=True, slots=True)
class TextPage:
    """A text from the web.

    ``url`` is its URL after all redirects, ``content_type`` its media type in lower case without parameters,
    ``text`` the decoded body.
    """

    url: str
    content_type: str
    text: str


class HttpClient(Protocol):
    """Outgoing HTTP for one tool, limited to that tool's hosts and bounded in size and time.

    If the service is too busy (429, 503), the client waits and retries. After a 503 it retries a POST of a
    tool with effects only if the service says when to retry, or if the request has an idempotency key. That
    is an ``Idempotency-Key`` header, or an :class:`IdempotencyKey` as a header or in the body.

    Every method raises :class:`HttpFailure`, with a message that is safe for the model, if there is no usable
    response: a host that is not allowed, no connection, a status other than 2xx, a body of the wrong type or
    above its size limit, a wait beyond its limit.
    """

    async def get_json(
        self, url: str, params: QueryParams | None = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """Send a GET and return the decoded JSON body of the response; ``headers`` as for a POST."""

    async def post_json(
        self,
        url: str,
        body: Any,
        params: QueryParams | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """POST ``body`` as JSON and return the decoded JSON body of the response; ``None`` if it is empty.

        ``headers`` are further headers, such as a version of the API. Raises ``ValueError`` for headers that
        only the client may set: credentials, cookies, framing.
        """

    async def get_text(self, url: str) -> TextPage:
        """Fetch a page of text (HTML, plain text, XML, JSON); follow redirects to allowed hosts."""


class AdjustableClient(ABC):
    """The base of an :class:`HttpClient` that adjusts to the tool, and to each call of it."""

    @abstractmethod
    def for_reading(self) -> HttpClient:
        """Return this client for a tool that changes nothing: each of its requests may be retried."""

    @abstractmethod
    def with_time(self, tool_s: float) -> HttpClient:
        """Return this client for a tool whose calls may take ``tool_s`` seconds."""

    @abstractmethod
    def within(self, fetches: FetchBounds) -> HttpClient:
        """Return this client for one call with the policy's bounds on its URL arguments."""


class Unconnected:
    """The HTTP client of a tool whose connection is not configured: every request fails with that message."""

    def __init__(self, connection: str) -> None:
        self._connection = connection

    async def get_json(
        self, url: str, params: QueryParams | None = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        raise self._failure()

    async def post_json(
        self,
        url: str,
        body: Any,
        params: QueryParams | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        raise self._failure()

    async def get_text(self, url: str) -> TextPage:
        raise self._failure()

    def _failure(self) -> HttpFailure:
        return unconnected(self._connection)


def unconnected(connection: str) -> HttpFailure:
    """Return the failure for a connection that is not configured."""
    return HttpFailure(f'this tool\'s connection "{connection}" is not set up', status=401)


class Credentials(Protocol):
    """The port by which the runner prepares credentials of connections, without seeing them (rule T6)."""

    async def prepare(self, connection: str) -> None:
        """Load the credentials that a call over this connection will need; refresh them if that is due.

        Raises :class:`ToolFailure`, with a message that is safe for the model, if there are
        none.
        """


class CacheControl:
    """The control over how long the result of this one call may be reused.

    It can only shorten the tool's ``cache_ttl_s``. Without ``cache_ttl_s`` it does nothing.
    """

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until: float | None = None

    def expire_at(self, moment: datetime) -> None:
        """Do not reuse the result after ``moment``, an aware ``datetime``; the earliest of several wins."""
        if moment.tzinfo is None:
            raise ValueError("expire_at takes an aware datetime")
        until = moment.timestamp()
        self._until = until if self._until is None else min(self._until, until)

    def no_store(self) -> None:
        """Do not reuse the result at all."""
        self._until = float("-inf")

    @property
    def until(self) -> float | None:
        """The time at which the result expires, in seconds since the epoch; ``None`` if it was not set."""
        return self._until


class IdempotencyKey(str):
    """An idempotency key: it names one effect and is the same for every try of it.

    A tool with effects may be retried if it passes the key to a service that supports such keys.
    """

    __slots__ = ()


HttpSource = Callable[[Sequence[str]], HttpClient]
"""Return an HTTP client that reaches only the named hosts."""

ConnectedHttpSource = Callable[[str, Sequence[str]], HttpClient]
"""Return an HTTP client for the named connection and hosts; the client adds the credentials itself."""


class Capabilities(Struct, frozen=True):
    """The capabilities that a provider can give to its tools.

    ``http`` creates a client for a tool's own hosts; ``connected`` creates one that also sends the
    credentials of a connection. ``extra`` maps further parameter types to their values.
    """

    clock: Clock | None = None
    http: HttpSource | None = None
    extra: Mapping[type, Any] = field(default_factory=dict)
    connected: ConnectedHttpSource | None = None
