"""Official clients of all dialects are answered from fixtures, and get a readable 404 for other requests."""

import importlib.util
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from fixture_maker import chat_reply, chat_stream, message_reply, ollama_reply, write_fixture
from require import require

from proxy.testing.running import Replay, ReplayThread

HI: list[Any] = [{"role": "user", "content": "Hi"}]
BYE: list[Any] = [{"role": "user", "content": "Bye"}]
GPT, CLAUDE, QWEN = "gpt-4o-mini", "claude-recorded", "qwen3:8b"
ANSWER: dict[str, Any] = {
    "id": "resp_recorded1",
    "object": "response",
    "created_at": 1,
    "status": "completed",
    "model": GPT,
    "output": [
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Hello.", "annotations": []}],
        }
    ],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}


def anthropic_stream(*texts: str) -> bytes:
    """A stream of Messages with these pieces of text."""
    started = {**message_reply(""), "content": [], "stop_reason": None}
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    deltas = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
        for text in texts
    ]
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": started}, block, *deltas]
    events += [{"type": "content_block_stop", "index": 0}, end, {"type": "message_stop"}]
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (event["type"].encode(), json.dumps(event).encode()) for event in events
    )


@pytest.fixture(scope="module")
def thread() -> Iterator[ReplayThread]:
    with ReplayThread() as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Fixtures of each dialect."""
    write_fixture(tmp_path / "chat", {"model": GPT, "messages": HI}, chat_reply("Hello."))
    write_fixture(
        tmp_path / "chat-stream", {"model": GPT, "messages": HI, "stream": True}, chat_stream("Hel", "lo.")
    )
    write_fixture(tmp_path / "responses", {"model": GPT, "input": "Hi"}, ANSWER, wire="responses")
    ask = {"model": CLAUDE, "max_tokens": 9, "messages": HI}
    write_fixture(tmp_path / "messages", ask, message_reply("Hello."), wire="anthropic")
    streamed = {**ask, "stream": True}
    write_fixture(tmp_path / "messages-stream", streamed, anthropic_stream("Hel", "lo."), wire="anthropic")
    plain = {"model": QWEN, "messages": HI, "stream": False}
    write_fixture(tmp_path / "ollama", plain, ollama_reply("Hello."), wire="ollama")
    lines = b"".join(
        json.dumps({**ollama_reply(text), "done": text == "lo."}).encode() + b"\n" for text in ("Hel", "lo.")
    )
    write_fixture(tmp_path / "ollama-stream", {**plain, "stream": True}, lines, wire="ollama")
    return tmp_path


Start = Callable[..., Replay]


@pytest.fixture
def start(thread: ReplayThread) -> Iterator[Start]:
    """Start servers of fixtures; they end with the test."""
    started: list[Replay] = []

    def start_one(folder: Path, *, speed: float = 0.0) -> Replay:
        replay = Replay(folder, speed=speed, scrub=(), record=None)
        thread.run(replay.start())
        started.append(replay)
        return replay

    yield start_one
    for replay in started:
        thread.run(replay.stop())


@pytest.fixture
def replay(folder: Path, start: Start) -> Replay:
    return start(folder)


def test_openai_waits_and_streams(replay: Replay) -> None:
    """The synchronous client gets whole answers of both dialects, and a stream."""
    with openai.OpenAI(base_url=replay.openai, api_key="unused") as client:
        whole = client.chat.completions.create(model=GPT, messages=HI)
        assert (whole.id, whole.choices[0].message.content) == ("chatcmpl-recorded1", "Hello.")
        assert client.responses.create(model=GPT, input="Hi").output_text == "Hello."
        with client.chat.completions.create(model=GPT, messages=HI, stream=True) as stream:
            pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
        assert [piece for piece in pieces if piece] == ["Hel", "lo."]
        assert {model.id for model in client.models.list()} == {GPT, CLAUDE, QWEN}


async def test_openai_async(replay: Replay) -> None:
    """The asynchronous client works on the loop of a test, as the server runs in a thread of its own."""
    async with openai.AsyncOpenAI(base_url=replay.openai, api_key="unused") as client:
        whole = await client.chat.completions.create(model=GPT, messages=HI)
        assert whole.choices[0].message.content == "Hello."
        stream = await client.chat.completions.create(model=GPT, messages=HI, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "Hello."


async def test_anthropic(replay: Replay) -> None:
    """Anthropic's clients get whole messages and streams."""
    with anthropic.Anthropic(base_url=replay.anthropic, api_key="unused") as client:
        whole = client.messages.create(model=CLAUDE, max_tokens=9, messages=HI)
        assert [block.text for block in whole.content if block.type == "text"] == ["Hello."]
        with client.messages.stream(model=CLAUDE, max_tokens=9, messages=HI) as stream:
            assert "".join(stream.text_stream) == "Hello."
        assert GPT in {model.id for model in client.models.list()}
    async with anthropic.AsyncAnthropic(base_url=replay.anthropic, api_key="unused") as waiting:
        again = await waiting.messages.create(model=CLAUDE, max_tokens=9, messages=HI)
        assert again.content == whole.content


