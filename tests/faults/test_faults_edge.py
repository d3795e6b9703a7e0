"""C30 to C36: requests that lie about their end, their destination or their content."""

import asyncio
import json
from typing import Any

import pytest
from faults_rig import TIME, ask, before, raw, rest_of, served_next
from raw_upstream import RawUpstream, whole
from running_proxy import Proxy
from waiting import PATIENCE_S
from wire_kits import Kit

from proxy.wires.dialect import Endpoint
from proxy.wires.registry.table import SERVED

pytestmark = pytest.mark.accepts("*", why="requests are odd by intention")

BEHIND = "/v1/behind"
"""The target of a request that reaches the upstream if the proxy misjudges where a body ends."""


def hidden_request(proxy: Proxy) -> bytes:
    """Return a whole request, to be placed after a body or after a malformed request."""
    return proxy.request(method="GET", path=BEHIND)


def post(proxy: Proxy, kit: Kit, *headers: str, version: str = "1.1", end: str = "\r\n") -> bytes:
    """Return a request head with these header lines."""
    fixed = (f"Host: 127.0.0.1:{proxy.port}", "Content-Type: application/json")
    return end.join([f"POST {kit.path} HTTP/{version}", *fixed, *headers, "", ""]).encode("latin-1")


CHUNKED = "Transfer-Encoding: chunked"
SMUGGLING: dict[str, tuple[tuple[str, ...], bytes]] = {
    "a length and chunks": (("Content-Length: 4", CHUNKED), b"0\r\n\r\n"),
    "chunks and a length": ((CHUNKED, "Content-Length: 4"), b"0\r\n\r\n"),
    "two lengths": (("Content-Length: 2", "Content-Length: 3"), b"{}"),
    "the same length twice": (("Content-Length: 2", "Content-Length: 2"), b"{}"),
    "a list of lengths": (("Content-Length: 2, 2",), b"{}"),
    "a length with a sign": (("Content-Length: +2",), b"{}"),
    "a hexadecimal length": (("Content-Length: 0x2",), b"{}"),
    "a negative length": (("Content-Length: -1",), b"{}"),
    "a length in words": (("Content-Length: two",), b"{}"),
    "an empty length": (("Content-Length:",), b"{}"),
    "a huge length": (("Content-Length: " + "9" * 30,), b"{}"),
    "a coding before chunked": (("Transfer-Encoding: gzip, chunked",), b"0\r\n\r\n"),
    "chunked and another": (("Transfer-Encoding: chunked, identity",), b"0\r\n\r\n"),
    "chunked twice": ((CHUNKED, CHUNKED), b"0\r\n\r\n"),
    "nearly chunked": (("Transfer-Encoding: xchunked",), b"0\r\n\r\n"),
    "chunked after a tab": (("Transfer-Encoding:\x0bchunked",), b"0\r\n\r\n"),
    "identity": (("Transfer-Encoding: identity",), b"{}"),
    "a blank before the colon": (("Transfer-Encoding : chunked",), b"0\r\n\r\n"),
    "a folded header": (("X-A: a", " Transfer-Encoding: chunked"), b"0\r\n\r\n"),
    "a size that is none": ((CHUNKED,), b"zz\r\n{}\r\n0\r\n\r\n"),
    "a negative size": ((CHUNKED,), b"-1\r\n{}\r\n0\r\n\r\n"),
    "a size with a prefix": ((CHUNKED,), b"0x2\r\n{}\r\n0\r\n\r\n"),
    "a size past 64 bits": ((CHUNKED,), b"1" + b"0" * 16 + b"2\r\n{}\r\n0\r\n\r\n"),
    "a chunk longer than it says": ((CHUNKED,), b"2\r\n{}XX\r\n0\r\n\r\n"),
    "sizes ended by lf": ((CHUNKED,), b"2\n{}\n0\n\n"),
    "a cr inside a size": ((CHUNKED,), b"2\r\r\n{}\r\n0\r\n\r\n"),
}


