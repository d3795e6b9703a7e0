"""What every kind of store does."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from store_records import T0, invocation, message, native_call, run, suspended, turn
from waiting import PATIENCE_S

from proxy.base.errors import StoreUnavailable
from proxy.records.rows import RunRecord
from proxy.store.base import PurgeFilter, RunFilter, Store
from proxy.store.rows import RUNS, clean_text
from proxy.store.seal import CALLS, MESSAGES
from proxy.store.sql.store import SqlStore
from proxy.store.sqlite.memory import MemoryStore

DAY = 86400.0

Make = Callable[..., SqlStore]


async def test_what_has_settled_is_there_for_others(make: Make) -> None:
    """After ``wait_until_visible`` another store on the same database finds the suspended turn."""
    store = make()
    await store.start()
    store.put_run(run())
    store.put_suspended(suspended())
    assert await store.wait_until_visible(10.0)
    assert await store.wait_until_visible(10.0)
    if isinstance(store, MemoryStore):
        return
    other = make()
    await other.start()
    assert await other.find_suspended(suspended().key) == suspended()


async def test_a_run_names_the_runs_that_go_on_from_it(store: Store) -> None:
    """A run names the runs that continue it, by their start times, each with its ``memory`` unchanged."""
    memory = {
        "put_back": [{"run": "r-1", "kind": "calls", "bytes": 7, "loosely": False}],
        "counts": {"off": 2},
    }
    store.put_run(replace(run(), id="r-1"))
    for number in (3, 2):
        store.put_run(replace(run(), id=f"r-{number}", started_at=T0 + number))
        # The memory may be known only in the last row, if another upstream was asked.
        store.put_run(
            replace(run(), id=f"r-{number}", started_at=T0 + number, continues="r-1", memory=memory)
        )
    found = await store.get_run("r-1")
    assert found is not None
    assert [(each.id, each.memory) for each in found.continued_by] == [("r-2", memory), ("r-3", memory)]
    assert (found.run.continues, found.run.memory) == ("", None)
    last = await store.get_run("r-2")
    assert last is not None
    assert (last.run.continues, last.continued_by) == ("r-1", [])


async def test_a_run_comes_back_with_all_that_hangs_on_it(store: Store) -> None:
    """Rule R2: assistant turns with tool_calls, tool messages, function_call and the final text are kept."""
    messages = [
        message(seq=0),
        message(seq=1, role="tool", content="22 °C", tool_calls=None, tool_call_id="c1", name="f"),
        message(seq=2, role="tool", content=None, content_json='[{"type":"text"}]', tool_calls=None),
        message(turn=2, seq=0, tool_calls=None, function_call='{"name":"f","arguments":""}'),
        message(turn=3, seq=0, content="It is 22 °C.", tool_calls=None),
    ]
    done = replace(run(), status="completed", ended_at=T0 + 4, finish_reason="stop", turns=2, tool_calls=1)
    store.put_run(run())
    store.put_turn(turn(number=2, error_code="upstream_broken", finish_reason=None))
    store.put_turn(turn(number=1))
    store.put_messages(list(reversed(messages)))
    await store.open_invocation(invocation(), durable=True)
    closed = invocation(
        status="error", error_code="timeout", result_redacted={"ok": False}, result_bytes=9, ended_at=T0 + 2
    )
    store.close_invocation(closed)
    store.put_run(done)

    detail = await store.get_run("run_1")

    assert detail is not None
    assert detail.run == done
    assert [row.number for row in detail.turns] == [1, 2]
    assert detail.turns[0] == turn(number=1)
    assert detail.turns[1].error_code == "upstream_broken"
    assert list(detail.messages) == messages
    assert list(detail.invocations) == [closed]


async def test_a_row_put_twice_is_replaced(store: Store) -> None:
    """A second put of a turn, a message or a run leaves one row with the later values."""
    store.put_run(run())
    store.put_turn(turn())
    store.put_turn(turn(total_tokens=1))
    store.put_messages([message()])
    store.put_messages([message(content="again")])
    store.put_run(run(status="cancelled"))
    detail = await store.get_run("run_1")
    assert detail is not None
    assert detail.run.status == "cancelled"
    assert [row.total_tokens for row in detail.turns] == [1]
    assert [row.content for row in detail.messages] == ["again"]


@pytest.mark.parametrize("number", [1, 2, 3, 4, 11, 45, 130])
async def test_many_rows_at_once_are_as_many_rows(store: Store, number: int) -> None:
    """However many rows one commit has, the store writes each of them once, with its own values."""
    runs = [run(f"run_{at}", model=f"m{at}", started_at=T0 + at, turns=0) for at in range(number)]
    for record in runs:
        store.put_run(replace(record, status="running"))
        store.put_turn(turn(record.id, upstream_id=f"up-{record.id}"))
        store.put_messages([message(record.id, seq=0), message(record.id, seq=1, content=record.id)])
        store.put_run(record)
    assert await store.list_runs(RunFilter(limit=1000)) == runs[::-1]
    for record in runs:
        detail = await store.get_run(record.id)
        assert detail is not None
        assert [each.upstream_id for each in detail.turns] == [f"up-{record.id}"]
        assert [each.content for each in detail.messages] == [message().content, record.id]


async def test_an_invocation_needs_no_run(store: Store) -> None:
    """Rule R1: the store commits the row of a side effect even if its run was never written."""
    await store.open_invocation(invocation(run_id="run_x"), durable=True)
    assert await store.get_run("run_x") is None
    store.put_run(run("run_x"))
    detail = await store.get_run("run_x")
    assert detail is not None
    assert [row.id for row in detail.invocations] == ["inv_1"]


async def test_an_invocation_that_was_only_queued_is_read_too(store: Store) -> None:
    """Reads see every write queued before them."""
    store.put_run(run())
    await store.open_invocation(invocation(effect=invocation().effect), durable=False)
    detail = await store.get_run("run_1")
    assert detail is not None
    assert detail.invocations[0].status == "started"


async def test_a_call_as_it_came_comes_back_beside_its_execution(store: Store) -> None:
    """Rule R3: the store keeps the upstream's own call object of an execution, as it was put last."""
    store.put_run(run())
    await store.open_invocation(invocation(), durable=True)
    store.put_native_call(native_call(payload="{}"))
    store.put_native_call(native_call())
    store.put_native_call(native_call("inv_2", "run_2"))
    detail = await store.get_run("run_1")
    assert detail is not None
    assert list(detail.native_calls) == [native_call()]


