"""C12 to C23, C26 to C29: models that call tools in odd ways, and which calls run."""

import json
import re
from typing import Any

import pytest
from faults_rig import ECHO, SSE_HEAD, TIME, ask, before, cut, served_next
from probe_tools import Watch
from raw_upstream import KEEP, LAST_CHUNK, Step, chunk, chunked
from wire_kits import DONE, KITS, Call, Kit

NOON: Call = ("call_1", TIME, '{"timezone":"UTC"}')
HIDDEN = (TIME, ECHO, '"call_1"')
both_ways = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


def finished(finish: str) -> bool:
    """Say whether a turn ended as an answer ends."""
    return finish in ("stop", "completed")


@both_ways
async def test_one_server_tool(kit: Kit, stream: bool) -> None:
    """C12: a server call takes two turns and gives one result; the client gets only the answer."""
    async with before(kit.result(stream, "", NOON), kit.result(stream, "It is noon.")) as (proxy, upstream):
        answer = await ask(proxy, kit, stream=stream)
        said = kit.said(stream, answer.body, HIDDEN)
        assert (said.text, said.calls, finished(said.finish)) == ("It is noon.", [], True)
        assert len(upstream.requests) == 2
        ((call_id, result),) = kit.answered(upstream.requests[1])
        assert call_id == "call_1"
        assert "iso" in json.loads(result)


@pytest.mark.parametrize("form", ["cuts", "bytes", "crlf", "two end marks"])
async def test_a_call_in_pieces(kit: Kit, form: str) -> None:
    """C13: however a call's bytes arrive, it runs once, and the client sees one end mark."""
    data = kit.calling(NOON)
    pieces = {
        "cuts": cut(data, 11, 150),
        "bytes": [bytes([byte]) for byte in data],
        "crlf": [data.replace(b"\n", b"\r\n")],
        "two end marks": [data + DONE],
    }[form]
    async with before(chunked(*pieces), kit.stream("It is noon.")) as (proxy, upstream):
        answer = await ask(proxy, kit)
        # Events with CRLF that the proxy did not change stay as they are.
        assert kit.read(answer.body.replace(b"\r\n", b"\n"), HIDDEN).text == "It is noon."
        assert answer.body.count(b"[DONE]") == 1
        assert len(kit.answered(upstream.requests[1])) == 1


@both_ways
@pytest.mark.parametrize("count", [2, 64])
async def test_many_calls_at_once(kit: Kit, count: int, stream: bool) -> None:
    """C14: each call of a turn is answered once, with a result or the reason why there is none."""
    calls = [(f"call_{n}", ECHO, json.dumps({"text": str(n)})) for n in range(count)]
    async with before(kit.result(stream, "", *calls), kit.result(stream, "ok")) as (proxy, upstream):
        answer = await ask(proxy, kit, stream=stream)
        assert kit.said(stream, answer.body, HIDDEN).text == "ok"
        results = kit.answered(upstream.requests[1])
        assert [call_id for call_id, _ in results] == [call_id for call_id, _, _ in calls]
        assert sum("echo" in json.loads(result) for _, result in results) == min(count, 32)
        await served_next(proxy, upstream, kit)


