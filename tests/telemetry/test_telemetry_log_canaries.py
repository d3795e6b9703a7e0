"""Secrets and content stay out of the log: the tests use every path at debug level, then search the log."""

import asyncio
import gc
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_script import call, content, finish, reply, role, stream
from client_keys import ALICE, BOB, bearer, declared, keyed
from logged import logged_to
from raw_upstream import RESET, RawUpstream, Step, chunk, head, whole
from running_proxy import SERVER_KEY, Proxy, make_config, running

from proxy.app.app import Overrides
from proxy.base.errors import UpstreamBroken
from proxy.upstreams.base import Upstream, UpstreamRequest, UpstreamResponse

CANARIES = ("canary", SERVER_KEY)
ASK: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "messages": [{"role": "user", "content": "canary-prompt"}],
}
HEADERS = {
    "Authorization": "Bearer canary-client-key",
    "Cookie": "session=canary-cookie; canary bad name=1",
    "x-api-key": "canary-api-key",
}
TOOLS = '''
from proxy.tools import Redaction, tool

READ = Redaction(output=("shown",), private_arguments=("pin",))

@tool(effect="read_only", redaction=READ)
async def look(pin: str) -> dict[str, str]:
    """Look."""
    return {"shown": "yes", "kept": "canary-result"}

@tool(effect="read_only", redaction=READ)
async def crash(pin: str) -> dict[str, str]:
    """Crash."""
    raise ValueError(f"canary-crash {pin}")

@tool(effect="external_side_effect", redaction=READ)
async def act(pin: str) -> dict[str, str]:
    """Act."""
    return {"shown": "yes", "kept": "canary-result"}
'''


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """Capture the whole log at debug level, and restore the logging afterwards."""
    out = io.StringIO()
    with logged_to(out, level="debug", secrets=[SERVER_KEY]):
        yield out


def events(log: io.StringIO) -> list[str]:
    return [json.loads(line)["event"] for line in log.getvalue().splitlines()]


def ours(log: io.StringIO) -> list[dict[str, Any]]:
    """Return the proxy's own lines, as the peers of a test may cause some of asyncio's."""
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    return [line for line in lines if line["logger"].startswith("proxy")]


def assert_clean(log: io.StringIO) -> None:
    for line in log.getvalue().splitlines():
        assert not any(canary in line for canary in CANARIES), line
        assert all(character.isprintable() for character in line), line


class Failing:
    """An upstream that raises an unexpected error, whose message may have the client's words."""

    name = "default"

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def open(self, request: UpstreamRequest) -> UpstreamResponse:
        raise self._error

    async def aclose(self) -> None:
        return


async def raw(proxy: Proxy, data: bytes) -> None:
    """Send bytes, and read until the connection ends."""
    async with proxy.connect() as conversation:
        conversation.writer.write(data)
        await conversation.reader.read()


async def test_runs_and_tools(log: io.StringIO, tmp_path: Path) -> None:
    """Prompts, arguments, results and crashes of tools stay out of the log, also with a store on disk."""
    (tmp_path / "free.py").write_text(TOOLS)
    names = ("look", "crash", "act", "unknown")
    calls = [
        call(f"c{at}", f"free__{name}", '{"pin":"canary-argument"}', at) for at, name in enumerate(names)
    ]
    first = stream(role(), *calls, call("c9", "free__look", "canary-not-json", 4), finish("tool_calls"))
    async with RawUpstream(first, stream(role(), content("canary-answer"), finish())) as upstream:
        config = make_config(
            upstream.url,
            allow=("*",),
            modules=(str(tmp_path / "free.py"),),
            store={"url": f"sqlite:///{tmp_path}/r.db", "content": "all"},
        )
        async with running(config) as proxy:
            answer = await proxy.ask(ASK, HEADERS)
            assert b"canary-answer" in answer.body
    seen = events(log)
    assert {"tool_invocation_started", "tool_invocation_success", "tool_invocation_error", "request"} <= set(
        seen
    )
    assert_clean(log)


