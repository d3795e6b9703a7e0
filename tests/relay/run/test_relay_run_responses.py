"""The Responses API over real sockets: server tools, client tools, both in one turn, stored or not."""

import asyncio
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from chat_script import DONE
from looping import ECHO, TIME
from probe_tools import Watch
from raw_upstream import HANG, RESET, RawRequest, Step, chunk, chunked, head, whole
from responding import HIDDEN, PATH, Client, client_of, well_formed
from responses_check import Reading, check_response_stream, events_of
from responses_script import (
    closing,
    custom,
    encode,
    function,
    function_call,
    item_events,
    message,
    opening,
    output,
    reasoning,
    reply,
    resource,
    stream,
    turn,
    user,
)
from running_proxy import ONLY_DEPARTURE
from waiting import PATIENCE_S, until

UTC = '{"timezone":"UTC"}'
QUEUE = "probe_tools__queue"
NOW = function_call("call_s", TIME, UTC)
MINE = function_call("call_c", "mine", '{"a":1}')
NOON = message("It is noon.", id="msg_2")
ASK: dict[str, Any] = {"model": "m", "stream": True, "input": "What time is it?"}
MIXED: dict[str, Any] = {**ASK, "tools": [function("mine")]}

both_ways = pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
kept_or_not = pytest.mark.parametrize("kept", [True, False], ids=["stored", "store false"])


CARRIED = tuple(one for one in HIDDEN if one != "toolrelay")
"""Hidden texts of a mixed turn that is not stored: its client carries the turn in an item of the proxy."""


def said(streaming: bool, *items: dict[str, Any], **more: Any) -> list[Step]:
    """Return one turn of the upstream."""
    return stream(*items, **more) if streaming else reply(*items, **more)


def result_of(item: dict[str, Any]) -> str:
    """Return the time in a result."""
    return str(json.loads(item["output"])["iso"])


# A server tool.


@both_ways
@kept_or_not
async def test_a_server_tool(streaming: bool, kept: bool) -> None:
    """Rules W3 to W5: two turns become one answer; the second request is chained, or has all items."""
    more = {"store": kept}
    think = reasoning("hm", encrypted_content="blob")
    usage = {"input_tokens": 5, "output_tokens": 3, "total_tokens": 8}
    ask = {
        **ASK,
        "stream": streaming,
        "instructions": "Be brief.",
        "temperature": 0.2,
        "tool_choice": "required",
        "max_output_tokens": 100,
        "max_tool_calls": 4,
        **({} if kept else {"store": False}),
    }
    async with client_of(
        said(streaming, think, NOW, usage=usage, **more),
        said(streaming, NOON, id="resp_2", usage=usage, **more),
    ) as client:
        read = await client.said(ask)
        assert read.text == "It is noon."
        assert read.id == "resp_1"
        assert read.response["usage"]["total_tokens"] == 16
        assert read.response["tools"] == []
        assert read.response["tool_choice"] == "required"
        assert read.response["store"] is kept
        assert read.response["max_output_tokens"] == 100
        assert [item["type"] for item in read.response["output"]] == ["reasoning", "message"]

        first, second = client.asked(1), client.asked(2)
        assert first["tool_choice"] == "required"
        assert TIME in [tool["name"] for tool in first["tools"]]
        assert second["tool_choice"] == "auto"
        assert (second["max_output_tokens"], second["max_tool_calls"]) == (97, 3)
        for name in ("instructions", "temperature", "tools", "model", "stream"):
            assert second[name] == first[name], name
        if kept:
            assert second["previous_response_id"] == "resp_1"
            (answer,) = second["input"]
        else:
            assert second["store"] is False
            *before, answer = second["input"]
            assert before == [user("What time is it?"), think, NOW]
        assert (answer["type"], answer["call_id"]) == ("function_call_output", "call_s")
        assert result_of(answer) == "2026-11-21T12:00:00+00:00"
        run = await client.proxy.only_run()
        assert (run.run.status, run.run.wire, run.run.turns, run.run.tool_calls) == (
            "completed",
            "responses",
            2,
            1,
        )


async def test_calls_at_once_and_one_after_another(watch: Watch) -> None:
    """Two calls of one turn run at once, one of the next turn alone, and the model gets a result of each."""
    calls = [function_call(f"call_{name}", QUEUE, json.dumps({"name": name})) for name in "ab"]
    later = function_call("call_b", QUEUE, '{"name":"c"}')
    scripts = [stream(*calls), stream(later, id="resp_2"), stream(NOON, id="resp_3")]
    async with client_of(*scripts, tools={"timeout_s": PATIENCE_S}) as client:
        asking = asyncio.create_task(client.said(ASK, hidden=(*HIDDEN, QUEUE)))
        await until(lambda: watch.now == 2)
        assert (sorted(watch.started), len(client.upstream.requests)) == (["a", "b"], 1)
        watch.may_end.release()
        watch.may_end.release()
        await until(lambda: watch.started[2:] == ["c"])
        assert (watch.now, len(client.upstream.requests)) == (1, 2)
        watch.may_end.release()
        assert (await asking).text == "It is noon."
        items = client.asked(3)["input"]
    well_formed(items)
    assert [item["output"] for item in items if "output" in item] == ["a", "b", "c"]


