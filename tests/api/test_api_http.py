"""The HTTP edge, seen from a raw socket: targets, bodies, headers, and how requests are refused."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from chat_script import DONE, content, finish, reply, role
from raw_upstream import RESET, RawUpstream, Step, chunked, head, whole
from running_proxy import Answer, Proxy, make_config, running
from structlog.testing import capture_logs
from waiting import PATIENCE_S

from proxy.app.app import Overrides
from proxy.base.errors import RequestError
from proxy.http.headers import Headers
from proxy.relay.headers import returned
from proxy.server.messages.target import Targets
from proxy.upstreams.base import PulledResponse, Upstream, UpstreamRequest, UpstreamResponse
from proxy.wires.registry.table import SERVED

pytestmark = pytest.mark.both_loops

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
OK = whole(b'{"ok":true}')
BOUND = 65536


@asynccontextmanager
async def edge(
    *scripts: list[Step], upstream: Mapping[str, Any] | None = None, **config: Any
) -> AsyncIterator[tuple[Proxy, RawUpstream]]:
    """A proxy with small limits, in front of an upstream that accepts everything."""
    config.setdefault("server", {"max_body_bytes": BOUND, "max_upload_bytes": 2 * BOUND})
    async with (
        RawUpstream(*(scripts or (OK,))) as raw,
        running(make_config({"base_url": raw.url, **(upstream or {})}, **config)) as proxy,
    ):
        yield proxy, raw


async def raw_answer(proxy: Proxy, data: bytes) -> Answer:
    """Send these bytes unchanged and return one response."""
    async with asyncio.timeout(PATIENCE_S), proxy.connect() as conversation:
        conversation.writer.write(data)
        await conversation.writer.drain()
        return await conversation.answer()


# ---------------------------------------------------------------- targets

TRICKS = [
    "/v1/../admin",
    "/v1/./models",
    "/v1//models",
    "//v1/models",
    "/v1/models/..",
    "/v1/%2e%2e/admin",
    "/v1/%2E/models",
    "/v1%2fmodels",
    "/v1/a%2Fb",
    "/v1/a%5cb",
    "/v1/a%00b",
    "/v1/a\\b",
    "/v1/chat/%63ompletions",
    "/v1/%63hat/completions",
    "/v1/chat%2",
    "/v1/chat/completions%zz",
    "/v1/files/%%32%65",
    "/v1/a%0db",
    "/v1/a%7fb",
    "/v1/mod|els",
    "/v1/models#x",
    "/v1/models/..;/files",
    "/v1/models/a%2F..%2F..%2Ffiles",
    "/v1/models/..%2Ffiles",
    "/v1/models/a%2F%2Fb",
    "/v1/models%2Fa",
    "/v1/models/a%2F%2e%2e",
    "/v1/models/..;a=b/files",
    "/v1/models/.;/files",
]


@pytest.mark.parametrize("target", TRICKS)
async def test_path_tricks_are_refused(target: str) -> None:
    """Rule E1: a target that two readers could take for two paths is a 400 and does not go upstream."""
    async with edge() as (proxy, upstream):
        answer = await proxy.ask(ASK, path=target)
        assert answer.status == 400
        assert answer.error["type"] == "invalid_request_error"
        assert upstream.requests == []


@pytest.mark.parametrize(
    "target", ["http://127.0.0.1:1/v1/models", "http://127.0.0.1:1/v1/chat/completions", "*"]
)
async def test_other_forms_of_a_target_are_refused(target: str) -> None:
    """Rule E1: the proxy refuses an absolute target and ``*``, and sends nothing upstream."""
    async with edge() as (proxy, upstream):
        answer = await proxy.ask(None, method="OPTIONS" if target == "*" else "GET", path=target)
        assert 400 <= answer.status < 500
        assert upstream.requests == []


@pytest.mark.parametrize(
    "target",
    [
        "/v1/models/org/model:free@1.0~x",
        "/v1/files?purpose=a%2Fb&x=%zz",
        "/v1/models/a%20b",
        "/v1/vector_stores/vs_1/files",
    ],
)
async def test_ordinary_targets_pass_as_they_came(target: str) -> None:
    """The upstream gets an ordinary target unchanged, with its escapes and query."""
    async with edge() as (proxy, upstream):
        assert (await proxy.ask(None, method="GET", path=target)).status == 200
        assert upstream.requests[0].target == target


def test_a_target_has_a_bound() -> None:
    """Rule E1: a target of many kilobytes is a 414."""
    with pytest.raises(RequestError) as caught:
        Targets(SERVED).read("POST", "/v1/" + "a" * 9000)
    assert caught.value.status == 414


@pytest.mark.parametrize("path", ["/favicon.ico", "/v1", "/administrator", "/V1/models", "/models"])
async def test_what_is_not_served_is_404(path: str) -> None:
    """Rule E1: a path outside of /v1 is a 404 whose message says where the API is."""
    async with edge() as (proxy, upstream):
        answer = await proxy.ask(None, method="GET", path=path)
        assert answer.status == 404
        assert "/v1" in answer.error["message"]
        assert upstream.requests == []


# ---------------------------------------------------------------- health


async def test_health() -> None:
    """/healthz says that the process lives, /readyz that it can serve."""
    async with edge() as (proxy, upstream):
        for path, parts in (("/healthz", {}), ("/readyz", {"record": "ok"})):
            answer = await proxy.ask(None, method="GET", path=path)
            assert (answer.status, answer.json) == (200, {"status": "ok", **parts})
        assert (await proxy.ask({}, path="/healthz")).status == 404
        assert upstream.requests == []


# ---------------------------------------------------------------- request ids

ID = re.compile(r"req_[0-9a-f]{32}\Z")


@pytest.mark.parametrize("given", ["mine", "A.b_c-1", "x" * 128])
async def test_a_clients_request_id_is_kept(given: str) -> None:
    """The proxy returns a valid request id of the client, on answers and on errors."""
    async with edge() as (proxy, _):
        for target in ("/v1/chat/completions", "/v1/../x", "/healthz"):
            answer = await proxy.ask(ASK, {"X-Request-Id": given}, path=target)
            assert answer.header("x-request-id") == given
            assert answer.names().count("x-request-id") == 1


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "a/b", "a\u00e9", "a;b"])
async def test_any_other_request_id_is_minted(given: str) -> None:
    """The proxy replaces a request id that is empty, too long or unfit for a line of the log."""
    async with edge() as (proxy, _):
        answer = await proxy.ask(ASK, {"X-Request-Id": given})
        assert ID.match(answer.header("x-request-id") or "")


# ---------------------------------------------------------------- methods, pages, upgrades


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "PROPFIND", "FOO"])
async def test_odd_methods_are_refused(method: str) -> None:
    """Rule E1: the proxy refuses unknown methods, sends nothing upstream and does not echo the request."""
    async with edge() as (proxy, upstream):
        answer = await proxy.ask(None, {"X-Canary": "bird"}, method=method, path="/v1/models")
        assert answer.status in (400, 405, 501)
        assert b"bird" not in answer.body
        assert upstream.requests == []


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "PATCH", "HEAD"])
async def test_methods_are_forwarded(method: str) -> None:
    """The proxy forwards every method of the API and returns the upstream's status; HEAD gets no body."""
    script: list[Step] = [head("Content-Length: 4", status="202 Accepted")] if method == "HEAD" else []
    async with (
        edge(script or whole(b"1234", status="202 Accepted")) as (proxy, upstream),
        proxy.sent(None, {"Connection": "close"}, method=method, path="/v1/files/f") as conversation,
    ):
        answer = await conversation.head()
        assert answer.status == 202
        assert upstream.requests[0].method == method
        if method == "HEAD":
            assert await conversation.reader.read() == b""


