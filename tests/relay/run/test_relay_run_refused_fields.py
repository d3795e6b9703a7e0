"""An upstream that refuses a field which it sent itself."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from chat_script import call, chunk_of, finish, payloads_of, role, stream, text_of
from looping import ANSWER, TIME, looping
from raw_upstream import whole
from responding import PATH
from running_proxy import Answer, Proxy, make_config, running
from strict_chat import WORDS, StrictChat, serving_chat
from strict_provider import Provider, serving_provider

from proxy.relay.memory.refusals import RefusalCache

ASK: dict[str, Any] = {
    "model": "m", "stream": True, "messages": [{"role": "user", "content": "What time is it?"}]
}  # fmt: skip
THOUGHT = {"role": "assistant", "content": "Before.", "reasoning": "my own"}


@asynccontextmanager
async def before(provider: StrictChat) -> AsyncIterator[Proxy]:
    """Run a proxy before that provider."""
    async with serving_chat(provider) as url, running(make_config({"base_url": url})) as proxy:
        yield proxy


def said(answer: Answer, stream: bool) -> str:
    """Return the text of a successful answer."""
    assert answer.status == 200, answer.body
    if stream:
        return text_of(payloads_of(answer.body))
    return str(answer.json["choices"][0]["message"]["content"])


def turn_of(body: dict[str, Any]) -> dict[str, Any]:
    """Return the model's message in a request."""
    (message,) = [m for m in body["messages"] if m["role"] == "assistant"]
    return dict(message)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "reply"])
@pytest.mark.accepts("chat-ids-mistral", why="the script's ids are not Mistral's")
@pytest.mark.parametrize("words", WORDS)
async def test_it_is_asked_again_without_the_field(words: str, stream: bool) -> None:
    """The proxy repeats the request without the refused field only, and remembers it for this model."""
    provider = StrictChat(words)
    ask = {**ASK, "stream": stream}
    async with before(provider) as proxy:
        assert said(await proxy.ask(ask), stream).startswith("It is {")
        _, refused, accepted = provider.requests
        assert turn_of(refused)["reasoning"] == "The clock knows."
        lacking = {key: value for key, value in turn_of(refused).items() if key != "reasoning"}
        assert turn_of(accepted) == lacking
        assert accepted["messages"][-1] == refused["messages"][-1]
        said(await proxy.ask(ask), stream)
        assert len(provider.requests) == 5
        assert provider.refused == ["reasoning"]
        said(await proxy.ask({**ask, "model": "other"}), stream)
        assert provider.refused == ["reasoning", "reasoning"]


@pytest.mark.accepts("chat-members", why="the script refuses")
async def test_what_did_not_help_is_not_remembered() -> None:
    """If leaving out a field did not help and another change did, the next request to that model has the
    field again: the error may have quoted the client's own words."""
    thinking = stream(
        role(),
        chunk_of({"reasoning": "r"}),
        call("call_1", TIME, '{"timezone":"UTC"}'),
        finish("tool_calls"),
    )
    errors = [
        whole(json.dumps({"error": {"message": words}}).encode(), status="400 Bad Request")
        for words in ("property 'reasoning' is unsupported", "The context length is exceeded.")
    ]
    scripts = (thinking, ANSWER, thinking, *errors, ANSWER, thinking, ANSWER)
    said = {"role": "assistant", "content": "It is noon."}
    more = {**ASK, "messages": [*ASK["messages"], said, ASK["messages"][0]]}
    async with looping(*scripts, allow=("core__*",)) as (proxy, upstream):
        await proxy.ask(ASK)
        assert text_of(payloads_of((await proxy.ask(more)).body)) == "It is noon."
        assert text_of(payloads_of((await proxy.ask(ASK)).body)) == "It is noon."
    bodies = [json.loads(request.body) for request in upstream.requests]
    has = [any("reasoning" in message for message in body["messages"]) for body in bodies]
    assert has == [False, True, True, True, False, False, False, True]


@pytest.mark.accepts("chat-ids-mistral", why="the script's ids are not Mistral's")
@pytest.mark.parametrize("words", WORDS)
async def test_fields_are_refused_one_at_a_time(words: str) -> None:
    """The proxy leaves out each field that the upstream names, also inside a call, and keeps the others."""
    provider = StrictChat(words, emits={"reasoning": "r", "citations": [], "kept": "k"})
    provider.call_emits = {"extra_content": {"a": 1}, "held": "h"}
    provider.takes |= {"kept", "held"}
    async with before(provider) as proxy:
        said(await proxy.ask(ASK), True)
    assert provider.refused == ["reasoning", "citations", "tool_calls.0.extra_content"]
    sent = turn_of(provider.requests[-1])
    assert set(sent) == {"role", "content", "kept", "tool_calls"}
    (call,) = sent["tool_calls"]
    assert set(call) == {"id", "type", "function", "held"}


async def test_the_client_answers_for_its_own_messages() -> None:
    """If the upstream refuses a field in the client's own message, the proxy does not change that message."""
    provider = StrictChat()
    messages = [ASK["messages"][0], THOUGHT, ASK["messages"][0]]
    async with before(provider) as proxy:
        answer = await proxy.ask({**ASK, "messages": messages})
        assert answer.status == 400
        assert b"property 'reasoning' is unsupported" in answer.body
        assert len(provider.requests) == 1
        # If the upstream refuses only the proxy's field, the client's message stays as it is.
        provider.takes |= {"reasoning"}
        provider.emits = {"citations": []}
        said(await proxy.ask({**ASK, "messages": messages}), True)
    assert provider.refused == ["reasoning", "citations"]
    assert provider.requests[-1]["messages"][1] == THOUGHT


async def test_a_refusal_that_was_not_about_the_field_is_not_remembered() -> None:
    """If leaving the field out does not help, the client gets the error; the next request has it again."""
    provider = StrictChat(always=True)
    async with before(provider) as proxy:
        for _ in range(2):
            answer = await proxy.ask(ASK)
            assert b"property 'reasoning' is unsupported" in answer.body
    assert len(provider.requests) == 6
    assert "reasoning" in turn_of(provider.requests[4])


async def test_responses_items_are_sent_without_it() -> None:
    """On Responses the proxy leaves the refused field out of its items, and remembers it."""
    provider = Provider(keeps=False, refuses="status")
    ask = {"model": "m", "input": "What time is it?"}
    async with serving_provider(provider) as url, running(make_config({"base_url": url})) as proxy:
        for _ in range(2):
            answer = await proxy.ask(ask, path=PATH)
            assert answer.status == 200, answer.body
    assert provider.refused == ["Unknown parameter: 'input[2].status'."]
    assert len(provider.requests) == 5
    items = [item for item in provider.requests[2]["input"] if item.get("type") == "function_call"]
    assert items
    assert not any("status" in item for item in items)


def test_what_is_remembered_is_bounded() -> None:
    """The cache forgets the oldest model, old entries, and a model that refuses too many fields."""
    memory = RefusalCache(most=2)
    for model in ("a", "b", "c"):
        memory.remember_fields("u", model, frozenset({"x"}))
    assert [memory.refused_fields("u", model) for model in "abc"] == [set(), {"x"}, {"x"}]
    memory.remember_fields("u", "c", frozenset({"y"}))
    assert memory.refused_fields("u", "c") == {"x", "y"}
    memory.remember_fields("u", "c", frozenset(map(str, range(100))))
    assert memory.refused_fields("u", "c") == set()
    forgetful = RefusalCache(keep_s=0)
    forgetful.remember_fields("u", "a", frozenset({"x"}))
    assert forgetful.refused_fields("u", "a") == set()