async def test_arguments_that_cannot_run() -> None:
    """Rule T3: the model is told that its arguments are no JSON; they go back as ``{}``."""
    first = stream(function_call("call_s", TIME, '{"timezone":'))
    async with client_of(first, stream(NOON, id="resp_2")) as client:
        assert (await client.said(ASK)).text == "It is noon."
        call, answer = client.asked(2)["input"][1:]
        assert call["arguments"] == "{}"
        assert json.loads(answer["output"])["error_code"] == "invalid_json"


async def test_a_budget_ends_in_an_answer() -> None:
    """Rule T7: calls beyond the client's ``max_tool_calls`` are refused, and no tools follow."""
    calls = [function_call(f"c{n}", ECHO, '{"text":"a"}') for n in range(3)]
    async with client_of(stream(*calls), stream(NOON, id="resp_2")) as client:
        assert (await client.said({**ASK, "max_tool_calls": 2}, hidden=(ECHO,))).text == "It is noon."
        answers = [json.loads(item["output"]) for item in client.asked(2)["input"] if "output" in item]
        assert [answer.get("error_code") for answer in answers] == [None, None, "budget_exhausted"]
        assert client.asked(2)["tool_choice"] == "none"


async def test_a_model_that_never_stops_calling() -> None:
    """Rule T7: a spent budget ends the answer with a note, and the client can continue the conversation."""
    always = stream(NOW, store=True)
    async with client_of(always, always, stream(NOON, id="resp_9"), tools={"max_turns": 1}) as client:
        read = await client.said(ASK, hidden=(TIME, "fc_call_s"))
        assert "budget" in read.text
        again = await client.ask({**ASK, "input": "so?", "previous_response_id": read.id})
        assert again.status == 200
        request = client.asked(3)
        assert request["previous_response_id"] == "resp_1"
        assert [item.get("call_id") for item in request["input"]] == ["call_s", None]
        assert json.loads(request["input"][0]["output"])["error_code"] == "budget_exhausted"


async def test_tools_that_are_not_called_change_nothing() -> None:
    """Rule W2: without a server call the client gets the upstream's stream, and the proxy stores nothing."""
    async with client_of(stream(NOON, tools=[function(TIME)])) as client:
        answer = await client.ask(ASK)
        assert answer.body == turn(NOON, tools=[]) + DONE
        assert await client.proxy.services.store.find_response("resp_1", "open") is None


async def test_no_tool_offered_is_a_passthrough() -> None:
    """Rule W1: if no tool is offered, the proxy changes neither request nor response."""
    async with client_of(stream(NOON), allow=()) as client:
        answer = await client.ask(ASK)
        assert answer.body == turn(NOON) + DONE
        assert answer.header("x-toolrelay-run") is None
        assert client.asked(1) == ASK


# Shown calls that come back.


async def test_a_call_that_was_shown_comes_back() -> None:
    """A shown ``mcp_call`` that comes back becomes a call and its output, even if tools are off."""
    async with client_of(
        stream(NOW), stream(NOON, id="resp_2"), stream(NOON, id="resp_3"), stream(NOON, id="resp_4"),
        tools={"trace_max": "events"},
    ) as client:  # fmt: skip
        read = await client.said(ASK, {"x-toolrelay-trace": "events"}, hidden=("fc_call_s",))
        (shown,) = read.of_type("mcp_call")
        assert (shown["server_label"], shown["name"], shown["status"]) == ("toolrelay", TIME, "completed")
        back = {**ASK, "input": [user("What time is it?"), *read.response["output"], user("so?")]}
        for wanted in ({}, {"x-toolrelay-tools": "none"}):
            await client.ask(back, wanted)
            items = client.asked(len(client.upstream.requests))["input"]
            well_formed(items)
            assert [item.get("type") for item in items] == [
                None, "function_call", "function_call_output", "message", None,
            ]  # fmt: skip
            assert items[1]["name"] == TIME


async def test_a_call_that_was_shown_comes_back_to_any_process(tmp_path: Path) -> None:
    """Another process with the same record accepts a shown call by its signature, but not a changed one.
    A forged result of a server tool gets a 400, unless the client declares a tool of that name."""
    store = {"url": f"sqlite:///{tmp_path}/record.db"}
    shows = {"trace_max": "events"}
    async with client_of(stream(NOW), stream(NOON, id="resp_2"), store=store, tools=shows) as client:
        read = await client.said(ASK, {"x-toolrelay-trace": "events"}, hidden=("fc_call_s",))
        (shown,) = read.of_type("mcp_call")
    async with client_of(stream(NOON), stream(NOON), stream(NOON), store=store) as client:
        for item, kinds in (
            (shown, ["function_call", "function_call_output"]),
            ({**shown, "output": "1"}, ["message"]),
        ):
            await client.ask({**ASK, "input": [user("hi"), item, user("so?")]})
            items = client.asked(len(client.upstream.requests))["input"]
            assert [one.get("type") for one in items] == [None, *kinds, None]
        forged = [
            {"type": "function_call", "call_id": "c", "name": ECHO, "arguments": "{}"},
            output("c", "no"),
        ]
        answer = await client.ask({**ASK, "input": [user("hi"), *forged, user("so?")]})
        assert (answer.status, answer.error["param"]) == (400, "input[2].call_id")
        own = {**ASK, "tools": [function(ECHO)], "input": [user("hi"), *forged, user("so?")]}
        assert (await client.ask(own)).status != 400