async def test_upstreams_that_fail(log: io.StringIO) -> None:
    """An upstream's messages, headers and cookies, and the proxy's key in them, stay out of the log."""
    quoting = f'{{"error":{{"message":"canary-message {SERVER_KEY}"}}}}'.encode()
    opening = head(
        "Content-Type: text/event-stream",
        "Transfer-Encoding: chunked",
        "Set-Cookie: canary name=\x02canary",
        f"x-debug: {SERVER_KEY}",
    )
    scripts: list[list[Step]] = [
        whole(quoting, status="500 canary reason"),
        whole(quoting, status="401 Unauthorized"),
        [opening, chunk(role()), RESET],
        [opening, b"canary-no-chunk\r\n"],
        [b"HTTP/1.1 200 OK\r\ncanary\x00header: canary\r\n\r\n"],
        [b"canary-no-http\r\n\r\n"],
        [RESET],
        whole(quoting, content_type="text/html"),
    ]
    for allow in ((), ("core__*",)):
        async with (
            RawUpstream(*scripts) as upstream,
            running(make_config(upstream.url, allow=allow)) as proxy,
        ):
            for _ in scripts:
                await proxy.ask(ASK, HEADERS)
    assert {"upstream_failed", "run_failed", "request"} <= set(events(log))
    assert_clean(log)


async def test_requests_that_make_no_sense(log: io.StringIO) -> None:
    """The log repeats nothing of malformed heads, bodies, targets and headers."""
    async with RawUpstream(reply("hi")) as upstream, running(make_config(upstream.url)) as proxy:
        host = f"Host: 127.0.0.1:{proxy.port}\r\n".encode()
        for line in (
            b"GET /v1/models HTTP/1.1\r\nAuthoriz\x01ation: Bearer canary-key\r\n\r\n",
            b"GET /v1/models HTTP/1.1\r\n" + host + b"X-Key\x00 canary-key\r\n\r\n",
            b"GET /v1/models HTTP/1.1\r\n" + host + b"Cookie: canary=\x01\r\n\r\n",
            b"CANARY-KEY\r\n\r\n",
            b"POST /v1/chat/completions HTTP/1.1\r\n" + host + b"Content-Length: canary\r\n\r\n",
            b"POST /v1/chat/completions HTTP/1.1\r\n"
            + host
            + b"Transfer-Encoding: chunked\r\n\r\ncanary\r\n",
        ):
            await raw(proxy, line)
        for body in (
            b'{"model":"m","canary',
            b'{"canary":1,"canary":2}',
            b"\xffcanary",
            b'{"messages":"canary"}',
        ):
            assert (await proxy.ask(body, HEADERS)).status == 400
        await proxy.ask(ASK, HEADERS, path="/v1/chat/completions?key=canary-query")
        await proxy.ask(ASK, {**HEADERS, "x-toolrelay-tools": "canary-tool"})
        await proxy.ask(ASK, {**HEADERS, "x-request-id": "evil\x1b[2Jid"})
    assert "request" in events(log)
    assert_clean(log)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("canary-words of a client"),
        KeyError("canary-key"),
        ExceptionGroup("canary-group", [RuntimeError("canary-inner"), UpstreamBroken("harmless")]),
    ],
)
async def test_a_fault_of_the_program(log: io.StringIO, error: Exception) -> None:
    """The log has the type and the place of an unexpected exception, but not its message."""

    def broken(upstream: Upstream) -> Upstream:
        return Failing(error)

    overrides = Overrides(wrap_upstream=broken)
    async with running(make_config("http://127.0.0.1:9/v1"), overrides) as proxy:
        answer = await proxy.ask(ASK, HEADERS)
    assert answer.status == 500
    line = next(line for line in map(json.loads, log.getvalue().splitlines()) if "exception" in line)
    assert type(error).__name__ in line["exception"]
    assert "in open" in line["exception"]
    assert line["request_id"] == answer.header("x-request-id")
    assert_clean(log)