@pytest.mark.parametrize("name", SMUGGLING)
async def test_smuggling(kit: Kit, name: str) -> None:
    """C30: ambiguous framing is a 4xx and closes the connection; nothing behind it becomes a request."""
    headers, body = SMUGGLING[name]
    async with before(whole(b"{}")) as (proxy, upstream):
        answer, rest = await raw(proxy, post(proxy, kit, *headers) + body + hidden_request(proxy))
        assert answer.status in (400, 413, 501)
        assert answer.error["type"] == "invalid_request_error"
        assert rest == b""
        await asyncio.sleep(0.02)
        assert upstream.requests == []
        await served_next(proxy, upstream, kit)


@pytest.mark.parametrize("end", ["\n", "\r"])
async def test_lines_that_end_otherwise(kit: Kit, end: str) -> None:
    """C30: a head whose lines end in LF or CR alone is refused."""
    async with before(whole(b"{}")) as (proxy, upstream):
        data = post(proxy, kit, "Content-Length: 2", end=end) + b"{}" + hidden_request(proxy)
        answer, rest = await raw(proxy, data)
        assert (answer.status, rest) == (400, b"")
        assert upstream.requests == []


@pytest.mark.parametrize("version", ["1.0", "0.9", "2.0", "1.2", "9.9", "11.1"])
async def test_versions(kit: Kit, version: str) -> None:
    """C30: chunks under HTTP/1.0 or another version smuggle no request to the upstream."""
    async with before(whole(b"{}")) as (proxy, upstream):
        data = post(proxy, kit, CHUNKED, version=version) + b"2\r\n{}\r\n0\r\n\r\n" + hidden_request(proxy)
        answer, _ = await raw(proxy, data)
        assert 400 <= answer.status < 502
        assert BEHIND.removeprefix("/v1") not in {request.target for request in upstream.requests}
        assert all(BEHIND not in request.target for request in upstream.requests)


@pytest.mark.parametrize("protocol", ["websocket", "h2c", "TLS/1.0"])
async def test_upgrades_with_a_body(kit: Kit, protocol: str) -> None:
    """C30, C35: an upgrade to WebSocket is a 426 and ends the connection; other upgrades are ignored."""
    async with before(kit.whole("ok")) as (proxy, upstream):
        body = json.dumps(kit.ask(stream=False)).encode()
        headers = (f"Upgrade: {protocol}", "Connection: upgrade", f"Content-Length: {len(body)}")
        answer, rest = await raw(proxy, post(proxy, kit, *headers) + body + hidden_request(proxy))
        if protocol == "websocket":
            assert (answer.status, rest) == (426, b"")
            assert upstream.requests == []
        else:
            assert answer.status == 200
            assert "upgrade" not in upstream.requests[0].names()


async def test_a_body_where_none_belongs(kit: Kit) -> None:
    """C30: the body of a GET is taken as its body and not as another request."""
    async with before(whole(b'{"data":[]}')) as (proxy, upstream):
        hidden = hidden_request(proxy)
        head = proxy.request(None, {"Content-Length": str(len(hidden))}, method="GET", path="/v1/models")
        answer, rest = await raw(proxy, head + hidden)
        assert (answer.status, rest) == (200, b"")
        assert [request.target for request in upstream.requests] == ["/v1/models"]
        assert upstream.requests[0].body in (b"", hidden)


@pytest.mark.parametrize("framing", [b"", b"Content-Length: 5\r\n"])
async def test_trailers_are_no_headers(kit: Kit, framing: bytes) -> None:
    """C30: trailers have no effect and are not passed on; a framing header among them is a 400."""
    body = json.dumps(kit.ask(stream=False)).encode()
    trailers = b"Authorization: Bearer sk-trailer\r\nx-toolrelay-tools: none\r\n" + framing
    data = b"%x\r\n%s\r\n0\r\n%s\r\n" % (len(body), body, trailers)
    async with before(kit.whole("ok")) as (proxy, upstream):
        answer, _ = await raw(proxy, post(proxy, kit, CHUNKED, "Trailer: Authorization") + data)
        assert answer.status == (400 if framing else 200)
        assert len(upstream.requests) == (0 if framing else 1)
        for request in upstream.requests:
            assert "tools" in json.loads(request.body)
            assert "sk-trailer" not in str(request)
            assert "trailer" not in request.names()