async def test_a_call_as_it_came_goes_with_its_run(store: Store) -> None:
    """Rule R3: a purge deletes the upstream's call object of its run, and keeps that of another run."""
    for name in ("run_1", "run_2"):
        store.put_run(run(name, status="completed"))
        store.close_invocation(invocation(f"inv_{name}", name, status="success"))
        store.put_native_call(native_call(f"inv_{name}", name))
    assert await store.purge(PurgeFilter(run_id="run_1")) == 1
    store.put_run(run("run_1", status="completed"))
    gone, stays = [await store.get_run(name) for name in ("run_1", "run_2")]
    assert gone is not None
    assert stays is not None
    assert (len(gone.native_calls), len(stays.native_calls)) == (0, 1)


async def test_no_call_as_it_came_is_kept_under_none(make: Make) -> None:
    """Rule R3: with ``content = "none"`` the store keeps no call object of the upstream."""
    store = make(content="none")
    await store.start()
    store.put_run(run())
    store.close_invocation(invocation())
    store.put_native_call(native_call())
    detail = await store.get_run("run_1")
    assert detail is not None
    assert (len(detail.invocations), len(detail.native_calls)) == (1, 0)
    await store.aclose()


async def test_a_run_that_nobody_ended_costs_what_its_rows_cost(make: Make) -> None:
    """The cost of an interrupted run is that of its turns and calls; without any it stays unknown."""
    store = make()
    await store.start()
    for name in ("both", "calls", "turns", "neither"):
        store.put_run(run(name))
        store.put_turn(turn(name, cost=5 if name in ("both", "turns") else None))
        cost = 7 if name in ("both", "calls") else None
        store.close_invocation(invocation(f"inv_{name}", name, status="success", cost=cost))
    await store.aclose()
    if isinstance(store, MemoryStore):
        return
    store = make()
    await store.start()
    found = {row.id: (row.status, row.cost) for row in await store.list_runs(RunFilter())}
    assert found == {
        "both": ("interrupted", 12),
        "calls": ("interrupted", 7),
        "turns": ("interrupted", 5),
        "neither": ("interrupted", None),
    }


