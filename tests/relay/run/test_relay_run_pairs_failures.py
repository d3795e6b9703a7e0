"""An upstream that fails or breaks off its turn, between all dialects: never a success, and no call runs."""

import json
from itertools import takewhile
from typing import Any

import chat_script as chat
import messages_script as messages
import ollama_script as ollama
import pytest
import responses_script as responses
from looping import ECHO
from pair_kits import PAIRS, SPEAKERS, Turn
from pair_runs import ANSWER, CALLS, QUESTION, Pair, pair_of, scripts
from raw_upstream import Step, chunked, whole
from running_proxy import Answer

WORDS = "The provider went away."
ABORTED = 'with the finish reason "abort"'
HIDDEN = (ECHO, "call_1")
each_pair = pytest.mark.parametrize(("client", "upstream"), PAIRS, ids=[f"{c}-{u}" for c, u in PAIRS])
FAILED: dict[str, Any] = {"status": "failed", "error": {"code": "hot", "message": WORDS}}
ERRORS: dict[str, list[bytes]] = {
    "chat": [chat.sse(SPEAKERS["chat"].refusal(WORDS))],
    "responses": [
        responses.encode([responses.event("response.failed", response=responses.resource(**FAILED))])
    ],
    "anthropic": [messages.error_event("api_error", WORDS)],
    "ollama": [ollama.error(WORDS)],
}
"""How an upstream of each dialect reports an error in its stream."""
ENDS: dict[str, tuple[bytes, ...]] = {
    "chat": (b'"finish_reason":"',),
    "responses": (b"response.completed",),
    "anthropic": (b"message_delta",),
    "ollama": (b'"done":true',),
}
"""Texts of the first event that belongs to the end of a turn."""


def unfinished(upstream: str, turn: Turn) -> list[bytes]:
    """Return the events of a turn up to its end."""
    events = [event.replace(b'": ', b'":') for event in SPEAKERS[upstream].events(turn)]
    return list(takewhile(lambda event: not any(sign in event for sign in ENDS[upstream]), events))


def steps(upstream: str, events: list[bytes]) -> list[Step]:
    """Return the steps of an upstream that sends these events."""
    return chunked(*events, content_type=SPEAKERS[upstream].content_type)


def check_failed(pair: Pair, answer: Answer, words: str) -> None:
    """Check that the client understands an answer as a failure, and is told nothing of the call."""
    assert not [text for text in HIDDEN if text in answer.body.decode()]
    if answer.status != 200:
        assert words in pair.client.error(answer.json)
        return
    seen = pair.client.seen(answer, hidden=HIDDEN)
    assert words in seen.error
    assert seen.finish == ""
    assert seen.calls == []


@each_pair
@pytest.mark.parametrize("text", ["", "Wait. "], ids=["no text", "text first"])
@pytest.mark.parametrize("form", ["after the call", "within the call", "with end mark", "later turn"])
async def test_an_error_reaches_the_client(client: str, upstream: str, text: str, form: str) -> None:
    """Rule E1: an upstream's error after a server call has begun reaches the client in its own dialect."""
    begun = unfinished(upstream, Turn(text, CALLS.calls))
    events = [*(begun[:-1] if form == "within the call" else begun), *ERRORS[upstream]]
    if form == "with end mark" and upstream in ("chat", "responses"):
        events.append(chat.DONE)
    turns = [steps(upstream, events)]
    if form == "later turn":
        turns.insert(0, scripts(upstream, CALLS)[0])
    async with pair_of(client, upstream, *turns) as pair:
        answer = await pair.ask([QUESTION])
    check_failed(pair, answer, WORDS)
    assert len(pair.server.requests) == len(turns)


CHAT_FORMS: dict[str, list[bytes]] = {
    "a reason and an error": [
        chat.chunk_of({"content": ""}, "error", error={"code": 502, "message": WORDS}),
        chat.DONE,
    ],
    "an error and then a reason": [*ERRORS["chat"], chat.finish("stop"), chat.DONE],
    "an error that is a text": [chat.sse({"error": WORDS})],
    "an error by name": [b"event: error\n" + chat.sse({"message": WORDS}), chat.DONE],
    "an error by name and no JSON": [f"event: error\ndata: {WORDS}\n\n".encode(), chat.finish("tool_calls")],
}


