"""Replay: which fixture answers a request, with what, and how a miss is explained."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fixture_loader import FIXTURES, Exchange, all_exchanges, exchange
from pytest_aiohttp import AiohttpClient, AiohttpServer
from replay_server import serve_replay

from proxy.base.errors import ConfigError, UpstreamBroken
from proxy.upstreams.base import Upstream, UpstreamRequest
from proxy.upstreams.http1.upstream import Http1Upstream
from proxy.upstreams.recorded.replay import ReplayUpstream, packaged_fixtures
from proxy.wires.registry.comparing import results_of
from proxy.wires.registry.table import BY_WIRE

ALL = [e for e in all_exchanges() if e.client_requests]
DEMO = FIXTURES / "demo"


def post(body: dict[str, Any], path: str = "/chat/completions") -> UpstreamRequest:
    """A request as the relay makes it."""
    return UpstreamRequest("POST", path, body=json.dumps(body).encode())


async def answer(
    upstream: Upstream, body: dict[str, Any], path: str = "/chat/completions"
) -> tuple[int, bytes]:
    """Status and whole body of an answer."""
    response = await upstream.open(post(body, path))
    try:
        return response.status, await response.read(1 << 20)
    finally:
        await response.aclose()


async def message(upstream: Upstream, body: dict[str, Any], path: str = "/chat/completions") -> str:
    """The error message of a 404."""
    status, raw = await answer(upstream, body, path)
    assert status == 404
    error = json.loads(raw)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return str(error["message"])


@pytest.mark.parametrize("fixture", ALL, ids=lambda e: e.name)
async def test_every_turn_of_every_fixture_is_found_and_exact(fixture: Exchange) -> None:
    """Each recorded request gets its recorded bytes, status and content type."""
    upstream = ReplayUpstream([fixture.path], fresh_ids=False)
    for turn in fixture.turns:
        assert turn.request is not None
        response = await upstream.open(post(turn.request, BY_WIRE[fixture.wire].path))
        assert response.status == turn.status
        stream = turn.request.get("stream") is True
        expected = turn.sse if stream and turn.sse is not None else turn.json_body
        assert expected is not None
        got = b""
        try:
            async for piece in response.chunks():
                assert piece
                got += piece
        except UpstreamBroken:
            assert turn.response["broken"]
        assert got == expected
        assert response.content_type == dict(turn.headers)["Content-Type"].split(";")[0]


async def test_all_fixtures_together_tell_their_turns_apart() -> None:
    """With all fixtures loaded, each request gets its own response or that of an equal request."""
    upstream = ReplayUpstream([FIXTURES], fresh_ids=False)
    for fixture in ALL:
        for turn in fixture.turns:
            assert turn.request is not None
            if turn.response.get("broken"):
                continue
            status, body = await answer(upstream, turn.request, BY_WIRE[fixture.wire].path)
            if body not in (turn.sse, turn.json_body):
                twins = [t for e in ALL for t in e.turns if t.request == turn.request and t is not turn]
                assert status == 200
                assert any(body in (twin.sse, twin.json_body) for twin in twins), fixture.name


async def test_every_request_gets_a_response_id_of_its_own() -> None:
    """Each response has a fresh id wherever the recorded one stood, and nothing else is changed."""
    upstream = ReplayUpstream([FIXTURES])
    for name, prefix in (("demo/both", "chatcmpl-"), ("llamacpp.responses/text", "resp_")):
        fixture = exchange(name)
        sse = fixture.turns[0].sse or b""
        first_data = json.loads(sse.split(b"data: ", 1)[1].split(b"\n", 1)[0])
        old = (first_data.get("response") or first_data)["id"]
        seen: set[str] = set()
        for _ in range(2):
            _, body = await answer(upstream, fixture.turns[0].request or {}, BY_WIRE[fixture.wire].path)
            data = json.loads(body.split(b"data: ", 1)[1].split(b"\n", 1)[0])
            new = (data.get("response") or data)["id"]
            assert new.startswith(prefix)
            assert body.replace(new.encode(), old.encode()) == sse
            seen.add(new)
        assert len(seen | {old}) == 3


async def test_tool_results_ids_and_spelling_do_not_count() -> None:
    """A request matches its fixture despite other results, call ids, text parts or a missing null."""
    fixture = exchange("demo/both")
    request = json.loads(json.dumps(fixture.turns[1].request))
    user, assistant, *results = request["messages"]
    user["content"] = [{"type": "text", "text": user["content"]}]
    del assistant["content"]
    for number, call in enumerate(assistant["tool_calls"]):
        call["id"] = f"call_{number}"
        call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), indent=4)
        results[number].update(tool_call_id=f"call_{number}", content="something else")
    request["temperature"] = 0.7
    del request["tools"]
    status, body = await answer(ReplayUpstream([DEMO], fresh_ids=False), request)
    assert (status, body) == (200, fixture.turns[1].sse)


async def test_a_client_that_does_not_stream_is_answered_in_json() -> None:
    """A request that does not stream gets a JSON body, also with a fresh id."""
    request = {**exchange("demo/time").client_request, "stream": False}
    response = await ReplayUpstream([DEMO]).open(post(request))
    assert response.content_type == "application/json"
    body = json.loads(await response.read(1 << 20))
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "core__get_current_time"
    assert body["id"].startswith("chatcmpl-")
    assert body["id"].encode() not in (exchange("demo/time").turns[0].sse or b"")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "gpt-x"}, r'differs at model: recorded "qwen'),
        (
            {"messages": [{"role": "user", "content": "What time is it in Rome right now?"}]},
            'nearest is time turn-1, which differs at messages[0].content: recorded "What time is it',
        ),
        ({"messages": []}, 'differs at messages: recorded "1 entries", asked "0 entries"'),
        ({"messages": "hello"}, "differs at messages"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, "…"),
    ],
)
async def test_a_miss_names_the_nearest_fixture_and_the_difference(change: dict[str, Any], said: str) -> None:
    """A miss is a 404 in OpenAI's shape; its short message names the nearest fixture and what differs."""
    text = await message(ReplayUpstream([DEMO]), {**exchange("demo/time").client_request, **change})
    assert said.replace("\\", "") in text
    assert len(text) < 600


