"""Hidden turns that the proxy restores when a client sends back an answer that it got from the proxy."""

import copy
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from chat_script import call, content, finish, payloads_of, reply, role, sse, stream, text_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from looping import ANSWER, ASK, CLIENT_TOOL, TIME, called, looping, messages_of
from probe_tools import Watch
from raw_upstream import RawRequest, chunked, whole
from responses_script import closing, encode, function_call, message, opening
from responses_script import stream as response_stream

from proxy.base.errors import StoreError
from proxy.json.splice import elements, members
from proxy.relay.memory.hidden.history import History, LastTurn
from proxy.store.sqlite.memory import MemoryStore
from proxy.wires.chat.wire import ChatWire

RESPONSES = {"model": "m", "stream": True}
UTC = '{"timezone":"UTC"}'
NOON = '{"timezone":"UTC","iso":"2026-11-21T12:00:00+00:00"}'
CALL = called(("call_s", TIME, UTC))
THANKS = {"role": "user", "content": "thanks"}
WELCOME = stream(role(), content("Welcome."), finish())


def ask(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**ASK, "messages": list(messages), **more}


HI = {"role": "user", "content": "hi"}
SAID = {"role": "assistant", "content": "It is noon."}


def roles(request: RawRequest) -> list[str]:
    return [message["role"] for message in messages_of(request)]


@pytest.mark.parametrize("streaming", [True, False])
async def test_an_answer_brings_its_hidden_turns_back(streaming: bool) -> None:
    """Rule R4: the answer is replaced by the call, its result and the answer, and a header reports it."""
    turns = (
        [CALL, ANSWER, WELCOME]
        if streaming
        else [
            reply(None, ("call_s", TIME, UTC)),
            reply("It is noon."),
            reply("Welcome."),
        ]
    )
    async with looping(*turns) as (proxy, upstream):
        first = await proxy.ask(ask(HI, stream=streaming))
        assert first.header("x-toolrelay-restored") is None
        second = await proxy.ask(ask(HI, SAID, THANKS, stream=streaming))
    assert roles(upstream.requests[2]) == ["user", "assistant", "tool", "assistant", "user"]
    restored = messages_of(upstream.requests[2])
    assert restored[1]["tool_calls"][0]["function"] == {"name": TIME, "arguments": UTC}
    assert restored[2]["content"] == NOON
    assert restored[3]["content"] == "It is noon."
    assert str(second.header("x-toolrelay-restored")).startswith("turns=1, bytes=")


async def test_the_next_turn_begins_with_the_bytes_of_the_last() -> None:
    """Rule R4: all turns send equal bytes of tools, and messages that begin with those of the turn before."""
    async with looping(CALL, ANSWER, CALL, ANSWER, WELCOME) as (proxy, upstream):
        await proxy.ask(ask(HI))
        await proxy.ask(ask(HI, SAID, {"role": "user", "content": "and now?"}))
        await proxy.ask(ask(HI, SAID, {"role": "user", "content": "and now?"}, SAID, THANKS))
    bodies = [members(request.body) for request in upstream.requests]
    assert len({body["tools"] for body in bodies}) == 1
    spoken = [elements(body["messages"]) for body in bodies]
    for earlier, later in itertools.pairwise(spoken):
        assert later[: len(earlier)] == earlier


EDITS: dict[str, Any] = {
    "another model": lambda body: body | {"model": "other"},
    "an edited answer": lambda body: body["messages"][1].update(content="It is noon!"),
    "an edited question": lambda body: body["messages"][0].update(content="hello"),
    "a system message added": lambda body: body["messages"].insert(0, {"role": "system", "content": "s"}),
    "the question trimmed": lambda body: body["messages"].pop(0),
    "another order": lambda body: body["messages"].reverse(),
    "a name added": lambda body: body["messages"][0].update(name="ann"),
}


