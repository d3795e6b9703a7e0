"""Background responses: they run without their client, which polls, streams and cancels them by id."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import responses_script
from client_keys import ALICE, BOB, bearer, declared
from openai import AsyncOpenAI
from own_servers import own_redis
from probe_tools import WATCH, Watch
from proxy_process import ProxyProcess, serving, write_config
from raw_upstream import FIN, KEEP, LAST_CHUNK, RESET, RawRequest, RawUpstream, Step, chunked, whole
from responses_script import function_call, message
from running_proxy import Answer, Proxy, ProxyAddress, make_config, running
from waiting import LATE_S, until

from proxy.api.detached.messages import STOPPED

SLOW, ECHO = "probe_tools__slow", "probe_tools__echo"
ASK: dict[str, Any] = {"model": "m", "input": "Do it.", "background": True}


@pytest.fixture
def watch() -> Watch:
    """Return the record of what the probe tools do, reset for this test."""
    WATCH.reset()
    return WATCH


def model(tool: str, arguments: str = "{}", said: str = "It is done.") -> Any:
    """Return the script of a model that calls a tool and then sends a text."""

    def script(request: RawRequest) -> Sequence[Step]:
        if request.method == "DELETE":
            return whole(b"{}")
        body = json.loads(request.body)
        assert "background" not in body
        assert body["stream"] is True
        asked = body["input"] if isinstance(body["input"], list) else []
        if body.get("previous_response_id") or any(i.get("type") == "function_call_output" for i in asked):
            return responses_script.stream(message(said, id="msg_2"), id="resp_up2")
        return responses_script.stream(function_call("call_1", tool, arguments), id="resp_up1")

    return script


@asynccontextmanager
async def served(script: Any, **config: Any) -> AsyncIterator[Proxy]:
    """Run a proxy in front of an upstream that speaks the Responses API."""
    config = {"allow": (SLOW, ECHO), **config}
    tools = {"timeout_s": LATE_S, **config.pop("tools", {})}
    async with (
        RawUpstream(script) as upstream,
        running(make_config(upstream.url, modules=("probe_tools",), tools=tools, **config)) as proxy,
    ):
        yield proxy


async def get(proxy: ProxyAddress, response_id: str, query: str = "", **headers: str) -> Answer:
    """Ask the proxy for a response by its id."""
    return await proxy.ask(method="GET", path=f"/v1/responses/{response_id}{query}", headers=headers)


async def cancel(proxy: ProxyAddress, response_id: str) -> Answer:
    """Cancel a response."""
    return await proxy.ask({}, path=f"/v1/responses/{response_id}/cancel")


async def reaches(proxy: ProxyAddress, response_id: str, status: str) -> dict[str, Any]:
    """Wait until a response has that status."""

    async def reached() -> bool:
        answer = await get(proxy, response_id)
        return answer.status == 200 and answer.json["status"] == status

    await until(reached)
    found: dict[str, Any] = (await get(proxy, response_id)).json
    return found


def events_of(body: bytes) -> list[dict[str, Any]]:
    """The events of a stream, without its end mark and comments."""
    lines = [line for line in body.decode().splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def test_the_answer_comes_at_once_and_the_run_goes_on(watch: Watch) -> None:
    """The client gets an id at once, can poll it while the run goes on, and then gets the whole response."""
    async with served(model(SLOW)) as proxy:
        first = await proxy.ask(ASK, path="/v1/responses")
        response_id = first.json["id"]
        assert (first.status, first.json["status"], first.json["background"]) == (200, "queued", True)
        await until(lambda: watch.started == ["slow"])
        waiting = (await get(proxy, response_id)).json
        assert (waiting["id"], waiting["status"]) == (response_id, "in_progress")
        watch.go_on.set()
        whole = await reaches(proxy, response_id, "completed")
        assert whole["id"] == response_id
        assert whole["background"] is True
        assert whole["created_at"] == waiting["created_at"] == first.json["created_at"]
        assert [part["text"] for item in whole["output"] for part in item["content"]] == ["It is done."]
        detail = await proxy.run_reaches("completed")
        assert first.header("x-toolrelay-run") == detail.run.id
        # A client can continue from it and delete it, as with any other response.
        after = {"model": "m", "input": "And?", "previous_response_id": response_id, "background": True}
        second = await proxy.ask(after, path="/v1/responses")
        await reaches(proxy, second.json["id"], "completed")
        deleted = await proxy.ask(method="DELETE", path=f"/v1/responses/{response_id}")
        assert deleted.json["deleted"] is True
        assert (await get(proxy, response_id)).status == 404


@pytest.mark.parametrize("wires", [("responses",), ("chat",)])
async def test_a_stream_is_resumed_where_it_broke(watch: Watch, wires: tuple[str, ...]) -> None:
    """A client that leaves its stream gets the rest of it by the response's id, from the next event on."""
    script = model(SLOW)
    if wires == ("chat",):
        from chat_script import call, content, finish, role, stream

        def script(request: RawRequest) -> Sequence[Step]:
            if any(said["role"] == "tool" for said in json.loads(request.body)["messages"]):
                return stream(role(), content("It is ", "done."), finish())
            return stream(role(), call("call_1", SLOW), finish("tool_calls"))

    async with (
        RawUpstream(script) as upstream,
        running(
            make_config(
                {"base_url": upstream.url, "wires": wires},
                modules=("probe_tools",),
                allow=(SLOW,),
                tools={"timeout_s": LATE_S},
            )
        ) as proxy,
    ):
        async with proxy.sent({**ASK, "stream": True}, path="/v1/responses") as conversation:
            answer = await conversation.head()
            async for piece in conversation.pieces(answer):
                answer.body += piece
                if b"response.in_progress" in answer.body:
                    break
            conversation.leave()
        seen = events_of(answer.body)
        response_id, last = seen[0]["response"]["id"], seen[-1]["sequence_number"]
        following = asyncio.create_task(get(proxy, response_id, f"?stream=true&starting_after={last}"))
        await until(lambda: watch.started == ["slow"])
        watch.go_on.set()
        rest = await following
        whole = await get(proxy, response_id, "?stream=true")
    assert rest.header("content-type") == "text/event-stream"
    numbers = [event["sequence_number"] for event in [*seen, *events_of(rest.body)]]
    assert numbers == list(range(len(numbers)))
    assert events_of(whole.body) == [*seen, *events_of(rest.body)]
    assert events_of(rest.body)[-1]["type"] == "response.completed"
    assert {event["response"]["id"] for event in events_of(whole.body) if "response" in event} == {
        response_id
    }
    assert rest.clean