@pytest.mark.parametrize(
    "line",
    [
        b"X-A: a\rX-Injected: 1",
        b"X-A: a\nX-Injected: 1",
        b"X-A: a\x00b",
        b"X-A: a\r\n X-Injected: 1",
        b"X-A\r\nX-Injected: 1",
        b"X\x01A: a",
        b"X-A: \x7f\x1b[2J",
        b"X(A): a",
    ],
)
async def test_controls_in_headers(kit: Kit, line: bytes) -> None:
    """C31: neither a control character nor a header made with one goes upstream, and there is no 5xx."""
    async with before(kit.whole("ok")) as (proxy, upstream):
        body = json.dumps(kit.ask(stream=False)).encode()
        opening = post(proxy, kit, f"Content-Length: {len(body)}")[:-2]
        answer, _ = await raw(proxy, opening + line + b"\r\n\r\n" + body)
        assert answer.status < 500
        for request in upstream.requests:
            assert "x-injected" not in request.names()
            assert all(ord(c) >= 32 or c == "\t" for _, value in request.headers for c in value)


@pytest.mark.parametrize("field", ["model", "user", "metadata"])
async def test_line_ends_in_fields(kit: Kit, field: str) -> None:
    """C31: a value in the body never becomes a header, whatever characters it has."""
    evil = "m\r\nX-Injected: 1\r\n\r\nGET /v1/behind HTTP/1.1\r\n\x00"
    more = {field: {"a": evil} if field == "metadata" else evil}
    async with before(kit.whole("ok")) as (proxy, upstream):
        answer = await ask(proxy, kit, stream=False, **more)
        assert answer.status < 500
        assert "x-injected" not in answer.names()
        assert len(upstream.requests) <= 1
        for request in upstream.requests:
            assert "x-injected" not in request.names()
            assert json.loads(request.body)[field] == more[field]


async def test_nothing_says_where_to_go(kit: Kit) -> None:
    """C32: no header or field of a request makes the proxy connect to another host."""
    async with RawUpstream(whole(b"{}")) as tripwire, before(kit.whole("ok")) as (proxy, upstream):
        evil = f"127.0.0.1:{tripwire.port}"
        fields: dict[str, Any] = {
            "api_base": tripwire.url, "base_url": tripwire.url, "host": evil, "proxy": tripwire.url,
            "headers": {"Host": evil}, "extra_headers": {"Host": evil}, "custom_llm_provider": evil,
            "image_url": f"{tripwire.url}/x.png",
        }  # fmt: skip
        headers = {
            "X-Forwarded-Host": evil, "X-Forwarded-Proto": "http", "Forwarded": f"host={evil}",
            "X-Base-Url": tripwire.url, "X-Original-URL": f"http://{evil}/", "Proxy-Connection": "close",
            "X-HTTP-Method-Override": "DELETE",
        }  # fmt: skip
        assert (await ask(proxy, kit, kit.ask(stream=False, **fields))).status in (200, 400)
        assert (await ask(proxy, kit, kit.ask(stream=False), headers)).status in (200, 403)
        for target in (
            f"http://{evil}/v1/models",
            f"http://{evil}@127.0.0.1/v1/models",
            f"//{evil}/v1/models",
        ):
            data = f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{proxy.port}\r\n\r\n".encode()
            assert (await raw(proxy, data))[0].status in (400, 403, 404)
        data = f"GET /v1/models HTTP/1.1\r\nHost: {evil}@evil.example\r\n\r\n".encode()
        assert (await raw(proxy, data))[0].status in (400, 403)
        assert (tripwire.requests, tripwire.connections) == ([], 0)
        for request in upstream.requests:
            assert request.header("host") == f"127.0.0.1:{upstream.port}"
            assert request.method == "POST"


