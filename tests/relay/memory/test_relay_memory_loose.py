"""Hidden turns after a conversation has changed: what may differ, and what never brings back another's."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from remembering import DIALECTS, Exchange, Line, Memory, Sent
from store_postgres import need_postgres, new_schema

from proxy.records.rows import HiddenTurns
from proxy.relay.memory.hidden.history import History
from proxy.store.base import Store
from proxy.store.options import StoreOptions
from proxy.store.sqlite.memory import MemoryStore
from proxy.store.sqlite.store import SqliteStore
from proxy.wires.turn.digest import PrefixDigests

dialects = pytest.mark.parametrize("dialect", DIALECTS)
NEXT = "And now?"


def exchanges(words: str, count: int, results: str | None = None) -> list[Exchange]:
    """Exchanges with different words; each has a hidden result if ``results`` is its name."""
    return [
        Exchange(f"{words} {at}?", f"{results} {at}" if results else None, f"It is {words} {at}.")
        for at in range(count)
    ]


def lines_of(past: Sequence[Exchange], system: str = "s") -> list[Line]:
    lines: list[Line] = [("system", system)]
    for one in past:
        lines += [("user", one.question), ("assistant", one.answer)]
    return lines


async def live(memory: Memory, past: Sequence[Exchange], elsewhere: Sequence[int] = ()) -> None:
    """Ask all questions of a conversation one after the other; some ran elsewhere, and nobody notes them."""
    for at, one in enumerate(past):
        if at not in elsewhere:
            memory.remember(Sent([*lines_of(past[:at]), ("user", one.question)]), one)


async def put_back(memory: Memory, lines: Sequence[Line]) -> dict[str, str]:
    """Send lines and one more question; return the payload put back behind each answer, by its text."""
    request, spy, _ = await memory.look(Sent([*lines, ("user", NEXT)]))
    texts = {answer.position: answer.text for answer in request.answers()}
    return {_said(texts[position]): payload.decode() for position, payload in spy.put.items()}


def _said(text: str) -> str:
    """The words of an answer: Responses writes their length before them."""
    return text.rpartition(":")[2]


def is_own(put: Mapping[str, str], past: Sequence[Exchange]) -> bool:
    """Return whether everything that was put back is the result of the exchange with this answer."""
    results = {one.answer: one.result for one in past}
    return all(f'{results[text]}"' in payload.replace("\\", "") for text, payload in put.items())


async def started() -> MemoryStore:
    store = MemoryStore()
    await store.start()
    return store


ALICE = Exchange("I am Alice.", None, "Hello!")
BOB = Exchange("I am Bob.", None, "Hello!")


def pair(shared: int = 3) -> tuple[list[Exchange], list[Exchange]]:
    """Two conversations with equal words but for the first question, and with different results."""
    return (
        [ALICE, *exchanges("price", shared, "result of Alice")],
        [BOB, *exchanges("price", shared, "result of Bob")],
    )


@dialects
async def test_identical_history_gets_its_own_whatever_else_exists(dialect: str) -> None:
    """Rule R4: of two conversations that end alike, each gets its own turns, and all of them."""
    store = await started()
    memory = Memory(History(store), DIALECTS[dialect])
    alice, bob = pair()
    await live(memory, alice)
    await live(memory, bob)
    for past in (alice, bob):
        put = await put_back(memory, lines_of(past))
        assert len(put) == 3
        assert is_own(put, past)
    await store.aclose()


@dialects
async def test_a_conversation_that_ran_elsewhere_gets_nothing_of_another(dialect: str) -> None:
    """Rule R4: equal words before and behind an answer are not enough if a message further up differs."""
    store = await started()
    memory = Memory(History(store), DIALECTS[dialect])
    alice, bob = pair()
    await live(memory, alice)
    await live(memory, bob, elsewhere=(0, 1, 2, 3))
    assert await put_back(memory, lines_of(bob)) == {}
    await store.aclose()


@dialects
@pytest.mark.parametrize("edit", ["question", "answer", "deleted", "added"])
async def test_nothing_is_found_past_an_edit_of_a_message_that_is_still_there(
    dialect: str, edit: str
) -> None:
    """Rule R4: after an edit only the answers before it get their turns back, and no later one does."""
    store = await started()
    memory = Memory(History(store), DIALECTS[dialect])
    past = exchanges("price", 6, "result")
    await live(memory, past)
    lines = lines_of(past)
    if edit == "added":
        lines[3:3] = [("user", "One more."), ("assistant", "Fine.")]
    elif edit == "deleted":
        del lines[3:5]
    else:
        at = 3 if edit == "question" else 4
        lines[at] = (lines[at][0], "Something else.")
    assert set(await put_back(memory, lines)) == {past[0].answer}
    await store.aclose()


@dialects
@pytest.mark.parametrize("cut", range(1, 9))
async def test_of_the_newest_messages_every_answer_is_found(dialect: str, cut: int) -> None:
    """Rule R4: if only the newest messages are sent, each answer whose question is there gets its turn."""
    store = await started()
    memory = Memory(History(store), DIALECTS[dialect])
    past = exchanges("price", 6, "result")
    await live(memory, past)
    lines = lines_of(past)
    put = await put_back(memory, [lines[0], *lines[1 + cut :]])
    assert set(put) == {one.answer for one in past[(cut + 1) // 2 :]}
    assert is_own(put, past)
    await store.aclose()


@dialects
async def test_a_window_that_fits_two_pasts_gets_neither(dialect: str) -> None:
    """Rule R4: a window tells two conversations apart as long as it shows a message that differs; without
    one, nothing is put back."""
    store = await started()
    memory = Memory(History(store), DIALECTS[dialect])
    alice = [*exchanges("first", 1), ALICE, *exchanges("price", 3, "result of Alice")]
    bob = [*exchanges("first", 1), BOB, *exchanges("price", 3, "result of Bob")]
    await live(memory, alice)
    assert len(await put_back(memory, [("system", "s"), *lines_of(alice)[5:]])) == 3
    await live(memory, bob)
    for past in (alice, bob):
        assert await put_back(memory, [("system", "s"), *lines_of(past)[5:]]) == {}
    await store.aclose()


@dialects
async def test_a_summary_loses_the_turns_before_it_and_keeps_those_after_it(dialect: str) -> None:
    """Rule R4: what stands behind a summary may belong to any conversation, so only answers that were given
    after it are found."""
    store = await started()
    memory = Memory(History(store), DIALECTS[dialect])
    past = exchanges("price", 6, "result")
    await live(memory, past)
    told: list[Line] = [("system", "s"), ("user", "Summary: all went well."), ("assistant", "Noted.")]
    short = [*told, *lines_of(past)[7:]]
    assert await put_back(memory, short) == {}
    new = Exchange("price 6?", "result 6", "It is price 6.")
    memory.remember(Sent([*short, ("user", new.question)]), new)
    put = await put_back(memory, [*short, ("user", new.question), ("assistant", new.answer)])
    assert set(put) == {new.answer}
    await store.aclose()


@dialects
async def test_a_conversation_never_gets_the_turns_of_a_shorter_one(dialect: str) -> None:
    """Rule R4: messages that the kept conversation never had are a difference, too."""
    store = await started()
    memory = Memory(History(store), DIALECTS[dialect])
    shared = exchanges("price", 3, "result")
    await live(memory, shared)
    assert await put_back(memory, lines_of([ALICE, *shared])) == {}
    await store.aclose()


@dialects
async def test_one_past_is_put_back_at_one_place(dialect: str) -> None:
    """Rule R4: if the same question and answer stand in a window twice, one kept turn is put back once."""
    store = await started()
    memory = Memory(History(store), DIALECTS[dialect])
    same = [Exchange("Again?", "first", "Done."), Exchange("Again?", "second", "Done.")]
    past = [*exchanges("price", 2), *same]
    await live(memory, past, elsewhere=(2,))
    request, spy, restored = await memory.look(Sent([("system", "s"), *lines_of(past)[5:], ("user", NEXT)]))
    assert list(spy.put) == [request.answers()[-1].position]
    assert b"second" in spy.put[request.answers()[-1].position]
    assert restored.recall.counts == {"put_back_loosely": 1, "ambiguous": 1}
    await store.aclose()


@dialects
async def test_long_windows_are_found_by_all_of_their_messages_or_not_at_all(dialect: str) -> None:
    """Rule R4: an answer is found loosely with at most 128 messages before its question, since older ones are
    not kept as evidence; an exact match has no such bound."""
    store = await started()
    memory = Memory(History(store), DIALECTS[dialect])
    past = exchanges("price", 70, "result")
    await live(memory, past)
    assert len(await put_back(memory, lines_of(past))) == 70
    lines = lines_of(past)
    put = await put_back(memory, [lines[0], *lines[3:]])
    assert set(put) == {one.answer for one in past[1:66]}
    lines[1] = ("user", "Edited.")
    assert await put_back(memory, lines) == {}
    await store.aclose()


class Watched(MemoryStore):
    """A store that notes the number of keys of each look-up."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    async def find_hidden(self, keys: Sequence[str], caller: str = "", *, loosely: bool = False) -> Any:
        self.asked.append(len(keys))
        return await super().find_hidden(keys, caller, loosely=loosely)