@pytest.mark.parametrize("client", SPEAKERS)
@pytest.mark.parametrize("form", CHAT_FORMS)
@pytest.mark.parametrize("called", [True, False], ids=["after a call", "after text"])
async def test_forms_of_an_error_of_chat(client: str, form: str, called: bool) -> None:
    """Whatever form the error of a Chat upstream has, nothing makes it a success."""
    begun = unfinished("chat", Turn("Wait. ", CALLS.calls if called else ()))
    async with pair_of(client, "chat", steps("chat", [*begun, *CHAT_FORMS[form]])) as pair:
        answer = await pair.ask([QUESTION])
    if client == "chat" and not called:
        assert WORDS in answer.body.decode()  # The upstream's own bytes, as they came.
        return
    check_failed(pair, answer, WORDS)


ODD_REASONS: list[Any] = ["abort", "error", "cancelled", "MALFORMED_FUNCTION_CALL", "a new one"]
ODD_REASONS += [3, True, ["tool_calls"], {"type": 1}]


@pytest.mark.parametrize("client", SPEAKERS)
@pytest.mark.parametrize("word", ODD_REASONS)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_an_aborted_turn_runs_no_tool(client: str, word: Any, stream: bool) -> None:
    """Rule W7: a call runs only after a finish reason that says so; else the client gets an error."""
    (name, arguments), *_ = [(call.name, '{"text":"x"}') for call in CALLS.calls]
    if stream:
        script = chat.stream(chat.role(), chat.call("call_1", name, arguments), chat.finish(word))
    else:
        script = chat.reply(None, ("call_1", name, arguments), reason=word)
    async with pair_of(client, "chat", script, *scripts("chat", ANSWER, stream=stream)) as pair:
        answer = await pair.ask([QUESTION], stream=stream)
    assert len(pair.server.requests) == 1
    check_failed(pair, answer, str(word))


@pytest.mark.parametrize("client", SPEAKERS)
@pytest.mark.parametrize("word", ODD_REASONS)
async def test_an_aborted_turn_of_messages_runs_no_tool(client: str, word: Any) -> None:
    """Rule W7 holds for an upstream that speaks Messages, whatever its reason is."""
    events = [*unfinished("anthropic", Turn("", CALLS.calls)), messages.ending(word)]
    async with pair_of(client, "anthropic", steps("anthropic", events)) as pair:
        answer = await pair.ask([QUESTION])
    assert len(pair.server.requests) == 1
    check_failed(pair, answer, str(word))


ABORTS: dict[str, bytes] = {
    "chat": chat.finish("abort"),
    "anthropic": messages.ending("abort"),
    "ollama": ollama.done("abort"),
}


@pytest.mark.parametrize("client", SPEAKERS)
@pytest.mark.parametrize("upstream", ABORTS)
async def test_an_aborted_text_is_not_complete(client: str, upstream: str) -> None:
    """A text that the upstream broke off is an error in another dialect, and stays as it came in its own."""
    events = [*unfinished(upstream, Turn("Half an ans")), ABORTS[upstream]]
    async with pair_of(client, upstream, steps(upstream, events)) as pair:
        answer = await pair.ask([QUESTION])
    if client == upstream:
        assert answer.body.startswith(b"".join(events))
        return
    check_failed(pair, answer, "abort")


@pytest.mark.parametrize("client", ["responses", "anthropic", "ollama"])
@pytest.mark.parametrize("word", ["MAX_TOKENS", "max_tokens", "length"])
async def test_other_words_of_a_limit(client: str, word: str) -> None:
    """A reason that means a limit in any spelling is the dialect's own word for it."""
    events = [chat.role(), chat.content("Half an ans"), chat.finish(word), chat.DONE]
    async with pair_of(client, "chat", steps("chat", events)) as pair:
        assert pair.client.seen(await pair.ask([QUESTION])).finish == "length"


@each_pair
async def test_an_error_object_in_place_of_a_stream(client: str, upstream: str) -> None:
    """If an error object comes under status 200 in place of a stream, the client gets its words."""
    script = whole(json.dumps(SPEAKERS[upstream].refusal(WORDS)).encode())
    async with pair_of(client, upstream, script) as pair:
        answer = await pair.ask([QUESTION])
    assert WORDS in answer.body.decode()
    assert (answer.status == 200) is (client == upstream)