BAD_ARGUMENTS = {
    "truncated": '{"text":"a"',
    "prose": "say a, please",
    "array": '["a"]',
    "number": "7",
    "string": '"a"',
    "deep": '{"text":' * 50_000 + "1" + "}" * 50_000,
    "duplicate keys": '{"text":"a","text":"b"}',
    "extra field": '{"text":"a","more":1}',
    "wrong type": '{"text":7}',
    "object for text": '{"text":{"a":1}}',
    "null for text": '{"text":null}',
    "nothing": "",
    "null": "null",
    "two objects": '{"text":"a"}{"text":"b"}',
    "nan": '{"text":NaN}',
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
async def test_arguments_that_do_not_fit(kit: Kit, watch: Watch, name: str) -> None:
    """C15, C18: with bad arguments, nothing runs, the model gets an error, and the run goes on."""
    bad = BAD_ARGUMENTS[name]
    async with before(kit.turn(("call_1", ECHO, bad)), kit.stream("sorry")) as (proxy, upstream):
        answer = await ask(proxy, kit)
        assert kit.read(answer.body, HIDDEN).text == "sorry"
        ((_, result),) = kit.answered(upstream.requests[1])
        told = json.loads(result)
        assert told["ok"] is False
        assert told["error_code"] in ("invalid_json", "invalid_arguments")
        assert watch.started == []
        assert len(upstream.requests[1].body) < 100_000
        await served_next(proxy, upstream, kit)


async def test_five_megabytes_of_arguments(kit: Kit, watch: Watch) -> None:
    """C16: arguments of 5 MB are refused, not run, and not sent back to the model whole."""
    bad = json.dumps({"text": "a" * (5 << 20)})
    async with before(kit.turn(("call_1", ECHO, bad)), kit.stream("sorry")) as (proxy, upstream):
        answer = await ask(proxy, kit)
        assert kit.read(answer.body, HIDDEN).text == "sorry"
        assert len(upstream.requests[1].body) < 1_000_000
        assert watch.started == []
        await served_next(proxy, upstream, kit)


@pytest.mark.parametrize("name", [f"{ECHO}\u200b", ECHO.upper(), f" {ECHO}", "nobody__knows", "ｅcho"])
async def test_names_that_are_none(kit: Kit, watch: Watch, name: str) -> None:
    """C17: a wrong name is not corrected; the model gets an error, and a valid call beside it runs."""
    first = kit.turn(("call_1", name, '{"text":"a"}'), ("call_2", ECHO, '{"text":"b"}'))
    async with before(first, kit.stream("ok")) as (proxy, upstream):
        answer = await ask(proxy, kit)
        assert kit.read(answer.body).text == "ok"
        (_, refused), (_, done) = kit.answered(upstream.requests[1])
        assert json.loads(refused)["error_code"] == "unknown_tool"
        assert json.loads(done)["echo"] == "b"
        assert watch.started == ["echo"]
        assert len(upstream.requests) <= 3


@pytest.mark.parametrize("ids", [("same", "same"), ("", "b"), ("", "")])
async def test_ids_that_are_none(kit: Kit, ids: tuple[str, str]) -> None:
    """C19: repeated and blank ids are repaired, so each call has one result."""
    calls = [(call_id, ECHO, json.dumps({"text": str(n)})) for n, call_id in enumerate(ids)]
    async with before(kit.turn(*calls), kit.stream("ok")) as (proxy, upstream):
        answer = await ask(proxy, kit)
        if (said := kit.read(answer.body)).error is None:
            assert said.text == "ok"
            assert [json.loads(r)["echo"] for _, r in kit.answered(upstream.requests[1])] == ["0", "1"]


@pytest.mark.parametrize("index", [-1, 7, 2**31, 2**63, 10**30])
async def test_indices_that_are_none(kit: Kit, index: int) -> None:
    """C19: an odd index costs no memory, and the stream ends properly."""
    data = re.sub(rb'"(output_)?index":0', b'"\\1index":%d' % index, kit.calling(NOON))
    async with before(chunked(data), kit.stream("ok")) as (proxy, upstream):
        answer = await ask(proxy, kit)
        assert answer.clean
        assert answer.body.endswith(DONE)
        if len(upstream.requests) == 2:
            assert len(kit.answered(upstream.requests[1])) == 1
        await served_next(proxy, upstream, kit)


@both_ways
@pytest.mark.parametrize("more", [1, 16])
async def test_always_another_call(kit: Kit, more: int, stream: bool) -> None:
    """C20: if the model always makes another call, turns and calls are bounded, and the stream ends."""
    calls = [(f"call_{n}", ECHO, json.dumps({"text": str(n)})) for n in range(more)]
    async with before(kit.result(stream, "", *calls), tools={"max_turns": 3, "max_calls": 20}) as (proxy, up):
        answer = await ask(proxy, kit, stream=stream)
        assert answer.clean
        kit.said(stream, answer.body, HIDDEN)
        assert 2 <= len(up.requests) <= 4
        assert (await proxy.only_run()).run.tool_calls <= 4 * more


async def test_a_forced_choice_is_relaxed(kit: Kit) -> None:
    """C21: ``tool_choice: required`` holds for the first turn only, so that the model can answer."""
    async with before(kit.turn(NOON), kit.stream("It is noon.")) as (proxy, upstream):
        answer = await ask(proxy, kit, tool_choice="required")
        assert kit.read(answer.body, HIDDEN).text == "It is noon."
        choices = [json.loads(request.body).get("tool_choice") for request in upstream.requests]
        assert choices[0] == "required"
        assert choices[1] in (None, "auto")


def _odd_ends(kit: Kit) -> dict[str, bytes]:
    data = kit.calling(NOON)
    chat = kit.name == "chat"
    return {
        "another reason": data.replace(b'"finish_reason":"tool_calls"', b'"finish_reason":"stop"'),
        "no end mark": data.removesuffix(DONE),
        "no finish": kit.half_call(TIME, '{"timezone":"UTC"}') + (DONE if chat else b""),
        "length": kit.calling(("call_1", TIME, '{"timez'), end="length" if chat else "incomplete"),
        "error inside the call": kit.half_call(TIME, '{"timez') + kit.error_event("overloaded") + DONE,
    }


@pytest.mark.parametrize(
    "name", ["another reason", "no end mark", "no finish", "length", "error inside the call"]
)
async def test_odd_ends_of_a_call(kit: Kit, name: str) -> None:
    """C22: a whole call with another finish reason runs, half of a call never does, and errors pass."""
    async with before(chunked(_odd_ends(kit)[name]), kit.stream("It is noon.")) as (proxy, upstream):
        answer = await ask(proxy, kit)
        assert answer.clean
        assert answer.body.count(b"[DONE]") == 1
        assert TIME.encode() not in answer.body
        if name in ("another reason", "no end mark"):
            assert kit.read(answer.body).text == "It is noon."
        elif name == "error inside the call":
            assert kit.read(answer.body).error is not None
        if name in ("length", "error inside the call"):
            assert len(upstream.requests) == 1


@both_ways
async def test_only_the_clients_tool(kit: Kit, stream: bool) -> None:
    """C23: a turn that calls only the client's tool reaches the client byte for byte."""
    mine: Call = ("call_c", "mine", "{}")
    data = kit.calling(mine) if stream else kit.reply("", mine)
    async with before(chunked(data) if stream else kit.whole("", mine)) as (proxy, upstream):
        answer = await ask(proxy, kit, stream=stream, tools=["mine"])
        assert without_tools(answer.body) == without_tools(data)
        assert len(upstream.requests) == 1


def without_tools(data: bytes) -> bytes:
    """Remove the echo of the offered tools, which only Responses has."""
    return re.sub(rb'("tools": ?)\[.*?\](, ?"truncation")', rb"\1[]\2", data)


async def test_both_sides_tools(kit: Kit) -> None:
    """C23: the client gets its own call once; after its answer, the model gets the results of both calls."""
    first = kit.turn(("call_s", TIME, '{"timezone":"UTC"}'), ("call_c", "mine", "{}"))
    async with before(first, kit.stream("done")) as (proxy, upstream):
        answer = await ask(proxy, kit, tools=["mine"])
        said = kit.read(answer.body, hidden=(TIME, '"call_s"'))
        assert said.calls == [("call_c", "mine", "{}")]
        assert said.finish in ("tool_calls", "completed")
        again = kit.ask(tools=["mine"])
        if kit.name == "chat":
            call = {"id": "call_c", "type": "function", "function": {"name": "mine", "arguments": "{}"}}
            again["messages"] += [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_c", "content": "mine!"},
            ]
        else:
            again["input"] = [{"type": "function_call_output", "call_id": "call_c", "output": "mine!"}]
            again["previous_response_id"] = json.loads(
                re.findall(rb"^data: (\{.*)$", answer.body, re.MULTILINE)[-1]
            )["response"]["id"]
        answer = await ask(proxy, kit, again)
        assert kit.read(answer.body).text == "done"
        results = dict(kit.answered(upstream.requests[1]))
        assert results["call_c"] == "mine!"
        assert "iso" in json.loads(results["call_s"])


async def test_text_before_a_call(kit: Kit) -> None:
    """C26: text before a call and after it comes once and in order."""
    async with before(kit.turn(NOON, text="Wait."), kit.stream("It is noon.")) as (proxy, _):
        answer = await ask(proxy, kit)
        text = kit.read(answer.body, HIDDEN).text
        assert text.index("Wait.") < text.index("It is noon.")
        assert text.count("Wait.") == text.count("It is noon.") == 1


async def test_two_answers_at_once(watch: Watch) -> None:
    """C27: with ``n`` over 1, no server tool is offered, and the second choice's call passes unchanged."""
    kit = KITS["chat"]
    data = kit.calling(("call_1", ECHO, '{"text":"a"}')).replace(b'"index":0,"delta"', b'"index":1,"delta"')
    async with before(chunked(data)) as (proxy, upstream):
        answer = await ask(proxy, kit, n=2)
        assert (answer.status, answer.clean, answer.body) == (200, True, data)
        assert "tools" not in json.loads(upstream.requests[0].body)
        assert watch.started == []


def _history(kit: Kit) -> dict[str, Any]:
    if kit.name == "chat":
        call = {"id": "call_x", "type": "function", "function": {"name": ECHO, "arguments": '{"text":"a"}'}}
        return kit.ask(
            messages=[
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
            ]
        )
    call = {"type": "function_call", "call_id": "call_x", "name": ECHO, "arguments": '{"text":"a"}'}
    return kit.ask(input=[{"role": "user", "content": "hi"}, call])


@pytest.mark.accepts("chat-answers", "responses-answers", why="the client leaves its call open")
async def test_calls_in_a_clients_history(kit: Kit, watch: Watch) -> None:
    """C28: a tool does not run for a call in the client's history."""
    async with before(kit.stream("ok")) as (proxy, _):
        answer = await ask(proxy, kit, _history(kit))
        assert answer.status in (200, 400)
        assert watch.started == []


async def test_one_name_twice(kit: Kit) -> None:
    """C29: a function that is declared twice is a 400 that names it, and no request goes upstream."""
    async with before(kit.stream("ok")) as (proxy, upstream):
        answer = await ask(proxy, kit, tools=["mine", "mine"])
        assert answer.status == 400
        assert "mine" in answer.error["message"]
        assert upstream.requests == []


async def test_a_reserved_name(kit: Kit) -> None:
    """C29: a client's function with the name of a server tool becomes the server tool, once."""
    async with before(kit.stream("ok")) as (proxy, upstream):
        answer = await ask(proxy, kit, tools=[TIME])
        assert answer.status == 200
        sent = json.loads(upstream.requests[0].body)["tools"]
        named = [tool for tool in sent if (tool.get("function") or tool).get("name") == TIME]
        assert len(named) == 1
        assert "timezone" in json.dumps(named)


async def test_half_a_call_and_then_silence(kit: Kit, watch: Watch) -> None:
    """C22: if a stream ends inside a call, nothing runs, and the client gets an error."""
    steps: list[Step] = [SSE_HEAD, chunk(kit.half_call(ECHO, '{"text":"a"}')), LAST_CHUNK, KEEP]
    async with before(steps) as (proxy, _):
        answer = await ask(proxy, kit)
        assert answer.clean
        assert kit.read(answer.body, (ECHO,)).error is not None
        assert watch.started == []
