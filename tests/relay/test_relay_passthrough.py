"""Bytes through the whole proxy, from a raw upstream to a raw client: none is lost and none is added.

Every stream is tested twice: with no server tool offered (rule W1), and with tools offered that
the model does not call (rule W2).
"""

import asyncio
import gzip
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from chat_script import DONE, call, content, finish, reply, role, sse, usage
from raw_upstream import (
    FIN,
    HANG,
    KEEP,
    LAST_CHUNK,
    RESET,
    RawUpstream,
    Step,
    chunk,
    chunked,
    event,
    head,
    whole,
)
from running_proxy import SERVER_KEY, Answer, Proxy, make_config, running
from waiting import PATIENCE_S

pytestmark = pytest.mark.both_loops

HELLO = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
PLAIN = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
SSE_HEAD = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
MINE = {"type": "function", "function": {"name": "mine", "parameters": {"type": "object", "properties": {}}}}

both = pytest.mark.parametrize("allow", [(), ("core__*",)], ids=["none offered", "offered"])


@asynccontextmanager
async def proxied(
    *scripts: list[Step], allow: tuple[str, ...] = (), repair: str = "auto", **config: Any
) -> AsyncIterator[tuple[Proxy, RawUpstream]]:
    """A proxy before a raw upstream that plays the scripts."""
    async with (
        RawUpstream(*scripts) as upstream,
        running(make_config({"base_url": upstream.url, "repair": repair}, allow=allow, **config)) as proxy,
    ):
        yield proxy, upstream


async def relayed(
    *steps: Step, allow: tuple[str, ...] = (), body: Any = None, repair: str = "auto", **target: Any
) -> Answer:
    """Send one request, which one script answers."""
    async with proxied(list(steps), allow=allow, repair=repair) as (proxy, _):
        return await proxy.ask(body or HELLO, **target)


def cut(data: bytes, seed: int, pieces: int = 40) -> list[Step]:
    """A chunked response with ``data`` cut at random places, also inside characters and line ends."""
    places = sorted(random.Random(seed).sample(range(1, len(data)), min(pieces, len(data) - 1)))
    edges = [0, *places, len(data)]
    return [SSE_HEAD, *[chunk(data[a:b]) for a, b in pairwise(edges)], LAST_CHUNK, KEEP]


ODD_JSON = """
null|[]|7|"text"|{|{}|{"choices":null}|{"choices":[]}|{"choices":[null]}|{"choices":{}}|{"choices":[[]]}
{"choices":[{"delta":null}]}|{"choices":[{"delta":[]}]}|{"choices":[{"delta":{"tool_calls":null}}]}
{"choices":[{"delta":{"tool_calls":[null]}}]}|{"choices":[{"delta":{"tool_calls":7,"function_call":7}}]}
{"choices":[{"delta":{"content":7}}]}|{"choices":[{"delta":{"content":[{"type":"text"}]}}]}
{"choices":[{"index":"x","finish_reason":7}]}|{"usage":7}|{"usage":{"prompt_tokens":"x"}}|{"error":null}
{"id":7,"model":7}|{"x_groq":7}|{"choices":[{"delta":{"content":NaN}}]}|{"a":"\\ud800"}|{"a":1e999}
{"choices":[{"delta":{"tool_calls":[{"index":[],"id":7,"function":7}]}}]}
""".strip().replace("\n", "|")
OPEN = '{"choices":[{"index":0,"delta":{"content":"'
DIALECTS = {
    "plain": role() + content("Grüße ", "🙂", "!") + finish() + usage(3, 2) + DONE,
    "crlf": (role() + content("héllo") + finish() + DONE).replace(b"\n", b"\r\n"),
    "cr": (role() + content("héllo") + finish() + DONE).replace(b"\n", b"\r"),
    "mixed line ends": event("{}") + b"data: {}\r\n\ndata: {}\r\rdata: {}\n\r\n" + DONE,
    "comments": b": hi\n\n" + role() + b": keep-alive\n" + content("a") + b":\n\n" + finish() + DONE,
    "id and retry": b"id: 7\nretry: 10\n" + content("a") + b"event: x\nid: 8\n\n" + finish() + DONE,
    "no space": f"data:{OPEN}a".encode() + b'"}}]}\n\ndata:[DONE]\n\n',
    "several data lines": b'data: {"choices":\ndata: [{"index":0,"delta":{"content":"a"}}]}\n\n' + DONE,
    "bom": b"\xef\xbb\xbf" + role() + content("a") + finish() + DONE,
    "invalid utf-8": role() + f"data: {OPEN}".encode() + b'\xff\xfe"}}]}\n\n' + finish() + DONE,
    "nul": role() + f"data: {OPEN}".encode() + b'\x00"}}]}\n\n' + finish() + DONE,
    "double end mark": role() + content("a") + finish() + DONE + DONE,
    "after the end mark": role() + finish() + DONE + b": bye\n\n" + sse({"late": True}),
    "odd json": b"".join(event(text) for text in ODD_JSON.split("|")) + finish() + DONE,
    "deep json": event("[" * 900 + "]" * 900) + event('{"a":' * 900 + "1" + "}" * 900) + finish() + DONE,
    "only an end mark": DONE,
    "unknown fields": sse({"choices": [{"index": 0, "delta": {"content": "a", "zz": [1]}}], "zz": 1e300})
    + DONE,
    "error event": role() + sse({"error": {"message": "overloaded", "code": 529}}) + DONE,
}


