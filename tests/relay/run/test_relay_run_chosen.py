"""Server tools that the body of a request chooses, for each pair of dialects."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from looping import ECHO, TIME
from pair_kits import PAIRS, SPEAKERS, Call, Message, Speaker, Turn
from raw_upstream import RawRequest, RawUpstream, Step, whole
from responding import Client, client_of
from responses_check import Reading, check_response_stream
from responses_script import function, function_call, message, reply, stream
from running_proxy import Proxy, make_config, running

from proxy.relay.routing.fallback import fallback_rules_of

ECHOED = Call("call_s", ECHO, {"text": "noon"})
ENTRY = {
    "type": "mcp",
    "server_label": "probe",
    "server_url": "toolrelay/probe_tools",
    "allowed_tools": ["echo"],
    "require_approval": "never",
}
SINGLE = {"type": f"toolrelay:{ECHO}"}
SAYS = [Message("user", "What time is it?")]
ASK: dict[str, Any] = {"model": "m", "stream": True, "input": "What time is it?", "tools": [ENTRY]}
CALLED = function_call("call_s", ECHO, '{"text":"noon"}')
NOON = message("It is noon.", id="msg_2")


@asynccontextmanager
async def between(upstream: Speaker) -> AsyncIterator[tuple[Proxy, RawUpstream]]:
    """A proxy before an upstream of one dialect, whose model calls the proxy's tool once and then answers."""

    def model(request: RawRequest) -> list[Step]:
        body = json.loads(request.body)
        # A vendor's toolsets have no names.
        named = [tool for tool in body.get("tools", ()) if tool.get("type") != "mcp_toolset"]
        got = upstream.got({**body, "tools": named})
        turn = Turn("It is noon.") if got.results else Turn("", (ECHOED,))
        return upstream.script(turn, stream=body.get("stream", upstream.name == "ollama"))

    async with RawUpstream(model) as served:
        settings = make_config(
            {"base_url": served.url, "wires": (upstream.name,)}, modules=("probe_tools",), allow=("*",)
        )
        async with running(settings) as proxy:
            yield proxy, served


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("chosen", [ENTRY, SINGLE], ids=["server", "tool"])
@pytest.mark.parametrize(("client", "upstream"), PAIRS)
async def test_only_what_was_chosen_is_offered(
    client: str, upstream: str, chosen: dict[str, Any], streaming: bool
) -> None:
    """The upstream gets only the chosen tool, in place of the element; usage says how many calls ran."""
    asks, answers = SPEAKERS[client], SPEAKERS[upstream]
    async with between(answers) as (proxy, served):
        body = asks.ask(SAYS, stream=streaming, tools=["mine"])
        body["tools"] = [chosen, *body["tools"]]
        answer = await proxy.ask(body, path=asks.path)
        assert answer.status == 200, answer.body
        seen = asks.seen(answer, stream=streaming)
        assert (seen.text, seen.calls) == ("It is noon.", [])
        assert b'"server_tool_use_details":{"tool_calls_executed":1}' in answer.body
        for request in served.requests:
            assert b"toolrelay" not in request.body
            assert set(answers.got(json.loads(request.body)).tools) == {ECHO, "mine"}
        assert len(served.requests) == 2


@pytest.mark.parametrize("client", SPEAKERS)
async def test_a_name_that_cannot_be_had(client: str) -> None:
    """Rule E1: an unknown server name gets a 400 in the client's dialect, and no upstream is asked."""
    asks = SPEAKERS[client]
    async with between(SPEAKERS["chat"]) as (proxy, served):
        body = asks.ask(SAYS, tools=["mine"])
        body["tools"].append({**ENTRY, "server_url": "toolrelay/filez"})
        answer = await proxy.ask(body, path=asks.path)
        assert answer.status == 400
        assert "tools[1].server_url names a server that is not available: 'filez'" in asks.error(answer.json)
        assert "toolrelay/probe_tools" in asks.error(answer.json)
        assert served.requests == []


async def test_a_key_without_tools_is_told_so() -> None:
    """The proxy refuses a chosen server with a 400 even if the client may use no tools at all."""
    async with RawUpstream(reply(NOON)) as served, running(make_config(served.url, allow=())) as proxy:
        answer = await proxy.ask(ASK, path="/v1/responses")
        assert answer.status == 400
        assert answer.error["param"] == "tools[0].server_url"
        assert served.requests == []


