"""Streams with defects: the proxy composes what clients cannot read, and passes everything else."""

import json
import random
from itertools import pairwise, takewhile
from typing import Any

import pytest
from chat_script import DONE, chunk_of, content, events_of, finish, role, sse, usage
from fixture_loader import FIXTURES
from raw_upstream import FIN, KEEP, LAST_CHUNK, RawUpstream, Step, chunk, head
from responses_check import check_response_stream
from running_proxy import Answer, make_config, running
from sse_check import check_chat_stream

HEAD = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
TOOL = {
    "type": "function",
    "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}},
}
CHAT: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [TOOL],
}
RESPONSES: dict[str, Any] = {"model": "m", "stream": True, "input": "hi"}
ARGUMENTS = '{"id":"A-1"}'
both = pytest.mark.parametrize("allow", [(), ("core__*",)], ids=["none offered", "offered"])


def delta(*calls: Any) -> bytes:
    """A chunk with these pieces of calls."""
    return chunk_of({"tool_calls": [*calls]})


def piece(index: Any = 0, **changes: Any) -> dict[str, Any]:
    """The first piece of a call; a member that is ``None`` is left out."""
    function = {"name": "look_up", "arguments": ARGUMENTS, **changes.pop("function", {})}
    whole = {"index": index, "id": "call_1", "type": "function", "function": function, **changes}
    return {key: value for key, value in whole.items() if value is not None}


TOOLS_END = finish("tool_calls") + DONE
DEFECTS = {
    "no id": delta(piece(id=None)) + TOOLS_END,
    "blank id": delta(piece(id="")) + TOOLS_END,
    "no index": delta(piece(None)) + TOOLS_END,
    "negative index": delta(piece(-1)) + TOOLS_END,
    "index from 1": delta(piece(1)) + TOOLS_END,
    "index as text": delta(piece("0")) + TOOLS_END,
    "no type": delta(piece(type=None)) + TOOLS_END,
    "arguments as object": delta(piece(function={"arguments": {"id": "A-1"}})) + TOOLS_END,
    "name again": delta(piece(function={"arguments": '{"id":'}))
    + delta({"index": 0, "function": {"name": "look_up", "arguments": '"A-1"}'}})
    + TOOLS_END,
    "id again": delta(piece(function={"arguments": '{"id":'}))
    + delta({"index": 0, "id": "call_1", "function": {"arguments": '"A-1"}'}})
    + TOOLS_END,
    "one object for a list": chunk_of({"tool_calls": piece()}) + TOOLS_END,
    "stop": delta(piece()) + finish("stop") + DONE,
    "no reason": delta(piece()) + DONE,
    "stop and no end mark": delta(piece()) + finish("stop"),
}
SOUND = {
    "whole call": delta(piece()) + TOOLS_END,
    "in pieces": delta(piece(function={"arguments": ""}))
    + delta({"index": 0, "function": {"arguments": '{"id":'}})
    + delta({"index": 0, "id": None, "function": {"name": None, "arguments": '"A-1"}'}})
    + TOOLS_END,
    "two calls": delta(piece(), piece(1, id="call_2")) + TOOLS_END,
    "split name": delta(piece(function={"name": "look", "arguments": ""}))
    + delta({"index": 0, "function": {"name": "_up", "arguments": ARGUMENTS}})
    + TOOLS_END,
    "empty lists beside text": chunk_of({"content": "a", "tool_calls": []}) + finish() + DONE,
    "the words in a text": content('"tool_calls": [{"index": 7}]') + finish() + DONE,
    "an error within a call": delta(piece(function={"arguments": '{"i'}))
    + sse({"error": {"message": "overloaded", "code": 529}})
    + DONE,
    "cut at its bound": delta(piece(function={"arguments": '{"i'})) + finish("length") + DONE,
}