def repair_of(*names: str) -> str:
    """The ``repair`` setting with which these dialects pass; ``auto`` takes odd JSON for defective calls."""
    return "off" if "odd json" in names else "auto"


@both
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_every_dialect_passes_untouched(dialect: str, allow: tuple[str, ...]) -> None:
    """Rules W1, W2: the client gets the upstream's bytes, in whatever form of SSE they are."""
    data = DIALECTS[dialect]
    for steps in (cut(data, 1), [SSE_HEAD, chunk(data), LAST_CHUNK, KEEP]):
        answer = await relayed(*steps, allow=allow, repair=repair_of(dialect))
        assert answer.status == 200
        assert answer.header("content-type") == "text/event-stream"
        assert answer.body == data
        assert answer.clean


@both
@pytest.mark.parametrize("seed", range(12))
async def test_every_cut_gives_the_same_bytes(seed: int, allow: tuple[str, ...]) -> None:
    """Rules W1, W2, W6: the client gets the same bytes, wherever the network cut the stream."""
    names = random.Random(seed).sample(sorted(DIALECTS), 4)
    scripts = [cut(DIALECTS[name], seed) for name in names]
    async with proxied(*scripts, allow=allow, repair=repair_of(*names)) as (proxy, upstream):
        for name in names:
            answer = await proxy.ask(HELLO)
            assert (answer.body, answer.clean) == (DIALECTS[name], True), name
        assert len(upstream.requests) == len(names)


@both
async def test_one_byte_at_a_time(allow: tuple[str, ...]) -> None:
    """Rules W1, W2, W6: the proxy joins single bytes to events, and sends each event in one write."""
    data = role() + content("é") + finish() + DONE
    answer = await relayed(*chunked(*[data[i : i + 1] for i in range(len(data))]), allow=allow)
    assert answer.body == data
    assert all(piece.endswith(b"\n\n") for piece in answer.pieces)


@both
async def test_events_leave_at_once(allow: tuple[str, ...]) -> None:
    """Rules W1, W2: an event reaches the client while the upstream holds the next one back."""
    release = asyncio.Event()
    script: list[Step] = [
        SSE_HEAD,
        chunk(role() + content("a")),
        release,
        chunk(finish() + DONE),
        LAST_CHUNK,
        KEEP,
    ]
    async with proxied(script, allow=allow) as (proxy, _), proxy.sent(HELLO) as conversation:
        answer = await conversation.head()
        pieces = conversation.pieces(answer)
        # On a busy machine the two events leave one after the other.
        begun = role() + content("a")
        got = b""
        async with asyncio.timeout(PATIENCE_S):
            while len(got) < len(begun):
                got += await anext(pieces)
        assert got == begun
        release.set()
        assert b"".join([piece async for piece in pieces]) == finish() + DONE


