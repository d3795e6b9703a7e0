"""Calls as the upstream sent them: the record keeps them beside their executions, as content only."""

import json
from pathlib import Path
from typing import Any

import pytest
from chat_script import call, chunk_of, finish, reply, role, stream
from looping import ANSWER, ASK, CLIENT_TOOL, ECHO, TIME, called, looping
from raw_upstream import Step
from responses_script import function_call, message
from responses_script import reply as whole_response
from responses_script import stream as response_stream
from running_proxy import Proxy

from proxy.store.base import RunDetail
from proxy.tools.running.invocation import MAX_NATIVE

UTC = '{"timezone":"UTC"}'
SIGNED = {"extra_content": {"google": {"thought_signature": "AbC=="}}}
CHAT_CALL: dict[str, Any] = {"id": "call_1", "type": "function", "function": {"name": TIME, "arguments": UTC}}
NOON = message("Noon.", id="msg_2")


async def asked(proxy: Proxy, body: Any = ASK, path: str = "/v1/chat/completions") -> RunDetail:
    """Send a request; return the run that it caused."""
    answer = await proxy.ask(body, path=path)
    assert answer.status == 200, answer.body
    detail = await proxy.services.store.get_run(answer.header("x-toolrelay-run") or "")
    assert detail is not None
    return detail


def payloads(detail: RunDetail) -> list[Any]:
    """Return the kept calls in the order of their executions."""
    kept = {each.invocation_id: json.loads(each.payload) for each in detail.native_calls}
    assert set(kept) <= {row.id for row in detail.invocations}
    return [kept.get(row.id) for row in detail.invocations]


def written(folder: Path) -> bytes:
    """Return every byte of every file in a folder."""
    return b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())


def signed(arguments: str, **more: Any) -> bytes:
    """Return a fragment of a call with fields that no API documents."""
    function = {"name": TIME, "arguments": arguments, "confidence": 0.5}
    entry = {"index": 0, "id": "call_1", "type": "function", "function": function, **SIGNED, **more}
    return chunk_of({"tool_calls": [entry]})


@pytest.mark.accepts("chat-members", why="other providers have these members")
async def test_a_streamed_chat_call_is_kept_with_all_its_fields() -> None:
    """Rule R3: the record has a streamed call as a whole, with its unknown fields."""
    turn = stream(role(), signed('{"timezone":'), call(None, None, '"UTC"}'), finish("tool_calls"))
    async with looping(turn, ANSWER) as (proxy, _):
        (kept,) = payloads(await asked(proxy))
    function = {"name": TIME, "arguments": UTC, "confidence": 0.5}
    assert kept == {**CHAT_CALL, "function": function, **SIGNED}


@pytest.mark.accepts("chat-members", why="other providers have these members")
async def test_a_whole_chat_call_is_kept_with_all_its_fields() -> None:
    """The record has a call of an answer without a stream, with its unknown fields."""
    turn = reply(None, tool_calls=[{**CHAT_CALL, **SIGNED}], reason="tool_calls")
    async with looping(turn, reply("Noon.")) as (proxy, _):
        detail = await asked(proxy, {**ASK, "stream": False})
    assert payloads(detail) == [{**CHAT_CALL, **SIGNED}]


async def test_an_older_function_call_is_kept_in_its_form() -> None:
    """A ``function_call`` is kept without id and type, as the upstream sent it."""
    delta = {"function_call": {"name": TIME, "arguments": UTC}}
    turn = stream(role(), chunk_of(delta), finish("function_call"))
    ask = {**ASK, "functions": [{"name": TIME, "parameters": {"type": "object", "properties": {}}}]}
    async with looping(turn, ANSWER) as (proxy, _):
        assert payloads(await asked(proxy, ask)) == [{"name": TIME, "arguments": UTC}]


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.accepts("responses-members", why="other providers have these members")
async def test_a_response_item_is_kept_with_all_its_fields(streamed: bool) -> None:
    """Rule R3: on Responses the record has the call's final item, with its unknown fields."""
    item = function_call("call_1", TIME, UTC, signature="AbC==")
    script = response_stream if streamed else whole_response
    async with looping(script(item, id="resp_1"), script(NOON, id="resp_2")) as (proxy, _):
        body = {"model": "m", "stream": streamed, "input": "What time is it?"}
        assert payloads(await asked(proxy, body, "/v1/responses")) == [item]


