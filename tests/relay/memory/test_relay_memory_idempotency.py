"""Repeated requests do not cause their side effects again."""

import asyncio
import gc
import json
import weakref
from collections.abc import Sequence

import pytest
from chat_script import payloads_of, text_of
from looping import ANSWER, ASK, called, looping, messages_of
from probe_tools import Watch
from raw_upstream import Step, whole
from request_keys import keyed
from responses_script import function_call, message
from responses_script import stream as response_stream

from proxy.base.events import ToolResult
from proxy.relay.memory.idempotency import Attempt, Idempotency, repeat_of
from proxy.tools.running.ledger import Claim, RequestKey, RunLedger


def buying(*things: str) -> list[Step]:
    """A turn that buys these things."""
    return called(*((f"call_{what}", "probe_tools__buy", f'{{"what":"{what}"}}') for what in things))


BUY = buying("milk")
AGAIN = [("x-stainless-retry-count", "1")]


async def twice(
    watch: Watch, first: Sequence[tuple[str, str]], second: Sequence[tuple[str, str]], *, body: object = None
) -> list[str]:
    """Ask twice, and the model buys each time; return the results that the model got."""
    async with looping(BUY, ANSWER, BUY, ANSWER) as (proxy, upstream):
        for headers, asked in ((first, ASK), (second, body or ASK)):
            answer = await proxy.ask(asked, headers)
            assert text_of(payloads_of(answer.body)) == "It is noon."
    return [messages_of(request)[-1]["content"] for request in (upstream.requests[1], upstream.requests[3])]


async def test_a_repeat_of_an_sdk_buys_nothing_twice(watch: Watch) -> None:
    """Rule R5: a retry with ``x-stainless-retry-count`` buys nothing; the model gets the first result."""
    results = await twice(watch, [], AGAIN)
    assert watch.finished == ["buy"]
    assert results[0] == results[1] == '{"done":true,"what":"milk"}'


async def test_one_line_that_says_repeat_is_enough(watch: Watch) -> None:
    """Rule R5: of two retry counts in a request, the one that says that it is a repeat counts."""
    await twice(watch, [], [("x-stainless-retry-count", "0"), *AGAIN])
    assert watch.finished == ["buy"]


async def test_the_same_idempotency_key_is_the_same_request(watch: Watch) -> None:
    """Rule R5: two requests with the same ``Idempotency-Key`` buy once, even without a retry count."""
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
async def test_another_request_buys_again(
    watch: Watch, first: Sequence[tuple[str, str]], second: Sequence[tuple[str, str]], body: object
) -> None:
    """A request that is not a repeat buys again."""
    await twice(watch, first, second, body=body)
    assert watch.finished == ["buy", "buy"]


async def test_other_words_for_an_effect_do_not_cause_it_again(watch: Watch) -> None:
    """Rule R5: a repeat with other arguments buys nothing; the model reads what the first attempt bought."""
    async with looping(BUY, ANSWER, buying("oat milk"), ANSWER) as (proxy, upstream):
        await proxy.ask(ASK)
        answer = await proxy.ask(ASK, AGAIN)
        assert text_of(payloads_of(answer.body)) == "It is noon."
    told = json.loads(messages_of(upstream.requests[3])[-1]["content"])
    assert (told["ok"], told["error_code"]) == (False, "already_ran")
    assert told["earlier_call"] == {
        "arguments": {"what": "milk"},
        "outcome": "succeeded",
        "result": '{"done":true,"what":"milk"}',
    }
    assert "sent this request again" in told["message"]
    assert watch.finished == ["buy"]


async def test_other_words_on_responses_do_not_cause_it_again(watch: Watch) -> None:
    """Rule R5: on Responses a repeat's different call buys nothing, but a second call in addition buys."""

    def buys(*things: str, number: int) -> list[Step]:
        calls = [function_call(f"call_{what}", "probe_tools__buy", f'{{"what":"{what}"}}') for what in things]
        return response_stream(*calls, id=f"resp_{number}")

    done = [response_stream(message("Bought."), id=f"resp_{number}9") for number in (1, 2)]
    scripts = (buys("milk", number=1), done[0], buys("oat milk", "eggs", number=2), done[1])
    ask = {"model": "m", "stream": True, "input": "hi"}
    async with looping(*scripts) as (proxy, upstream):
        for headers in ([], AGAIN):
            assert (await proxy.ask(ask, headers, path="/v1/responses")).status == 200
    sent = json.loads(upstream.requests[3].body)["input"]
    first, second = [
        json.loads(item["output"]) for item in sent if item.get("type") == "function_call_output"
    ]
    assert (first["error_code"], first["earlier_call"]["arguments"]) == ("already_ran", {"what": "milk"})
    assert second == {"done": True, "what": "eggs"}
    assert watch.finished == ["buy", "buy"]