async def test_a_response_is_cancelled(watch: Watch) -> None:
    """Cancelling ends the run and its tool, can be repeated, and leaves the response readable."""
    async with served(model(SLOW)) as proxy:
        response_id = (await proxy.ask(ASK, path="/v1/responses")).json["id"]
        await until(lambda: watch.started == ["slow"])
        first, second = await cancel(proxy, response_id), await cancel(proxy, response_id)
        assert (first.json["status"], second.json["status"]) == ("cancelled", "cancelled")
        assert watch.cancelled == ["slow"]
        detail = await proxy.run_reaches("cancelled")
        assert detail.run.error_code == "cancelled"
        assert (await get(proxy, response_id)).json["status"] == "cancelled"
        stream = await get(proxy, response_id, "?stream=true")
        assert events_of(stream.body)[0]["type"] == "response.created"


def cut(events: int, end: Step) -> list[Step]:
    """Return the steps of an answer that ends after that many of its events."""
    every = responses_script.turn(message("It is done."), id="resp_up1").split(b"\n\n")
    begun = chunked(b"".join(event + b"\n\n" for event in every[:events]))[:2]
    return [*begun, end]


BROKEN = "upstream 'default' broke off its response"
FAILURES: dict[str, tuple[list[Step], str, str]] = {
    "it refuses": (
        [b"HTTP/1.1 500 no\r\nContent-Length: 0\r\n\r\n"],
        "server_error",
        "The upstream answered with status 500 and no error that the proxy can read.",
    ),
    "it refuses and says why": (
        whole(b'{"error":{"message":"No more.","code":"too_much"}}', status="500 no"),
        "too_much",
        "No more.",
    ),
    "it is gone": (
        [RESET],
        "upstream_unreachable",
        "upstream 'default' closed the connection without an answer",
    ),
    "it breaks off before its text": (cut(2, FIN), "upstream_broken", BROKEN),
    "it breaks off in its text": (cut(5, FIN), "upstream_broken", BROKEN),
    "it ends in its text": (
        [*cut(5, LAST_CHUNK), KEEP],
        "upstream_broken",
        "The upstream's response ended before it was finished.",
    ),
}


@pytest.mark.parametrize("how", FAILURES)
async def test_a_failure_is_told(watch: Watch, how: str) -> None:
    """If the upstream refuses the request or breaks off, the response fails, and its error says why."""
    script, code, why = FAILURES[how]
    async with served(script) as proxy:
        answer = await proxy.ask(ASK, path="/v1/responses")
        failed = await reaches(proxy, answer.json["id"], "failed")
        told = events_of((await get(proxy, answer.json["id"], "?stream=true")).body)
    assert failed["error"]["code"] == code
    assert failed["error"]["message"] in (why, f"{why} ({answer.header('x-toolrelay-run')})")
    assert (told[-1]["type"], told[-1]["response"]["error"]) == ("response.failed", failed["error"])


