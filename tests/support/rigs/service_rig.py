"""Three hosts behind HAProxy that are one service, with a PostgreSQL and a Redis of their own, under load."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from chat_script import DONE, call, content, finish, role
from client_keys import ALICE, BOB, bearer
from front_proxies import haproxy
from network_hosts import Line, Network, network
from own_servers import own_postgres, own_redis
from proxy_process import ProxyProcess, write_config
from raw_upstream import KEEP, LAST_CHUNK, RawRequest, RawUpstream, Step, chunk, head
from running_proxy import Answer, ProxyAddress
from waiting import PATIENCE_S, until

TOOLS = '''
from pathlib import Path
from typing import Annotated
from pydantic import Field
from proxy.tools import Redaction, tool

Who = Annotated[str, Field(description="Whose.", pattern="^[0-9a-f]{12}$")]

@tool(effect="external_side_effect", redaction=Redaction(output=("done",)))
async def strike(who: Who) -> dict[str, bool]:
    """Change the world, where every host sees it."""
    with (Path("../struck") / who).open("a") as file:
        file.write("x")
    return {"done": True}
'''
_PORT = 8080
_PAUSE_S = 0.02
_PIECES = 10
_BALANCE = """balance roundrobin
  option forwardfor
  option httpchk GET /readyz
  option redispatch
  retries 3
  timeout connect 1s
  timeout check 10s"""
_CHECK = "check inter 500ms fall 2 rise 1"


def model(request: RawRequest) -> Sequence[Step]:
    """Write a text at an even pace; before it, call the tool if the client asked for it."""
    asked = json.loads(request.body)["messages"]
    words = next(each["content"] for each in asked if each["role"] == "user").split()
    opening = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
    if words[0] == "Strike" and asked[-1]["role"] != "tool":
        called = call("call_1", "tools__strike", json.dumps({"who": words[1]}))
        pieces: list[Step] = [chunk(role()), chunk(called), chunk(finish("tool_calls"))]
    else:
        pieces = [chunk(role(id="chatcmpl-2"))]
        for number in range(_PIECES):
            pieces += [_PAUSE_S, chunk(content(f"{number} ", id="chatcmpl-2"))]
        pieces.append(chunk(finish(id="chatcmpl-2")))
    return [opening, *pieces, chunk(DONE), LAST_CHUNK, KEEP]


def is_whole(answer: Answer) -> bool:
    """Say whether a client has all of a stream, and no error."""
    pieces = [f'"content":"{number} "'.encode() for number in range(_PIECES)]
    whole = answer.status == 200 and answer.clean and answer.body.endswith(DONE)
    return whole and all(answer.body.count(piece) == 1 for piece in pieces)


@dataclass
class Host:
    """A host: its namespace, folder, server, and its own line to the record."""

    name: str
    folder: Path
    record: Line
    server: ProxyProcess = field(init=False)


@dataclass
class Service:
    """The hosts, what is before them, and the process ids of the servers that they share."""

    net: Network
    hosts: list[Host]
    front: ProxyAddress
    postgres: int
    redis: int
    struck: Path

    async def start(self, host: Host, release: Path | None = None) -> None:
        """Start the server of a host, with the code of another release if one is named."""
        env = {"ALICE": ALICE, "BOB": BOB, "SEAL": "ab" * 32, "XDG_STATE_HOME": str(host.folder)}
        if release is not None:
            env["PYTHONPATH"] = str(release)
        host.server = await self.net.serve(host.name, host.folder, env)

    async def ask(self, who: str = "", more: Mapping[str, str] | None = None) -> Answer:
        """Ask for a text as bob, who has no tools, or for the tool's effect as alice if ``who`` is given."""
        words, key = (f"Strike {who}", ALICE) if who else ("Write.", BOB)
        body: dict[str, Any] = {
            "model": "m",
            "stream": True,
            "messages": [{"role": "user", "content": words}],
        }
        headers = {"Host": "localhost", **bearer(key), **(more or {})}
        return await self.front.ask(body, headers)

    def strikes(self, who: str) -> int:
        """Return how often the tool ran for a name."""
        path = self.struck / who
        return len(path.read_text()) if path.exists() else 0


