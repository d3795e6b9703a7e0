"""A provider's API on a free port of the loopback, and a function that calls a tool over real HTTP."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web
from in_process import serving_app

from proxy.tools.access.egress import EgressPool
from proxy.tools.contract.capabilities import Capabilities, Clock, HttpClient
from proxy.tools.contract.provider import CallContext
from proxy.tools.providers.function import FunctionProvider


@dataclass(frozen=True)
class Answer:
    """One answer of the service."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """One request that the service got."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


class Connection:
    """The credentials of a connection: one token, and a next one after each refusal while there are any."""

    def __init__(self, *tokens: str) -> None:
        self._tokens = list(tokens) or ["s3cret-token"]
        self.renewals = 0

    async def authorization(self) -> str:
        """Return the value of the header with the present token."""
        return f"Bearer {self._tokens[0]}"

    async def renew(self, refused: str) -> str | None:
        """Return the value of the header with the next token, or ``None`` if there is none."""
        self.renewals += 1
        self._tokens.pop(0)
        return await self.authorization() if self._tokens else None


@dataclass
class Service:
    """A running service. ``asked`` are its requests in order, ``waits`` the seconds before retries."""

    url: str
    pool: EgressPool
    connection: Connection
    asked: list[Asked] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def capabilities(self, clock: Clock) -> Capabilities:
        """Return the capabilities that a provider gets: real HTTP with the connection's credentials."""

        def connected(name: str, hosts: Sequence[str]) -> HttpClient:
            return self.pool.client(hosts, self.connection)

        return Capabilities(clock=clock, http=self.pool.client, connected=connected)


@asynccontextmanager
async def local_service(
    *answers: Answer | Callable[[Asked], Answer | Awaitable[Answer]],
    connection: Connection | None = None,
    max_bytes: int = 8 << 20,
) -> AsyncIterator[Service]:
    """Serve the answers one after the other; every further request gets the last one."""
    left = list(answers)
    asked: list[Asked] = []
    waits: list[float] = []

    async def handle(request: web.Request) -> web.Response:
        text = await request.read()
        one = Asked(
            request.method,
            request.raw_path.partition("?")[0],
            dict(request.query),
            {name.lower(): value for name, value in request.headers.items()},
            orjson.loads(text) if text else None,
        )
        asked.append(one)
        chosen = left.pop(0) if len(left) > 1 else left[0]
        answer = chosen if isinstance(chosen, Answer) else chosen(one)
        if isinstance(answer, Awaitable):
            answer = await answer
        raw = answer.body if isinstance(answer.body, bytes) else orjson.dumps(answer.body)
        headers = {"Content-Type": "application/json; charset=utf-8", **answer.headers}
        return web.Response(body=raw, status=answer.status, headers=headers)

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handle)
    pool = EgressPool(
        allowed_networks=("127.0.0.0/8",), schemes=("http",), max_bytes=max_bytes, sleep=sleep, retries=1
    )
    async with serving_app(app) as address, aclosing(pool):
        yield Service(address, pool, connection or Connection(), asked, waits)


async def use(
    provider: FunctionProvider, arguments: dict[str, Any], context: CallContext | None = None
) -> Any:
    """Run the only tool of a provider with arguments as a model sends them, and return its output."""
    (spec,) = await provider.list_tools()
    value = await provider.call_tool(
        spec, spec.validate(arguments), context or CallContext("run", "inv", "caller", "call")
    )
    return spec.validate_output(value) if spec.validate_output else value