async def test_few_run_for_one_caller(watch: Watch) -> None:
    """A caller at the limit gets a 429 until one of its responses ends; other callers are not affected."""
    keys = {"alice": declared(ALICE), "bob": declared(BOB)}
    async with served(model(SLOW), keys=keys, limits={"background": 2}) as proxy:
        ids = [(await proxy.ask(ASK, bearer(ALICE), path="/v1/responses")).json["id"] for _ in range(2)]
        refused = await proxy.ask(ASK, bearer(ALICE), path="/v1/responses")
        assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
        assert "limits.background" in refused.error["message"]
        assert (await proxy.ask(ASK, bearer(BOB), path="/v1/responses")).status == 200
        # Another caller's response looks as if it did not exist.
        assert (await get(proxy, ids[0], **bearer(BOB))).status == 404
        stolen = await proxy.ask({}, bearer(BOB), path=f"/v1/responses/{ids[0]}/cancel")
        assert stolen.status == 404
        assert (await get(proxy, ids[0], **bearer(ALICE))).json["status"] in ("queued", "in_progress")
        watch.go_on.set()

        async def free() -> bool:
            return (await proxy.ask(ASK, bearer(ALICE), path="/v1/responses")).status == 200

        await until(free)


async def test_few_start_at_once_for_one_caller(watch: Watch, tmp_path: Path) -> None:
    """The proxy counts a request before it plans it, so simultaneous requests cannot exceed the limit."""
    said = [("user", "Hello."), ("assistant", "Hello!"), ("user", "Do it.")]
    ask = {**ASK, "input": [{"role": role, "content": text} for role, text in said]}
    limits, store = {"background": 2}, {"url": f"sqlite:///{tmp_path / 'r.db'}"}
    async with served(model(SLOW), limits=limits, store=store) as proxy:
        answers = await asyncio.gather(*(proxy.ask(ask, path="/v1/responses") for _ in range(5)))
        assert sorted(answer.status for answer in answers) == [200, 200, 429, 429, 429]
        watch.go_on.set()


async def test_a_response_has_a_time(watch: Watch) -> None:
    """When ``tools.background_s`` is over, the tool call times out and the response is still completed."""
    async with served(model(SLOW), tools={"background_s": 0.3}) as proxy:
        response_id = (await proxy.ask(ASK, path="/v1/responses")).json["id"]
        whole = await reaches(proxy, response_id, "completed")
        detail = await proxy.only_run()
    assert whole["output"]
    assert detail.run.spent == "tools.request_timeout_s"
    assert [row.error_code for row in detail.invocations] == ["timeout"]


@pytest.mark.parametrize(
    ("asked", "config", "param"),
    [({"store": False}, {}, "store"), ({}, {"store": {"content": "none"}}, "background")],
)
async def test_what_nobody_could_ask_for_later_is_refused(
    watch: Watch, asked: dict[str, Any], config: dict[str, Any], param: str
) -> None:
    """The proxy refuses a background response if the request or the configuration forbids storing it."""
    async with served(model(ECHO), **config) as proxy:
        answer = await proxy.ask({**ASK, **asked}, path="/v1/responses")
    assert answer.status == 400
    assert answer.error["param"] == param


async def test_without_server_tools_it_is_the_upstreams(watch: Watch) -> None:
    """The proxy passes a background request without server tools to the upstream byte for byte."""
    body = json.dumps(ASK).encode()
    async with (
        RawUpstream(responses_script.reply(status="queued")) as upstream,
        running(make_config(upstream.url, allow=())) as proxy,
    ):
        answer = await proxy.ask(body, path="/v1/responses")
    assert answer.json["id"] == "resp_1"
    assert upstream.requests[0].body == body


@pytest.mark.parametrize(
    ("more", "state", "status", "message"),
    [
        ({}, "released", "queued", ""),
        (
            {"conversation": "conv_1"},
            "ended",
            "failed",
            STOPPED,
        ),
    ],
)
async def test_the_server_ends(
    watch: Watch, more: dict[str, Any], state: str, status: str, message: str
) -> None:
    """When the server stops, a running response is released to other processes, or fails if it cannot be."""
    async with served(model(SLOW), server={"drain_s": 0.1}) as proxy:
        response_id = (await proxy.ask({**ASK, **more}, path="/v1/responses")).json["id"]
        await until(lambda: watch.started == ["slow"])
        store = proxy.services.store
        for drain in proxy.services.detached:
            await drain(0.0)
        kept = await store.find_result(f"{response_id}:state", "open")
        record = await store.find_background(response_id, "open")
    assert kept is not None
    assert record is not None
    assert record.state == state
    resource = json.loads(kept.content)["resource"]
    assert (resource["status"], (resource["error"] or {}).get("message", "")) == (status, message)
    assert resource["output"] == []