async def test_a_body_of_the_other_kind_is_a_miss() -> None:
    """A fixture that was recorded as a stream does not answer a request that does not stream."""
    upstream = ReplayUpstream([FIXTURES / "llamacpp.chat" / "unicode"])
    request = {**exchange("llamacpp.chat/unicode").client_request, "stream": False}
    assert "differs at stream: recorded true, asked false" in await message(upstream, request)


async def test_an_unknown_path_and_a_broken_body_are_client_errors() -> None:
    """A path without fixtures is a 404, and a body that is not a JSON object is a 400."""
    upstream = ReplayUpstream([DEMO])
    assert '"/embeddings"' in await message(upstream, {"input": "x"}, "/embeddings")
    for raw in (b"{", b"[]", b'"x"'):
        response = await upstream.open(UpstreamRequest("POST", "/chat/completions", body=raw))
        assert response.status == 400


async def test_models_come_from_the_fixtures() -> None:
    """GET /models lists each model once; GET of one finds it, and an unknown one is OpenAI's 404."""
    upstream = ReplayUpstream([FIXTURES / "openai.chat", DEMO])
    response = await upstream.open(UpstreamRequest("GET", "/models"))
    listed = json.loads(await response.read(1 << 16))
    ids = [model["id"] for model in listed["data"]]
    assert ids == sorted(set(ids))
    assert {"gpt-4o-mini", "qwen2.5-coder-0.5b-instruct-q4_k_m"} <= set(ids)
    one = await upstream.open(UpstreamRequest("GET", "/models/gpt-4o-mini"))
    assert json.loads(await one.read(1 << 16))["id"] == "gpt-4o-mini"
    none = await upstream.open(UpstreamRequest("GET", "/models/none"))
    assert (none.status, json.loads(await none.read(1 << 16))["error"]["code"]) == (404, "model_not_found")


def copy(tmp_path: Path, **meta: str) -> Path:
    """A small fixture, with this meta.toml and this response.toml."""
    folder = tmp_path / "one"
    (folder / "turn-1").mkdir(parents=True)
    (folder / "meta.toml").write_text(meta.get("meta", 'title = "x"\n'))
    (folder / "turn-1" / "request.json").write_text('{"model":"m","messages":[],"user":"a","stream":true}')
    (folder / "turn-1" / "response.sse").write_text("data: {}\n\ndata: [DONE]\n\n")
    (folder / "turn-1" / "response.toml").write_text(meta.get("response", "status = 200\n"))
    return folder


async def test_a_match_table_asks_for_more(tmp_path: Path) -> None:
    """A fixture answers only if each field that its [match] names is equal, too."""
    upstream = ReplayUpstream([copy(tmp_path, meta='title = "x"\n[match]\nfields = ["user"]\n')])
    request = {"model": "m", "messages": [], "stream": True}
    assert 'differs at user: recorded "a", asked null' in await message(upstream, request)
    assert (await answer(upstream, {**request, "user": "a"}))[0] == 200


