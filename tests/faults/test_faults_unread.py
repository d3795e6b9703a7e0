"""Rule W5 where an upstream's words cannot be read here, and a client may read them all the same."""

import json
from typing import Any

import chat_script as chat
import pytest
import responses_script as responses
from faults_rig import ECHO, TIME, ask, before, cut
from probe_tools import Watch
from raw_upstream import Step, chunked, whole
from wire_kits import DONE, KITS, Kit

CHAT, RESPONSES = KITS["chat"], KITS["responses"]
ARGUMENTS = '{"timezone":"Hidden/City"}'
HIDDEN = (TIME, "call_1", "Hidden/City")
both_ways = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


def deep(levels: int) -> bytes:
    """A value that is nested so deeply."""
    return b"[" * levels + b"]" * levels


def nested(data: bytes, levels: int) -> bytes:
    """A turn that calls, each call's event (or the reply) with a member that is nested."""
    marks = (b'"tool_calls":', b'"type":"function_call",', b'"type": "function_call",', b'"tool_calls": ')
    for mark in marks:
        data = data.replace(mark, b'"x":' + deep(levels) + b"," + mark)
    return data


def no_word(body: bytes, *words: str) -> None:
    """Nothing of the call stands in what the client got, in no spelling."""
    for word in words or HIDDEN:
        assert word.encode() not in body


@both_ways
@pytest.mark.parametrize("levels", [210, 300, 900, 1100, 5000, 10_000])
async def test_a_call_in_a_deep_event(kit: Kit, stream: bool, levels: int, watch: Watch) -> None:
    """Rule W5: a call in what is nested too deeply to be read fails the turn, and nobody sees it."""
    data = kit.calling(("call_1", TIME, ARGUMENTS)) if stream else kit.reply("", ("call_1", TIME, ARGUMENTS))
    bad = nested(data, levels)
    assert bad != data
    async with before(chunked(bad) if stream else whole(bad)) as (proxy, upstream):
        answer = await ask(proxy, kit, stream=stream)
        assert answer.clean
        no_word(answer.body)
        if stream and answer.status == 200:
            assert b"upstream_malformed" in answer.body
            assert answer.body.count(b"[DONE]") == 1
        else:
            assert (answer.status, answer.error["code"]) == (502, "upstream_malformed")
        assert (await proxy.run_reaches("failed")).run.error_code == "upstream_malformed"
        assert watch.started == []
        assert len(upstream.requests) == 1


async def test_what_came_before_goes_out(kit: Kit) -> None:
    """Rule W6: the text before an event that cannot be read, in full, wherever the network cut the stream."""
    said = kit.begun("half an answer")
    bad = said + nested(kit.calling(("call_1", TIME, ARGUMENTS)), 400)
    answers = []
    for pieces in ([bad], cut(bad, 3), [bad[at : at + 7] for at in range(0, len(bad), 7)]):
        async with before(chunked(*pieces)) as (proxy, _):
            answer = await ask(proxy, kit)
            assert answer.clean
            assert answer.body.startswith(said)
            no_word(answer.body)
            run = (await proxy.run_reaches("failed")).run.id
            answers.append(answer.body.replace(run.encode(), b"run"))
    assert answers[0] == answers[1] == answers[2]


CALL = b'{"choices":[{"delta":{"tool_calls":[{"function":{"name":"NAME"}}]}}]}'
LINES: dict[str, bytes] = {
    "two objects in one event": b'data: {"a":1}' + CALL,
    "a line of its own": b"data: x\ndata: " + CALL,
    "a list": b"data: [" + CALL + b"]",
    "a blank before it": b'data:   \t{"x":1 ' + CALL,
    "no field": CALL,
    "no field, behind a comment": b": x\n " + CALL,
    "a key with an escape": b'data: {"x" "c\\u0068oices":[{"delta":{"t\\u006fol_c\\u0061lls":[{"name":"NAME"',
    "an item": b'data: {"a" "item":{"type":"function_call","name":"NAME"}}',
}


@pytest.mark.parametrize("name", LINES)
async def test_a_call_in_what_is_no_event(kit: Kit, name: str) -> None:
    """Rule W5: what is no JSON object here, and may be one to a client, is not handed on if it may call."""
    line = LINES[name].replace(b"NAME", TIME.encode()) + b"\n\n"
    async with before(chunked(kit.begun("a") + line + DONE)) as (proxy, _):
        answer = await ask(proxy, kit)
        assert answer.body.startswith(kit.begun("a"))
        assert b"upstream_malformed" in answer.body
        no_word(answer.body)


async def test_a_call_that_is_cut_off_at_the_end(kit: Kit) -> None:
    """Rule W5: the half of an event with which a stream ends is not handed on, if it may call."""
    data = kit.calling(("call_1", TIME, ARGUMENTS))
    end = data.index(TIME.encode()) + len(TIME)
    async with before(chunked(data[:end])) as (proxy, _):
        answer = await ask(proxy, kit)
        assert b"upstream_malformed" in answer.body
        no_word(answer.body)


async def test_a_call_after_the_end(kit: Kit, watch: Watch) -> None:
    """Rule W5: what follows the end of a turn is no part of it, and no client gets a call from there."""
    late = kit.calling(("call_1", TIME, ARGUMENTS)).removesuffix(DONE)
    data = kit.text("fine").removesuffix(DONE)
    tail = b": bye\n\n" + DONE
    for end in (data + DONE, data) if kit is RESPONSES else (data + DONE,):
        async with before(chunked(end + late + tail)) as (proxy, upstream):
            answer = await ask(proxy, kit)
            no_word(answer.body)
            assert answer.body.startswith(end)
            assert answer.body.endswith(tail)
            assert (await proxy.run_reaches("completed")).invocations in ((), [])
            assert len(upstream.requests) == 1
            assert watch.started == []


