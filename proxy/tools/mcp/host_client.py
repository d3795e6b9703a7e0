"""The client with which a worker uses the host process, which talks to MCP servers."""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

import orjson
from msgspec import Struct
from msgspec.structs import replace

from proxy.base.errors import ToolFailure
from proxy.base.events import ToolProgress
from proxy.net.channel import MAX_BODY, Channel, ChannelBroken
from proxy.net.keep_running import keep_running
from proxy.tools.mcp.definitions import Definition, LeftOutTool
from proxy.tools.mcp.results import failure_of_error

_RETRY_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_MAX_ASKED: Final = 1024
_DOUBT = "; it may have taken effect all the same"


class ServerStatus(Struct, frozen=True):
    """The status of a server.

    ``state`` is ``starting``, ``ready``, ``reconnecting`` or ``unauthorized``. ``reason`` says why the
    server is not connected, or which scopes the token of a ready server lacks. ``version`` is the negotiated
    protocol revision; ``server_info`` is the server's own name and version. ``digests`` maps the server's
    names of its tools to their digests; ``None`` before the first list. ``reconnects`` is how often it was
    connected again. ``last_error`` is the latest reason for a loss or a failed connection. ``list_ms`` is
    how many milliseconds the latest list of tools took. ``skipped`` is the first line, as plain text, that
    the server wrote to its standard output and that is no message.
    """

    state: str = "starting"
    reason: str = ""
    version: str = ""
    server_info: tuple[str, str] = ("", "")
    digests: Mapping[str, str] | None = None
    left_out: Sequence[LeftOutTool] = ()
    reconnects: int = 0
    last_error: str = ""
    list_ms: float = 0.0
    skipped: str = ""

    @classmethod
    def read(cls, message: Mapping[str, Any]) -> "ServerStatus":
        """Read the status that the host process sent."""
        name, version = message["server_info"]
        left_out = tuple(LeftOutTool(*omitted) for omitted in message["left_out"])
        return cls(
            state=message["state"],
            reason=message["reason"],
            version=message["version"],
            server_info=(name, version),
            digests=message["digests"],
            left_out=left_out,
            reconnects=message["reconnects"],
            last_error=message["last_error"],
            list_ms=message["list_ms"],
            skipped=message["skipped"],
        )


class ServerListing(Struct, frozen=True):
    """A server's status and definitions; ``stderr`` is the end of its process's standard error."""

    status: ServerStatus
    definitions: Sequence[Definition] = ()
    stderr: str = ""


@dataclass(frozen=True, slots=True)
class Authorization:
    """The value of ``Authorization`` for one server, or the reason for the operator why there is none."""

    value: str | None = field(default=None, repr=False)
    reason: str = ""
    needs_login: bool = False


Authorize = Callable[[str, str, tuple[str, ...] | None], Awaitable[Authorization]]
"""Called as ``(server, refused, scopes)``; returns the authorization for a server, and raises nothing.

``refused`` is a value that the server refused, empty at first. ``scopes`` are those that it requires for a
request, ``None`` if no scope is missing."""


@dataclass(slots=True)
class _Open:
    """A request to the host process that waits for its response."""

    done: "asyncio.Future[bytes]"
    on_progress: Callable[[ToolProgress], None] | None = None