async def test_recorded_waits_are_kept_only_when_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces come in their recorded sizes, without waits by default; ``pace`` scales the recorded waits."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("proxy.upstreams.recorded.replay.asyncio.sleep", sleep)
    folder = copy(tmp_path, response="chunks = [[40, 4], [80, 20]]\n")
    request = post({"model": "m", "messages": [], "stream": True})
    at_pace = partial(ReplayUpstream, [folder])
    for upstream, waits in (
        (at_pace(), []),
        (at_pace(pace=0), []),
        (at_pace(pace=1), [0.04, 0.04]),
        (at_pace(pace=0.5), [0.02, 0.02]),
    ):
        pieces = [p async for p in (await upstream.open(request)).chunks()]
        assert pieces == [b"data", b": {}\n\ndata: [DONE]\n\n"]
        assert [each for each in waited if each] == pytest.approx(waits)
        waited.clear()


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("meta.toml", "title = "),
        ("meta.toml", 'wire = "morse"'),
        ("meta.toml", "match = 1"),
        ("meta.toml", "[match]\nresults = 1"),
        ("turn-1/request.json", "{"),
        ("turn-1/request.json", "[]"),
        ("turn-1/response.toml", 'status = "fine"'),
        ("turn-1/response.toml", "headers = [1]"),
        ("turn-1/response.sse", None),
        ("turn-x/response.sse", ""),
    ],
)
def test_a_fixture_that_cannot_be_used_is_named(tmp_path: Path, file: str, text: str | None) -> None:
    """A faulty fixture is a ConfigError that names its folder."""
    folder = copy(tmp_path)
    (folder / file).parent.mkdir(exist_ok=True)
    if text is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(text)
    with pytest.raises(ConfigError) as caught:
        ReplayUpstream([folder])
    assert str(folder) in caught.value.setting


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """A missing fixture folder is a ConfigError."""
    with pytest.raises(ConfigError, match="is not a folder"):
        ReplayUpstream([tmp_path / "none"])


def test_the_demos_fixtures_are_found() -> None:
    """The packaged fixtures are those of the demo."""
    upstream = ReplayUpstream([packaged_fixtures()])
    assert upstream.models == ["qwen2.5-coder-0.5b-instruct-q4_k_m"]


RESULTS = {
    "note": '{"left_for":"Ada","notes":7}',
    "note-denied": '{"ok":false,"error_code":"approval_denied","message":"No: it is red."}',
}


@pytest.mark.parametrize("parts", [False, True], ids=["text", "parts"])
@pytest.mark.parametrize("name", RESULTS)
async def test_results_choose_between_recordings(name: str, parts: bool) -> None:
    """If two recordings begin alike, the results of the tools decide which one goes on."""
    fixture, upstream = exchange(f"demo/{name}"), ReplayUpstream([DEMO], fresh_ids=False)
    for turn in fixture.turns[1:]:
        request = json.loads(json.dumps(turn.request))
        text = RESULTS[name]
        request["messages"][2]["content"] = [{"type": "text", "text": text}] if parts else text
        assert await answer(upstream, request) == (200, turn.sse)


async def test_a_result_that_no_recording_has_is_named() -> None:
    """The message of the miss names the texts that a recording wants and the results that came."""
    fixture, upstream = exchange("demo/note"), ReplayUpstream([DEMO / "note"])
    request = json.loads(json.dumps(fixture.turns[1].request))
    request["messages"][2]["content"] = '{"ok":false,"error_code":"timeout"}'
    said = await message(upstream, request)
    assert "note turn-2, which differs at the results of tools" in said
    assert "left_for" in said
    assert "timeout" in said


def test_results_of_the_other_dialect_are_read() -> None:
    """In the Responses dialect results are items of the input; an output without text is given as JSON."""
    items: list[Any] = [
        {"role": "user", "content": "go"},
        {"type": "function_call_output", "call_id": "c", "output": "one"},
        {"type": "function_call_output", "call_id": "d", "output": [{"type": "input_image"}]},
    ]
    assert results_of({"input": items}) == ["one", '[{"type":"input_image"}]']
    assert results_of({"input": "go"}) == []


@pytest.mark.parametrize("name", ["demo/both", "openai.chat/connection-lost", "llamacpp.chat/error-context"])
async def test_the_same_answers_come_over_a_real_socket(name: str, aiohttp_server: AiohttpServer) -> None:
    """Over a socket replay gives the same status, bytes and breaks, with the headers of a provider."""
    fixture = exchange(name)
    replay = ReplayUpstream([fixture.path], fresh_ids=False)
    server = await aiohttp_server(serve_replay(replay))
    upstream = Http1Upstream("socket", str(server.make_url("/v1")))
    try:
        for turn in fixture.turns:
            response = await upstream.open(post(turn.request or {}))
            assert response.status == turn.status
            names = {k.lower() for k, _ in response.headers}
            assert {"content-type", "x-request-id", "openai-processing-ms"} <= names
            got = b""
            try:
                async for piece in response.chunks():
                    got += piece
                assert not turn.response.get("broken")
            except UpstreamBroken:
                assert turn.response["broken"]
            assert got == (turn.sse if turn.sse is not None else turn.json_body)
    finally:
        await upstream.aclose()


async def test_the_socket_knows_no_other_prefix(aiohttp_client: AiohttpClient) -> None:
    """A path outside /v1 that is not Ollama's is 404 in OpenAI's shape."""
    client = await aiohttp_client(serve_replay(ReplayUpstream([DEMO])))
    response = await client.get("/models")
    assert response.status == 404
    assert set((await response.json())["error"]) == {"message", "type", "param", "code"}