async def test_a_response_ends_with_its_terminal_event() -> None:
    """A Responses turn ends there: of what comes after it nothing counts or passes but the end mark."""
    first = responses.turn(responses.message("one"))
    second = responses.turn(responses.message("two", id="msg_2"), id="resp_2")
    for pieces in ([first + second + DONE], cut(first + second + DONE, 4)):
        async with before(chunked(*pieces)) as (proxy, _):
            assert (await ask(proxy, RESPONSES)).body == first + DONE


@both_ways
async def test_odd_replies_without_a_call_pass(kit: Kit, stream: bool) -> None:
    """Rule W2: what cannot be read and holds no call either is handed on as it came."""
    odd = b'data: {"a":' + deep(400) + b"}\n\ndata: {\n\n: {call me}\n\n"
    body = kit.begun("a") + odd + DONE if stream else b"<html><script>call({})</script></html>"
    kind = "text/event-stream" if stream else "text/html"
    script: list[Step] = chunked(body) if stream else whole(body, content_type=kind)
    async with before(script) as (proxy, _):
        answer = await ask(proxy, kit, stream=stream)
        assert (answer.status, answer.body) == (200, body)


@both_ways
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32-le", "utf-8-sig"])
async def test_a_reply_in_another_encoding(kit: Kit, encoding: str, stream: bool) -> None:
    """Rule W5: libraries that are given a whole body find out its encoding, and then read the call."""
    body = kit.reply("", ("call_1", TIME, ARGUMENTS)).decode().encode(encoding)
    async with before(whole(body)) as (proxy, _):
        answer = await ask(proxy, kit, stream=stream)
        assert (answer.status, answer.error["code"]) == (502, "upstream_malformed")


# Choices after the first.


def later(data: bytes, index: bytes = b"1") -> bytes:
    """The same of another choice."""
    return data.replace(b'"index":0,"delta"', b'"index":' + index + b',"delta"')


@pytest.mark.parametrize("index", [b"1", b"7", b'"1"', b'"0"', b"-1", b"true", b"1.0"])
async def test_a_call_in_a_later_choice(index: bytes, watch: Watch) -> None:
    """Rule W5: a server tool that is called in a choice after the first fails the turn, unseen."""
    text = chat.role() + chat.content("fine")
    data = text + later(CHAT.calling(("call_1", TIME, ARGUMENTS)), index)
    async with before(chunked(data)) as (proxy, _):
        answer = await ask(proxy, CHAT)
        assert answer.body.startswith(text)
        assert b"choice after the first" in answer.body
        no_word(answer.body)
        assert watch.started == []


@pytest.mark.parametrize("pieces", [(TIME[:6], TIME[6:]), (TIME[:5], TIME[5:]), (None, TIME)])
async def test_a_later_choice_calls_in_pieces(pieces: tuple[str | None, str]) -> None:
    """Rule W5: the same where the name comes in pieces, or after its arguments: nothing leaves before it."""
    first, second = pieces
    calls = chat.call("call_1", first, '{"timezone":"Hid' if first is None else None)
    calls += chat.call(None, second, 'den/City"}')
    async with before(chunked(chat.role() + later(calls) + chat.finish("tool_calls") + DONE)) as (proxy, _):
        answer = await ask(proxy, CHAT)
        assert b"choice after the first" in answer.body
        no_word(answer.body, TIME, TIME[:6], "call_1", '"Hid', "den/City")


async def test_a_reply_calls_in_a_later_choice() -> None:
    """Rule W5: the same where the answer is not streamed."""
    reply = json.loads(CHAT.reply("fine"))
    second = json.loads(CHAT.reply("", ("call_1", TIME, ARGUMENTS)))["choices"][0]
    reply["choices"].append({**second, "index": 1})
    async with before(whole(json.dumps(reply).encode())) as (proxy, _):
        answer = await ask(proxy, CHAT, stream=False)
        assert (answer.status, answer.error["code"]) == (502, "upstream_malformed")
        no_word(answer.body)


async def test_a_clients_call_in_a_later_choice_passes() -> None:
    """Rule W2: a choice that nobody asked for may call the client's own tool; those bytes are its own."""
    mine = later(CHAT.calling(("call_1", "mine", "{}"), text="x"))
    data = chat.role() + chat.content("fine") + mine
    for pieces in ([data], cut(data, 5)):
        async with before(chunked(*pieces)) as (proxy, _):
            answer = await ask(proxy, CHAT, tools=["mine"])
            assert answer.body == data


@pytest.mark.parametrize("n", [2, 2.0, 3.0, "2", "2.0", 1e3])
async def test_more_than_one_choice_in_any_spelling(n: Any) -> None:
    """Server tools are offered for one choice; 2.0 asks for two, and so does "2" where nobody is strict."""
    data = later(CHAT.calling(("call_1", ECHO, '{"text":"a"}')))
    async with before(chunked(data)) as (proxy, upstream):
        answer = await ask(proxy, CHAT, n=n)
        assert answer.body == data
        assert "tools" not in json.loads(upstream.requests[0].body)
        named = await ask(proxy, CHAT, headers={"x-toolrelay-tools": ECHO}, n=n)
        assert (named.status, named.error["param"]) == (400, "n")


@pytest.mark.parametrize("n", [1, 1.0, None, "1", 1.5, "x", [], True])
async def test_one_choice_in_any_spelling(n: Any) -> None:
    """What asks for one choice, or for nothing that an upstream would read, gets the tools."""
    async with before(CHAT.stream("ok")) as (proxy, upstream):
        assert (await ask(proxy, CHAT, n=n)).status == 200
        assert "tools" in json.loads(upstream.requests[0].body)
