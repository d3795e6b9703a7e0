"""Talk to a server that is a child process: one JSON-RPC message per line, over standard input and output.

The official SDK's own transport has three faults. One bad byte ends the session, a call waits for ever after
an answer that is cut, and lines have no size limit. This transport answers the call that a broken answer was
meant for, skips other lines that are no messages, such as a server's log, and ends a server whose line is too
long.

Source: the specification's stdio transport, the same in revisions 2024-11-05 to 2026-07-28.
"""

import asyncio
import contextlib
import ctypes
import fcntl
import os
import re
import resource
import secrets
import signal
import sys
import termios
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import mcp_types as types
import orjson
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from proxy.base.plain_text import plain_text
from proxy.tools.mcp.host.bounds import (
    MAX_LINE,
    NO_MESSAGE,
    TOO_LONG,
    TOO_LONG_WORDS,
    TOO_MUCH,
    PastBounds,
    has_too_many_values,
    unasked_budget,
)
from proxy.tools.mcp.host.left_behind import MARK, Groups
from proxy.tools.mcp.process import own_environment
from proxy.tools.mcp.servers import Server

_MAX_STDERR = 8192
_PATIENCE_S = 2.0
_PR_SET_PDEATHSIG = 1
_LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None
"""Loaded before the first fork, because a forked child of a process with threads must not load libraries."""

_MAX_SHOWN = 200
_BEGINS = re.compile(rb"\s*+(?:\xef\xbb\xbf\s*+)?[\[{]")
"""The begin of a line that is JSON, perhaps after a byte order mark."""

_ID = re.compile(rb'"id"\s*:\s*("(?:[^"\\]|\\.){0,200}"|-?[0-9]{1,18})')

Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


class StdioServer:
    """The process of one server, from :meth:`open` to its end."""

    def __init__(self, server: Server, groups: Groups, on_skipped: Callable[[str], None]) -> None:
        """``on_skipped`` is called with the first line, as plain text, that is no message."""
        self._server = server
        self._groups = groups
        self._on_skipped = on_skipped
        self._has_skipped = False
        self._stderr = b""
        self._open: set[types.RequestId] = set()

    @property
    def stderr(self) -> str:
        """The end of what the process wrote to its standard error."""
        return self._stderr.decode("utf-8", "replace")

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Streams]:
        """Start the process and yield the streams of its session. Raises OSError if it cannot be started.

        On exit its standard input is closed. If the process does not end within two seconds, its process
        group gets SIGTERM, and after two more seconds SIGKILL.
        """
        server = self._server
        loop = asyncio.get_running_loop()
        mark = secrets.token_hex(8)
        async with self._groups.starting:
            transport, process = await loop.subprocess_exec(
                lambda: _Process(loop),
                server.command,
                *server.args,
                env={**own_environment(), **server.env, MARK: mark},
                cwd=server.cwd or None,
                start_new_session=True,
                preexec_fn=_prepare,
            )
            pid = transport.get_pid()
            assert pid is not None
            self._groups.marks[pid] = mark
        self._groups.changed(True)
        into, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        write, out_of = anyio.create_memory_object_stream[SessionMessage](0)
        tasks = [
            asyncio.create_task(work)
            for work in (self._read(process, into), self._write(process, out_of), self._note_stderr(process))
        ]
        try:
            yield read, write
        finally:
            for stream in (write, read):
                stream.close()
            await asyncio.shield(self._end(process, pid))
            transport.close()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for stream in (into, out_of):
                stream.close()

    async def _read(
        self, process: "_Process", into: MemoryObjectSendStream[SessionMessage | Exception]
    ) -> None:
        """Pass on each line as a message until the output ends or is past the bounds."""
        assert process.stdout is not None
        async with into:
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
                try:
                    await self._pass_on(process.stdout, into)
                except PastBounds as fault:
                    await into.send(fault)

    async def _pass_on(
        self, stdout: asyncio.StreamReader, into: MemoryObjectSendStream[SessionMessage | Exception]
    ) -> None:
        budget = unasked_budget()
        while line := await _next_line(stdout):
            message = self._message(line)
            if message is not None:
                await into.send(SessionMessage(message))
            elif budget.take():
                # Reading a line that is there already does not let other tasks run.
                await asyncio.sleep(0)
            else:
                raise PastBounds(TOO_MUCH)

    def _message(self, line: bytes) -> types.JSONRPCMessage | None:
        """Parse a line as a message; if it is a broken answer to an open call, return an error for this call.

        Any other line is skipped: many servers log to their standard output.
        """
        if not line.strip():
            return None
        if has_too_many_values(line):
            return self._error_for(_written_id(line), TOO_LONG, TOO_LONG_WORDS)
        try:
            message = types.jsonrpc_message_adapter.validate_python(orjson.loads(line), by_name=False)
        except (orjson.JSONDecodeError, ValidationError, RecursionError):
            return self._answer_for(line)
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            number = message.id
            if number is None and len(self._open) == 1:
                # The server could not read a request, so it does not know its id: JSON-RPC 2.0, section 5.
                return self._error_for(next(iter(self._open)))
            if number not in self._open:
                return None
            self._open.discard(number)
        return message

    def _answer_for(self, line: bytes) -> types.JSONRPCError | None:
        """Return an error for the open call that a broken line answers; ``None`` if it answers none."""
        answer = self._error_for(_written_id(line))
        if answer is None and not self._has_skipped:
            self._has_skipped = True
            self._on_skipped(
                plain_text(line[: 4 * _MAX_SHOWN].decode("utf-8", "replace").strip(), _MAX_SHOWN)
            )
        return answer

    def _error_for(
        self,
        number: types.RequestId | None,
        code: int = NO_MESSAGE,
        text: str = "the server sent a line that is no message",
    ) -> types.JSONRPCError | None:
        """Return an error for a call, which is then no longer open; ``None`` if it is not open."""
        if number is None or number not in self._open:
            return None
        self._open.discard(number)
        fault = types.ErrorData(code=code, message=text)
        return types.JSONRPCError(jsonrpc="2.0", id=number, error=fault)

    async def _write(self, process: "_Process", out_of: MemoryObjectReceiveStream[SessionMessage]) -> None:
        stdin = process.stdin
        assert stdin is not None
        with contextlib.suppress(ConnectionError, RuntimeError):
            async with out_of:
                async for sent in out_of:
                    if isinstance(sent.message, types.JSONRPCRequest):
                        self._open.add(sent.message.id)
                    elif isinstance(sent.message, types.JSONRPCNotification):
                        self._forget(sent.message)
                    text = sent.message.model_dump_json(by_alias=True, exclude_unset=True)
                    stdin.write(text.encode("utf-8", "replace") + b"\n")
                    await stdin.drain()

    def _forget(self, sent: types.JSONRPCNotification) -> None:
        """Forget a cancelled request, for example after its time-out: nothing waits for its answer."""
        number = (sent.params or {}).get("requestId") if sent.method == "notifications/cancelled" else None
        if isinstance(number, int | str):
            self._open.discard(number)

    async def _note_stderr(self, process: "_Process") -> None:
        """Keep the end of the standard error for ``toolrelay mcp test``; none of it is logged."""
        assert process.stderr is not None
        while piece := await process.stderr.read(4096):
            self._stderr = (self._stderr + piece)[-_MAX_STDERR:]

    async def _end(self, process: "_Process", pid: int) -> None:
        """End the process and all processes that it started."""
        if process.stdin is not None:
            process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if await process.ends():
                break
            _signal_group(pid, number)
        await process.ends()
        # Processes that it started and left behind are still in its group.
        _signal_group(pid, signal.SIGKILL)
        del self._groups.marks[pid]
        self._groups.changed(False)