@both
async def test_client_calls_pass_untouched(allow: tuple[str, ...]) -> None:
    """Rule W2: a turn that calls only the client's own tools passes byte for byte."""
    data = (
        role()
        + call("call_1", "mine", "", 0)
        + b"".join(call(None, None, part) for part in ('{"a"', ": 1", "}"))
        + call("call_2", "mine", '{"b":[]}', 1)
        + finish("tool_calls")
        + usage(3, 4)
        + DONE
    )
    for steps in (cut(data, 3), [SSE_HEAD, chunk(data), LAST_CHUNK, KEEP]):
        answer = await relayed(*steps, allow=allow, body={**HELLO, "tools": [MINE]})
        assert (answer.body, answer.clean) == (data, True)


@both
async def test_a_reply_passes_untouched(allow: tuple[str, ...]) -> None:
    """Rules W1, W2: an answer that is not streamed keeps every byte and has a Content-Length."""
    body = (
        b'{ "id": "x",\n "choices": [ {"message": {"role":"assistant","content":"a\\u00e9"}, "index":0} ] }\n'
    )
    answer = await relayed(*whole(body), allow=allow, body=PLAIN)
    assert (answer.body, answer.clean) == (body, True)
    assert answer.header("content-length") == str(len(body))


@both
async def test_an_8_mb_event_passes_untouched(allow: tuple[str, ...]) -> None:
    """Rules W1, W2: an event of 8 MB passes unchanged."""
    data = role() + content("x" * (8 << 20)) + finish() + DONE
    pieces = [data[at : at + 65536] for at in range(0, len(data), 65536)]
    answer = await relayed(*chunked(*pieces), allow=allow)
    assert answer.body == data


@both
@pytest.mark.parametrize(
    "headers",
    [("Content-Type: text/event-stream",), ("Content-Type: Text/Event-Stream; charset=utf-8",)],
)
async def test_close_delimited_streams(headers: tuple[str, ...], allow: tuple[str, ...]) -> None:
    """Rules W1, W2: a stream that ends with its connection is complete and passes unchanged."""
    data = role() + content("a") + finish() + DONE
    answer = await relayed(head(*headers, "Connection: close") + data, FIN, allow=allow)
    assert (answer.body, answer.clean) == (data, True)
    assert answer.header("content-type") == headers[0].partition(": ")[2]


@both
async def test_streams_with_a_length(allow: tuple[str, ...]) -> None:
    """Rules W1, W2: a stream with a Content-Length passes unchanged."""
    data = role() + content("a") + finish() + DONE
    answer = await relayed(*whole(data, content_type="text/event-stream"), allow=allow)
    assert (answer.body, answer.clean) == (data, True)


# ---------------------------------------------------------------- the end mark


@both
@pytest.mark.parametrize(
    ("data", "completion"),
    [
        (role() + content("a") + finish(), b""),
        ((role() + content("a") + finish())[:-1], b"\n"),
        ((role() + content("a") + finish())[:-2], b"\n\n"),
    ],
    ids=["whole", "one line end", "no line end"],
)
async def test_a_missing_end_mark_is_appended(data: bytes, completion: bytes, allow: tuple[str, ...]) -> None:
    """Rules W1, W2: if a complete stream lacks its end mark, the proxy adds it and keeps all other bytes."""
    script: list[Step] = [SSE_HEAD, *([chunk(data)] if data else []), LAST_CHUNK, KEEP]
    answer = await relayed(*script, allow=allow)
    assert (answer.body, answer.clean) == (data + completion + DONE, True)


@pytest.mark.parametrize("data", [b"", b": hello\n\n"], ids=["empty", "a comment"])
async def test_a_stream_that_says_nothing_gets_its_end_mark_where_nothing_is_offered(data: bytes) -> None:
    """Rules W1, W2: a stream without data gets an end mark, or an error if tools are offered."""
    script: list[Step] = [SSE_HEAD, *([chunk(data)] if data else []), LAST_CHUNK, KEEP]
    answer = await relayed(*script, allow=())
    assert (answer.body, answer.clean) == (data + DONE, True)
    answer = await relayed(*script, allow=("core__*",))
    assert b'"error"' in answer.body
    assert (answer.body.startswith(data), answer.clean) == (True, True)


