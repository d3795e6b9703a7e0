"""A proxy between a client of one dialect and an upstream of another, over real sockets."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from looping import ECHO
from pair_kits import SPEAKERS, Call, Got, Message, Speaker, Turn
from raw_upstream import RawUpstream, Step
from running_proxy import Answer, Proxy, make_config, running

QUESTION = Message("user", "What time is it?")
SAY = {"text": "noon"}
CALLS = Turn("Wait. ", (Call("call_1", ECHO, SAY),), (30, 20))
ANSWER = Turn("It is noon.", used=(7, 4))


class Pair:
    """A client of one dialect and an upstream of another, with a proxy between them."""

    def __init__(self, client: str, upstream: str, proxy: Proxy, server: RawUpstream) -> None:
        self.client: Speaker = SPEAKERS[client]
        self.upstream: Speaker = SPEAKERS[upstream]
        self.proxy = proxy
        self.server = server

    async def ask(
        self, said: Sequence[Message], *, headers: dict[str, str] | None = None, **asked: Any
    ) -> Answer:
        """Send one request of the client."""
        return await self.send(self.client.ask(said, **asked), headers)

    async def send(self, body: dict[str, Any], headers: dict[str, str] | None = None) -> Answer:
        """Send one body of the client; if it names the client's usual model, it asks the upstream's."""
        if body["model"] == self.client.model:
            body = {**body, "model": self.upstream.model}
        return await self.proxy.ask(body, headers or {}, path=self.client.path)

    def got(self) -> list[Got]:
        """Return the requests that the upstream got."""
        return [self.upstream.got(json.loads(request.body)) for request in self.server.requests]


@asynccontextmanager
async def pair_of(client: str, upstream: str, *scripts: Sequence[Step], **config: Any) -> AsyncIterator[Pair]:
    """Run a proxy with the probe tools before an upstream that plays a script a turn."""
    async with RawUpstream(*scripts) as server:
        table = {"base_url": server.url, "wires": (upstream,), "retries": 0}
        async with running(make_config(table, modules=("probe_tools",), **config)) as proxy:
            yield Pair(client, upstream, proxy, server)


def scripts(upstream: str, *turns: Turn, stream: bool = True) -> list[list[Step]]:
    """Return the upstream's answers, turn by turn."""
    return [SPEAKERS[upstream].script(turn, stream=stream) for turn in turns]
