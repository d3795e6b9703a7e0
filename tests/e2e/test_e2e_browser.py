"""What pages of listed origins can do in a real browser, and what other pages cannot."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from chat_script import DONE, call, content, finish, reply, role
from e2e_browser import Pages, Switch, chromium, serving_pages
from e2e_packages import installed_packages
from raw_upstream import KEEP, LAST_CHUNK, RawUpstream, Step, chunk, chunked, head, whole
from require import require
from running_proxy import Proxy, make_config, running
from structlog.testing import capture_logs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TOOL_TURN = chunked(
    role(), call("c1", "core__get_current_time", '{"timezone": "UTC"}'), finish("tool_calls"), DONE
)

READ = """
const body = {model: "m", stream: true, messages: [{role: "user", content: "What time is it?"}]};
const response = await fetch(proxy + "/v1/chat/completions", {
  method: "POST",
  headers: {"Content-Type": "application/json", "Authorization": "Bearer unused", "x-stainless-lang": "js"},
  body: JSON.stringify(body),
});
const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
let text = "";
for (let part; !(part = await reader.read()).done;) {
  text += part.value;
  if (text.includes("first")) tell("first");
}
const names = ["x-request-id", "x-toolrelay-run", "x-upstream-request-id", "server"];
return {status: response.status, text, headers: names.map((name) => response.headers.get(name))};
"""

CLIENT = """
const { default: OpenAI } = await import("openai");
const client = new OpenAI({baseURL: proxy + "/v1", apiKey: "unused", dangerouslyAllowBrowser: true});
const question = {model: "m", messages: [{role: "user", content: "What time is it?"}]};
const { data, response, request_id } =
  await client.chat.completions.create({...question, stream: true}).withResponse();
let text = "";
for await (const chunk of data) text += chunk.choices[0]?.delta?.content ?? "";
const file = new File(["sound"], "a.wav");
const heard = await client.audio.transcriptions.create({model: "whisper-1", file});
const error = await client.chat.completions.create(question).catch((error) => error);
return {
  text, run: response.headers.get("x-toolrelay-run"), requestId: request_id, heard: heard.text,
  error: [error.status, error.code, error.param, error.requestID.startsWith("req_")],
};
"""

SEND_ALL = """
const url = proxy + "/v1/chat/completions";
const json = JSON.stringify({model: "m", messages: [{role: "user", content: "What time is it?"}]});
const outcomes = [];
const attempt = async (name, send) => {
  try { const answer = await send(); outcomes.push([name, answer?.type ?? "sent", answer?.status ?? 0]); }
  catch (error) { outcomes.push([name, "refused", 0]); }
};
const post = (mode, type, body) => () =>
  fetch(url, {method: "POST", mode, headers: type ? {"Content-Type": type} : {}, body});
await attempt("json", post("cors", "application/json", json));
await attempt("plain", post("cors", "text/plain", json));
await attempt("plain, unread", post("no-cors", "text/plain", json));
await attempt("json, unread", post("no-cors", "application/json", json));
await attempt("form, unread", post("no-cors", "application/x-www-form-urlencoded", json));
await attempt("no type, unread", () => fetch(url, {method: "POST", mode: "no-cors", body: new Blob([json])}));
const data = new FormData();
data.append("file", new Blob(["x"]), "x.txt");
await attempt("file, unread", () =>
  fetch(proxy + "/v1/files", {method: "POST", mode: "no-cors", body: data}));
