"""Background responses whose process dies or stops: another process runs them again, or says why not."""

import asyncio
import json
import os
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import responses_script
from openai import AsyncOpenAI, BadRequestError
from own_servers import own_redis
from proxy_process import ProxyProcess, serving, write_config
from raw_upstream import KEEP, RawRequest, RawUpstream, Step, whole
from responses_script import function_call, message
from running_proxy import Answer
from store_postgres import fetch, need_postgres, new_schema
from waiting import until

from proxy.api.detached.kept_states import KeptStates
from proxy.app.open_record import open_record
from proxy.config.load import load_config
from proxy.records.background import Lease

READ = '''
import asyncio
from pathlib import Path
from proxy.tools import Redaction, tool

@tool(effect="read_only", timeout_s=60, redaction=Redaction(output=("done",)))
async def look() -> dict[str, bool]:
    """Look at the world until the test says that it is there."""
    with Path("looked").open("a") as file:
        file.write("x")
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    return {"done": True}
'''
"""A tool without an effect that waits for a file."""

MORE = '[limits]\nrequests = []\ntool_calls = []\n[store]\nurl = "sqlite:///toolrelay.db"\n'
ASK: dict[str, Any] = {"model": "m", "input": "Do it.", "background": True}


@pytest.fixture
async def shared(tmp_path: Path) -> AsyncIterator[str]:
    """The settings of workers that share a Redis."""
    (tmp_path / "redis").mkdir()
    async with own_redis(tmp_path / "redis", "--save", "") as (url, _):
        yield MORE.replace("[limits]", f'[limits]\nstorage = "{url}"')


def model(tool: str) -> Any:
    """Return the script of a model that sends a text and a tool call and, after its result, another text."""

    def script(request: RawRequest) -> Sequence[Step]:
        if request.method == "DELETE":
            return whole(b"{}")
        body = json.loads(request.body)
        asked = body["input"] if isinstance(body["input"], list) else []
        if body.get("previous_response_id") or any(i.get("type") == "function_call_output" for i in asked):
            return responses_script.stream(message("It is done.", id="msg_2"), id="resp_up2")
        said = [message("I look.", id="msg_1"), function_call("call_1", tool, "{}")]
        return responses_script.stream(*said, id="resp_up1")

    return script


def write(folder: Path, upstream: str, more: str = MORE, **server: Any) -> None:
    """Write a configuration with a tool that reads and a tool with an effect."""
    write_config(folder, upstream, allow=("effect__act", "read__look"), more=more, **server)
    (folder / "read.py").write_text(READ)
    config = folder / "toolrelay.toml"
    config.write_text(config.read_text().replace('["effect.py"]', '["effect.py", "read.py"]'))


async def get(proxy: ProxyProcess, response_id: str, query: str = "", **headers: str) -> Answer:
    """Ask the proxy for a response by its id."""
    return await proxy.ask(method="GET", path=f"/v1/responses/{response_id}{query}", headers=headers)


async def reaches(proxy: ProxyProcess, response_id: str, *statuses: str, **headers: str) -> dict[str, Any]:
    """Wait until a response has one of these statuses; connections to dying workers may break."""
    found: dict[str, Any] = {}

    async def reached() -> bool:
        try:
            answer = await get(proxy, response_id, **headers)
        except (ConnectionError, asyncio.IncompleteReadError):
            return False
        if answer.status == 200:
            found.update(answer.json)
        return found.get("status") in statuses

    await until(reached)
    return found


def owner_of(proxy: ProxyProcess) -> int:
    """Return the process id of the worker that runs the only response."""
    rows = proxy.rows("SELECT o.pid FROM background_runs b JOIN owners o ON o.id = b.owner_id")
    assert len(rows) == 1
    return int(rows[0][0])


def text_of(resource: dict[str, Any]) -> list[str]:
    """Return the texts of a response's messages."""
    items = [item for item in resource["output"] if item["type"] == "message"]
    return [part["text"] for item in items for part in item["content"]]


async def looked(proxy: ProxyProcess, times: int) -> None:
    """Wait until the reading tool has been called this many times."""
    file = proxy.folder / "looked"
    await until(lambda: file.exists() and len(file.read_text()) >= times)