async def test_websockets_are_refused() -> None:
    """Rule E1: a WebSocket upgrade is a 426."""
    async with edge() as (proxy, upstream):
        headers = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        }
        answer = await proxy.ask(None, headers, method="GET", path="/v1/realtime")
        assert answer.status == 426
        assert answer.error["message"]
        assert upstream.requests == []


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil:80", ""])
async def test_on_loopback_the_host_is_this_machine(host: str) -> None:
    """On loopback the proxy refuses any other ``Host``, so that no page gets in by DNS rebinding."""
    async with edge() as (proxy, upstream):
        answer = await proxy.ask(ASK, {"Host": host})
        assert answer.status in (400, 403)
        assert upstream.requests == []


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1", "[::1]:80"])
async def test_names_of_this_machine(host: str) -> None:
    """The proxy accepts each name of loopback as ``Host``; the upstream gets its own ``Host``."""
    async with edge() as (proxy, upstream):
        assert (await proxy.ask(ASK, {"Host": host})).status == 200
        assert upstream.requests[0].header("host") == f"127.0.0.1:{upstream.port}"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": ""},
    ],
)
async def test_pages_of_other_origins_are_refused(headers: dict[str, str]) -> None:
    """The proxy refuses a browser's request from a page of another origin, and sends nothing upstream."""
    async with edge() as (proxy, upstream):
        answer = await proxy.ask(ASK, headers)
        assert answer.status == 403
        assert answer.error["code"] == "origin_not_allowed"
        assert upstream.requests == []