async def test_a_body_of_eight_megabytes(kit: Kit, allow: tuple[str, ...]) -> None:
    """C33: a body of 8 MB passes whole."""
    async with before(kit.whole("ok"), allow=allow) as (proxy, upstream):
        answer = await ask(proxy, kit, stream=False, user="x" * (8 << 20))
        assert answer.status == 200
        assert len(json.loads(upstream.requests[0].body)["user"]) == 8 << 20


async def test_bodies_that_are_refused_unread(kit: Kit) -> None:
    """C33: 4 GB declared and endless chunks are a 413, and a compressed body is a 415, unread."""
    async with before(kit.whole("ok"), server={"max_body_bytes": 100_000}) as (proxy, upstream):
        answer, _ = await raw(proxy, post(proxy, kit, f"Content-Length: {4 << 30}"))
        assert answer.status == 413
        answer, _ = await raw(proxy, post(proxy, kit, CHUNKED), *[b"ffff\r\n" + b" " * 65535 + b"\r\n"] * 4)
        assert answer.status == 413
        packed = ("Content-Encoding: gzip", "Content-Length: 20")
        answer, _ = await raw(proxy, post(proxy, kit, *packed) + b"\x1f\x8b" * 10)
        assert answer.status == 415
        assert upstream.requests == []
        await served_next(proxy, upstream, kit)


BODIES: dict[str, bytes] = {
    "nul": b'{"model":"m\x00","messages":[]}',
    "no utf-8": b'{"model":"\xc3\x28"}',
    "overlong": b'{"model":"\xc0\xaf"}',
    "a surrogate in utf-8": b'{"model":"\xed\xa0\x80"}',
    "a lone surrogate": b'{"model":"\\ud800"}',
    "a lone low surrogate": b'{"model":"\\udc00 "}',
    "utf-16": '{"model":"m"}'.encode("utf-16-le"),
    "a byte order mark": b'\xef\xbb\xbf{"model":"m"}',
    "a key twice": b'{"model":"m","model":"n"}',
    "a key twice, escaped": b'{"model":"m","\\u006dodel":"n"}',
    "a key twice, inside": b'{"model":"m","x":[{"a":1,"a":2}]}',
    "nested deeply": b'{"model":"m","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "nan": b'{"model":"m","x":NaN}',
    "behind the end": b'{"model":"m"} {"model":"n"}',
    "an empty body": b"",
    "a list": b"[1]",
    "a form": b"model=m&messages=x",
}


@pytest.mark.parametrize("name", BODIES)
async def test_bodies_that_two_could_read_differently(kit: Kit, allow: tuple[str, ...], name: str) -> None:
    """C34: a body that parsers may read differently is a 400 and does not reach the upstream."""
    async with before(kit.whole("ok"), allow=allow) as (proxy, upstream):
        answer = await ask(proxy, kit, BODIES[name])
        assert answer.status == 400
        assert answer.error["code"] in ("invalid_json", "duplicate_key")
        assert upstream.requests == []


def _asked_at(known: Endpoint) -> str:
    return known.path if known.dialect.rooted else f"{known.dialect.prefix}{known.path}"


@pytest.mark.parametrize("path", [_asked_at(known) for known in SERVED.endpoints if known.is_inference])
async def test_json_is_read_strictly_on_every_path(path: str) -> None:
    """C34: every path for inference refuses such bodies, even if the proxy needs nothing from them."""
    spoken = {"wires": ("chat", "responses", "anthropic", "ollama")}
    async with before(whole(b"{}"), allow=(), served=spoken) as (proxy, upstream):
        for name, body in BODIES.items():
            answer = await proxy.ask(body, path=path)
            assert answer.status == 400, name
            # Each dialect has its own form of error; Ollama's is a text.
            error = answer.json["error"]
            if isinstance(error, str):
                continue
            assert error["type"] == "invalid_request_error", name
            assert error.get("code", "invalid_json") in ("invalid_json", "duplicate_key"), name
        assert upstream.requests == []
        good = b'{ "model" : "m", "input":1.50e2,"messages":[]}'
        assert (await proxy.ask(good, path=path)).status == 200
        assert json.loads(upstream.requests[0].body) == json.loads(good)
        assert b"1.50e2" in upstream.requests[0].body


