"""Recording: the recorder passes responses through unchanged and saves them for replay."""

import json
import re
import stat
import threading
import tomllib
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fixture_loader import FIXTURES, exchange
from raw_upstream import FIN, HANG, RawUpstream, Step, chunk, chunked, event, head, whole
from structlog.testing import capture_logs

from proxy.base.errors import UpstreamBroken
from proxy.upstreams.base import UpstreamRequest
from proxy.upstreams.http1.upstream import Http1Upstream
from proxy.upstreams.recorded import recorder as record
from proxy.upstreams.recorded.fixtures import load_turns
from proxy.upstreams.recorded.recorder import ClientExchanges, RecordingUpstream
from proxy.upstreams.recorded.replay import ReplayUpstream
from proxy.upstreams.recorded.scrubbing import Scrubbing

KEY = "sk-server-0123456789abcdef"
HI = [{"role": "user", "content": "hi"}]


def post(body: dict[str, Any]) -> UpstreamRequest:
    """A chat request with a client's credentials, which no file may hold."""
    headers = [("Authorization", "Bearer sk-client-secret"), ("Cookie", "session=client-secret")]
    return UpstreamRequest("POST", "/chat/completions", headers=headers, body=json.dumps(body).encode())


async def drink(upstream: RecordingUpstream, request: UpstreamRequest) -> bytes:
    """Read one response to its end."""
    response = await upstream.open(request)
    try:
        return b"".join([piece async for piece in response.chunks()])
    finally:
        await response.aclose()


