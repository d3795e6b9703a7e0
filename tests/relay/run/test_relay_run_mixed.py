"""Turns that call both server tools and client tools: what the client gets, and what is restored later."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from chat_script import call, chunk_of, content, finish, payloads_of, reply, role, stream, text_of, usage
from looping import ANSWER, ASK, CLIENT_TOOL, TIME, called, looping, messages_of, one_loop
from msgspec.structs import replace
from probe_tools import Watch
from raw_upstream import RawUpstream
from running_proxy import make_config, running

from proxy.relay.memory.hidden.history import History, LastTurn
from proxy.store.sqlite.memory import MemoryStore
from proxy.wires.chat.wire import ChatWire
from proxy.wires.upstream_port import SuspendedCall

UTC = '{"timezone":"UTC"}'
NOON = '{"timezone":"UTC","iso":"2026-11-21T12:00:00+00:00"}'
HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
MIXED_ASK = {**ASK, "tools": [CLIENT_TOOL]}
SERVER, CLIENT = ("call_s", TIME, UTC), ("call_c", "mine", '{"a":1}')


def mixed(*calls: tuple[str, str, str], streaming: bool = True, text: str = "") -> Any:
    """Return a turn that calls tools of both sides."""
    if not streaming:
        return reply(text or None, *calls)
    said = [content(text)] if text else []
    fragments = [call(i, n, a, at) for at, (i, n, a) in enumerate(calls)]
    return stream(role(), *said, *fragments, finish("tool_calls"))


def client_message(body: bytes, streaming: bool) -> dict[str, Any]:
    """Return the assistant message that an SDK would keep of an answer and send back."""
    if not streaming:
        return dict(json.loads(body)["choices"][0]["message"])
    chunks = payloads_of(body)
    calls: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            for piece in choice["delta"].get("tool_calls", ()):
                if "id" in piece:
                    assert piece["type"] == "function"
                    opened = {"name": piece["function"]["name"], "arguments": ""}
                    calls[piece["index"]] = {"id": piece["id"], "type": "function", "function": opened}
                calls[piece["index"]]["function"]["arguments"] += piece["function"].get("arguments", "")
    message = {"role": "assistant", "content": text_of(chunks) or None}
    return {**message, "tool_calls": list(calls.values())} if calls else message


def back(message: dict[str, Any], *results: tuple[str, str]) -> list[dict[str, Any]]:
    """Return the client's next messages, with the null fields that an SDK adds to the model's message."""
    echoed = {**message, "refusal": None, "annotations": [], "audio": None}
    return [*HI, echoed, *[{"role": "tool", "tool_call_id": i, "content": c} for i, c in results]]


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("calls", [(SERVER, CLIENT), (CLIENT, SERVER)], ids=["server first", "client first"])
async def test_a_mixed_turn_there_and_back(streaming: bool, calls: Any) -> None:
    """Rules W5, W8: the client sees only its own call; its next request has all calls and results."""
    ask = {**MIXED_ASK, "stream": streaming}
    answer_turn = ANSWER if streaming else reply("It is noon.")
    async with looping(mixed(*calls, streaming=streaming, text="Wait."), answer_turn) as (proxy, upstream):
        answer = await proxy.ask(ask)
        message = client_message(answer.body, streaming)
        assert [c["function"] for c in message["tool_calls"]] == [{"name": "mine", "arguments": '{"a":1}'}]
        assert message["tool_calls"][0]["id"] == "call_c"
        assert message["content"] == "Wait."
        assert b"core__" not in answer.body
        last = payloads_of(answer.body)[-1] if streaming else answer.json
        assert last["choices"][0]["finish_reason"] == "tool_calls"
        assert (await proxy.run_reaches("suspended")).run.finish_reason == "tool_calls"
        assert len(upstream.requests) == 1

        returned = await proxy.ask({**ask, "messages": back(message, ("call_c", "mine says 7"))})
        assert returned.status == 200
        messages = messages_of(upstream.requests[1])
        assert [m["role"] for m in messages] == ["user", "assistant", "tool", "tool"]
        assert [c["id"] for c in messages[1]["tool_calls"]] == [c[0] for c in calls]
        results = {m["tool_call_id"]: m["content"] for m in messages[2:]}
        assert results == {"call_s": NOON, "call_c": "mine says 7"}
        assert [m["tool_call_id"] for m in messages[2:]] == [c[0] for c in calls]


async def test_asking_again_from_the_same_place() -> None:
    """A held turn can be restored twice, so that the client can ask again from the same place."""
    async with looping(mixed(SERVER, CLIENT), ANSWER) as (proxy, upstream):
        message = client_message((await proxy.ask(MIXED_ASK)).body, True)
        ask = {**MIXED_ASK, "messages": back(message, ("call_c", "7"))}
        for turn in (1, 2):
            await proxy.ask(ask)
            assert len(messages_of(upstream.requests[turn])) == 4
        assert upstream.requests[1].body == upstream.requests[2].body


async def test_the_conversation_goes_on_after_a_mixed_turn() -> None:
    """A later request restores the held turn in its place, before what was said since."""
    async with looping(mixed(SERVER, CLIENT), ANSWER) as (proxy, upstream):
        message = client_message((await proxy.ask(MIXED_ASK)).body, True)
        later = [
            *back(message, ("call_c", "7")),
            {"role": "assistant", "content": "It is noon."},
            {"role": "user", "content": "thanks"},
        ]
        await proxy.ask({**MIXED_ASK, "messages": later})
        roles = [m["role"] for m in messages_of(upstream.requests[1])]
        assert roles == ["user", "assistant", "tool", "tool", "assistant", "user"]


async def test_another_conversation_does_not_get_the_held_turn() -> None:
    """The proxy does not restore a held turn in another conversation that has the same call ids."""
    async with looping(mixed(SERVER, CLIENT), ANSWER) as (proxy, upstream):
        message = client_message((await proxy.ask(MIXED_ASK)).body, True)
        other = back(message, ("call_c", "7"))
        other[0] = {"role": "user", "content": "something else"}
        await proxy.ask({**MIXED_ASK, "messages": other})
        assert [m["role"] for m in messages_of(upstream.requests[1])] == ["user", "assistant", "tool"]
        assert json.loads(upstream.requests[1].body)["messages"] == other


async def test_another_set_of_ids_does_not_get_the_held_turn() -> None:
    """The proxy does not restore a held turn if the client's call ids are not the same."""
    async with looping(mixed(SERVER, CLIENT), ANSWER) as (proxy, upstream):
        message = client_message((await proxy.ask(MIXED_ASK)).body, True)
        message["tool_calls"][0]["id"] = "call_x"
        await proxy.ask({**MIXED_ASK, "messages": back(message, ("call_x", "7"))})
        assert len(json.loads(upstream.requests[1].body)["messages"]) == 3