@dialects
async def test_an_unchanged_conversation_costs_one_query_and_no_evidence(
    dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If all answers have an exact match, no loose key is computed or looked up."""
    store = Watched()
    await store.start()
    memory = Memory(History(store), DIALECTS[dialect])
    past = [*exchanges("price", 20, "result"), *exchanges("plain", 20)]
    await live(memory, past)

    def unwanted(*_: Any) -> None:
        raise AssertionError("evidence was computed")

    monkeypatch.setattr(PrefixDigests, "evidence", unwanted)
    assert len(await put_back(memory, lines_of(past))) == 20
    assert store.asked == [40]
    await store.aclose()


@dialects
async def test_a_conversation_that_ran_elsewhere_costs_no_evidence(
    dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evidence takes time for each message before an answer, so it is made only for answers that are on
    record."""
    store = Watched()
    await store.start()
    memory = Memory(History(store), DIALECTS[dialect])

    def unwanted(*_: Any) -> None:
        raise AssertionError("evidence was computed")

    monkeypatch.setattr(PrefixDigests, "evidence", unwanted)
    assert await put_back(memory, lines_of(exchanges("price", 20, "result"))) == {}
    assert store.asked == [20, 20]
    await store.aclose()


class Older(MemoryStore):
    """A store whose rows have the longer digests that an earlier version wrote."""

    def put_hidden(self, *records: HiddenTurns) -> None:
        super().put_hidden(*map(self._older, records))

    @staticmethod
    def _older(record: HiddenTurns) -> HiddenTurns:
        kept = orjson.loads(record.payload)
        if "chain" not in kept:
            return record
        kept["chain"] = [one + "0" * 12 for one in kept["chain"]]
        return structs.replace(record, payload=orjson.dumps(kept))


async def test_rows_of_an_earlier_version_are_still_found() -> None:
    """Evidence with longer digests of messages counts like today's."""
    store = Older()
    await store.start()
    memory = Memory(History(store), DIALECTS["chat"])
    past = exchanges("price", 4, "result")
    await live(memory, past)
    lines = lines_of(past)
    assert len(await put_back(memory, [lines[0], *lines[3:]])) == 3
    lines[1] = ("user", "Edited.")
    assert await put_back(memory, lines) == {}
    await store.aclose()


@pytest.fixture(params=["sqlite", "postgres"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """A started store in a database, in a place of its own."""
    if request.param == "sqlite":
        store: Store = SqliteStore(tmp_path / "r.db", StoreOptions())
        await store.start()
        yield store
        await store.aclose()
        return
    need_postgres()
    from proxy.store.postgres.store import PostgresStore

    async with new_schema() as url:
        store = PostgresStore(url, StoreOptions(lock_timeout_s=15.0))
        await store.start()
        yield store
        await store.aclose()


async def test_a_database_tells_two_conversations_with_one_end_apart(database: Store) -> None:
    """Rule R4: in a database, each of two conversations gets its own turns, and an edit brings none."""
    memory = Memory(History(database), DIALECTS["chat"])
    alice, bob = pair()
    await live(memory, alice)
    await live(memory, bob)
    assert await database.wait_until_visible(30.0)
    for past in (alice, bob):
        put = await put_back(memory, lines_of(past))
        assert len(put) == 3
        assert is_own(put, past)
    assert await put_back(memory, lines_of([Exchange("I am Eve.", None, "Hello!"), *alice[1:]])) == {}


@dataclass
class Dialogue:
    """A conversation whose first exchanges nobody else has. ``elsewhere`` are the exchanges not noted."""

    past: list[Exchange]
    heads: int
    elsewhere: frozenset[int]


@st.composite
def two_dialogues(draw: st.DrawFn) -> list[Dialogue]:
    """Two conversations with different beginnings and equal words at the end."""
    shared = draw(st.integers(1, 4))
    made = []
    for name in ("Alice", "Bob"):
        heads = draw(st.integers(1, 3))
        hidden = draw(st.lists(st.booleans(), min_size=shared, max_size=shared))
        past = exchanges(name, heads, f"head of {name}")
        for one, has in zip(exchanges("price", shared, f"result of {name}"), hidden, strict=True):
            past.append(one if has else replace(one, result=None))
        elsewhere = frozenset(draw(st.sets(st.integers(heads, heads + shared - 1))))
        made.append(Dialogue(past, heads, elsewhere))
    return draw(st.permutations(made))


@given(dialogues=two_dialogues(), dialect=st.sampled_from(sorted(DIALECTS)), data=st.data())
async def test_dialogues_with_one_end_never_share_a_result(
    dialogues: list[Dialogue], dialect: str, data: st.DataObject
) -> None:
    """Rule R4: whatever was noted of two conversations with one end, identical history gets all of its own
    turns, and no edit, window or clock brings a result of one into the other."""
    store = await started()
    memory = Memory(History(store), DIALECTS[dialect])
    for one in dialogues:
        await live(memory, one.past, tuple(one.elsewhere))
    for one in dialogues:
        put = await put_back(memory, lines_of(one.past))
        assert is_own(put, one.past)
        assert set(put) == {
            said.answer
            for at, said in enumerate(one.past)
            if said.result is not None and at not in one.elsewhere
        }
        lines = lines_of(one.past)
        # What ran elsewhere is told apart as long as a message of the beginning is there.
        cut = data.draw(st.integers(0, 2 * one.heads - 1 if one.elsewhere else len(lines) - 1), "cut")
        del lines[1 : 1 + cut]
        assert is_own(await put_back(memory, lines), one.past)
        if len(lines) > 3:
            at = data.draw(st.integers(2, len(lines) - 2), "edited")
            lines[at] = (lines[at][0], "Edited.")
            assert is_own(await put_back(memory, lines), [*one.past, Exchange("", None, "Edited.")])
    await store.aclose()