async def test_what_was_repaired_is_kept_as_it_came() -> None:
    """Rule W8: the proxy repairs ids and arguments for the loop, but records what the upstream sent."""
    turn = stream(
        role(),
        call("same", TIME, UTC, index=0),
        call("same", TIME, "not json", index=1),
        call(None, TIME, None, index=2),
        finish("tool_calls"),
    )
    async with looping(turn, ANSWER) as (proxy, _):
        detail = await asked(proxy)
    first, second, third = payloads(detail)
    assert (first["id"], second["id"], "id" in third) == ("same", "same", False)
    assert [each["function"]["arguments"] for each in (first, second, third)] == [UTC, "not json", ""]
    assert len({row.call_id for row in detail.invocations}) == 3


async def test_a_repaired_id_of_a_response_item_is_kept_as_it_came() -> None:
    """The proxy gives an item with a blank call id a new one, but records the blank one."""
    item = {**function_call("call_1", TIME, UTC), "call_id": ""}
    async with looping(response_stream(item, id="resp_1"), response_stream(NOON, id="resp_2")) as (proxy, _):
        detail = await asked(proxy, {"model": "m", "stream": True, "input": "hi"}, "/v1/responses")
    assert [kept["call_id"] for kept in payloads(detail)] == [""]
    assert detail.invocations[0].call_id


@pytest.mark.parametrize("content", ["all", "tools", "none"])
async def test_calls_are_kept_as_content_is(content: str) -> None:
    """Rule R3: with ``store.content = none`` the record has a call's execution, but not the call."""
    async with looping(called(("call_1", TIME, UTC)), ANSWER, store={"content": content}) as (proxy, _):
        detail = await asked(proxy)
    assert len(detail.invocations) == 1
    assert len(detail.native_calls) == (0 if content == "none" else 1)


async def test_nothing_is_kept_where_the_client_wants_nothing_stored() -> None:
    """Rule R3: with ``store=false`` on Responses no call is kept."""
    item = function_call("call_1", TIME, UTC)
    async with looping(response_stream(item, id="resp_1"), response_stream(NOON, id="resp_2")) as (proxy, _):
        body = {"model": "m", "stream": True, "input": "hi", "store": False}
        detail = await asked(proxy, body, "/v1/responses")
    assert (len(detail.invocations), len(detail.native_calls)) == (1, 0)


async def test_a_call_past_the_bound_is_not_kept() -> None:
    """A call above the size limit is not kept at all, because half of its JSON would be useless."""
    turns = [called(("call_1", ECHO, json.dumps({"text": "x" * size}))) for size in (100, MAX_NATIVE)]
    async with looping(turns[0], ANSWER, turns[1], ANSWER) as (proxy, _):
        assert [len((await asked(proxy)).native_calls) for _ in turns] == [1, 0]


@pytest.mark.accepts("chat-members", why="other providers have these members")
async def test_private_arguments_are_masked_where_nothing_is_sealed(tmp_path: Path) -> None:
    """Rule R3: in a file that is not sealed, exactly the private arguments of a call are masked."""
    turn = stream(
        role(),
        chunk_of({"tool_calls": [_unlock("call_1", '{"pin":"pin-4711"}')]}),
        chunk_of({"tool_calls": [{**_unlock("call_2", '{"pin":"pin-4711"'), "index": 1}]}),
        chunk_of({"tool_calls": [{**_unlock("call_3", '{"the_pin":"pin-4711"}'), "index": 2}]}),
        finish("tool_calls"),
    )
    store = {"url": f"sqlite:///{tmp_path}/record.db", "seal": False}
    async with looping(turn, ANSWER, store=store) as (proxy, _):
        first, second, third = payloads(await asked(proxy))
    assert json.loads(first["function"]["arguments"])["pin"] != "pin-4711"
    assert first["extra_content"] == SIGNED["extra_content"]
    assert [each["function"]["arguments"] for each in (second, third)] == ["{}", "{}"]
    assert b"pin-4711" not in written(tmp_path)


