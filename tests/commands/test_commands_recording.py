"""``toolrelay record`` saves both sides of an exchange: the client's and the upstream's."""

import asyncio
import io
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from chat_script import call, content, finish, payloads_of, reply, role, stream, text_of
from logged import logged_to
from msgspec.structs import replace
from raw_upstream import RawUpstream, Step, head, whole
from running_proxy import SERVER_KEY, Proxy, make_config, running
from waiting import PATIENCE_S, until

from proxy.app.app import Overrides
from proxy.commands.fixtures.record import recording
from proxy.toolbox.clock import FixedClock
from proxy.upstreams.recorded import recorder as record
from proxy.upstreams.recorded.scrubbing import Scrubbing

TIME = "core__get_current_time"
ASK: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
MINE = {
    "type": "function",
    "function": {"name": "mine", "description": "d", "parameters": {"type": "object", "properties": {}}},
}
CLOCK = FixedClock(datetime.fromisoformat("2026-11-21T12:00:00+00:00"))
CALLED = stream(role(), call("call_1", TIME, '{"timezone":"UTC"}'), finish("tool_calls"))
NOON = stream(role(id="chatcmpl-2"), content("It is noon.", id="chatcmpl-2"), finish(id="chatcmpl-2"))


@asynccontextmanager
async def recorded(
    out: Path, *scripts: list[Step], allow: tuple[str, ...] = ()
) -> AsyncIterator[tuple[Proxy, RawUpstream]]:
    """Run a recording proxy in front of a scripted upstream; all files are written when it has ended."""
    async with RawUpstream(*scripts) as upstream:
        overrides = replace(recording(out, Scrubbing([SERVER_KEY])), clock=CLOCK)
        async with running(make_config(upstream.url, allow=allow), overrides) as proxy:
            yield proxy, upstream


def only(out: Path) -> Path:
    """Return the folder of the one saved exchange."""
    (meta,) = out.rglob("meta.toml")
    return meta.parent


def all_files(out: Path) -> list[Path]:
    """Return all saved files."""
    return [file for file in out.rglob("*") if file.is_file()]


def client_files(folder: Path) -> list[str]:
    """Return the names of the files of the client's side."""
    return sorted(file.name for file in (folder / "client").iterdir())


@pytest.mark.parametrize("streamed", [True, False])
async def test_the_clients_side_is_recorded(tmp_path: Path, streamed: bool) -> None:
    """The client's request and answer are saved beside the turns, and the folder can be replayed."""
    ask = {**ASK, "stream": streamed}
    hidden = CALLED if streamed else reply(None, ("call_1", TIME, '{"timezone":"UTC"}'))
    said = NOON if streamed else reply("It is noon.")
    async with recorded(tmp_path, hidden, said, allow=(TIME,)) as (proxy, upstream):
        answer = await proxy.ask(ask)
        assert len(upstream.requests) == 2
    folder, kind = only(tmp_path), "sse" if streamed else "json"
    assert client_files(folder) == sorted(["request.json", f"response.{kind}", "response.toml"])
    assert json.loads((folder / "client" / "request.json").read_bytes()) == ask
    assert (folder / "client" / f"response.{kind}").read_bytes() == answer.body
    assert sorted(turn.name for turn in folder.glob("turn-*")) == ["turn-1", "turn-2"]
    async with running(make_config(f"replay:{tmp_path}", allow=(TIME,)), Overrides(clock=CLOCK)) as again:
        played = await again.ask(ask)
    if streamed:
        assert text_of(payloads_of(played.body)) == "It is noon."
    else:
        assert played.json["choices"] == answer.json["choices"]


async def test_a_client_that_goes_on_is_recorded_in_one_folder(tmp_path: Path) -> None:
    """A conversation's second request and answer are saved with a number; no file contains a key."""
    first = stream(role(), call("call_m", "mine", "{}"), finish("tool_calls"))
    second = stream(role(), content(f"Done, {SERVER_KEY}."), finish())
    async with recorded(tmp_path, first, second) as (proxy, _):
        ask = {**ASK, "tools": [MINE]}
        made = await proxy.ask(ask)
        call_made = {"id": "call_m", "type": "function", "function": {"name": "mine", "arguments": "{}"}}
        results = [
            {"role": "assistant", "content": None, "tool_calls": [call_made]},
            {"role": "tool", "tool_call_id": "call_m", "content": "ok"},
        ]
        then = {**ask, "messages": [*ASK["messages"], *results]}
        await proxy.ask(then)
    folder = only(tmp_path)
    answers = ["response-2.sse", "response-2.toml", "response.sse", "response.toml"]
    assert client_files(folder) == ["request-2.json", "request.json", *answers]
    assert json.loads((folder / "client" / "request-2.json").read_bytes()) == then
    assert (folder / "client" / "response.sse").read_bytes() == made.body
    assert b"Done, [redacted]." in (folder / "client" / "response-2.sse").read_bytes()
    for file in all_files(tmp_path):
        assert SERVER_KEY.encode() not in file.read_bytes()
        assert file.stat().st_mode & 0o777 == 0o600


