"""Sealed content: what the file holds, which key opens it, and the error without that key."""

import base64
import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from store_records import (
    T0,
    approval,
    files_below,
    grant,
    hidden,
    hidden_of,
    invocation,
    kept,
    message,
    native_call,
    query,
    response,
    run,
    suspended,
    wire,
)

from proxy.base.errors import ConfigError, StoreError
from proxy.records.approvals import ApprovalEvent, Decided
from proxy.records.background import BackgroundRecord
from proxy.store.base import RunFilter
from proxy.store.factory import open_store
from proxy.store.options import StoreOptions
from proxy.store.seal import (
    APPROVALS,
    BACKGROUND,
    CALLS,
    CONTENT,
    GRANTS,
    MESSAGES,
    RESPONSES,
    Seal,
    parse_seal_key,
)
from proxy.store.sqlite.memory import MemoryStore
from proxy.store.sqlite.store import SqliteStore

KEY = bytes(range(32))
SECRET = "a secret sentence"

Make = Callable[..., SqliteStore]


async def _fill(store: SqliteStore, name: str = "1") -> None:
    """Put one row of every kind of content, with the secret in each of its columns."""
    plain = SECRET.encode()
    store.put_run(run(f"run_{name}"))
    store.put_messages(
        [
            message(
                f"run_{name}", content=SECRET, content_json=json.dumps(SECRET), tool_calls=f'["{SECRET}"]'
            ),
            message(f"run_{name}", seq=1, content=None, tool_calls=None, function_call=f'{{"{SECRET}":1}}'),
        ]
    )
    store.put_native_call(native_call(f"inv_{name}", f"run_{name}", payload=f'{{"{SECRET}":1}}'))
    shown = {"arguments_redacted": {"to": SECRET}, "result_redacted": [SECRET]}
    store.close_invocation(invocation(f"inv_{name}", f"run_{name}", **shown))
    store.put_suspended(suspended(f"s-{name}", run_id=f"run_{name}", payload=plain))
    store.put_hidden(hidden(f"h-{name}", run_id=f"run_{name}", payload=plain))
    store.put_response(
        response(f"resp_{name}", response=plain, input_items=plain + b"1", continuation=plain + b"2")
    )
    store.put_result(kept(f"res_{name}", run_id=f"run_{name}", content=SECRET))
    store.put_wire(wire(f"run_{name}", payload=plain))
    said = {"arguments": SECRET, "arguments_shown": {"to": SECRET}, "reason": SECRET, "edited": SECRET}
    await store.put_approvals([approval(f"ap_{name}", run_id=f"run_{name}", **said)])
    await store.put_background(BackgroundRecord(f"bg_{name}", "open", f"run_{name}", T0), plain)
    asked = approval(f"granted_{name}", run_id=f"run_{name}", **said)
    await store.put_approvals([asked])
    given = grant(f"grant_{name}", approval_id=asked.id, run_id=f"run_{name}", bounds=SECRET)
    yes = Decided(ApprovalEvent.APPROVE, "boss", "api", SECRET, until=T0 + 60)
    await store.decide_approval(asked, yes, T0, given)


async def _check(store: SqliteStore, name: str = "1", *, has_wire: bool = True) -> None:
    detail = await store.get_run(f"run_{name}")
    assert detail is not None
    first, second = detail.messages
    assert (first.content, first.content_json) == (SECRET, json.dumps(SECRET))
    assert (first.tool_calls, second.content) == (f'["{SECRET}"]', None)
    assert second.function_call == f'{{"{SECRET}":1}}'
    assert [call.payload for call in detail.native_calls] == [f'{{"{SECRET}":1}}']
    shown = [(call.arguments_redacted, call.result_redacted) for call in detail.invocations]
    assert shown == [({"to": SECRET}, [SECRET])]
    turn = await store.find_suspended(f"s-{name}")
    assert turn is not None
    assert turn.payload == SECRET.encode()
    assert [turns.payload for turns in await hidden_of(store, f"h-{name}")] == [SECRET.encode()]
    stored = await store.find_response(f"resp_{name}", "open")
    assert stored is not None
    assert stored.response == SECRET.encode()
    assert (stored.input_items[-1:], stored.continuation[-1:]) == (b"1", b"2")
    result = await store.find_result(f"res_{name}", "open")
    assert result is not None
    assert result.content == SECRET
    found = await store.find_wire(f"run_{name}")
    assert (None if found is None else found.payload) == (SECRET.encode() if has_wire else None)
    (asked,) = await store.find_approvals([f"ap_{name}"])
    assert (asked.arguments, asked.arguments_shown, asked.reason) == (SECRET, {"to": SECRET}, SECRET)
    assert await store.background_request(f"bg_{name}") == SECRET.encode()
    assert [given.bounds for given in await store.find_grants([f"grant_{name}"])] == [SECRET]