async def test_the_connector_of_messages() -> None:
    """``mcp_servers`` with a toolset chooses the proxy's tools; the vendor's server goes to the upstream."""
    theirs = {"type": "url", "name": "deep", "url": "https://mcp.example.com/mcp"}
    async with between(SPEAKERS["anthropic"]) as (proxy, served):
        body = SPEAKERS["anthropic"].ask(SAYS)
        body["mcp_servers"] = [theirs, {"type": "url", "name": "probe", "url": "toolrelay/probe_tools"}]
        body["tools"] = [
            {"type": "mcp_toolset", "mcp_server_name": "deep"},
            {
                "type": "mcp_toolset",
                "mcp_server_name": "probe",
                "default_config": {"enabled": False},
                "configs": {"echo": {"enabled": True}},
            },
        ]
        answer = await proxy.ask(body, {"anthropic-beta": "mcp-client-2025-11-20"}, path="/v1/messages")
        assert answer.status == 200, answer.body
        assert SPEAKERS["anthropic"].seen(answer).text == "It is noon."
        sent = json.loads(served.requests[0].body)
        assert sent["mcp_servers"] == [theirs]
        assert [tool.get("name") or tool["mcp_server_name"] for tool in sent["tools"]] == ["deep", ECHO]


# ---------------------------------------------------------------- the output items of Responses

LISTED = ["response.output_item.added", "response.mcp_list_tools.in_progress",
          "response.mcp_list_tools.completed", "response.output_item.done"]  # fmt: skip
SHOWN = ["response.output_item.added", "response.mcp_call.in_progress", "response.mcp_call_arguments.delta",
         "response.mcp_call_arguments.done", "response.mcp_call.completed",
         "response.output_item.done"]  # fmt: skip
OPENED = ["response.created", "response.in_progress"]


async def passed(client: Client, body: Any, headers: Any = ()) -> Reading:
    """Send a request and read its answer, which the proxy passes on without composing it."""
    answer = await client.ask(body, headers)
    assert answer.status == 200, answer.body
    return check_response_stream(answer.body, hidden=(ECHO,), complete=False)


async def test_the_items_of_a_stream() -> None:
    """Rules W3, W4: the stream has the list of tools first, then each call, in the events of OpenAI."""
    async with client_of(stream(CALLED), stream(NOON, id="resp_2")) as client:
        read = await client.said(ASK, hidden=(ECHO,))
        assert [kind for kind in read.kinds if ".output_text" not in kind and "content_part" not in kind] == [
            *OPENED,
            *LISTED,
            *SHOWN,
            "response.output_item.added",
            "response.output_item.done",
            "response.completed",
        ]
        listed, call, said = read.response["output"]
        assert listed["id"].startswith("mcpl_toolrelay")
        assert (listed["type"], listed["server_label"]) == ("mcp_list_tools", "probe")
        (tool,) = listed["tools"]
        assert (tool["name"], tool["annotations"]) == ("echo", {"read_only": True})
        assert tool["input_schema"]["properties"].keys() == {"text"}
        opened = read.events[2]["item"]
        assert (opened["tools"], opened["id"]) == ([], listed["id"])
        assert call["id"].startswith("mcp_toolrelay")
        assert (call["server_label"], call["name"], call["status"]) == ("probe", "echo", "completed")
        assert json.loads(call["arguments"]) == {"text": "noon"}
        assert json.loads(call["output"]) == {"echo": "noon"}
        assert said["content"][0]["text"] == "It is noon."
        assert read.response["tools"] == [ENTRY]
        assert read.response["usage"] is None or "server_tool_use_details" in read.response["usage"]
        first = client.asked(1)
        assert [tool["name"] for tool in first["tools"]] == [ECHO]