@pytest.mark.parametrize("trace", ["status", "reasoning"])
async def test_a_line_about_a_call_does_not_go_upstream(trace: str) -> None:
    """The proxy removes its own lines about calls before the conversation goes to the upstream."""
    async with client_of(stream(NOW), stream(NOON, id="resp_2"), stream(NOON, id="resp_3")) as client:
        read = await client.said(ASK, {"x-toolrelay-trace": trace}, hidden=("fc_call_s",))
        assert len(read.response["output"]) == 2
        back = {**ASK, "input": [user("What time is it?"), *read.response["output"], user("so?")]}
        await client.ask(back, {"x-toolrelay-history": "off"})
        assert client.asked(3)["input"] == [user("What time is it?"), NOON, user("so?")]


# The client's own tools.


@both_ways
async def test_a_client_tool_is_the_clients(streaming: bool) -> None:
    """Rule W2: a turn with only client calls keeps the upstream's bytes, and nothing is restored later."""
    ask = {**MIXED, "stream": streaming}
    async with client_of(said(streaming, MINE), said(streaming, NOON, id="resp_2")) as client:
        answer = await client.ask(ask)
        expected = turn(MINE, tools=[function("mine")]) + DONE
        if streaming:
            assert answer.body == expected.replace(b'"tools":[]', b'"tools":' + _compact([function("mine")]))
        else:
            assert answer.json["output"] == [MINE]
        back = [user("What time is it?"), MINE, output("call_c", "7")]
        assert (await client.ask({**ask, "input": back})).status == 200
        assert client.asked(2)["input"] == back


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


@both_ways
@pytest.mark.parametrize(
    ("kept", "way"),
    [(True, "by id"), *((kept, way) for kept in (True, False) for way in ("with ids", "without ids"))],
)
@pytest.mark.parametrize("order", [(NOW, MINE), (MINE, NOW)], ids=["server first", "client first"])
async def test_calls_of_both_there_and_back(streaming: bool, kept: bool, way: str, order: Any) -> None:
    """Rules W5, W8: the client sees only its own call; in its next request the model gets every result."""
    think = reasoning("hm", encrypted_content="blob")
    ask = {**MIXED, "stream": streaming, **({} if kept else {"store": False})}
    more = {"store": kept}
    async with client_of(
        said(streaming, think, message("Wait."), *order, **more), said(streaming, NOON, id="resp_2", **more)
    ) as client:
        read = await client.said(ask, hidden=HIDDEN if kept else CARRIED)
        assert read.calls == [("call_c", "mine", '{"a":1}')]
        assert read.text == "Wait."
        assert read.response["status"] == "completed"
        assert (await client.proxy.run_reaches("suspended")).run.finish_reason == "tool_calls"

        answer = output("call_c", "mine says 7")
        if way == "by id":
            back = {**ask, "input": [answer], "previous_response_id": read.id}
        else:
            echoed = read.response["output"]
            if way == "without ids":
                echoed = [_stripped(item) for item in echoed]
            back = {**ask, "input": [user("What time is it?"), *echoed, answer]}
        returned = await client.ask(back)
        assert returned.status == 200
        assert b"core__" not in returned.body
        assert b"It is noon." in returned.body

        request = client.asked(2)
        if way == "by id":
            assert request["previous_response_id"] == "resp_1"
            ours, theirs = request["input"]
        else:
            assert "previous_response_id" not in request
            well_formed(request["input"])
            assert request["input"][:-2] == [user("What time is it?"), think, message("Wait."), *order]
            ours, theirs = request["input"][-2:]
        assert ours["call_id"] == "call_s"
        assert result_of(ours) == "2026-11-21T12:00:00+00:00"
        assert theirs == answer