def cut(data: bytes, seed: int) -> list[Step]:
    """A response of ``data`` in a few random pieces, or in one piece for a seed of 0."""
    places = sorted(random.Random(seed).sample(range(1, len(data)), 9)) if seed else []
    edges = [0, *places, len(data)]
    return [HEAD, *[chunk(data[a:b]) for a, b in pairwise(edges)], LAST_CHUNK, KEEP]


def passed(body: bytes, data: bytes) -> int:
    """How many events at the beginning of a client's stream are those of the upstream, unchanged."""
    pairs = zip(events_of(body), events_of(data), strict=False)
    return len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])


async def relayed(
    *steps: Step,
    body: dict[str, Any] = CHAT,
    repair: str = "auto",
    allow: tuple[str, ...] = (),
    path: str = "/v1/chat/completions",
) -> Answer:
    """What a client gets for one scripted answer."""
    async with RawUpstream(list(steps)) as upstream:
        config = make_config({"base_url": upstream.url, "repair": repair}, allow=allow)
        async with running(config) as proxy:
            return await proxy.ask(body, path=path)


@both
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("defect", DEFECTS)
async def test_a_defective_call_is_composed(defect: str, seed: int, allow: tuple[str, ...]) -> None:
    """The client gets one whole call with id, index 0 and finish reason, however the stream was cut."""
    data = role() + content("One moment.") + DEFECTS[defect]
    answer = await relayed(*cut(data, seed), allow=allow)
    read = check_chat_stream(answer.body, wants_usage=False, forwarded=passed(answer.body, data))
    assert (read.text, read.finish) == ("One moment.", "tool_calls")
    assert [(one.name, json.loads(one.arguments)) for one in read.calls] == [("look_up", {"id": "A-1"})]
    assert answer.clean


@both
@pytest.mark.parametrize("sound", SOUND)
async def test_a_sound_stream_keeps_its_bytes(sound: str, allow: tuple[str, ...]) -> None:
    """Rules W1, W2: a stream without a defect keeps its bytes."""
    data = role() + content("One moment.") + SOUND[sound]
    for seed in range(2):
        assert (await relayed(*cut(data, seed), allow=allow)).body == data


