"""Changed and lost seal keys: content is sealed with the new key, and is never deleted unasked."""

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store_records import T0, hidden, hidden_of, invocation, kept, message, query, response, run, suspended

from proxy.base.errors import ConfigError, StoreError
from proxy.records.effects import EffectClaim, EffectResult
from proxy.store.base import RunFilter
from proxy.store.factory import open_sealed
from proxy.store.options import StoreOptions
from proxy.store.seal import CALLS, SEALED, Seal
from proxy.store.sql.store import SqlStore

OLD, NEW = Seal(bytes(range(32))), Seal(bytes(32))
SECRET = "a secret sentence"

Make = Callable[..., Any]


async def _fill(store: SqlStore, name: str) -> None:
    """Put one row of every kind of content."""
    plain = SECRET.encode()
    store.put_run(run(f"run_{name}"))
    store.put_messages([message(f"run_{name}", seq=seq, content=SECRET) for seq in range(3)])
    store.put_suspended(suspended(f"s-{name}", payload=plain, run_id=f"run_{name}"))
    store.put_hidden(hidden(f"h-{name}", payload=plain, run_id=f"run_{name}"))
    store.put_response(response(f"resp_{name}", response=plain))
    store.put_result(kept(f"res_{name}", content=SECRET))
    claim = EffectClaim(f"place:{name}", f"request:{name}", True, T0)
    assert (
        await store.claim_effect(
            invocation(f"inv_{name}", f"run_{name}", arguments_redacted={"to": SECRET}), claim
        )
        is None
    )
    store.keep_effect(f"inv_{name}", EffectResult(SECRET))
    await store.list_runs(RunFilter())


async def _check(store: SqlStore, name: str) -> None:
    detail = await store.get_run(f"run_{name}")
    assert detail is not None
    assert [each.content for each in detail.messages] == [SECRET] * 3
    assert [call.arguments_redacted for call in detail.invocations] == [{"to": SECRET}]
    turn = await store.find_suspended(f"s-{name}")
    result = await store.find_result(f"res_{name}", "open")
    stored = await store.find_response(f"resp_{name}", "open")
    effect = await store.find_effect(EffectClaim("", f"request:{name}"))
    assert turn is not None
    assert result is not None
    assert stored is not None
    assert effect is not None
    assert (turn.payload, result.content, stored.response) == (SECRET.encode(), SECRET, SECRET.encode())
    assert effect.result == EffectResult(SECRET)
    assert [turns.payload for turns in await hidden_of(store, f"h-{name}")] == [SECRET.encode()]


async def _keys(store: SqlStore) -> set[Any]:
    async with store._snapshot() as db:
        return {
            key
            for table in SEALED
            for (key,) in await db.execute_fetchall(f"SELECT sealed_by FROM {table.name}")
        }


async def test_a_new_key_takes_the_place_of_an_old_one(make_sql: Make) -> None:
    """Rule R3: a store reads rows of an old key; after ``reseal`` it starts without that key."""
    first = make_sql(seal=OLD)
    await first.start()
    await _fill(first, "old")
    await first.aclose()
    second = make_sql(seal=NEW, old_seals=[OLD])
    await second.start()
    await _fill(second, "new")
    for name in ("old", "new"):
        await _check(second, name)
    assert await _keys(second) == {OLD.id, NEW.id}
    assert await second.reseal() == 10
    assert await second.reseal() == 0
    assert await _keys(second) == {NEW.id}
    await second.aclose()
    third = make_sql(seal=NEW)
    await third.start()
    for name in ("old", "new"):
        await _check(third, name)


async def test_what_was_never_sealed_is_sealed_and_opened_again(make_sql: Make) -> None:
    """Rule R3: ``reseal`` encrypts content from before there was a key, and can decrypt it all again."""
    store = make_sql()
    await store.start()
    await _fill(store, "1")
    await store.aclose()
    sealing = make_sql(seal=NEW)
    await sealing.start()
    assert await sealing.reseal() == 10
    assert await _keys(sealing) == {NEW.id}
    await sealing.aclose()
    opening = make_sql(old_seals=[NEW])
    await opening.start()
    await _check(opening, "1")
    assert await opening.reseal() == 10
    assert await _keys(opening) == {None}
    await _check(opening, "1")