async def _settle(store: SqliteStore) -> None:
    await store.list_runs(RunFilter())


async def test_sealed_content_is_read_and_no_file_has_it(make_sqlite: Make, tmp_path: Path) -> None:
    """Rule R3: a store with a seal key reads back all content, and no file holds it in plain text."""
    store = make_sqlite(seal=Seal(KEY))
    await store.start()
    assert store.sealed is True
    await _fill(store)
    await _settle(store)
    await _check(store)
    files = [path for path in files_below(tmp_path) if path.is_file()]
    assert files
    for path in files:
        raw = path.read_bytes()
        assert SECRET.encode() not in raw
        assert base64.b64encode(SECRET.encode())[:20] not in raw
    await store.aclose()
    again = make_sqlite(seal=Seal(KEY))
    await again.start()
    await _check(again)
    tables = (*CONTENT, CALLS)
    sealed = [query(tmp_path / "r.db", f"SELECT DISTINCT sealed_by FROM {table.name}") for table in tables]
    assert sealed == [[(Seal(KEY).id,)]] * len(tables)


async def test_what_was_written_before_the_key_stays_readable(make_sqlite: Make) -> None:
    """A store with a seal key also reads older unsealed rows, and seals such a row when it is put again."""
    before = make_sqlite()
    await before.start()
    assert before.sealed is False
    await _fill(before, "old")
    await before.aclose()
    store = make_sqlite(seal=Seal(KEY))
    await store.start()
    await _fill(store, "new")
    await _settle(store)
    # The bytes of runs cannot be masked, so a store without a key did not write them.
    await _check(store, "old", has_wire=False)
    await _check(store, "new")
    await _fill(store, "old")
    await _settle(store)
    await _check(store, "old")
    # Approvals, their grants and background responses are written only once, so they stay unsealed.
    for table in {*CONTENT, CALLS} - {APPROVALS, GRANTS, BACKGROUND}:
        assert query(store.path, f"SELECT count(*) FROM {table.name} WHERE sealed_by IS NULL") == [(0,)]


@pytest.mark.parametrize("table", [table.name for table in CONTENT])
@pytest.mark.parametrize("key", [None, bytes(32)], ids=["none", "other"])
async def test_another_key_is_refused_at_start(make_sqlite: Make, table: str, key: bytes | None) -> None:
    """A store with one sealed row of any kind does not start with another seal key, or without one."""
    first = make_sqlite(seal=Seal(KEY))
    await first.start()
    await _fill(first)
    await first.aclose()
    with closing(sqlite3.connect(first.path)) as connection, connection:
        for other in CONTENT:
            if other.name != table:
                connection.execute(f"DELETE FROM {other.name}")
    wrong = make_sqlite(seal=Seal(key) if key is not None else None)
    with pytest.raises(StoreError, match=f"cannot be read: the key {Seal(KEY).id} sealed [12] ") as caught:
        await wrong.start()
    assert "Nothing was deleted" in str(caught.value)
    assert ("Set store.seal_key" if key is None else "in store.old_seal_keys") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert KEY.hex() not in str(caught.value)
    assert await wrong.healthy() is False
    right = make_sqlite(seal=Seal(KEY))
    await right.start()


