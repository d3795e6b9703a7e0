"""Shared by the tests of the runner: a log in memory, clocks, a tool, and a reader of failed results."""

import json
from collections.abc import Awaitable, Callable
from datetime import datetime, tzinfo
from typing import Any

from proxy.base.errors import StoreUnavailable
from proxy.base.events import ToolCall, ToolResult
from proxy.records.rows import NativeCall, ToolInvocationRecord
from proxy.tools import Redaction, tool
from proxy.tools.running.runner import Runner


class MemoryLog:
    """An InvocationLog that keeps every write in order."""

    def __init__(self) -> None:
        self.opened: list[tuple[ToolInvocationRecord, bool]] = []
        self.closed: list[ToolInvocationRecord] = []
        self.native: list[NativeCall] = []
        self.broken = False

    async def open_invocation(self, record: ToolInvocationRecord, *, durable: bool) -> None:
        """Keep an opened record, or fail as a locked database does."""
        if self.broken:
            raise StoreUnavailable("locked")
        self.opened.append((record, durable))

    def close_invocation(self, record: ToolInvocationRecord) -> None:
        """Keep a closed record."""
        self.closed.append(record)

    def put_native_call(self, record: NativeCall) -> None:
        """Keep a call as it came."""
        self.native.append(record)


class StillClock:
    """A clock that stands still."""

    def now(self, tz: tzinfo) -> datetime:
        """Return 2026-11-21 13:05 UTC in the given time zone."""
        return datetime.fromisoformat("2026-11-21T13:05:00+00:00").astimezone(tz)


class StillTime:
    """Replaces the module ``time`` in the runner: seconds pass only if a test adds them.

    The runner checks a run's time before a call begins, and a slow machine must not use that time up.
    Waiting still takes real time.
    """

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """Return the present time in seconds."""
        return self.now

    perf_counter = monotonic
    time = monotonic


MakeCall = Callable[..., ToolCall]
MakeRunner = Callable[..., Awaitable[Runner]]


@tool(effect="read_only", redaction=Redaction(output=("*",)))
async def echo(text: str) -> dict[str, str]:
    """Say it again."""
    return {"text": text}


def failure(result: ToolResult) -> dict[str, Any]:
    """Return the failure that the model reads, and check its exact shape."""
    body: dict[str, Any] = json.loads(result.content)
    assert set(body) == {"ok", "error_code", "message"}
    assert body["ok"] is False
    assert not result.ok
    assert body["error_code"] == result.error_code
    assert body["message"] == result.safe_message != ""
    return body
