"""Conversations that resemble a kept one: in any doubt the proxy sends the client's version unchanged."""

import copy
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_script import call, content, finish, reply, role, stream, text_of
from chat_script import payloads_of as chunks_of
from looping import ANSWER, ASK, CLIENT_TOOL, TIME, called, looping, messages_of
from raw_upstream import RawUpstream
from responding import PATH, client_of
from responses_script import custom, function, function_call, message, output, reasoning, user
from responses_script import reply as whole_response
from responses_script import stream as response
from running_proxy import make_config, running

from proxy.base.errors import StoreError
from proxy.base.events import ToolCall
from proxy.json.splice import elements, members
from proxy.records.rows import SuspendedTurn
from proxy.relay.memory.hidden.history import History, LastTurn
from proxy.store.sqlite.memory import MemoryStore
from proxy.wires.chat.wire import ChatWire
from proxy.wires.upstream_port import SuspendedCall

UTC = '{"timezone":"UTC"}'
CALL = called(("call_s", TIME, UTC))
BERLIN = called(("call_s", TIME, '{"timezone":"Europe/Berlin"}'))
WELCOME = stream(role(), content("Welcome."), finish())
HI = {"role": "user", "content": "hi"}
SAID = {"role": "assistant", "content": "It is noon."}
THANKS = {"role": "user", "content": "thanks"}
BYE = {"role": "user", "content": "bye"}

Edit = Callable[[dict[str, Any]], object]


def ask(*spoken: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**ASK, "messages": list(spoken), **more}


def sent(upstream: RawUpstream, number: int = -1) -> list[dict[str, Any]]:
    """Return the messages of an upstream request."""
    return messages_of(upstream.requests[number])


# Answers, on Chat Completions.


async def test_an_earlier_ambiguity_ends_the_search() -> None:
    """Rule R4: after an answer with two possible histories, the proxy restores no later turn either."""
    welcomed = {"role": "assistant", "content": "Welcome."}
    script = [CALL, ANSWER, BERLIN, ANSWER, CALL, WELCOME, WELCOME, WELCOME]
    async with looping(*script) as (proxy, upstream):
        await proxy.ask(ask(HI))
        await proxy.ask(ask(HI))
        await proxy.ask(ask(HI, SAID, THANKS))
        assert [one["role"] for one in sent(upstream)] == ["user", "assistant", "user", "assistant", "tool"]
        answer = await proxy.ask(ask(HI, SAID, THANKS, welcomed, BYE))
        assert answer.header("x-toolrelay-restored") is None
        assert [one["role"] for one in sent(upstream)] == ["user", "assistant", "user", "assistant", "user"]


TOOL = '''\
from typing import Annotated

from pydantic import Field

from proxy.tools import Redaction, tool


@tool(effect="read_only", redaction=Redaction(output=("total",)))
def add(a: Annotated[int, Field(description="{said}")]) -> dict[str, int]:
    """Add one."""
    return {{"total": a + 1}}
'''


@pytest.mark.parametrize(("said", "roles"), [("a number", 5), ("another number", 3)], ids=["same", "other"])
async def test_a_tool_with_another_schema_is_another_tool(tmp_path: Path, said: str, roles: int) -> None:
    """Rules R4, T9: if a tool's schema has changed, the proxy does not restore turns that called it."""
    add = called(("call_a", "my_tools__add", '{"a":1}'))
    module = tmp_path / "my_tools.py"
    async with RawUpstream(add, ANSWER, WELCOME) as upstream:
        for words, spoken in (("a number", [HI]), (said, [HI, SAID, THANKS])):
            module.write_text(TOOL.format(said=words))
            config = make_config(
                upstream.url,
                allow=("my_tools__*",),
                modules=(str(module),),
                store={"url": f"sqlite:///{tmp_path}/record.db"},
            )
            async with running(config) as proxy:
                await proxy.ask(ask(*spoken))
        assert len(sent(upstream)) == roles


