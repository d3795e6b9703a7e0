"""Hidden turns in everyday conversations: how often they are restored, and that no wrong one ever is.

``python -m pytest tests/relay/memory/test_relay_memory_everyday.py -s -k share`` prints the shares.
"""

import json
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from remembering import DIALECTS, Chat, Exchange, Habit, Line, Memory, Sent

from proxy.relay.memory.hidden.history import History
from proxy.store.sqlite.memory import MemoryStore
from proxy.wires.past.clock import SystemRule
from proxy.wires.registry.variants import variant_of

ROUNDS = 12


def plain(chat: Chat, question: str, number: int) -> Sent:
    """Send the whole conversation unchanged."""
    lines: list[Line] = [("system", chat.system)]
    for past in chat.exchanges:
        lines += [("user", past.question), ("assistant", past.answer)]
    return Sent([*lines, ("user", question)], list(chat.exchanges))


def trimmed(chat: Chat, question: str, number: int) -> Sent:
    """Send texts without the blanks around them."""
    sent = plain(chat, question, number)
    return Sent([*[(who, text.strip()) for who, text in sent.lines[:-1]], sent.lines[-1]], sent.exchanges)


def clock(chat: Chat, question: str, number: int) -> Sent:
    """Send a system prompt with the current time."""
    sent = plain(chat, question, number)
    said = f"{chat.system}\nToday is Friday, November 27, 2026. It is 10:{number:02}:31 UTC.\nBe brief."
    return Sent([("system", said), *sent.lines[1:]], sent.exchanges)


def developer(chat: Chat, question: str, number: int) -> Sent:
    """Send the first message with another role from the second request on."""
    sent = plain(chat, question, number)
    role = "developer" if number else "system"
    return Sent([(role, chat.system), *sent.lines[1:]], sent.exchanges, beside=False)


def retrieval(chat: Chat, question: str, number: int) -> Sent:
    """Put notes before the newest question, and before no other one."""
    sent = plain(chat, question, number)
    found = f"Use these notes.\n\nNote {number}: the shop opens at nine.\n\nQuestion: {question}"
    return Sent([*sent.lines[:-1], ("user", found)], sent.exchanges)


def tagged(chat: Chat, question: str, number: int) -> Sent:
    """Put notes after the newest question, and tags around both."""
    sent = plain(chat, question, number)
    found = f"<question>{question}</question>\n<context>\nNote {number}\n</context>"
    return Sent([*sent.lines[:-1], ("user", found)], sent.exchanges)


def window(chat: Chat, question: str, number: int) -> Sent:
    """Send the newest eight messages only."""
    sent = plain(chat, question, number)
    return Sent([sent.lines[0], *sent.lines[1:][-9:]], sent.exchanges[-4:])


def summary(chat: Chat, question: str, number: int) -> Sent:
    """Send a summary in place of all but the newest six messages."""
    sent = plain(chat, question, number)
    if len(chat.exchanges) <= 3:
        return sent
    told: Line = ("user", f"Summary of the first {len(chat.exchanges) - 3} questions: all went well.")
    return Sent([sent.lines[0], told, ("assistant", "Noted."), *sent.lines[-7:]], [
        Exchange("", None, "Noted."), *sent.exchanges[-3:]
    ])  # fmt: skip


def window_and_retrieval(chat: Chat, question: str, number: int) -> Sent:
    """Send the newest messages only, with notes and with a clock."""
    sent = window(chat, question, number)
    found = retrieval(chat, question, number).lines[-1]
    return Sent([clock(chat, question, number).lines[0], *sent.lines[1:-1], found], sent.exchanges)


HABITS: dict[str, Habit] = {
    "unchanged": plain,
    "regenerated": plain,
    "trimmed": trimmed,
    "clock": clock,
    "developer": developer,
    "retrieval": retrieval,
    "retrieval in tags": tagged,
    "window": window,
    "window, retrieval, clock": window_and_retrieval,
}
GOAL = 0.95


