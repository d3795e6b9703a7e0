"""The index of words: what a search finds in any script, and that the index is as true as the record."""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_records import T0, run

from proxy.records.rows import MessageRecord
from proxy.records.words import folded, fts5_query, run_words, ts_query, words_of
from proxy.store.base import PurgeFilter, RunFilter
from proxy.store.seal import Seal
from proxy.store.sql.store import SqlStore

Make = Callable[..., SqlStore]

TEXTS = {
    "run_1": "What does the Café on Straße 12 cost — “exactly”? https://example.com/menu",
    "run_2": "日本語の天気を調べて、iPhone手机",
    "run_3": "한국어로 안녕하세요, ประเทศไทย हिन्दी",
    "run_4": 'C:\\temp "NEAR(a b)" foo* AND OR NOT ^bar -baz col:umn',
}
ENDED: dict[str, Any] = {"status": "completed", "ended_at": T0}


def put(store: SqlStore, run_id: str, text: str | None, **changes: Any) -> None:
    """Put a run that has ended, with one message."""
    store.put_run(run(run_id, **(ENDED | changes)))
    if text is not None:
        store.put_messages([MessageRecord(run_id, 1, 0, "assistant", text)])


async def indexed(store: SqlStore) -> None:
    """Index what waits."""
    await store.list_runs(RunFilter())
    while await store.index_runs():
        pass


async def found(store: SqlStore, *words: str | Sequence[str]) -> list[str]:
    """Return the ids of the runs that may have all words."""
    wanted = tuple((word,) if isinstance(word, str) else tuple(word) for word in words)
    return [one.id for one in await store.list_runs(RunFilter(words=wanted))]


@pytest.mark.parametrize(
    ("words", "want"),
    [
        (["café"], ["run_1"]),
        (["CAFE\u0301"], ["run_1"]),
        (["strasse"], ["run_1"]),
        (["exact"], ["run_1"]),
        (["https://example.com/menu"], ["run_1"]),
        (["“exactly”?", "cost"], ["run_1"]),
        (["天気"], ["run_2"]),
        (["気"], ["run_2"]),
        (["語の天"], ["run_2"]),
        (["手机"], ["run_2"]),
        (["iphone手机"], ["run_2"]),
        (["天文"], []),
        (["안녕"], ["run_3"]),
        (["ไทย"], ["run_3"]),
        (["हिन्दी"], ["run_3"]),
        (["c:\\temp"], ["run_4"]),
        (["near(a"], ["run_4"]),
        (["foo*"], ["run_4"]),
        (["and", "or", "not"], ["run_4"]),
        (["col:umn"], ["run_4"]),
        (["foo", "café"], []),
        ([["nowhere", "café"], "cost"], ["run_1"]),
        (["gpt-4o"], ["run_4", "run_3", "run_2", "run_1"]),
        (["“!”"], ["run_4", "run_3", "run_2", "run_1"]),
    ],
)
async def test_words_of_any_script_are_found_by_their_beginning(
    make_sql: Make, words: list[str | Sequence[str]], want: list[str]
) -> None:
    """Both databases find the same runs; marks that a query language would read are nothing special."""
    store = make_sql()
    await store.start()
    for run_id, text in TEXTS.items():
        put(store, run_id, text)
    await indexed(store)
    assert await found(store, *words) == want


@given(st.text(max_size=200), st.text(min_size=1, max_size=12))
def test_a_part_that_begins_with_a_word_is_always_found(text: str, part: str) -> None:
    """What a comparison of texts finds at the beginning of a word is in the index; queries have no syntax."""
    words = (run_words([f"{text} {part}"]) or "").split(" ")
    assert words == sorted(set(words))
    for query, term in ((fts5_query([[part]]), '"'), (ts_query([[part]]), "'")):
        made = [one.strip("()") for one in query.replace(" & ", " AND ").split(" AND ")] if query else []
        assert bool(made) == any(words_of(folded(part)))
        for one in made:
            word = one.split(term)[1]
            assert any(each == word or each.startswith(word) for each in words)


@given(st.lists(st.lists(st.text(max_size=40), min_size=1, max_size=3), max_size=3))
def test_no_query_of_a_user_is_an_error_of_fts5(wanted: list[list[str]]) -> None:
    """Whatever people type, FTS5 reads the expression."""

    query = fts5_query(wanted)
    db = sqlite3.connect(":memory:")
    db.execute("CREATE VIRTUAL TABLE w USING fts5 (words, detail = 'none', tokenize = 'ascii')")
    if query:
        assert db.execute("SELECT count(*) FROM w WHERE w MATCH ?", (query,)).fetchone() == (0,)
    db.close()


async def test_odd_queries_are_no_error_of_the_database(make_sql: Make) -> None:
    """Quotes, operators, NUL, lone surrogates and very long words find nothing and raise nothing."""
    store = make_sql()
    await store.start()
    put(store, "run_1", "text")
    await indexed(store)
    odd = [
        "'",
        '"',
        "''x",
        "a\0b",
        "\ud800z",
        "x" * 5000,
        "日" * 5000,
        "a:*",
        "a<->b",
        "!a",
        "(((",
        "\\'",
        "a|b",
    ]
    for word in odd:
        assert await found(store, word, "nowhere") == [], word