FORGED: dict[str, dict[str, Any]] = {
    "a refusal": {"refusal": "I will not."},
    "audio": {"audio": {"id": "audio_1"}},
    "what it answers": {"tool_call_id": "call_s"},
    "another kind of part": {"content": [{"type": "image_url", "text": "It is noon."}]},
    "a refusing part": {"content": [{"type": "refusal", "text": "It is noon."}]},
    "one more part": {"content": [{"type": "text", "text": "It is noon."}, {"type": "text", "text": "!"}]},
    "no part": {"content": []},
    "no text": {"content": ""},
    "null": {"content": None},
    "a space inside": {"content": "It is  noon."},
    "another normal form": {"content": "It is no\u006f\u0308n."},
    "a list of texts": {"content": ["It is noon."]},
    "a number": {"content": 12},
    "an old call": {"function_call": {"name": "f", "arguments": "{}"}},
}


@pytest.mark.parametrize("forged", FORGED)
@pytest.mark.accepts("chat-members", "chat-parts", "json", why="the client changes its own messages")
async def test_an_answer_with_more_or_less_than_its_text_is_not_ours(forged: str) -> None:
    """Rule R4: if the client changed or extended an answer in any way, the proxy restores nothing."""
    changed = {**SAID, **FORGED[forged]}
    async with looping(CALL, ANSWER, WELCOME) as (proxy, upstream):
        await proxy.ask(ask(HI))
        await proxy.ask(ask(HI, changed, THANKS))
    assert elements(members(upstream.requests[2].body)["messages"]) == [
        json.dumps(one).encode() for one in (HI, changed, THANKS)
    ]


@pytest.mark.parametrize(
    "same",
    [
        {"content": [{"type": "text", "text": "It is noon."}]},
        {"refusal": None, "audio": None, "tool_calls": None, "function_call": None, "annotations": []},
        {"tool_calls": [], "name": None},
        {"name": "ann"},
        {"reasoning_content": "hm", "provider_specific_fields": {"refusal": None}},
    ],
)
async def test_an_answer_as_libraries_write_it_is_ours(same: dict[str, Any]) -> None:
    """An answer still counts as ours if a library wrote its text as one part or added nulls or a name."""
    async with looping(CALL, ANSWER, WELCOME) as (proxy, upstream):
        await proxy.ask(ask(HI))
        await proxy.ask(ask(HI, {**SAID, **same}, THANKS))
    assert len(sent(upstream)) == 5


@pytest.mark.parametrize("streaming", [True, False], ids=["streamed first", "whole first"])
async def test_a_stream_and_a_whole_answer_are_one(streaming: bool) -> None:
    """Rule R4: the proxy finds a streamed answer for a request without a stream, and the reverse."""
    looked = stream(role(), content("Let me look."), call("call_s", TIME, UTC), finish("tool_calls"))
    whole = [reply("Let me look.", ("call_s", TIME, UTC)), reply("It is noon."), reply("Welcome.")]
    turns = [looked, ANSWER, whole[2]] if streaming else [*whole[:2], WELCOME]
    async with looping(*turns) as (proxy, upstream):
        first = await proxy.ask(ask(HI, stream=streaming))
        text = text_of(chunks_of(first.body)) if streaming else first.json["choices"][0]["message"]["content"]
        await proxy.ask(ask(HI, {"role": "assistant", "content": text}, THANKS, stream=not streaming))
    assert [one["role"] for one in sent(upstream)] == ["user", "assistant", "tool", "assistant", "user"]


async def test_several_choices_bring_nothing_back() -> None:
    """Rule R4: the proxy restores nothing for a request for several choices, because it gets no tools."""
    async with looping(CALL, ANSWER, WELCOME) as (proxy, upstream):
        await proxy.ask(ask(HI))
        body = ask(HI, SAID, THANKS, n=2)
        await proxy.ask(body)
    assert json.loads(upstream.requests[2].body)["messages"] == body["messages"]