@both
@pytest.mark.parametrize("tail", [b"data: [DONE]", b"data: [DONE]\n", b"data:[DONE]\r\n"])
async def test_an_end_mark_without_its_blank_line_is_completed(tail: bytes, allow: tuple[str, ...]) -> None:
    """Rules W1, W2: the proxy completes an end mark without its blank line, and adds no second one."""
    answer = await relayed(*chunked(role() + finish() + tail), allow=allow)
    assert answer.body.startswith(role() + finish() + tail)
    assert answer.body[len(role() + finish() + tail) :].strip(b"\r\n") == b""
    assert answer.body.count(b"[DONE]") == 1
    assert answer.body.endswith(b"\n\n") or answer.body.endswith(b"\r\n\n")


@both
async def test_words_about_the_end_mark_are_no_end_mark(allow: tuple[str, ...]) -> None:
    """Rules W1, W2: only a data field with nothing but the mark is an end mark."""
    data = (
        role()
        + content("data: [DONE]", "[DONE]")
        + b": [DONE]\n\n"
        + b"event: [DONE]\ndata: {}\n\n"
        + finish()
    )
    answer = await relayed(*chunked(data), allow=allow)
    assert answer.body == data + DONE


@both
async def test_a_stream_that_stays_open_after_its_end_mark(allow: tuple[str, ...]) -> None:
    """If an upstream does not close after the end mark, the client's stream ends all the same."""
    data = role() + content("a") + finish() + DONE
    async with proxied([SSE_HEAD, chunk(data), HANG], allow=allow) as (proxy, upstream):
        answer = await proxy.ask(HELLO)
        assert (answer.body, answer.clean) == (data, True)
        await upstream.all_closed()


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses"])
@pytest.mark.accepts("responses-required", "responses-fields", why="only the stream matters")
async def test_other_event_streams_get_their_end_mark(path: str) -> None:
    """Rule W1: streams of completions and responses get an end mark, too."""
    answer = await relayed(*chunked(event('{"a":1}')), path=path)
    assert answer.body == event('{"a":1}') + DONE


async def test_event_streams_of_other_paths_are_left_alone() -> None:
    """Rule W1: on other paths the proxy adds no end mark."""
    answer = await relayed(*chunked(event('{"a":1}')), path="/v1/audio/speech")
    assert (answer.body, answer.clean) == (event('{"a":1}'), True)


# ---------------------------------------------------------------- broken streams

BEGUN = role() + content("a")
BREAKS: dict[str, list[Step]] = {
    "reset": [SSE_HEAD, chunk(BEGUN), 0.05, RESET],
    "closed without the last chunk": [SSE_HEAD, chunk(BEGUN), FIN],
    "closed inside an event": [SSE_HEAD, chunk(BEGUN + content("b")[:-9]), FIN],
    "closed after one line end": [SSE_HEAD, chunk(BEGUN + content("b")[:-1]), FIN],
    "short length": [head("Content-Type: text/event-stream", "Content-Length: 9999"), BEGUN, FIN],
    "malformed chunk": [SSE_HEAD, chunk(BEGUN), b"zz\r\nnope\r\n", HANG],
    "closed inside a chunk": [SSE_HEAD, chunk(BEGUN), b"fff\r\ndata: {", FIN],
    "half an end mark": [SSE_HEAD, chunk(BEGUN + b"data: [DON"), FIN],
}


@both
@pytest.mark.parametrize("name", BREAKS)
async def test_a_broken_stream_says_so(name: str, allow: tuple[str, ...]) -> None:
    """Rules W1, W2: the client gets whole events, an error, one end mark, and no invented finish reason."""
    async with proxied(BREAKS[name], allow=allow) as (proxy, upstream):
        answer = await proxy.ask(HELLO)
        assert answer.clean
        assert answer.body.startswith(BEGUN)
        rest = answer.body.removeprefix(BEGUN)
        assert rest.startswith(b'data: {"error":{"message":"')
        assert b'"code":"upstream_broken"' in rest
        assert rest.endswith(b"}}\n\n" + DONE)
        assert rest.count(b"\n\n") == 2
        assert b'finish_reason":"stop' not in answer.body
        assert len(upstream.requests) == 1
        if allow:
            detail = await proxy.run_reaches("failed")
            assert detail.run.error_code == detail.turns[0].error_code == "upstream_broken"


