"""Ollama's completions, and requests that only load a model, on upstreams of other dialects."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import messages_script as messages
import pytest
import responses_script as responses
from chat_script import chunk_of, content, finish, role, stream, usage
from closed_port import closed_port
from ollama_script import LINES
from raw_upstream import FIN, RawUpstream, Step, chunk, chunked, head, whole
from running_proxy import Proxy, make_config, running

PATH = "/api/generate"
ASK: dict[str, Any] = {"model": "m:latest", "prompt": "hi", "system": "Be brief."}
PNG = "iVBORw0KGgo="

STREAMS: dict[str, list[Step]] = {
    "chat": stream(
        role(), chunk_of({"reasoning_content": "Hm."}), content("It ", "is noon."), finish(), usage(7, 4)
    ),
    "responses": responses.stream(responses.message("It is noon.", id="msg_1")),
    "anthropic": messages.stream(messages.thinking("Hm.", "sig"), messages.text("It is noon.")),
}


def said(data: bytes) -> tuple[str, str, dict[str, Any]]:
    """Return text, thinking and last line of a streamed completion; check the fields of each line."""
    text = thinking = ""
    last: dict[str, Any] = {}
    for raw in data.removesuffix(b"\n").split(b"\n"):
        assert not last, "something follows the last line"
        line = json.loads(raw)
        assert {"model", "created_at", "response", "done"} <= line.keys()
        assert "message" not in line
        text, thinking = text + line["response"], thinking + line.get("thinking", "")
        last = line if line["done"] else {}
    assert last
    return text, thinking, last


@asynccontextmanager
async def serving(
    wire: str, *scripts: Sequence[Step], **more: Any
) -> AsyncIterator[tuple[Proxy, RawUpstream]]:
    """Run a proxy with the probe tools before an upstream of one dialect."""
    async with RawUpstream(*scripts) as upstream:
        served = {"base_url": upstream.url, "wires": (wire,), **more}
        async with running(make_config(served, modules=("probe_tools",))) as proxy:
            yield proxy, upstream


@pytest.mark.parametrize("wire", STREAMS)
async def test_a_completion_is_streamed_by_any_upstream(wire: str) -> None:
    """Rule W3: the client gets lines of a completion; the upstream gets a chat request without tools."""
    async with serving(wire, STREAMS[wire]) as (proxy, upstream):
        answer = await proxy.ask(ASK, path=PATH)
    assert (answer.status, answer.header("content-type")) == (200, LINES)
    text, thinking, last = said(answer.body)
    assert (text, thinking) == ("It is noon.", "" if wire == "responses" else "Hm.")
    assert last["done_reason"] == "stop"
    asked = json.loads(upstream.requests[0].body)
    assert (asked["model"], asked["stream"]) == ("m", True)
    assert "tools" not in asked


async def test_a_chat_upstream_gets_the_completion_as_a_chat() -> None:
    """Each field gets its form in Chat Completions; a header names the option that is left out."""
    ask = {
        **ASK, "images": [PNG], "format": "json", "think": True, "keep_alive": "5m",
        "suffix": "", "raw": False, "template": "", "context": [],
        "options": {"temperature": 0.5, "num_predict": 9, "num_ctx": 4096},
    }  # fmt: skip
    async with serving("chat", STREAMS["chat"]) as (proxy, upstream):
        answer = await proxy.ask(ask, path=PATH)
    assert answer.header("x-toolrelay-left-out") == "options.num_ctx"
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    assert json.loads(upstream.requests[0].body) == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "system", "content": "Answer with JSON."},
            {"role": "user", "content": [{"type": "text", "text": "hi"}, image]},
        ],
        "response_format": {"type": "json_object"},
        "reasoning_effort": "medium",
        "temperature": 0.5,
        "max_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_a_completion_that_is_not_streamed() -> None:
    """Without a stream the client gets one object, with the model's text and its thinking."""
    reply = messages.reply(messages.thinking("Hm.", "sig"), messages.text("It is noon."))
    async with serving("anthropic", reply) as (proxy, _):
        answer = await proxy.ask({**ASK, "stream": False}, path=PATH)
    body = answer.json
    assert (body["response"], body["thinking"]) == ("It is noon.", "Hm.")
    assert (body["done"], body["done_reason"], body["eval_count"]) == (True, "stop", 7)
    assert "message" not in body


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("suffix", "}"), ("template", "{{ .Prompt }}"), ("raw", True), ("context", [1, 2]), ("width", 64),
    ],
)  # fmt: skip
async def test_what_no_other_upstream_can_do_is_refused(field: str, value: Any) -> None:
    """Rule E1: a field that no other upstream knows gets a 400 that names it, and no upstream is asked."""
    async with serving("chat") as (proxy, upstream):
        answer = await proxy.ask({**ASK, field: value}, path=PATH)
    assert (answer.status, list(answer.json)) == (400, ["error"])
    assert answer.json["error"].startswith(f"{field}: ")
    assert not upstream.requests