async def has_words_on_record(folder: Path, response_id: str) -> None:
    """Wait until the store has the first attempt's events up to the model's first text."""
    store = open_record(load_config(folder / "toolrelay.toml", os.environ), must_exist=True)
    await store.start()
    kept = KeptStates(store)

    async def has_words() -> bool:
        state = await kept.find(Lease(response_id, 1), "open")
        return state is not None and bool(text_of(state.resource))

    try:
        await until(has_words)
    finally:
        await store.aclose()


async def test_a_response_is_taken_over_after_its_worker_was_killed(tmp_path: Path, shared: str) -> None:
    """A request without an effect is run again under the same id, and its answer is from one attempt only."""
    async with RawUpstream(model("read__look")) as upstream:
        write(tmp_path, upstream.url, more=shared, workers=2)
        async with serving(tmp_path) as proxy:
            first = await proxy.ask(ASK, path="/v1/responses")
            response_id = first.json["id"]
            await looked(proxy, 1)
            await until(lambda: bool(proxy.rows("SELECT 1 FROM runs")))  # Rows are written a moment later.
            os.kill(owner_of(proxy), signal.SIGKILL)
            await looked(proxy, 2)
            (tmp_path / "go").touch()
            whole_answer = await reaches(proxy, response_id, "completed")
            runs = proxy.rows("SELECT id, status, takes_over FROM runs ORDER BY started_at")
            ((request, state, attempt, deaths),) = proxy.rows(
                "SELECT request, state, attempt, deaths FROM background_runs"
            )
            stream = await get(proxy, response_id, "?stream=true")
            deleted = await proxy.ask(method="DELETE", path=f"/v1/responses/{response_id}")
    assert text_of(whole_answer) == ["I look.", "It is done."]
    assert (request, state, attempt, deaths) == (None, "ended", 2, 1)
    assert [(status, by) for _, status, by in runs] == [("interrupted", ""), ("completed", runs[0][0])]
    events = [
        json.loads(line[6:]) for line in stream.body.decode().splitlines() if line.startswith("data: {")
    ]
    assert [event["type"] for event in events][:2] == ["response.created", "response.in_progress"]
    assert events[-1]["response"]["output"] == whole_answer["output"]
    numbers = [event["sequence_number"] for event in events]
    assert numbers == sorted(set(numbers))
    assert (numbers[0], numbers[-1] >= 10**6) == (0, True)
    assert len(upstream.requests) == 2
    assert deleted.json["deleted"] is True
    assert [line for line in proxy.log if "background_run_taken_over" in line]


async def test_a_response_with_an_effect_fails_and_names_the_call(tmp_path: Path, shared: str) -> None:
    """After ``kill -9`` in the middle of an effect the response fails, says which call's outcome is unknown,
    and the effect does not happen again."""
    async with RawUpstream(model("effect__act")) as upstream:
        write(tmp_path, upstream.url, more=shared, workers=2)
        async with serving(tmp_path) as proxy:
            response_id = (await proxy.ask(ASK, path="/v1/responses")).json["id"]
            await proxy.appears("started")
            (tmp_path / "started").unlink()
            os.kill(owner_of(proxy), signal.SIGKILL)
            failed = await reaches(proxy, response_id, "failed", "completed")
            stream = await get(proxy, response_id, "?stream=true")
            again = (tmp_path / "started").exists()
    assert failed["error"] == {
        "code": "server_error",
        "message": "The server process that ran this response ended before the response was finished. "
        "A call of effect__act had begun, and nobody knows whether it took effect. "
        "Therefore the request was not run again.",
    }
    assert b"event: response.failed\n" in stream.body
    assert not again
    assert len(upstream.requests) == 1


class Late(asyncio.Event):
    """A pause in an answer of a model: the first time without an end, later none."""

    held = 0

    async def wait(self) -> Any:
        """Wait, if this is the first time."""
        Late.held += 1
        if Late.held == 1:
            await super().wait()


