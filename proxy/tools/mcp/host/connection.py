"""Keep the connection to one server: connect, reconnect after a loss, and send calls.

One task owns the session from beginning to end, as the SDK requires; calls use it from their own tasks. A
call is sent once. If the connection is lost during the call, it is unknown whether the server ran it; the
failure says so, and the caller decides whether to retry. Only if the server refused a call because it no
longer knows the session, the call is sent again in a new session.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Literal, Protocol

import orjson
from mcp.shared.exceptions import MCPError
from msgspec import Struct
from msgspec.structs import replace

from proxy.base.plain_text import plain_text
from proxy.tools.mcp.definitions import Definition, Listing, UnusableDefinition
from proxy.tools.mcp.host.authorization import Ask, NotAuthorized
from proxy.tools.mcp.host.bounds import MAX_LINE, NO_MESSAGE, TOO_LONG, TOO_LONG_WORDS, PastBounds
from proxy.tools.mcp.host.http import SESSION_GONE, UNAUTHORIZED, HttpServer, tells_of_lost_session
from proxy.tools.mcp.host.left_behind import Groups
from proxy.tools.mcp.host.mirroring import TooLongForHeaders, mirrored_headers, read_tools
from proxy.tools.mcp.host.sdk import McpClientSession, OnProgress
from proxy.tools.mcp.host.stdio import StdioServer, Streams
from proxy.tools.mcp.host.watching import Watched
from proxy.tools.mcp.servers import HostSettings, Server

ConnectionState = Literal["starting", "ready", "reconnecting", "unauthorized"]

FailureKind = Literal["error", "away", "lost", "timeout", "busy", "drift", "unauthorized"]
"""The reason why a call has no result: the server answered with an error, is not connected, was lost during
the call, took too long, has too many open calls, has another definition than the allowed one, or refused the
token."""

_FIRST_WAIT_S: Final = 0.5
_LONGEST_WAIT_S: Final = 60.0
_STEADY_S: Final = 60.0
_LOGIN_S: Final = 5.0
"""Seconds between two checks for a new login; they do not contact the server."""

_AWAY_S: Final = 2.0
"""The most seconds that a call waits for a server that is being connected."""

_MOST_SESSIONS: Final = 2
"""The number of sessions in which one call is tried."""

_MAX_OPEN: Final = 32
_MAX_PAGES: Final = 100
_LIST_S: Final = 30.0
_PROBE_S: Final = 5.0
_MAX_WORDS: Final = 4096
"""The most characters of an error that leave the process."""

_STALE_S: Final = 60.0

_ENDING_S: Final = 10.0
"""Seconds to wait for a cancelled task: longer than a transport takes to end a process."""

_CONNECTION_CLOSED, _REQUEST_TIMEOUT = -32000, -32001
_STREAM_ENDED: Final = "SSE stream"
"""The start of the SDK's messages about an event stream that ended before the answer came."""


class CallFailed(Exception):
    """A call without a result. ``error`` is the server's own error, if it answered with one."""

    def __init__(self, kind: FailureKind, text: str, error: Mapping[str, Any] | None = None) -> None:
        self.kind = kind
        self.words = text
        self.error = error
        super().__init__(text)


class _SessionGone(Exception):
    """The server did not know the session of a call, so it did not run the call."""


class Transport(Protocol):
    """The transport to a server."""

    @property
    def stderr(self) -> str: ...

    def open(self) -> AbstractAsyncContextManager[Streams]: ...


class Status(Struct, frozen=True):
    """The current status of a connection. A ready server has a ``reason`` if it requires scopes that its
    token lacks."""

    state: ConnectionState
    reason: str = ""
    version: str = ""
    server_info: tuple[str, str] = ("", "")
    listing: Listing | None = None


class ConnectionHistory(Struct):
    """The history of a connection.

    ``connects`` is how often the server was connected. ``last_error`` is the latest reason for a loss or a
    failed connection; ``cause`` is the same without any text of the server. ``list_ms`` is how many
    milliseconds the latest list of tools took. ``skipped`` is the first line that the server wrote to its
    standard output and that is no message.
    """

    connects: int = 0
    last_error: str = ""
    cause: str = ""
    list_ms: float = 0.0
    skipped: str = ""