async def test_ollama(replay: Replay) -> None:
    """Ollama's clients get whole answers, streams, and the list of models."""
    require("ollama", importlib.util.find_spec("ollama") is not None, "the package ollama is not installed")
    from ollama import AsyncClient, Client

    client: Any = Client(replay.ollama)
    assert client.chat(model=QWEN, messages=HI).message.content == "Hello."
    assert (
        "".join(part.message.content for part in client.chat(model=QWEN, messages=HI, stream=True))
        == "Hello."
    )
    assert QWEN in {model.model for model in client.list().models}
    waiting: Any = AsyncClient(replay.ollama)
    assert (await waiting.chat(model=QWEN, messages=HI)).message.content == "Hello."
    client._client.close()
    await waiting._client.aclose()


async def test_each_client_reads_the_difference_in_its_own_error(replay: Replay) -> None:
    """A miss is a 404 in the dialect of the client, whose message shows the words."""
    said: list[str] = []
    with openai.OpenAI(base_url=replay.openai, api_key="unused") as client:
        with pytest.raises(openai.NotFoundError) as chat:
            client.chat.completions.create(model=GPT, messages=BYE)
        assert chat.value.code == "no_fixture"
        said.append(str(chat.value))
    with anthropic.Anthropic(base_url=replay.anthropic, api_key="unused") as client_of_claude:
        with pytest.raises(anthropic.NotFoundError) as messages:
            client_of_claude.messages.create(model=CLAUDE, max_tokens=9, messages=BYE)
        said.append(str(messages.value))
    require("ollama", importlib.util.find_spec("ollama") is not None, "the package ollama is not installed")
    import ollama

    client_of_qwen: Any = ollama.Client(replay.ollama)
    with pytest.raises(ollama.ResponseError) as chat_of_ollama:
        client_of_qwen.chat(model=QWEN, messages=BYE)
    client_of_qwen._client.close()
    assert chat_of_ollama.value.status_code == 404
    said.append(chat_of_ollama.value.error)
    assert len(replay.missed) == 3
    for message in said:
        assert "[-Hi-]{+Bye+}" in message


def test_pauses_are_kept_at_speed_one(tmp_path: Path, start: Start) -> None:
    """A stream takes its recorded time at speed 1, and none at speed 0."""
    body = chat_stream("Hel", "lo.")
    ask = {"model": GPT, "messages": HI, "stream": True}
    write_fixture(tmp_path / "one", ask, body, pieces=[(0, 10), (700, len(body) - 10)])
    took = []
    for speed in (1.0, 0.0):
        with openai.OpenAI(base_url=start(tmp_path, speed=speed).openai, api_key="unused") as client:
            began = time.monotonic()
            for _ in client.chat.completions.create(model=GPT, messages=HI, stream=True):
                pass
            took.append(time.monotonic() - began)
    # The first cannot be faster than its pause, however busy this machine is.
    assert took[0] >= 0.69


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n[]", b"400"),
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"404"),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n", b"413"),
        (b"GET /v1/../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", b"404"),
    ],
)
def test_odd_requests_get_an_error(replay: Replay, head: bytes, status: bytes) -> None:
    """A body of another kind, a path of no dialect and a body of any size are refused."""
    port = int(replay.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(head)
        assert connection.recv(4096).split(b" ")[1] == status


def test_a_broken_connection_breaks_again(tmp_path: Path, start: Start) -> None:
    """Where the recorded connection ended early, the client's does, too."""
    ask = {"model": GPT, "messages": HI, "stream": True}
    folder = write_fixture(tmp_path / "one", ask, chat_stream("Hel")[:200])
    with (folder / "turn-1" / "response.toml").open("a") as file:
        file.write("broken = true\n")
    with openai.OpenAI(base_url=start(tmp_path).openai, api_key="unused", max_retries=0) as client:
        stream = client.chat.completions.create(model=GPT, messages=HI, stream=True)
        with pytest.raises(Exception, match=r"(?i)incomplete|peer closed|connection error"):
            list(stream)