async def test_equal_answers_of_one_conversation_each_have_their_own() -> None:
    """Rule R4: the proxy tells two equal answers apart by the conversation before them."""
    async with looping(CALL, ANSWER, BERLIN, ANSWER, WELCOME, WELCOME) as (proxy, upstream):
        await proxy.ask(ask(HI))
        await proxy.ask(ask(HI, SAID, HI))
        await proxy.ask(ask(HI, SAID, HI, SAID, THANKS))
        zones = [
            one["tool_calls"][0]["function"]["arguments"] for one in sent(upstream) if "tool_calls" in one
        ]
        assert zones == [UTC, '{"timezone":"Europe/Berlin"}']
        # A conversation that is identical to the first one gets the first one's.
        await proxy.ask(ask(HI, SAID, THANKS))
        zones = [
            one["tool_calls"][0]["function"]["arguments"] for one in sent(upstream) if "tool_calls" in one
        ]
        assert zones == [UTC]


# Turns that wait for the client, on Chat Completions.

MINE: dict[str, Any] = {
    "id": "mine:0",
    "type": "function",
    "function": {"name": "mine", "arguments": '{"a":1}'},
}
MIXED = stream(
    role(),
    content("Wait."),
    call("call_s", TIME, UTC),
    call("mine:0", "mine", '{"a":1}', 1),
    finish("tool_calls"),
)
WAITING = {"role": "assistant", "content": "Wait.", "tool_calls": [MINE]}
RESULT = {"role": "tool", "tool_call_id": "mine:0", "content": "7"}


def of_mine(**changed: Any) -> dict[str, Any]:
    return {"tool_calls": [{**MINE, "function": {**MINE["function"], **changed}}]}


CHANGED_CALLS: dict[str, dict[str, Any]] = {
    "another text": {"content": "Do not wait."},
    "another kind of text": {"content": [{"type": "refusal", "refusal": "Wait."}]},
    "other arguments": of_mine(arguments='{"a":2}'),
    "a larger number": of_mine(arguments='{"a":1.0}'),
    "a key twice": of_mine(arguments='{"a":2,"a":1}'),
    "another name": of_mine(name="yours"),
    "another kind": {
        "tool_calls": [{"id": "mine:0", "type": "custom", "custom": {"name": "mine", "input": "x"}}]
    },
    "both kinds": {"tool_calls": [{**MINE, "custom": {"name": "mine", "input": "x"}}]},
    "the call twice": {"tool_calls": [MINE, MINE]},
    "something beside it": {"tool_calls": [MINE, {"type": "function"}]},
}


@pytest.mark.parametrize("changed", CHANGED_CALLS)
@pytest.mark.accepts("chat-answers", "chat-calls", why="the client changes its own messages")
async def test_a_call_that_the_client_changed_is_its_own(changed: str) -> None:
    """Rule R4: if the client changed its call or the text, the proxy does not restore the held turn."""
    async with looping(MIXED, WELCOME) as (proxy, upstream):
        await proxy.ask(ask(HI, tools=[CLIENT_TOOL]))
        body = ask(HI, {**WAITING, **CHANGED_CALLS[changed]}, RESULT, tools=[CLIENT_TOOL])
        answer = await proxy.ask(body)
    assert answer.header("x-toolrelay-restored") is None
    assert json.loads(upstream.requests[1].body)["messages"] == body["messages"]


@pytest.mark.parametrize(
    "same",
    [
        {},
        {"content": None},
        {"content": [{"type": "text", "text": "Wait."}]},
        of_mine(arguments=' {"a": 1}'),
        {"tool_calls": [{**MINE, "index": 0}]},
        {"content": " Wait.\n"},
        {"name": "ann"},
    ],
)
async def test_a_call_as_libraries_write_it_is_what_was_given(same: dict[str, Any]) -> None:
    """The proxy restores a held turn if the client only left out its text or added spaces or a name."""
    async with looping(MIXED, WELCOME) as (proxy, upstream):
        await proxy.ask(ask(HI, tools=[CLIENT_TOOL]))
        await proxy.ask(ask(HI, {**WAITING, **same}, RESULT, tools=[CLIENT_TOOL]))
    assert [one["role"] for one in sent(upstream)] == ["user", "assistant", "tool", "tool"]


