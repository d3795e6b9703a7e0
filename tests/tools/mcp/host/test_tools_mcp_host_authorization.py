"""Each request to an MCP server gets a token from a worker: which one is asked, and what it answers."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import httpx2
import orjson
import pytest

from proxy.net.channel import Channel
from proxy.tools.mcp.host.authorization import Authorizations, NotAuthorized
from proxy.tools.mcp.host.http import UNAUTHORIZED, AuthorizedTransport
from proxy.tools.mcp.servers import Server

SERVER = Server("issues", url="https://mcp.example.com/mcp", connection="issues")
NEEDS_SCOPE = {"www-authenticate": 'Bearer error="insufficient_scope", scope="write"'}


class Worker:
    """A fake channel to a worker; it records the questions sent to it."""

    def __init__(self, *, hears: bool = True) -> None:
        self.hears = hears
        self.asked: list[tuple[int, dict[str, Any]]] = []

    def send(self, kind: str, body: bytes, *, id: int) -> bool:
        assert kind == "authorize"
        self.asked.append((id, orjson.loads(body)))
        return self.hears


def channel(worker: Worker) -> Channel:
    return cast(Channel, worker)


async def asked(worker: Worker, number: int = 1) -> int:
    """Wait for a question and return its id."""
    while len(worker.asked) < number:  # noqa: ASYNC110
        await asyncio.sleep(0)
    return worker.asked[number - 1][0]


def value(text: str) -> bytes:
    return orjson.dumps({"value": text})


async def test_a_worker_is_asked() -> None:
    """The worker is asked for the server's token, and told the refused token and the scopes."""
    known, worker = Authorizations(), Worker()
    known.joined(channel(worker))
    asking = asyncio.create_task(known.ask("issues", "Bearer old", ("write",)))
    known.on_answer(channel(worker), await asked(worker), value("Bearer new"))
    assert await asking == "Bearer new"
    assert worker.asked[0][1] == {"server": "issues", "refused": "Bearer old", "scopes": ["write"]}


async def test_an_answer_of_another_worker_counts_for_nothing() -> None:
    """An answer of another worker, or with an unknown id, is ignored."""
    known, worker, other = Authorizations(), Worker(), Worker()
    known.joined(channel(worker))
    known.joined(channel(other))
    asking = asyncio.create_task(known.ask("issues", "", None))
    number = await asked(worker)
    known.on_answer(channel(other), number, value("Bearer forged"))
    known.on_answer(channel(worker), number + 1, value("Bearer stray"))
    await asyncio.sleep(0)
    assert not asking.done()
    known.on_answer(channel(worker), number, value("Bearer real"))
    assert await asking == "Bearer real"


@pytest.mark.parametrize("hears", [True, False], ids=["ends while it is asked", "has ended before"])
async def test_when_a_worker_ends_another_is_asked(hears: bool) -> None:
    """If the worker has ended, or ends before it answers, another worker is asked."""
    known, worker, other = Authorizations(), Worker(hears=hears), Worker()
    known.joined(channel(worker))
    known.joined(channel(other))
    asking = asyncio.create_task(known.ask("issues", "", None))
    await asked(worker)
    if hears:
        known.left(channel(worker))
    known.on_answer(channel(other), await asked(other), value("Bearer next"))
    assert await asking == "Bearer next"


@pytest.mark.parametrize("scopes", [None, ("write",)])
async def test_a_worker_that_has_nothing_says_why(scopes: Sequence[str] | None) -> None:
    """If the worker has no token, the error has its reason, and tells whether only a scope is missing."""
    known, worker = Authorizations(), Worker()
    known.joined(channel(worker))
    asking = asyncio.create_task(known.ask("issues", "", scopes))
    told = {"value": None, "reason": "nobody has logged in", "needs_login": True}
    known.on_answer(channel(worker), await asked(worker), orjson.dumps(told))
    with pytest.raises(NotAuthorized, match="nobody has logged in") as caught:
        await asking
    assert (caught.value.needs_login, caught.value.lacks_scope) == (True, scopes is not None)


# ---------------------------------------------------------------- the requests