@dataclass(slots=True)
class HostClient:
    """A connection to the host process, restored after a loss. Belongs to one event loop.

    ``statuses`` are the latest known statuses of all servers; :meth:`watch` reports changes. ``reconnects``
    counts how often each server was connected again, over all host processes so far. With ``authorize`` the
    host process can get the ``Authorization`` headers of servers from this process.
    """

    path: Path
    authorize: Authorize | None = None
    statuses: Mapping[str, ServerStatus] = field(default_factory=dict)
    reconnects: dict[str, int] = field(default_factory=dict)
    _channel: Channel | None = None
    _open: dict[int, _Open] = field(default_factory=dict)
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _connected: asyncio.Event = field(default_factory=asyncio.Event)
    _watchers: list[Callable[[], None]] = field(default_factory=list)
    _task: "asyncio.Task[NoReturn] | None" = None
    _asked: "set[asyncio.Task[None]]" = field(default_factory=set)

    def watch(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` whenever the statuses have changed."""
        self._watchers.append(changed)

    def start(self) -> None:
        """Connect, and stay connected until :meth:`aclose`."""
        if self._task is None:
            self._task = asyncio.create_task(keep_running("mcp-host-client", self._run))

    async def aclose(self) -> None:
        """Disconnect from the host process."""
        tasks = {*self._asked, *([self._task] if self._task is not None else [])}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def call(
        self,
        server: str,
        tool: str,
        digest: str,
        arguments: Any,
        within_s: float,
        on_progress: Callable[[ToolProgress], None] | None = None,
    ) -> Any:
        """Call a tool and return the server's unchanged result.

        ``digest`` is the digest of the allowed definition; if the server's definition differs, the tool is
        not called. Raises :class:`ToolFailure`. A cancellation also cancels the call at the
        server.
        """
        body = orjson.dumps(arguments)
        header = {
            "server": server,
            "tool": tool,
            "digest": digest,
            "within_s": within_s,
            "progress": on_progress is not None,
        }
        return orjson.loads(await self._ask("call", server, header, body, on_progress))

    async def listing(self, server: str, within_s: float, only: Sequence[str] | None = None) -> ServerListing:
        """Wait at most ``within_s`` seconds until a server is connected or has failed; return its listing.

        ``only`` restricts it to tools with these names (the server's own). Raises
        :class:`~proxy.base.errors.ToolFailure` if the host process is not connected.
        """
        header = {"server": server, "within_s": within_s, "only": None if only is None else list(only)}
        message = orjson.loads(await self._ask("list", server, header, b"", None, within_s + 5))
        definitions = tuple(Definition.read(definition) for definition in message["definitions"])
        return ServerListing(ServerStatus.read(message["status"]), definitions, message["stderr"])

    async def _ask(
        self,
        kind: str,
        server: str,
        header: Mapping[str, Any],
        body: bytes,
        on_progress: Callable[[ToolProgress], None] | None,
        connect_s: float = 2.0,
    ) -> bytes:
        if len(body) > MAX_BODY:
            raise ToolFailure("the arguments are too large", code="invalid_arguments")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(connect_s):
                await self._connected.wait()
        channel = self._channel
        if channel is None:
            raise _not_connected(server)
        number = next(self._numbers)
        waiting = self._open[number] = _Open(asyncio.get_running_loop().create_future(), on_progress)
        try:
            if not channel.send(kind, body, id=number, **header):
                raise _not_connected(server)
            return await waiting.done
        except asyncio.CancelledError:
            channel.send("cancel", id=number)
            raise
        finally:
            del self._open[number]

    async def _run(self) -> None:
        tries = 0
        while True:
            with contextlib.suppress(OSError, ChannelBroken):
                channel = Channel(*await asyncio.open_unix_connection(self.path))
                tries = 0
                try:
                    await self._read(channel)
                finally:
                    self._channel = None
                    self._connected.clear()
                    channel.close()
                    self._fail_open()
            await asyncio.sleep(_RETRY_S[min(tries, len(_RETRY_S) - 1)])
            tries += 1

    async def _read(self, channel: Channel) -> None:
        """Handle the messages of the host process until it ends."""
        self._channel = channel
        self._connected.set()
        if self.authorize is not None:
            channel.send("authorizes")
        while (message := await channel.receive()) is not None:
            header, body = message
            waiting = self._open.get(header.get("id", 0))
            match header["kind"]:
                case "status":
                    content = orjson.loads(body)
                    self._note({name: ServerStatus.read(status) for name, status in content.items()})
                    self._tell()
                case "progress" if waiting is not None and waiting.on_progress is not None:
                    waiting.on_progress(ToolProgress(*orjson.loads(body)))
                case "result" if waiting is not None and not waiting.done.done():
                    waiting.done.set_result(body)
                case "authorize" if self.authorize is not None and len(self._asked) < _MAX_ASKED:
                    task = asyncio.create_task(self._answer(channel, self.authorize, header["id"], body))
                    self._asked.add(task)
                    task.add_done_callback(self._asked.discard)
                case "failed" if waiting is not None and not waiting.done.done():
                    waiting.done.set_exception(_failure(orjson.loads(body)))

    @staticmethod
    async def _answer(channel: Channel, authorize: Authorize, number: int, body: bytes) -> None:
        asked = orjson.loads(body)
        scopes = None if asked["scopes"] is None else tuple(asked["scopes"])
        reply = await authorize(asked["server"], asked["refused"], scopes)
        message = {"value": reply.value, "reason": reply.reason, "needs_login": reply.needs_login}
        channel.send("authorization", orjson.dumps(message), id=number)

    def _fail_open(self) -> None:
        """Fail all open requests: the host process has ended, so their outcomes are unknown."""
        for waiting in self._open.values():
            if not waiting.done.done():
                waiting.done.set_exception(
                    ToolFailure(f"the connection to the server was lost{_DOUBT}", transient=True)
                )
        reason = "the process that talks to it has ended"
        self.statuses = {
            name: replace(status, state="reconnecting", reason=reason, last_error=reason)
            for name, status in self.statuses.items()
        }
        self._tell()

    def _note(self, statuses: Mapping[str, ServerStatus]) -> None:
        """Store the statuses of some servers. A restarted host process counts reconnects from 0 again."""
        for name, status in statuses.items():
            before = self.statuses.get(name)
            counted = (
                before.reconnects if before is not None and before.reconnects <= status.reconnects else 0
            )
            self.reconnects[name] = self.reconnects.get(name, 0) + status.reconnects - counted
        self.statuses = {**self.statuses, **statuses}

    def _tell(self) -> None:
        for watcher in self._watchers:
            watcher()


def _not_connected(server: str) -> ToolFailure:
    return ToolFailure(f"the server {server} is not connected", transient=True)


def _failure(message: Mapping[str, Any]) -> ToolFailure:
    """Return the failure for the model."""
    text = message["words"]
    match message["kind"]:
        case "error" if message["error"] is not None:
            return failure_of_error(message["error"])
        case "away":
            return ToolFailure(text, transient=True)
        case "lost":
            return ToolFailure(text + _DOUBT, transient=True)
        case "timeout":
            return ToolFailure(text + _DOUBT, code="timeout")
        case "busy":
            return ToolFailure(text, code="rate_limited", transient=True)
        case "drift":
            return ToolFailure(text, code="policy_denied")
    return ToolFailure(text)