async def test_a_row_that_changed_meanwhile_is_left_alone(make_sqlite: Make, tmp_path: Path) -> None:
    """Resealing skips a row that a server has written since it was read, so no newer content is lost."""
    store = make_sqlite(seal=OLD)
    await store.start()
    store.put_run(run())
    store.put_suspended(suspended(payload=b"first"))
    await store.list_runs(RunFilter())
    other = make_sqlite(seal=NEW, old_seals=[OLD])
    await other.start()
    page = await other._page(SEALED[1], ())
    store.put_suspended(suspended(payload=b"second"))
    await store.list_runs(RunFilter())
    statement, values = other._resealed(SEALED[1], page[0])
    await other._writer.commit(statement, [values])
    found = await other.find_suspended("key-1")
    assert found is not None
    assert found.payload == b"second"
    assert query(tmp_path / "r.db", "SELECT sealed_by FROM suspended_turns") == [(OLD.id,)]


async def test_a_call_that_ended_meanwhile_keeps_its_result(make_sqlite: Make) -> None:
    """Resealing skips a call whose result was written after its row was read."""
    store = make_sqlite()
    await store.start()
    store.put_run(run())
    store.close_invocation(invocation())
    await store.list_runs(RunFilter())
    other = make_sqlite(seal=NEW)
    await other.start()
    page = await other._page(CALLS, ())
    store.close_invocation(invocation(status="success", result_redacted=SECRET, ended_at=T0 + 2))
    await store.list_runs(RunFilter())
    statement, values = other._resealed(CALLS, page[0])
    await other._writer.commit(statement, [values])
    detail = await other.get_run("run_1")
    assert detail is not None
    assert [call.result_redacted for call in detail.invocations] == [SECRET]


async def test_the_arguments_of_another_attempt_are_opened(make_sql: Make) -> None:
    """Rule R5: a repeat with another call gets the arguments of the first call, which are stored sealed."""
    store = make_sql(seal=NEW)
    await store.start()
    shown = {"to": SECRET}
    first = EffectClaim("place:1", "request:1", is_repeat=True, asked_at=T0, tool="tool:1")
    assert await store.claim_effect(invocation("inv_1", arguments_redacted=shown), first) is None
    second = EffectClaim("place:2", "request:2", is_repeat=True, asked_at=T0, tool="tool:1")
    earlier = await store.claim_effect(invocation("inv_2"), second)
    assert earlier is not None
    assert (earlier.another, earlier.arguments_redacted) == (True, shown)


async def test_a_lost_key_is_given_up_by_name_alone(make_sql: Make) -> None:
    """A start without an old key fails and lists what it sealed; forgetting the key keeps runs and claims."""
    first = make_sql(seal=OLD)
    await first.start()
    await _fill(first, "old")
    await first.aclose()
    with pytest.raises(StoreError) as caught:
        await make_sql(seal=NEW).start()
    said = str(caught.value)
    assert f"the key {OLD.id} sealed 3 messages, 1 suspended turn, 1 hidden turn, 1 response, " in said
    assert "1 large result, 2 effect results" in said
    assert "Nothing was deleted" in said
    assert "--forget-sealed" in said
    lost = make_sql(seal=NEW, needs_all_keys=False)
    await lost.start()
    await _fill(lost, "new")
    assert await lost.forget_sealed(OLD.id) == 10
    await lost.aclose()
    after = make_sql(seal=NEW)
    await after.start()
    await _check(after, "new")
    detail = await after.get_run("run_old")
    assert detail is not None
    (call,) = detail.invocations
    assert (len(detail.messages), call.tool, call.arguments_redacted) == (0, "core__send", None)
    effect = await after.find_effect(EffectClaim("", "request:old"))
    assert effect is not None
    assert effect.result is None