async def test_the_official_client_follows(watch: Watch) -> None:
    """openai-python creates a background response, resumes its stream, retrieves it and cancels another."""
    async with (
        served(model(SLOW)) as proxy,
        AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="unused", max_retries=0) as client,
    ):
        first = await client.responses.create(model="m", input="Do it.", background=True, stream=True)
        response_id, number = "", -1
        async for event in first:
            if event.type == "response.in_progress":
                response_id, number = event.response.id, event.sequence_number
                break
        await first.close()
        await until(lambda: watch.started == ["slow"])
        assert (await client.responses.retrieve(response_id)).status == "in_progress"
        watch.go_on.set()
        rest = await client.responses.retrieve(response_id, stream=True, starting_after=number)
        events = [one async for one in rest]
        assert events[0].sequence_number == number + 1
        assert events[-1].type == "response.completed"
        done = await client.responses.retrieve(response_id)
        assert (done.status, done.output_text) == ("completed", "It is done.")
        WATCH.reset()
        another = await client.responses.create(model="m", input="Do it.", background=True)
        await until(lambda: WATCH.started == ["slow"])
        assert (await client.responses.cancel(another.id)).status == "cancelled"


WORKERS = '[limits]\nrequests = []\ntool_calls = []\n[store]\nurl = "sqlite:///toolrelay.db"\n'


async def fresh(proxy: ProxyProcess, response_id: str, times: int = 12) -> list[dict[str, Any]]:
    """Ask for a response over several connections, so that every worker answers; return all answers."""
    answers = await asyncio.gather(*(get(proxy, response_id) for _ in range(times)))
    assert {answer.status for answer in answers} == {200}
    return [answer.json for answer in answers]


async def test_every_worker_knows_and_cancels(tmp_path: Path, watch: Watch) -> None:
    """With two workers, each of them reports the response's status, streams it and cancels it."""
    (tmp_path / "redis").mkdir()
    async with (
        own_redis(tmp_path / "redis", "--save", "") as (redis, _),
        RawUpstream(model("effect__act")) as upstream,
    ):
        more = WORKERS.replace("[limits]", f'[limits]\nstorage = "{redis}"')
        write_config(tmp_path, upstream.url, allow=("effect__act",), more=more, workers=2)
        async with serving(tmp_path) as proxy:
            response_id = (await proxy.ask(ASK, path="/v1/responses")).json["id"]
            await proxy.appears("started")

            async def known() -> bool:
                return {one["status"] for one in await fresh(proxy, response_id)} == {"in_progress"}

            await until(known)
            following = [asyncio.create_task(get(proxy, response_id, "?stream=true")) for _ in range(6)]
            (tmp_path / "go").touch()
            streams = await asyncio.gather(*following)
            whole = {json.dumps(events_of(one.body)) for one in streams}
            assert len(whole) == 1
            assert json.loads(whole.pop())[-1]["type"] == "response.completed"
            (tmp_path / "go").unlink()
            (tmp_path / "started").unlink()
            second = (await proxy.ask({**ASK, "input": "Again."}, path="/v1/responses")).json["id"]
            await proxy.appears("started")
            answers = await asyncio.gather(*(cancel(proxy, second) for _ in range(6)))
            assert {answer.json["status"] for answer in answers} == {"cancelled"}
            (tmp_path / "go").touch()


async def test_without_redis_another_worker_streams_the_end(tmp_path: Path, watch: Watch) -> None:
    """A worker that cannot read the events of another one waits, and sends the whole response at the end."""
    async with RawUpstream(model("effect__act")) as upstream:
        write_config(tmp_path, upstream.url, allow=("effect__act",), more=WORKERS, workers=2)
        async with serving(tmp_path) as proxy:
            response_id = (await proxy.ask(ASK, path="/v1/responses")).json["id"]
            await proxy.appears("started")
            following = [asyncio.create_task(get(proxy, response_id, "?stream=true")) for _ in range(8)]
            (tmp_path / "go").touch()
            ends = [events_of(one.body)[-1] for one in await asyncio.gather(*following)]
    assert {end["type"] for end in ends} == {"response.completed"}
    outputs = {json.dumps(end["response"]["output"], sort_keys=True) for end in ends}
    assert len(outputs) == 1
    assert "It is done." in outputs.pop()