def slow_model(request: RawRequest) -> Sequence[Step]:
    """Script a model whose second turn stops in the middle, and has other words when it is asked again."""
    if len(json.loads(request.body)["input"]) == 1 or isinstance(json.loads(request.body)["input"], str):
        said = [message("I look.", id="msg_1"), function_call("call_1", "read__look", "{}")]
        return responses_script.stream(*said, id="resp_up1")
    opening, *rest = responses_script.stream(message(f"It is done {Late.held}.", id="msg_2"), id="resp_up2")
    events = b"".join(step for step in rest if isinstance(step, bytes))
    place = events.index(b"response.output_text.done")
    shown = events[: events.rindex(b"\n\n", 0, place) + 2]
    return [opening, shown, Late(), events[len(shown) :], KEEP]


async def test_a_reader_gets_one_consistent_answer(tmp_path: Path, shared: str) -> None:
    """openai-python: after the take-over a client goes on after the last event of a complete turn. One that
    has read some of the turn that was broken off gets an error, and the whole stream when it starts over."""
    Late.held = 0
    (tmp_path / "go").touch()
    async with RawUpstream(slow_model) as upstream:
        write(tmp_path, upstream.url, more=shared, workers=2)
        async with (
            serving(tmp_path) as proxy,
            AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="unused") as client,
        ):
            first = await client.responses.create(model="m", input="Do it.", background=True)
            seen, before = list[Any](), -1
            async for event in await client.responses.retrieve(first.id, stream=True):
                seen.append(event)
                if event.type == "response.output_text.done":
                    before = event.sequence_number
                if event.type == "response.output_text.delta" and before >= 0:
                    break
            os.kill(owner_of(proxy), signal.SIGKILL)
            done = await reaches(proxy, first.id, "completed", "failed")
            with pytest.raises(BadRequestError) as refused:
                await client.responses.retrieve(
                    first.id, stream=True, starting_after=seen[-1].sequence_number
                )
            rest = [
                event
                async for event in await client.responses.retrieve(
                    first.id, stream=True, starting_after=before
                )
            ]
            whole = [event async for event in await client.responses.retrieve(first.id, stream=True)]
    assert refused.value.code == "response_restarted"
    kept = [event for event in seen if event.sequence_number <= before]
    assert [*kept, *rest] == whole
    assert (whole[-1].type, len(upstream.requests)) == ("response.completed", 3)
    assert text_of(done) == ["I look.", "It is done 1."]


async def test_a_server_that_stops_hands_its_responses_over(tmp_path: Path) -> None:
    """After SIGTERM a response without an effect is queued, and the next start of the server runs it."""
    async with RawUpstream(model("read__look")) as upstream:
        write(tmp_path, upstream.url, drain_s=0.1)
        async with serving(tmp_path) as proxy:
            response_id = (await proxy.ask(ASK, path="/v1/responses")).json["id"]
            await looked(proxy, 1)
            proxy.signal(signal.SIGTERM)
            assert await proxy.ended() == 0
            assert proxy.rows("SELECT state, attempt FROM background_runs") == [("released", 1)]
        (tmp_path / "go").touch()
        async with serving(tmp_path) as proxy:
            done = await reaches(proxy, response_id, "completed", "failed")
            rows = proxy.rows("SELECT state, attempt, deaths FROM background_runs")
    assert text_of(done) == ["I look.", "It is done."]
    assert rows == [("ended", 2, 0)]