@both
async def test_a_break_after_the_end_mark_is_none(allow: tuple[str, ...]) -> None:
    """Rules W1, W2: a stream that breaks after its end mark is complete."""
    data = role() + content("a") + finish() + DONE
    for ending in (FIN, RESET):
        answer = await relayed(SSE_HEAD, chunk(data), 0.05, ending, allow=allow)
        assert (answer.body, answer.clean) == (data, True)


@both
async def test_a_stalled_stream_times_out(allow: tuple[str, ...]) -> None:
    """If an upstream falls silent, the proxy closes it after the timeout, and the client gets an error."""
    async with RawUpstream([SSE_HEAD, chunk(BEGUN), HANG]) as upstream:
        config = make_config({"base_url": upstream.url, "idle_timeout_s": 0.5}, allow=allow)
        async with running(config) as proxy:
            answer = await proxy.ask(HELLO)
            assert answer.body.startswith(BEGUN)
            assert b'"code":"upstream_timeout"' in answer.body
            assert answer.body.endswith(DONE)
            assert answer.clean
            await upstream.all_closed()


@both
async def test_an_upstream_that_never_answers_times_out(allow: tuple[str, ...]) -> None:
    """If an upstream sends no first byte in time, the client gets a 504."""
    async with RawUpstream([HANG]) as upstream:
        config = make_config({"base_url": upstream.url, "first_byte_timeout_s": 0.3}, allow=allow)
        async with running(config) as proxy:
            answer = await proxy.ask(HELLO)
            assert answer.status == 504
            assert answer.error["code"] == "upstream_timeout"
            assert (answer.header("content-type") or "").startswith("application/json")
            await upstream.all_closed()


@both
@pytest.mark.parametrize(
    "script", [[FIN], [RESET], [b"HTTP/1.1 2"], [b"garbage\r\n\r\n"]], ids=["fin", "reset", "half", "garbage"]
)
async def test_an_upstream_that_breaks_before_its_answer(script: list[Step], allow: tuple[str, ...]) -> None:
    """Rule E1: if an upstream fails before its first byte, the client gets a 502 in OpenAI's error shape."""
    async with proxied([*script, FIN], allow=allow) as (proxy, upstream):
        answer = await proxy.ask(HELLO)
        assert answer.status == 502
        assert answer.error["type"] == "upstream_error"
        assert len(upstream.requests) <= 3


async def test_a_large_event_that_breaks_off_closes_the_connection() -> None:
    """Rule W1: if more than 64 KiB of an event were sent before a break, the response stays incomplete."""
    big = content("x" * 200_000)[:-50]
    answer = await relayed(SSE_HEAD, chunk(BEGUN + big), 0.1, FIN)
    assert not answer.clean
    assert (BEGUN + big).startswith(answer.body)
    assert b"[DONE]" not in answer.body


async def test_a_large_event_that_breaks_off_with_tools_offered() -> None:
    """Rule W2: with tools offered, the proxy sends only whole events of any size, and ends cleanly."""
    big = content("x" * 200_000)[:-50]
    answer = await relayed(SSE_HEAD, chunk(BEGUN + big), 0.1, FIN, allow=("core__*",))
    assert answer.clean
    assert answer.body.startswith(BEGUN + b'data: {"error"')
    assert answer.body.endswith(DONE)


@both
@pytest.mark.parametrize("steps", [[0.05, RESET], [FIN]], ids=["reset", "fin"])
async def test_a_broken_reply_is_no_reply(steps: list[Step], allow: tuple[str, ...]) -> None:
    """Rules W1, W2: a reply that breaks off never looks like a complete one."""
    opening = head("Content-Type: application/json", "Content-Length: 100")
    answer = await relayed(opening + b'{"id":', *steps, allow=allow, body=PLAIN)
    assert answer.status == 502 if allow else not answer.clean


@both
async def test_served_next(allow: tuple[str, ...]) -> None:
    """After a broken stream, the next request gets a complete answer."""
    data = role() + finish() + DONE
    async with proxied(BREAKS["malformed chunk"], chunked(data), allow=allow) as (proxy, _):
        await proxy.ask(HELLO)
        assert (await proxy.ask(HELLO)).body == data


# ---------------------------------------------------------------- statuses, headers, codings