class Answers:
    """A server with scripted answers and a worker with scripted tokens; both record what they are asked."""

    def __init__(
        self, *answers: httpx2.Response, tokens: Sequence[str | NotAuthorized] = ("Bearer 1",)
    ) -> None:
        self.answers = list(answers)
        self.tokens = list(tokens)
        self.sent: list[str | None] = []
        self.questions: list[tuple[str, Sequence[str] | None]] = []
        self.refused: list[NotAuthorized | None] = []

    async def ask(self, refused: str, scopes: Sequence[str] | None) -> str:
        self.questions.append((refused, scopes))
        token = self.tokens.pop(0)
        if isinstance(token, NotAuthorized):
            raise token
        return token

    async def post(self, url: str = SERVER.url, server: Server = SERVER) -> httpx2.Response:
        """Send one request through the transport."""

        def answer(request: httpx2.Request) -> httpx2.Response:
            self.sent.append(request.headers.get("authorization"))
            return self.answers.pop(0)

        inner = httpx2.MockTransport(answer)
        transport = AuthorizedTransport(inner, server, self.ask, self.refused.append)
        async with httpx2.AsyncClient(transport=transport) as client:
            return await client.post(url, json={})


async def test_a_request_has_the_token() -> None:
    """The transport adds the worker's token to a request and returns the server's answer."""
    said = Answers(httpx2.Response(200, json={"ok": True}))
    assert (await said.post()).json() == {"ok": True}
    assert (said.sent, said.questions, said.refused) == (["Bearer 1"], [("", None)], [])


async def test_another_origin_gets_no_token() -> None:
    """The transport refuses a request to another origin, and asks no worker for a token."""
    for url in ("https://evil.example/mcp", "http://mcp.example.com/mcp", "https://mcp.example.com:8443/mcp"):
        said = Answers(httpx2.Response(200))
        with pytest.raises(httpx2.ConnectError, match="no other origin"):
            await said.post(url)
        assert (said.sent, said.questions) == ([], [])


async def test_a_refused_token_is_replaced_once() -> None:
    """After a 401 the transport asks for another token; a second 401 becomes an error of the request."""
    said = Answers(httpx2.Response(401), httpx2.Response(200), tokens=("Bearer 1", "Bearer 2"))
    assert (await said.post()).status_code == 200
    assert said.sent == ["Bearer 1", "Bearer 2"]
    assert said.questions == [("", None), ("Bearer 1", None)]

    tokens = ("Bearer 1", "Bearer 2", "Bearer 3")
    said = Answers(httpx2.Response(401), httpx2.Response(401), tokens=tokens)
    answer = await said.post()
    assert answer.json()["error"]["code"] == UNAUTHORIZED
    assert said.sent == ["Bearer 1", "Bearer 2"]
    assert [str(one) for one in said.refused] == ["the server refuses every token"]


async def test_a_scope_is_asked_for() -> None:
    """After a 403 for a missing scope the transport asks for a token with the scopes the server names."""
    said = Answers(
        httpx2.Response(403, headers=NEEDS_SCOPE), httpx2.Response(200), tokens=("Bearer 1", "Bearer 2")
    )
    assert (await said.post()).status_code == 200
    assert said.questions == [("", None), ("Bearer 1", ("write",))]
    assert said.refused == [None]


async def test_another_403_is_the_servers_answer() -> None:
    """A 403 that names no missing scope is returned unchanged and not reported as a refused token."""
    said = Answers(httpx2.Response(403, json={"no": 1}))
    assert (await said.post()).status_code == 403
    assert said.refused == []


async def test_without_a_token_nothing_is_sent() -> None:
    """Without a token the transport sends nothing and answers 401 itself, so the session goes on."""
    said = Answers(tokens=(NotAuthorized("nobody has logged in", needs_login=True),))
    answer = await said.post()
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, UNAUTHORIZED)
    assert said.sent == []
    assert said.refused[0] is not None
    assert "nobody" not in answer.text


async def test_a_server_without_a_connection_gets_none() -> None:
    """If a server without a connection answers 401, the reason names the setting to write."""
    said = Answers(httpx2.Response(401))
    assert (await said.post(server=Server("issues", url=SERVER.url))).status_code == 401
    assert said.sent == [None]
    assert "write mcp.servers.issues.connection" in str(said.refused[0])