async def test_text_put_beside_a_call_that_had_none_is_an_edit() -> None:
    """Rule R4: if the client adds text to a call that came without any, the proxy restores nothing."""
    silent = called(("call_s", TIME, UTC), ("mine:0", "mine", '{"a":1}'))
    async with looping(silent, WELCOME) as (proxy, upstream):
        await proxy.ask(ask(HI, tools=[CLIENT_TOOL]))
        await proxy.ask(ask(HI, WAITING, RESULT, tools=[CLIENT_TOOL]))
    assert len(sent(upstream)) == 3


@pytest.mark.parametrize("url", ["memory:", "sqlite"])
async def test_two_turns_that_wait_alike_go_back_to_nobody(tmp_path: Path, url: str) -> None:
    """Rule R4: if equal visible calls belong to two different held turns, the proxy restores neither."""
    berlin = stream(
        role(),
        content("Wait."),
        call("call_s", TIME, '{"timezone":"Europe/Berlin"}'),
        call("mine:0", "mine", '{"a":1}', 1),
        finish("tool_calls"),
    )
    url = url if url == "memory:" else f"sqlite:///{tmp_path}/record.db"
    back = ask(HI, WAITING, RESULT, tools=[CLIENT_TOOL])
    async with looping(MIXED, MIXED, WELCOME, berlin, WELCOME, MIXED, WELCOME, store={"url": url}) as (
        proxy,
        upstream,
    ):
        first = ask(HI, tools=[CLIENT_TOOL])
        lengths = []
        for times in (2, 1, 1):
            for _ in range(times):
                await proxy.ask(first)
            await proxy.ask(back)
            lengths.append(len(sent(upstream)))
    # The same turn twice counts as one; after the different one the doubt remains.
    assert lengths == [4, 3, 3]


async def test_an_id_used_again_for_another_call_leaves_the_newer_turn() -> None:
    """Rule R4: if a repeated request got other calls with the same ids, only the newer turn is restored."""
    other = stream(
        role(),
        content("Wait."),
        call("call_s", TIME, '{"timezone":"Europe/Berlin"}'),
        call("mine:0", "mine", '{"a":2}', 1),
        finish("tool_calls"),
    )
    async with looping(MIXED, other, WELCOME, WELCOME) as (proxy, upstream):
        lengths = []
        for _ in range(2):
            await proxy.ask(ask(HI, tools=[CLIENT_TOOL]))
        for waiting in ({**WAITING, **of_mine(arguments='{"a":2}')}, WAITING):
            await proxy.ask(ask(HI, waiting, RESULT, tools=[CLIENT_TOOL]))
            lengths.append(len(sent(upstream)))
    assert lengths == [4, 3]


async def test_a_turn_that_waits_beside_what_could_not_be_read_is_not_held() -> None:
    """Rule R4: if the store cannot say whether a turn with the same key waits, the new turn is not held:
    its caller gets the error, and the earlier turn can still be restored."""

    class Broken(MemoryStore):
        broken = False

        async def find_suspended(self, key: str) -> SuspendedTurn | None:
            if self.broken:
                raise StoreError("the record cannot be read")
            return await super().find_suspended(key)

    store, wire = Broken(), ChatWire()
    await store.start()
    history = History(store)

    async def held() -> bool:
        first = ask(HI, tools=[CLIENT_TOOL])
        asked = wire.parse(first)
        turn = LastTurn(
            run_id="run_1",
            caller="me",
            wire="chat",
            message=json.dumps(WAITING).encode(),
            calls=[SuspendedCall("mine:0", "mine:0", None)],
            mask=lambda name, arguments: arguments,
        )
        editor = wire.editor(json.dumps(first).encode(), asked)
        shown = [ToolCall("mine:0", "mine", '{"a":1}', 0)]
        return await history.hold(asked, editor, turn, visible="Wait.", shown=shown)

    async def restored() -> int:
        back = ask(HI, WAITING, RESULT, tools=[CLIENT_TOOL])
        asked = wire.parse(back)
        return (await history.restore(asked, wire.editor(json.dumps(back).encode(), asked), "me")).turns

    assert await held()
    store.broken = True
    with pytest.raises(StoreError):
        await held()
    store.broken = False
    assert await restored() == 1
    await store.aclose()