await attempt("beacon", () => navigator.sendBeacon(url, json));
for (const type of ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
  await attempt("form " + type, () => new Promise((done) => {
    const frame = document.createElement("iframe");
    frame.name = "f" + Math.random();
    const form = document.createElement("form");
    Object.assign(form, {action: url, method: "POST", enctype: type, target: frame.name});
    const field = document.createElement("input");
    Object.assign(field, {name: json.slice(0, -1) + ', "x": "', value: '"}'});
    form.append(field);
    document.body.append(frame, form);
    frame.onload = () => done();
    form.submit();
  }));
await attempt("image", () => new Promise((done) => {
  const image = new Image();
  image.onload = image.onerror = () => done();
  image.src = proxy + "/v1/models";
}));
await attempt("script", () => new Promise((done) => {
  const script = document.createElement("script");
  script.onload = script.onerror = () => done();
  script.src = proxy + "/v1/models";
  document.body.append(script);
}));
return outcomes;
"""

REBOUND = """
const answers = [];
for (const [path, options] of [
  ["/v1/chat/completions", {method: "POST", headers: {"Content-Type": "application/json"},
    body: JSON.stringify({model: "m", messages: [{role: "user", content: "What time is it?"}]})}],
  ["/v1/models", {}],
  ["/admin/runs", {headers: {"Authorization": "Bearer x"}}],
]) {
  const response = await fetch(path, options);
  answers.push([response.status, (await response.json()).error?.code ?? null]);
}
return answers;
"""


@asynccontextmanager
async def before_pages(
    pages: Pages, *scripts: list[Step], listed: tuple[str, ...] = (), **config: Any
) -> AsyncIterator[tuple[Proxy, RawUpstream]]:
    """Run an open proxy on loopback with a tool, for pages of the listed hosts."""
    server = {
        "cors_origins": tuple(f"http://{host}:{pages.port}" for host in listed),
        **config.pop("server", {}),
    }
    async with (
        RawUpstream(*(scripts or (TOOL_TURN, chunked(role(), content("noon"), finish(), DONE)))) as upstream,
        running(make_config(upstream.url, server=server, **config)) as proxy,
    ):
        yield proxy, upstream


@pytest.fixture
async def pages() -> AsyncIterator[Pages]:
    """A server of pages; it needs a browser to open them."""
    require("chromium", chromium() is not None, "no Chromium is installed")
    async with serving_pages() as served:
        yield served


async def test_a_listed_page_reads_a_stream_as_it_comes(pages: Pages) -> None:
    """Rule W5: a page of a listed origin reads a stream after a tool turn as it comes, and its headers."""
    opening = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked", "x-request-id: up-1")
    # The rest is sent only once the page has read the beginning: a stream that is held back would never end.
    answer: list[Step] = [
        opening,
        chunk(role() + content("first ")),
        pages.sign("first"),
        chunk(content("second") + finish() + DONE),
        LAST_CHUNK,
        KEEP,
    ]
    async with before_pages(pages, TOOL_TURN, answer, listed=("localhost",)) as (proxy, upstream):
        with capture_logs() as logs:
            read = await pages.run(READ, f"http://127.0.0.1:{proxy.port}")
        assert read["status"] == 200
        assert "first" in read["text"]
        assert "second" in read["text"]
        assert read["text"].endswith(DONE.decode())
        assert "core__get_current_time" not in read["text"]
        (run,) = await proxy.runs()
        request_id, run_id, upstream_id, server = read["headers"]
        assert request_id.startswith("req_")
        assert (run_id, server) == (run.id, None)  # pages may not read ``server``
        assert upstream_id is None
        assert len(upstream.requests) == 2
        asked = [(line["method"], line["status"]) for line in logs if line["event"] == "request"]
        assert asked == [("OPTIONS", 204), ("POST", 200)]


async def test_a_listed_page_reads_why_it_has_to_wait(pages: Pages) -> None:
    """A page reads status, body and Retry-After of a refusal; the browser sends one preflight only."""
    script = """
    const ask = () => fetch(proxy + "/v1/models", {headers: {"Authorization": "Bearer unused"}});
    await ask();
    const second = await ask();
    const wait = Number(second.headers.get("retry-after"));
    return [second.status, (await second.json()).error.code, wait > 0];
    """
    limits = {"requests": ("1/minute",)}
    async with before_pages(pages, listed=("localhost",), limits=limits) as (proxy, _):
        with capture_logs() as logs:
            read = await pages.run(script, f"http://127.0.0.1:{proxy.port}")
        assert read == [429, "rate_limit_exceeded", True]
        asked = [line["method"] for line in logs if line["event"] == "request"]
        assert asked == ["OPTIONS", "GET", "GET"]


async def test_the_official_client_works_in_a_page(pages: Pages) -> None:
    """The ``openai`` package streams, uploads, and reads ids and errors, in a page of a listed origin."""
    npm = shutil.which("npm")
    require("node", npm is not None, "npm is not installed")
    pages.packages, trouble = await asyncio.to_thread(installed_packages, str(npm))
    require("node", pages.packages is not None, f"the npm packages cannot be installed: {trouble}")
    refusal = whole(
        b'{"error":{"message":"no","type":"invalid_request_error","param":"x","code":"odd"}}',
        status="400 Bad Request",
    )
    scripts = (
        TOOL_TURN,
        chunked(role(), content("It is ", "noon."), finish(), DONE),
        whole(b'{"text": "heard"}'),
        refusal,
    )
    async with before_pages(pages, *scripts, listed=("localhost",)) as (proxy, upstream):
        read = await pages.run(CLIENT, f"http://127.0.0.1:{proxy.port}")
        (run, _) = reversed(await proxy.runs())
        assert read == {
            "text": "It is noon.",
            "run": run.id,
            "requestId": run.request_id,
            "heard": "heard",
            "error": [400, "odd", "x", True],
        }
        assert (upstream.requests[2].header("content-type") or "").startswith("multipart/form-data")


@pytest.mark.parametrize("host", ["evil.test", "127.0.0.1"])
async def test_no_other_page_reaches_a_tool(pages: Pages, host: str) -> None:
    """Rule T2: no request of a page with another origin reaches a model or tool of an open proxy.

    The second page has the proxy's host and another port, which browsers call the same site.
    """
    async with before_pages(pages, listed=("localhost",)) as (proxy, upstream):
        with capture_logs() as logs:
            outcomes = await pages.run(SEND_ALL, f"http://127.0.0.1:{proxy.port}", host=host)
        assert len(outcomes) == 13
        assert {name: kind for name, kind, _ in outcomes if name in ("json", "plain")} == {
            "json": "refused",
            "plain": "refused",
        }
        assert all(status == 0 for _, _, status in outcomes)
        seen = [(line["method"], line["status"]) for line in logs if line["event"] == "request"]
        # Each arrived and was refused; of the JSON request, the browser sent only the preflight.
        assert {status for _, status in seen} == {403}
        assert len(seen) == 13
        assert upstream.requests == []
        assert list(await proxy.runs()) == []


async def test_a_listed_page_cannot_send_what_a_form_can(pages: Pages) -> None:
    """Rule T2: on an open proxy, a listed page's form or plain text does not reach a model."""
    async with before_pages(pages, reply("noon"), listed=("localhost",)) as (proxy, upstream):
        with capture_logs() as logs:
            outcomes = {
                name: (kind, status)
                for name, kind, status in await pages.run(SEND_ALL, f"http://127.0.0.1:{proxy.port}")
            }
        assert outcomes["json"] == ("cors", 200)
        assert outcomes["plain"] == ("cors", 415)
        refused = [line["status"] for line in logs if line["event"] == "request" and line["status"] >= 400]
        # Requests of scripts and images have no origin, so they are refused as another site's.
        assert (refused.count(415), refused.count(403), len(refused)) == (9, 2, 11)
        assert {request.target for request in upstream.requests} == {"/v1/chat/completions", "/v1/files"}
        assert len(await proxy.runs()) == 1


def port_for(page: int, other: int, first: bytes) -> int:
    """Return the port for a connection by its first bytes."""
    return page if first.startswith(b"GET /page") else other


@pytest.mark.parametrize("trusted", [False, True])
async def test_a_page_that_rebinds_its_name_is_refused(pages: Pages, trusted: bool) -> None:
    """The proxy refuses a page that rebinds its host name to this machine, though it is of one origin.

    If the operator lists the name, the proxy serves the page: so the name decides.
    """
    names = ("rebind.test",) if trusted else ()
    for listening in ("127.0.0.1", "0.0.0.0"):
        server = {"host": listening, "allowed_hosts": names}
        auth = {"mode": "open"}
        async with before_pages(pages, reply("noon"), server=server, auth=auth) as (proxy, upstream):
            async with Switch(partial(port_for, pages.port, proxy.port)) as name:
                answers = await pages.run(REBOUND, "", host="rebind.test", port=name.port)
            if trusted:
                assert answers == [[200, None], [200, None], [401, "invalid_api_key"]]
            else:
                assert answers == [[403, "host_not_allowed"]] * 3
                assert upstream.requests == []