def _stripped(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item as agent libraries send it back: no ids, no states, parts as plain text."""
    bare = {key: value for key, value in item.items() if key not in ("id", "status")}
    if item["type"] == "message":
        return {"role": "assistant", "content": item["content"][0]["text"]}
    return bare


async def test_a_client_asks_again_from_the_same_place() -> None:
    """Rule R4: a held turn can be restored twice, but never in another conversation."""
    async with client_of(stream(NOW, MINE), stream(NOON, id="resp_2")) as client:
        read = await client.said(MIXED)
        back = [user("What time is it?"), *read.response["output"], output("call_c", "7")]
        for _ in range(2):
            await client.ask({**MIXED, "input": back})
            assert len(client.asked(len(client.upstream.requests))["input"]) == 5
        other = [user("Another question"), *back[1:]]
        await client.ask({**MIXED, "input": other})
        assert client.asked(4)["input"] == other


async def test_hidden_turns_before_a_mixed_one_go_back_too() -> None:
    """Hidden turns before a mixed one are restored in their place, too."""
    async with client_of(
        stream(function_call("call_0", ECHO, '{"text":"a"}')),
        stream(NOW, MINE, id="resp_2"),
        stream(NOON, id="resp_3"),
    ) as client:
        read = await client.said(MIXED, hidden=(*HIDDEN, ECHO))
        await client.ask(
            {**MIXED, "input": [user("What time is it?"), *read.response["output"], output("call_c", "7")]}
        )
        items = client.asked(3)["input"]
        well_formed(items)
        assert [item.get("call_id") for item in items] == [
            None, "call_0", "call_0", "call_s", "call_c", "call_s", "call_c",
        ]  # fmt: skip


async def test_a_conversation_that_waits_for_the_client() -> None:
    """With ``conversation`` the upstream has the turn itself, and gets our result before the client's."""
    ask = {**MIXED, "conversation": "conv_1"}
    async with client_of(
        stream(function_call("call_0", ECHO, '{"text":"a"}')),
        stream(NOW, MINE, id="resp_2"),
        stream(NOON, id="resp_3"),
    ) as client:
        await client.said(ask, hidden=(*HIDDEN, ECHO))
        await client.ask({**ask, "input": [output("call_c", "7")]})
        assert [item["call_id"] for item in client.asked(2)["input"]] == ["call_0"]
        assert [item["call_id"] for item in client.asked(3)["input"]] == ["call_s", "call_c"]
        for number in (1, 2, 3):
            assert client.asked(number)["conversation"] == "conv_1"


@pytest.mark.parametrize("native", [(), ("custom",)], ids=["asked with a function", "asked with its type"])
async def test_a_custom_tool_of_the_clients_in_a_mixed_turn(native: Sequence[str]) -> None:
    """The client gets a call of its custom tool, and its next request restores the turn, also if the upstream
    was asked with a function and calls a custom tool all the same."""
    ask = {**ASK, "tools": [{"type": "custom", "name": "write"}]}
    theirs = custom("call_w", "write", "SELECT 1")
    answer = {"type": "custom_tool_call_output", "call_id": "call_w", "output": "done"}
    turns = [stream(NOW, theirs), stream(NOON, id="resp_2")]
    async with client_of(*turns, served={"native": native}) as client:
        read = await client.said(ask)
        assert read.response["output"] == [theirs]
        await client.ask({**ask, "input": [user("What time is it?"), theirs, answer]})
        items = client.asked(2)["input"]
        assert [item.get("call_id") for item in items] == [None, "call_s", "call_w", "call_s", "call_w"]
        kind = "custom_tool_call" if native else "function_call"
        assert [items[2]["type"], items[4]["type"]] == [kind, f"{kind}_output"]
        assert items[2]["input" if native else "arguments"] == (
            "SELECT 1" if native else '{"input":"SELECT 1"}'
        )


async def test_a_stored_prompts_tools_are_the_clients() -> None:
    """With ``prompt``, the client gets calls of unknown names, and server tools still run."""
    ask = {**ASK, "prompt": {"id": "pmpt_1"}}
    unseen = function_call("call_u", "unseen")
    async with client_of(stream(NOW, unseen)) as client:
        assert (await client.said(ask)).calls == [("call_u", "unseen", "{}")]
    async with client_of(stream(unseen)) as client:
        assert (await client.ask(ask)).body == turn(unseen) + DONE


# Ids of responses that the proxy composed.


async def finished_run(client: Client, **more: Any) -> Reading:
    """Return a response that the proxy composed."""
    return await client.said({**ASK, **more})


@pytest.mark.parametrize("kept", [True, None], ids=["chained", "stateless"])
async def test_going_on_from_a_response_of_ours(kept: bool | None) -> None:
    """If a request continues a composed response, the upstream gets its own last id, or all items."""
    async with client_of(
        stream(NOW, store=kept), stream(NOON, id="resp_2", store=kept),
        stream(message("Yes."), id="resp_3", previous_response_id="resp_2", store=kept),
        stream(message("No."), id="resp_4", store=kept),
    ) as client:  # fmt: skip
        first = await finished_run(client)
        second = await client.ask({**ASK, "input": "so?", "previous_response_id": first.id})
        request = client.asked(3)
        if kept:
            assert request["previous_response_id"] == "resp_2"
            assert request["input"] == "so?"
        else:
            assert "previous_response_id" not in request
            well_formed(request["input"])
            assert [item.get("type") for item in request["input"]] == [
                None, "function_call", "function_call_output", "message", None,
            ]  # fmt: skip
        told = [e["response"] for e in events_of(second.body) if "response" in e]
        assert {one["previous_response_id"] for one in told} == {first.id}
        assert {one["id"] for one in told} == {"resp_3"}

        # No tool was called, but only the proxy knows which response this one continues.
        await client.ask({**ASK, "input": "why?", "previous_response_id": "resp_3"})
        request = client.asked(4)
        if kept:
            assert request["previous_response_id"] == "resp_3"
        else:
            assert [item.get("type") for item in request["input"]][-3:] == [None, "message", None]
            assert len(request["input"]) == 7


async def test_a_foreign_id_is_the_upstreams() -> None:
    """An unknown id goes to the upstream unchanged, and its refusal reaches the client unchanged."""
    body = b'{"error":{"message":"Previous response with id \'resp_x\' not found.","type":"x",'
    body += b'"param":"previous_response_id","code":"previous_response_not_found"}}'
    async with client_of(whole(body, status="400 Bad Request")) as client:
        answer = await client.ask({**ASK, "previous_response_id": "resp_x"})
        assert (answer.status, answer.body) == (400, body)
        assert client.asked(1)["previous_response_id"] == "resp_x"
        assert len(client.upstream.requests) == 1


async def test_a_response_is_retrieved() -> None:
    """``GET`` returns the response as the client got it, without a request to the upstream."""
    async with client_of(stream(NOW), stream(NOON, id="resp_2")) as client:
        read = await finished_run(client)
        answer = await client.get(read.id)
        assert (answer.status, answer.json) == (200, read.response)
        assert answer.header("content-type") == "application/json"
        assert len(client.upstream.requests) == 2


async def test_a_response_is_streamed_again() -> None:
    """``stream=true`` returns the response as events; ``starting_after`` leaves out the first ones."""
    async with client_of(stream(reasoning("hm"), NOW), stream(NOON, id="resp_2")) as client:
        read = await finished_run(client)
        answer = await client.get(f"{read.id}?stream=true")
        assert (answer.header("content-type") or "").startswith("text/event-stream")
        again = check_response_stream(answer.body, hidden=HIDDEN)
        assert again.response == read.response
        rest = await client.get(f"{read.id}?stream=true&starting_after=4")
        numbers = [e["sequence_number"] for e in events_of(rest.body)]
        assert numbers == list(range(5, len(again.events)))
        assert (await client.get(f"{read.id}?stream=true&starting_after=-1")).error[
            "param"
        ] == "starting_after"
        assert (await client.get(f"{read.id}?stream=false")).json == read.response


async def test_input_items_are_listed() -> None:
    """``input_items`` are listed newest first and in pages, each with a type, an id and parts."""
    items = [user("a"), message("b", id="msg_b"), user("c")]
    async with client_of(stream(NOW), stream(NOON, id="resp_2")) as client:
        read = await finished_run(client, input=items)
        listed = (await client.get(f"{read.id}/input_items")).json
        assert (listed["object"], listed["has_more"]) == ("list", False)
        assert [item["content"][0]["text"] for item in listed["data"]] == ["c", "b", "a"]
        assert [item["type"] for item in listed["data"]] == ["message"] * 3
        assert listed["data"][1]["id"] == "msg_b"
        assert (listed["first_id"], listed["last_id"]) == (listed["data"][0]["id"], listed["data"][2]["id"])
        assert listed["data"][0]["content"][0]["type"] == "input_text"
        first = (await client.get(f"{read.id}/input_items?limit=2&order=asc")).json
        assert ([i["content"][0]["text"] for i in first["data"]], first["has_more"]) == (["a", "b"], True)
        rest = (await client.get(f"{read.id}/input_items?order=asc&after={first['last_id']}")).json
        assert [i["content"][0]["text"] for i in rest["data"]] == ["c"]
        none = (await client.get(f"{read.id}/input_items?order=asc&after={rest['last_id']}")).json
        assert (none["data"], none["first_id"], none["last_id"]) == ([], None, None)
        assert (await client.get(f"{read.id}/input_items?limit=101")).error["param"] == "limit"
        assert (await client.get(f"{read.id}/input_items?limit=x")).error["param"] == "limit"
        assert (await client.get(f"{read.id}/input_items?after=nothing")).status == 404


@pytest.mark.parametrize("kept", [True, None], ids=["kept upstream", "not kept upstream"])
async def test_a_response_is_deleted(kept: bool | None) -> None:
    """``DELETE`` removes the response and its turns at the upstream; later requests go to the upstream."""
    gone = whole(b'{"id":"x","object":"response","deleted":true}')
    missing = whole(
        b'{"error":{"message":"Not found","type":"x","param":null,"code":null}}', status="404 Not Found"
    )
    scripts = [
        stream(NOW, store=kept),
        stream(NOON, id="resp_2", store=kept),
        *([gone, missing] if kept else []),
    ]
    async with client_of(*scripts, missing) as client:
        read = await finished_run(client)
        answer = await client.get(read.id, "DELETE")
        assert answer.json == {"id": read.id, "object": "response", "deleted": True}
        deleted = sorted(r.target for r in client.upstream.requests if r.method == "DELETE")
        assert deleted == ([f"{PATH}/resp_1", f"{PATH}/resp_2"] if kept else [])
        assert all(r.header("authorization") for r in client.upstream.requests)
        assert (await client.get(read.id)).status == 404
        assert client.upstream.requests[-1].method == "GET"


async def test_an_upstream_that_does_not_delete() -> None:
    """If the upstream cannot delete its part, the proxy still deletes the response."""
    async with client_of(stream(NOW, store=True), stream(NOON, id="resp_2", store=True), [RESET]) as client:
        read = await finished_run(client)
        assert (await client.get(read.id, "DELETE")).json["deleted"] is True
        assert await client.proxy.services.store.find_response(read.id, "open") is None


async def test_only_what_runs_in_the_background_can_be_cancelled() -> None:
    """``/cancel`` of a composed response is a 400 that names the field."""
    async with client_of(stream(NOW), stream(NOON, id="resp_2")) as client:
        read = await finished_run(client)
        answer = await client.get(f"{read.id}/cancel", "POST")
        assert (answer.status, answer.error["param"]) == (400, "response_id")


async def test_another_caller_sees_nothing() -> None:
    """Rule R4: another caller can neither find nor delete a response by its id."""
    async with client_of(stream(NOW), stream(NOON, id="resp_2")) as client:
        read = await finished_run(client)
        store = client.proxy.services.store
        assert await store.find_response(read.id, "open") is not None
        assert await store.find_response(read.id, "somebody else") is None
        assert await store.delete_response(read.id, "somebody else") is False


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/responses/resp_foreign?include[]=x"),
        ("DELETE", "/responses/resp_foreign"),
        ("POST", "/responses/resp_foreign/cancel"),
        ("GET", "/responses/resp_foreign/input_items?limit=5"),
        ("POST", "/responses/compact"),
        ("POST", "/responses/input_tokens"),
        ("POST", "/conversations"),
        ("GET", "/conversations/conv_1/items"),
        ("DELETE", "/conversations/conv_1"),
    ],
)
async def test_what_is_not_ours_passes(method: str, path: str) -> None:
    """Unknown ids and other endpoints pass with method, path, query and body, and so does the answer."""
    body = {"model": "m", "input": "hi"} if method == "POST" else None
    async with client_of(whole(b'{"x":1.0}')) as client:
        answer = await client.proxy.ask(body, method=method, path=f"/v1{path}")
        assert (answer.status, answer.body) == (200, b'{"x":1.0}')
        (request,) = client.upstream.requests
        assert (request.method, request.target) == (method, f"/v1{path}")
        assert (json.loads(request.body) if request.body else None) == body


