"""JSON may take far more memory than its bytes: its values are counted before it is parsed."""

import tracemalloc
from collections.abc import Iterator

import chat_script as chat
import pytest
import responses_script as responses
from faults_rig import ask, before, served_next
from raw_upstream import chunked, whole
from wire_kits import Kit

from proxy.json.size import MOST_READ_VALUES
from proxy.wires.chat.wire import ChatWire
from proxy.wires.responses.wire import ResponsesWire
from proxy.wires.stream.usage_tap import UsageTap

MANY = b"[" + b"{}," * MOST_READ_VALUES + b"{}]"
both_ways = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


@pytest.fixture
def memory() -> Iterator[None]:
    """Trace memory during the test."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


@both_ways
async def test_values_of_an_answer_are_bounded(kit: Kit, stream: bool) -> None:
    """An answer with too many JSON values is not read but fails; the text before it reaches the client."""
    data = b'{"x":' + MANY + b"}"
    begun = kit.begun("a")
    script = chunked(begun + b"data: " + data + b"\n\n") if stream else whole(data)
    async with before(script) as (proxy, upstream):
        answer = await ask(proxy, kit, stream=stream)
        assert answer.clean
        if stream:
            assert answer.body.startswith(begun)
            assert b"upstream_too_large" in answer.body
            assert len(answer.body) < 10_000
        else:
            assert (answer.status, answer.error["code"]) == (502, "upstream_too_large")
        assert (await proxy.run_reaches("failed")).run.error_code == "upstream_too_large"
        await served_next(proxy, upstream, kit)


async def test_where_no_tool_is_offered_it_passes(kit: Kit) -> None:
    """Rule W1: if no tool is offered, data with too many values passes unchanged."""
    data = b"data: " + MANY + b"\n\n" + kit.text("fine")
    async with before(chunked(data), allow=()) as (proxy, _):
        assert (await ask(proxy, kit)).body == data


@pytest.mark.no_cover  # With coverage of each line, this takes a minute.
@pytest.mark.parametrize("wire", [ChatWire(), ResponsesWire()], ids=lambda wire: str(wire.dialect.name))
def test_they_are_counted_before_they_take_memory(wire: ChatWire | ResponsesWire, memory: None) -> None:
    """An event, reply or arguments with many values take at most 20 times their bytes."""
    args = (
        f"[{'{},' * (MOST_READ_VALUES // 10)}{{}}]"  # Their reading takes memory in proportion to the bytes.
    )
    calls = {
        "chat": chat.call("call_1", "mine", args) + chat.finish("tool_calls") + chat.DONE,
        "responses": responses.turn(responses.function_call("call_1", "mine", args)),
    }[wire.dialect.name]
    for data, streamed in (
        (b'{"x":' + MANY + b"}", False),
        (b"data: " + MANY + b"\n\n", True),
        (calls, True),
    ):
        reader = wire.reader({"mine"}, lambda name: False, 8192)
        tracemalloc.reset_peak()
        base = tracemalloc.get_traced_memory()[0]
        if streamed:
            reader.feed(data)
            reader.close()
        else:
            with pytest.raises(Exception, match="JSON values"):
                reader.read_reply(data)
        assert tracemalloc.get_traced_memory()[1] - base < 20 * len(data)


def test_usage_is_found_without_parsing_it(memory: None) -> None:
    """In data that passes through, the usage is found without parsing a huge object."""
    data = b'{"usage":{"prompt_tokens":1},"x":' + MANY + b"}"
    tap = UsageTap()
    tracemalloc.reset_peak()
    tap.feed(b"data: " + data + b"\n\n")
    assert tracemalloc.get_traced_memory()[1] < 12 * len(data)
    assert tap.usage is not None
    assert tap.usage.input_tokens == 1


def test_there_is_room_for_what_models_say() -> None:
    """The reader accepts a long answer with the 20 likeliest tokens at each place."""
    likely = [{"token": "a", "logprob": -1.5, "bytes": [97]}] * 20
    content = [{"token": "a", "logprob": -1.5, "bytes": [97], "top_logprobs": likely}] * 4096
    data = chat.chunk_of({"content": "a"}, logprobs={"content": content})
    (frame,) = ChatWire().reader(set(), lambda name: False, 8192).feed(data)
    assert frame.payload is not None