async def test_the_index_follows_the_record(make_sql: Make) -> None:
    """Running runs, new messages and what is not indexed yet stay in a search; purged runs leave it."""
    store = make_sql()
    await store.start()
    put(store, "run_1", "apple")
    put(store, "run_2", "cherry")
    put(store, "run_3", "plum", status="running", ended_at=None)
    assert await found(store, "apple") == ["run_3", "run_2", "run_1"]
    await indexed(store)
    assert await found(store, "apple") == ["run_3", "run_1"]
    store.put_messages([MessageRecord("run_2", 2, 0, "tool", "an apple came later")])
    assert await found(store, "apple") == ["run_3", "run_2", "run_1"]
    store.put_run(run("run_3", **ENDED))
    await indexed(store)
    assert await found(store, "apple") == ["run_2", "run_1"]
    assert await found(store, "plum") == ["run_3"]
    store.put_messages([MessageRecord("run_1", 1, 0, "assistant", "pear")])  # In place of the apple.
    assert await found(store, "apple") == ["run_2", "run_1"]
    await indexed(store)
    assert await found(store, "apple") == ["run_2"]
    assert await found(store, "pear") == ["run_1"]
    assert await store.purge(PurgeFilter(run_id="run_2")) == 1
    assert await words_in(store) == {"run_1": "pear", "run_3": "plum"}
    await store.scrub()


async def test_words_go_with_the_messages(make_sql: Make) -> None:
    """Rule R3: after ``keep_days`` no word of a run is in the index, and the run stays in searches."""
    now = [T0]
    store = make_sql(keep_days=1, clock=lambda: now[0], reap=True, tidy_every_s=3600.0)
    await store.start()
    put(store, "run_1", "secret")
    await indexed(store)
    assert await found(store, "nowhere") == []
    now[0] = T0 + 86401
    while await store._tidy() == 0.0:
        pass
    assert await words_in(store) == {}
    assert await found(store, "nowhere") == ["run_1"]


@pytest.mark.parametrize("what", ["purged", "sealed"])
async def test_no_words_come_of_messages_that_go_while_they_are_read(
    make_sql: Make, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Messages that are deleted or sealed between the reading and the writing leave no word behind."""
    store = make_sql()
    await store.start()
    put(store, "run_1", "secret")
    store.put_messages([MessageRecord("run_1", 2, 0, "tool", "later")])
    put(store, "run_2", "other")
    await store.list_runs(RunFilter())
    gone = {
        "purged": "DELETE FROM messages WHERE run_id = ? AND turn = 1",
        "sealed": "UPDATE messages SET content = NULL, sealed_by = 'key' WHERE run_id = ? AND turn = 1",
    }
    read_messages = store.read_messages

    async def read(*args: Any) -> Any:
        async for portion in read_messages(*args):
            yield portion
        await store._writer.commit(gone[what], [("run_1",)])

    with monkeypatch.context() as patch:
        patch.setattr(store, "read_messages", read)
        await store.index_runs()
    assert await words_in(store) == {"run_2": "other"}
    await indexed(store)
    assert await words_in(store) == {"run_2": "other"} | ({"run_1": "later"} if what == "purged" else {})


async def test_two_processes_may_index_the_same_run(make_sql: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who writes last, with what he had read before the other wrote, takes no words away and adds none."""
    store = make_sql()
    await store.start()
    put(store, "run_1", "secret")
    await store.list_runs(RunFilter())
    read_messages = store.read_messages

    async def read(*args: Any) -> Any:
        async for portion in read_messages(*args):
            yield portion
        patch.undo()
        await store.index_runs()

    with monkeypatch.context() as patch:
        patch.setattr(store, "read_messages", read)
        await store.index_runs()
    assert await words_in(store) == {"run_1": "secret"}
    assert await found(store, "nowhere") == []
    assert await store.purge(PurgeFilter(run_id="run_1")) == 1
    await store.scrub()


async def test_a_run_that_grows_too_large_is_in_every_search(make_sql: Make) -> None:
    """The words of its first messages must not hide those that came later."""
    store = make_sql()
    await store.start()
    put(store, "run_1", "apple")
    await indexed(store)
    for turn in (2, 3):
        many = " ".join(f"{turn}word{number}" for number in range(21_000))
        store.put_messages([MessageRecord("run_1", turn, 0, "tool", many)])
    await indexed(store)
    assert await words_in(store) == {}
    assert await found(store, "2word20999") == ["run_1"]


async def test_sealed_content_is_never_indexed(make_sql: Make) -> None:
    """A store that seals has no words; sealing what was open takes its words away."""
    store = make_sql(seal=Seal(bytes(32)))
    await store.start()
    put(store, "run_1", "secret")
    await indexed(store)
    assert await words_in(store) == {}
    assert await found(store, "nowhere") == ["run_1"]
    await store.aclose()
    opened = make_sql(old_seals=[Seal(bytes(32))])
    await opened.start()
    put(opened, "run_2", "open")
    await indexed(opened)
    assert set(await words_in(opened)) == {"run_2"}
    assert await found(opened, "nowhere") == ["run_1"]
    await opened.aclose()
    again = make_sql(seal=Seal(bytes(32)))
    await again.start()
    assert await again.reseal() == 1
    assert await words_in(again) == {}


async def words_in(store: SqlStore) -> dict[str, str]:
    """Return the indexed words of each run, without those of its facts."""
    await store.list_runs(RunFilter())
    facts = {"default", "gpt", "4o", "mini", "open"}
    async with store._snapshot() as db:
        rows = await db.execute_fetchall("SELECT run_id, words FROM run_texts ORDER BY run_id")
    return {run_id: " ".join(word for word in words.split() if word not in facts) for run_id, words in rows}