@pytest.mark.parametrize(
    "results",
    [[RESULT, RESULT], [RESULT, {**RESULT, "tool_call_id": "call_s"}], [{**RESULT, "tool_call_id": ["x"]}]],
    ids=["twice", "of the hidden call", "of none"],
)
@pytest.mark.accepts("chat-answers", why="the client changes its own messages")
async def test_results_of_other_calls_are_the_clients_to_answer_for(results: list[dict[str, Any]]) -> None:
    """Rule R4: results that do not match the calls go to the upstream unchanged, also if tools are off."""
    async with looping(MIXED, WELCOME) as (proxy, upstream):
        await proxy.ask(ask(HI, tools=[CLIENT_TOOL]))
        body = ask(HI, WAITING, *results, tools=[CLIENT_TOOL])
        await proxy.ask(body, [("x-toolrelay-tools", "none")])
    assert json.loads(upstream.requests[1].body)["messages"] == body["messages"]


@pytest.mark.parametrize("other", [{"model": "n"}, {"user": "ann"}])
async def test_what_waits_is_for_the_same_model_and_user(other: dict[str, Any]) -> None:
    """Rule R4: the proxy restores a held turn only for the same model and the same user."""
    async with looping(MIXED, WELCOME) as (proxy, upstream):
        await proxy.ask(ask(HI, tools=[CLIENT_TOOL]))
        await proxy.ask(ask(HI, WAITING, RESULT, tools=[CLIENT_TOOL], **other))
    assert len(sent(upstream)) == 3


# The same on Responses, where clients send items back.

NOW = function_call("call_s", TIME, UTC)
LATER = function_call("call_t", TIME, '{"timezone":"Europe/Berlin"}')
NOON = message("It is noon.", id="msg_2")
ITEMS: dict[str, Any] = {"model": "m", "stream": True, "instructions": "Be brief."}


def items(*given: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**ITEMS, "input": list(given), **more}


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
async def test_each_turn_of_items_begins_with_the_bytes_of_the_last(streaming: bool) -> None:
    """Rule R4: each request to the upstream begins with the exact bytes of the one before."""
    said = response if streaming else whole_response
    think = [reasoning("hm", id=f"rs_{n}", encrypted_content=f"blob {n}") for n in range(2)]
    noon, one = NOON, message("It is one.", id="msg_3")
    turns = [
        said(think[0], NOW), said(noon, id="resp_2"), said(think[1], LATER, id="resp_3"),
        said(one, id="resp_4"), said(message("Welcome."), id="resp_5"),
    ]  # fmt: skip
    more = {"stream": streaming}
    async with client_of(*turns) as client:
        first = await client.said(items(user("hi"), **more), hidden=("call_s",))
        then = [user("hi"), *first.response["output"], user("and there?")]
        second = await client.said(items(*then, **more), hidden=("call_s", "call_t"))
        answer = await client.ask(items(*then, *second.response["output"], user("thanks"), **more))
        assert str(answer.header("x-toolrelay-restored")).startswith("turns=2, ")
        bodies = [members(request.body) for request in client.upstream.requests]
    assert len({(body["tools"], body["instructions"]) for body in bodies}) == 1
    spoken = [elements(body["input"]) for body in bodies]
    assert [len(one) for one in spoken] == [1, 4, 6, 9, 11]
    for earlier, later in itertools.pairwise(spoken):
        assert later[: len(earlier)] == earlier


