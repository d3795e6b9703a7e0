"""Recorded runs that differ in everything that a list of runs can be filtered by."""

from typing import Any

from proxy.records.rows import MessageRecord, RunRecord, ToolEffect, ToolInvocationRecord, TurnRecord
from proxy.store.base import Store

T0 = 1_760_000_000.0


def run(number: int, **more: Any) -> RunRecord:
    """Return the run of that number, which started ``number`` seconds after ``T0``."""
    fields: dict[str, Any] = {
        "id": f"run_{number:032x}",
        "request_id": f"req_{number}",
        "caller": "key_a",
        "wire": "chat",
        "model": "m",
        "upstream": "default",
        "stream": True,
        "status": "completed",
        "started_at": T0 + number,
        "ended_at": T0 + number + 0.5,
        **more,
    }
    return RunRecord(**fields)


def fill(store: Store) -> None:
    """Record seven runs that differ in everything that a list of runs can be filtered by."""
    store.put_run(run(1))
    store.put_run(run(2, status="failed", error_code="upstream_error", ended_at=None))
    store.put_run(run(3, model="other"))
    store.put_run(run(4, caller="key_b"))
    store.put_run(run(5, status="cancelled"))
    store.put_run(run(6, offered=("core__a",), withheld={"core__b": "policy.allow lacks it"}, tool_calls=1))
    store.put_run(run(7))
    of_6 = run(6).id
    store.put_turn(TurnRecord(of_6, 1, "up_1", "stop", T0 + 6, T0 + 6.5))
    store.close_invocation(
        ToolInvocationRecord(
            id="inv_1",
            run_id=of_6,
            turn=1,
            seq=0,
            call_id="c1",
            tool="core__a",
            provider="core",
            spec_digest="d",
            effect=ToolEffect.READ_ONLY,
            decision="allowed",
            status="success",
            started_at=T0 + 6,
            ended_at=T0 + 6.1,
            arguments_redacted={"city": "Wien", "huge": 1 << 80, "odd": "\ud800"},
        )
    )
    store.put_messages([MessageRecord(of_6, 1, 0, "tool", content="what only the model heard")])