async def test_another_caller_does_not_get_the_held_turn() -> None:
    """Rule R4: a turn that is held for one caller is never restored for another."""
    store = MemoryStore()
    await store.start()
    history, wire = History(store), ChatWire()
    payload = {"model": "m", "messages": HI, "tools": [CLIENT_TOOL]}
    asked = wire.parse(payload)
    message = {"role": "assistant", "content": None, "tool_calls": [called_object("call_c")]}
    turn = LastTurn(
        run_id="run_1",
        caller="alice",
        wire="chat",
        message=json.dumps(message).encode(),
        calls=[SuspendedCall("call_c", "call_c", None)],
        mask=lambda name, arguments: arguments,
    )
    editor = wire.editor(json.dumps(payload).encode(), asked)
    await history.hold(asked, editor, turn, visible="", shown=[])
    payload["messages"] = back(message, ("call_c", "7"))
    asked = wire.parse(payload)
    for caller, restored in (("bob", 0), ("alice", 1), ("alice", 1)):
        editor = wire.editor(json.dumps(payload).encode(), asked)
        assert (await history.restore(asked, editor, caller)).turns == restored
    # The proxy checks the caller even of a row under the right key.
    (returned,) = asked.returned_calls()
    held = await store.find_suspended(
        asked.conversation_key("alice", returned.call_ids, upto=returned.position)
    )
    assert held is not None
    store.put_suspended(replace(held, caller="mallory", created_at=held.created_at + 1))
    editor = wire.editor(json.dumps(payload).encode(), asked)
    assert (await history.restore(asked, editor, "alice")).turns == 0
    await store.aclose()


def called_object(call_id: str) -> dict[str, Any]:
    """Return a call of the client's tool as it is in a message."""
    return {"id": call_id, "type": "function", "function": {"name": "mine", "arguments": "{}"}}