# store: false.


async def test_what_is_not_stored_leaves_nothing(tmp_path: Path) -> None:
    """With ``store: false`` the record has redacted rows of runs and calls, and no conversation text."""
    file = tmp_path / "t.db"
    config = {"store": {"url": f"sqlite:///{file}"}}
    ask = {**MIXED, "store": False, "input": "SECRET-QUESTION"}
    async with client_of(
        stream(function_call("call_e", ECHO, '{"text":"SECRET-ARG"}')),
        stream(message("SECRET-ANSWER"), id="resp_2"),
        stream(NOW, MINE, id="resp_3"), whole(b"{}", status="404 Not Found"), **config,
    ) as client:  # fmt: skip
        read = await client.said(ask, hidden=(ECHO,))
        await client.said(ask, hidden=CARRIED)
        assert (await client.get(read.id)).status == 404
        assert client.upstream.requests[-1].target == f"{PATH}/{read.id}"
    with sqlite3.connect(file) as db:
        counts = {
            table: db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("messages", "suspended_turns", "responses", "tool_invocations")
        }
    db.close()
    assert counts == {"messages": 0, "suspended_turns": 0, "responses": 0, "tool_invocations": 2}
    files = [part for part in tmp_path.iterdir() if part.is_file()]  # noqa: ASYNC240 (nothing else runs)
    assert file in files
    raw = b"".join(part.read_bytes() for part in files)
    for word in (b"SECRET-QUESTION", b"SECRET-ANSWER", b"hidden-output"):
        assert word not in raw