async def test_runs_are_listed_newest_first_by_every_filter(store: Store) -> None:
    """Each field of RunFilter narrows the list, alone and together."""
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("a", {}),
        ("b", {"status": "completed", "model": "other", "caller": "key:1"}),
        ("c", {"status": "failed", "error_code": "upstream_error"}),
        ("d", {"status": "interrupted"}),
        ("e", {"status": "completed", "error_code": "upstream_broken"}),
    ]
    for place, (name, changes) in enumerate(kinds):
        store.put_run(run(name, started_at=T0 + place, **changes))
    store.close_invocation(invocation(run_id="b", tool="core__x"))
    store.close_invocation(invocation("inv_2", run_id="d", tool="core__y"))

    async def listed(**wanted: Any) -> str:
        return "".join([found.id for found in await store.list_runs(RunFilter(**wanted))])

    assert await listed() == "edcba"
    assert await listed(limit=2) == "ed"
    assert await listed(limit=0) == ""
    assert await listed(before="d") == "cba"
    assert await listed(before="d", limit=1) == "c"
    assert await listed(before="nobody") == ""
    assert await listed(status="completed") == "eb"
    assert await listed(model="other") == "b"
    assert await listed(caller="key:1") == "b"
    assert await listed(since=T0 + 3) == "ed"
    assert await listed(errors_only=True) == "edc"
    assert await listed(tool="core__x") == "b"
    assert await listed(tool="core__z") == ""
    assert await listed(errors_only=True, tool="core__y", since=T0 + 1, before="e") == "d"


async def test_runs_of_one_instant_are_paged_without_gap_or_repeat(store: Store) -> None:
    """Pages of runs that started at the same time list each run exactly once."""
    for number in range(7):
        store.put_run(run(f"r{number}"))
    seen: list[str] = []
    before: str | None = None
    while page := await store.list_runs(RunFilter(limit=3, before=before)):
        seen += [found.id for found in page]
        before = seen[-1]
    assert seen == [f"r{number}" for number in reversed(range(7))]


async def test_a_prefix_finds_a_run_only_where_it_fits_one(store: Store) -> None:
    """``get_run`` takes an exact id, or a prefix that fits exactly one run, but no pattern."""
    for name in ("abc", "abd", "ab", "x%y"):
        store.put_run(run(name))

    async def found(name: str) -> str | None:
        detail = await store.get_run(name)
        return detail.run.id if detail else None

    assert await found("abc") == "abc"
    assert await found("ab") == "ab"
    assert await found("a") is None
    assert await found("x") == "x%y"
    assert await found("%") is None
    assert await found("") is None


async def test_runs_are_listed_by_what_their_ids_begin_with(store: Store) -> None:
    """``id_prefix`` narrows a list, also together with other filters, and is not a pattern."""
    for name in ("abc", "abd", "ab", "x%y", "b"):
        store.put_run(run(name))

    async def found(begins: str, **more: Any) -> list[str]:
        return [each.id for each in await store.list_runs(RunFilter(id_prefix=begins, **more))]

    assert set(await found("ab")) == {"ab", "abc", "abd"}
    assert await found("abd", model=run("abd").model) == ["abd"]
    assert await found("ab", model="another") == []
    assert len(await found("ab", limit=2)) == 2
    assert await found("%") == []
    assert await found("x%") == ["x%y"]


async def test_a_suspended_turn_is_read_not_consumed_and_the_last_one_counts(store: Store) -> None:
    """Reads find a suspended turn any number of times, by its exact key, as it was put last."""
    store.put_run(run())
    store.put_run(run("run_2"))
    store.put_suspended(suspended())
    assert await store.find_suspended("key-1") == suspended()
    store.put_suspended(suspended(run_id="run_2", payload=b"2", created_at=T0 - 5))
    for _ in range(2):
        held = await store.find_suspended("key-1")
        assert held is not None
        assert (held.run_id, held.payload) == ("run_2", b"2")
    await store.list_runs(RunFilter())  # waits until everything queued is written
    held = await store.find_suspended("key-1")
    assert held is not None
    assert held.payload == b"2"
    assert await store.find_suspended("key-") is None


async def test_content_none_keeps_suspended_turns_and_no_messages(make: Make) -> None:
    """Rule R3: with ``content = "none"`` the store keeps no messages, but still finds suspended turns."""
    store = make(content="none")
    await store.start()
    store.put_run(run())
    store.put_messages([message()])
    store.put_suspended(suspended())
    detail = await store.get_run("run_1")
    assert detail is not None
    assert list(detail.messages) == []
    assert await store.find_suspended("key-1") == suspended()
    assert await store.find_suspended("key-2") is None


async def test_content_is_out_of_reach_after_its_days_and_the_run_is_not(make: Make) -> None:
    """Rule R3: after ``keep_days`` the store returns no content, but still runs and invocations."""
    now = [T0]
    store = make(keep_days=2, clock=lambda: now[0])
    await store.start()
    store.put_run(run())
    store.put_messages([message()])
    store.put_suspended(suspended())
    await store.open_invocation(invocation(), durable=True)
    now[0] = T0 + 2 * DAY - 1
    detail = await store.get_run("run_1")
    assert detail is not None
    assert len(detail.messages) == 1
    assert await store.find_suspended("key-1") is not None
    now[0] = T0 + 2 * DAY + 1
    detail = await store.get_run("run_1")
    assert detail is not None
    assert list(detail.messages) == []
    assert len(detail.invocations) == 1
    assert await store.find_suspended("key-1") is None