async def test_ids_that_the_upstream_uses_again_are_told_apart() -> None:
    """Rule W8: the client gets a new id for one that its history has already; the upstream keeps its own."""
    first = mixed(("time:0", TIME, UTC), ("mine:0", "mine", '{"a":1}'))
    second = mixed(("time:0", TIME, UTC), ("mine:0", "mine", '{"a":2}'))
    async with looping(first, second, ANSWER) as (proxy, upstream):
        one = client_message((await proxy.ask(MIXED_ASK)).body, True)
        assert one["tool_calls"][0]["id"] == "mine:0"
        so_far = back(one, ("mine:0", "first"))
        two = client_message((await proxy.ask({**MIXED_ASK, "messages": so_far})).body, True)
        minted = two["tool_calls"][0]["id"]
        assert minted != "mine:0"
        answer = {"role": "tool", "tool_call_id": minted, "content": "second"}
        await proxy.ask({**MIXED_ASK, "messages": [*so_far, two, answer]})
        messages = messages_of(upstream.requests[2])
        assert [m["role"] for m in messages] == ["user", *["assistant", "tool", "tool"] * 2]
        assert [c["id"] for c in messages[4]["tool_calls"]] == ["time:0", "mine:0"]
        assert [(m["tool_call_id"], m["content"]) for m in messages if m["role"] == "tool"] == [
            ("time:0", NOON), ("mine:0", "first"), ("time:0", NOON), ("mine:0", "second")
        ]  # fmt: skip


async def test_a_hidden_turn_before_a_client_turn() -> None:
    """Hidden turns before a client call are restored in order, together with its turn."""
    async with looping(called(SERVER), called(CLIENT), ANSWER) as (proxy, upstream):
        answer = await proxy.ask(MIXED_ASK)
        message = client_message(answer.body, True)
        assert [c["id"] for c in message["tool_calls"]] == ["call_c"]
        await proxy.ask({**MIXED_ASK, "messages": back(message, ("call_c", "7"))})
        messages = messages_of(upstream.requests[2])
        assert [m["role"] for m in messages] == ["user", "assistant", "tool", "assistant", "tool"]


async def test_client_turns_alone_leave_nothing_behind() -> None:
    """Rule W2: a turn with only client calls is not held, and the client's next request passes unchanged."""
    async with looping(called(CLIENT), ANSWER) as (proxy, upstream):
        await proxy.ask(MIXED_ASK)
        message = {"role": "assistant", "content": None, "tool_calls": [called_object("call_c")]}
        sent = back(message, ("call_c", "7"))
        await proxy.ask({**MIXED_ASK, "messages": sent})
        assert json.loads(upstream.requests[1].body)["messages"] == sent


async def test_a_mixed_last_turn_is_well_formed_when_the_client_returns() -> None:
    """Rule T7: server calls of a last turn get a result, so that the client's next request is well-formed."""
    first = called(SERVER)
    async with looping(first, mixed(SERVER, CLIENT), ANSWER, tools={"max_turns": 1}) as (proxy, upstream):
        message = client_message((await proxy.ask(MIXED_ASK)).body, True)
        await proxy.ask({**MIXED_ASK, "messages": back(message, ("call_c", "7"))})
        messages = messages_of(upstream.requests[2])
        assert [m["role"] for m in messages] == ["user", "assistant", "tool", "assistant", "tool", "tool"]
        assert json.loads(messages[4]["content"])["error_code"] == "budget_exhausted"


async def test_a_turn_is_held_in_a_file_across_a_restart(tmp_path: Any) -> None:
    """Another proxy with the same record restores the turn that the first one held."""
    url = f"sqlite:///{tmp_path}/record.db"
    async with RawUpstream(mixed(SERVER, CLIENT), ANSWER) as upstream:
        config = make_config(upstream.url, store={"url": url})
        async with running(config) as proxy:
            message = client_message((await proxy.ask(MIXED_ASK)).body, True)
        async with running(config) as proxy:
            await proxy.ask({**MIXED_ASK, "messages": back(message, ("call_c", "7"))})
        assert len(messages_of(upstream.requests[1])) == 4


def history_of(*messages: dict[str, Any]) -> dict[str, Any]:
    """Return a request with these messages after the user's."""
    return {**MIXED_ASK, "messages": [*HI, *messages]}