async def test_what_is_stored_is_known_after_a_restart(tmp_path: Path) -> None:
    """Another process with the same file can return a stored response and continue it."""
    config = {"store": {"url": f"sqlite:///{tmp_path / 't.db'}"}}
    async with client_of(stream(NOW), stream(NOON, id="resp_2"), **config) as client:
        read = await finished_run(client)
    async with client_of(stream(NOON, id="resp_3"), **config) as client:
        assert (await client.get(read.id)).json == read.response
        await client.ask({**ASK, "input": "so?", "previous_response_id": read.id})
        assert len(client.asked(1)["input"]) == 5


# Background requests and mistakes.


async def test_a_background_request_passes() -> None:
    """A background request without server tools goes to the upstream unchanged."""
    async with client_of(stream(NOON)) as client:
        ask = {**ASK, "background": True}
        assert (await client.ask(ask, {"x-toolrelay-tools": "none"})).body == turn(NOON) + DONE
        assert client.asked(1) == ask


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"input": [output("call_x", "7")]}, "input[0].call_id"),
        ({"input": 7}, "input"),
        ({"tools": [function("a"), function("a")]}, "tools[1].name"),
    ],
)
async def test_a_clients_mistake(more: dict[str, Any], param: str) -> None:
    """Rule E1: a client's mistake gets a 400 that names the field, and no upstream is asked."""
    async with client_of(stream(NOON)) as client:
        answer = await client.ask({**ASK, **more})
        assert (answer.status, answer.error["param"]) == (400, param)
        assert client.upstream.requests == []


def refusal_of(text: str, code: str = "invalid_request_error", status: str = "400 Bad Request") -> list[Step]:
    """Return an upstream's error."""
    error = {"message": text, "type": "invalid_request_error", "param": None, "code": code}
    return whole(json.dumps({"error": error}).encode(), status=status)


THINK = reasoning("hm", encrypted_content="stale")


async def test_stale_reasoning_is_left_out_once() -> None:
    """If the upstream cannot read encrypted reasoning, the proxy repeats any turn without it."""
    stale = refusal_of("The encrypted content could not be verified.", "invalid_encrypted_content")
    ask = {**ASK, "store": False, "input": [user("a"), THINK, message("b"), user("c")]}
    async with client_of(stale, stream(THINK, NOW), stream(NOON, id="resp_2")) as client:
        assert (await client.said(ask)).text == "It is noon."
        assert client.asked(2)["input"] == [user("a"), message("b"), user("c")]
        assert "reasoning" not in str(client.asked(3)["input"])
    async with client_of(stream(THINK, NOW), stale, stream(NOON, id="resp_2")) as client:
        assert (await client.said({**ASK, "store": False})).text == "It is noon."
        assert [item.get("type") for item in client.asked(3)["input"]] == [
            None, "function_call", "function_call_output",
        ]  # fmt: skip