async def test_the_items_of_a_whole_answer() -> None:
    """Without a stream, the answer has the list of tools, the call, the message and the count of calls."""
    async with client_of(reply(CALLED), reply(NOON, id="resp_2")) as client:
        read = await client.said({**ASK, "stream": False}, hidden=(ECHO,))
        kinds = [item["type"] for item in read.response["output"]]
        assert kinds == ["mcp_list_tools", "mcp_call", "message"]
        assert read.response["usage"]["server_tool_use_details"] == {"tool_calls_executed": 1}


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
async def test_a_model_that_calls_nothing(streaming: bool) -> None:
    """The answer has the list of tools even if the model calls none, as with OpenAI."""
    said = stream(NOON) if streaming else reply(NOON)
    async with client_of(said) as client:
        read = await client.said({**ASK, "stream": streaming}, hidden=(ECHO,))
        assert [item["type"] for item in read.response["output"]] == ["mcp_list_tools", "message"]
        assert read.text == "It is noon."


async def test_a_call_that_fails_is_shown_as_failed() -> None:
    """A failed call has the status ``failed`` and a message that clients may see."""
    entry = {**ENTRY, "allowed_tools": ["fail"]}
    called = function_call("call_s", "probe_tools__fail")
    async with client_of(stream(called), stream(NOON, id="resp_2")) as client:
        read = await client.said({**ASK, "tools": [entry]}, hidden=())
        assert "response.mcp_call.failed" in read.kinds
        (call,) = read.of_type("mcp_call")
        assert (call["status"], call["output"]) == ("failed", None)
        assert call["error"].startswith("execution_failed")


async def test_calls_of_the_client_stand_beside() -> None:
    """A turn that also calls a client tool is suspended; with the client's result the run goes on."""
    mine = function_call("call_c", "mine")
    ask = {**ASK, "tools": [function("mine"), ENTRY]}
    async with client_of(stream(CALLED, mine), stream(NOON, id="resp_2")) as client:
        read = await client.said(ask, hidden=(ECHO,))
        assert [item["type"] for item in read.response["output"]] == [
            "mcp_list_tools",
            "function_call",
            "mcp_call",
        ]
        assert read.response["tools"][1] == ENTRY
        given = {"type": "function_call_output", "call_id": "call_c", "output": "ok"}
        items = [{"role": "user", "content": ask["input"]}, *read.response["output"], given]
        after = await passed(client, {**ask, "input": items})
        assert after.text == "It is noon."
        assert after.of_type("mcp_list_tools") == []
        sent = json.dumps(client.asked(2))
        assert "toolrelay" not in sent
        assert "mcp_list_tools" not in sent


@pytest.mark.parametrize("history", ["on", "off"])
async def test_items_that_come_back(history: str) -> None:
    """When a client sends its items back, the upstream gets the model's call with its result; the client
    does not get the list of tools again."""
    async with client_of(stream(CALLED), stream(NOON, id="resp_2"), stream(NOON, id="resp_3")) as client:
        headers = {"x-toolrelay-history": history}
        read = await client.said({**ASK, "store": False}, headers, hidden=(ECHO,))
        items = [
            {"role": "user", "content": ASK["input"]},
            *read.response["output"],
            {"role": "user", "content": "?"},
        ]
        after = await passed(client, {**ASK, "store": False, "input": items}, headers)
        assert [item["type"] for item in after.response["output"]] == ["message"]
        sent = client.asked(3)["input"]
        kinds = [item.get("type", "message") for item in sent]
        assert kinds == ["message", "function_call", "function_call_output", "message", "message"]
        assert sent[1]["name"] == ECHO
        assert json.loads(sent[2]["output"]) == {"echo": "noon"}


async def test_an_item_that_was_changed_is_the_clients_word() -> None:
    """A call whose output or label the client changed goes to the model as the user's text, not as a call."""
    async with client_of(
        stream(CALLED), stream(NOON, id="resp_2"), *([stream(NOON, id="resp_3")] * 2)
    ) as client:
        read = await client.said({**ASK, "store": False}, hidden=(ECHO,))
        user = {"role": "user", "content": ASK["input"]}
        listed, call, _ = read.response["output"]
        other = {**ENTRY, "server_label": "bank", "allowed_tools": ["buy"]}
        for changed in ({"output": '{"echo":"midnight"}'}, {"server_label": "bank"}):
            items = [user, listed, {**call, **changed}, {"role": "user", "content": "?"}]
            ask = {**ASK, "store": False, "input": items, "tools": [ENTRY, other]}
            await passed(client, ask, {"x-toolrelay-history": "off"})
            sent = client.asked(len(client.upstream.requests))["input"]
            assert all(item.get("type", "message") == "message" for item in sent)
            assert sent[1]["role"] == "user"
            assert "was not made in this conversation" in sent[1]["content"]


