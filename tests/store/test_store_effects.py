"""Claims of side effects (rule R5): one of many callers wins a claim, and the store keeps the result."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from store_records import T0, files_below, invocation, kept, locked, query, run, spawn

from proxy.base.errors import StoreError, StoreUnavailable
from proxy.records.effects import (
    REPEATS_WITHIN_S,
    UNMARKED_REPEAT_WITHIN_S,
    EarlierEffect,
    EffectClaim,
    EffectResult,
)
from proxy.records.rows import RESULTS_KEPT_S
from proxy.store.base import PurgeFilter, RunFilter, Store
from proxy.store.options import StoreOptions
from proxy.store.seal import Seal
from proxy.store.sqlite.store import SqliteStore

Make = Callable[..., Any]

MILK = EffectResult("bought milk", "", True, {"done": True}, True)


def _claim(place: str = "1", request: str = "request:a", **changes: Any) -> EffectClaim:
    values: dict[str, Any] = {"is_repeat": False, "asked_at": T0}
    return EffectClaim(f"place:{place}", request, **(values | changes))


async def test_an_effect_is_claimed_once(store: Store) -> None:
    """Rule R5: a repeat of a request finds the effect already claimed, and later also its result."""
    assert await store.claim_effect(invocation("inv_1"), _claim("1")) is None
    again = _claim("2", is_repeat=True, asked_at=T0 + 1)
    assert await store.claim_effect(invocation("inv_2"), again) == EarlierEffect("inv_1", "started")
    assert await store.find_effect(again) == EarlierEffect("inv_1", "started")
    store.keep_effect("inv_1", MILK)
    store.close_invocation(invocation("inv_1", status="success", ended_at=T0 + 2))
    await store.list_runs(RunFilter())
    assert await store.find_effect(again) == EarlierEffect("inv_1", "success", None, MILK)
    assert await store.claim_effect(invocation("inv_3"), again) == EarlierEffect(
        "inv_1", "success", None, MILK
    )


async def test_a_refused_claim_writes_nothing(store: Store) -> None:
    """Rule R5: a refused claim writes no invocation, and leaves its place free."""
    store.put_run(run())
    assert await store.claim_effect(invocation("inv_1"), _claim("1")) is None
    assert await store.claim_effect(invocation("inv_2"), _claim("2", is_repeat=True)) is not None
    detail = await store.get_run("run_1")
    assert detail is not None
    assert [row.id for row in detail.invocations] == ["inv_1"]
    assert await store.claim_effect(invocation("inv_3"), _claim("2", "request:b")) is None


async def test_a_place_is_taken_for_good(store: Store) -> None:
    """Rule R5: a place (run, turn, seq) can be claimed once; any later claim of it is refused."""
    assert await store.claim_effect(invocation("inv_1"), _claim("1", "")) is None
    found = await store.claim_effect(invocation("inv_2"), _claim("1", "", asked_at=T0 + 9))
    assert found == EarlierEffect("inv_1", "started")
    assert await store.claim_effect(invocation("inv_3"), _claim("2", "")) is None


@pytest.mark.parametrize(
    ("first", "second", "taken"),
    [
        ((False, 0), (False, 1), False),
        ((False, 0), (True, 1), True),
        ((True, 0), (True, 1), True),
        ((True, 0), (False, 1), False),
        ((True, 1), (False, 0), True),
    ],
    ids=[
        "asked anew",
        "a repeat",
        "two with one key",
        "asked anew after a repeat",
        "overtaken by its repeat",
    ],
)
async def test_only_a_repeat_shares_the_effect_of_a_request(
    store: Store, first: tuple[bool, float], second: tuple[bool, float], taken: bool
) -> None:
    """Rule R5: a repeat shares the effect of its request, in either order; a new request gets its own."""
    for number, (is_repeat, after) in enumerate((first, second)):
        claim = _claim(str(number), is_repeat=is_repeat, asked_at=T0 + after)
        found = await store.claim_effect(invocation(f"inv_{number}"), claim)
        assert (found is not None) == (taken and number == 1)


async def test_effects_of_a_tool_are_numbered(store: Store) -> None:
    """Rule R5: a different call finds its number taken; an equal call finds its own effect."""
    assert await store.number_effects(_claim("0", is_repeat=True, tool="tool:a")) == {}
    for number in range(40):
        claim = _claim(f"1.{number}", f"request:{number}", tool="tool:a", number=number)
        assert await store.claim_effect(invocation(f"inv_{number}"), claim) is None
    again = _claim("2", "request:new", is_repeat=True, asked_at=T0 + 1, tool="tool:a", number=7)
    shown = invocation().arguments_redacted
    assert await store.claim_effect(invocation("inv_x"), again) == EarlierEffect(
        "inv_7", "started", another=True, arguments_redacted=shown
    )
    equal = replace(again, request="request:3")
    assert await store.claim_effect(invocation("inv_x"), equal) == EarlierEffect("inv_3", "started")
    assert list((await store.number_effects(again)).items()) == [(n, f"inv_{n}") for n in range(40)]
    assert await store.number_effects(replace(again, tool="tool:b")) == {}
    assert await store.number_effects(replace(again, is_repeat=False)) == {}
    assert await store.claim_effect(invocation("inv_x"), replace(again, number=40)) is None
    assert (await store.number_effects(again))[40] == "inv_x"
    anew = _claim("3", "request:new", asked_at=T0 + 2, tool="tool:a")
    assert await store.claim_effect(invocation("inv_y"), anew) is None
    assert (await store.number_effects(again))[0] == "inv_y"
    store.release_effect("inv_y")
    await store.list_runs(RunFilter())
    assert 0 not in await store.number_effects(again)


async def test_a_number_is_told_with_what_is_known_of_its_effect(store: Store) -> None:
    """Rules R3, R5: until a purge, a refused claim returns the earlier call's arguments and result."""
    store.put_run(run(status="completed"))
    assert await store.claim_effect(invocation("inv_1"), _claim("1", tool="tool:a")) is None
    store.keep_effect("inv_1", MILK)
    store.close_invocation(invocation("inv_1", status="success", arguments_redacted={"to": "ann"}))
    await store.list_runs(RunFilter())
    other = _claim("2", "request:b", is_repeat=True, tool="tool:a")
    assert await store.claim_effect(invocation("inv_2"), other) == EarlierEffect(
        "inv_1", "success", None, MILK, another=True, arguments_redacted={"to": "ann"}
    )
    assert await store.purge(PurgeFilter(run_id="run_1")) == 1
    found = await store.claim_effect(invocation("inv_2"), other)
    assert found is not None
    assert (found.invocation_id, found.another, found.result) == ("inv_1", True, None)