@pytest.mark.parametrize(("field", "value"), [("messages", []), ("tools", []), ("odd", 1)])
async def test_what_ollama_ignores_is_left_out(field: str, value: Any) -> None:
    """A field that Ollama itself ignores is left out, and the response names it."""
    async with serving("chat", stream(role(), content("Hi."), finish())) as (proxy, upstream):
        answer = await proxy.ask({**ASK, field: value}, path=PATH)
    assert answer.status == 200, answer.body
    assert field in (answer.header("x-toolrelay-left-out") or "").split(", ")
    (request,) = upstream.requests
    sent = json.loads(request.body)
    assert "odd" not in sent
    assert not sent.get("tools")


@pytest.mark.parametrize(
    ("field", "value"),
    [("prompt", 7), ("system", {}), ("images", "x"), ("images", [7]), ("options", []), ("think", "odd")],
)
async def test_a_field_of_the_wrong_type_is_named(field: str, value: Any) -> None:
    """Rule E1: a field of a wrong type gets a 400 that names it."""
    async with serving("chat") as (proxy, upstream):
        answer = await proxy.ask({**ASK, field: value}, path=PATH)
    assert answer.status == 400
    assert answer.json["error"].startswith(field)
    assert not upstream.requests


@pytest.mark.parametrize("path", [PATH, "/api/chat"])
async def test_a_request_without_a_model_is_told_so(path: str) -> None:
    """Rule E1: a request without a model gets a 400 that says so."""
    async with serving("chat") as (proxy, _):
        answer = await proxy.ask({"prompt": "hi", "messages": [{"role": "user", "content": "hi"}]}, path=path)
    assert answer.status == 400
    assert "model" in answer.json["error"]


@pytest.mark.parametrize("ask", [{}, {"keep_alive": "5m"}, {"keep_alive": -1}, {"keep_alive": "1h0m"}])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_that_loads_a_model_is_answered_here(ask: dict[str, Any], stream: bool) -> None:
    """The proxy answers a request to load a model itself, with one object, as Ollama does."""
    async with serving("chat") as (proxy, upstream):
        completion = await proxy.ask({"model": "m", "prompt": "", "stream": stream, **ask}, path=PATH)
        chat = await proxy.ask({"model": "m", "messages": [], "stream": stream, **ask}, path="/api/chat")
    for answer in (completion, chat):
        assert (answer.status, answer.header("content-type")) == (200, "application/json")
        assert answer.header("x-request-id")
        assert (answer.json["model"], answer.json["done"], answer.json["done_reason"]) == ("m", True, "load")
        assert answer.json["created_at"]
    assert completion.json["response"] == ""
    assert chat.json["message"] == {"role": "assistant", "content": ""}
    assert not upstream.requests


@pytest.mark.parametrize("keep_alive", [0, 0.0, "0", "0s", "0h0m0.0s"])
async def test_a_model_is_said_to_be_unloaded(keep_alive: Any) -> None:
    """If ``keep_alive`` is zero, the reason is ``unload``, because some clients wait for it."""
    async with serving("anthropic") as (proxy, upstream):
        for ask, path in (({"prompt": ""}, PATH), ({"messages": []}, "/api/chat"), ({}, "/api/chat")):
            answer = await proxy.ask({"model": "m", "keep_alive": keep_alive, **ask}, path=path)
            assert answer.json["done_reason"] == "unload"
    assert not upstream.requests