@pytest.mark.parametrize("edit", EDITS)
async def test_what_was_changed_stays_the_clients_version(edit: str) -> None:
    """Rule R4: if the client changed messages or the model, its own messages go upstream unchanged."""
    async with looping(CALL, ANSWER, WELCOME) as (proxy, upstream):
        await proxy.ask(ask(HI))
        body = copy.deepcopy(ask(HI, SAID, THANKS))
        body = EDITS[edit](body) if edit == "another model" else (EDITS[edit](body), body)[1]
        answer = await proxy.ask(body)
    assert answer.header("x-toolrelay-restored") is None
    assert json.loads(upstream.requests[2].body)["messages"] == body["messages"]


async def test_two_ways_to_the_same_words_are_no_way_back() -> None:
    """Rule R4: if two runs differ only in hidden turns, nothing is restored for their conversation."""
    other = called(("call_s", TIME, '{"timezone":"Europe/Berlin"}'))
    async with looping(CALL, ANSWER, other, ANSWER, WELCOME) as (proxy, upstream):
        await proxy.ask(ask(HI))
        await proxy.ask(ask(HI))
        answer = await proxy.ask(ask(HI, SAID, THANKS))
    assert answer.header("x-toolrelay-restored") is None
    assert roles(upstream.requests[4]) == ["user", "assistant", "user"]


async def test_the_same_way_twice_is_one_way() -> None:
    """If a question is asked twice with the same hidden turn, that turn counts once and is restored."""
    async with looping(CALL, ANSWER, CALL, ANSWER, WELCOME) as (proxy, upstream):
        await proxy.ask(ask(HI))
        await proxy.ask(ask(HI))
        await proxy.ask(ask(HI, SAID, THANKS))
    assert roles(upstream.requests[4]) == ["user", "assistant", "tool", "assistant", "user"]


async def test_two_users_with_equal_words_have_their_own_turns() -> None:
    """Rule R4: each end user gets only their own turns, and a request that names none gets none."""
    berlin = called(("call_s", TIME, '{"timezone":"Europe/Berlin"}'))
    turns = [CALL, ANSWER, berlin, ANSWER, WELCOME, WELCOME, WELCOME]
    async with looping(*turns, auth={"end_user": "header:x-user"}) as (proxy, upstream):
        await proxy.ask(ask(HI), [("x-user", "ann")])
        await proxy.ask(ask(HI), [("x-user", "bob")])
        for user in (["ann"], ["bob"], []):
            await proxy.ask(ask(HI, SAID, THANKS), [("x-user", name) for name in user])
    ann, bob, nobody = (messages_of(request) for request in upstream.requests[4:])
    assert ann[1]["tool_calls"][0]["function"]["arguments"] == UTC
    assert "Berlin" in bob[1]["tool_calls"][0]["function"]["arguments"]
    assert [message["role"] for message in nobody] == ["user", "assistant", "user"]


@pytest.mark.parametrize(
    ("headers", "config"),
    [([("x-toolrelay-history", "off")], {}), ([], {"store": {"history": False}})],
    ids=["header", "setting"],
)
async def test_it_can_be_turned_off(headers: list[tuple[str, str]], config: dict[str, Any]) -> None:
    """``x-toolrelay-history: off`` and ``store.history = false`` send only the client's messages."""
    async with looping(CALL, ANSWER, WELCOME, **config) as (proxy, upstream):
        await proxy.ask(ask(HI))
        await proxy.ask(ask(HI, SAID, THANKS), headers)
    assert roles(upstream.requests[2]) == ["user", "assistant", "user"]


@pytest.mark.parametrize("allow", [("core__*",), ()], ids=["orchestrated", "passthrough"])
async def test_another_wish_for_history_is_refused(allow: tuple[str, ...]) -> None:
    """A value other than on and off gets a 400 that names the header, whether tools are offered or not."""
    async with looping(allow=allow) as (proxy, _):
        answer = await proxy.ask(ask(HI), [("x-toolrelay-history", "maybe")])
    assert answer.status == 400
    assert answer.json["error"]["param"] == "x-toolrelay-history"


