"""Recorded streams of many providers: no crash, and the right calls.

Other tests hold the details that were found in them, on streams of their own.
"""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from recording_files import recording_files
from responses_check import check_response_stream
from responses_rig import HIDDEN, OURS, WIRE, hides, play
from responses_script import function_call, turn

from proxy.base.events import FinishReason, TurnFailed, TurnFinished
from proxy.wires.client_port import ClientView, StreamWriter

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures"
CALL = function_call("call_h", OURS)


def _streams() -> list[Path]:
    """Return every stream of the Responses wire: fixtures and other recordings."""
    fixtures = [file for file in FIXTURES.rglob("turn-*/response.sse") if ".responses" in str(file)]
    recorded = [file.path for file in recording_files() if file.wire == "responses" and file.streams]
    return sorted([*fixtures, *recorded])


def one_response(file: Path) -> bytes:
    """Return a recorded stream, or the first response of a file with several."""
    data = file.read_bytes()
    if data.count(b"\nevent: response.created\n") + data.startswith(b"event: response.created\n") < 2:
        return data
    end = re.search(rb"event: response\.(?:completed|incomplete|failed)\n.*\n\n", data)
    assert end is not None
    return data[: end.end()]


STREAMS = _streams()


def named(file: Path) -> str:
    """Return the end of a recording's path."""
    return f"{file.parent.parent.name}/{file.parent.name}"[-70:]


def writer_for(names: set[str]) -> StreamWriter:
    """Return the writer of a client that declares these functions."""
    tools = [{"type": "function", "name": name} for name in sorted(names)]
    asked = WIRE.parse({"model": "m", "stream": True, "tools": tools})
    return WIRE.writer(asked, ClientView("m", hides(*names)))


def final_calls(data: bytes) -> list[tuple[str, str]]:
    """Return (name, arguments) of each function call, from the finished items of a stream."""
    lines = [line[5:] for line in data.decode().splitlines() if line.startswith("data:")]
    events: list[dict[str, Any]] = [json.loads(line) for line in lines if "[DONE]" not in line]
    items = [e["item"] for e in events if e.get("type") == "response.output_item.done"]
    return [(i["name"], i["arguments"]) for i in items if i["type"] == "function_call"]


@pytest.mark.parametrize("file", STREAMS, ids=named)
def test_a_stream_is_read_and_handed_on(file: Path) -> None:
    """Calls match the items, the turn ends, and only tools and choice may change, for every cut."""
    data = one_response(file)
    names = {name for name, _ in final_calls(data)}
    at = random.Random(0).sample(range(1, len(data)), min(30, len(data) - 1))
    whole, pieces = play(data, None, *names), play(data, None, *names, at=at)
    assert [(call.name, call.arguments) for call in whole.calls] == [
        (name, arguments or "{}") for name, arguments in final_calls(data)
    ]
    assert (pieces.events, pieces.message, pieces.out) == (whole.events, whole.message, data)
    assert any(isinstance(event, TurnFinished | TurnFailed) for event in whole.events)
    handed_on = play(data, writer_for(names), *names).out
    changed = [e for e in zip(_events(handed_on), _events(data), strict=True) if e[0] != e[1]]
    for ours, theirs in changed:
        response = {**theirs["response"], "tools": ours["response"]["tools"]}
        assert ours == {**theirs, "response": {**response, "tool_choice": ours["response"]["tool_choice"]}}


def _events(data: bytes) -> list[dict[str, Any]]:
    return [
        json.loads(line[5:])
        for line in data.decode().splitlines()
        if line.startswith("data:") and "[DONE]" not in line
    ]


@pytest.mark.parametrize("file", STREAMS, ids=named)
def test_a_stream_is_a_turn_of_a_run(file: Path) -> None:
    """After a hidden turn a recorded stream is composed into a valid stream with its calls."""
    data = one_response(file)
    names = {name for name, _ in final_calls(data)}
    writer = writer_for(names)
    out = play(turn(CALL), writer, *names).out + writer.turn_ended("hidden")
    played = play(data, writer, *names)
    out += played.out
    if any(isinstance(event, TurnFailed) for event in played.events):
        out += writer.fail("It failed.", type="upstream_error", code="x")
    else:
        out += writer.turn_ended("final") + writer.finish(None)
    read = check_response_stream(out, hidden=HIDDEN)
    assert [name for _, name, _ in read.calls] == [name for name, _ in final_calls(data)]


@pytest.mark.parametrize("file", [file for file in STREAMS if final_calls(file.read_bytes())], ids=named)
def test_a_streams_calls_are_hidden(file: Path) -> None:
    """If all calls are server calls, the client gets none of them."""
    data = one_response(file)
    writer = writer_for(set())
    played = play(data, writer)
    out = played.out + writer.turn_ended("hidden")
    out += play(turn(function_call("call_x", "nobody")), writer).out
    out += writer.turn_ended("final") + writer.finish(FinishReason.STOP)
    assert final_calls(out) == []
    assert not [one for one in _events(out) if "function_call_arguments" in one["type"]]
    for call in played.calls:
        assert f'"{call.call_id}"'.encode() not in out