def _unlock(call_id: str, arguments: str) -> dict[str, Any]:
    function = {"name": "probe_tools__unlock", "arguments": arguments}
    return {"index": 0, "id": call_id, "type": "function", "function": function, **SIGNED}


async def test_private_arguments_inside_a_wrapper_are_masked(tmp_path: Path) -> None:
    """Rule R3: a wrapper is not kept itself, and private arguments inside are never written in plain text."""
    use = {"recipient_name": "functions.probe_tools__unlock", "parameters": {"pin": "pin-4711"}}
    odd = {"tool_uses": "pin-4711"}
    turn = called(
        ("call_1", "multi_tool_use.parallel", json.dumps({"tool_uses": [use]})),
        ("call_2", "parallel", json.dumps(odd)),
    )
    store = {"url": f"sqlite:///{tmp_path}/record.db", "seal": False}
    async with looping(turn, ANSWER, store=store) as (proxy, upstream):
        detail = await asked(proxy)
        assert b"pin-4711" in upstream.requests[1].body
    by_tool = {row.tool: row.id for row in detail.invocations}
    assert by_tool["probe_tools__unlock"] not in {each.invocation_id for each in detail.native_calls}
    assert b"pin-4711" not in written(tmp_path)


async def test_arguments_of_an_unknown_tool_are_not_kept(tmp_path: Path) -> None:
    """Rule R3: arguments of an unknown tool are not kept, because they may be private; the client's own
    calls are kept as content."""
    inside = {"recipient_name": "functions.unlock", "parameters": {"pin": "pin-4711"}}
    turn = called(
        ("call_1", "probe_tools__unlok", '{"pin":"pin-4711"}'),
        ("call_2", "unlock", '{"pin-4711":1}'),
        ("call_3", "multi_tool_use.parallel", json.dumps({"tool_uses": [inside]})),
        ("call_4", "mine", '{"a":"own-4712"}'),
    )
    store = {"url": f"sqlite:///{tmp_path}/record.db", "seal": False}
    async with looping(turn, store=store) as (proxy, _):
        detail = await asked(proxy, {**ASK, "tools": [CLIENT_TOOL]})
    assert [row.error_code for row in detail.invocations] == ["unknown_tool"] * 3
    assert "[private]" in str(payloads(detail)[0])
    assert b"pin-4711" not in written(tmp_path)
    assert b"own-4712" in written(tmp_path)


@pytest.mark.accepts("chat-members", why="other providers have these members")
async def test_a_payload_decides_nothing() -> None:
    """Fields of a call that name another tool or other arguments change nothing in what the proxy does."""

    async def loop(*turns: list[Step]) -> tuple[list[Any], list[bytes]]:
        async with looping(*turns, tools={"trace_max": "events"}) as (proxy, upstream):
            detail = await asked(proxy, {**ASK, "tools": [CLIENT_TOOL]})
            rows = [(row.tool, row.status, row.arguments_redacted) for row in detail.invocations]
            return rows, [json.loads(r.body)["messages"][-1]["content"] for r in upstream.requests]

    lying = {"name": "probe_tools__buy", "arguments": '{"what":"it"}', "tool": "mine", "recipient": "mine"}
    honest = stream(role(), call("call_1", TIME, UTC), finish("tool_calls"))
    entry = {"index": 0, **CHAT_CALL, **lying}
    liar = stream(role(), chunk_of({"tool_calls": [entry]}), finish("tool_calls"))
    assert await loop(honest, ANSWER) == await loop(liar, ANSWER)