class _Process(asyncio.subprocess.SubprocessStreamProtocol):
    """The pipes of a process. Its output ends with it, though a process that it started may hold the pipe.

    This needs the pipe itself, which asyncio's own loop gives and uvloop does not.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=MAX_LINE, loop=loop)
        self._exited = asyncio.Event()
        self._output: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._output = transport.get_pipe_transport(1)

    def process_exited(self) -> None:
        super().process_exited()
        self._exited.set()
        self._end_output()

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        super().pipe_data_received(fd, data)
        if self._exited.is_set():
            self._end_output()

    def _end_output(self) -> None:
        """Close the output of a process that has exited, once nothing is in its pipe."""
        if self._output.is_closing():
            return
        if not any(fcntl.ioctl(self._output.get_extra_info("pipe"), termios.FIONREAD, bytes(4))):
            self._output.close()

    async def ends(self) -> bool:
        """Return whether the process ends within :data:`_PATIENCE_S`.

        ``wait()`` of asyncio is not used, because it also waits for the pipes.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                await self._exited.wait()
        return self._exited.is_set()


async def _next_line(stdout: asyncio.StreamReader) -> bytes:
    """Return the next line; empty at the end. Raises :class:`PastBounds` if it is too long."""
    try:
        return await stdout.readline()
    except ValueError:
        raise PastBounds(f"the server wrote a line of more than {MAX_LINE} bytes") from None


def _written_id(line: bytes) -> types.RequestId | None:
    """Return the id of the request that a line answers, though it is no valid message; ``None`` if none.

    It has to begin as JSON and to be JSON-RPC without a method. A log line may have an ``id`` of its own, or
    tell of a message.
    """
    if _BEGINS.match(line) is None or b'"jsonrpc"' not in line:
        return None
    with contextlib.suppress(orjson.JSONDecodeError):
        message = orjson.loads(line)
        parts = message if isinstance(message, list) else [message]
        answers = (part for part in parts if isinstance(part, dict) and "jsonrpc" in part)
        ids = (part.get("id") for part in answers if "method" not in part)
        return next((number for number in ids if isinstance(number, int | str)), None)
    match = None if b'"method"' in line[:4096] else _ID.search(line[:4096])
    with contextlib.suppress(orjson.JSONDecodeError):
        number = None if match is None else orjson.loads(match[1])
        return number if isinstance(number, int | str) else None
    return None


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _prepare() -> None:
    """Run in the child before its program: have it killed when its parent ends, and remove the memory limit.
    Node reserves more address space than the host process may use."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
