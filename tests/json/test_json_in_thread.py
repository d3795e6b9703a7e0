"""Large texts are parsed, rendered and searched in a thread, so that the event loop serves others meanwhile.

The tests check the size of what the loop works on, and not its time: it parses no text longer than
:data:`~proxy.json.in_thread.LARGE_EVENT_BYTES`, and writes none longer than
:data:`~proxy.json.in_thread.LARGE_BYTES` to a socket in one call.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import chat_script as chat
import orjson
import pytest
import responses_script as responses
from looping import ANSWER, ASK, looping
from raw_upstream import KEEP, LAST_CHUNK, Step, chunk, head
from running_proxy import Answer

import proxy.json.lenient
import proxy.wires.stream.sse
from proxy.json.in_thread import LARGE_BYTES, LARGE_EVENT_BYTES, in_thread
from proxy.server.messages.response import HttpClientStream
from proxy.wires.chat.body import ChatBody
from proxy.wires.responses.body import ResponsesBody
from proxy.wires.stream.usage_tap import UsageTap

MB = 1 << 20
SSE = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
IMAGE = "A" * (4 * MB)
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses"}
ASKS: dict[str, dict[str, Any]] = {
    "chat": ASK,
    "responses": {"model": "m", "stream": True, "input": "hi"},
}


class Work:
    """The longest text of each kind of work, on the loop and in other threads."""

    def __init__(self) -> None:
        self.on_loop: dict[str, int] = {}
        self.elsewhere: dict[str, int] = {}
        self.loop_thread = threading.get_ident()

    def note(self, kind: str, size: int) -> None:
        """Note that this thread worked on a text of so many bytes."""
        side = self.on_loop if threading.get_ident() == self.loop_thread else self.elsewhere
        side[kind] = max(side.get(kind, 0), size)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    """Note the size of what is parsed, split into members, rendered and sent."""
    noted = Work()

    class Parser:
        """orjson as the reader of events uses it."""

        JSONDecodeError = orjson.JSONDecodeError

        @staticmethod
        def loads(data: bytes) -> Any:
            noted.note("parsed", len(data))
            return orjson.loads(data)

    monkeypatch.setattr(proxy.json.lenient, "orjson", Parser)
    for body in (ChatBody, ResponsesBody):

        def made(self: Any, raw: bytes, *args: Any, init: Any = body.__init__, **named: Any) -> None:
            noted.note("cut", len(raw))
            init(self, raw, *args, **named)

        def rendered(self: Any, edits: Any, render: Any = body.render) -> bytes:
            written: bytes = render(self, edits)
            noted.note("rendered", len(written))
            return written

        monkeypatch.setattr(body, "__init__", made)
        monkeypatch.setattr(body, "render", rendered)
    pushed = HttpClientStream._push

    def noting(self: HttpClientStream, data: bytes, last: bool) -> Any:
        noted.note("sent", len(data))
        return pushed(self, data, last)

    monkeypatch.setattr(HttpClientStream, "_push", noting)
    return noted


def in_pieces(data: bytes) -> list[Step]:
    return [chunk(data[at : at + 65536]) for at in range(0, len(data), 65536)]


def event(payload: Any) -> bytes:
    return b"data: " + json.dumps(payload, separators=(",", ":")).encode() + b"\n\n"


@asynccontextmanager
async def asked(wire: str, *scripts: list[Step], **more: Any) -> AsyncIterator[Answer]:
    async with looping(*scripts, allow=("core__*",)) as (running, _):
        yield await running.ask({**ASKS[wire], **more}, path=PATHS[wire])


BEGINNINGS = {"chat": chat.role(), "responses": responses.encode(responses.opening())}
ENDS = {
    "chat": chat.finish() + chat.DONE,
    "responses": responses.encode([responses.closing()]) + chat.DONE,
}
LARGE_EVENTS: dict[str, tuple[str, bytes]] = {
    "text": ("chat", event({"choices": [{"index": 0, "delta": {"content": IMAGE}}]})),
    "values": ("chat", event({"choices": [{"index": 0, "delta": {"content": "a"}}], "x": [{}] * 200_000})),
    "lines": ("chat", b"data: {}\n" + b"data\n" * 300_000 + b"\n"),
    "an image": (
        "responses",
        event(
            {
                "type": "response.image_generation_call.partial_image",
                "output_index": 0,
                "item_id": "ig_1",
                "partial_image_b64": IMAGE,
            }
        ),
    ),
}


@pytest.mark.parametrize("kind", LARGE_EVENTS)
async def test_a_large_event(kind: str, work: Work) -> None:
    """Rule W2: a large event passes byte by byte; it is parsed in a thread and sent in parts."""
    wire, large = LARGE_EVENTS[kind]
    data = BEGINNINGS[wire] + large + ENDS[wire]
    async with asked(wire, [SSE, *in_pieces(data), LAST_CHUNK, KEEP]) as answer:
        assert answer.body == data
    assert work.on_loop["parsed"] <= LARGE_EVENT_BYTES
    assert work.on_loop["sent"] <= LARGE_BYTES
    if kind != "lines":
        assert work.elsewhere["parsed"] > LARGE_EVENT_BYTES


async def test_large_events_of_text_that_are_alike(work: Work) -> None:
    """Large events with text are not joined to be parsed at once, as small ones are."""
    one = event({"choices": [{"index": 0, "delta": {"content": "b" * 200_000}}]})
    data = BEGINNINGS["chat"] + one * 30 + ENDS["chat"]
    async with asked("chat", [SSE, *in_pieces(data), LAST_CHUNK, KEEP]) as answer:
        assert answer.body == data
    assert work.on_loop["parsed"] <= LARGE_EVENT_BYTES
    assert LARGE_EVENT_BYTES < work.elsewhere["parsed"] < 2 * len(one)


async def test_a_call_in_a_large_event(work: Work) -> None:
    """Rule W5: a server call in a large event is found, too, and the client sees nothing of it."""
    padding = {"x": "y" * (2 * MB)}
    call = json.loads(chat.call("call_1", "core__get_current_time", '{"timezone":"UTC"}')[6:])
    called = chat.role() + event({**call, **padding}) + chat.finish("tool_calls") + chat.DONE
    script = [SSE, *in_pieces(called), LAST_CHUNK, KEEP]
    async with asked("chat", script, ANSWER) as answer:
        assert chat.text_of(chat.payloads_of(answer.body)) == "It is noon."
        assert b"get_current_time" not in answer.body
    assert work.on_loop["parsed"] <= LARGE_EVENT_BYTES


async def test_a_large_reply(work: Work) -> None:
    """A large reply that is not streamed is also parsed in a thread and sent in parts."""
    message = {"role": "assistant", "content": IMAGE}
    raw = json.dumps({"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    reply: list[Step] = [
        head("Content-Type: application/json", f"Content-Length: {len(raw)}"),
        raw.encode(),
        KEEP,
    ]
    async with asked("chat", reply, stream=False) as answer:
        assert answer.body == raw.encode()
    assert work.on_loop.get("parsed", 0) <= LARGE_EVENT_BYTES < work.elsewhere["parsed"]
    assert work.on_loop["sent"] <= LARGE_BYTES


@pytest.mark.parametrize("wire", ASKS)
async def test_a_large_request(wire: str, work: Work) -> None:
    """A large request is split into its members and rendered in a thread."""
    url = "data:image/png;base64," + IMAGE
    parts: dict[str, Any] = {
        "chat": {
            "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
        },
        "responses": {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]},
    }[wire]
    data = BEGINNINGS[wire] + ENDS[wire]
    async with asked(wire, [SSE, chunk(data), LAST_CHUNK, KEEP], **parts) as answer:
        assert answer.body == data
    assert not work.on_loop.keys() & {"cut", "rendered"}
    assert work.elsewhere["cut"] > len(IMAGE)
    assert work.elsewhere["rendered"] > len(IMAGE)


async def test_who_is_cancelled_waits_for_the_thread() -> None:
    """A cancelled task waits for its thread, which still uses the task's data."""
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def long_work() -> None:
        begun.set()
        may_end.wait(30)
        ended.set()

    task = asyncio.ensure_future(in_thread(long_work))
    await asyncio.to_thread(begun.wait, 30)
    task.cancel()
    await asyncio.sleep(0.01)
    assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


@pytest.mark.parametrize("strip", [False, True])
def test_usage_in_a_large_event_is_searched_for(strip: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large event that passes through is searched for usage without being decoded, and stays whole."""

    def decoded(raw: bytes, text: bytes, decode: Any = proxy.wires.stream.sse._decode) -> Any:
        assert len(raw) <= LARGE_EVENT_BYTES
        return decode(raw, text)

    monkeypatch.setattr(proxy.wires.stream.sse, "_decode", decoded)
    tap = UsageTap(strip=strip)
    lines = b"data\n" * 30_000
    large = (
        b'data: {"choices":[{}],\n' + lines + b'data: "usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n'
    )
    sent = event({"choices": [{"delta": {"content": "a"}}]}) + large + b"data: [DONE]\n\n"
    passed = b"".join(tap.feed(sent[at : at + 65536]) for at in range(0, len(sent), 65536)) + tap.close()
    assert passed == sent
    assert tap.usage is not None
    assert (tap.usage.input_tokens, tap.usage.output_tokens) == (3, 4)