class Connection:
    """The connection to one server; :meth:`run` keeps it connected until it is cancelled."""

    def __init__(
        self,
        server: Server,
        settings: HostSettings,
        changed: Callable[[], None],
        groups: Groups,
        ask: Ask,
    ) -> None:
        """``changed`` is called whenever the status has changed; ``groups`` gets the process group of a
        server that is a command; ``ask`` authorizes the requests."""
        self.server = server
        self.status = Status("starting")
        self.history = ConnectionHistory()
        self.stderr = ""
        self._settings = settings
        self._changed = changed
        self._groups = groups
        self._ask = ask
        self._refusal: NotAuthorized | None = None
        self._session: McpClientSession | None = None
        self._gone = False
        self._fault: PastBounds | None = None
        self._end: Callable[[], None] = lambda: None
        self._usable = asyncio.Event()
        self._listed_at = 0.0
        self._list_again = asyncio.Event()
        self._open = 0
        self._tried = asyncio.Event()

    async def run(self) -> None:
        """Connect, and reconnect after each loss; the wait grows while connections do not last."""
        wait_s = _FIRST_WAIT_S
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            reason = self.history.cause = "the connection was closed"
            unauthorized = False
            try:
                error = await _outcome(self._serve())
                # What the end of the session raised follows from the bound.
                error = self._fault or error
            finally:
                self._session = None
                self._usable.clear()
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise error
            if error is not None:
                reason = _error_text(error)
                self.history.cause = _cause(error)
                unauthorized = _is_unauthorized(error)
            if loop.time() - began > _STEADY_S:
                wait_s = _FIRST_WAIT_S
            self.history.last_error = self._with_stderr(reason)
            refusal = self._refusal
            # A missing scope of one call is not the reason why the connection ended.
            if refusal is not None and (unauthorized or not refusal.lacks_scope):
                self.history.last_error = str(refusal)
                self._tell(Status("unauthorized", str(refusal), listing=self.status.listing))
            else:
                self._tell(Status("reconnecting", self.history.last_error, listing=self.status.listing))
            is_cheap = refusal is not None and refusal.needs_login
            await asyncio.sleep((_LOGIN_S if is_cheap else wait_s) * random.uniform(0.8, 1.2))
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    async def _serve(self) -> None:
        """Connect once and serve until the connection ends."""
        self._refusal = None
        self._gone = False
        self._fault = None
        transport = self._transport()
        try:
            async with (
                transport.open() as streams,
                Watched(streams, self._lost) as watched,
                McpClientSession(watched.streams, self._list_again.set) as session,
            ):
                async with asyncio.timeout(self._settings.connect_timeout_s):
                    await session.negotiate()
                    await self._list(session)
                self._session, self._end = session, watched.end
                self._usable.set()
                await self._attend(session, watched)
        finally:
            self.stderr = transport.stderr

    def _lost(self, fault: PastBounds | None = None) -> None:
        """Mark the connection as lost at once, so that no further call uses this session."""
        self._fault = self._fault or fault
        if self._session is not None:
            self._session = None
            self._usable.clear()
            self._tell(Status("reconnecting", "the connection was closed", listing=self.status.listing))

    def _transport(self) -> Transport:
        if self.server.command:
            return StdioServer(self.server, self._groups, self._skipped)
        return HttpServer(self.server, self._settings, self._ask, self._refused, self._forgotten)

    def _skipped(self, line: str) -> None:
        """Note the first line that is no message."""
        if not self.history.skipped:
            self.history.skipped = line
            self._changed()

    def _forgotten(self) -> None:
        """Note that the server no longer knows the session; the request that found this then fails."""
        self._gone = True

    def _refused(self, refusal: NotAuthorized | None) -> None:
        """Note why a request was not authorized; ``None`` means that missing scopes are now granted."""
        self._refusal = refusal
        if self.status.state == "ready" and (refusal is None or refusal.lacks_scope):
            self._tell(replace(self.status, reason="" if refusal is None else str(refusal)))

    async def _attend(self, session: McpClientSession, watched: "Watched") -> None:
        """List the tools again whenever the server reports a change, until the connection ends."""
        ended = asyncio.ensure_future(watched.ended.wait())
        try:
            while not ended.done():
                again = asyncio.ensure_future(self._list_again.wait())
                await asyncio.wait({ended, again}, return_when=asyncio.FIRST_COMPLETED)
                again.cancel()
                if ended.done():
                    return
                # A server may report changes a hundred times a second.
                since_s = asyncio.get_running_loop().time() - self._listed_at
                await asyncio.wait({ended}, timeout=max(0.1, self._settings.list_every_s - since_s))
                if not ended.done():
                    await self._list(session)
        finally:
            ended.cancel()

    async def _list(self, session: McpClientSession) -> None:
        """Read the server's list of tools and report the new status."""
        began = asyncio.get_running_loop().time()
        self._list_again.clear()
        tools = await self._all_tools(session)
        # Run in a thread, because the check of large untrusted schemas takes a while.
        listing = await asyncio.to_thread(
            read_tools, self.server, session.version, tools, self._settings.max_tools
        )
        self._listed_at = asyncio.get_running_loop().time()
        self.history.list_ms = (self._listed_at - began) * 1000
        self.history.connects += self._session is None
        name, version = session.server_info
        info = (plain_text(name, 100), plain_text(version, 100))
        lacking = self.status.reason if self.status.state == "ready" else ""
        self._tell(Status("ready", lacking, session.version, info, listing))

    async def _all_tools(self, session: McpClientSession) -> list[Any]:
        """Return the tools of all pages; raise UnusableDefinition for a list that is none or too large."""
        pages: list[Any] = []
        tools: list[Any] = []
        cursors: set[str] = set()
        cursor: str | None = None
        size = 0
        for _ in range(_MAX_PAGES):
            params = {} if cursor is None else {"cursor": cursor}
            try:
                page = await session.request("tools/list", params, _LIST_S)
            except MCPError:
                if cursor == "":
                    break
                raise
            listed = page.get("tools")
            if not isinstance(listed, list):
                raise UnusableDefinition("the server's answer has no list of tools")
            if listed and listed in pages:
                # The server does not follow the cursor.
                break
            size += _size(page)
            if size > MAX_LINE:
                raise UnusableDefinition(f"the server's list of tools is larger than {MAX_LINE} bytes")
            pages.append(listed)
            tools += listed
            cursor = page.get("nextCursor")
            # By the specification only a missing cursor means the last page, but some servers write an empty
            # one. So it is followed once, and an error or the same page ends the list.
            if not isinstance(cursor, str) or cursor in cursors or len(tools) > self._settings.max_tools:
                break
            cursors.add(cursor)
        return tools

    def definition(self, tool: str) -> Definition | None:
        """Return the server's definition of a tool; ``None`` if it is not listed."""
        listing = self.status.listing
        definitions = listing.definitions if listing is not None else ()
        return next((definition for definition in definitions if definition.name == tool), None)

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        digest: str,
        timeout_s: float,
        on_progress: OnProgress | None = None,
    ) -> dict[str, Any]:
        """Call a tool and return its unvalidated result; raise :class:`CallFailed` if there is none."""
        until = asyncio.get_running_loop().time() + timeout_s
        for _ in range(_MOST_SESSIONS):
            with contextlib.suppress(_SessionGone):
                return await self._call(tool, arguments, digest, until, on_progress)
        raise CallFailed("away", f"the server {self.server.name} did not know the new session either")

    async def _call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        digest: str,
        until: float,
        on_progress: OnProgress | None,
    ) -> dict[str, Any]:
        """Call a tool in one session and return the result; ``until`` is the deadline on the loop's clock.

        Raises :class:`CallFailed` and :class:`_SessionGone`.
        """
        timeout_s = max(0.001, until - asyncio.get_running_loop().time())
        session = await self._ready(min(_AWAY_S, timeout_s))
        live = self.definition(tool)
        if live is None:
            raise CallFailed("drift", "the server does not list this tool any more")
        if live.digest != digest:
            raise CallFailed("drift", "its definition has changed; an operator has to allow it again")
        if self._open >= _MAX_OPEN:
            raise CallFailed("busy", f"the server has {_MAX_OPEN} calls open; try again later")
        self._open += 1
        params = {"name": tool, "arguments": dict(arguments)}
        timeout_s = max(0.001, until - asyncio.get_running_loop().time())
        try:
            headers = mirrored_headers(self.server, session.version, live, arguments)
            return await session.request("tools/call", params, timeout_s, on_progress, headers)
        except TooLongForHeaders as fault:
            raise CallFailed("error", str(fault)) from None
        except MCPError as error:
            if self._gone and error.code == SESSION_GONE:
                self._leave(session)
                raise _SessionGone from None
            if self.server.url and await _is_unknown(session, error):
                self._leave(session)
                raise _SessionGone from None
            raise self._failure(error, lost=self._session is not session, until=until) from None
        finally:
            self._open -= 1
            if asyncio.get_running_loop().time() - self._listed_at > _STALE_S:
                self._list_again.set()

    def _leave(self, session: McpClientSession) -> None:
        """End a session that the server does not know, unless that has been done."""
        if self._session is session:
            self._end()

    async def _ready(self, within_s: float) -> McpClientSession:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._usable.wait()
        if self._session is None:
            raise CallFailed("away", f"the server {self.server.name} is not connected")
        return self._session

    def _failure(self, error: MCPError, *, lost: bool, until: float) -> CallFailed:
        """Return the failure of a call with the deadline ``until``; ``lost``: its session has ended.

        An error code alone does not decide, because servers may use the SDK's own codes too.
        """
        if error.code == _REQUEST_TIMEOUT and asyncio.get_running_loop().time() >= until:
            return CallFailed("timeout", "the tool took too long")
        if error.code == UNAUTHORIZED and self._refusal is not None:
            why = "lacks a scope for this" if self._refusal.lacks_scope else "is not accepted"
            return CallFailed(
                "unauthorized", f"the token for the server {why}; an operator has to look at its login"
            )
        if error.code == _CONNECTION_CLOSED and lost:
            why = f": {self._fault}" if self._fault is not None else ""
            return CallFailed("lost", f"the connection to the server {self.server.name} was lost{why}")
        if error.code == TOO_LONG:
            return CallFailed("lost", TOO_LONG_WORDS)
        if error.code == _CONNECTION_CLOSED and error.message.startswith(_STREAM_ENDED):
            return CallFailed("lost", "the server's answer broke off")
        if error.code == NO_MESSAGE:
            return CallFailed(
                "error", "the server sent an answer that cannot be read, so nobody knows whether the tool ran"
            )
        text = error.message[:_MAX_WORDS]
        return CallFailed("error", text, {"code": error.code, "message": text})

    async def wait(self, within_s: float) -> None:
        """Wait until the server is connected or has failed once, at most ``within_s`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._tried.wait()

    def _with_stderr(self, reason: str) -> str:
        """Return the reason with the last line of the process's standard error."""
        lines = [line for line in self.stderr.splitlines() if line.strip()]
        return f"{reason} ({plain_text(lines[-1])})" if lines else reason

    def _tell(self, status: Status) -> None:
        self.status = status
        self._tried.set()
        self._changed()


