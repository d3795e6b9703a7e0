"""Requests that are sent again: their side effects are not caused again."""

import json
from collections.abc import Sequence

import pytest
from chat_script import payloads_of, text_of
from looping import ANSWER, ASK, called, looping, messages_of
from probe_tools import Watch

from proxy.relay.repeats import Repeats, repeat_key
from proxy.tools.ledger import RunLedger

BUY = called(("call_b", "probe_tools__buy", '{"what":"milk"}'))
AGAIN = [("x-stainless-retry-count", "1")]


async def twice(
    watch: Watch, first: Sequence[tuple[str, str]], second: Sequence[tuple[str, str]], *, body: object = None
) -> list[str]:
    """Ask twice, the model buying each time; the results that the model was given."""
    async with looping(BUY, ANSWER, BUY, ANSWER) as (proxy, upstream):
        for headers, asked in ((first, ASK), (second, body or ASK)):
            answer = await proxy.ask(asked, headers)
            assert text_of(payloads_of(answer.body)) == "It is noon."
    return [messages_of(request)[-1]["content"] for request in (upstream.requests[1], upstream.requests[3])]


async def test_a_repeat_of_an_sdk_buys_nothing_twice(watch: Watch) -> None:
    """Rule R5: with ``x-stainless-retry-count`` the model reads what the first attempt came to."""
    results = await twice(watch, [], AGAIN)
    assert watch.finished == ["buy"]
    assert results[0] == results[1] == '{"done":true,"what":"milk"}'


async def test_one_line_that_says_repeat_is_enough(watch: Watch) -> None:
    """Rule R5: of two counts the one that says that this is a repeat is believed."""
    await twice(watch, [], [("x-stainless-retry-count", "0"), *AGAIN])
    assert watch.finished == ["buy"]


async def test_the_same_idempotency_key_is_the_same_request(watch: Watch) -> None:
    """Rule R5: an ``Idempotency-Key`` says so by itself, on the first attempt and on the second."""
    key = [("Idempotency-Key", "k-1")]
    await twice(watch, key, key)
    assert watch.finished == ["buy"]


@pytest.mark.parametrize(
    ("first", "second", "body"),
    [
        ([], [], None),
        ([], [("x-stainless-retry-count", "0")], None),
        ([], [("x-stainless-retry-count", "x")], None),
        ([], AGAIN, {**ASK, "temperature": 1}),
        ([("Idempotency-Key", "k-1")], [("Idempotency-Key", "k-2")], None),
    ],
    ids=["asked anew", "first attempt", "no number", "another body", "another key"],
)
async def test_another_request_buys_again(watch: Watch, first: object, second: object, body: object) -> None:
    """What is not a repeat is what the client wants once more."""
    await twice(watch, first, second, body=body)
    assert watch.finished == ["buy", "buy"]


async def test_other_arguments_are_another_effect(watch: Watch) -> None:
    """A repeat in which the model buys something else buys it."""
    eggs = called(("call_b", "probe_tools__buy", '{"what":"eggs"}'))
    async with looping(BUY, ANSWER, eggs, ANSWER) as (proxy, _):
        await proxy.ask(ASK)
        await proxy.ask(ASK, AGAIN)
    assert watch.finished == ["buy", "buy"]


def test_a_repeat_shares_effects_and_no_places() -> None:
    """The ledger of a repeat knows what was caused, and has every place of its own run free."""
    repeats = Repeats()
    first = repeats.begin("k", is_repeat=False)
    repeats.caused("k", first)
    second = repeats.begin("k", is_repeat=True)
    assert second is not first
    first.take_effect("e", object())  # type: ignore[arg-type]
    first.take_place(1, 0, object())  # type: ignore[arg-type]
    assert second.effect("e") is first.effect("e")
    assert second.place(1, 0) is None


def test_what_is_remembered_is_bounded_in_count_and_time() -> None:
    """Old requests make room, and after their time a repeat is a request like any other."""
    now = 0.0
    repeats = Repeats(keep_s=10, most=2, clock=lambda: now)
    ledgers = {key: RunLedger() for key in "abc"}
    for key, ledger in ledgers.items():
        ledger.take_effect("e", object())  # type: ignore[arg-type]
        repeats.caused(key, ledger)
    assert repeats.begin("a", is_repeat=True).effect("e") is None
    assert repeats.begin("c", is_repeat=True).effect("e") is not None
    now = 11.0
    assert repeats.begin("c", is_repeat=True).effect("e") is None


def test_keys_tell_callers_paths_and_bodies_apart() -> None:
    """No two of these are the same request, however their parts are cut."""
    body = json.dumps(ASK).encode()
    keys = [
        repeat_key("me", "/chat/completions", body),
        repeat_key("you", "/chat/completions", body),
        repeat_key("me", "/responses", body),
        repeat_key("me", "/chat/completions", body + b" "),
        repeat_key("me", "/chat/completions", body, "a"),
        repeat_key("me/chat", "/completions", body),
    ]
    assert len({key for key, _ in keys}) == len(keys)