async def test_other_tools_are_another_conversation() -> None:
    """Rule R4: if a request offers other tools than the run did, nothing is restored."""
    async with looping(CALL, ANSWER, WELCOME, WELCOME) as (proxy, upstream):
        await proxy.ask(ask(HI))
        for wish in ("none", TIME):
            await proxy.ask(ask(HI, SAID, THANKS), [("x-toolrelay-tools", wish)])
    assert roles(upstream.requests[2]) == ["user", "assistant", "user"]
    assert roles(upstream.requests[3]) == ["user", "assistant", "user"]


LONG = {"message": "maximum context length", "code": "context_length_exceeded"}
TOO_LONG = whole(json.dumps({"error": LONG}).encode(), status="400 Bad Request")


async def test_a_conversation_that_grew_too_long_is_asked_again_without() -> None:
    """If the upstream finds a request with restored turns too long, the proxy retries once with the client's
    messages alone, and sends no header about restored turns."""
    async with looping(CALL, ANSWER, TOO_LONG, WELCOME) as (proxy, upstream):
        await proxy.ask(ask(HI))
        answer = await proxy.ask(ask(HI, SAID, THANKS))
    assert text_of(payloads_of(answer.body)) == "Welcome."
    assert answer.header("x-toolrelay-restored") is None
    assert roles(upstream.requests[2]) == ["user", "assistant", "tool", "assistant", "user"]
    assert roles(upstream.requests[3]) == ["user", "assistant", "user"]


async def test_what_the_conversation_cannot_do_without_stays_and_is_said() -> None:
    """If a request is too long, the proxy leaves out only the turns behind an answer; the turn that waited
    for this client is sent, and the header counts it."""
    mixed = called(("call_s", TIME, UTC), ("call_c", "mine", "{}"))
    tools = [CLIENT_TOOL]
    async with looping(CALL, ANSWER, mixed, TOO_LONG, WELCOME) as (proxy, upstream):
        await proxy.ask(ask(HI, tools=tools))
        await proxy.ask(ask(HI, SAID, THANKS, tools=tools))
        theirs = {"id": "call_c", "type": "function", "function": {"name": "mine", "arguments": "{}"}}
        shown = {"role": "assistant", "content": None, "tool_calls": [theirs]}
        answered = {"role": "tool", "tool_call_id": "call_c", "content": "7"}
        answer = await proxy.ask(ask(HI, SAID, THANKS, shown, answered, tools=tools))
    assert text_of(payloads_of(answer.body)) == "Welcome."
    assert str(answer.header("x-toolrelay-restored")).startswith("turns=1, bytes=")
    hidden = ["assistant", "tool"]
    before, back = ["user", "assistant", "user"], ["assistant", "tool", "tool"]
    assert roles(upstream.requests[3]) == [before[0], *hidden, *before[1:], *back]
    assert roles(upstream.requests[4]) == [*before, *back]


async def test_on_responses_it_is_asked_again_without_too() -> None:
    """On Responses, too, a request that is too long with restored turns is retried without them."""
    scripts = [
        response_stream(function_call("call_s", TIME, UTC)),
        response_stream(message("It is noon."), id="resp_2"),
        TOO_LONG,
        response_stream(message("Welcome."), id="resp_3"),
    ]
    served = {"responses_state": "stateless"}
    async with looping(*scripts, served=served) as (proxy, upstream):
        await proxy.ask({**RESPONSES, "input": [HI]}, path="/v1/responses")
        said = [HI, message("It is noon.", id="msg_a"), THANKS]
        answer = await proxy.ask({**RESPONSES, "input": said}, path="/v1/responses")
    assert b"Welcome." in answer.body
    assert answer.header("x-toolrelay-restored") is None
    first, second = [json.loads(request.body)["input"] for request in upstream.requests[2:]]
    assert [item.get("type", "message") for item in first] == [
        "message", "function_call", "function_call_output", "message", "message",
    ]  # fmt: skip
    assert second == said


