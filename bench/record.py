"""Makes a record like that of a proxy in long use: ``python -m bench.record FILE RUNS``."""

import asyncio
import sys
import time
from pathlib import Path

from proxy.records.rows import HiddenTurns, RunRecord, ToolEffect, ToolInvocationRecord, TurnRecord
from proxy.store.base import RunFilter
from proxy.store.factory import open_store

_CALLS_PER_RUN = 10 / 3
_BATCH = 500
_DAYS = 30


async def prepare(file: Path, runs: int) -> int:
    """Fill a record with this number of runs over thirty days; return the number of tool calls."""
    store = open_store(f"sqlite:///{file}")
    await store.start()
    now, calls = time.time(), 0
    for number in range(runs):
        at = now - _DAYS * 86400 * (1 - number / runs)
        run = f"run_{number:032x}"
        made = int((number + 1) * _CALLS_PER_RUN) - calls
        store.put_run(
            RunRecord(
                id=run,
                request_id=f"req_{number:032x}",
                caller=f"caller-{number % 50}",
                wire="chat",
                model=f"model-{number % 7}",
                upstream="default",
                stream=True,
                status="completed",
                started_at=at,
                ended_at=at + 2,
                finish_reason="stop",
                turns=2,
                tool_calls=made,
                input_tokens=900,
                output_tokens=200,
                total_tokens=1100,
                offered=("bench_tools__act", "bench_tools__work"),
                prompt_hash=f"{number % 40:024x}",
            )
        )
        for turn in (1, 2):
            store.put_turn(
                TurnRecord(
                    run_id=run,
                    number=turn,
                    upstream_id=f"chatcmpl-{number}-{turn}",
                    finish_reason="stop" if turn == 2 else "tool_calls",
                    started_at=at,
                    ended_at=at + turn,
                )
            )
        for place in range(made):
            store.close_invocation(_invocation(run, calls + place, place, at))
        calls += made
        key = f"{number:064x}"
        store.put_hidden(HiddenTurns(key, key, run, "open", "chat", b'{"messages":[]}' * 20, at))
        if number % _BATCH == _BATCH - 1:
            await store.list_runs(RunFilter(limit=1))  # A read waits for all that was queued before it.
    await store.aclose()
    return calls


def _invocation(run: str, number: int, place: int, at: float) -> ToolInvocationRecord:
    return ToolInvocationRecord(
        id=f"inv_{number:032x}",
        run_id=run,
        turn=1,
        seq=place,
        call_id=f"call_{number}",
        tool=f"tools__number_{number % 12}",
        provider="tools",
        spec_digest="0" * 24,
        effect=ToolEffect.READ_ONLY,
        decision="allowed: policy.allow",
        status="success",
        started_at=at,
        ended_at=at + 0.2,
        arguments_redacted={"query": f"number {number}"},
        result_redacted={"found": number % 3},
        result_bytes=240,
    )


if __name__ == "__main__":
    print(asyncio.run(prepare(Path(sys.argv[1]), int(sys.argv[2]))))
