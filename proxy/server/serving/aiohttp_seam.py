"""The parts of aiohttp that this package uses although aiohttp does not promise to keep them.

A client's connection is aiohttp's request handler with some of its methods replaced.  Those methods need
private fields of aiohttp's.  Each field has a public name here, and no other module uses the private one.
Both names stand for the same slot, so the public name costs nothing.  If a later aiohttp lacks a slot, the
import of this module fails and names it.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import MemberDescriptorType
from typing import Any, Protocol, TypeVar

import aiohttp
from aiohttp.http import HttpRequestParser, RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

from proxy.errors import ConfigError

__all__ = ["AiohttpConnection", "AiohttpRequest", "Switched", "check_http_parser"]

_MIN_AIOHTTP = (3, 14, 3)
"""Earlier ones lose the end of a body at a slow reader, and let bytes behind an upgrade through."""


Value = TypeVar("Value")


class _Slot(Protocol[Value]):
    """A field as its class has it."""

    def __get__(self, connection: RequestHandler, owner: type | None = None) -> Value: ...

    def __set__(self, connection: RequestHandler, value: Value) -> None: ...


def _slot(name: str) -> Any:
    """The slot of this private name; raises ``ImportError`` where the installed aiohttp has none."""
    slot = getattr(RequestHandler, name, None)
    if type(slot) is not MemberDescriptorType:
        raise ImportError(f"aiohttp {aiohttp.__version__} has no attribute {name} in its RequestHandler")
    return slot


class AiohttpRequest(ABC):
    """A request that aiohttp's connection cancels when its client leaves or the server stops."""

    __slots__ = ()

    content: StreamReader

    @abstractmethod
    def client_gone(self, exc: BaseException) -> None:
        """Tell whoever reads the body that ``exc`` ended it."""

    def _cancel(self, exc: BaseException) -> None:
        """The name under which aiohttp calls :meth:`client_gone`."""
        self.client_gone(exc)


class Switched:
    """A parser for aiohttp that hands the bytes behind an upgrade to another protocol."""

    def __init__(self, feed: Callable[[bytes], None]) -> None:
        self._give = feed

    def feed_data(self, data: bytes | bytearray | memoryview) -> tuple[bool, bytes]:
        self._give(bytes(data))
        return False, b""

    def feed_eof(self) -> None:
        """The connection's end is told otherwise."""


class AiohttpConnection(RequestHandler):
    """aiohttp's request handler, whose own fields have public names."""

    __slots__ = ()

    loop: _Slot[asyncio.AbstractEventLoop] = _slot("_loop")
    """The event loop: timers and futures of the connection are made by it."""
    parser: _Slot[HttpRequestParser | None] = _slot("_parser")
    """Told when a request was taken, so that it goes on with those behind; ``None`` without a client."""
    upgraded: _Slot[bool] = _slot("_upgraded")
    """The parser stopped at an offered upgrade: no request behind it may be taken without the parser."""
    buffer_paused: _Slot[bool] = _slot("_buffer_paused")
    """Whether reading was stopped because too many requests wait."""
    resume_below: _Slot[int] = _slot("_msg_queue_resume_size")
    """How many requests may wait where reading goes on after that."""
    resume_if_drained = RequestHandler._resume_reading_if_drained
    """Read on, if nothing else is against it: whoever takes a request has to ask."""
    messages: _Slot[list[tuple[Any, StreamReader]]] = _slot("_messages")
    """Requests that wait, with their bodies; a list in place of a deque, which takes ten times the room."""
    waiter: _Slot[asyncio.Future[None] | None] = _slot("_waiter")
    """Done with the next request.  aiohttp takes a connection for idle where one waits for it."""
    serving_task: _Slot[asyncio.Task[None] | None] = _slot("_task_handler")
    """The task that serves the requests, cancelled with the connection; ``None`` once the client has gone."""
    current_request: _Slot[AiohttpRequest | None] = _slot("_current_request")
    """The request that is cancelled when the client leaves."""
    in_progress: _Slot[bool] = _slot("_request_in_progress")
    """Whether a request is served: a server that stops waits for its end."""
    handled: _Slot[asyncio.Future[None] | None] = _slot("_handler_waiter")
    """There while a server that stops waits for the end of the request."""
    ends_with_response: _Slot[bool] = _slot("_close")
    """No further request is served; aiohttp drops what still comes."""
    force_closed: _Slot[bool] = _slot("_force_close")
    """The connection was closed, whatever was under way."""
    keepalive_ends_at: _Slot[float] = _slot("_next_keepalive_close_time")
    """When an idle connection is closed, in seconds on the loop's clock; the timer may go off earlier."""
    keepalive_timer: _Slot[asyncio.Handle | None] = _slot("_keepalive_handle")
    """What will call :attr:`close_if_idle`; without it a connection would stay open for ever."""
    close_if_idle = RequestHandler._process_keepalive
    """Close the connection if it waits for a request and its time has come, else look again then."""


def check_http_parser() -> None:
    """Raise :class:`~proxy.errors.ConfigError` where aiohttp is too old or lacks its parser in C.

    The parser in Python reads some malformed requests in another way than the one in C, and is slow.
    """
    remedy = "Reinstall it: pip install --upgrade --force-reinstall 'aiohttp~=3.14.3'"
    digits = [int(part) if part.isdecimal() else 0 for part in aiohttp.__version__.split(".")[:3]]
    if tuple(digits) < _MIN_AIOHTTP:
        wanted = ".".join(map(str, _MIN_AIOHTTP))
        raise ConfigError(
            "aiohttp", f"is version {aiohttp.__version__}, but toolrelay needs {wanted} or later", remedy
        )
    if not RawRequestMessage.__module__.endswith("._http_parser"):
        raise ConfigError(
            "aiohttp",
            "runs without its C HTTP parser",
            f"Unset AIOHTTP_NO_EXTENSIONS if it is set. {remedy}",
        )