def exchange(chooser: random.Random, number: int) -> Exchange:
    """A random question and answer; most have a hidden result."""
    result = f"result {chooser.randrange(10**9)}" if chooser.random() < 0.8 else None
    blank = chooser.choice(["", "\n", " ", "\n\n"])
    question = f"What is the price of article {chooser.randrange(10**6)}?{blank}"
    return Exchange(question, result, f"{blank}It costs {chooser.randrange(10**6)} euros.{blank}")


async def share(
    dialect: str, habit: str, system_rule: SystemRule = "clock", seed: int = 1
) -> tuple[float, int]:
    """The share of hidden turns that were restored in three conversations, and how many wrong ones were."""
    chooser, store = random.Random(seed), MemoryStore()
    await store.start()
    memory = Memory(History(store, system_rule=system_rule), DIALECTS[dialect])
    had = right = wrong = 0
    for conversation in range(3):
        chat = Chat(f"You help customer {conversation}.")
        for number in range(ROUNDS):
            next_one = exchange(chooser, number)
            sent = HABITS[habit](chat, next_one.question, number)
            if habit == "regenerated":
                memory.remember(sent, next_one)  # an answer that the user discarded
            counts = await memory.asked(sent, next_one)
            had, right, wrong = had + counts[0], right + counts[1], wrong + counts[2]
            chat.exchanges.append(next_one)
    await store.aclose()
    return right / had, wrong


@pytest.mark.parametrize("habit", HABITS)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_share_of_turns_that_come_back_in_everyday_use(dialect: str, habit: str) -> None:
    """Rule R4: in each everyday case of each dialect 95 % are restored, and no wrong turn is."""
    if habit == "developer" and dialect == "anthropic":
        pytest.skip("Messages has one place for what the model is told, and no role for it")
    found, wrong = await share(dialect, habit)
    print(f"{dialect:10} {habit:26} {found:6.1%}")
    assert wrong == 0
    assert found >= GOAL


@pytest.mark.parametrize("system_rule", ["exact", "clock", "ignore"])
async def test_a_clock_is_left_out_by_default_only(system_rule: SystemRule) -> None:
    """A clock in the system prompt prevents restoring only if ``store.history_system`` is ``exact``."""
    found, wrong = await share("chat", "clock", system_rule)
    assert (found >= GOAL, wrong) == (system_rule != "exact", 0)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("system_rule", ["exact", "clock"])
async def test_who_is_named_in_a_system_prompt_is_told_apart(dialect: str, system_rule: SystemRule) -> None:
    """Rule R4: if one key serves all customers, a turn is not restored where the system prompt names
    another customer, even if both conversations have the same words."""
    store = MemoryStore()
    await store.start()
    memory = Memory(History(store, system_rule=system_rule), DIALECTS[dialect])
    same = Exchange("What do I owe?", "account 1 of Ann", "Five euros.")
    memory.remember(plain(Chat("You talk to Ann, born on 1990-01-02."), same.question, 0), same)
    for other in ("You talk to Bob, born on 1990-01-02.", "You talk to Ann, born on 1991-02-03."):
        bob = plain(Chat(other, [same]), "Why?", 1)
        _, spy, _ = await memory.look(bob)
        assert spy.put == {}
    _, spy, _ = await memory.look(plain(Chat("You talk to Ann, born on 1990-01-02.", [same]), "Why?", 1))
    assert len(spy.put) == 1
    await store.aclose()


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("other", ["another result", None])
async def test_pasts_that_differ_in_their_results_are_told_apart(dialect: str, other: str | None) -> None:
    """Rule R4: if the same words once had another hidden result, or none, each of the two conversations gets
    its own, and where both fit, nothing is restored."""
    store = MemoryStore()
    await store.start()
    memory = Memory(History(store), DIALECTS[dialect])
    first = Exchange("Is it open?", "until nine", "Yes.")
    second = Exchange("Is it open?", other, "Yes.")
    before, hello = Exchange("Hello", None, "Good day."), Exchange("Hi", None, "Good day.")
    memory.remember(plain(Chat("s", [before]), first.question, 1), first)
    memory.remember(plain(Chat("s", [hello]), second.question, 1), second)
    for past, result in (([before, first], "until nine"), ([hello, second], other), ([first], None)):
        _, spy, restored = await memory.look(plain(Chat("s", past), "And now?", 2))
        put = b"".join(spy.put.values())
        assert (result.encode() in put) if result is not None else not put
        counts = restored.recall.counts
        assert len(spy.put) + counts["ambiguous"] + counts["nothing_hidden"] == 1
    await store.aclose()