@both
@pytest.mark.parametrize("stream", [True, False])
async def test_the_upstreams_error_passes(stream: bool, allow: tuple[str, ...]) -> None:
    """Rule E2: the client gets the upstream's status, body and Retry-After, and the proxy does not retry."""
    body = b'{"error":{"message":"slow down","type":"x","param":null,"code":"rate_limit_exceeded"}}'
    script = whole(
        body, "Retry-After: 7", "x-ratelimit-remaining-requests: 0", status="429 Too Many Requests"
    )
    async with proxied(script, allow=allow) as (proxy, upstream):
        answer = await proxy.ask({**HELLO, "stream": stream})
        assert (answer.status, answer.body, answer.clean) == (429, body, True)
        assert answer.header("retry-after") == "7"
        assert answer.header("x-ratelimit-remaining-requests") == "0"
        assert answer.header("x-should-retry") is None
        assert len(upstream.requests) == 1
        if allow:
            detail = await proxy.run_reaches("failed")
            assert detail.run.error_code == detail.turns[0].error_code == "http_429"


@both
@pytest.mark.parametrize("status", ["404 Not Found", "400 Bad Request", "500 Oops", "503 Later", "301 Moved"])
async def test_statuses_pass(status: str, allow: tuple[str, ...]) -> None:
    """Rule E2: an HTML page of an upstream's proxy passes with its status, type and bytes."""
    body = b"<html>tools are not supported by this page</html>"
    script = whole(body, "Location: http://127.0.0.1:1/", content_type="text/html", status=status)
    async with proxied(script, allow=allow) as (proxy, upstream):
        answer = await proxy.ask(HELLO)
        assert answer.status == int(status[:3])
        assert answer.header("content-type") == "text/html"
        assert answer.body == body
        assert len(upstream.requests) == 1


@both
async def test_headers_that_stay_here(allow: tuple[str, ...]) -> None:
    """The proxy forwards and returns no credentials, cookies, hop-by-hop headers or headers of its own."""
    script = whole(
        b"{}",
        "Connection: x-private",
        "X-Private: 1",
        "Keep-Alive: timeout=5",
        "Proxy-Authenticate: Basic",
        "Set-Cookie: a=b",
        "X-Request-Id: up-1",
        "X-Toolrelay-Run: run_forged",
        "X-Toolrelay-Anything: 1",
        "OpenAI-Processing-Ms: 12",
        "OpenAI-Organization: org-ours",
        "OpenAI-Project: proj_ours",
        "Server: nginx",
        "Access-Control-Allow-Origin: *",
    )
    sent = [
        ("Authorization", "Bearer sk-client"),
        ("Cookie", "s=1"),
        ("X-Api-Key", "sk-client"),
        ("Api-Key", "sk-client"),
        ("OpenAI-Organization", "org"),
        ("OpenAI-Project", "proj"),
        ("Proxy-Authorization", "Basic eA=="),
        ("TE", "trailers"),
        ("Connection", "keep-alive, X-Secret"),
        ("X-Secret", "1"),
        ("X-Toolrelay-Trace", "silent"),
        ("X-Forwarded-For", "10.0.0.1"),
        ("Forwarded", "for=10.0.0.1"),
        ("X-Stainless-Lang", "python"),
        ("User-Agent", "OpenAI/Python"),
        ("X-Request-Id", "mine-1"),
        ("Accept-Encoding", "gzip, br"),
    ]
    async with proxied(script, allow=allow, server={"trusted_proxies": ("127.0.0.1",)}) as (proxy, upstream):
        answer = await proxy.ask(PLAIN, sent)
        (request,) = upstream.requests
        assert request.header("authorization") == f"Bearer {SERVER_KEY}"
        assert request.header("host") == f"127.0.0.1:{upstream.port}"
        assert request.header("x-stainless-lang") == "python"
        assert request.header("user-agent") == "OpenAI/Python"
        assert not request.names() & {
            "cookie", "x-api-key", "api-key", "openai-organization", "openai-project", "proxy-authorization",
            "te", "x-secret", "x-toolrelay-trace", "x-forwarded-for", "forwarded", "x-request-id",
        }  # fmt: skip
        assert not any("sk-client" in value for _, value in request.headers)
        names = answer.names()
        assert len(names) == len(set(names))
        assert not set(names) & {
            "x-private", "keep-alive", "proxy-authenticate", "set-cookie", "x-toolrelay-anything",
            "access-control-allow-origin", "openai-organization", "openai-project",
        }  # fmt: skip
        assert answer.header("x-request-id") == "mine-1"
        assert answer.header("x-upstream-request-id") == "up-1"
        assert answer.header("openai-processing-ms") == "12"
        assert answer.header("server") == "toolrelay"
        run = answer.header("x-toolrelay-run")
        assert (
            run is None if not allow else run is not None and run.startswith("run_") and run != "run_forged"
        )


