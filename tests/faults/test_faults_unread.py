"""Rule W5: a server call reaches no client, even in data that the proxy cannot read and a client may."""

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
    """Return a value with so many levels."""
    return b"[" * levels + b"]" * levels


def nested(data: bytes, levels: int) -> bytes:
    """Add a nested member to each call's event, or to the reply."""
    marks = (b'"tool_calls":', b'"type":"function_call",', b'"type": "function_call",', b'"tool_calls": ')
    for mark in marks:
        data = data.replace(mark, b'"x":' + deep(levels) + b"," + mark)
    return data


def no_word(body: bytes, *words: str) -> None:
    """Check that the client got none of these words of the call."""
    for word in words or HIDDEN:
        assert word.encode() not in body


@both_ways
@pytest.mark.parametrize("levels", [210, 300, 900, 1100, 5000, 10_000])
async def test_a_call_in_a_deep_event(kit: Kit, stream: bool, levels: int, watch: Watch) -> None:
    """Rule W5: a call in data that is nested too deeply to be read fails the turn, and no client sees it."""
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
    """Rule W6: the client gets all text before an event that cannot be read, however the stream was cut."""
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
    """Rule W5: data that is no JSON object, but may be a call for a client, is not passed on."""
    line = LINES[name].replace(b"NAME", TIME.encode()) + b"\n\n"
    async with before(chunked(kit.begun("a") + line + DONE)) as (proxy, _):
        answer = await ask(proxy, kit)
        assert answer.body.startswith(kit.begun("a"))
        assert b"upstream_malformed" in answer.body
        no_word(answer.body)


async def test_a_call_that_is_cut_off_at_the_end(kit: Kit) -> None:
    """Rule W5: if a stream ends within an event that may be a call, this part is not passed on."""
    data = kit.calling(("call_1", TIME, ARGUMENTS))
    end = data.index(TIME.encode()) + len(TIME)
    async with before(chunked(data[:end])) as (proxy, _):
        answer = await ask(proxy, kit)
        assert b"upstream_malformed" in answer.body
        no_word(answer.body)


async def test_a_call_after_the_end(kit: Kit, watch: Watch) -> None:
    """Rule W5: data after a turn's end is not part of the turn, and a call in it reaches no client."""
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
    """A Responses turn ends with its terminal event; after it, only the end mark is passed on."""
    first = responses.turn(responses.message("one"))
    second = responses.turn(responses.message("two", id="msg_2"), id="resp_2")
    for pieces in ([first + second + DONE], cut(first + second + DONE, 4)):
        async with before(chunked(*pieces)) as (proxy, _):
            assert (await ask(proxy, RESPONSES)).body == first + DONE


@both_ways
async def test_odd_replies_without_a_call_pass(kit: Kit, stream: bool) -> None:
    """Rule W2: data that cannot be read and contains no call is passed on unchanged."""
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
    """Rule W5: a call in a body of another encoding is refused, as client libraries detect encodings."""
    body = kit.reply("", ("call_1", TIME, ARGUMENTS)).decode().encode(encoding)
    async with before(whole(body)) as (proxy, _):
        answer = await ask(proxy, kit, stream=stream)
        assert (answer.status, answer.error["code"]) == (502, "upstream_malformed")


# Choices after the first one.


def later(data: bytes, index: bytes = b"1") -> bytes:
    """Return the same data for another choice."""
    return data.replace(b'"index":0,"delta"', b'"index":' + index + b',"delta"')


@pytest.mark.parametrize("index", [b"1", b"7", b'"1"', b'"0"', b"-1", b"true", b"1.0"])
async def test_a_call_in_a_later_choice(index: bytes, watch: Watch) -> None:
    """Rule W5: a server call in a choice after the first fails the turn, and the client does not see it."""
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
    """Rule W5: a call in a later choice is refused if its name comes in pieces or after its arguments."""
    first, second = pieces
    calls = chat.call("call_1", first, '{"timezone":"Hid' if first is None else None)
    calls += chat.call(None, second, 'den/City"}')
    async with before(chunked(chat.role() + later(calls) + chat.finish("tool_calls") + DONE)) as (proxy, _):
        answer = await ask(proxy, CHAT)
        assert b"choice after the first" in answer.body
        no_word(answer.body, TIME, TIME[:6], "call_1", '"Hid', "den/City")


async def test_a_reply_calls_in_a_later_choice() -> None:
    """Rule W5: a server call in a later choice is also refused if the answer is not streamed."""
    reply = json.loads(CHAT.reply("fine"))
    second = json.loads(CHAT.reply("", ("call_1", TIME, ARGUMENTS)))["choices"][0]
    reply["choices"].append({**second, "index": 1})
    async with before(whole(json.dumps(reply).encode())) as (proxy, _):
        answer = await ask(proxy, CHAT, stream=False)
        assert (answer.status, answer.error["code"]) == (502, "upstream_malformed")
        no_word(answer.body)


async def test_a_clients_call_in_a_later_choice_passes() -> None:
    """Rule W2: a later choice that calls the client's own tool is passed on unchanged."""
    mine = later(CHAT.calling(("call_1", "mine", "{}"), text="x"))
    data = chat.role() + chat.content("fine") + mine
    for pieces in ([data], cut(data, 5)):
        async with before(chunked(*pieces)) as (proxy, _):
            answer = await ask(proxy, CHAT, tools=["mine"])
            assert answer.body == data


@pytest.mark.parametrize("n", [2, 2.0, 3.0, "2", "2.0", 1e3])
async def test_more_than_one_choice_in_any_spelling(n: Any) -> None:
    """If ``n`` asks for several choices in any spelling, no server tool is offered; naming one is a 400."""
    data = later(CHAT.calling(("call_1", ECHO, '{"text":"a"}')))
    async with before(chunked(data)) as (proxy, upstream):
        answer = await ask(proxy, CHAT, n=n)
        assert answer.body == data
        assert "tools" not in json.loads(upstream.requests[0].body)
        named = await ask(proxy, CHAT, headers={"x-toolrelay-tools": ECHO}, n=n)
        assert (named.status, named.error["param"]) == (400, "n")


@pytest.mark.parametrize("n", [1, 1.0, None, "1", 1.5, "x", [], True])
async def test_one_choice_in_any_spelling(n: Any) -> None:
    """If ``n`` asks for one choice, or has no valid meaning, server tools are offered."""
    async with before(CHAT.stream("ok")) as (proxy, upstream):
        assert (await ask(proxy, CHAT, n=n)).status == 200
        assert "tools" in json.loads(upstream.requests[0].body)