@dataclass
class Load:
    """Clients that ask without a pause, each for a text and for an effect in turn.

    Who gets no whole answer asks again with the same ``Idempotency-Key``. ``broken`` has the answers that
    were not whole, ``effects`` the names for which an answer came.
    """

    service: Service
    broken: list[Answer | None] = field(default_factory=list)
    effects: list[str] = field(default_factory=list)
    answered: int = 0
    _over: bool = False

    async def client(self) -> None:
        """Be one client until the load is over; the last request is answered, too."""
        while not self._over:
            await self._insist("")
            who = secrets.token_hex(6)
            await self._insist(who)
            self.effects.append(who)

    async def _insist(self, who: str) -> None:
        key = {"Idempotency-Key": secrets.token_hex(8)}
        async with asyncio.timeout(2 * PATIENCE_S):
            while True:
                try:
                    answer: Answer | None = await self.service.ask(who, key)
                except (OSError, EOFError, TimeoutError):
                    answer = None
                if answer is not None and is_whole(answer):
                    self.answered += 1
                    return
                self.broken.append(answer)
                await asyncio.sleep(0.1)

    async def more(self, number: int) -> None:
        """Wait until this many further answers have come."""
        enough = self.answered + number
        await until(lambda: self.answered >= enough)

    def end(self) -> None:
        """Let each client end with its next answer."""
        self._over = True

    def check(self, at_least: int = 1) -> None:
        """Fail if an effect happened twice, or if one that was answered did not happen ``at_least`` once."""
        counts = {who: self.service.strikes(who) for who in self.effects}
        assert counts
        assert {who: count for who, count in counts.items() if count < at_least} == {}
        assert all(len(path.read_text()) == 1 for path in self.service.struck.iterdir())


@asynccontextmanager
async def load(service: Service, clients: int) -> AsyncIterator[Load]:
    """Run clients; they end after the block, and what they saw is there then."""
    made = Load(service)
    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(made.client())
        try:
            yield made
        finally:
            made.end()


@asynccontextmanager
async def service(folder: Path, number: int = 3) -> AsyncIterator[Service]:
    """Make the hosts, the servers that they share and HAProxy; no host's server runs yet."""
    (folder / "redis").mkdir()
    (folder / "struck").mkdir()
    async with (
        network() as net,
        own_postgres() as (postgres, postgres_pid),
        own_redis(folder / "redis", "--save", "") as (redis, redis_pid),
        RawUpstream(model) as upstream,
    ):
        events, models = [await net.forward(urlsplit(url).port or 0) for url in (redis, upstream.url)]
        hosts, addresses = [], []
        for _ in range(number):
            name, address = net.add_host()
            addresses.append(address)
            home = folder / name
            home.mkdir()
            record = await net.line(urlsplit(postgres).port or 0)
            write_config(
                home,
                f"http://{net.gateway}:{models}/v1",
                allow=("tools__strike",),
                more='[keys.alice]\nsecret = "env:ALICE"\n[keys.bob]\nsecret = "env:BOB"\ntools = []\n'
                f'[limits]\nrequests = ["100000/minute"]\nstorage = "redis://{net.gateway}:{events}/0"\n'
                '[store]\nseal_key = "env:SEAL"\n'
                f'url = "postgresql://postgres@{net.gateway}:{record.port}/postgres"\n',
                host=address,
                notice_s=3,
                trusted_proxies=[f"{net.gateway}/32"],
            )
            (home / "tools.py").write_text(TOOLS)
            config = home / "toolrelay.toml"
            text = config.read_text().replace('["effect.py"]', '["tools.py"]')
            config.write_text(text.replace("port = 0", f"port = {_PORT}"))
            hosts.append(Host(name, home, record))
        others = "\n  ".join(
            [_BALANCE, *(f"server h{n} {a}:{_PORT} {_CHECK}" for n, a in enumerate(addresses[1:]))]
        )
        async with haproxy(folder, _PORT, others, _CHECK, addresses[0]) as front:
            yield Service(net, hosts, front, postgres_pid, redis_pid, folder / "struck")