async def test_a_number_ends_with_its_time(make: Make) -> None:
    """Rule R5: after an hour the store no longer lists the numbered effects of a request."""
    now = [T0]
    store = make(clock=lambda: now[0])
    await store.start()
    claim = _claim("1", is_repeat=True, tool="tool:a")
    assert await store.claim_effect(invocation("inv_1"), claim) is None
    now[0] = T0 + REPEATS_WITHIN_S
    assert await store.number_effects(claim) == {0: "inv_1"}
    now[0] = T0 + REPEATS_WITHIN_S + 1
    assert await store.number_effects(claim) == {}
    assert await store.claim_effect(invocation("inv_2"), _claim("2", "request:b", tool="tool:a")) is None


async def test_an_effect_that_never_began_is_given_back(store: Store) -> None:
    """Rule R5: if a claim is released before the effect began, a repeat may claim it."""
    assert await store.claim_effect(invocation("inv_1"), _claim("1")) is None
    store.release_effect("inv_1")
    await store.list_runs(RunFilter())
    assert await store.find_effect(_claim("1")) is None
    assert await store.claim_effect(invocation("inv_2"), _claim("1", is_repeat=True)) is None


async def test_a_claim_ends_with_its_time(make: Make) -> None:
    """Rule R5: a claim ends after an hour, but not when the clock goes back."""
    now = [T0]
    store = make(clock=lambda: now[0])
    await store.start()
    claim = _claim("1", is_repeat=True)
    assert await store.claim_effect(invocation("inv_1"), claim) is None
    now[0] = T0 - 86_400
    assert await store.claim_effect(invocation("inv_2"), claim) is not None
    now[0] = T0 + REPEATS_WITHIN_S
    assert await store.claim_effect(invocation("inv_2"), claim) is not None
    now[0] = T0 + REPEATS_WITHIN_S + 1
    assert await store.find_effect(claim) is None
    assert await store.claim_effect(invocation("inv_2"), claim) is None


ATTEMPTS = [
    ("failed", "unanswered"), ("cancelled", "unanswered"), ("interrupted", "unanswered"),
    ("completed", "none"), ("suspended", "none"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "found"), ATTEMPTS)
