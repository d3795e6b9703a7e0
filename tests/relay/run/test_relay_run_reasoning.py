"""A model gets its reasoning back in a client's own tool loop, even if the client cannot keep it."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import chat_script as chat
import messages_script as messages
import ollama_script as ollama
import pytest
import responses_script as responses
from messages_script import text, thinking, tool_use
from pair_kits import SPEAKERS, Call, Message, Seen
from plain_chat import PlainChat, serving_plain_chat
from raw_upstream import RawUpstream, Step
from running_proxy import Proxy, make_config, running

from proxy.base.errors import StoreError

TOOL = "get_weather"
QUESTION = Message("user", "How is the weather?")
AGAIN = Message("user", "And the weather tomorrow?")
HELD = "Hm, the weather."
BLOB = "gAAAAABo"
USED = {
    "input_tokens": 3, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 2,
    "output_tokens_details": {"reasoning_tokens": 1}, "total_tokens": 5,
}  # fmt: skip
FOREIGN = ("anthropic", "responses", "ollama")


@asynccontextmanager
async def before(provider: PlainChat, **config: Any) -> AsyncIterator[Proxy]:
    """Run a proxy before a provider that speaks only Chat Completions."""
    async with (
        serving_plain_chat(provider) as url,
        running(make_config({"base_url": url, "wires": ("chat",)}, **config)) as proxy,
    ):
        yield proxy


@asynccontextmanager
async def scripted(wire: str, *turns: Sequence[Step]) -> AsyncIterator[tuple[Proxy, RawUpstream]]:
    """Run a proxy before an upstream that plays a script a turn."""
    async with (
        RawUpstream(*turns) as upstream,
        running(make_config({"base_url": upstream.url, "wires": (wire,)})) as proxy,
    ):
        yield proxy, upstream


async def asked(proxy: Proxy, client: str, said: Sequence[Message], *, stream: bool = True) -> Seen:
    """Return what a client reads that keeps texts and calls, and nothing of the reasoning."""
    speaker = SPEAKERS[client]
    body = speaker.ask(said, stream=stream, tools=[TOOL])
    return speaker.seen(await proxy.ask(body, path=speaker.path), stream=stream)


def answered(seen: Seen) -> list[Message]:
    """Return the turn that a client saw, and the result of its call."""
    (call,) = seen.calls
    return [*seen.returned, Message("tool", "sunny", call_id=call.id)]


def reasonings(request: dict[str, Any]) -> list[str | None]:
    """Return the reasoning of each turn of the model in a Chat request."""
    return [one.get("reasoning_content") for one in request["messages"] if one["role"] == "assistant"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("client", ["responses", "ollama", "anthropic"])
async def test_a_client_that_lost_the_reasoning_goes_on(client: str, stream: bool) -> None:
    """Rule R4: the record has an Ollama client's reasoning; for others the proxy repeats with a blank."""
    provider = PlainChat(reasoning=HELD, takes_reasoning="asked")
    async with before(provider) as proxy:
        said = [QUESTION]
        said += answered(await asked(proxy, client, said, stream=stream))
        seen = await asked(proxy, client, said, stream=stream)
        assert seen.text == "You said: sunny"
        said += [*seen.returned, AGAIN]
        said += answered(await asked(proxy, client, said, stream=stream))
        assert (await asked(proxy, client, said, stream=stream)).text == "You said: sunny"
    kept = client == "ollama"
    assert len(provider.requests) == (4 if kept else 7)
    assert reasonings(provider.requests[-1]) == ([HELD, None, HELD] if kept else [" ", " ", " "])


async def test_a_messages_client_sends_its_thoughts_back() -> None:
    """A Messages client sends its thinking back, as Claude Code does, and the model gets it at once."""
    provider = PlainChat(reasoning=HELD, takes_reasoning="asked")
    ask: dict[str, Any] = {
        "model": "m", "max_tokens": 500, "tools": [messages.tool(TOOL)],
        "messages": [messages.user(text=QUESTION.text)],
    }  # fmt: skip
    async with before(provider) as proxy:
        told = (await proxy.ask(ask, path="/v1/messages")).json["content"]
        assert [block["type"] for block in told] == ["thinking", "tool_use"]
        result = {"type": "tool_result", "tool_use_id": told[1]["id"], "content": "sunny"}
        back = [{"role": "assistant", "content": told}, messages.user(result)]
        answer = await proxy.ask({**ask, "messages": [*ask["messages"], *back]}, path="/v1/messages")
        assert answer.json["content"][-1]["text"] == "You said: sunny"
        assert answer.header("x-toolrelay-left-out") is None
    assert [reasonings(request) for request in provider.requests] == [[], [HELD]]


