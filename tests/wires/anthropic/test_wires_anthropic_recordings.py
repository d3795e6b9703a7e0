"""Recorded streams and replies of many servers: calls, exact bytes, and composed runs."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from messages_rig import ASK, OURS, WIRE, hides, play, reader_of
from messages_script import Read, read_stream, tool, tool_use, turn
from recording_files import recording_files

from proxy.base.events import ToolCallFinished, TurnFailed, TurnFinished
from proxy.wires.client_port import ClientView, StreamWriter

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures"
END = re.compile(rb'event: message_stop\r?\ndata: [^\n]*"message_stop"[^\n]*\n\r?\n')


def _files(name: str) -> list[Path]:
    fixtures = [file for file in FIXTURES.rglob(f"turn-*/{name}") if ".anthropic" in str(file)]
    recorded = [
        file.path for file in recording_files() if file.wire == "anthropic" and file.path.name == name
    ]
    return sorted([*fixtures, *recorded])


STREAMS, REPLIES = _files("response.sse"), _files("response.json")


def _name(file: Path) -> str:
    return f"{file.parent.parent.name}/{file.parent.name}"[-80:]


def one_message(file: Path) -> bytes:
    """Return the first message of a recorded stream, with its last blank line."""
    data = file.read_bytes()
    data += b"" if data.endswith(b"\n\n") else b"\n" if data.endswith(b"\n") else b"\n\n"
    end = END.search(data)
    return data[: end.end()] if end is not None else data


def events_of(data: bytes) -> list[dict[str, Any]]:
    """Return the JSON of every event."""
    lines = [line[5:] for line in data.decode().splitlines() if line.startswith("data:")]
    read = [json.loads(line) for line in lines if line.strip().startswith("{")]
    return [one for one in read if isinstance(one, dict)]


def starts_of(data: bytes) -> list[dict[str, Any]]:
    """Return the blocks of calls as they begin."""
    blocks = [one["content_block"] for one in events_of(data) if one.get("type") == "content_block_start"]
    return [block for block in blocks if block["type"] == "tool_use"]


def spliced(data: bytes) -> bool:
    """Return whether a second message begins within the first."""
    return [one.get("type") for one in events_of(data)].count("message_start") > 1


WHOLE = [file for file in STREAMS if not spliced(one_message(file))]


def writer_for(names: set[str], *, streaming: bool = True) -> StreamWriter:
    """Return the writer of a client that declares these tools."""
    tools = [tool(name) for name in sorted(names)]
    asked = WIRE.parse({**ASK, "stream": streaming, "tools": tools})
    return WIRE.writer(asked, ClientView("m", hides(*names)))


@pytest.mark.parametrize("file", WHOLE, ids=_name)
def test_a_stream_is_read_and_handed_on(file: Path) -> None:
    """Calls match the blocks, the turn ends, and without server calls the bytes stay, for every cut."""
    data = one_message(file)
    names = {block["name"] for block in starts_of(data)}
    at = random.Random(0).sample(range(1, len(data)), min(30, len(data) - 1))
    whole, pieces = play(data, None, *names), play(data, None, *names, at=at)
    assert [(call.call_id, call.name) for call in whole.calls] == [
        (block["id"], block["name"]) for block in starts_of(data)
    ]
    assert (pieces.events, pieces.blocks, pieces.out) == (whole.events, whole.blocks, data)
    assert any(isinstance(event, TurnFinished | TurnFailed) for event in whole.events)
    writer = writer_for(names)
    out = play(data, writer, *names).out + writer.turn_ended("final") + writer.finish(None)
    assert out == data


@pytest.mark.parametrize("file", WHOLE, ids=_name)
def test_a_stream_goes_back_as_it_came(file: Path) -> None:
    """The next request has all texts, the kinds of the other blocks, and the signatures."""
    data = one_message(file)
    blocks = {}
    for event in events_of(data):
        if event.get("type") == "content_block_start":
            blocks[event["index"]] = dict(event["content_block"])
    names = {block["name"] for block in starts_of(data)}
    sent = play(data, None, *names).blocks
    kinds = [block["type"] for block in sent]
    texts = [
        one["delta"]["text"] for one in events_of(data) if one.get("delta", {}).get("type") == "text_delta"
    ]
    starts = [str(block.get("text") or "") for block in blocks.values() if block["type"] == "text"]
    assert "".join(block["text"] for block in sent if block["type"] == "text") == "".join([*starts, *texts])
    kept = [block["type"] for block in blocks.values()]
    assert [kind for kind in kinds if kind != "text"] == [kind for kind in kept if kind != "text"]
    signatures = [
        one["delta"]["signature"]
        for one in events_of(data)
        if one.get("delta", {}).get("type") == "signature_delta"
    ]
    assert [
        block["signature"] for block in sent if block["type"] == "thinking" and block.get("signature")
    ] == [one for one in signatures if one]


def composed(file: Path, names: set[str]) -> tuple[Read, bytes]:
    """Return a recorded turn composed after a hidden turn, and its original bytes."""
    data = one_message(file)
    writer = writer_for(names)
    out = play(turn(tool_use("toolu_hidden", OURS)), writer, *names).out + writer.turn_ended("hidden")
    played = play(data, writer, *names)
    out += played.out
    if any(isinstance(event, TurnFailed) for event in played.events):
        out += writer.fail("It failed.", type="upstream_error", code="x")
    else:
        out += writer.turn_ended("final") + writer.finish(None)
    return read_stream(out, overlaps=True), data


@pytest.mark.parametrize("file", WHOLE, ids=_name)
def test_a_stream_is_a_turn_of_a_run(file: Path) -> None:
    """After a hidden turn a recorded stream is composed into a valid stream with its calls."""
    data = one_message(file)
    read, _ = composed(file, {block["name"] for block in starts_of(data)})
    assert [block["name"] for block in read.calls] == [block["name"] for block in starts_of(data)]


@pytest.mark.parametrize("file", [file for file in WHOLE if starts_of(one_message(file))], ids=_name)
def test_a_streams_calls_are_hidden(file: Path) -> None:
    """If all calls are server calls, the client gets the rest of the stream."""
    data = one_message(file)
    read, _ = composed(file, set())
    assert read.calls == []
    for block in starts_of(data):
        assert block["id"] not in json.dumps(read.blocks)


@pytest.mark.parametrize("file", REPLIES, ids=_name)
def test_a_reply_is_read_and_handed_on(file: Path) -> None:
    """Calls match the blocks, the reply keeps its bytes, and its blocks go back unchanged."""
    body = file.read_bytes()
    payload = json.loads(body)
    content = payload.get("content") if isinstance(payload.get("content"), list) else []
    calls = [block for block in content if block["type"] == "tool_use"]
    names = {block["name"] for block in calls}
    reader = reader_of(*names)
    frame = reader.read_reply(body)
    made = [event.call for event in frame.events if isinstance(event, ToolCallFinished)]
    assert [(call.call_id, call.name, json.loads(call.arguments)) for call in made] == [
        (block["id"], block["name"], block["input"]) for block in calls
    ]
    assert json.loads(reader.message())["content"] == [block for block in content if block.get("text") != ""]
    writer = writer_for(names, streaming=False)
    writer.write(frame)
    assert writer.turn_ended("final") + writer.finish(None) == body
