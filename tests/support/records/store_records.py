"""Records for the tests of the store, with a value in every field."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from import_paths import PYTHON_PATH

from proxy.records.approvals import Approval, ApprovalEvent, Decided
from proxy.records.grants import Grant
from proxy.records.rows import (
    HiddenTurns,
    KeptResult,
    KeptWire,
    MessageRecord,
    NativeCall,
    ResponseRecord,
    RunRecord,
    SuspendedTurn,
    ToolEffect,
    ToolInvocationRecord,
    TurnRecord,
)
from proxy.store.base import Store
from proxy.store.sqlite.store import SqliteStore

T0 = 1_760_000_000.0

ROWS: dict[str, tuple[Any, ...]] = {
    "owners": ("o", 1, "h", None, 1.0, 1.0, None),
    "runs": (
        "run_1", "o", "req-1", "open", "chat", "m", "default", 1, "completed", 1.0, 2.0, None, "stop",
        1, 1, 7, 8, 15, '["core__f"]', '{"core__g":"policy.allow"}',
    ),
    "turns": ("run_1", 1, "chatcmpl-7", "stop", 1.0, 2.0, 7, 8, 15, 1, None),
    "messages": ("run_1", 1, 0, "assistant", "Let me look.", None, "[]", None, None, None, 1.5),
    "tool_invocations": (
        "inv_1", "o", "run_1", 1, 0, "c1", "core__f", "core", "sha256:00", "read_only", "allow",
        "success", None, "{}", "{}", 2, 1.0, 2.0,
    ),
    "suspended_turns": ("key-1", "run_1", "open", "chat", b"{\xff}", 1.5),
    "responses": ("resp_0", "open", "run_1", b"{}", b"[]", b"\xff", 1.5),
    "hidden_turns": ("key-0", "v", "run_1", "open", "chat", b"\xff", 1.5),
    "kept_results": ("res_0", "run_1", "open", 0, "text", 1.5),
    "effect_claims": ("place:0", "inv_1", "o", 1, 1.5, 1.5),
    "client_keys": ("key_0", "webui", b"\xff", "pepper", "{}", None, 1.5, None, None),
    "response_owners": ("resp_9", "key_0", 1.5),
    "diagnoses": ("local", "{}", 1.5),
    "threads": ("conv_0", "open", "", 1.5),
    "native_calls": ("inv_1", "run_1", "{}", 1.5),
    "connection_tokens": ("t", b"\xff", 1.5, "nobody"),
    "wire_bytes": ("run_1", "open", 1, 0, b"\xff", 1.5),
}  # fmt: skip
"""A row for each table that triggers do not fill, with the table's first columns; parents come first."""


def run(id: str = "run_1", **changes: Any) -> RunRecord:
    """Return a run that is still running."""
    values: dict[str, Any] = {
        "id": id,
        "request_id": "req-1",
        "caller": "open",
        "wire": "chat",
        "model": "gpt-4o-mini",
        "upstream": "default",
        "stream": True,
        "status": "running",
        "started_at": T0,
        "offered": ("core__get_current_time", "core__get_weather"),
        "withheld": {"core__erase": "policy.allow"},
    }
    return RunRecord(**(values | changes))


def turn(run_id: str = "run_1", number: int = 1, **changes: Any) -> TurnRecord:
    """Return a finished turn with a tool call."""
    values: dict[str, Any] = {
        "upstream_id": "chatcmpl-7",
        "finish_reason": "tool_calls",
        "started_at": T0 + number,
        "ended_at": T0 + number + 0.5,
        "input_tokens": 120,
        "output_tokens": 17,
        "total_tokens": 137,
        "tool_calls": 1,
        "withheld": {"core__erase": "policy.after_untrusted"},
    }
    return TurnRecord(run_id, number, **(values | changes))


def message(run_id: str = "run_1", turn: int = 1, seq: int = 0, **changes: Any) -> MessageRecord:
    """Return an assistant message that calls a tool."""
    values: dict[str, Any] = {
        "role": "assistant",
        "content": "Let me look.",
        "tool_calls": '[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]',
    }
    return MessageRecord(run_id, turn, seq, **(values | changes))


def wire(run_id: str = "run_1", **changes: Any) -> KeptWire:
    """Return the kept bytes of a run."""
    values: dict[str, Any] = {
        "caller": "open",
        "size": 2,
        "cut": False,
        "payload": b"{}\xff",
        "created_at": T0,
    }
    return KeptWire(run_id, **(values | changes))


async def hidden_of(store: Store, key: str) -> Sequence[HiddenTurns]:
    """Return the hidden turns of one key."""
    return (await store.find_hidden([key]))[key]


def invocation(id: str = "inv_1", run_id: str = "run_1", **changes: Any) -> ToolInvocationRecord:
    """Return a started execution with a side effect."""
    values: dict[str, Any] = {
        "turn": 1,
        "seq": 0,
        "call_id": "call_1",
        "tool": "core__send",
        "provider": "core",
        "spec_digest": "sha256:00",
        "effect": ToolEffect.EXTERNAL_SIDE_EFFECT,
        "decision": "allow:core__send",
        "status": "started",
        "started_at": T0 + 1.5,
        "arguments_redacted": {"to": "…", "n": [1, 2.5, None, True]},
    }
    return ToolInvocationRecord(id, run_id, **(values | changes))


def native_call(invocation_id: str = "inv_1", run_id: str = "run_1", **changes: Any) -> NativeCall:
    """Return a call as it came, with a member that the proxy does not know."""
    values: dict[str, Any] = {"payload": '{"id":"c1","extra_content":{"signature":"AbC=="}}'}
    return NativeCall(invocation_id, run_id, **(values | changes))


