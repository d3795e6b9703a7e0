"""What a run's record says of its request: its shape, its trace, and how much of it is stored."""

import json
from typing import Any

import pytest
from looping import ANSWER, ASK, CLIENT_TOOL, TIME, called, looping
from raw_upstream import whole
from running_proxy import Proxy

from proxy.relay.memory.fingerprint import prompt_fingerprint
from proxy.store.base import RunDetail, RunFilter

TURN = called(("call_1", TIME, '{"timezone":"UTC"}'))
PARAMETERS = {"temperature": 0.2, "response_format": {"type": "text"}}
OTHER_TOOL = {"type": "function", "function": {"name": "other"}}


async def asked(proxy: Proxy, body: Any, headers: Any = ()) -> RunDetail:
    """Ask, and return the run that the request caused."""
    answer = await proxy.ask(body, headers)
    assert answer.status == 200, answer.body
    detail = await proxy.services.store.get_run(answer.header("x-toolrelay-run") or "")
    assert detail is not None
    return detail


async def test_two_runs_with_one_shape_are_seen_to_be_the_same() -> None:
    """Other words and another user leave the shape; fewer tools or another temperature change it."""
    async with looping(*[TURN, ANSWER] * 2, ANSWER, TURN, ANSWER) as (proxy, _):
        first = (await asked(proxy, ASK)).run
        again = {"messages": [{"role": "user", "content": "ho"}], "model": "m", "stream": True, "user": "u"}
        second = (await asked(proxy, again)).run
        fewer = (await asked(proxy, ASK, {"x-toolrelay-tools": TIME})).run
        warmer = (await asked(proxy, {**ASK, "temperature": 2})).run
    assert len(first.shape) == 32
    assert first.shape == second.shape
    assert len({first.shape, fewer.shape, warmer.shape}) == 3


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"messages": []}, True),
        ({"stream": True, "stream_options": {"include_usage": True}}, True),
        ({"user": "a", "metadata": {"b": "c"}, "prompt_cache_key": "d", "store": False}, True),
        ({"input": "x", "instructions": "y", "previous_response_id": "z"}, True),
        ({"tools": [OTHER_TOOL, CLIENT_TOOL]}, True),
        ({"tools": [CLIENT_TOOL]}, False),
        ({"tools": [OTHER_TOOL, {**CLIENT_TOOL, "strict": True}]}, False),
        ({"model": "n"}, False),
        ({"temperature": 0.3}, False),
        ({"reasoning_effort": "high"}, False),
        ({"tool_choice": "required"}, False),
    ],
)
def test_the_shape_is_how_and_not_what(change: dict[str, Any], same: bool) -> None:
    """The shape depends on model, tools and parameters in any order, and not on the conversation."""
    body = {"model": "m", "messages": [{"role": "user"}], "tools": [CLIENT_TOOL, OTHER_TOOL], **PARAMETERS}
    turned = dict(reversed([*(body | change).items()]))
    assert (prompt_fingerprint(turned, "offer") == prompt_fingerprint(body, "offer")) is same
    assert prompt_fingerprint(body, "another offer") != prompt_fingerprint(body, "offer")


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