ASSISTANT = {"role": "assistant", "content": None, "tool_calls": [called_object("call_c")]}
RESULT = {"role": "tool", "tool_call_id": "call_c", "content": "7"}
WRONG = {
    "orphan": (history_of(RESULT), "messages[1].tool_call_id"),
    "doubled": (history_of(ASSISTANT, RESULT, RESULT), "messages[3].tool_call_id"),
    "of another": (history_of(ASSISTANT, {**RESULT, "tool_call_id": "x"}), "messages[2].tool_call_id"),
    "no id": (history_of(ASSISTANT, {"role": "tool", "content": "7"}), "messages[2].tool_call_id"),
    "blank id": (history_of(ASSISTANT, {**RESULT, "tool_call_id": ""}), "messages[2].tool_call_id"),
    "id no text": (history_of(ASSISTANT, {**RESULT, "tool_call_id": 7}), "messages[2].tool_call_id"),
    "of a server call": (
        history_of(
            {
                "role": "assistant",
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": TIME, "arguments": UTC}}],
            },
            {**RESULT, "tool_call_id": "c"},
        ),
        "messages[2].tool_call_id",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_results_that_answer_nothing_are_refused(wrong: str) -> None:
    """Rule E1: a result without its call gets a 400 that names the field, and no upstream is asked."""
    ask, param = WRONG[wrong]
    answer, requests = await one_loop(ANSWER, ask=ask)
    assert answer.status == 400
    assert answer.error["param"] == param
    assert answer.error["type"] == "invalid_request_error"
    assert requests == []


async def test_an_alias_is_run_here(watch: Watch) -> None:
    """If a client declares an alias, the proxy sends its own schema under that name and runs its tool."""
    alias = {
        "type": "function",
        "function": {"name": "say", "parameters": {"type": "object", "properties": {}}},
    }
    answer, requests = await one_loop(
        called(("call_1", "say", '{"text":"a"}')),
        ANSWER,
        ask={**ASK, "tools": [CLIENT_TOOL, alias]},
        tools={"aliases": {"say": "probe_tools__echo"}, "inject": False},
    )
    assert watch.started == ["echo"]
    tools = json.loads(requests[0].body)["tools"]
    assert tools[0] == CLIENT_TOOL
    assert tools[1]["function"]["name"] == "say"
    assert tools[1]["function"]["parameters"]["required"] == ["text"]
    assert len(tools) == 2
    assert text_of(payloads_of(answer.body)) == "It is noon."
    assert messages_of(requests[1])[1]["tool_calls"][0]["function"]["name"] == "say"


async def test_the_clients_function_wins_a_clash(watch: Watch) -> None:
    """If a client declares a server tool's name, it gets the calls; the record says why ours is missing."""
    echo = {
        "type": "function",
        "function": {"name": "probe_tools__echo", "parameters": {"type": "object", "properties": {}}},
    }
    async with looping(called(("call_1", "probe_tools__echo", "{}"))) as (proxy, upstream):
        answer = await proxy.ask({**ASK, "tools": [echo]})
        message = client_message(answer.body, True)
        assert message["tool_calls"][0]["id"] == "call_1"
        assert watch.started == []
        declared = json.loads(upstream.requests[0].body)["tools"]
        assert declared[0] == echo
        assert [t["function"]["name"] for t in declared].count("probe_tools__echo") == 1
        withheld = (await proxy.only_run()).run.withheld
        assert "client declared" in withheld["probe_tools__echo"]


async def test_one_name_twice_is_refused() -> None:
    """Rule E1: a function that is declared twice gets a 400 that names it."""
    answer, requests = await one_loop(ANSWER, ask={**ASK, "tools": [CLIENT_TOOL, CLIENT_TOOL]})
    assert answer.status == 400
    assert answer.error["param"] == "tools[1].function.name"
    assert requests == []


@pytest.mark.parametrize("native", [(), ("custom",)], ids=["asked with a function", "asked with its type"])
async def test_custom_tools_of_the_client_stay_theirs(native: Sequence[str]) -> None:
    """A call of a client's custom tool reaches the client in its own form beside a hidden call, also if the
    upstream was asked with a function; and the client's next request restores the turn."""
    custom = {"type": "custom", "custom": {"name": "grep", "description": "d"}}
    call_c = {"id": "call_c", "type": "custom", "custom": {"name": "grep", "input": "x.*"}}
    first = stream(
        role(), call("call_s", TIME, UTC), chunk_of({"tool_calls": [{"index": 1, **call_c}]}),
        finish("tool_calls"), usage(1, 1),
    )  # fmt: skip
    ask = {**ASK, "tools": [custom]}
    async with looping(first, ANSWER, served={"native": native}) as (proxy, upstream):
        answer = await proxy.ask(ask)
        pieces = [
            piece
            for c in payloads_of(answer.body)
            for choice in c["choices"]
            for piece in choice["delta"].get("tool_calls", ())
        ]
        assert pieces[0]["id"] == "call_c"
        assert pieces[0]["type"] == "custom"
        assert "".join(p["custom"].get("input", "") for p in pieces) == "x.*"
        said = {"role": "assistant", "content": None, "tool_calls": [call_c]}
        result = {"role": "tool", "tool_call_id": "call_c", "content": "found"}
        await proxy.ask({**ask, "messages": [*ask["messages"], said, result]})
        declared, asked = (json.loads(upstream.requests[-1].body)[name] for name in ("tools", "messages"))
    kind = "custom" if native else "function"
    assert declared[0]["type"] == kind
    ours, theirs = next(message["tool_calls"] for message in asked if message["role"] == "assistant")
    assert (ours["id"], theirs["type"]) == ("call_s", kind)
    assert theirs[kind] == call_c["custom"] if native else theirs[kind]["arguments"] == '{"input":"x.*"}'