async def test_servers_of_vendors_pass() -> None:
    """The upstream calls a vendor's server itself, and the client gets its items unchanged."""
    vendor = {"type": "mcp", "server_label": "deep", "server_url": "https://mcp.example.com/mcp"}
    theirs = {
        "id": "mcp_1", "type": "mcp_call", "status": "completed", "server_label": "deep", "name": "ask",
        "arguments": "{}", "output": "x", "error": None, "approval_request_id": None,
    }  # fmt: skip
    async with client_of(stream(theirs, CALLED), stream(NOON, id="resp_2")) as client:
        read = await client.said({**ASK, "tools": [vendor, ENTRY]}, hidden=(ECHO,))
        assert client.asked(1)["tools"][0] == vendor
        labels = [item.get("server_label") for item in read.response["output"]]
        assert labels == ["probe", "deep", "probe", None]


async def test_a_vendors_server_alone_changes_nothing() -> None:
    """Rule W1: a request that chooses only a vendor's server goes to the upstream unchanged."""
    vendor = {"type": "mcp", "server_label": "deep", "server_url": "https://mcp.example.com/mcp"}
    body = {**ASK, "tools": [vendor]}
    async with client_of(stream(NOON), allow=()) as client:
        answer = await client.ask(body)
        assert answer.status == 200
        assert json.loads(client.upstream.requests[0].body) == body


async def test_two_servers_are_told_apart() -> None:
    """Each call has the label of its own server."""
    core = {**ENTRY, "server_label": "clock", "server_url": "toolrelay/core", "allowed_tools": None}
    now = function_call("call_t", TIME, '{"timezone":"UTC"}')
    async with client_of(stream(CALLED, now), stream(NOON, id="resp_2")) as client:
        read = await client.said({**ASK, "tools": [ENTRY, core]}, hidden=(ECHO, TIME))
        calls = {(call["server_label"], call["name"]) for call in read.of_type("mcp_call")}
        assert calls == {("probe", "echo"), ("clock", "get_current_time")}
        assert [one["server_label"] for one in read.of_type("mcp_list_tools")] == ["probe", "clock"]


@pytest.mark.parametrize(
    ("client", "path"),
    [("anthropic", "/v1/messages/count_tokens"), ("responses", "/v1/responses/input_tokens")],
)
async def test_tokens_are_counted_with_what_was_chosen(client: str, path: str) -> None:
    """The provider counts the chosen tools; a wrong choice gets the same 400 as a request for an answer."""
    asks = SPEAKERS[client]
    async with RawUpstream(*[whole(b'{"input_tokens": 12}')] * 2) as served:
        settings = make_config(
            {"base_url": served.url, "wires": (client,)}, modules=("probe_tools",), allow=("*",)
        )
        async with running(settings) as proxy:
            body = asks.ask(SAYS, tools=["mine"])
            body["tools"].append(ENTRY)
            answer = await proxy.ask(body, path=path)
            assert answer.json == {"input_tokens": 12}
            assert set(asks.got(json.loads(served.requests[0].body)).tools) == {"mine", ECHO}
            assert b"toolrelay" not in served.requests[0].body
            body["tools"][-1] = {**ENTRY, "allowed_tools": ["ekko"]}
            answer = await proxy.ask(body, path=path)
            assert answer.status == 400
            assert "tools[1].allowed_tools" in asks.error(answer.json)
            # A request that chooses nothing goes on unchanged.
            plain = asks.ask(SAYS, tools=["mine"])
            await proxy.ask(plain, path=path)
            assert json.loads(served.requests[1].body) == plain


def test_a_server_of_ours_keeps_a_request_at_no_provider() -> None:
    """Another upstream may retry a failed request unless a vendor's server may have acted already."""
    vendor = {"type": "mcp", "server_label": "deep", "server_url": "https://mcp.example.com/mcp"}
    assert fallback_rules_of({"tools": [ENTRY, SINGLE]}).failed
    assert not fallback_rules_of({"tools": [ENTRY, vendor]}).failed