@pytest.mark.parametrize("keep_alive", ["", "5", "5 m", "soon", True, []])
async def test_a_keep_alive_that_is_no_time_is_named(keep_alive: Any) -> None:
    """Rule E1: a ``keep_alive`` that is no duration gets a 400 that names it."""
    async with serving("chat") as (proxy, _):
        answer = await proxy.ask({"model": "m", "keep_alive": keep_alive}, path=PATH)
    assert answer.status == 400
    assert answer.json["error"].startswith("keep_alive ")


async def test_an_ollama_server_loads_its_own_models() -> None:
    """An Ollama upstream gets completions and requests to load a model byte for byte."""
    bodies = [b'{"model":"m","done":true,"done_reason":"load"}', b'{"model":"m" ,"response":"x","done":true}']
    async with serving("ollama", *map(whole, bodies)) as (proxy, upstream):
        loading = b'{"model": "m"}'
        assert (await proxy.ask(loading, path=PATH)).body == bodies[0]
        asked = b'{"model": "m", "prompt":"f(", "suffix": ")", "raw" : true, "stream":false}'
        assert (await proxy.ask(asked, path=PATH)).body == bodies[1]
    assert [request.body for request in upstream.requests] == [loading, asked]
    assert [request.target for request in upstream.requests] == [PATH, PATH]


async def test_another_dialect_takes_over_from_an_ollama_server_that_is_away() -> None:
    """If the Ollama upstream is away, another one answers; the proxy itself answers a request to load."""
    with closed_port() as port:
        async with RawUpstream(STREAMS["chat"]) as cloud:
            local = {"name": "local", "base_url": f"http://127.0.0.1:{port}", "wires": ("ollama",)}
            other = {"name": "cloud", "base_url": cloud.url, "wires": ("chat",)}
            async with running(make_config(local, other)) as proxy:
                assert said((await proxy.ask(ASK, path=PATH)).body)[0] == "It is noon."
                loaded = await proxy.ask({"model": "m"}, path=PATH)
    assert loaded.json["done_reason"] == "load"
    assert len(cloud.requests) == 1


@pytest.mark.parametrize("end", [[FIN], [chunk(b"")]])
async def test_a_lost_upstream_is_an_error_line(end: list[Step]) -> None:
    """Rule E1: the last line is an error, because some clients take a plain end for a whole answer."""
    begun = [head("Content-Type: text/event-stream", "Transfer-Encoding: chunked"), chunk(content("It"))]
    async with serving("chat", [*begun, *end]) as (proxy, _):
        answer = await proxy.ask(ASK, path=PATH)
    first, last = (json.loads(line) for line in answer.body.splitlines())
    assert first["response"] == "It"
    assert last.keys() == {"error"}


async def test_an_upstreams_refusal_is_told_in_words() -> None:
    """The client gets the status and the message of an upstream's error in Ollama's format."""
    body = b'{"error":{"message":"Too hot.","type":"x","code":"hot"}}'
    refused = [head("Content-Type: application/json", f"Content-Length: {len(body)}", status="429 No") + body]
    async with serving("chat", refused) as (proxy, _):
        answer = await proxy.ask(ASK, path=PATH)
    assert (answer.status, answer.json) == (429, {"error": "Too hot."})


async def test_each_piece_of_an_answer_is_a_line_at_once() -> None:
    """Rule W6: the client gets whole lines, even if the upstream's bytes come one by one."""
    whole_stream = b"".join((role(), content("It ", "is ", "noon."), finish()))
    steps = chunked(*[whole_stream[at : at + 1] for at in range(len(whole_stream))])
    async with serving("chat", steps) as (proxy, _):
        answer = await proxy.ask(ASK, path=PATH)
    assert said(answer.body)[0] == "It is noon."
    assert all(piece.endswith(b"\n") for piece in answer.pieces)