async def test_a_run_says_whether_its_client_has_the_answer(store: Store, status: Any, found: str) -> None:
    """Rule R5: an earlier attempt is unanswered if its run failed, was cancelled or was interrupted."""
    claim = _claim("1", tool="tool:a")
    assert await store.earlier_attempt(claim) == "none"
    store.put_run(run())
    assert await store.claim_effect(invocation("inv_1"), claim) is None
    later = _claim("2", "request:b", tool="tool:a", asked_at=T0 + 5)
    assert await store.earlier_attempt(later) == "none"  # The run goes on in this process.
    store.put_run(run(status=status, ended_at=T0 + 1))
    await store.list_runs(RunFilter())
    assert await store.earlier_attempt(later) == found
    assert await store.earlier_attempt(_claim("2", tool="tool:b")) == "none"
    store.settle_effects(("inv_1", "inv_9"))
    await store.list_runs(RunFilter())
    assert await store.earlier_attempt(later) == "none"


async def test_who_takes_an_effect_over_waits_for_an_answer_of_its_own(store: Store) -> None:
    """Rule R5: a failed run that took over an answered effect is unanswered itself."""
    store.put_run(run())
    assert await store.claim_effect(invocation("inv_1"), _claim("1", tool="tool:a")) is None
    store.settle_effects(("inv_1",))
    store.put_run(run("run_2", status="failed", ended_at=T0 + 1))
    again = _claim("2", tool="tool:a", asked_at=T0 + 1)
    assert await store.claim_effect(invocation("inv_2", run_id="run_2"), again) is None
    await store.list_runs(RunFilter())
    assert await store.earlier_attempt(_claim("3", tool="tool:a", asked_at=T0 + 2)) == "unanswered"


async def test_an_unsaid_repeat_comes_within_minutes(make: Make) -> None:
    """Rule R5: a failed run counts as an earlier attempt only within ``UNMARKED_REPEAT_WITHIN_S``."""
    now = [T0]
    store = make(clock=lambda: now[0])
    await store.start()
    store.put_run(run())
    claim = _claim("1", tool="tool:a")
    assert await store.claim_effect(invocation("inv_1"), claim) is None
    store.put_run(run(status="failed", ended_at=T0))
    await store.list_runs(RunFilter())
    for at, found in ((UNMARKED_REPEAT_WITHIN_S, "unanswered"), (UNMARKED_REPEAT_WITHIN_S + 1, "none")):
        now[0] = T0 + at
        assert await store.earlier_attempt(claim) == found


async def test_a_run_of_another_process_goes_on(make_sql: Make) -> None:
    """Rule R5: a run of another process counts as running until that process closes its store."""
    one, two = make_sql(), make_sql()
    await one.start()
    await two.start()
    one.put_run(run())
    claim = _claim("1", tool="tool:a")
    assert await one.claim_effect(invocation("inv_1"), claim) is None
    assert (await one.earlier_attempt(claim), await two.earlier_attempt(claim)) == ("none", "running")
    await one.aclose()
    assert await two.earlier_attempt(claim) == "unanswered"


async def test_a_purge_takes_the_result_and_leaves_the_claim(store: Store) -> None:
    """Rules R3, R5: a purge deletes the result of an effect, and keeps the claim so it cannot recur."""
    store.put_run(run(status="completed"))
    claim = _claim("1", is_repeat=True)
    await store.claim_effect(invocation("inv_1"), claim)
    store.keep_effect("inv_1", MILK)
    store.close_invocation(invocation("inv_1", status="success"))
    assert await store.purge(PurgeFilter(run_id="run_1")) == 1
    assert await store.find_effect(claim) == EarlierEffect("inv_1", "success")


async def test_a_closed_store_claims_nothing(make: Make) -> None:
    """Rule R1: a closed store cannot commit the row of a claim, so it raises and no effect begins."""
    store = make()
    await store.start()
    await store.aclose()
    with pytest.raises(StoreUnavailable):
        await store.claim_effect(invocation("inv_1"), _claim())


async def test_of_many_claims_at_once_one_wins(store: Store) -> None:
    """Rule R5: of many simultaneous claims of one effect exactly one wins, and the others get its id."""
    claims = [_claim(str(number), is_repeat=True) for number in range(20)]
    found = await asyncio.gather(
        *(store.claim_effect(invocation(f"inv_{number}"), claim) for number, claim in enumerate(claims))
    )
    (winner,) = [number for number, earlier in enumerate(found) if earlier is None]
    assert {earlier.invocation_id for earlier in found if earlier is not None} == {f"inv_{winner}"}