IN_STREAM = {
    "/v1/chat/completions": stream(sse({"error": LONG})),
    "/v1/responses": chunked(
        encode([*opening(), closing(status="failed", error={**LONG, "type": "invalid_request_error"})])
    ),
}


@pytest.mark.parametrize("path", sorted(IN_STREAM))
async def test_a_refusal_inside_a_stream_is_the_clients_to_see(path: str) -> None:
    """If the upstream refuses inside its stream, the proxy does not retry, and the client reads the error."""
    chat = path.endswith("completions")
    first = [CALL, ANSWER] if chat else [
        response_stream(function_call("call_s", TIME, UTC)),
        response_stream(message("It is noon."), id="resp_2"),
    ]  # fmt: skip
    served = {"responses_state": "stateless"}
    async with looping(*first, IN_STREAM[path], WELCOME, served=served) as (proxy, upstream):
        said = [HI, SAID if chat else message("It is noon.", id="msg_a"), THANKS]
        begun = ask(HI) if chat else {**RESPONSES, "input": [HI]}
        again = ask(*said) if chat else {**RESPONSES, "input": said}
        await proxy.ask(begun, path=path)
        answer = await proxy.ask(again, path=path)
        assert [run.error_code for run in await proxy.runs()] == ["context_length_exceeded", None]
    assert (answer.status, len(upstream.requests)) == (200, 3)
    assert b"context_length_exceeded" in answer.body
    assert str(answer.header("x-toolrelay-restored")).startswith("turns=1, bytes=")


async def test_too_long_without_anything_put_back_is_the_clients_to_see() -> None:
    """If a request without restored turns is too long, the client gets the upstream's error at once."""
    async with looping(TOO_LONG) as (proxy, upstream):
        answer = await proxy.ask(ask(HI))
    assert (answer.status, answer.json, len(upstream.requests)) == (400, {"error": LONG}, 1)


async def test_text_of_several_turns_is_one_answer() -> None:
    """An answer that the client sends back includes the text before a call, and the turn is restored."""
    looked = stream(role(), content("Let me look."), call("call_s", TIME, UTC), finish("tool_calls"))
    async with looping(looked, ANSWER, WELCOME) as (proxy, upstream):
        first = await proxy.ask(ask(HI))
        said = {"role": "assistant", "content": text_of(payloads_of(first.body))}
        assert said["content"] == "Let me look.\n\nIt is noon."
        await proxy.ask(ask(HI, said, THANKS))
    assert roles(upstream.requests[2]) == ["user", "assistant", "tool", "assistant", "user"]


async def test_a_hidden_turn_is_put_back_at_its_own_place_alone() -> None:
    """Rule R4: if the same words also stand earlier in the conversation, the turn is restored only once."""
    said = {"role": "assistant", "content": "It is noon."}
    async with looping(CALL, ANSWER, WELCOME) as (proxy, upstream):
        await proxy.ask(ask(HI, said, HI))
        again = await proxy.ask(ask(HI, said, HI, said, THANKS))
    assert str(again.header("x-toolrelay-restored")).startswith("turns=1, ")
    assert roles(upstream.requests[2]) == [
        "user",
        "assistant",
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]


JSON_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
MESSAGE = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system"]), "content": JSON_TEXT}),
    st.fixed_dictionaries({"role": st.just("assistant"), "content": JSON_TEXT}),
)