@both
@pytest.mark.parametrize("defect", ["no id", "no reason", "stop"])
async def test_a_repaired_stream_says_its_usage_once(defect: str, allow: tuple[str, ...]) -> None:
    """Usage that was forwarded before the defect is not composed again: some clients add up what they get."""
    data = role() + DEFECTS[defect].removesuffix(DONE) + usage(7, 2) + DONE
    answer = await relayed(
        *cut(data, 0), body={**CHAT, "stream_options": {"include_usage": True}}, allow=allow
    )
    told = [one["usage"] for one in map(json.loads, _data(answer.body)) if one.get("usage")]
    assert told == [{"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}]


def _data(stream: bytes) -> list[bytes]:
    return [line[6:] for line in stream.splitlines() if line.startswith(b"data: {")]


@pytest.mark.parametrize("defect", DEFECTS)
async def test_without_repair_the_bytes_pass(defect: str) -> None:
    """With ``repair = "off"`` the client gets the upstream's bytes, with an end mark."""
    data = role() + DEFECTS[defect]
    answer = await relayed(*cut(data, 0), repair="off")
    assert answer.body == data + (b"" if data.endswith(DONE) else DONE)


async def test_openais_own_stop_behind_a_forced_call_passes() -> None:
    """If the request forces one function, a call that ends with ``stop`` passes, as OpenAI sends it so."""
    data = role() + DEFECTS["stop"]
    choice = {"type": "function", "function": {"name": "look_up"}}
    assert (await relayed(*cut(data, 0), body={**CHAT, "tool_choice": choice})).body == data


async def test_several_answers_are_left_alone() -> None:
    """A request for several answers is not repaired, because a composed stream has only one choice."""
    data = role() + DEFECTS["no id"]
    for repair in ("auto", "always"):
        assert (await relayed(*cut(data, 0), body={**CHAT, "n": 2}, repair=repair)).body == data


@both
@pytest.mark.parametrize("lacks", ["reason", "end mark"])
async def test_always_heals_what_only_reading_finds(lacks: str, allow: tuple[str, ...]) -> None:
    """``always`` repairs an empty first chunk, repeated roles, unwanted usage, and a missing id, reason or
    end mark."""
    said = [{"role": "assistant", "content": word} for word in ("a", "b")]
    chunks = [sse({"choices": [{"index": 0, "delta": one, "finish_reason": None}]}) for one in said]
    if lacks == "end mark":
        chunks.append(sse({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
    data = sse({"id": "", "choices": [], "prompt_filter_results": []}) + b"".join(chunks) + usage(1, 2)
    end = DONE if lacks == "reason" else b""
    answer = await relayed(*cut(data + end, 0), repair="always", allow=allow)
    read = check_chat_stream(answer.body, wants_usage=False)
    assert (read.text, read.finish, read.error) == ("ab", "stop", None)
    assert answer.clean


@both
@pytest.mark.parametrize("repair", ["auto", "always"])
async def test_a_composed_stream_that_breaks_says_so(repair: str, allow: tuple[str, ...]) -> None:
    """A composed stream that breaks off ends with an error and without a finish reason."""
    data = role() + delta(piece(id=None, function={"arguments": '{"i'}))
    for last in (FIN, LAST_CHUNK):
        answer = await relayed(HEAD, chunk(data), last, repair=repair, allow=allow)
        read = check_chat_stream(answer.body, wants_usage=False, forwarded=passed(answer.body, data))
        assert read.error is not None
        assert read.finish is None


@both
async def test_an_error_inside_a_composed_stream_is_told(allow: tuple[str, ...]) -> None:
    """An error of the upstream inside a composed stream reaches the client with its message."""
    data = role() + delta(piece(id=None)) + sse({"error": {"message": "overloaded", "code": 529}}) + DONE
    answer = await relayed(*cut(data, 0), allow=allow)
    read = check_chat_stream(answer.body, wants_usage=False, forwarded=passed(answer.body, data))
    assert read.error is not None
    assert "overloaded" in str(read.error)


STREAMS = sorted(
    path.parent.parent
    for path in FIXTURES.glob("llamacpp.responses/*/turn-1/response.sse")
    if b"core__" not in path.read_bytes()
)


@both
@pytest.mark.parametrize("repair", ["auto", "always"])
@pytest.mark.parametrize("folder", STREAMS, ids=lambda path: path.name)
async def test_llama_servers_responses_are_whole(folder: Any, repair: str, allow: tuple[str, ...]) -> None:
    """llama-server's responses get numbers, indices and a full resource, however the stream was cut."""
    data = (folder / "turn-1" / "response.sse").read_bytes()
    request = json.loads((folder / "client" / "request.json").read_bytes())
    for seed in range(3):
        steps = cut(data, seed)
        answer = await relayed(*steps, body=request, repair=repair, allow=allow, path="/v1/responses")
        read = check_response_stream(answer.body)
        recorded = [json.loads(line[6:]) for line in data.split(b"\n") if line.startswith(b"data: {")]
        last = recorded[-1]["response"]
        assert read.response["output"] == last["output"]
        assert read.response["created_at"] > 0
        assert answer.clean


async def test_a_sound_response_stream_keeps_its_bytes() -> None:
    """A sound Responses stream passes, also after a comment, and if a later event has no sequence number."""
    created = {"id": "resp_1", "object": "response", "created_at": 7, "model": "m", "status": "in_progress"}
    events = [
        {"type": "response.created", "sequence_number": 0, "response": {**created, "output": []}},
        {"type": "response.output_text.delta", "delta": "hi"},
        {"type": "response.completed", "sequence_number": 2, "response": {**created, "output": []}},
    ]
    data = b": hello\n\n" + b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in events)
    for seed in range(3):
        answer = await relayed(*cut(data, seed), body=RESPONSES, path="/v1/responses")
        assert answer.body == data + DONE


def response_stream(*, items: bool, response: bool) -> bytes:
    """A stream that gives its item, or itself, another id in each event."""
    part, number = {"type": "output_text", "text": "", "annotations": []}, iter(range(99))

    def resource(status: str, *output: Any) -> dict[str, Any]:
        response_id = f"resp_{next(number)}" if response else "resp_1"
        fixed = {"object": "response", "created_at": 7, "model": "m", "tools": [], "error": None}
        return {"id": response_id, "status": status, "output": [*output], "usage": None, **fixed}

    def item(status: str, *content: Any) -> dict[str, Any]:
        return {
            "type": "message",
            "id": item_id(),
            "role": "assistant",
            "status": status,
            "content": [*content],
        }

    def item_id() -> str:
        return f"msg_{next(number)}" if items else "msg_1"

    def within(kind: str, **more: Any) -> dict[str, Any]:
        return {
            "type": f"response.{kind}",
            "item_id": item_id(),
            "output_index": 0,
            "content_index": 0,
            **more,
        }

    done = {**part, "text": "Hello"}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": resource("in_progress")},
        {"type": "response.in_progress", "response": resource("in_progress")},
        {"type": "response.output_item.added", "output_index": 0, "item": item("in_progress")},
        within("content_part.added", part=part),
        within("output_text.delta", delta="Hel", logprobs=[]),
        within("output_text.delta", delta="lo", logprobs=[]),
        within("output_text.done", text="Hello", logprobs=[]),
        within("content_part.done", part=done),
        {"type": "response.output_item.done", "output_index": 0, "item": item("completed", done)},
        {"type": "response.completed", "response": resource("completed", item("completed", done))},
    ]
    return b"".join(
        f"event: {one['type']}\ndata: {json.dumps({**one, 'sequence_number': at})}\n\n".encode()
        for at, one in enumerate(events)
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("items", "response"), [(True, False), (False, True), (True, True)])
async def test_rotating_ids_of_a_response_are_repaired(items: bool, response: bool, seed: int) -> None:
    """An item, and a response, has one id in all events that the proxy reads."""
    data = response_stream(items=items, response=response)
    answer = await relayed(*cut(data, seed), body=RESPONSES, path="/v1/responses", allow=("core__*",))
    read = check_response_stream(answer.body)
    (item,) = read.response["output"]
    assert item["content"][0]["text"] == "Hello"
    events = [json.loads(line) for line in _data(answer.body)]
    assert len({one["response"]["id"] for one in events if "response" in one}) == 1
    ids = {one.get("item_id") or one["item"]["id"] for one in events if "output_index" in one}
    assert ids == {item["id"]}


async def test_steady_ids_of_a_response_keep_their_bytes() -> None:
    """Rule W2: a stream whose ids stay the same passes as it came."""
    data = response_stream(items=False, response=False)
    answer = await relayed(*cut(data, 1), body=RESPONSES, path="/v1/responses", allow=("core__*",))
    within = data[data.index(b"event: response.output_item.added") : data.index(b"event: response.completed")]
    assert within in answer.body


@pytest.mark.parametrize("last", [FIN, LAST_CHUNK], ids=["broken", "cut short"])
async def test_a_response_stream_that_breaks_fails(last: Step) -> None:
    """A composed response without its terminal event ends with ``response.failed``."""
    data = (FIXTURES / "llamacpp.responses/text/turn-1/response.sse").read_bytes()
    begun = data[: data.index(b"event: response.output_text.delta") + 400].rpartition(b"\n\n")[0] + b"\n\n"
    answer = await relayed(HEAD, chunk(begun), last, body=RESPONSES, path="/v1/responses")
    read = check_response_stream(answer.body)
    assert read.response["status"] == "failed"
    assert read.error is not None