async def test_what_the_event_loop_says(log: io.StringIO) -> None:
    """asyncio's own log lines name what failed, without arguments or messages of exceptions."""
    loop = asyncio.get_running_loop()

    # A traceback shows the source, so the word must not stand in the line that raises.
    word = "canary-in-a-task"

    async def lost() -> None:
        raise ValueError(word)

    def fail(data: bytes) -> None:
        raise ValueError(data)

    task = asyncio.ensure_future(lost())
    await asyncio.wait({task})
    del task
    gc.collect()
    loop.call_soon(fail, b"canary-in-a-callback")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    said = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [line["event"].partition(" test_")[0] for line in said] == [
        "Task exception was never retrieved",
        "Exception in callback",
    ]
    assert all("ValueError" in line["exception"] for line in said)
    assert "lost" in said[0]["coro"]
    assert_clean(log)


@pytest.mark.parametrize("kept", ["tools", "none"])
async def test_one_line_for_a_request_and_one_for_a_call(log: io.StringIO, kept: str) -> None:
    """At level info a run has one access line and one line for each call, with the same ids; if the store
    keeps no content, no line has arguments."""
    first = stream(role(), call("c1", "core__get_current_time", '{"timezone":"UTC"}'), finish("tool_calls"))
    async with (
        RawUpstream(first, stream(role(), content("noon"), finish())) as upstream,
        running(make_config({"base_url": upstream.url, "models": ("m",)}, store={"content": kept})) as proxy,
    ):
        answer = await proxy.ask(ASK, {"x-request-id": "mine-1"})
    tool, access = (line for line in ours(log) if line["level"] != "debug")
    run_id = answer.header("x-toolrelay-run")
    assert tool["event"] == "tool_invocation_success"
    assert tool["tool"] == "core__get_current_time"
    assert tool.get("arguments") == ({"timezone": "UTC"} if kept == "tools" else None)
    assert ("arguments" in log.getvalue()) == (kept == "tools")
    assert tool["operation_id"] == f"{run_id}.1.0"
    assert tool["run_id"] == access["run_id"] == tool["correlation_id"] == run_id
    assert tool["request_id"] == access["request_id"] == "mine-1"
    assert access["event"] == "request"
    assert {key: access[key] for key in ("method", "path", "status", "caller", "model")} == {
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "caller": "open",
        "model": "m",
    }
    assert (access["upstream"], access["upstream_status"]) == ("default", 200)
    assert 0 < access["upstream_ms"] <= access["ms"]
    assert access["bytes"] > len(answer.body)
    assert access["ttfb_ms"] <= access["ms"]


async def test_the_line_of_an_administrator_s_request_names_the_key(log: io.StringIO) -> None:
    """The access line names the key of an administrator, and no key if authentication failed."""
    keys = {"root": declared(BOB, admin=True)}
    async with keyed(keys=keys) as (proxy, _):
        assert (await proxy.get("/admin/tools", bearer(BOB))).status == 200
        assert (await proxy.ask(None, bearer(BOB), method="POST", path="/admin/tools")).status == 405
        assert (await proxy.get("/admin/tools", bearer(ALICE))).status == 401
    lines = [line for line in ours(log) if line["event"] == "request"]
    assert [line.get("caller") for line in lines] == ["config:root", "config:root", None]


async def test_a_key_in_an_address_is_not_logged(log: io.StringIO) -> None:
    """If a client writes its key into a path or a query, no log line repeats it."""
    secret = f"tr_{'canary-in-a-path-'.ljust(43, 'x')}"
    async with keyed() as (proxy, _):
        for path in (f"/v1/models/{secret}", f"/v1/models?key={secret}", f"/{secret}"):
            await proxy.ask(None, bearer(ALICE), method="GET", path=path)
    assert "canary" not in log.getvalue()


async def test_ids_do_not_leak_into_the_next_request(log: io.StringIO) -> None:
    """The lines of a request have its own ids, and none of an earlier request on the same connection."""
    first = stream(role(), content("x"), finish())
    async with (
        RawUpstream(first) as upstream,
        running(make_config(upstream.url)) as proxy,
        proxy.connect() as conversation,
    ):
        conversation.writer.write(proxy.request(ASK))
        await conversation.answer()
        conversation.writer.write(proxy.request(method="GET", path="/healthz"))
        await conversation.answer()
    one, two = ours(log)
    assert one["run_id"]
    assert "run_id" not in two
    assert one["request_id"] != two["request_id"]