class OneAnswer(MemoryStore):
    """A store that notes which keys were looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.looked_up: list[str] = []

    async def find_hidden(self, keys: Any, caller: str = "", *, loosely: bool = False) -> Any:
        self.looked_up += keys
        return await super().find_hidden(keys, caller, loosely=loosely)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(before=st.lists(MESSAGE, max_size=5), forged=st.lists(MESSAGE, max_size=6), data=st.data())
async def test_only_the_very_same_conversation_is_put_back(
    before: list[dict[str, Any]], forged: list[dict[str, Any]], data: st.DataObject
) -> None:
    """Rule R4: of random conversations, only the one that the caller really had gets its turn restored; the
    proxy looks up other keys for another caller, and for other tools."""
    wire, store = ChatWire(), OneAnswer()
    await store.start()
    history = History(store)
    answer = data.draw(JSON_TEXT.filter(str.strip), "answer")
    asked = wire.parse({"model": "m", "messages": before})
    editor = wire.editor(json.dumps({"model": "m", "messages": before}).encode(), asked)
    call_turn: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": []}
    editor.append_turn(json.dumps(call_turn).encode(), [b'{"role":"tool","tool_call_id":"a","content":"r"}'])
    turn = LastTurn(
        run_id="run_1",
        caller="me",
        wire="chat",
        message=json.dumps({"role": "assistant", "content": answer}).encode(),
        mask=lambda name, arguments: arguments,
    )
    history.remember(asked, editor, turn, visible=answer, offer_fingerprint="s")
    had = [*before, {"role": "assistant", "content": answer}]

    async def restored(messages: list[dict[str, Any]], caller: str = "me", shape: str = "s") -> int:
        store.looked_up.clear()
        body = {"model": "m", "messages": messages}
        request = wire.parse(body)
        fresh = wire.editor(json.dumps(body).encode(), request)
        return (await history.restore(request, fresh, caller, shape)).turns

    assert await restored([*had, *forged]) == 1
    own = set(store.looked_up)
    for other in ({"caller": "you"}, {"shape": "t"}):
        assert await restored([*had, *forged], **other) == 0
        assert store.looked_up
        assert own.isdisjoint(store.looked_up)
    # Without its beginning, a conversation is still known by its last question and the answer.
    for messages in (forged, had[1:], had[2:]):
        if not _asks_and_answers(messages, had):
            assert await restored(messages) == 0


def _asks_and_answers(messages: list[dict[str, Any]], had: list[dict[str, Any]]) -> bool:
    """Whether the messages contain the last answer of ``had`` and the text before it."""
    texts = [(message["role"], message["content"].strip()) for message in had]
    sent = [(message["role"], message["content"].strip()) for message in messages]
    return texts[-1] in sent and (len(texts) == 1 or texts[-2] in sent)


async def test_a_store_that_cannot_be_read_leaves_the_clients_version() -> None:
    """Rule R4: if the store cannot be read, the client's own messages go upstream."""

    class Broken(MemoryStore):
        async def find_hidden(self, keys: Any, caller: str = "", *, loosely: bool = False) -> Any:
            raise StoreError("the record cannot be read")

    wire, store = ChatWire(), Broken()
    await store.start()
    body = {"model": "m", "messages": [HI, SAID, THANKS]}
    request = wire.parse(body)
    editor = wire.editor(json.dumps(body).encode(), request)
    restored = await History(store).restore(request, editor, "me", "s")
    assert restored.turns == 0
    assert elements(members(editor.render())["messages"]) == [
        json.dumps(m).encode() for m in body["messages"]
    ]


@pytest.mark.parametrize("messages", [[], [HI], [{"role": "system", "content": "be brief"}, HI, HI]])
async def test_a_first_message_asks_nothing_of_the_record(messages: list[dict[str, Any]]) -> None:
    """For a conversation without an answer or a call, the proxy does not query the store."""

    class Silent(MemoryStore):
        def __getattribute__(self, name: str) -> Any:
            assert not name.startswith("find_")
            return super().__getattribute__(name)

    wire, body = ChatWire(), {"model": "m", "messages": messages}
    request = wire.parse(body)
    editor = wire.editor(json.dumps(body).encode(), request)
    assert not await History(Silent()).restore(request, editor, "me", "s")