async def test_a_large_result_is_its_callers_alone(store: Store) -> None:
    """Rule R3: the store returns a kept result by its handle, again and again, only to its own caller."""
    store.put_result(kept())
    for _ in range(2):
        assert await store.find_result("res_1", "open") == kept()
        assert await store.find_result("res_1", "other") is None
        assert await store.find_result("res_2", "open") is None
        await store.list_runs(RunFilter())


async def test_a_large_result_lives_an_hour_and_goes_with_its_run(make: Make) -> None:
    """Rule R3: a kept result is gone after an hour, and after a purge of its run."""
    now = [T0]
    store = make(clock=lambda: now[0])
    await store.start()
    store.put_run(run(status="completed"))
    store.put_result(kept())
    store.put_result(kept("res_2", run_id="run_2"))
    assert await store.purge(PurgeFilter(run_id="run_1")) == 1
    assert await store.find_result("res_1", "open") is None
    assert await store.find_result("res_2", "open") is not None
    now[0] = T0 + RESULTS_KEPT_S + 1
    assert await store.find_result("res_2", "open") is None


# Claims and results in a database.


async def test_content_none_writes_no_result(make_sqlite: Make, tmp_path: Path) -> None:
    """Rule R3: with ``content = "none"`` the file holds claims but no results; memory holds large ones."""
    store = make_sqlite(content="none")
    await store.start()
    await store.claim_effect(invocation("inv_1"), _claim())
    store.keep_effect("inv_1", MILK)
    store.close_invocation(invocation("inv_1", status="success"))
    store.put_result(kept())
    await store.list_runs(RunFilter())
    assert await store.find_effect(_claim()) == EarlierEffect("inv_1", "success")
    assert await store.find_result("res_1", "open") == kept()
    assert query(tmp_path / "r.db", "SELECT count(result) FROM effect_claims") == [(0,)]
    assert query(tmp_path / "r.db", "SELECT count(*) FROM kept_results") == [(0,)]


async def test_results_of_effects_are_sealed(make_sqlite: Make, tmp_path: Path) -> None:
    """Rule R3: no file holds a sealed result in plain text, and a copy in another row does not open."""
    store = make_sqlite(seal=Seal(bytes(32)))
    await store.start()
    for number in (1, 2):
        await store.claim_effect(
            invocation(f"inv_{number}"), _claim(str(number), f"request:{number}", is_repeat=True)
        )
        store.keep_effect(f"inv_{number}", MILK)
    await store.list_runs(RunFilter())
    found = await store.find_effect(_claim("1", "request:1"))
    assert found is not None
    assert found.result == MILK
    files = [path for path in files_below(tmp_path) if path.is_file()]
    assert all(b"bought milk" not in path.read_bytes() for path in files)
    with closing(sqlite3.connect(tmp_path / "r.db")) as connection, connection:
        connection.execute(
            "UPDATE effect_claims SET result = "
            "(SELECT result FROM effect_claims WHERE invocation_id = 'inv_2')"
        )
    with pytest.raises(StoreError, match="does not open"):
        await store.find_effect(_claim("1", "request:1"))


async def test_a_claim_that_cannot_be_written_is_refused(make_sqlite: Make, tmp_path: Path) -> None:
    """Rules R1, R5: a claim that waits too long for a lock fails, and is not written later either."""
    store = make_sqlite(lock_timeout_s=1.0)
    await store.start()
    with locked(tmp_path / "r.db"), pytest.raises(StoreUnavailable):
        await store.claim_effect(invocation("inv_1"), _claim())
    await store.list_runs(RunFilter())
    assert await store.find_effect(_claim()) is None


async def test_a_result_is_kept_no_longer_than_other_content(make: Make) -> None:
    """Rules R3, R5: after ``keep_days`` the store still knows an effect's status, but not its result."""
    now = [T0]
    store = make(keep_days=0.01, clock=lambda: now[0])
    await store.start()
    claim = _claim("1")
    assert await store.claim_effect(invocation("inv_1"), claim) is None
    store.keep_effect("inv_1", MILK)
    store.close_invocation(invocation("inv_1", status="success", ended_at=T0 + 2))
    await store.list_runs(RunFilter())
    now[0] = T0 + 800
    assert await store.find_effect(claim) == EarlierEffect("inv_1", "success", None, MILK)
    now[0] = T0 + 900
    assert await store.find_effect(claim) == EarlierEffect("inv_1", "success")