async def test_the_same_origin_may_call() -> None:
    """The proxy accepts a request from a page of its own origin."""
    async with edge() as (proxy, _):
        assert (await proxy.ask(ASK, {"Origin": f"http://127.0.0.1:{proxy.port}"})).status == 200


# ---------------------------------------------------------------- bodies


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/v1/audio/speech"])
async def test_compressed_bodies_are_refused(path: str) -> None:
    """Rule E1: a compressed request is a 415 before it is read."""
    async with edge() as (proxy, upstream):
        answer = await proxy.ask(b"\x1f\x8b", {"Content-Encoding": "gzip"}, path=path)
        assert answer.status == 415
        assert answer.error["code"] == "unsupported_content_encoding"
        assert upstream.requests == []


@pytest.mark.parametrize(("path", "bound"), [("/v1/chat/completions", BOUND), ("/v1/files", 2 * BOUND)])
async def test_declared_bodies_over_the_bound_are_refused_unread(path: str, bound: int) -> None:
    """Rule E1: a declared size over the limit is a 413 at once; the proxy does not wait for the body."""
    async with edge() as (proxy, upstream):
        kind = "multipart/form-data; boundary=x" if path == "/v1/files" else "application/json"
        headers = {"Content-Type": kind, "Authorization": "Bearer unused", "Content-Length": str(4 << 30)}
        request = proxy.request(None, headers, path=path)
        answer = await raw_answer(proxy, request)
        assert answer.status == 413
        assert answer.error["code"] == "request_too_large"
        assert str(bound) in answer.error["message"]
        assert upstream.requests == []


async def test_endless_bodies_are_refused() -> None:
    """Rule E1: the proxy counts a chunked body as it comes, and over the limit the client gets a 413."""
    async with edge() as (proxy, upstream):
        piece = b"1000\r\n" + b" " * 4096 + b"\r\n"
        headers = {"Content-Type": "application/json", "Transfer-Encoding": "chunked"}
        request = proxy.request(None, headers) + piece * 20
        answer = await raw_answer(proxy, request)
        assert answer.status == 413
        assert upstream.requests == []


async def test_a_body_of_just_the_bound_passes() -> None:
    """A body of exactly the limit passes; one more byte is a 413."""
    raw = json.dumps({"model": "m", "messages": [{"role": "user", "content": ""}]}).encode()
    raw = raw[:-4] + b"x" * (BOUND - len(raw)) + raw[-4:]
    assert len(raw) == BOUND
    async with edge(reply("hi")) as (proxy, upstream):
        assert (await proxy.ask(raw)).status == 200
        assert (await proxy.ask(raw[:-4] + b" " + raw[-4:])).status == 413
        assert len(upstream.requests) == 1


HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "blank": b"  \n",
    "prose": b"hello",
    "list": b"[]",
    "null": b"null",
    "string": b'"x"',
    "number": b"7",
    "half": b'{"model":"m"',
    "two": b'{"model":"m"}{"model":"n"}',
    "trailing comma": b'{"model":"m",}',
    "comment": b'{"model":"m"/**/}',
    "single quotes": b"{'model':'m'}",
    "nan": b'{"model":"m","messages":[],"x":NaN}',
    "infinity": b'{"model":"m","messages":[],"x":-Infinity}',
    "huge number": b'{"model":"m","messages":[],"x":' + b"9" * 5000 + b"}",
    "huge exponent": b'{"model":"m","messages":[],"x":1e999}',
    "bom": b'\xef\xbb\xbf{"model":"m","messages":[]}',
    "utf-16": '{"model":"m","messages":[]}'.encode("utf-16"),
    "invalid utf-8": b'{"model":"\xff","messages":[]}',
    "surrogate": b'{"model":"\\ud800","messages":[]}',
    "control": b'{"model":"a\nb","messages":[]}',
    "deep list": b'{"model":"m","messages":' + b"[" * 20000 + b"]" * 20000 + b"}",
    "deep object": b'{"model":"m","messages":[],"x":' + b'{"a":' * 5000 + b"1" + b"}" * 5005,
    "duplicate": b'{"model":"m","model":"n","messages":[]}',
    "duplicate escaped": b'{"model":"m","mod\\u0065l":"n","messages":[]}',
    "duplicate inside": b'{"model":"m","messages":[{"role":"user","role":"system"}]}',
    "duplicate deep": b'{"model":"m","messages":[],"x":{"y":[{"z":1,"z":2}]}}',
    "no model": b'{"messages":[]}',
    "model no text": b'{"model":7,"messages":[]}',
    "model empty": b'{"model":"","messages":[]}',
    "no messages": b'{"model":"m"}',
    "messages no list": b'{"model":"m","messages":{}}',
    "message no object": b'{"model":"m","messages":["hi"]}',
    "message null": b'{"model":"m","messages":[null]}',
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_bodies_are_refused(name: str) -> None:
    """Rule E1: a body that is invalid or could be read in two ways is a 400 in OpenAI's format."""
    async with edge() as (proxy, upstream):
        answer = await proxy.ask(HOSTILE[name])
        assert answer.status == 400
        assert answer.error["type"] == "invalid_request_error"
        if name.startswith("duplicate"):
            assert answer.error["code"] == "duplicate_key"
            assert answer.error["param"] in ("model", "role", "z")
        if name in ("no model", "model no text", "model empty"):
            assert answer.error["param"] == "model"
        assert upstream.requests == []