async def test_reasoning_that_lost_its_item() -> None:
    """If the upstream refuses reasoning because its hidden call is missing, the proxy repeats without it."""
    lost = refusal_of("Item 'rs_1' of type 'reasoning' was provided without its required following item.")
    async with client_of(
        stream(THINK, NOW), stream(NOON, id="resp_2"), lost, stream(NOON, id="resp_3")
    ) as client:
        read = await client.said({**ASK, "store": False})
        back = [user("What time is it?"), *read.response["output"], user("so?")]
        assert (await client.ask({**ASK, "store": False, "input": back})).status == 200
        assert [item.get("type") for item in client.asked(4)["input"]] == [None, "message", None]


async def test_a_refusal_that_stays_is_the_clients_to_see() -> None:
    """If the request without reasoning is refused, too, the client gets the upstream's error."""
    stale = refusal_of("The encrypted content could not be verified.", "invalid_encrypted_content")
    async with client_of(stale) as client:
        answer = await client.ask({**ASK, "input": [user("a"), THINK, message("b")]})
        assert (answer.status, answer.error["code"]) == (400, "invalid_encrypted_content")
        assert len(client.upstream.requests) == 2


async def test_an_upstream_that_forgot_its_response() -> None:
    """If the upstream has forgotten its response, the proxy sends all items, and the run goes on."""
    lost = refusal_of("Previous response with id 'resp_1' not found.", "previous_response_not_found")
    async with client_of(stream(NOW, store=True), lost, stream(NOON, id="resp_2")) as client:
        assert (await client.said(ASK)).text == "It is noon."
        assert client.asked(2)["previous_response_id"] == "resp_1"
        assert "previous_response_id" not in client.asked(3)
        well_formed(client.asked(3)["input"])


@pytest.mark.parametrize(
    "text",
    [
        "No tool output found for function call call_1.",
        "No tool call found for function call output with id x.",
    ],
)
async def test_a_missing_output_is_no_model_without_tools(text: str) -> None:
    """An error about a missing call or output does not turn off the tools for later requests."""
    async with client_of(refusal_of(text), stream(NOON)) as client:
        assert (await client.ask(ASK)).error["message"] == text
        await client.ask(ASK)
        assert [TIME in str(client.asked(n)["tools"]) for n in (1, 2)] == [True, True]


async def test_a_model_without_tools_is_asked_again() -> None:
    """If the model refuses tools, the proxy repeats the request without them and remembers that."""
    refused = refusal_of("This model does not support tools.")
    async with client_of(refused, stream(NOON), stream(NOON)) as client:
        assert (await client.ask(ASK)).body == turn(NOON, tools=[]) + DONE
        assert "tools" not in client.asked(2)
        await client.ask(ASK)
        assert "tools" not in client.asked(3)


# Upstreams that fail.


async def test_an_error_before_anything_was_sent() -> None:
    """Rule E2: an error before the first byte reaches the client with the upstream's status and body."""
    body = b'{"error":{"message":"Slow down","type":"x","param":null,"code":"rate_limit"}}'
    async with client_of(whole(body, "Retry-After: 7", status="429 Too Many Requests")) as client:
        answer = await client.ask(ASK)
        assert (answer.status, answer.body, answer.header("retry-after")) == (429, body, "7")


HEAD = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
SECOND = encode([*opening(id="resp_2"), *item_events(message("It is noon."), 0)[:4]])


@pytest.mark.parametrize(
    ("second", "code"),
    [
        ([HEAD, chunk(SECOND), RESET], "upstream_broken"),
        ([HEAD, chunk(SECOND), b"0\r\n\r\n"], "upstream_broken"),
        ([RESET], None),
        (refusal_of("No.", "content_policy"), "content_policy"),
        (whole(b"<html>oops</html>", content_type="text/html", status="400 Bad Request"), "upstream_error"),
        (whole(b"{}"), "upstream_malformed"),
        (chunked(encode([*opening(), {"type": "error", "code": "c1", "message": "No."}])), "c1"),
        (chunked(encode([*opening(), {"type": "error", "error": {"code": "c2", "message": "No."}}])), "c2"),
        (stream(status="failed", error={"code": "server_error", "message": "No."}), "server_error"),
        (stream(status="cancelled"), "cancelled"),
    ],
)
async def test_a_later_turn_fails(second: list[Step], code: str | None) -> None:
    """If a later turn fails, the client gets ``response.failed`` and the output so far; nothing is stored."""
    async with client_of(stream(message("Wait."), NOW), second, served={"retries": 0}) as client:
        answer = await client.ask(ASK)
        assert answer.clean
        read = check_response_stream(answer.body, hidden=(*HIDDEN, "<html>"))
        assert read.id == "resp_1"
        assert read.response["status"] == "failed"
        assert read.response["output"][0] == message("Wait.")
        assert read.error is not None
        if code is not None:
            assert read.error["code"] == code
        assert (await client.proxy.run_reaches("failed")).run.error_code
        assert await client.proxy.services.store.find_response("resp_1", "open") is None


async def test_a_later_turn_is_tried_again() -> None:
    """Rule E2: the proxy retries a later turn after a 500, because no SDK can do it."""
    broken = refusal_of("Oops.", status="500 Internal Server Error")
    async with client_of(stream(NOW), broken, stream(NOON, id="resp_2"), served={"retries": 1}) as client:
        assert (await client.said(ASK)).text == "It is noon."