async def test_ids_that_are_used_again_get_the_same_new_ones() -> None:
    """Rules R4, W8: the proxy replaces a repeated call id with the same new id in each request."""
    back = [user("hi"), SAID, user("and now?"), SAID, user("and then?"), SAID]
    turns = [turn for n in range(3) for turn in (response(NOW), response(NOON, id=f"resp_{n}b"))]
    async with client_of(*turns, response(message("Welcome."))) as client:
        for questions in (1, 3, 5):
            await client.ask(items(*back[:questions]))
        await client.ask(items(*back, user("thanks")))
        spoken = [elements(members(request.body)["input"]) for request in client.upstream.requests]
        last = client.asked(7)["input"]
    for earlier, later in itertools.pairwise(spoken):
        assert later[: len(earlier)] == earlier
    ids = [item["call_id"] for item in last if item.get("type") == "function_call"]
    assert len(set(ids)) == len(ids) == 3
    assert [item["call_id"] for item in last if item.get("type") == "function_call_output"] == ids


ITEM_EDITS: dict[str, Edit] = {
    "another model": lambda body: body.update(model="other"),
    "another user": lambda body: body.update(user="bob"),
    "other instructions": lambda body: body.update(instructions="Be long."),
    "no instructions": lambda body: body.pop("instructions"),
    "a stored prompt": lambda body: body.update(prompt={"id": "pmpt_1"}),
    "an edited answer": lambda body: body["input"][1]["content"][0].update(text="It is noon!"),
    "an edited question": lambda body: body["input"][0].update(content="hello"),
    "the question trimmed": lambda body: body["input"].pop(0),
    "another order": lambda body: body["input"].reverse(),
    "a system message": lambda body: body["input"].insert(0, {"role": "system", "content": "s"}),
    "the answer twice": lambda body: body["input"].insert(1, body["input"][1]),
    "a picture": lambda body: body["input"][0].update(
        content=[{"type": "input_text", "text": "hi"}, {"type": "input_image", "image_url": "x"}]
    ),
    "two parts": lambda body: body["input"][0].update(
        content=[{"type": "input_text", "text": "h"}, {"type": "input_text", "text": "i"}]
    ),
    "a message that says nothing": lambda body: body["input"].insert(1, {"role": "assistant", "content": ""}),
    "a refusal": lambda body: body["input"][1]["content"].append({"type": "refusal", "refusal": "No."}),
    "a search": lambda body: body["input"].insert(
        1, {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "x"}}
    ),
    "another's tool": lambda body: body["input"].insert(1, custom("c1", "theirs", "x")),
    "a compaction": lambda body: body["input"].insert(
        1, {"type": "compaction", "id": "cmp_1", "encrypted_content": "blob"}
    ),
    "a reference": lambda body: body["input"].insert(1, {"type": "item_reference", "id": "msg_9"}),
}


@pytest.mark.parametrize("edit", ITEM_EDITS)
@pytest.mark.accepts("responses-answers", "responses-parts", why="the client changes its own messages")
async def test_items_that_were_changed_stay_the_clients(edit: str) -> None:
    """Rule R4: if the client changed anything in the conversation, the proxy sends its items unchanged."""
    turns = [response(NOW), response(NOON, id="resp_2"), response(message("Welcome."))]
    async with client_of(*turns, served={"native": ("custom",)}) as client:
        first = await client.said(items(user("hi"), user="ann"), hidden=("call_s",))
        body = copy.deepcopy(items(user("hi"), *first.response["output"], user("thanks"), user="ann"))
        ITEM_EDITS[edit](body)
        answer = await client.ask(body)
        assert answer.status == 200, answer.body
        assert answer.header("x-toolrelay-restored") is None
        assert elements(members(client.upstream.requests[2].body)["input"]) == [
            json.dumps(one).encode() for one in body["input"]
        ]