def saved(out: Path) -> list[Path]:
    """All files below a folder."""
    return sorted(path for path in out.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", ["demo/both", "llamacpp.chat/tool-json", "kimi.chat/repeated-ids"])
async def test_what_was_recorded_replays(name: str, tmp_path: Path) -> None:
    """A whole conversation becomes one folder whose replay gives the same bytes for each turn."""
    fixture = exchange(name)
    inner = ReplayUpstream([fixture.path], fresh_ids=False)
    recorder = RecordingUpstream(inner, tmp_path)
    bodies = [await drink(recorder, post(turn.request or {})) for turn in fixture.turns]
    await recorder.aclose()

    (folder,) = {file.parent for file in saved(tmp_path) if file.name == "meta.toml"}
    assert folder.parent.name == "replay.chat"
    numbers = {file.parent.name for file in saved(tmp_path) if file.name == "response.toml"}
    assert numbers == {f"turn-{turn.number}" for turn in fixture.turns}
    assert json.loads((folder / "client" / "request.json").read_bytes()) == fixture.turns[0].request
    again = ReplayUpstream([tmp_path], fresh_ids=False)
    for turn, body in zip(fixture.turns, bodies, strict=True):
        response = await again.open(post(turn.request or {}))
        assert await response.read(1 << 20) == body == (turn.sse or turn.json_body)


async def test_another_conversation_gets_another_folder(tmp_path: Path) -> None:
    """Each new conversation gets its own folder, even if the same request was recorded before."""
    recorder = RecordingUpstream(ReplayUpstream([FIXTURES / "demo"]), tmp_path)
    for name in ("demo/time", "demo/weather", "demo/time"):
        await drink(recorder, post(exchange(name).turns[0].request or {}))
    await recorder.aclose()
    assert len([file for file in saved(tmp_path) if file.name == "meta.toml"]) == 3


async def test_network_pieces_are_kept_and_no_secret_is(tmp_path: Path) -> None:
    """Rule R3: private files hold the exact bytes and sizes, but no key and no header of the request."""
    script = chunked(event('{"n":1}'), event(f'{{"echo":"{KEY}"}}'))
    plain = chunked(event('{"n":1}'), event("[DONE]"))
    async with RawUpstream(script, plain) as raw:
        recorder = RecordingUpstream(
            Http1Upstream("main", raw.url, KEY), tmp_path, scrubbing=Scrubbing([KEY])
        )
        first = await drink(
            recorder, post({"model": "gpt-4o-mini", "messages": HI, "user": KEY, "stream": True})
        )
        second = await drink(recorder, post({"model": "gpt-4o", "messages": HI, "stream": True}))
        await recorder.aclose()
    assert KEY.encode() in first
    files = saved(tmp_path)
    for file in files:
        content = file.read_bytes()
        assert KEY.encode() not in content
        assert b"client-secret" not in content
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    bodies = [file.read_bytes() for file in files if file.name == "response.sse"]
    assert sorted(bodies) == sorted([first.replace(KEY.encode(), b"[redacted]"), second])
    (responses,) = [
        tomllib.loads(f.read_text())
        for f in files
        if f.name == "response.toml" and (f.parent / "response.sse").read_bytes() == second
    ]
    assert responses["headers"] == [["Content-Type", "text/event-stream"]]
    assert sum(size for _, size in responses["chunks"]) == len(second)


PLACES = ("model", "user", "system", "text", "image", "arguments", "tool", "answer", "query", "header")


async def test_a_secret_in_any_place_of_an_exchange_is_not_saved(tmp_path: Path) -> None:
    """In headers, the query, the model, texts, addresses of images, arguments, results and the answer."""
    keys = {place: f"sk-proj-{place}-0123456789abcdef" for place in PLACES}
    call = {"name": "login", "arguments": json.dumps({"password": "hunter22", "note": keys["arguments"]})}
    asked = {
        "model": keys["model"],
        "user": keys["user"],
        "messages": [
            {"role": "system", "content": f"Use {keys['system']}."},
            {
                "role": "user",
                "content": [
                    {
                        "type": "text",
                        "text": f"My header is plain-key-of-mine, my token Bearer {keys['text']}",
                    },
                    {
                        "type": "image_url",
                        "image_url": {"url": f"https://u:hunter22@h/a?key={keys['image']}"},
                    },
                ],
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "call_1", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": json.dumps({"access_token": "hunter22"})},
        ],
        "tools": [{"type": "function", "function": {"name": "login", "description": keys["tool"]}}],
    }
    said = json.dumps({"id": "chatcmpl-1", "said": keys["answer"], "key": "plain-key-of-mine"}).encode()
    answered = whole(said, "Content-Type: application/json", f"Server: {keys['header']}")
    request = UpstreamRequest(
        "POST",
        "/chat/completions",
        f"api_key={keys['query']}",
        [("Authorization", "Bearer plain-key-of-mine"), ("X-Api-Key", keys["header"])],
        json.dumps(asked).encode(),
    )
    async with RawUpstream(answered) as raw:
        recorder = RecordingUpstream(Http1Upstream("main", raw.url), tmp_path)
        await drink(recorder, request)
        await recorder.aclose()
    files = saved(tmp_path)
    assert {file.name for file in files} >= {"request.json", "response.json", "response.toml", "meta.toml"}
    for file in files:
        content = f"{file}\n{file.read_text()}"
        for secret in ("0123456789abcdef", "hunter22", "plain-key-of-mine"):
            assert secret not in content, (file, secret)
    kept = json.loads(next(file for file in files if file.parent.name == "turn-1").read_bytes())
    assert kept["messages"][0]["content"] == "Use [redacted]."


async def test_the_answer_to_a_client_does_not_keep_its_key(tmp_path: Path) -> None:
    """The key in the headers of a request is removed from what its client got, too."""
    said = json.dumps({"id": "chatcmpl-1", "key": "plain-key-of-mine"}).encode()
    body = json.dumps({"model": "m", "messages": HI}).encode()
    request = UpstreamRequest(
        "POST", "/chat/completions", headers=[("Authorization", "Bearer plain-key-of-mine")], body=body
    )
    clients = ClientExchanges()
    async with RawUpstream(whole(said, "Content-Type: application/json")) as raw:
        recorder = RecordingUpstream(Http1Upstream("main", raw.url), tmp_path, clients=clients)
        client = clients.listen("/chat/completions", body)
        client.started(200, [("Content-Type", "application/json")])
        client.data_sent(await drink(recorder, request))
        client.ended()
        await recorder.aclose()
    (kept,) = [
        file for file in saved(tmp_path) if file.parent.name == "client" and "response.json" in file.name
    ]
    assert json.loads(kept.read_bytes()) == {"id": "chatcmpl-1", "key": "[redacted]"}


async def test_processes_that_record_the_same_do_not_mix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two recorders with one folder write two folders for the same request in the same second."""
    monkeypatch.setattr("time.strftime", lambda form: "20261121")
    for _ in range(2):
        recorder = RecordingUpstream(ReplayUpstream([FIXTURES / "demo"]), tmp_path)
        await drink(recorder, post(exchange("demo/time").turns[0].request or {}))
        await recorder.aclose()
    assert len([file for file in saved(tmp_path) if file.name == "meta.toml"]) == 2


async def test_who_reads_meanwhile_sees_whole_turns_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each file is written, the folder can be loaded: another process may start its tests then."""
    write, loaded = record._save, []

    def watched(file: Path, data: bytes) -> None:
        loaded.append(len(load_turns([tmp_path], clients=True)))
        write(file, data)

    monkeypatch.setattr(record, "_save", watched)
    fixture = exchange("demo/both")
    recorder = RecordingUpstream(ReplayUpstream([fixture.path], fresh_ids=False), tmp_path)
    for turn in fixture.turns:
        await drink(recorder, post(turn.request or {}))
    await recorder.aclose()
    assert set(loaded) == {0, 1}
    assert len(load_turns([tmp_path])) == 2


async def test_a_request_that_is_nested_too_deeply_is_not_saved(tmp_path: Path) -> None:
    """It passes; that it is not saved is logged."""
    deep = json.loads("[" * 300 + "]" * 300)
    recorder = RecordingUpstream(ReplayUpstream([FIXTURES / "demo"]), tmp_path)
    with capture_logs() as logs:
        assert await drink(recorder, post({"model": "m", "messages": HI, "x": deep}))
        await recorder.aclose()
    assert [(log["event"], log["reason"]) for log in logs] == [
        ("exchange_not_saved", "its request is nested too deeply")
    ]
    assert not saved(tmp_path)


async def test_a_response_that_breaks_is_kept_as_broken(tmp_path: Path) -> None:
    """A broken response is saved as broken; its reader and the reader of a replay get UpstreamBroken."""
    opening = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
    async with RawUpstream([opening, chunk(event("1")), FIN]) as raw:
        recorder = RecordingUpstream(Http1Upstream("main", raw.url), tmp_path)
        with pytest.raises(UpstreamBroken):
            await drink(recorder, post({"model": "gpt-4o-mini", "messages": HI, "stream": True}))
        await recorder.aclose()
    (response,) = [tomllib.loads(f.read_text()) for f in saved(tmp_path) if f.name == "response.toml"]
    assert response["broken"] is True
    with pytest.raises(UpstreamBroken):
        await drink(
            RecordingUpstream(ReplayUpstream([tmp_path]), tmp_path / "again"),
            post({"model": "gpt-4o-mini", "messages": HI, "stream": True}),
        )


COMPLETED = b'event: response.completed\ndata: {"type":"response.completed"}\n\n'


@pytest.mark.parametrize(
    ("path", "last", "kept"),
    [
        ("/chat/completions", [event("[DONE]")], True),
        ("/chat/completions", [b"data: [DO", b"NE]\n\n"], True),
        ("/chat/completions", [event('"[DONE]"')], False),
        ("/chat/completions", [b'data: {"text":"the end is data: [DONE]'], False),
        ("/responses", [COMPLETED], True),
        ("/responses", [COMPLETED[:20], COMPLETED[20:50], COMPLETED[50:]], True),
        ("/responses", [COMPLETED[:-1]], False),
    ],
)
async def test_a_reader_may_go_after_the_last_event(
    tmp_path: Path, path: str, last: list[bytes], kept: bool
) -> None:
    """A stream is saved only if its last event came whole, even if the reader leaves right after it."""
    opening = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
    script: list[Step] = [opening, chunk(event("1")), *(chunk(piece) for piece in last), HANG]
    expected = event("1") + b"".join(last)
    async with RawUpstream(script) as raw:
        recorder = RecordingUpstream(Http1Upstream("main", raw.url), tmp_path)
        said = {"messages": HI} if path == "/chat/completions" else {"input": "hi"}
        asked = json.dumps({"model": "gpt-4o-mini", "stream": True, **said}).encode()
        response = await recorder.open(UpstreamRequest("POST", path, body=asked))
        body = response.chunks()
        seen = b""
        while len(seen) < len(expected):
            seen += await anext(body)
        await response.aclose()
        assert isinstance(body, AsyncGenerator)
        await body.aclose()
        await recorder.aclose()
    bodies = [file.read_bytes() for file in saved(tmp_path) if file.name == "response.sse"]
    assert bodies == ([expected] if kept else [])


async def test_nobody_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers get their answers while the disk hangs, and closing the upstream waits for the disk.
    Responses above the limit of waiting ones are not saved."""
    going = threading.Event()
    save = record._save

    def slowly(file: Path, data: bytes) -> None:
        going.wait()
        save(file, data)

    monkeypatch.setattr(record, "_save", slowly)
    recorder = RecordingUpstream(ReplayUpstream([FIXTURES / "demo"]), tmp_path)
    asked = post(exchange("demo/time").turns[0].request or {})
    for _ in range(record._MOST_WAITING + 3):
        assert await drink(recorder, asked)
    assert not [file for file in saved(tmp_path) if file.name == "response.toml"]
    going.set()
    await recorder.aclose()
    written = [file for file in saved(tmp_path) if file.name == "response.toml"]
    assert len(written) == record._MOST_WAITING


async def test_a_folder_has_a_neutral_name(tmp_path: Path) -> None:
    """A folder's name holds time, number, model and digest, but no secret; meta.toml holds no prompt."""
    recorder = RecordingUpstream(
        ReplayUpstream([FIXTURES / "demo"]), tmp_path, scrubbing=Scrubbing(["sk-hidden-12345"])
    )
    body = {"model": "my/Model-sk-hidden-12345", "messages": [{"role": "user", "content": "canary words"}]}
    await drink(recorder, post(body))
    await recorder.aclose()
    (folder,) = {file.parent for file in saved(tmp_path) if file.name == "meta.toml"}
    assert re.fullmatch(r"\d{8}-\d{6}-001-my-model-[a-z-]*-[0-9a-f]{6}", folder.name), folder.name
    assert "canary" not in (folder / "meta.toml").read_text()


@pytest.mark.accepts("*", why="the recorder sees bodies that no provider reads")
async def test_what_is_no_exchange_passes_unrecorded(tmp_path: Path) -> None:
    """The recorder saves no other paths, no unreadable or streamed request bodies, no abandoned responses."""

    async def pieces() -> AsyncIterator[bytes]:
        yield b"{}"

    requests = [
        UpstreamRequest("GET", "/models"),
        UpstreamRequest("POST", "/embeddings", body=b"{}"),
        UpstreamRequest("POST", "/chat/completions", body=b"[]"),
        UpstreamRequest("POST", "/chat/completions", body=b"{"),
        UpstreamRequest("POST", "/chat/completions", body=pieces()),
    ]
    hanging: list[Step] = [head("Content-Type: text/event-stream"), event("1"), HANG]
    async with RawUpstream(*[whole(b"{}")] * len(requests), hanging) as raw:
        recorder = RecordingUpstream(Http1Upstream("main", raw.url), tmp_path)
        for request in requests:
            assert await drink(recorder, request) == b"{}"
        abandoned = await recorder.open(post({"model": "gpt-4o-mini", "messages": HI}))
        body = abandoned.chunks()
        assert await anext(body) == event("1")
        await abandoned.aclose()
        assert isinstance(body, AsyncGenerator)
        await body.aclose()
        await recorder.aclose()
    assert saved(tmp_path) == []


async def test_a_disk_that_fails_costs_the_client_nothing(tmp_path: Path) -> None:
    """If the folder cannot be written, the client still gets its answer."""
    blocked = tmp_path / "out"
    blocked.write_text("a file where a folder should be")
    recorder = RecordingUpstream(ReplayUpstream([FIXTURES / "demo"]), blocked)
    assert await drink(recorder, post(exchange("demo/time").turns[0].request or {}))