@pytest.mark.parametrize("chained", [True, False])
async def test_a_responses_client_sends_its_items_back(chained: bool) -> None:
    """A Responses client sends its items or a response id back, and the model gets its reasoning."""
    provider = PlainChat(reasoning=HELD, takes_reasoning="asked")
    ask: dict[str, Any] = {"model": "m", "input": QUESTION.text, "tools": [responses.function(TOOL)]}
    async with before(provider) as proxy:
        first = (await proxy.ask(ask, path="/v1/responses")).json
        assert [item["type"] for item in first["output"]] == ["reasoning", "function_call"]
        result = responses.output(first["output"][1]["call_id"], "sunny")
        more: dict[str, Any] = {"input": [responses.user(QUESTION.text), *first["output"], result]}
        if chained:
            more = {"previous_response_id": first["id"], "input": [result]}
        answer = await proxy.ask({**ask, **more}, path="/v1/responses")
        assert answer.json["output"][-1]["content"][0]["text"] == "You said: sunny"
    assert [reasonings(request) for request in provider.requests] == [[], [HELD]]


async def test_an_ollama_client_sends_its_thinking_back() -> None:
    """An Ollama client sends its thinking back, as the Python client does, and the model gets it."""
    provider = PlainChat(reasoning=HELD, takes_reasoning="asked")
    ask: dict[str, Any] = {"model": "m", "stream": False, "tools": [ollama.tool(TOOL)]}
    said: list[Any] = [ollama.user(QUESTION.text)]
    async with before(provider) as proxy:
        told = (await proxy.ask({**ask, "messages": said}, path="/api/chat")).json["message"]
        assert told["thinking"] == HELD
        said += [told, {"role": "tool", "tool_name": TOOL, "content": "sunny"}]
        answer = await proxy.ask({**ask, "messages": said}, path="/api/chat")
        assert answer.json["message"]["content"] == "You said: sunny"
    assert [reasonings(request) for request in provider.requests] == [[], [HELD]]


@pytest.mark.parametrize("client", FOREIGN)
async def test_an_upstream_that_takes_no_reasoning_is_not_sent_any(client: str) -> None:
    """If the upstream refuses reasoning, the proxy repeats the request without it and remembers that."""
    provider = PlainChat(reasoning=HELD, takes_reasoning="no")
    speaker = SPEAKERS[client]
    async with before(provider) as proxy:
        seen = await asked(proxy, client, [QUESTION])
        said = [QUESTION, *answered(seen)]
        body = speaker.ask(said, tools=[TOOL])
        thoughts: dict[str, Any] = {
            "anthropic": {"type": "thinking", "thinking": HELD, "signature": ""},
            "responses": responses.reasoning(HELD),
        }
        if client == "anthropic":
            body["messages"][1]["content"].insert(0, thoughts[client])
        elif client == "responses":
            body["input"].insert(1, thoughts[client])
        for asked_before in (3, 4):
            answer = await proxy.ask(body, path=speaker.path)
            assert speaker.seen(answer).text == "You said: sunny"
            assert len(provider.requests) == asked_before
    assert [reasonings(request) for request in provider.requests] == [[], [HELD], [None], [None]]