async def test_a_plan_that_broke_off_is_finished_by_its_repeat(watch: Watch) -> None:
    """Rule R5: if the first attempt bought one of two things, the repeat buys the other, in any order."""
    async with looping(BUY, ANSWER, buying("eggs", "milk"), buying("eggs"), ANSWER) as (proxy, upstream):
        await proxy.ask(ASK)
        await proxy.ask(ASK, AGAIN)
    eggs, milk, eggs_again = [
        json.loads(each["content"]) for each in messages_of(upstream.requests[4]) if each["role"] == "tool"
    ]
    assert eggs["error_code"] == "already_ran"
    assert milk == {"done": True, "what": "milk"}
    assert eggs_again == {"done": True, "what": "eggs"}
    assert watch.finished == ["buy", "buy"]


REFUSED = whole(b'{"error":{"message":"busy"}}', status="500 Oops")
BROKEN = whole(b'{"error":{"message":"no"}}', status="400 Bad Request")
"""An error after which the proxy does not repeat the request of a later turn."""


async def test_a_repeat_is_one_of_the_newest_request(watch: Watch) -> None:
    """Rule R5: a repeat belongs to the newest request, so effects of an older, answered one do not count."""
    async with looping(BUY, ANSWER, REFUSED, BUY, ANSWER, BUY, ANSWER) as (proxy, upstream):
        await proxy.ask(ASK)
        assert (await proxy.ask(ASK)).status == 500  # The client asks anew, and the upstream fails.
        await proxy.ask(ASK, AGAIN)
        assert watch.finished == ["buy", "buy"]
        await proxy.ask(ASK, AGAIN)
        assert watch.finished == ["buy", "buy"]
        assert messages_of(upstream.requests[6])[-1]["content"] == '{"done":true,"what":"milk"}'


async def test_other_words_for_what_is_asked_anew_are_not_in_its_way(watch: Watch) -> None:
    """Rule R5: effects of an answered request do not block a repeat of the same request asked anew."""
    async with looping(BUY, ANSWER, REFUSED, buying("eggs"), ANSWER) as (proxy, _):
        await proxy.ask(ASK)
        await proxy.ask(ASK)
        await proxy.ask(ASK, AGAIN)
    assert watch.finished == ["buy", "buy"]


async def test_an_effect_without_an_answer_waits_for_its_repeat(watch: Watch) -> None:
    """Rule R5: effects of a request without an answer still count for a repeat after it was asked anew."""
    async with looping(BUY, BROKEN, REFUSED, BUY, ANSWER) as (proxy, upstream):
        await proxy.ask(ASK)
        assert (await proxy.ask(ASK)).status == 500
        await proxy.ask(ASK, AGAIN)
        assert len(upstream.requests) == 5
    assert watch.finished == ["buy"]


async def test_an_answered_repeat_answers_for_its_first_attempt(watch: Watch) -> None:
    """Rule R5: once a repeat has its answer, effects of its first attempt do not count for later ones."""
    async with looping(BUY, BROKEN, ANSWER, REFUSED, BUY, ANSWER) as (proxy, upstream):
        for headers in ((), AGAIN, (), AGAIN):
            await proxy.ask(ASK, headers)
        assert len(upstream.requests) == 6
    assert watch.finished == ["buy", "buy"]


def test_what_is_forgotten_is_what_was_answered() -> None:
    """Rule R5: claims are released when every attempt has its answer, and never after too many attempts."""
    forgotten: list[str] = []
    repeats = Idempotency(forget=forgotten.append)

    def act(effect: str, *, is_repeat: bool = False) -> RunLedger:
        ledger = repeats.begin(keyed("k"), is_repeat=is_repeat)
        repeats.caused(keyed("k"), ledger)
        ledger.answer_for(effect)
        return ledger

    one, two = act("a"), act("b")
    repeats.answered(keyed("k"), one)
    act("c", is_repeat=True)
    repeats.begin(keyed("k"), is_repeat=False)
    assert forgotten == []
    repeats.answered(keyed("k"), two)
    repeats.begin(keyed("k"), is_repeat=False)
    assert sorted(forgotten) == ["a", "b", "c"]
    assert repeats.begin(keyed("k"), is_repeat=True).answered("a") is False
    many = [act("d") for _ in range(101)]
    for ledger in many:
        repeats.answered(keyed("k"), ledger)
    repeats.begin(keyed("k"), is_repeat=False)
    assert len(forgotten) == 3


def test_nobody_waits_for_an_answer_for_longer_than_effects_are_known() -> None:
    """Rule R5: after ``keep_s`` an attempt without an answer no longer delays the release of claims."""
    now = 0.0
    forgotten: list[str] = []
    repeats = Idempotency(forget=forgotten.append, keep_s=10, clock=lambda: now)
    for at, effect in ((0.0, "a"), (6.0, "b")):
        now = at
        ledger = repeats.begin(keyed("k"), is_repeat=False)
        repeats.caused(keyed("k"), ledger)
        ledger.answer_for(effect)
    repeats.answered(keyed("k"), ledger)
    repeats.begin(keyed("k"), is_repeat=False)
    assert forgotten == []
    now = 10.0
    repeats.begin(keyed("k"), is_repeat=False)
    assert forgotten == ["b"]


def _nothing(_: str) -> None:
    """Forget nothing, because there is no record."""


def _claim(content: str) -> Claim:
    """The claim of an effect that has ended."""
    result = asyncio.get_running_loop().create_future()
    result.set_result(ToolResult("call_1", ok=True, content=content, redacted={"all": content}))
    return Claim("inv_1", "f", result, begun=True)


