"""A host dies or loses its network in the middle of a stream: its readers go on at another host.

Each host is a network namespace with servers of its own; PostgreSQL and Redis are shared.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import responses_script
from client_keys import ALICE, bearer
from network_hosts import Network, kill, network
from own_servers import own_postgres, own_redis
from proxy_process import ProxyProcess, write_config
from raw_upstream import RawRequest, RawUpstream, Step
from responses_script import function_call, message
from store_postgres import fetch
from waiting import until

pytest.importorskip("asyncpg")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOOLS = '''
import asyncio
from pathlib import Path
from secrets import token_hex
from proxy.tools import Redaction, tool

@tool(effect="read_only", timeout_s=120, redaction=Redaction(output=("done",)))
async def look() -> dict[str, bool]:
    """Look at the world until the test says that it is there."""
    with Path("looked").open("a") as file:
        file.write("x")
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    return {"done": True}

@tool(effect="read_only", redaction=Redaction(output=("seen",)))
async def peek() -> dict[str, str]:
    """Look at something that is another thing each time."""
    return {"seen": token_hex(4)}

@tool(effect="external_side_effect", redaction=Redaction(output=("done",)))
async def strike() -> dict[str, bool]:
    """Change the world, where every host sees it."""
    with Path("../struck").open("a") as file:
        file.write("x")
    return {"done": True}
'''
MINE = bearer(ALICE)
ASK: dict[str, Any] = {"model": "m", "input": "Do it.", "background": True}


def model(*calls: str) -> Any:
    """Return the script of a model that makes these calls, one in each turn, and then sends a text."""

    def script(request: RawRequest) -> Sequence[Step]:
        asked = json.loads(request.body)["input"]
        items = asked if isinstance(asked, list) else []
        done = sum(item.get("type") == "function_call_output" for item in items)
        if done == len(calls):
            return responses_script.stream(message("It is done.", id="msg_2"), id="resp_up2")
        call = function_call(f"call_{done}", calls[done], "{}")
        return responses_script.stream(call, id=f"resp_up1{done}")

    return script


@dataclass
class Hosts:
    """Two hosts, the first of which can die."""

    net: Network
    names: list[str]
    servers: list[ProxyProcess]
    upstream: RawUpstream
    record: str

    async def keep(self, steps: int) -> None:
        """Wait until so many complete steps of runs are on record."""
        sql = "SELECT count(*) FROM kept_results WHERE handle LIKE 'step_%'"

        async def kept() -> bool:
            return await fetch(self.record, sql) == [(steps,)]

        await until(kept)

    def die(self, how: str) -> None:
        """Let the first host die."""
        if how == "killed":
            kill(self.names[0])
        else:
            self.net.cut(0)


@asynccontextmanager
async def hosts(folder: Path, script: Any) -> AsyncIterator[Hosts]:
    """Run two hosts with one PostgreSQL, one Redis and one model."""
    (folder / "redis").mkdir()
    async with (
        network() as net,
        own_postgres() as (postgres, _),
        own_redis(folder / "redis", "--save", "") as (redis, _),
        RawUpstream(script) as upstream,
    ):
        ports = [urlsplit(url).port or 0 for url in (postgres, redis, upstream.url)]
        record, events, models = [await net.forward(port) for port in ports]
        made = Hosts(net, [], [], upstream, postgres)
        for _ in range(2):
            name, address = net.add_host()
            home = folder / name
            home.mkdir()
            write_config(
                home,
                f"http://{net.gateway}:{models}/v1",
                allow=("tools__look", "tools__peek", "tools__strike"),
                more='[keys.alice]\nsecret = "env:ALICE"\n[limits]\nrequests = []\ntool_calls = []\n'
                f'storage = "redis://{net.gateway}:{events}/0"\n[store]\nseal_key = "env:SEAL"\n'
                f'url = "postgresql://postgres@{net.gateway}:{record}/postgres"\n',
                host=address,
                workers=2,
            )
            (home / "tools.py").write_text(TOOLS)
            config = home / "toolrelay.toml"
            config.write_text(config.read_text().replace('["effect.py"]', '["tools.py"]'))
            env = {"ALICE": ALICE, "SEAL": "ab" * 32, "XDG_STATE_HOME": str(home)}
            made.names.append(name)
            made.servers.append(await net.serve(name, home, env))
        yield made


def turns_asked(upstream: RawUpstream) -> list[int]:
    """Return the number of results in each request to the model, in the order of the requests."""
    asked = [json.loads(request.body)["input"] for request in upstream.requests]
    lists = [items if isinstance(items, list) else [] for items in asked]
    return [sum(item.get("type") == "function_call_output" for item in items) for items in lists]


def events_of(body: bytes) -> list[dict[str, Any]]:
    """Return the payloads of a stream's events."""
    return [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: {")]


async def has_looked(server: ProxyProcess) -> None:
    """Wait until the reading tool runs at a host."""
    await server.appears("looked")


@pytest.mark.parametrize("how", ["killed", "cut off"])
async def test_a_reader_at_another_host_goes_on(tmp_path: Path, how: str) -> None:
    """A reader at the second host has a background stream of the first in its hands when that dies. It gets
    the rest over the same connection, each event once, from the second host."""
    async with hosts(tmp_path, model("tools__look")) as both:
        one, two = both.servers
        response_id = (await one.ask(ASK, MINE, path="/v1/responses")).json["id"]
        await has_looked(one)
        path = f"/v1/responses/{response_id}?stream=true"
        async with two.sent(headers=MINE, method="GET", path=path) as reading:
            answer = await reading.head()
            pieces = reading.pieces(answer)
            while b"response.in_progress" not in answer.body:
                answer.body += await anext(pieces)
            await both.keep(1)
            both.die(how)
            (two.folder / "go").touch()
            async for piece in pieces:
                answer.body += piece
        found = await two.ask(headers=MINE, method="GET", path=f"/v1/responses/{response_id}")
        again = await two.ask(headers=MINE, method="GET", path=path)
    events = events_of(answer.body)
    kinds = [event["type"] for event in events]
    assert (answer.status, answer.clean) == (200, True)
    assert (kinds[0], kinds.count("response.created"), kinds[-1]) == (
        "response.created",
        1,
        "response.completed",
    )
    numbers = [event["sequence_number"] for event in events]
    assert numbers == sorted(set(numbers))
    assert events_of(again.body) == events
    assert found.json["status"] == "completed"
    assert events[-1]["response"]["output"] == found.json["output"]
    assert events_of(again.body)[-1] == events[-1]


@pytest.mark.parametrize("how", ["killed", "cut off"])
async def test_a_run_goes_on_after_its_second_turn(tmp_path: Path, how: str) -> None:
    """The first host dies in the third turn. The second one goes on with it: it asks the model for no turn
    again, causes no effect again, and its reader gets each event once over the same connection."""
    async with hosts(tmp_path, model("tools__strike", "tools__peek", "tools__look")) as both:
        one, two = both.servers
        response_id = (await one.ask(ASK, MINE, path="/v1/responses")).json["id"]
        path = f"/v1/responses/{response_id}?stream=true"
        async with two.sent(headers=MINE, method="GET", path=path) as reading:
            answer = await reading.head()
            pieces = reading.pieces(answer)
            while b"response.in_progress" not in answer.body:
                answer.body += await anext(pieces)
            await has_looked(one)
            await both.keep(5)
            both.die(how)
            (two.folder / "go").touch()
            async for piece in pieces:
                answer.body += piece
        again = await two.ask(headers=MINE, method="GET", path=path)
        asked = turns_asked(both.upstream)
    events = events_of(answer.body)
    assert (answer.status, answer.clean, events[-1]["type"]) == (200, True, "response.completed")
    assert events == events_of(again.body)
    numbers = [event["sequence_number"] for event in events]
    assert numbers == sorted(set(numbers))
    assert (numbers[:2], numbers[-1] >= 10**6) == ([0, 1], True)
    assert asked == [0, 1, 2, 3]
    assert (tmp_path / "struck").read_text() == "x"


@pytest.mark.parametrize("how", ["killed", "cut off"])
async def test_a_stream_is_resumed_at_another_host(tmp_path: Path, how: str) -> None:
    """A client whose host dies resumes its stream at the second host until it has all of it; the effect of
    the first run does not happen again."""
    async with hosts(tmp_path, model("tools__strike", "tools__look")) as both:
        one, two = both.servers
        body = {"model": "m", "input": "Do it.", "stream": True}
        async with one.sent(body, {**MINE, "x-toolrelay-resume": "on"}, path="/v1/responses") as reading:
            begun = await reading.head()
            run_id = begun.header("x-toolrelay-run") or ""
            pieces = reading.pieces(begun)
            while b"response.in_progress" not in begun.body:
                begun.body += await anext(pieces)
            await has_looked(one)
            resumed = {**MINE, "x-toolrelay-resume": run_id}
            async with two.sent(body, resumed, path="/v1/responses") as elsewhere:
                live = await elsewhere.head()
                assert (live.status, live.header("x-toolrelay-run")) == (200, run_id)
            await both.keep(3)
            both.die(how)
            (two.folder / "go").touch()
            answers = []

            async def whole() -> bool:
                answers.append(await two.ask(body, resumed, path="/v1/responses"))
                return answers[-1].status == 200 and answers[-1].clean

            await until(whole)
    last = events_of(answers[-1].body)
    assert last[-1]["type"] == "response.completed"
    assert "It is done." in json.dumps(last[-1]["response"]["output"])
    assert answers[-1].header("x-toolrelay-run") != run_id
    assert turns_asked(both.upstream) == [0, 1, 2]
    assert (tmp_path / "struck").read_text() == "x"


async def test_any_host_cancels(tmp_path: Path) -> None:
    """A background response of the first host is cancelled at the second, and its reader there is told."""
    async with hosts(tmp_path, model("tools__look")) as both:
        one, two = both.servers
        response_id = (await one.ask(ASK, MINE, path="/v1/responses")).json["id"]
        await has_looked(one)
        path = f"/v1/responses/{response_id}"
        reading = asyncio.create_task(two.ask(headers=MINE, method="GET", path=f"{path}?stream=true"))
        cancelled = await two.ask({}, MINE, path=f"{path}/cancel")
        await reading
        seen = [(await each.ask(headers=MINE, method="GET", path=path)).json["status"] for each in (one, two)]
    assert cancelled.json["status"] == "cancelled"
    assert seen == ["cancelled", "cancelled"]