async def test_results_past_their_days_leave_the_record(make_sql: Make) -> None:
    """Rules R3, R5: tidying deletes a result that is older than ``keep_days``, and keeps its claim."""
    first, second = make_sql(), make_sql(keep_days=0.01, clock=lambda: T0 + 900)
    await first.start()
    await second.start()
    assert await first.claim_effect(invocation("inv_1"), _claim("1")) is None
    first.keep_effect("inv_1", MILK)
    first.close_invocation(invocation("inv_1", status="success", ended_at=T0 + 2))
    await first.list_runs(RunFilter())
    await second._tidy()
    assert await first.find_effect(_claim("1")) == EarlierEffect("inv_1", "success")


async def test_claims_and_results_past_their_time_leave_the_file(make_sqlite: Make, tmp_path: Path) -> None:
    """A start with ``reap`` deletes expired claims and results, even if content is kept forever."""
    first = make_sqlite()
    await first.start()
    await first.claim_effect(invocation("inv_1"), _claim())
    first.put_result(kept())
    await first.aclose()
    second = make_sqlite(keep_days=0, reap=True, clock=lambda: T0 + REPEATS_WITHIN_S + 1)
    await second.start()
    for table in ("effect_claims", "kept_results"):
        assert query(tmp_path / "r.db", f"SELECT count(*) FROM {table}") == [(0,)]


_WORKER = """
import asyncio, sys
from store_records import T0, invocation
from proxy.records.effects import EffectClaim, EffectResult
from proxy.store.options import StoreOptions
kind, place, name = sys.argv[1:]
if kind == "sqlite":
    from pathlib import Path
    from proxy.store.sqlite.store import SqliteStore
    store = SqliteStore(Path(place), StoreOptions(clock=lambda: T0))
else:
    from proxy.store.postgres.store import PostgresStore
    store = PostgresStore(place, StoreOptions(clock=lambda: T0))

async def main():
    await store.start()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    won = []
    for number in range(40):
        claim = EffectClaim(f"place:{name}:{number}", f"request:{number}", True, T0)
        mine = invocation(f"inv_{name}_{number}", name)
        if await store.claim_effect(mine, claim) is None:
            won.append(number)
            store.keep_effect(mine.id, EffectResult(f"{name} {number}"))
    print(*won, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await store.aclose()

asyncio.run(main())
"""


async def test_of_two_processes_on_one_file_one_causes_each_effect(tmp_path: Path) -> None:
    """Rule R5: two workers that share a file cause each effect of a request once."""
    await _race("sqlite", tmp_path / "r.db")


async def test_of_two_processes_on_one_server_one_causes_each_effect(postgres_url: str) -> None:
    """Rule R5: two workers that share a PostgreSQL server cause each effect of a request once."""
    await _race("postgres", postgres_url)


async def _race(kind: str, place: "Path | str") -> None:
    workers = [spawn(_WORKER, kind, place, name) for name in ("a", "b")]
    for worker in workers:
        assert worker.stdout is not None
        assert await asyncio.to_thread(worker.stdout.readline) == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()
    won = [(await asyncio.to_thread(worker.stdout.readline)).split() for worker in workers if worker.stdout]
    assert sorted(map(int, [*won[0], *won[1]])) == list(range(40))
    for worker in workers:
        await asyncio.to_thread(worker.communicate, "\n", 30)
        assert worker.returncode == 0


async def test_a_worker_that_died_leaves_an_unknown_outcome(tmp_path: Path) -> None:
    """Rule R5: the effect of a killed process reads as interrupted once that process is known to be dead."""
    path = tmp_path / "r.db"
    pause = '    await asyncio.to_thread(print, "won", flush=True)\n'
    worker = spawn(_WORKER.replace("    print(*won", f"{pause}    print(*won"), "sqlite", path, "a")
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write("\n")
    worker.stdin.flush()
    assert (await asyncio.to_thread(worker.stdout.readline)) == "ready\n"
    assert (await asyncio.to_thread(worker.stdout.readline)) == "won\n"
    worker.kill()
    await asyncio.to_thread(worker.communicate)
    store = SqliteStore(path, StoreOptions(reap=True, clock=lambda: T0))
    await store.start()
    try:
        claim = EffectClaim("place:other", "request:7", True, T0 + 1)
        earlier = await store.claim_effect(invocation("inv_new"), claim)
        assert earlier is not None
        assert (earlier.invocation_id, earlier.status) == ("inv_a_7", "interrupted")
    finally:
        await store.aclose()