async def _outcome(work: Coroutine[Any, Any, None]) -> BaseException | None:
    """Run ``work`` and return what it raised; ``None`` if it ended normally or was cancelled.

    It runs in a task of its own, because a task group of the SDK can swallow a cancellation or raise another
    error in its place.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task})
    finally:
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_ENDING_S)
        error = None if task.cancelled() else task.exception()
    return error


async def _is_unknown(session: McpClientSession, error: MCPError) -> bool:
    """Return whether an error of a call means that the server does not know the session.

    Some servers say so by an error that a tool could return as well. A server that refuses a list of the
    tools in the same way refuses whatever the session asks, so it did not run the call.
    """
    if not tells_of_lost_session(error.message):
        return False
    try:
        await session.request("tools/list", {}, _PROBE_S)
    except MCPError as again:
        return again.code == error.code and tells_of_lost_session(again.message)
    return False


def _size(page: Mapping[str, Any]) -> int:
    """Return the size of a page of tools in bytes; a page that is nested too deeply counts as a large one."""
    try:
        return len(orjson.dumps(page))
    except orjson.JSONEncodeError:
        return MAX_LINE // 4


def _is_unauthorized(error: BaseException) -> bool:
    """Return whether the connection failed because a request was not authorized."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return isinstance(error, MCPError) and error.code == UNAUTHORIZED


def _cause(error: BaseException) -> str:
    """Return the reason of a failure for the log, without any text of the server, which is untrusted."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    if isinstance(error, MCPError):
        return f"the server answered with the error {error.code}"
    if isinstance(error, TimeoutError):
        return "the server did not answer in time"
    return str(error) if isinstance(error, PastBounds) else type(error).__name__


def _error_text(error: BaseException) -> str:
    """Return the reason of a failure for a person."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return "the server did not answer in time"
    if isinstance(error, FileNotFoundError):
        return f"the command was not found: {plain_text(str(error.filename))}"
    text = plain_text(str(error)) or type(error).__name__
    return (
        text
        if isinstance(error, MCPError | PastBounds | UnusableDefinition)
        else f"{type(error).__name__}: {text}"
    )