ODD: dict[str, dict[str, Any]] = {
    "tools null": {"tools": None},
    "tools text": {"tools": "x"},
    "tools odd": {"tools": [None, 7, "x", {}, {"function": None}, {"function": {"name": 7}}]},
    "functions odd": {"functions": [None, {"name": None}]},
    "choice odd": {"tool_choice": {"type": "function", "function": None}},
    "choice list": {"tool_choice": ["mine"]},
    "allowed odd": {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": [None, "x"]}}},
    "allowed none": {"tool_choice": {"type": "allowed_tools", "allowed_tools": None}},
    "allowed text": {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": 7, "mode": 7}}},
    "stream odd": {"stream": "yes", "stream_options": "x"},
    "stream options null": {"stream_options": None, "stream": None},
    "format odd": {"response_format": "json"},
    "n odd": {"n": "2"},
    "n true": {"n": True},
    "tokens odd": {"max_tokens": "x", "max_completion_tokens": None},
    "messages odd": {
        "messages": [
            {},
            {"role": 7},
            {"role": "assistant", "tool_calls": 7},
            {"role": "assistant", "tool_calls": [None, 7, {}, {"id": 7}, {"id": "x", "function": 7}]},
            {"role": "assistant", "tool_calls": {"id": "x"}},
            {"role": "user", "content": [None, 7, {"type": "text"}, {"type": "text", "text": 7}]},
            {"role": "user", "content": {"a": 1}},
        ]
    },
}


@pytest.mark.accepts("*", why="what the proxy passes on is odd on purpose, and this upstream takes it")
@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("restored", [False, True])
async def test_odd_fields_are_the_upstreams_to_judge(name: str, restored: bool) -> None:
    """Rule E1: a field with an odd value passes to the upstream, or is a 400 that names a field."""
    async with edge(reply("hi")) as (proxy, upstream):
        answer = await proxy.ask({**ASK, **ODD[name]}, {"x-toolrelay-tools": "none"} if restored else {})
        assert answer.status in (200, 400)
        if answer.status == 400:
            assert answer.error["param"]
        assert len(upstream.requests) == (answer.status == 200)


async def test_header_tricks_do_not_reach_the_upstream() -> None:
    """Malformed headers and ambiguous lengths are a 400, and the proxy sends nothing upstream."""
    async with edge() as (proxy, upstream):
        host = f"Host: 127.0.0.1:{proxy.port}\r\n".encode()
        for bad in (
            b"X-A: a\x00b\r\n",
            b"X-A : a\r\n",
            b"Content-Length: 2\r\nContent-Length: 3\r\n",
            b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
            b"Content-Length: +2\r\n",
            b"Transfer-Encoding: xchunked\r\n",
        ):
            answer = await raw_answer(proxy, b"POST /v1/files HTTP/1.1\r\n" + host + bad + b"\r\n{}")
            assert (answer.status, answer.error["code"]) == (400, "invalid_http"), bad
        assert upstream.requests == []


async def test_headers_that_stand_twice_go_up_with_their_own_values() -> None:
    """Repeated headers reach the upstream with their values, in order; the client's key does not."""
    twice = [("X-A", "1"), ("x-a", "2"), ("X-B", "3"), ("X-A", "4"), ("X-C", "5"), ("X-D", "6")]
    lines = "".join(f"{name}: {value}\r\n" for name, value in twice)
    body = json.dumps(ASK)
    async with edge(OK, upstream={"forward_headers": ("x-a", "x-b", "x-c", "x-d")}) as (proxy, upstream):
        for path, sent in (("chat/completions", body), ("files", "{}")):
            await raw_answer(
                proxy,
                f"POST /v1/{path} HTTP/1.1\r\nHost: 127.0.0.1:{proxy.port}\r\nX-A: 0\r\nX-A: 0\r\n"
                "Authorization: Bearer canary-5b1e\r\nContent-Type: application/json\r\n"
                f"{lines}Content-Length: {len(sent)}\r\n\r\n{sent}".encode(),
            )
        for request in upstream.requests:
            kept = [pair for pair in request.headers if pair[0].lower().startswith("x-")]
            assert [("X-A", "0"), ("X-A", "0"), *twice] == kept
            assert request.header("content-type") == "application/json"
            assert "canary" not in str(request.headers)
        assert len(upstream.requests) == 2


async def test_expect_is_answered_here() -> None:
    """The proxy answers ``Expect: 100-continue`` itself and does not send it upstream."""
    async with edge(reply("hi")) as (proxy, upstream), proxy.connect() as conversation:
        body = json.dumps(ASK).encode()
        headers = {
            "Content-Type": "application/json",
            "Expect": "100-continue",
            "Content-Length": str(len(body)),
        }
        conversation.writer.write(proxy.request(None, headers))
        async with asyncio.timeout(PATIENCE_S):
            assert (await conversation.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        conversation.writer.write(body)
        assert (await conversation.answer()).status == 200
        assert "expect" not in upstream.requests[0].names()


async def test_pipelined_requests_are_answered_in_order() -> None:
    """A client that sends two requests at once on a connection gets the answers in the same order."""
    first, second = reply("one"), reply("two")
    async with edge(first, second) as (proxy, _), proxy.connect() as conversation:
        conversation.writer.write(proxy.request(ASK) * 2)
        texts = [(await conversation.answer()).json["choices"][0]["message"]["content"] for _ in range(2)]
        assert texts == ["one", "two"]


# ---------------------------------------------------------------- limits


async def test_requests_over_the_limit_wait() -> None:
    """A caller over its limit gets a 429 with Retry-After, and nothing goes upstream."""
    async with edge(limits={"requests": ["2/minute"]}) as (proxy, upstream):
        statuses = [(await proxy.ask(ASK)).status for _ in range(3)]
        assert statuses == [200, 200, 429]
        answer = await proxy.ask(ASK)
        assert answer.error["code"] == "rate_limit_exceeded"
        assert 1 <= int(answer.header("retry-after") or 0) <= 61
        assert len(upstream.requests) == 2


async def test_streams_have_a_bound() -> None:
    """A request over the limit of open requests is a 429; once one ends, the next is served."""
    release = asyncio.Event()
    held: list[Step] = [release, *reply("hi")]
    async with edge(held, limits={"concurrent_streams": 1}) as (proxy, upstream):
        first = asyncio.ensure_future(proxy.ask(ASK))
        await upstream.asked(1)
        assert (await proxy.ask(ASK)).status == 429
        release.set()
        assert (await first).status == 200
        assert (await proxy.ask(ASK)).status == 200


# ---------------------------------------------------------------- models


def listing(*names: str) -> list[Step]:
    """An upstream's list of models."""
    models = [{"id": name, "object": "model", "created": 5, "owned_by": "them"} for name in names]
    return whole(json.dumps({"object": "list", "data": models}).encode())


@asynccontextmanager
async def two(
    first: list[Step], second: list[Step], **settings: Any
) -> AsyncIterator[tuple[Proxy, RawUpstream, RawUpstream]]:
    """A proxy before two upstreams."""
    async with RawUpstream(first) as one, RawUpstream(second) as other:
        tables: list[dict[str, Any]] = [
            {"name": "one", "base_url": one.url, "models": ["gpt-*", "shared"]},
            {"name": "other", "base_url": other.url, "models": {"fast": "qwen-7b", "gone": "not-listed"}},
        ]
        async with running(make_config(*tables, **settings)) as proxy:
            yield proxy, one, other


async def test_models_of_one_upstream_pass_untouched() -> None:
    """With one upstream for all models, the client gets the upstream's list byte for byte."""
    body = b'{ "object": "list", "data": [ {"id": "x", "extra": 1.0} ] }'
    async with edge(whole(body)) as (proxy, upstream):
        assert (await proxy.get("/v1/models")).body == body
        assert (await proxy.get("/v1/models/x")).body == body
        assert [r.target for r in upstream.requests] == ["/v1/models", "/v1/models/x"]


async def test_models_of_several_upstreams_are_merged() -> None:
    """The list has each served model once, under the name that clients use, and no other model."""
    async with two(listing("gpt-4", "shared", "secret"), listing("qwen-7b", "gpt-4")) as (proxy, _, _):
        answer = await proxy.get("/v1/models")
        assert answer.json["object"] == "list"
        assert [m["id"] for m in answer.json["data"]] == ["gpt-4", "shared", "fast", "gone"]
        fast, gone = answer.json["data"][2:]
        assert (fast["owned_by"], fast["created"]) == ("them", 5)
        assert gone == {"id": "gone", "object": "model", "created": 0, "owned_by": "other"}
        one = await proxy.get("/v1/models/fast")
        assert one.json == fast
        missing = await proxy.get("/v1/models/qwen-7b")
        assert (missing.status, missing.error["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    "bad", [whole(b"no", status="500 Oops"), whole(b"<html>"), whole(b'{"data":7}'), whole(b"[]")]
)
async def test_an_upstream_without_a_list_is_left_out(bad: list[Step]) -> None:
    """If one upstream has no valid list, the client still gets the models of the other."""
    async with two(listing("gpt-4"), bad) as (proxy, _, _):
        names = [m["id"] for m in (await proxy.get("/v1/models")).json["data"]]
        assert names[0] == "gpt-4"


async def test_no_list_at_all_is_an_error() -> None:
    """Rule E1: if no upstream has a list, the client gets a 502 in OpenAI's format."""
    bad = whole(b"no", status="500 Oops")
    async with two(bad, bad) as (proxy, _, _):
        answer = await proxy.get("/v1/models")
        assert answer.status == 502
        assert answer.error["type"] == "upstream_error"


@pytest.mark.parametrize("script", [whole(b"no", status="500 Oops"), [RESET]], ids=["fails", "is gone"])
async def test_a_model_is_not_missing_because_its_upstream_is(script: list[Step]) -> None:
    """Rule E1: a model of an upstream that fails is a 502; a model that no upstream can have is a 404."""
    async with two(listing("gpt-4"), script) as (proxy, _, _):
        for model, status in (("gpt-4", 200), ("fast", 502), ("gone", 502), ("qwen-7b", 404)):
            answer = await proxy.ask(None, method="GET", path=f"/v1/models/{model}")
            assert answer.status == status
            if status == 502:
                assert answer.error["type"] == "upstream_error"
    async with two(script, listing()) as (proxy, _, _):
        for model, status in (("gpt-4", 502), ("fast", 200), ("qwen-7b", 404)):
            assert (await proxy.ask(None, method="GET", path=f"/v1/models/{model}")).status == status


@pytest.mark.parametrize("allow", [(), ("core__*",)])
async def test_renamed_models_are_routed(allow: tuple[str, ...]) -> None:
    """The upstream gets a renamed model under its own name, and the rest of the body unchanged."""
    raw = b'{"messages":[{"role":"user","content":"h\\u00e9"}],"model" : "fast","top_p":1.0}'
    async with two(reply("one"), reply("two"), allow=allow) as (proxy, one, other):
        answer = await proxy.ask(raw)
        assert answer.json["choices"][0]["message"]["content"] == "two"
        sent = other.requests[0].body
        assert json.loads(sent)["model"] == "qwen-7b"
        assert b'[{"role":"user","content":"h\\u00e9"}]' in sent
        assert b'"top_p":1.0' in sent
        await proxy.ask({**ASK, "model": "gpt-4"})
        assert json.loads(one.requests[0].body)["model"] == "gpt-4"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/v1/completions"])
async def test_unknown_models_are_404(path: str) -> None:
    """Rule E1: a model that no upstream serves is a 404, and the proxy asks no upstream."""
    async with two(OK, OK) as (proxy, one, other):
        answer = await proxy.ask({**ASK, "model": "qwen-7b"}, path=path)
        assert (answer.status, answer.error["code"], answer.error["param"]) == (
            404,
            "model_not_found",
            "model",
        )
        assert one.requests == other.requests == []


async def test_a_model_is_needed_to_choose_an_upstream() -> None:
    """Rule E1: with several upstreams a body without a model is a 400 that names the field."""
    async with two(OK, OK) as (proxy, _, _):
        answer = await proxy.ask({"input": "x"}, path="/v1/embeddings")
        assert (answer.status, answer.error["param"]) == (400, "model")


# ---------------------------------------------------------------- errors inside the proxy


class Faulty(PulledResponse):
    """An upstream whose response raises an unexpected exception."""

    def __init__(self, inner: Upstream, pieces: list[bytes]) -> None:
        self._inner = inner
        self._pieces = pieces
        self.name = inner.name
        self.status = 200
        self.headers: Headers = [("Content-Type", "text/event-stream")]
        self.content_type = "text/event-stream"

    async def open(self, request: UpstreamRequest) -> UpstreamResponse:
        """Begin a response: a stream if the request asks for one, else JSON."""
        assert isinstance(request.body, bytes)
        if json.loads(request.body).get("stream") is not True:
            self.content_type = "application/json"
        return self

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield some bytes, then raise."""
        for piece in self._pieces:
            yield piece
        raise RuntimeError("sk-secret in a message")

    async def read(self, limit: int) -> bytes:
        """Raise at once."""
        raise RuntimeError("sk-secret in a message")

    async def aclose(self) -> None:
        """Close the real upstream."""
        await self._inner.aclose()


def faulty(*pieces: bytes) -> Overrides:
    """Replace every upstream with the faulty one."""
    wrap: Callable[[Upstream], Upstream] = lambda upstream: Faulty(upstream, list(pieces))  # noqa: E731
    return Overrides(wrap_upstream=wrap)


@pytest.fixture
def logs() -> Iterator[list[MutableMapping[str, Any]]]:
    """The entries of the log as data: formatting a traceback for people takes seconds."""
    with capture_logs() as entries:
        yield entries


@pytest.mark.parametrize("allow", [(), ("core__*",)])
async def test_an_unforeseen_fault_is_never_a_clean_end(
    allow: tuple[str, ...], logs: list[MutableMapping[str, Any]]
) -> None:
    """An unexpected error cuts a stream off or ends it with an error, and does not show its cause."""
    config = make_config("http://127.0.0.1:9/v1", allow=allow)
    async with running(config, faulty(role() + content("a"))) as proxy:
        answer = await proxy.ask({**ASK, "stream": True})
        assert answer.status == 200
        assert not answer.clean or b'"error"' in answer.body
        assert b"sk-secret" not in answer.body
        assert b"HTTP/1.1" not in answer.body
        assert b"stop" not in answer.body
        if allow:
            assert (await proxy.run_reaches("failed")).run.error_code == "internal_error"


@pytest.mark.parametrize("stream", [True, False])
async def test_an_unforeseen_fault_before_the_first_byte_is_a_500(
    stream: bool, logs: list[MutableMapping[str, Any]]
) -> None:
    """Rule E1: the client gets a 500 in OpenAI's format that does not show the cause."""
    async with running(make_config("http://127.0.0.1:9/v1"), faulty()) as proxy:
        answer = await proxy.ask({**ASK, "stream": stream})
        assert answer.status == 500
        assert answer.error["code"] == "internal_error"
        assert answer.header("x-toolrelay-run") == (await proxy.run_reaches("failed")).run.id
        assert b"sk-secret" not in answer.body
        assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == ["internal_error"]


async def test_two_applications_share_nothing() -> None:
    """Two proxies in one process have limits and records of their own."""
    async with RawUpstream(reply("hi")) as upstream:
        config = make_config(upstream.url, limits={"requests": ["1/minute"]})
        async with running(config) as one, running(config) as other:
            assert (await one.ask(ASK)).status == 200
            assert (await other.ask(ASK)).status == 200
            assert (await one.ask(ASK)).status == 429
            assert len(await one.runs()) == len(await other.runs()) == 1


# ---------------------------------------------------------------- header rules


def test_returned_headers() -> None:
    """The upstream's request id gets another name; its length is kept only if the proxy adds no bytes."""
    sent = [("X-Request-ID", "u"), ("Content-Length", "5"), ("ETag", "1"), ("ETag", "2")]
    kept = [("x-upstream-request-id", "u"), ("ETag", "1"), ("ETag", "2")]
    assert returned(sent) == kept
    assert ("Content-Length", "5") in returned(sent, keep_length=True)


async def test_streams_say_that_they_are_not_to_be_buffered() -> None:
    """A run's stream has headers that tell caches and reverse proxies not to buffer it."""
    async with edge(chunked(role(), finish(), DONE)) as (proxy, _):
        answer = await proxy.ask({**ASK, "stream": True})
        assert answer.header("cache-control") == "no-cache"
        assert answer.header("x-accel-buffering") == "no"


# ---------------------------------------------------------------- which headers and parameters pass

ORDERS = (
    "x-portkey-custom-host", "x-portkey-config", "x-portkey-provider", "Helicone-Target-URL",
    "cf-aig-authorization", "x-litellm-api-key", "X-HTTP-Method-Override", "X-Original-URL", "X-Rewrite-URL",
    "openai_beta", "x_api_key", "OpenAI-Organization", "Referer", "X-Anything-New",
)  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/v1/files"])
async def test_headers_that_are_not_listed_stay_here(path: str) -> None:
    """The upstream gets only listed headers of the client, so none that instructs a gateway."""
    sent = [
        *((name, "http://elsewhere.example/v1") for name in ORDERS),
        ("OpenAI-Beta", "a"),
        ("X-Title", "t"),
    ]
    async with edge(OK, upstream={"forward_headers": ("x-title",)}) as (proxy, upstream):
        assert (await proxy.ask(ASK, sent, path=path)).status == 200
        (request,) = upstream.requests
        assert request.names() <= {
            "accept", "accept-encoding", "authorization", "content-length", "content-type", "host",
            "openai-beta", "user-agent", "x-title",
        }  # fmt: skip
        assert {"openai-beta", "x-title"} <= request.names()
        assert "elsewhere" not in str(request.headers)


async def test_an_upstream_gives_a_reverse_proxy_no_instructions() -> None:
    """The client gets only listed headers of the upstream, so none that instructs a reverse proxy."""
    head_ = [
        "X-Accel-Redirect: /etc/passwd", "X-Sendfile: /etc/passwd", "Location: http://elsewhere.example",
        "Set-Cookie: a=b", "X_Listed: 1", "X-Unlisted: 1", "Server: them", "OpenAI-Organization: org",
        "X-RateLimit-Remaining-Tokens: 7", "X-Listed: yes", "X-Request-ID: theirs",
    ]  # fmt: skip
    async with edge(whole(b"{}", *head_), upstream={"forward_response_headers": ("x-listed",)}) as (proxy, _):
        answer = await proxy.ask(ASK)
        names = {name.lower() for name, _ in answer.headers}
        assert answer.header("x-ratelimit-remaining-tokens") == "7"
        assert answer.header("x-listed") == "yes"
        assert answer.header("x-upstream-request-id") == "theirs"
        assert answer.header("server") == "toolrelay"
        assert names.isdisjoint(
            {"x-accel-redirect", "x-sendfile", "location", "set-cookie", "x_listed", "x-unlisted"}
        )


@pytest.mark.parametrize(
    "query",
    [
        "model=gpt-4o",
        "api-version=1&model=x",
        "api-version=1;model=x",
        "%6dodel=x",
        "model[]=x",
        "x",
        "Beta=1",
    ],
)
@pytest.mark.parametrize("path", ["chat/completions", "responses", "embeddings", "audio/transcriptions"])
async def test_a_query_chooses_no_model(path: str, query: str) -> None:
    """Rule E1: an unlisted query parameter is a 400 that names the setting, and nothing goes upstream."""
    body = ASK if path == "chat/completions" else {"model": "m", "input": "x"}
    async with edge(OK, upstream={"forward_query": ("trace",)}) as (proxy, upstream):
        answer = await proxy.ask(body, path=f"/v1/{path}?{query}")
        assert answer.status == 400
        assert answer.json["error"]["code"] == "unknown_query_parameter"
        assert "upstreams.default.forward_query" in answer.json["error"]["message"]
        assert upstream.requests == []
        answer = await proxy.ask(body, path=f"/v1/{path}?api-version=2026-01-01&beta=true&trace=1")
        assert answer.status == 200
        assert upstream.requests[0].target.endswith(f"/{path}?api-version=2026-01-01&beta=true&trace=1")