@pytest.mark.parametrize("kept", [{}, {"type": "item_reference"}], ids=["whole", "by its id"])
async def test_a_call_that_was_shown_comes_back_with_the_answer(kept: dict[str, str]) -> None:
    """Turns are restored if the client sends back a shown ``mcp_call``, whole or as a reference."""
    async with client_of(response(NOW), response(NOON, id="resp_2"), response(message("Welcome."))) as client:
        await client.ask(items(user("hi")))
        shown = {"type": "mcp_call", "id": f"mcp_toolrelay{'0' * 40}", "server_label": "toolrelay"}
        back = {**kept, "id": shown["id"]} if kept else {**shown, "name": TIME, "arguments": "{}"}
        await client.ask(items(user("hi"), back, SAID, user("thanks")))
        assert [item.get("call_id") for item in client.asked(3)["input"]] == [
            None, "call_s", "call_s", None, None
        ]  # fmt: skip


async def test_what_a_provider_ran_comes_back_with_the_answer() -> None:
    """A provider's own search is no edit, whether the client returns all of it, a part or nothing."""
    searched = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "x"}}
    turns = [response(NOW), response(searched, NOON, id="resp_2"), response(message("Welcome."))]
    async with client_of(*turns) as client:
        first = await client.said(items(user("hi")), hidden=("call_s",))
        given = first.response["output"]
        assert [item["type"] for item in given] == ["web_search_call", "message"]
        bare = {key: value for key, value in given[0].items() if key not in ("id", "status")}
        for back in (given, [bare, given[1]], given[1:]):
            await client.ask(items(user("hi"), *back, user("thanks")))
            kinds = [item.get("type") for item in client.asked(len(client.upstream.requests))["input"]]
            assert kinds == [
                None, "function_call", "function_call_output", "web_search_call", "message", None
            ]  # fmt: skip


@pytest.mark.parametrize("named", ["ann", "bob", ""])
async def test_users_of_items_have_their_own_turns(named: str) -> None:
    """Rule R4: with ``body:user`` only turns of the same user are restored, and without a user none."""
    turns = [
        response(NOW), response(NOON, id="resp_2"), response(LATER, id="resp_3"),
        response(NOON, id="resp_4"), response(message("Welcome.")),
    ]  # fmt: skip
    async with client_of(*turns, auth={"end_user": "body:user"}) as client:
        for person in ("ann", "bob"):
            await client.ask(items(user("hi"), user=person))
        back = items(user("hi"), SAID, user("thanks"))
        await client.ask(back | ({"user": named} if named else {}))
        ids = [item["call_id"] for item in client.asked(5)["input"] if item.get("type") == "function_call"]
    assert ids == {"ann": ["call_s"], "bob": ["call_t"], "": []}[named]


async def test_references_to_other_items_are_another_conversation() -> None:
    """Rule R4: with an item reference in the conversation, turns are restored only for the same id."""
    turns = [response(NOW), response(NOON, id="resp_2"), response(message("Welcome."))]
    async with client_of(*turns) as client:
        await client.ask(items({"type": "item_reference", "id": "msg_a"}, user("hi")))
        for reference, kinds in (("msg_b", 4), ("msg_a", 6)):
            first = {"type": "item_reference", "id": reference}
            await client.ask(items(first, user("hi"), SAID, user("thanks")))
            assert len(client.asked(len(client.upstream.requests))["input"]) == kinds


async def test_instructions_are_not_compared_where_a_response_is_named() -> None:
    """With ``previous_response_id`` the proxy restores turns even if the instructions have changed."""
    turns = [response(NOW), response(NOON, id="resp_2"), response(message("Welcome."))]
    async with client_of(*turns) as client:
        first = await client.said(items(user("hi")), hidden=("call_s",))
        more = {"previous_response_id": first.id, "instructions": "Be long."}
        await client.ask(items(user("thanks"), **more))
        asked = client.asked(3)
    assert asked["instructions"] == "Be long."
    assert [item.get("type") for item in asked["input"]] == [
        None, "function_call", "function_call_output", "message", None
    ]  # fmt: skip