async def test_a_strangers_word_stays_one_when_it_is_put_back(watch: Watch) -> None:
    """Rule T2: an untrusted result of an earlier request, once restored, still asks for an approval."""
    page = called(("call_p", "probe_tools__page", "{}"))
    buy = called(("call_b", "probe_tools__buy", '{"what":"milk"}'))
    async with looping(page, ANSWER, buy, ANSWER) as (proxy, upstream):
        await proxy.ask(ask(HI))
        await proxy.ask(ask(HI, SAID, THANKS))
        newest = (await proxy.runs())[0]
    assert watch.finished == []
    assert "approval_required" in messages_of(upstream.requests[3])[-1]["content"]
    # Tools with effects are not offered; tools that read are, and the run records both.
    shown = [{tool["function"]["name"] for tool in json.loads(r.body)["tools"]} for r in upstream.requests]
    assert shown[0] - shown[2] == {f"probe_tools__{name}" for name in ("buy", "slow_buy", "paint", "browse")}
    assert shown[1] == shown[2] == shown[3] == set(newest.offered)
    assert "policy.after_untrusted" in newest.withheld["probe_tools__buy"]


async def test_after_a_strangers_word_hidden_turns_are_still_found() -> None:
    """Rule R4: turns of a request with withheld tools are restored in the next request."""
    page = called(("call_p", "probe_tools__page", "{}"))
    async with looping(page, ANSWER, CALL, ANSWER, WELCOME) as (proxy, upstream):
        await proxy.ask(ask(HI))
        await proxy.ask(ask(HI, SAID, THANKS))
        answer = await proxy.ask(ask(HI, SAID, THANKS, SAID, HI))
    assert str(answer.header("x-toolrelay-restored")).startswith("turns=2, ")
    assert roles(upstream.requests[4]).count("tool") == 2


def written(folder: Path) -> bytes:
    """Every byte of every file in a folder."""
    return b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())


async def test_private_arguments_do_not_stand_in_a_file_in_the_clear(tmp_path: Path) -> None:
    """Rule R3: in a record that is not sealed, private arguments of stored turns are masked."""
    secret = called(("call_u", "probe_tools__unlock", '{"pin":"pin-4711"}'))
    url = f"sqlite:///{tmp_path}/record.db"
    async with looping(secret, ANSWER, WELCOME, store={"url": url, "seal": False}) as (proxy, upstream):
        await proxy.ask(ask(HI))
        await proxy.ask(ask(HI, SAID, THANKS))
    assert roles(upstream.requests[2]) == ["user", "assistant", "tool", "assistant", "user"]
    assert b"pin-4711" not in written(tmp_path)


async def test_private_arguments_come_back_whole_from_a_record_that_seals_itself(tmp_path: Path) -> None:
    """Rules R3 and R4: a record that is sealed by default restores private arguments whole, so that the
    provider's cache holds, and no file contains them unencrypted."""
    secret = called(("call_u", "probe_tools__unlock", '{"pin":"pin-4711"}'))
    url = f"sqlite:///{tmp_path}/record.db"
    async with looping(secret, ANSWER, WELCOME, store={"url": url}) as (proxy, upstream):
        await proxy.ask(ask(HI))
        await proxy.ask(ask(HI, SAID, THANKS))
    before, after = (elements(members(request.body)["messages"]) for request in upstream.requests[1:])
    assert after[: len(before)] == before
    assert b"pin-4711" in b"".join(before)
    assert b"pin-4711" not in written(tmp_path)


async def test_what_is_never_written_is_not_masked() -> None:
    """Rule R3: a record in memory does not mask private arguments, because they are never written to disk."""
    secret = called(("call_u", "probe_tools__unlock", '{"pin":"pin-4711"}'))
    async with looping(secret, ANSWER, WELCOME) as (proxy, upstream):
        await proxy.ask(ask(HI))
        await proxy.ask(ask(HI, SAID, THANKS))
    assert b"pin-4711" in upstream.requests[2].body