@both
async def test_the_query_is_forwarded(allow: tuple[str, ...]) -> None:
    """The query goes upstream unchanged, with its escapes, whether tools are offered or not."""
    async with proxied(reply("hi"), allow=allow) as (proxy, upstream):
        await proxy.ask(PLAIN, path="/v1/chat/completions?api-version=2024-10&beta=%2F%20a+b")
        assert upstream.requests[0].target == "/v1/chat/completions?api-version=2024-10&beta=%2F%20a+b"


@both
async def test_the_servers_key_never_comes_back(allow: tuple[str, ...]) -> None:
    """Rule R3: if an upstream's error contains the proxy's key, the proxy removes the key."""
    body = f'{{"error":{{"message":"bad key {SERVER_KEY}","type":"x","param":null,"code":null}}}}'.encode()
    answer = await relayed(*whole(body, status="401 Unauthorized"), allow=allow)
    assert answer.status == 401
    assert SERVER_KEY.encode() not in answer.body
    assert answer.error["message"].startswith("bad key ")


@both
async def test_compressed_event_streams_are_decoded(allow: tuple[str, ...]) -> None:
    """The proxy decodes a stream that comes compressed although it asked for identity."""
    data = role() + content("a") + finish() + DONE
    packed = gzip.compress(data)
    opening = head(
        "Content-Type: text/event-stream", "Content-Encoding: gzip", f"Content-Length: {len(packed)}"
    )
    async with proxied([opening + packed, KEEP], allow=allow) as (proxy, upstream):
        answer = await proxy.ask(HELLO, {"Accept-Encoding": "gzip"})
        assert upstream.requests[0].header("accept-encoding") == "identity"
        assert answer.header("content-encoding") is None
        assert (answer.body, answer.clean) == (data, True)


@both
@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
async def test_unknown_codings_are_relayed_as_they_are(kind: str, allow: tuple[str, ...]) -> None:
    """Rule W5: a body with an unknown coding passes with its label, or is refused if tools are offered."""
    packed = bytes(range(256))
    opening = head(f"Content-Type: {kind}", "Content-Encoding: zstd", f"Content-Length: {len(packed)}")
    answer = await relayed(opening + packed, KEEP, allow=allow, body=HELLO if "event" in kind else PLAIN)
    if allow:
        assert (answer.status, answer.error["code"]) == (502, "upstream_malformed")
        return
    assert answer.header("content-encoding") == "zstd"
    assert (answer.status, answer.body, answer.clean) == (200, packed, True)


@both
async def test_a_body_that_says_it_has_no_coding_is_read(allow: tuple[str, ...]) -> None:
    """Rules W1 and W2: ``identity`` means no coding, so a stream under it gets its missing end mark."""
    data = role() + content("hi") + finish()
    opening = head("Content-Type: text/event-stream", "Content-Encoding: identity", "Connection: close")
    answer = await relayed(opening, data, FIN, allow=allow)
    assert answer.body == data + DONE


@both
async def test_an_object_instead_of_a_stream_is_relayed(allow: tuple[str, ...]) -> None:
    """Rule W2: if an upstream answers a request for a stream with one object, the client gets the object."""
    body = b'{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":"hi"}}]}'
    answer = await relayed(*whole(body), allow=allow)
    assert (answer.status, answer.body, answer.clean) == (200, body, True)
    assert answer.header("content-type") == "application/json"