async def test_an_error_and_a_break_are_recorded_as_the_client_got_them(tmp_path: Path) -> None:
    """A refusal and a broken stream are saved byte for byte as the client got them."""
    refusal = whole(b'{"error":{"message":"no"}}', "Content-Type: application/json", status="400 No")
    broken: list[Step] = [head("Content-Type: text/event-stream", "Content-Length: 900"), role()]
    for name, script in (("refused", refusal), ("broken", broken)):
        async with recorded(tmp_path / name, script) as (proxy, _):
            answer = await proxy.ask(ASK)
        (file,) = (only(tmp_path / name) / "client").glob("response.[js]*")
        assert file.name == ("response.json" if name == "refused" else "response.sse")
        assert file.read_bytes() == answer.body


async def test_all_is_written_before_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the server ends while it saves the turn of a client that left, it saves the client's answer, too."""
    save = record._save

    def slowly(file: Path, data: bytes) -> None:
        time.sleep(0.1)
        save(file, data)

    monkeypatch.setattr(record, "_save", slowly)
    never = asyncio.Event()
    script: list[Step] = [*stream(role(), content("It is noon."), finish())[:-1], never]
    async with recorded(tmp_path, script) as (proxy, _):
        async with asyncio.timeout(PATIENCE_S), proxy.sent(ASK) as conversation:
            await conversation.reader.readuntil(b"data: [DONE]\n\n")
            conversation.leave()
        await until(lambda: bool(list(tmp_path.rglob("meta.toml"))))
        never.set()
    assert (only(tmp_path) / "client" / "response.sse").read_bytes().endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("allow", [(), (TIME,)])
async def test_a_client_that_leaves_at_the_end_mark_is_recorded(
    tmp_path: Path, allow: tuple[str, ...]
) -> None:
    """If a client leaves at [DONE] while the upstream's connection is open, its answer is saved whole."""
    never = asyncio.Event()
    script: list[Step] = [*stream(role(), content("It is noon."), finish())[:-1], never]
    async with recorded(tmp_path, script, allow=allow) as (proxy, _):
        async with asyncio.timeout(PATIENCE_S), proxy.sent(ASK) as conversation:
            await conversation.reader.readuntil(b"data: [DONE]\n\n")
            conversation.leave()
        await until(lambda: bool(list(tmp_path.rglob("response.toml"))))
        never.set()
    (file,) = (only(tmp_path) / "client").glob("response.[js]*")
    assert file.read_bytes().endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_that_leaves_with_the_whole_answer_is_recorded_and_logged_as_served(
    tmp_path: Path, streamed: bool
) -> None:
    """If clients leave at the last byte, every answer is saved and logged with status 200, not 499."""
    ended = stream(role(), content("It is noon."), finish()) if streamed else reply("It is noon.")
    end = b"data: [DONE]\n\n" if streamed else b"}"
    times = 40
    sink = io.StringIO()
    with logged_to(sink):
        async with recorded(tmp_path, *[ended] * times) as (proxy, _):
            for number in range(times):
                asked = {**ASK, "stream": streamed, "messages": [{"role": "user", "content": f"hi {number}"}]}
                async with asyncio.timeout(PATIENCE_S), proxy.sent(asked) as conversation:
                    if streamed:
                        await conversation.reader.readuntil(end)
                    else:
                        head = await conversation.head()
                        await conversation.reader.readexactly(int(head.header("content-length") or 0))
                    conversation.leave()
            await until(lambda: sink.getvalue().count('"event":"request"') == times)
    lines = [json.loads(line) for line in sink.getvalue().splitlines()]
    assert {line["status"] for line in lines if line["event"] == "request"} == {200}
    answers = [file for file in all_files(tmp_path) if file.parent.name == "client"]
    assert sum(file.suffix in (".sse", ".json") for file in answers) == 2 * times
    assert sum(file.name == "response.toml" for file in answers) == times