async def test_one_of_two_keys_is_not_enough(make_sqlite: Make) -> None:
    """A store with rows of two seal keys starts with neither key alone, whichever sorts first."""
    both = (Seal(KEY), Seal(bytes(32)))
    stores = [make_sqlite(seal=seal) for seal in both]
    for store in stores:  # both start while the database is empty
        await store.start()
    for number, store in enumerate(stores):
        await _fill(store, str(number))
        await _settle(store)
    with pytest.raises(StoreError, match="sealed with the key"):
        await stores[0].find_suspended("s-1")
    for seal in both:
        with pytest.raises(StoreError, match="cannot be read: the key"):
            await make_sqlite(seal=seal).start()


async def test_a_record_whose_sealed_rows_are_gone_needs_no_key(make_sqlite: Make) -> None:
    """Once no sealed content is left, the store starts without the seal key."""
    first = make_sqlite(seal=Seal(KEY))
    await first.start()
    await _fill(first)
    await first.aclose()
    with closing(sqlite3.connect(first.path)) as connection, connection:
        for table in CONTENT:
            connection.execute(f"DELETE FROM {table.name}")
    second = make_sqlite()
    await second.start()
    assert len(await second.list_runs(RunFilter())) == 1


async def test_calls_without_their_key_are_shown_as_sealed(make_sqlite: Make) -> None:
    """If only calls are sealed, the store starts without the key and shows their values as ``<sealed>``."""
    first = make_sqlite(seal=Seal(KEY))
    await first.start()
    await _fill(first)
    first.close_invocation(invocation("inv_empty", "run_1", seq=1, arguments_redacted=None))
    await first.aclose()
    with closing(sqlite3.connect(first.path)) as connection, connection:
        for table in CONTENT:
            connection.execute(f"DELETE FROM {table.name}")
    without = make_sqlite()
    await without.start()
    detail = await without.get_run("run_1")
    assert detail is not None
    shown = [(call.id, call.arguments_redacted, call.result_redacted) for call in detail.invocations]
    assert shown == [("inv_1", "<sealed>", "<sealed>"), ("inv_empty", None, None)]


async def test_a_value_in_another_place_does_not_open(make_sqlite: Make) -> None:
    """Reading a sealed value that was changed, or copied to another row, table or column, is an error."""
    store = make_sqlite(seal=Seal(KEY))
    await store.start()
    await _fill(store, "1")
    await _fill(store, "2")
    await _settle(store)
    spoiled = [
        "UPDATE suspended_turns SET payload = (SELECT payload FROM suspended_turns WHERE key = 's-1') "
        "WHERE key = 's-2'",
        "UPDATE hidden_turns SET payload = (SELECT payload FROM suspended_turns WHERE key = 's-1') "
        "WHERE key = 'h-2'",
        "UPDATE responses SET response = continuation WHERE id = 'resp_2'",
        "UPDATE messages SET content = tool_calls WHERE run_id = 'run_2' AND seq = 0",
    ]
    with closing(sqlite3.connect(store.path)) as connection, connection:
        for statement in spoiled:
            assert connection.execute(statement).rowcount == 1
    reads: list[Callable[[], Any]] = [
        lambda: store.find_suspended("s-2"),
        lambda: hidden_of(store, "h-2"),
        lambda: store.find_response("resp_2", "open"),
        lambda: store.get_run("run_2"),
    ]
    for read in reads:
        with pytest.raises(StoreError, match="does not open"):
            await read()
    await _check(store, "1")
    with closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute("UPDATE suspended_turns SET payload = x'00' WHERE key = 's-1'")
        connection.execute("UPDATE messages SET content = 'no base64' WHERE run_id = 'run_1' AND seq = 0")
    for read in (lambda: store.find_suspended("s-1"), lambda: store.get_run("run_1")):
        with pytest.raises(StoreError, match="does not open"):
            await read()


async def test_content_that_is_not_written_needs_no_masking(tmp_path: Path) -> None:
    """A store in memory or with ``content=none`` counts as sealed, as it writes no content to a file."""
    assert MemoryStore().sealed is True
    assert SqliteStore(tmp_path / "r.db", StoreOptions(content="none")).sealed is True
    assert SqliteStore(tmp_path / "r.db", StoreOptions(content="all")).sealed is False


