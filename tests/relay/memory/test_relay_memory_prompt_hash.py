"""What a run's record says of its request: its prompt hash, its trace, and how much of it is stored."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from looping import ANSWER, ASK, CLIENT_TOOL, TIME, called, looping
from raw_upstream import whole
from running_proxy import Proxy

from proxy.relay.memory.prompt_hash import prompt_hash
from proxy.store.base import RunDetail, RunFilter
from proxy.wires.anthropic.request import parse_anthropic_request
from proxy.wires.chat.request import parse_chat_request
from proxy.wires.client_port import ClientRequest
from proxy.wires.ollama.completions.wire import OllamaCompletionWire
from proxy.wires.ollama.request import parse_ollama_request
from proxy.wires.responses.request import parse_responses_request

TURN = called(("call_1", TIME, '{"timezone":"UTC"}'))
OTHER_TOOL = {"type": "function", "function": {"name": "other"}}


async def asked(proxy: Proxy, body: Any, headers: Any = ()) -> RunDetail:
    """Ask, and return the run that the request caused."""
    answer = await proxy.ask(body, headers)
    assert answer.status == 200, answer.body
    detail = await proxy.services.store.get_run(answer.header("x-toolrelay-run") or "")
    assert detail is not None
    return detail


async def test_two_runs_with_one_prompt_are_seen_to_be_the_same() -> None:
    """Other words, another user and another temperature leave the hash; fewer tools change it."""
    async with looping(*[TURN, ANSWER] * 2, ANSWER, TURN, ANSWER) as (proxy, _):
        first = (await asked(proxy, ASK)).run
        again = {
            "messages": [{"role": "user", "content": "ho"}],
            "model": ASK["model"],
            "stream": True,
            "user": "u",
        }
        second = (await asked(proxy, {**again, "temperature": 2})).run
        fewer = (await asked(proxy, ASK, {"x-toolrelay-tools": TIME})).run
        system = {"role": "system", "content": "Be brief."}
        briefer = (await asked(proxy, {**ASK, "messages": [system, *ASK["messages"]]})).run
    assert len(first.prompt_hash) == 32
    assert first.prompt_hash == second.prompt_hash
    assert len({first.prompt_hash, fewer.prompt_hash, briefer.prompt_hash}) == 3


def hashed(dialect: str, body: dict[str, Any], offered: str = "offer") -> str:
    """Return the prompt hash of a request in a dialect."""
    return prompt_hash(PARSERS[dialect](body), body, offered)


PARSERS: dict[str, Callable[[dict[str, Any]], ClientRequest]] = {
    "chat": parse_chat_request,
    "responses": parse_responses_request,
    "anthropic": parse_anthropic_request,
    "ollama": parse_ollama_request,
}
SAID: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "hi"}]},
    "responses": {"instructions": "a", "input": "hi"},
    "anthropic": {"system": "a", "messages": [{"role": "user", "content": "hi"}]},
    "ollama": {"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "hi"}]},
}
OTHERS: dict[str, list[dict[str, Any]]] = {
    "chat": [
        {"messages": [{"role": "system", "content": "b"}, {"role": "user", "content": "hi"}]},
        {"messages": [{"role": "user", "content": "hi"}]},
        {"messages": [*SAID["chat"]["messages"], {"role": "developer", "content": "b"}]},
        {"messages": [{"role": "system", "content": [{"type": "image_url"}]}]},
    ],
    "responses": [
        {"instructions": "b"},
        {"input": [{"role": "developer", "content": "b"}]},
        {"prompt": {"id": "pmpt_1", "version": "2"}},
    ],
    "anthropic": [{"system": "b"}, {"system": ""}],
    "ollama": [{"messages": [{"role": "system", "content": "b"}]}, {"messages": []}],
}
SAME: dict[str, list[dict[str, Any]]] = {
    "chat": [
        {"messages": [{"role": "developer", "content": [{"type": "text", "text": "a"}]}]},
        {"user": "a", "metadata": {"b": "c"}, "stream_options": {"include_usage": True}, "temperature": 2},
        {"messages": [*SAID["chat"]["messages"], {"role": "assistant", "content": "b"}]},
    ],
    "responses": [
        {"input": [{"role": "user", "content": "b"}], "previous_response_id": "r", "store": False},
        {"instructions": " a\n"},
    ],
    "anthropic": [
        {"system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
        {
            "system": [
                {"type": "text", "text": "x-anthropic-billing-header: cch=1"},
                {"type": "text", "text": "a"},
            ]
        },
    ],
    "ollama": [{"options": {"temperature": 1}, "keep_alive": 5}],
}


@pytest.mark.parametrize("dialect", SAID)
def test_the_hash_is_of_the_prompt(dialect: str) -> None:
    """In every dialect, instructions change the hash; the conversation and the settings do not."""
    body = {"model": "m", **SAID[dialect]}
    first = hashed(dialect, body)
    found = {hashed(dialect, body | change) for change in OTHERS[dialect]}
    assert len(found | {first}) == len(OTHERS[dialect]) + 1
    assert {hashed(dialect, body | change) for change in SAME[dialect]} == {first}
    assert hashed(dialect, {**body, "model": "n"}) != first
    assert hashed(dialect, body, "another offer") != first


@pytest.mark.parametrize(
    ("tools", "same"),
    [
        ([OTHER_TOOL, CLIENT_TOOL], True),
        ([CLIENT_TOOL], False),
        ([OTHER_TOOL, {**CLIENT_TOOL, "strict": True}], False),
        ([CLIENT_TOOL, OTHER_TOOL, "no tool"], False),
        (
            [{**CLIENT_TOOL, "cache_control": {"type": "ephemeral"}}, {**OTHER_TOOL, "headers": {"a": "b"}}],
            True,
        ),
    ],
)
def test_the_hash_is_of_the_tools_in_any_order(tools: list[Any], same: bool) -> None:
    """The tools count with all that a model sees of them, whatever the order of tools and keys."""
    body: dict[str, Any] = {"model": "m", "messages": [], "tools": [CLIENT_TOOL, OTHER_TOOL]}
    turned = {
        "tools": [dict(reversed([*tool.items()])) if isinstance(tool, dict) else tool for tool in tools]
    }
    request = parse_chat_request(body)
    assert (prompt_hash(request, turned, "o") == prompt_hash(request, body, "o")) is same


def test_a_completion_of_ollamas_has_a_system_prompt() -> None:
    """The system prompt of a completion, which has no messages, is a part of its prompt."""
    port = OllamaCompletionWire()
    first, second = ({"model": "m", "prompt": "hi", "system": text} for text in ("a", "b"))
    assert prompt_hash(port.parse(first), first, "") != prompt_hash(port.parse(second), second, "")


async def test_what_the_client_was_shown_is_on_record() -> None:
    """The record of a run names the trace that its client got."""
    async with looping(TURN, ANSWER, TURN, ANSWER) as (proxy, _):
        assert (await asked(proxy, ASK)).run.trace == "silent"
        assert (await asked(proxy, ASK, {"x-toolrelay-trace": "status"})).run.trace == "status"


@pytest.mark.parametrize("content", ["all", "tools", "none"])
async def test_the_request_is_kept_where_everything_is(content: str) -> None:
    """Rule R3: "all" stores the request and every answer, "tools" the turns with tools, "none" nothing."""
    async with looping(TURN, ANSWER, ANSWER, store={"content": content}) as (proxy, _):
        with_tools = await asked(proxy, ASK)
        without = await asked(proxy, ASK)
    roles = ["request", "assistant", "tool", "assistant"]
    if content == "all":
        assert [message.role for message in with_tools.messages] == roles
        assert json.loads(with_tools.messages[0].content_json or "") == ASK
        assert [message.role for message in without.messages] == ["request", "assistant"]
    else:
        kept = roles[1:] if content == "tools" else []
        assert [message.role for message in with_tools.messages] == kept
        assert list(without.messages) == []


@pytest.mark.parametrize("content", ["all", "tools"])
async def test_a_request_that_is_not_to_be_stored_is_not(content: str) -> None:
    """Rule R3: with store=false on Responses the record has the run and its calls, and no message."""
    first = {
        "id": "resp_1", "object": "response", "status": "completed", "model": "m", "output": [
            {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": TIME,
             "arguments": '{"timezone":"UTC"}', "status": "completed"}
        ],
    }  # fmt: skip
    text = {"type": "output_text", "text": "Noon.", "annotations": []}
    message = {
        "type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [text]
    }  # fmt: skip
    second = {**first, "id": "resp_2", "output": [message]}
    async with looping(
        whole(json.dumps(first).encode()), whole(json.dumps(second).encode()), store={"content": content}
    ) as (proxy, _):
        body = {"model": "m", "input": "hi", "store": False}
        answer = await proxy.ask(body, path="/v1/responses")
        assert answer.status == 200, answer.body
        (run,) = await proxy.services.store.list_runs(RunFilter())
        detail = await proxy.services.store.get_run(run.id)
    assert detail is not None
    assert len(detail.turns) == 2
    assert len(detail.invocations) == 1
    assert list(detail.messages) == []


async def test_a_request_past_the_bound_is_not_kept() -> None:
    """A request of 4 MiB is not stored, but the other messages of its run are."""
    long = {**ASK, "messages": [{"role": "user", "content": "x" * (4 * 2**20)}]}
    async with looping(TURN, ANSWER, store={"content": "all"}) as (proxy, _):
        detail = await asked(proxy, long)
    assert [message.role for message in detail.messages] == ["assistant", "tool", "assistant"]
