"""The parts of aiohttp that this package uses although aiohttp does not promise to keep them.

A client's connection is aiohttp's request handler with some of its methods replaced. Those methods need
private fields of aiohttp's. Each field has a public name here, and no other module uses the private one.
Both names stand for the same slot, so the public name costs nothing. If a later aiohttp lacks a slot, the
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

from proxy.base.errors import ConfigError

_MIN_AIOHTTP = (3, 14, 3)
"""Earlier versions lose the end of a body if its reader is slow, and let bytes after an upgrade through."""


Value = TypeVar("Value")


class _Slot(Protocol[Value]):
    """The descriptor of a field, as its class holds it."""

    def __get__(self, connection: RequestHandler, owner: type | None = None) -> Value: ...

    def __set__(self, connection: RequestHandler, value: Value) -> None: ...


def _slot(name: str) -> Any:
    """Return the slot with a private name; raises ``ImportError`` if the installed aiohttp has none."""
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
        """Raise ``exc`` in the task that reads the body."""

    def _cancel(self, exc: BaseException) -> None:
        """Call :meth:`client_gone`; aiohttp knows it by this name."""
        self.client_gone(exc)


class Switched:
    """A parser for aiohttp that passes the bytes after an upgrade to another protocol."""

    def __init__(self, feed: Callable[[bytes], None]) -> None:
        self._give = feed

    def feed_data(self, data: bytes | bytearray | memoryview) -> tuple[bool, bytes]:
        self._give(bytes(data))
        return False, b""

    def feed_eof(self) -> None:
        """Do nothing: the other protocol learns of the connection's end in another way."""


class AiohttpConnection(RequestHandler):
    """aiohttp's request handler, with public names for its private fields."""

    __slots__ = ()

    loop: _Slot[asyncio.AbstractEventLoop] = _slot("_loop")
    """The event loop, which makes the connection's timers and futures."""
    parser: _Slot[HttpRequestParser | None] = _slot("_parser")
    """The parser; it must be told of each request taken, so that it parses the next. ``None`` without a
    client."""
    upgraded: _Slot[bool] = _slot("_upgraded")
    """Whether the parser stopped at an offered upgrade: only the parser may take the bytes that follow."""
    buffer_paused: _Slot[bool] = _slot("_buffer_paused")
    """Whether reading was paused because too many requests wait."""
    resume_below: _Slot[int] = _slot("_msg_queue_resume_size")
    """The number of waiting requests at which reading resumes."""
    resume_if_drained = RequestHandler._resume_reading_if_drained
    """Resume reading if nothing else prevents it; call this after taking a request."""
    messages: _Slot[list[tuple[Any, StreamReader]]] = _slot("_messages")
    """The waiting requests with their bodies; a list, because a deque takes ten times the memory."""
    waiter: _Slot[asyncio.Future[None] | None] = _slot("_waiter")
    """Resolved when the next request arrives. While it is pending, aiohttp counts the connection as idle."""
    serving_task: _Slot[asyncio.Task[None] | None] = _slot("_task_handler")
    """The task that serves the requests and is cancelled with the connection; ``None`` once the client has
    gone."""
    current_request: _Slot[AiohttpRequest | None] = _slot("_current_request")
    """The request that is cancelled when the client leaves."""
    in_progress: _Slot[bool] = _slot("_request_in_progress")
    """Whether a request is being served; a server that stops waits for its end."""
    handled: _Slot[asyncio.Future[None] | None] = _slot("_handler_waiter")
    """The future on which a stopping server waits for the end of the request; otherwise ``None``."""
    ends_with_response: _Slot[bool] = _slot("_close")
    """Whether the connection serves no further request; aiohttp drops the bytes that still arrive."""
    force_closed: _Slot[bool] = _slot("_force_close")
    """Whether the connection was closed, even during a request."""
    keepalive_ends_at: _Slot[float] = _slot("_next_keepalive_close_time")
    """When an idle connection closes, in seconds on the loop's clock; the timer may fire earlier."""
    keepalive_timer: _Slot[asyncio.Handle | None] = _slot("_keepalive_handle")
    """The timer that calls :attr:`close_if_idle`; without it a connection would stay open for ever."""
    close_if_idle = RequestHandler._process_keepalive
    """Close the connection if it is idle and its time is over; otherwise set the timer again."""


def check_http_parser() -> None:
    """Raise :class:`~proxy.base.errors.ConfigError` if aiohttp is too old or lacks its parser in C.

    The parser in Python reads some malformed requests differently from the one in C, and is slow.
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