async def test_what_is_remembered_is_bounded_in_bytes() -> None:
    """Rule R5: above ``max_bytes`` the oldest results are dropped, but their calls still count as made."""
    repeats = Idempotency(forget=_nothing, max_bytes=1_000_000)
    for number in range(100):
        ledger = repeats.begin(keyed(f"k{number}"), is_repeat=False)
        repeats.caused(keyed(f"k{number}"), ledger)
        ledger.take_effect("e", _claim("x" * 32_000))
        repeats.ended(keyed(f"k{number}"), ledger)
        await asyncio.sleep(0)
    assert repeats._cache_size().held <= 1_000_000
    found = [repeats.begin(keyed(f"k{number}"), is_repeat=True).effect("e") for number in range(100)]
    assert all(found)
    said = [claim.result.result() for claim in found if claim]
    assert all(result.ok for result in said)
    assert "it was not made again, and its result was not kept" in said[0].content
    assert said[0].redacted is None
    assert said[-1].content == "x" * 32_000


async def test_a_failure_that_is_forgotten_stays_a_failure() -> None:
    """A failed call whose result is dropped still counts as failed, with its error code."""
    ledger = RunLedger()
    claim = _claim("")
    claim.keep(ToolResult("call_1", ok=False, content="x", error_code="timeout", safe_message="x" * 9000))
    ledger.take_effect("e", claim)
    ledger.forget_results()
    result = claim.result.result()
    assert (result.ok, result.error_code) == (False, "timeout")
    assert len(result.content) < 200


async def test_a_repeat_shares_effects_and_no_places() -> None:
    """The ledger of a repeat shares the effects of the first attempt, but not the places of its calls."""
    repeats = Idempotency(forget=_nothing)
    first = repeats.begin(keyed("k"), is_repeat=False)
    repeats.caused(keyed("k"), first)
    second = repeats.begin(keyed("k"), is_repeat=True)
    assert second is not first
    first.take_effect("e", _claim(""))
    first.take_place(1, 0, object())  # type: ignore[arg-type]
    assert second.effect("e") is first.effect("e")
    assert second.place(1, 0) is None


async def test_what_is_remembered_is_bounded_in_count_and_time() -> None:
    """Old requests are dropped above ``most`` and after ``keep_s``; a repeat then is a new request."""
    now = 0.0
    repeats = Idempotency(forget=_nothing, keep_s=10, most=2, clock=lambda: now)
    ledgers = {key: RunLedger() for key in "abc"}
    for key, ledger in ledgers.items():
        ledger.take_effect("e", _claim(""))
        repeats.caused(keyed(key), ledger)
    assert repeats.begin(keyed("a"), is_repeat=True).effect("e") is None
    assert repeats.begin(keyed("c"), is_repeat=True).effect("e") is not None
    now = 11.0
    assert repeats.begin(keyed("c"), is_repeat=True).effect("e") is None


def test_keys_tell_callers_people_paths_and_bodies_apart() -> None:
    """Requests that differ in caller, person, path, body, session or key get different keys."""
    body = ASK
    keys = [
        repeat_of("me", "", "/chat/completions", body),
        repeat_of("you", "", "/chat/completions", body),
        repeat_of("me", "ann", "/chat/completions", body),
        repeat_of("me", "", "/responses", body),
        repeat_of("me", "", "/chat/completions", {**ASK, "temperature": 1}),
        repeat_of("me", "", "/chat/completions", body, Attempt(session="s")),
        repeat_of("me", "", "/chat/completions", body, Attempt("a")),
        repeat_of("me", "ann", "/chat/completions", body, Attempt("a")),
        repeat_of("me/chat", "", "/completions", body),
    ]
    assert len({key.digest for key, _ in keys}) == len(keys)


def test_a_request_is_digested_only_if_one_has_caused_an_effect() -> None:
    """Requests that cause no effect are not digested at all; once one has, each is compared with it."""
    read: list[str] = []

    def asked(text: str) -> RequestKey:
        def digest() -> str:
            read.append(text)
            return text

        return RequestKey(digest)

    repeats = Idempotency(forget=lambda _: None)
    first, second = asked("first"), asked("second")
    ledger = repeats.begin(first, is_repeat=False)
    repeats.answered(first, ledger)
    repeats.ended(first, ledger)
    assert read == []
    repeats.caused(first, ledger)
    assert repeats.begin(second, is_repeat=False).caused is not ledger.caused
    assert repeats.begin(asked("first"), is_repeat=True).caused is ledger.caused
    assert read == ["first", "second", "first"]


def test_a_key_that_was_computed_holds_no_request() -> None:
    """A ledger that is kept for repeats, with its key, does not keep the conversation of its request."""

    class Body(dict[str, str]):
        """A mapping that can be referred to weakly."""

    body = Body(model="m")
    key = repeat_of("alice", "", "/v1/chat/completions", body, Attempt()).key
    gone = weakref.ref(body)
    del body
    assert key.digest == key.digest != ""
    gc.collect()
    assert gone() is None
