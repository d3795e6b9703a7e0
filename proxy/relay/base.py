"""The interfaces of the relay, and the operator's settings for a run."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from proxy.base.errors import UpstreamError
from proxy.http.headers import Headers
from proxy.http.secrets import Secrets

RunEvents = Callable[[str, Mapping[str, Any]], None]
"""Called as ``(kind, facts)`` for each event of a run; ``facts`` are redacted.

The kinds are ``run_started``, ``turn_finished``, ``tool_finished`` and ``run_finished``.
"""

OnBroken = Callable[[UpstreamError], None]
"""Called if an upstream's response breaks after it has begun."""


def ignore_broken(error: UpstreamError) -> None:
    """Ignore the failure: the default when nothing counts it."""


class ClientStream(Protocol):
    """The response to one client, over any transport."""

    @property
    def started(self) -> bool:
        """Whether status and headers have been sent, so that they can no longer change."""

    @property
    def stopped_by_server(self) -> bool:
        """Whether the server itself cancels the response, so that the client is still there and can get an
        error."""

    @property
    def origin(self) -> str:
        """The address by which the client calls this server (``http://127.0.0.1:8080``), for links in
        errors.

        It is empty if unknown, and once the response has started.
        """

    def blank_out(self, secrets: Secrets | None) -> None:
        """From now on, blank out each of these secrets that is whole within a piece that is sent."""

    def set_header(self, name: str, value: str) -> None:
        """Set a header of the proxy's own on the response; an empty value removes it.

        Do nothing if the response has started.
        """

    def start(self, status: int, headers: Headers) -> None:
        """Begin the response; its head is sent with the first bytes, or by :meth:`flush`."""

    def flush(self) -> None:
        """Send all held bytes now; do nothing if the client has gone."""

    def push(self, data: bytes, last: bool = False) -> Awaitable[None] | None:
        """Send bytes now.

        Return what the caller must await before it sends more, because the client does not read fast enough;
        ``None`` if it does. With ``last`` the bytes are held until :meth:`finish` or :meth:`flush`, and
        leave in one write with the end of the response. Raise ``ConnectionError`` if the client has gone.
        """

    async def write(self, data: bytes) -> None:
        """Send bytes now, and wait while the client does not read. Raise ``ConnectionError`` if it has
        gone."""

    def before_finish(self) -> Awaitable[None] | None:
        """Return what the caller must await before :meth:`finish`; ``None`` if there is nothing to await.

        The record must first store what the client's next request refers to.
        """

    def finish(self) -> None:
        """End the response properly. Raise ``ConnectionError`` if the client has gone."""

    def abort(self) -> None:
        """Close the connection in a way that shows the client that the response is incomplete."""


class NoClientStream:
    """A :class:`ClientStream` that no client receives. It drops everything, unless a subclass keeps it."""

    started = False
    stopped_by_server = False
    origin = ""

    def __init__(self) -> None:
        self._secrets: Secrets | None = None

    def blank_out(self, secrets: Secrets | None) -> None:
        """See :meth:`ClientStream.blank_out`."""
        self._secrets = secrets

    def set_header(self, name: str, value: str) -> None:
        """Do nothing: no client gets the header."""

    def start(self, status: int, headers: Headers) -> None:
        """See :meth:`ClientStream.start`."""
        self.started = True

    def flush(self) -> None:
        """Do nothing: there is no buffer."""

    def push(self, data: bytes, last: bool = False) -> Awaitable[None] | None:
        """See :meth:`ClientStream.push`."""

    async def write(self, data: bytes) -> None:
        """See :meth:`ClientStream.write`."""
        if (wait := self.push(data)) is not None:
            await wait

    def before_finish(self) -> Awaitable[None] | None:
        """Return ``None``: no client refers to this response in a later request."""

    def finish(self) -> None:
        """See :meth:`ClientStream.finish`."""

    def abort(self) -> None:
        """See :meth:`ClientStream.abort`."""


class RunSettings(Struct, frozen=True):
    """Budgets and other settings of a run; 0 tokens or cost (in billionths) means no limit. Times are
    seconds.

    ``budgets`` is the section that set the budgets, and ``calls_setting`` the setting that set
    ``max_calls``.
    """

    max_turns: int = 8
    max_calls: int = 32
    max_tokens: int = 0
    max_cost: int = 0
    request_timeout_s: float = 300.0
    budgets: str = "tools"
    calls_setting: str = "tools.max_calls"
    keepalive_s: float = 10.0
    parallel: bool = True
    retries: int = 2
    max_reply_bytes: int = 64 * 1024 * 1024
    max_argument_bytes: int = 8192

    def within(self, max_calls: int | None) -> "RunSettings":
        """Return these settings with ``max_calls`` lowered to the client's own limit, if that is smaller."""
        if max_calls is None or max_calls >= self.max_calls:
            return self
        return replace(self, max_calls=max_calls, calls_setting="max_tool_calls of the request")