@pytest.mark.parametrize("arguments", [{}, {"a": 1}])
@pytest.mark.parametrize("client", ["chat", "ollama", "responses"])
async def test_a_signed_thought_goes_back_to_who_signed_it(client: str, arguments: dict[str, Any]) -> None:
    """Rule R4: the upstream gets its signed thinking back, though the client never saw the signature."""
    thought = thinking("Hm.", "EqQBCkYIBxgCKkD+/==")
    redacted = {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3p=="}
    call = tool_use("toolu_1", TOOL, arguments, caller={"type": "direct"})
    turn = messages.stream(thought, redacted, text("Wait."), call)
    answer = messages.stream(text("Sunny."), id="msg_2")
    async with scripted("anthropic", turn, answer) as (proxy, upstream):
        said = [QUESTION, *answered(await asked(proxy, client, [QUESTION]))]
        assert (await asked(proxy, client, said)).text == "Sunny."
    content = json.loads(upstream.requests[1].body)["messages"][1]["content"]
    assert content == [thought, redacted, text("Wait."), call]


@pytest.mark.parametrize("client", ["chat", "ollama", "anthropic"])
async def test_encrypted_reasoning_goes_back_to_who_encrypted_it(client: str) -> None:
    """Rule R4: the upstream gets its encrypted reasoning back, which no other dialect can hold."""
    think = responses.reasoning("Hm.", id="rs_1", encrypted_content=BLOB)
    call = responses.function_call("call_1", TOOL, '{"a":1}')
    turn = responses.stream(think, call, usage=USED)
    answer = responses.stream(responses.message("Sunny."), usage=USED)
    async with scripted("responses", turn, answer) as (proxy, upstream):
        said = [QUESTION, *answered(await asked(proxy, client, [QUESTION]))]
        assert (await asked(proxy, client, said)).text == "Sunny."
    items = json.loads(upstream.requests[1].body)["input"]
    assert [item.get("type", "message") for item in items] == [
        "message", "reasoning", "function_call", "function_call_output",
    ]  # fmt: skip
    assert (items[1]["id"], items[1]["encrypted_content"]) == ("rs_1", BLOB)


@pytest.mark.parametrize("client", ["chat", "responses", "anthropic"])
async def test_thinking_goes_back_to_an_ollama_server(client: str) -> None:
    """The proxy restores thinking for an Ollama upstream, unless the client could have sent it itself."""
    turn = ollama.stream("", ollama.call(TOOL, {"a": 1}, "call_1"), thinking=HELD)
    async with scripted("ollama", turn, ollama.stream("Sunny.")) as (proxy, upstream):
        said = [QUESTION, *answered(await asked(proxy, client, [QUESTION]))]
        assert (await asked(proxy, client, said)).text == "Sunny."
    (told,) = [one for one in json.loads(upstream.requests[1].body)["messages"] if one["role"] == "assistant"]
    # A client that can hold the thinking may have dropped it on purpose.
    assert told.get("thinking") == (HELD if client == "chat" else None)


@pytest.mark.accepts("chat-members", why="Google takes its signatures back")
async def test_a_signature_of_a_call_goes_back() -> None:
    """A call goes back with its thought signature, because Gemini refuses it without."""
    extra = {"google": {"thought_signature": "c2ln"}}
    made = {"index": 0, "id": "call_1", "function": {"name": TOOL, "arguments": "{}"}, "extra_content": extra}
    turn = chat.stream(chat.role(), chat.chunk_of({"tool_calls": [made]}), chat.finish("tool_calls"))
    answer = chat.stream(chat.role(), chat.content("Sunny."), chat.finish())
    async with scripted("chat", turn, answer) as (proxy, upstream):
        said = [QUESTION, *answered(await asked(proxy, "anthropic", [QUESTION]))]
        assert (await asked(proxy, "anthropic", said)).text == "Sunny."
    sent = json.loads(upstream.requests[1].body)["messages"]
    (back,) = [one["tool_calls"][0] for one in sent if one.get("tool_calls")]
    assert back["extra_content"] == extra


async def test_thinking_is_switched_off_where_a_thought_is_missing() -> None:
    """If the upstream asks for thinking that nobody has, the proxy repeats the request with it disabled."""
    said = "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`."
    refusal = SPEAKERS["anthropic"].refused("400 Bad Request", said)
    answer = messages.stream(text("Sunny."))
    call = Message("assistant", calls=(Call("call_7", TOOL, {}),))
    async with scripted("anthropic", refusal, answer) as (proxy, upstream):
        conversation = [QUESTION, call, Message("tool", "sunny", call_id="call_7")]
        body = {**SPEAKERS["chat"].ask(conversation, tools=[TOOL]), "reasoning_effort": "high"}
        seen = SPEAKERS["chat"].seen(await proxy.ask(body))
        assert seen.text == "Sunny."
    first, second = (json.loads(request.body) for request in upstream.requests)
    assert first["output_config"] == {"effort": "high"}
    assert second["thinking"] == {"type": "disabled"}


async def test_a_record_that_fails_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the record fails, the client still gets its turn, and its next request goes without the thinking."""
    turn = messages.stream(thinking("Hm."), tool_use("toolu_1", TOOL, {"a": 1}))
    async with scripted("anthropic", turn, messages.stream(text("Sunny."))) as (proxy, upstream):

        async def fail(key: str) -> None:
            raise StoreError("away")

        monkeypatch.setattr(proxy.services.store, "find_suspended", fail)
        said = [QUESTION, *answered(await asked(proxy, "chat", [QUESTION]))]
        assert (await asked(proxy, "chat", said)).text == "Sunny."
    content = json.loads(upstream.requests[1].body)["messages"][1]["content"]
    assert [block["type"] for block in content] == ["tool_use"]


async def test_a_turn_stands_once_in_a_request_that_is_translated_anew() -> None:
    """Rule W8: if a later turn is too long, the proxy retries without old turns, with its own turn once."""
    ours = "probe_tools__echo"
    first = messages.stream(tool_use("toolu_1", ours, {"text": "one"}))
    second = messages.stream(tool_use("toolu_2", ours, {"text": "two"}), id="msg_3")
    refusal = SPEAKERS["anthropic"].refused("400 Bad Request", "prompt is too long: 9 tokens > 8 maximum")
    script = (
        first, messages.stream(text("One."), id="msg_2"), second, refusal,
        messages.stream(text("Two."), id="msg_4"),
    )  # fmt: skip
    async with RawUpstream(*script) as upstream:
        served = {"base_url": upstream.url, "wires": ("anthropic",)}
        async with running(make_config(served, modules=("probe_tools",))) as proxy:
            one = await asked(proxy, "chat", [QUESTION])
            assert (await asked(proxy, "chat", [QUESTION, *one.returned, AGAIN])).text == "Two."
    got = [SPEAKERS["anthropic"].got(json.loads(request.body)) for request in upstream.requests]
    assert [[call.id for call in one.calls] for one in got[2:]] == [
        ["toolu_1"], ["toolu_1", "toolu_2"], ["toolu_2"],
    ]  # fmt: skip