@pytest.mark.parametrize("allow", [(), ("core__*",)], ids=["none offered", "offered"])
@pytest.mark.parametrize("end", [[RESET], []], ids=["reset", "closed"])
async def test_a_first_turn_breaks(allow: tuple[str, ...], end: list[Step]) -> None:
    """If the first turn breaks off, the client gets its complete events, an error and one end mark."""
    data = encode([*opening(), *item_events(NOON, 0)[:4]])
    async with client_of([HEAD, chunk(data + b"event: half"), *end], allow=allow) as client:
        answer = await client.ask(ASK)
        assert answer.clean
        assert answer.body.startswith(data)
        assert answer.body.endswith(DONE)
        assert answer.body.count(b"[DONE]") == 1
        assert b"event: error" in answer.body
        assert b"response.completed" not in answer.body
        assert b"half" not in answer.body
        if allow:
            read = check_response_stream(answer.body)
            assert read.response["output"][0]["status"] == "incomplete"
            assert read.response["output"][0]["content"][0]["text"] == "It is "


async def test_a_call_that_was_cut_off_is_not_run(watch: Watch) -> None:
    """Rule W7: a call that a broken connection or a limit of tokens cuts off does not run."""
    call = function_call("call_e", ECHO, '{"text":"a"}')
    half = encode([*opening(), *item_events(call, 0)[:2]])
    async with client_of([HEAD, chunk(half), RESET]) as client:
        read = check_response_stream((await client.ask(ASK)).body, hidden=(ECHO,))
        assert read.response["status"] == "failed"
    details = {"reason": "max_output_tokens"}
    async with client_of(stream(call, status="incomplete", incomplete_details=details)) as client:
        read = check_response_stream((await client.ask(ASK)).body, hidden=(ECHO,))
        assert (read.response["status"], read.response["incomplete_details"]) == ("incomplete", details)
        assert len(client.upstream.requests) == 1
    assert watch.started == []


async def test_a_failed_first_response_passes() -> None:
    """If the upstream's first response fails, the client gets it unchanged, with an end mark."""
    events = [*opening(), {"type": "error", "error": {"code": "insufficient_quota", "message": "No."}}]
    events.append(closing(status="failed", error={"code": "insufficient_quota", "message": "No."}))
    async with client_of(chunked(encode(events))) as client:
        assert (await client.ask(ASK)).body == encode(events) + DONE
        assert (await client.proxy.run_reaches("failed")).run.error_code == "insufficient_quota"


async def test_a_reply_fails_before_its_first_byte() -> None:
    """Without a stream, a failure is a status; after a side effect clients must not retry it (rule E3)."""
    buy = function_call("call_b", "probe_tools__buy", '{"what":"a"}')
    async with client_of(reply(buy), refusal_of("No.", "bad"), served={"retries": 0}) as client:
        answer = await client.ask({**ASK, "stream": False})
        assert (answer.status, answer.error["code"]) == (400, "bad")
        assert answer.header("x-should-retry") == "false"


async def test_a_client_that_leaves(watch: Watch) -> None:
    """Rule E4: when the client leaves, the upstream call ends, the run is cancelled and nothing is stored."""
    async with client_of([HEAD, chunk(encode(opening())), HANG], **ONLY_DEPARTURE) as client:
        async with client.proxy.sent(ASK, path=PATH) as conversation:
            await conversation.reader.readuntil(b"in_progress")
            conversation.leave()
        await client.upstream.all_closed()
        assert (await client.proxy.run_reaches("cancelled")).run.error_code == "client_gone"
    async with client_of(stream(function_call("call_w", "probe_tools__slow")), **ONLY_DEPARTURE) as client:
        async with client.proxy.sent(ASK, path=PATH) as conversation:
            await watch.has_started.wait()
            conversation.leave()
        await client.proxy.run_reaches("cancelled")
        assert watch.cancelled == ["slow"]
        assert await client.proxy.services.store.find_response("resp_1", "open") is None


# What the upstream gets.


@pytest.mark.accepts("responses-fields", "responses-members", why="the members are made up")
async def test_what_the_upstream_is_asked_is_the_clients_own(watch: Watch) -> None:
    """Headers, query and the bytes of the client's items are the same in each request to the upstream."""
    raw = b'{"model":"m","stream":true,"input":[{"role":"user","content":"a\\u00e9","x":1.0}],'
    raw += b'"seed":12345678901234567890}'
    async with client_of(stream(NOW), stream(NOON, id="resp_2")) as client:
        answer = await client.proxy.ask(raw, {"openai-beta": "own=1"}, path=f"{PATH}?beta=b")
        check_response_stream(answer.body, hidden=HIDDEN)
        requests: list[RawRequest] = client.upstream.requests
        for request in requests:
            assert b'{"role":"user","content":"a\\u00e9","x":1.0}' in request.body
            assert b'"seed":12345678901234567890' in request.body
            assert request.target == f"{PATH}?beta=b"
            assert request.header("openai-beta") == "own=1"
    assert watch.started == []


def test_the_script_is_as_the_recordings() -> None:
    """The scripted upstream of these tests keeps to the rules of Responses."""
    read = check_response_stream(turn(reasoning("hm"), message("a"), MINE) + DONE, complete=False)
    assert read.response == resource([reasoning("hm"), message("a"), MINE])