@pytest.mark.parametrize(
    "charset",
    ["charset=utf-7", 'Charset = "UTF-16"', "charset=utf-8; charset=utf-7", "charset*=utf-7''", "charset"],
)
async def test_json_is_utf_8(kit: Kit, allow: tuple[str, ...], charset: str) -> None:
    """C34: a character set other than UTF-8 is a 415; UTF-8 may be named."""
    body = json.dumps(kit.ask(stream=False, user="+ACI-,+ACI-model+ACI-:+ACI-other")).encode()
    async with before(kit.whole("ok"), allow=allow) as (proxy, upstream):
        refused = await ask(proxy, kit, body, {"Content-Type": f"application/json; {charset}"})
        assert (refused.status, refused.error["code"]) == (415, "content_type_not_allowed")
        assert upstream.requests == []
        named = {"Content-Type": 'application/json; x=y; charset="UTF-8"'}
        assert (await ask(proxy, kit, body, named)).status == 200


@pytest.mark.parametrize(
    "path", ["/audio/transcriptions", "/audio/translations", "/images/edits", "/images/variations"]
)
async def test_forms_pass_as_they_are(path: str) -> None:
    """C34: a multipart form is streamed unchanged, whatever it contains."""
    form = b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n\xff\x00{"a":1,"a":2}\r\n--b--\r\n'
    headers = {"Content-Type": "Multipart/Form-Data; boundary=b", "Authorization": "Bearer unused"}
    async with before(whole(b"{}")) as (proxy, upstream):
        assert (await proxy.ask(form, headers, path=f"/v1{path}")).status == 200
        assert upstream.requests[0].body == form


ODD: tuple[Any, ...] = (
    None, True, -1, 1e308, 10**40, "", "\x00", [], {}, [None], [7], ["x"], [[]], [{}], {"a": 1},
    {"type": None}, [{"type": 7}], [{"type": "function"}], [{"type": "function", "function": 7}],
    [{"type": "function", "function": {"name": TIME, "parameters": 7}}], [{"role": None}],
    [{"role": "user", "content": [None]}], [{"role": "tool", "tool_call_id": 7}],
    [{"role": "assistant", "tool_calls": [{"id": 7, "function": None}]}],
    [{"type": "function_call", "call_id": 7, "name": [], "arguments": {}}],
    [{"type": "function_call_output", "call_id": {}}], [{"type": "item_reference", "id": 7}],
    {"type": "allowed_tools", "tools": 7}, {"include_usage": 7}, {"format": {"type": "json_schema"}},
)  # fmt: skip
"""Values that no field expects."""


@pytest.mark.parametrize(
    "field",
    ["model", "messages", "input", "tools", "functions", "tool_choice", "stream_options", "n", "user",
     "metadata", "previous_response_id", "prompt", "response_format", "text", "store", "instructions"],
)  # fmt: skip
async def test_fields_of_another_kind(kit: Kit, allow: tuple[str, ...], field: str) -> None:
    """C34: a value of the wrong type is passed to the upstream, or is a 4xx with the usual error."""
    async with before(kit.stream("ok"), allow=allow) as (proxy, _):
        for odd in ODD:
            answer = await ask(proxy, kit, {**kit.ask(), field: odd})
            assert answer.clean
            if answer.status == 200:
                assert kit.read(answer.body).text == "ok"
            else:
                assert 400 <= answer.status < 500
                assert answer.error["type"] == "invalid_request_error"