CHANGED_ITEMS: dict[str, Edit] = {
    "other instructions": lambda body: body.update(instructions="Be long."),
    "another model": lambda body: body.update(model="n"),
    "another text": lambda body: body["input"][1]["content"][0].update(text="Do not wait."),
    "other arguments": lambda body: body["input"][2].update(arguments='{"a":2}'),
    "another name": lambda body: body["input"][2].update(name="yours"),
    "a search": lambda body: body["input"].insert(1, {"type": "web_search_call", "id": "ws_1"}),
}


@pytest.mark.parametrize("edit", [None, *CHANGED_ITEMS])
async def test_calls_among_items_that_were_changed_are_the_clients(edit: str | None) -> None:
    """Rule R4: the proxy restores a held turn only if the client sends back exactly what it was given."""
    mine = function_call("call_c", "mine", '{"a":1}')
    turns = [response(message("Wait."), NOW, mine), response(NOON, id="resp_2")]
    more = {"tools": [function("mine")]}
    async with client_of(*turns) as client:
        first = await client.said(items(user("hi"), **more), hidden=("call_s",))
        body = items(user("hi"), *first.response["output"], output("call_c", "7"), **more)
        body = copy.deepcopy(body)
        if edit is not None:
            CHANGED_ITEMS[edit](body)
        assert (await client.ask(body)).status == 200
        ids = [item.get("call_id") for item in client.asked(2)["input"]]
    assert ("call_s" in ids) is (edit is None)
    if edit is not None:
        assert len(ids) == len(body["input"])


AS_WRITTEN: dict[str, Edit] = {
    "nulls in a search": lambda body: body["input"][3]["action"].update(queries=None, sources=[{"u": None}]),
    "one text": lambda body: body["input"].__setitem__(
        slice(1, 3), [{"role": "assistant", "content": "Let me look.Wait."}]
    ),
    "spaces": lambda body: body["input"][4].update(arguments='{"path": "page123", "id": "1234567890123456"}'),
}


@pytest.mark.parametrize("written", AS_WRITTEN)
async def test_items_as_libraries_write_them_are_what_was_given(written: str) -> None:
    """Turns are restored if a library added nulls, joined texts or wrote the arguments' JSON anew."""
    look: dict[str, Any] = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    look["action"] = {"type": "search", "query": "x", "sources": [{}]}
    mine = function_call("call_c", "mine", '{"id":"1234567890123456","path":"page123"}')
    turns = [
        response(message("Let me look."), NOW),
        response(message("Wait.", id="msg_2"), look, mine, id="resp_2"),
        response(NOON, id="resp_3"),
    ]
    more = {"tools": [function("mine")]}
    async with client_of(*turns) as client:
        first = await client.said(items(user("hi"), **more), hidden=("call_s",))
        given = copy.deepcopy(first.response["output"])
        assert [item["type"] for item in given] == ["message", "message", "web_search_call", "function_call"]
        body = items(user("hi"), *given, output("call_c", "7"), **more)
        AS_WRITTEN[written](body)
        assert (await client.ask(body)).status == 200
        spoken = client.asked(3)["input"]
    assert [item.get("call_id") for item in spoken if item.get("call_id")] == [
        "call_s", "call_s", "call_c", "call_c"
    ]  # fmt: skip
    assert [item["content"][0]["text"] for item in spoken if item.get("type") == "message"] == [
        "Let me look.", "Wait."
    ]  # fmt: skip


@pytest.mark.parametrize("odd", [{"type": ["x"]}, {"role": {"a": 1}, "content": "x"}, {"type": {"a": 1}}])
async def test_an_item_of_no_known_kind_is_the_upstreams_to_refuse(odd: dict[str, Any]) -> None:
    """Rule E1: an item whose type or role is no string goes to the upstream, which may refuse it."""
    async with client_of(response(NOON)) as client:
        answer = await client.proxy.ask(items(user("hi"), odd, user("hi")), path=PATH)
        assert answer.status == 200
        assert client.asked(1)["input"][1] == odd