async def test_ids_signatures_and_thoughts_tell_nothing_apart_but_arguments_do() -> None:
    """Rule R4: call ids, thoughts and signatures do not distinguish pasts; arguments and results do."""

    def variant(**changed: Any) -> str:
        call_id = changed.get("id", "a")
        use = {"type": "tool_use", "id": call_id, "name": "f", "input": {"id": changed.get("asked", "1")}}
        thought = {"type": "thinking", "thinking": call_id, "signature": call_id}
        said = {"type": "tool_result", "tool_use_id": call_id, "content": changed.get("result", "r")}
        messages = [{"role": "assistant", "content": [thought, use]}, {"role": "user", "content": [said]}]
        return variant_of(
            json.dumps({"messages": [json.dumps(one) for one in messages], "calls": []}).encode()
        )

    assert variant() == variant(id="b")
    assert len({variant(), variant(asked="2"), variant(result="s")}) == 3


WORDS = ["yes", "yes, do it", "go on", "What is it?"]
ANSWERS = ["Done.", "It is noon.", "Done.\n"]
RESULTS = ["r1", "r2", None]
SYSTEMS = ["You talk to Ann.", "You talk to Bob.\nToday is 2026-11-27."]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), dialect=st.sampled_from(sorted(DIALECTS)))
async def test_no_history_brings_back_what_was_not_behind_it(seed: int, dialect: str) -> None:
    """Rule R4: in random conversations of one caller with few different words, sent in every habit, no
    turn is restored that was not behind these words in this conversation."""
    await check_histories(random.Random(seed), dialect)


async def check_histories(chooser: random.Random, dialect: str) -> tuple[int, int]:
    """Check one random history for wrong turns; return how many answers had a turn, and how many got it."""
    store = MemoryStore()
    await store.start()
    memory = Memory(History(store), DIALECTS[dialect])
    # Each program has one habit; the two programs share a key.
    habits = [
        habit for habit in [*HABITS.values(), summary] if habit is not developer or dialect != "anthropic"
    ]
    programs = {system: chooser.choice(habits) for system in SYSTEMS}
    chats = [Chat(chooser.choice(SYSTEMS)) for _ in range(chooser.randint(1, 4))]
    had = right = 0
    for number in range(chooser.randint(3, 20)):
        chat = chooser.choice(chats)
        if chooser.random() < 0.1:  # the conversation goes on from an earlier place
            chat = Chat(chat.system, chat.exchanges[: chooser.randint(0, len(chat.exchanges))])
            chats.append(chat)
        asked, result = chooser.choice(WORDS), chooser.choice(RESULTS)
        next_one = Exchange(asked, result, chooser.choice(ANSWERS))
        sent = programs[chat.system](chat, asked, number)
        if chooser.random() < 0.2:  # an answer that the user discarded
            other = chooser.choice([next_one, Exchange(asked, chooser.choice(RESULTS), next_one.answer)])
            memory.remember(sent, other)
        counts = await memory.asked(sent, next_one)
        had, right = had + counts[0], right + counts[1]
        assert counts[2] == 0, (dialect, programs[chat.system].__name__, chat)
        chat.exchanges.append(next_one)
    await store.aclose()
    return had, right