@pytest.mark.parametrize("field", ["stream", "background"])
async def test_switches_of_another_kind(kit: Kit, allow: tuple[str, ...], field: str) -> None:
    """C34: a switch that is no boolean is a 400 if server tools are offered, and else passes."""
    async with before(kit.whole("ok"), allow=allow) as (proxy, upstream):
        odd: object
        for odd in (1, 0, "true", "yes", "", [], {}):
            answer = await ask(proxy, kit, {**kit.ask(stream=False), field: odd})
            if allow:
                assert (answer.status, answer.error["param"]) == (400, field)
            else:
                assert answer.status == 200
        assert len(upstream.requests) == (0 if allow else 7)
        for plain in (None, False):
            assert (await ask(proxy, kit, {**kit.ask(stream=False), field: plain})).status == 200


async def test_odd_characters_are_untouched(kit: Kit, allow: tuple[str, ...]) -> None:
    """C34: text with only one reading goes upstream in the client's own spelling."""
    odd = rb'"\u0000 \ud83d\ude42 \uffff \u2028 \/ \u0041 ' + "\ufeff\u2028\U0010ffff".encode() + b'"'
    body = json.dumps(kit.ask(stream=False)).encode()[:-1] + b', "user" : ' + odd + b', "seed":1.50e2}'
    async with before(kit.whole("ok"), allow=allow) as (proxy, upstream):
        assert (await ask(proxy, kit, body)).status == 200
        assert odd in upstream.requests[0].body
        assert b"1.50e2" in upstream.requests[0].body


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "TRACK", "DEBUG", "PROPFIND", "get", "X" * 30])
async def test_methods_of_no_api(kit: Kit, method: str) -> None:
    """C35: an unknown method is an error that echoes nothing, and nothing behind it is read."""
    async with before(whole(b"{}")) as (proxy, upstream):
        data = proxy.request(method=method, path=kit.path, headers={"X-Secret": "sk-echo"})
        answer, rest = await raw(proxy, data + hidden_request(proxy))
        assert 400 <= answer.status < 502
        assert b"sk-echo" not in answer.body + rest
        assert rest == b""
        assert upstream.requests == []


async def test_pipelined(kit: Kit) -> None:
    """C35: ten pipelined requests get their ten answers, whole and in order."""
    scripts = [kit.stream(f"number {n}") for n in range(10)]
    async with before(*scripts) as (proxy, _), asyncio.timeout(PATIENCE_S), proxy.connect() as conversation:
        conversation.writer.write(proxy.request(kit.ask(), path=kit.path) * 10)
        for n in range(10):
            answer = await conversation.answer()
            assert (answer.clean, kit.read(answer.body).text) == (True, f"number {n}")
        assert await rest_of(conversation, 0.05) == b""


HEADS: dict[str, bytes] = {
    "ten thousand headers": b"".join(b"x-%d: a\r\n" % n for n in range(10_000)),
    "a megabyte of value": b"X: " + b"a" * (1 << 20) + b"\r\n",
    "a megabyte of name": b"a" * (1 << 20) + b": x\r\n",
    "a cookie of 64 KB": b"Cookie: a=" + b"b" * 65536 + b"\r\n",
}


@pytest.mark.parametrize("name", HEADS)
async def test_heads_without_measure(kit: Kit, name: str) -> None:
    """C36: a head that is too large is a 400 or 431, and the next request is served."""
    async with before(whole(b"{}")) as (proxy, upstream):
        answer, rest = await raw(proxy, post(proxy, kit)[:-2] + HEADS[name] + b"\r\n")
        assert answer.status in (400, 431)
        assert answer.error["code"] in ("invalid_http", "headers_too_large")
        assert (rest, upstream.requests) == (b"", [])
        await served_next(proxy, upstream, kit)


@pytest.mark.parametrize("size", [9_000, 12_000, 65_536, 1 << 20])
async def test_targets_without_measure(kit: Kit, size: int) -> None:
    """C36: a target that is too long is a 414, or a 431 if the line is beyond the bound of a head."""
    async with before(whole(b"{}")) as (proxy, upstream):
        for target in (f"/v1/{'a' * size}", f"{kit.path}?{'a' * size}"):
            answer, _ = await raw(proxy, proxy.request({}, path=target))
            assert answer.status == (414 if size < 16_000 else 431)
            assert answer.error["type"] == "invalid_request_error"
        assert upstream.requests == []