async def test_a_call_as_it_came_is_out_of_reach_after_its_days(make: Make) -> None:
    """Rule R3: after ``keep_days`` the store returns no call object of the upstream."""
    now = [T0]
    store = make(keep_days=1, clock=lambda: now[0])
    await store.start()
    store.put_run(run())
    store.put_native_call(native_call())
    now[0] += DAY + 1
    detail = await store.get_run("run_1")
    assert detail is not None
    assert list(detail.native_calls) == []
    await store.aclose()


async def test_keep_days_of_zero_sets_no_limit(make: Make) -> None:
    """``keep_days=0`` keeps content until it is purged."""
    now = [T0]
    store = make(keep_days=0, clock=lambda: now[0])
    await store.start()
    store.put_run(run())
    store.put_messages([message()])
    now[0] = T0 + 10_000 * DAY
    detail = await store.get_run("run_1")
    assert detail is not None
    assert len(detail.messages) == 1


async def test_what_no_database_takes_is_made_to_fit(store: Store) -> None:
    """Lone surrogates, NULs, absurd numbers and unserialisable values from outside lose no row."""
    store.put_run(run(model="\ud800\x00m", total_tokens=10**30, withheld={"\udfff": "why"}))
    store.put_messages([message(content="\udc00 text \x00 more")])
    store.close_invocation(
        invocation(arguments_redacted={"a": "\ud83d", "b": 10**40}, result_redacted={"o": object()})
    )
    detail = await store.get_run("run_1")
    assert detail is not None
    assert len(detail.messages) == 1
    assert detail.messages[0].content is not None
    assert re.search(" text [\x00\ufffd] more", detail.messages[0].content)
    assert len(detail.invocations) == 1
    assert store.lost == 0


async def test_before_start_and_after_close_writes_are_lost_and_said(make: Make) -> None:
    """Before its start and after its close a store drops and counts writes, and refuses durable ones."""
    store = make()
    store.put_run(run())
    with pytest.raises(StoreUnavailable):
        await store.open_invocation(invocation(), durable=True)
    assert store.lost == 1
    assert await store.healthy() is False
    await store.start()
    assert await store.healthy() is True
    store.put_run(run())
    await store.aclose()
    await store.aclose()
    store.put_turn(turn())
    store.put_messages([message()])
    await store.open_invocation(invocation(), durable=False)
    with pytest.raises(StoreUnavailable):
        await store.open_invocation(invocation(), durable=True)
    assert store.lost == 4
    assert await store.healthy() is False


_text = st.text(alphabet=st.characters(exclude_categories=[]), max_size=20)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=6,
)


@given(text=_text, tokens=st.integers(), value=_json)
@settings(max_examples=150, deadline=None)
def test_any_text_number_or_json_becomes_a_row_a_database_takes(text: str, tokens: int, value: Any) -> None:
    """A database takes every value of a row, and well-formed records come back from rows unchanged."""
    record = run(model=text, total_tokens=tokens, withheld={text: text})
    row = RUNS.row(record)
    for cell in row:
        assert not isinstance(cell, int) or -(2**63) <= cell < 2**63
        assert not isinstance(cell, str) or cell.encode("utf-8") is not None
    back: RunRecord = RUNS.record(row)
    assert back.model == clean_text(text)
    if text == clean_text(text) and abs(tokens) < 2**63:
        assert back == record
        said = message(content=text)
        assert MESSAGES.record(MESSAGES.row(said)) == said
    called = CALLS.record(CALLS.row(invocation(result_redacted=value)))
    if value == _cleaned(value):
        assert called.result_redacted == value


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    if isinstance(value, dict):
        return {clean_text(key): _cleaned(item) for key, item in value.items()}
    return value


async def test_held_turns_are_found_together(store: Store) -> None:
    """One look-up of several keys finds the suspended turns of those that have one, before the commit too."""
    for number in range(3):
        store.put_suspended(suspended(key=f"key-{number}"))
    asked = ["key-2", "none", "key-0", "odd\x00\ud800"]
    for _ in range(2):
        found = await store.find_all_suspended(asked)
        assert found == {"key-2": suspended(key="key-2"), "key-0": suspended(key="key-0")}
        assert await store.wait_until_visible(PATIENCE_S)
    assert await store.find_all_suspended([]) == {}
