"""Anthropic Messages as data: errors, and the end of a stream that the proxy forwards unchanged."""

import itertools
import json
import random
from typing import Any

import pytest
from messages_script import (
    PING,
    STOP,
    block_events,
    ending,
    error_event,
    read_stream,
    start,
    text,
    tool_use,
    turn,
)
from recording_files import RecordingFile, recording_files

from proxy.wires.anthropic.dialect import ANTHROPIC, MessageBoundary
from proxy.wires.registry.table import SERVED

WHOLE = turn(text("It is noon."), tool_use("toolu_1", "mine", {"type": "message_stop", "error": {"x": 1}}))


def passed(data: bytes, seed: int | None = None) -> bytes:
    """Feed a stream in pieces through a boundary, and return what comes out."""
    boundary = MessageBoundary()
    at: list[int] = []
    if seed is not None:
        at = sorted(random.Random(seed).sample(range(1, len(data)), min(len(data) - 1, 40)))
    places = [0, *at, len(data)]
    out = b"".join(boundary.feed(data[begin:end]) for begin, end in itertools.pairwise(places))
    return out + boundary.close()


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
@pytest.mark.parametrize(
    "data",
    [
        WHOLE,
        WHOLE + b"data: [DONE]\n\n",
        start() + PING + error_event(),
        start() + b'data: {"error":{"message":"No"}}\n\n',
        b'event: message_stop\ndata: {"type": "message_stop"}\n\n',
    ],
)
def test_a_stream_that_ends_properly_keeps_its_bytes(data: bytes, seed: int | None) -> None:
    """Rule W1: a stream that ends with its last event or an error stays unchanged, however it is cut."""
    assert passed(data, seed) == data


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_a_stream_that_merely_ends_has_an_error(seed: int | None) -> None:
    """The proxy adds an error to a truncated stream, since several clients would take it for complete."""
    cut = start() + b"".join(block_events(0, text("It is")))
    out = passed(cut, seed)
    assert out.startswith(cut)
    assert read_stream(out).error == {
        "type": "api_error", "message": "The upstream's response ended before it was finished."
    }  # fmt: skip


def test_what_a_text_says_ends_nothing() -> None:
    """Only an end or error event ends a stream, not the same words in a text or in a call's input."""
    words = text('"type":"message_stop" {"error":{}} event: error')
    cut = start() + b"".join([*block_events(0, words), *block_events(1, tool_use("a", "b", {"error": {}}))])
    opened = {
        "type": "content_block_start",
        "index": 2,
        "content_block": {"type": "x", "error": {"type": "error"}},
    }
    cut += f"event: content_block_start\ndata: {json.dumps(opened)}\n\n".encode()
    assert read_stream(passed(cut)).error is not None


def test_a_stream_that_said_why_it_stops_gets_its_last_event() -> None:
    """The proxy adds a missing ``message_stop`` to a stream that has given its stop reason."""
    cut = start() + b"".join(block_events(0, text("So"))) + ending()
    assert passed(cut) == cut + STOP
    assert passed(cut + STOP.removesuffix(b"\n")) == cut + STOP


@pytest.mark.parametrize(
    ("type", "code", "kind"),
    [
        ("invalid_request_error", None, "invalid_request_error"),
        ("invalid_request_error", "invalid_api_key", "authentication_error"),
        ("invalid_request_error", "model_not_found", "not_found_error"),
        ("rate_limit_error", "rate_limit_exceeded", "rate_limit_error"),
        ("server_error", "draining", "overloaded_error"),
        ("server_error", "internal_error", "api_error"),
        ("upstream_error", "upstream_timeout", "timeout_error"),
        ("upstream_error", "overloaded_error", "overloaded_error"),
        ("upstream_error", "upstream_broken", "api_error"),
    ],
)
def test_errors_of_ours_have_types_of_theirs(type: str, code: str | None, kind: str) -> None:
    """The proxy gives each error a type that Anthropic clients know; an upstream's known type stays."""
    body = ANTHROPIC.errors.body("No.", type=type, code=code, request_id="req_1")
    assert body == {"type": "error", "error": {"type": kind, "message": "No."}, "request_id": "req_1"}
    said = ANTHROPIC.errors.event("No.", type=type, code=code)
    assert read_stream(said).error == {"type": kind, "message": "No."}


@pytest.mark.parametrize(
    ("body", "read"),
    [
        (b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}',
         ("Overloaded", "overloaded_error")),
        (b'{"error":{"code":400,"message":"No","type":"exceed_context_size_error"}}',
         ("No", "exceed_context_size_error")),
        (b'{"error":{"code":"x","message":"No","type":"y"}}', ("No", "x")),
        (b'{"error":"No"}', ("No", None)),
        (b"<html>", ("", None)),
    ],
)  # fmt: skip
def test_errors_are_read_in_either_form(body: bytes, read: tuple[str, str | None]) -> None:
    """The proxy also reads OpenAI's error envelope, which llama-server uses on this path too."""
    assert ANTHROPIC.errors.read(body)[:2] == read


def test_paths() -> None:
    """The proxy knows which paths generate, which count tokens, and which it only forwards."""
    kinds: dict[tuple[str, str], Any] = {
        ("POST", "/messages"): "generate",
        ("POST", "/messages/count_tokens"): "count",
        ("POST", "/messages/batches"): "other",
        ("GET", "/messages/batches/b_1/results"): "other",
    }
    for (method, path), kind in kinds.items():
        endpoint = SERVED.find(method, path)
        assert (endpoint.kind, endpoint.dialect) == (kind, ANTHROPIC)


@pytest.mark.parametrize(
    "file",
    [file for file in recording_files() if file.wire == "anthropic" and file.status >= 400],
    ids=lambda file: file.name,
)
def test_recorded_errors_are_read(file: RecordingFile) -> None:
    """The proxy finds a message and a code in every recorded error of this dialect."""
    said = ANTHROPIC.errors.read(file.path.read_bytes())
    assert said.message
    assert said.code