def test_a_store_in_memory_has_nothing_sealed() -> None:
    """``open_sealed`` refuses a store in memory, and names the setting of an invalid key."""
    with pytest.raises(ConfigError, match="nothing that is sealed"):
        open_sealed("memory:")
    with pytest.raises(ConfigError, match=r"store\.old_seal_keys: it does not hold 32 bytes"):
        open_sealed("sqlite:///r.db", base=Path("/"), old_seal_keys=["short"])


def test_the_commands_change_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """``toolrelay migrate`` reseals rows and forgets a lost key, but refuses to forget a configured one."""
    import asyncio

    from proxy.commands.cli import run as command

    async def fill() -> None:
        from proxy.store.sqlite.store import SqliteStore

        store = SqliteStore(tmp_path / "r.db", StoreOptions(seal=OLD))
        await store.start()
        store.put_run(run(status="completed"))
        store.put_messages([message(content=SECRET)])
        await store.aclose()

    asyncio.run(fill())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("K1", base64.b64encode(bytes(range(32))).decode())
    monkeypatch.setenv("K2", base64.b64encode(bytes(32)).decode())
    settings = '[store]\nurl = "sqlite:///r.db"\nkeep_days = 36500\nseal_key = "env:K2"\n'
    config = tmp_path / "toolrelay.toml"
    config.write_text(settings)
    assert command(["runs", "list"]) != 0
    assert f"the key {OLD.id} sealed 1 message" in capsys.readouterr().err
    config.write_text(settings + 'old_seal_keys = ["env:K1"]\n')
    assert command(["migrate", "--forget-sealed", OLD.id, "--yes"]) != 0
    assert "is configured" in capsys.readouterr().err
    assert command(["migrate", "--reseal"]) == 0
    assert "1 row encrypted again" in capsys.readouterr().out
    config.write_text(settings)
    assert command(["runs", "list"]) == 0
    config.write_text('[store]\nurl = "sqlite:///r.db"\n')
    assert command(["migrate", "--reseal"]) != 0
    assert command(["migrate", "--forget-sealed", NEW.id, "--yes"]) == 0
    assert "deleted 1 row; all runs stay" in capsys.readouterr().out


# What one caller may keep.


async def test_one_caller_keeps_so_much_and_the_oldest_goes(make: Make) -> None:
    """A caller above ``max_per_caller`` loses its own oldest rows of each kind; others lose nothing."""
    first = make(max_per_caller=3, reap=True, tidy_every_s=0.01)
    await first.start()
    _overflow(first)
    await first.list_runs(RunFilter())
    while (left := await _left(first)) != [3, 3, 3, 3, 4]:
        assert min(left) >= 3
        await asyncio.sleep(0.01)
    assert await first.find_suspended("s-0") is None
    assert await first.find_suspended("s-4") is not None
    assert await first.find_response("resp_4", "ada") is not None


def _overflow(store: Any) -> None:
    for number in range(5):
        more: dict[str, Any] = {"caller": "ada", "created_at": T0 + number}
        store.put_suspended(suspended(f"s-{number}", **more))
        store.put_hidden(hidden(f"h-{number}", **more))
        store.put_response(response(f"resp_{number}", **more))
        store.put_result(kept(f"res_{number}", **more))
    store.put_run(run())
    store.put_suspended(suspended("bob", caller="bob"))


async def _left(store: SqlStore) -> list[int]:
    async with store._snapshot() as db:
        counts = []
        for table in ("suspended_turns", "hidden_turns", "responses", "kept_results"):
            ((number,),) = await db.execute_fetchall(f"SELECT count(*) FROM {table} WHERE caller = 'ada'")
            counts.append(number)
        ((number,),) = await db.execute_fetchall("SELECT count(*) FROM suspended_turns")
        return [*counts, number]