async def test_a_url_with_a_key_opens_a_sealed_store(tmp_path: Path) -> None:
    """``open_store`` takes the seal key as text; the error about an invalid one names the setting alone."""
    store = open_store("sqlite:///r.db", base=tmp_path, seal_key=KEY.hex())
    assert store.sealed is True
    assert open_store("sqlite:///r.db", base=tmp_path).sealed is False
    with pytest.raises(ConfigError, match=r"store\.seal_key: it does not hold 32 bytes") as caught:
        open_store("memory:", seal_key="hunter2")
    assert "hunter2" not in str(caught.value)
    assert files_below(tmp_path) == []


@pytest.mark.parametrize(
    "text",
    [
        KEY.hex(),
        KEY.hex().upper(),
        base64.b64encode(KEY).decode(),
        base64.b64encode(KEY).decode().rstrip("="),
        base64.urlsafe_b64encode(KEY).decode(),
    ],
)
def test_a_key_is_written_in_base64_or_hex(text: str) -> None:
    """Hex, base64 and URL-safe base64 of 32 bytes give the same key, with or without padding."""
    assert parse_seal_key(text) == KEY


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hunter2",
        KEY.hex()[:-2],
        KEY.hex() + "00",
        base64.b64encode(KEY[:-1]).decode(),
        "ü" * 43,
        "*" * 44,
    ],
)
def test_what_is_no_key_is_refused_unrepeated(text: str) -> None:
    """A text that does not hold 32 bytes is a ConfigError that says how to make a key, not what was given."""
    with pytest.raises(ConfigError, match="openssl rand -base64 32") as caught:
        parse_seal_key(text)
    assert not text or text not in str(caught.value)


@given(content=st.binary(max_size=200), name=st.text(max_size=20), other=st.text(max_size=20))
@settings(max_examples=100, deadline=None)
def test_what_is_closed_opens_in_its_place_alone(content: bytes, name: str, other: str) -> None:
    """A sealed row opens to what it was, but not under another id, with another key, or changed."""
    seal = Seal(KEY)
    row = (name, "open", "run_1", content, content + b"1", b"", T0)
    closed = seal.close(RESPONSES, row)
    assert seal.open(RESPONSES, closed) == row
    assert len({closed[3], seal.close(RESPONSES, row)[3]}) == 2  # a nonce of its own each time
    if len(content) > 4:
        assert content not in closed[3]
    if other != name:
        with pytest.raises(StoreError):
            seal.open(RESPONSES, (other, *closed[1:]))
    with pytest.raises(StoreError):
        Seal(bytes(32)).open(RESPONSES, closed)
    with pytest.raises(StoreError):
        seal.open(RESPONSES, (*closed[:3], closed[3][:-1] + bytes([closed[3][-1] ^ 1]), *closed[4:]))


@given(text=st.text(max_size=50), turn=st.integers(0, 9), seq=st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_sealed_text_is_text(text: str, turn: int, seq: int) -> None:
    """A sealed text column holds ASCII; empty columns and those that are not sealed stay as they were."""
    seal = Seal(KEY)
    row = ("run_1", turn, seq, "tool", text, None, None, None, "c1", None)
    closed = seal.close(MESSAGES, row)
    assert closed[4].isascii()
    assert closed[:4] + closed[5:] == row[:4] + row[5:]
    assert seal.open(MESSAGES, closed) == row


def test_the_name_of_a_key_says_nothing_of_it() -> None:
    """Each seal key has its own id, and neither the id nor the repr of a seal shows the key."""
    ids = {Seal(os.urandom(32)).id for _ in range(20)}
    assert len(ids) == 20
    assert KEY.hex()[:16] != Seal(KEY).id
    assert KEY.hex() not in repr(Seal(KEY))
    with pytest.raises(ValueError, match="32 bytes"):
        Seal(b"short")


async def test_a_sealed_turn_waits_unsealed_in_memory_only(make_sqlite: Make) -> None:
    """Before the commit a read returns the content, but the queued write holds it sealed."""
    store = make_sqlite(seal=Seal(KEY))
    await store.start()
    store.put_run(run())
    store.put_suspended(suspended(payload=SECRET.encode()))
    queued = [value for write in store._writer._queue._needed for row in write.made() for value in row]
    assert SECRET.encode() not in queued
    found = await store.find_suspended("key-1")
    assert found == replace(suspended(), payload=SECRET.encode())