@pytest.mark.parametrize("stream", [True, False])
async def test_an_error_under_a_200_is_one_on_record(stream: bool) -> None:
    """Rule W2: an error object under a 200 passes, and the run on record has failed with its code."""
    body = b'{"error":{"message":"the model is overloaded","type":"server_error","code":"overloaded"}}'
    async with proxied(whole(body), allow=("core__*",)) as (proxy, _):
        answer = await proxy.ask({**HELLO, "stream": stream})
        assert b"the model is overloaded" in answer.body
        if stream:
            assert (answer.status, answer.body) == (200, body)
        assert (await proxy.run_reaches("failed")).run.error_code == "overloaded"


@both
@pytest.mark.parametrize("stream", [True, False])
async def test_what_is_not_json_is_relayed(stream: bool, allow: tuple[str, ...]) -> None:
    """Rule W2: a first turn that the proxy cannot read passes unchanged."""
    body = b"<html>maintenance</html>"
    answer = await relayed(
        *whole(body, content_type="text/html"), allow=allow, body={**HELLO, "stream": stream}
    )
    assert (answer.status, answer.body, answer.clean) == (200, body, True)
    assert answer.header("content-type") == "text/html"


@both
async def test_a_stream_under_another_name_is_relayed(allow: tuple[str, ...]) -> None:
    """Rule W2: an event stream with another content type passes unchanged if it calls no server tool."""
    data = role() + content("a") + finish() + DONE
    opening = head("Content-Type: text/plain", f"Content-Length: {len(data)}")
    answer = await relayed(opening + data, KEEP, allow=allow)
    assert (answer.status, answer.body, answer.clean) == (200, data, True)


async def test_a_call_in_a_stream_under_another_name_does_not_leak() -> None:
    """Rule W5: a call of a server tool in a stream with another content type never reaches the client.

    If no stream was asked for, the proxy refuses the answer; otherwise the call runs.
    """
    data = role() + call("call_1", "core__get_current_time", "{}") + finish("tool_calls") + DONE
    opening = head("Content-Type: text/plain", f"Content-Length: {len(data)}")
    answer = await relayed(opening + data, KEEP, allow=("core__*",), body=PLAIN)
    assert answer.status == 502
    assert b"core__" not in answer.body
    last = role() + content("noon") + finish() + DONE
    async with proxied([opening + data, KEEP], chunked(last), allow=("core__*",)) as (proxy, upstream):
        answer = await proxy.ask(HELLO)
        assert b"noon" in answer.body
        assert b"core__" not in answer.body
        assert len(upstream.requests) == 2


async def test_tools_switched_off_is_all_passthrough() -> None:
    """Rule W1: with tools disabled, the bodies of the request and of its answer pass byte for byte."""
    raw = b'{ "model":"m" , "stream":true,"messages":[{"role":"user","content":"h\\u00e9"}], "top_p":1.0 }'
    data = role() + content("a") + finish() + DONE
    async with proxied(chunked(data), allow=("core__*",), tools={"enabled": False}) as (proxy, upstream):
        answer = await proxy.ask(raw)
        assert answer.body == data
        assert upstream.requests[0].body == raw
        assert await proxy.runs() == []
        refused = await proxy.ask(HELLO, {"x-toolrelay-tools": "core__get_weather"})
        assert refused.status == 400


async def test_usage_is_filtered_where_only_we_asked() -> None:
    """Rule W2: usage that the proxy asked for because of its token limit is counted and removed."""
    opening = [role(usage=None), content("a", usage=None), finish(usage=None)]
    plain = [role(), content("a"), finish()]
    async with proxied(
        chunked(*opening, usage(3, 2), DONE), allow=("core__*",), tools={"max_tokens": 1000}
    ) as (proxy, upstream):
        answer = await proxy.ask(HELLO)
        assert answer.body == b"".join(plain) + DONE
        assert b'"stream_options":{"include_usage":true}' in upstream.requests[0].body
        assert (await proxy.only_run()).run.total_tokens == 5


async def test_usage_that_was_asked_for_stays() -> None:
    """Rule W2: a client that asks for usage gets the upstream's own bytes, also under a token limit."""
    data = role(usage=None) + finish(usage=None) + usage(3, 2) + DONE
    async with proxied(chunked(data), allow=("core__*",), tools={"max_tokens": 1000}) as (proxy, _):
        answer = await proxy.ask({**HELLO, "stream_options": {"include_usage": True}})
        assert answer.body == data