async def test_two_hosts_on_one_postgresql(tmp_path: Path) -> None:
    """If a host is killed, another host on the same PostgreSQL takes its response over and serves it."""
    need_postgres()
    async with new_schema() as url, RawUpstream(model("read__look")) as upstream:
        more = f'[limits]\nrequests = []\ntool_calls = []\n[store]\nurl = "{url}"\nseal_key = "env:SEAL"\n'
        hosts = [tmp_path / "a", tmp_path / "b"]
        for host in hosts:
            host.mkdir()
            write(host, upstream.url, more=more)
        env = [{"XDG_STATE_HOME": str(host), "SEAL": "ab" * 32} for host in hosts]
        async with serving(hosts[0], env=env[0]) as first, serving(hosts[1], env=env[1]) as second:
            response_id = (await first.ask(ASK, path="/v1/responses")).json["id"]
            await looked(first, 1)
            assert (await reaches(second, response_id, "in_progress"))["status"] == "in_progress"
            owner = "SELECT o.pid FROM background_runs b JOIN owners o ON o.id = b.owner_id"
            ((worker,),) = await fetch(url, owner)
            first.process.kill()
            os.kill(worker, signal.SIGKILL)
            await first.ended()
            await looked(second, 1)
            (hosts[1] / "go").touch()
            done = await reaches(second, response_id, "completed", "failed")
            rows = await fetch(url, "SELECT state, attempt, deaths, request FROM background_runs")
    assert text_of(done) == ["I look.", "It is done."]
    assert rows == [("ended", 2, 1, None)]


STRIKE = '''
import asyncio
from pathlib import Path
from proxy.tools import Redaction, tool

@tool(effect="external_side_effect", timeout_s=60, redaction=Redaction(output=("done",)))
async def strike(name: str) -> dict[str, bool]:
    """Change the world, once for a name."""
    with Path("world").open("a") as file:
        file.write(name + "\\n")
    await asyncio.sleep(0.05)
    return {"done": True}
'''
"""A tool whose effects can be counted."""


def striker(request: RawRequest) -> Sequence[Step]:
    """Script a model that calls the reading tool, then ``strike`` with its input's name, then ends."""
    if request.method == "DELETE":
        return whole(b"{}")
    asked = json.loads(request.body)["input"]
    if isinstance(asked, str):
        return responses_script.stream(function_call("call_1", "read__look", "{}"), id="resp_up1")
    done = sum(item.get("type") == "function_call_output" for item in asked)
    if done > 1:
        return responses_script.stream(message("It is done.", id="msg_2"), id="resp_up3")
    name = next(item["content"] for item in asked if item.get("role") == "user")
    name = name if isinstance(name, str) else name[0]["text"]
    arguments = json.dumps({"name": name})
    return responses_script.stream(function_call("call_2", "strike__strike", arguments), id="resp_up2")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_workers_die_at_any_moment(tmp_path: Path, kind: str, seed: int) -> None:
    """Rule R5: whenever a worker is killed, each response ends with one whole answer or with a reason, and no
    effect happens twice."""
    chance, names = random.Random(seed), [f"n{number}" for number in range(5)]
    async with AsyncExitStack() as stack:
        more = MORE
        if kind == "postgres":
            need_postgres()
            url = await stack.enter_async_context(new_schema())
            more = more.replace("sqlite:///toolrelay.db", url)
        upstream = await stack.enter_async_context(RawUpstream(striker))
        write(tmp_path, upstream.url, more=more, workers=2)
        (tmp_path / "strike.py").write_text(STRIKE)
        config = tmp_path / "toolrelay.toml"
        said = config.read_text().replace('"read.py"]', '"read.py", "strike.py"]')
        said = said.replace('"read__look"]', '"read__look", "strike__strike"]')
        config.write_text(said)
        (tmp_path / "go").touch()
        env = {"XDG_STATE_HOME": str(tmp_path / "state")}
        proxy = await stack.enter_async_context(serving(tmp_path, env=env))
        ids = [(await proxy.ask({**ASK, "input": name}, path="/v1/responses")).json["id"] for name in names]
        await asyncio.sleep(chance.random() * 0.3)  # a random moment; no outcome depends on it
        owners = "SELECT pid FROM owners WHERE ended_at IS NULL"
        pids = await fetch(url, owners) if kind == "postgres" else proxy.rows(owners)
        os.kill(chance.choice(sorted(pids))[0], signal.SIGKILL)
        ends = [await reaches(proxy, one, "completed", "failed") for one in ids]
    world = (tmp_path / "world").read_text().split() if (tmp_path / "world").exists() else []
    assert len(world) == len(set(world))
    for name, end in zip(names, ends, strict=True):
        if end["status"] == "completed":
            assert text_of(end) == ["It is done."]
            assert name in world
        else:
            assert "strike__strike" in end["error"]["message"]
