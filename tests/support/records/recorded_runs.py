"""Recorded runs for the tests of the commands that read them."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from proxy.records.rows import MessageRecord, RunRecord, ToolEffect, ToolInvocationRecord, TurnRecord
from proxy.store.options import StoreOptions
from proxy.store.sqlite.store import SqliteStore

NOW = 1_760_000_000.0
WORDS = "what the tool said to the model alone"


def run(id: str, **changes: Any) -> RunRecord:
    """Return a completed run with one call."""
    values: dict[str, Any] = {
        "request_id": f"req-{id}", "caller": "open", "wire": "chat", "model": "m", "upstream": "default",
        "stream": True, "status": "completed", "started_at": NOW, "ended_at": NOW + 4, "turns": 2,
        "tool_calls": 1, "finish_reason": "stop", "input_tokens": 20, "output_tokens": 3, "total_tokens": 23,
        "offered": ("core__f",), "withheld": {"core__g": 'policy.allow lacks "core__g"'},
        "trace": "silent", "prompt_hash": "0a1b2c3d4e5f60718293a4b5c6d7e8f9",
    }  # fmt: skip
    return RunRecord(id=id, **(values | changes))


def fill(path: Path, runs: Sequence[RunRecord], tools: Sequence[str] = ()) -> None:
    """Store these runs, each with two turns, a message and a call; the calls use ``tools`` in turn."""

    async def write() -> None:
        store = SqliteStore(path, StoreOptions(keep_days=0))
        await store.start()
        for at, record in enumerate(runs):
            store.put_run(record)
            for number in (1, 2):
                used = (10, number, 10 + number)
                store.put_turn(TurnRecord(record.id, number, f"up-{number}", "stop", NOW, NOW + 1, *used))
            store.put_messages([MessageRecord(record.id, 1, 0, "tool", content=WORDS)])
            store.close_invocation(
                ToolInvocationRecord(
                    id=f"inv-{record.id}", run_id=record.id, turn=1, seq=0, call_id="c1",
                    tool=tools[at % len(tools)] if tools else "core__f", provider="core", spec_digest="00",
                    effect=ToolEffect.READ_ONLY, decision="allowed", status="success", started_at=NOW + 1,
                    ended_at=NOW + 1.5, arguments_redacted={"city": "Wien"}, result_bytes=5,
                )
            )  # fmt: skip
        await store.aclose()

    asyncio.run(write())