def suspended(key: str = "key-1", run_id: str = "run_1", **changes: Any) -> SuspendedTurn:
    """Return a suspended turn whose payload is not UTF-8."""
    values: dict[str, Any] = {
        "caller": "open",
        "wire": "chat",
        "payload": b'{"messages":[\xff\x00]}',
        "created_at": T0,
    }
    return SuspendedTurn(key, run_id, **(values | changes))


def hidden(key: str = "key-1", variant: str = "v1", **changes: Any) -> HiddenTurns:
    """Return hidden turns whose payload is not UTF-8."""
    values: dict[str, Any] = {
        "run_id": "run_1",
        "caller": "open",
        "wire": "chat",
        "payload": b'[{"role":"tool"}]\xff\x00',
        "created_at": T0,
    }
    return HiddenTurns(key, variant, **(values | changes))


def response(id: str = "resp_1", caller: str = "open", **changes: Any) -> ResponseRecord:
    """Return a stored response whose continuation is not UTF-8."""
    values: dict[str, Any] = {
        "run_id": "run_1",
        "response": b'{"id":"resp_1","object":"response","output":[]}',
        "input_items": b'[{"type":"message","role":"user","content":"Hi"}]',
        "continuation": b"\xff\x00",
        "created_at": T0,
    }
    return ResponseRecord(id=id, caller=caller, **(values | changes))


def kept(handle: str = "res_1", caller: str = "open", **changes: Any) -> KeptResult:
    """Return a large untrusted result."""
    values: dict[str, Any] = {
        "run_id": "run_1",
        "content": "a long text …",
        "untrusted": True,
        "created_at": T0,
    }
    return KeptResult(handle=handle, caller=caller, **(values | changes))


def approval(id: str = "ap_1", **changes: Any) -> Approval:
    """Return a call that waits for a decision."""
    values: dict[str, Any] = {
        "run_id": "run_1",
        "turn": 1,
        "seq": 0,
        "call_id": "call_1",
        "caller": "open",
        "key": "open",
        "tool": "shop__buy",
        "effect": "destructive",
        "spec_digest": "0" * 64,
        "arguments_digest": "1" * 64,
        "arguments": '{"what":"tea"}',
        "arguments_shown": {"what": "tea"},
        "rule": "policy.approve",
        "created_at": T0,
        "expires_at": T0 + 3600,
    }
    return Approval(id=id, **(values | changes))


APPROVED = Decided(ApprovalEvent.APPROVE, "key boss", "api", until=T0 + 3600)
"""A decision that approves a call."""


def grant(id: str = "grant_1", **changes: Any) -> Grant:
    """Return a grant that lets later calls of a tool run for an hour."""
    values: dict[str, Any] = {
        "approval_id": "ap_1",
        "run_id": "run_1",
        "caller": "open",
        "tool": "shop__buy",
        "spec_digest": "0" * 64,
        "rule": "policy.approve",
        "bounds": "{}",
        "scope": "caller",
        "created_at": T0,
        "expires_at": T0 + 3600,
        "made_by": "key boss",
        "made_via": "api",
    }
    return Grant(id=id, **(values | changes))


CUT_OFF_SQL = (
    "SELECT id, status, turns, tool_calls, input_tokens, output_tokens, total_tokens, cost FROM runs "
    "ORDER BY id"
)
CUT_OFF = [
    ("run_1", "interrupted", 2, 1, 120, 34, 9 * 10**15, None),
    ("run_2", "interrupted", 2, 1, 120, 34, 9 * 10**15, 10),
    ("run_3", "interrupted", 0, 0, 0, 0, 0, None),
]


async def cut_off_runs(store: Store) -> None:
    """Leave three unfinished runs in a store that is then closed.

    Two runs have two turns and an open call each; the third one has nothing. When a store has recovered
    them, ``CUT_OFF_SQL`` finds ``CUT_OFF``.
    """
    await store.start()
    for at, cost in enumerate((None, 5), start=1):
        store.put_run(run(f"run_{at}", cost=None if cost is None else 0))
        store.put_turn(turn(f"run_{at}", 1, cost=cost))
        store.put_turn(turn(f"run_{at}", 2, cost=cost, total_tokens=2**63 - 1, input_tokens=0))
        await store.open_invocation(invocation(f"inv_{at}", f"run_{at}"), durable=True)
    store.put_run(run("run_3"))
    await store.aclose()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the write lock with another connection."""
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        yield
        holder.execute("ROLLBACK")


async def quota(store: SqliteStore, pages: int) -> None:
    """Limit the file to this number of pages from now on, which fills the disk or gives it room again."""
    assert store._db is not None
    await store._db.execute(f"PRAGMA max_page_count = {pages}")


async def fill_disk(store: SqliteStore) -> None:
    """Leave no room for another page."""
    await quota(store, 1)  # SQLite uses the present size if that is larger


async def until_failing(store: SqliteStore) -> None:
    """Wait until the writer has noticed that it cannot write, and is between two attempts."""
    await until(lambda: store._writer.failure is not None and store._writer._inflight == 0)


def query(path: Path, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """Return the rows that a separate connection reads from a database."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql, values).fetchall()


def spawn(script: str, *arguments: str | Path) -> "subprocess.Popen[str]":
    """Start a process that runs a script, which can import this module; it talks over pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
    )


async def until(condition: Callable[[], bool]) -> None:
    """Let other tasks run until a condition holds; only the test's own timeout limits the wait."""
    while not condition():  # noqa: ASYNC110 - the condition is about a file or a thread, which sends no event
        await asyncio.sleep(0.005)


def files_below(folder: Path) -> list[Path]:
    """Return every file and folder in a folder."""
    return sorted(folder.rglob("*"))
