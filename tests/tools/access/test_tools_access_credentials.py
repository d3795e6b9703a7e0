"""Credentials of tools: rule T6, against a real token endpoint and a real service on loopback."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import datetime, tzinfo
from typing import Any

import pytest
import structlog
from aiohttp import web
from aiohttp.test_utils import TestServer
from pytest_aiohttp import AiohttpServer
from runner_kit import MemoryLog
from token_vault import Vault

from proxy.base.errors import ToolFailure
from proxy.base.events import ToolCall
from proxy.tools import HttpClient, Redaction, tool
from proxy.tools.access.catalog import Registry
from proxy.tools.access.credentials import CredentialBroker, StaticToken
from proxy.tools.access.egress import EgressPool
from proxy.tools.access.hosts import host_entry
from proxy.tools.access.oauth_http import CheckedOAuthHttp
from proxy.tools.access.policy import Policy
from proxy.tools.contract.capabilities import Capabilities, HttpFailure
from proxy.tools.oauth.grants import OAuthToken
from proxy.tools.providers.function import FunctionProvider
from proxy.tools.running.ledger import RunContext
from proxy.tools.running.runner import Runner

SECRETS = ("s3cret-static", "s3cret-client", "s3cret-refresh", "s3cret-access")


class Service:
    """A token endpoint and an API behind it."""

    def __init__(self) -> None:
        self.forms: list[dict[str, str]] = []
        self.seen: list[str] = []
        self.accepted: set[str] = {"Bearer s3cret-static"}
        self.answer: Any = None
        self.status = 200
        self.release = asyncio.Event()
        self.release.set()
        self.arrived = asyncio.Event()
        self.server: TestServer

    async def token(self, request: web.Request) -> web.Response:
        """Return the next access token, or the answer that the test has set."""
        self.arrived.set()
        await self.release.wait()
        self.forms.append({name: str(value) for name, value in (await request.post()).items()})
        if self.answer is not None:
            return web.json_response(self.answer, status=self.status)
        token = f"s3cret-access-{len(self.forms)}"
        self.accepted = {f"Bearer {token}"}
        return web.json_response({"access_token": token, "token_type": "bearer", "expires_in": 3600})

    async def api(self, request: web.Request) -> web.Response:
        """Return 200 for an accepted token, and 401 for any other."""
        self.seen.append(request.headers.get("Authorization", ""))
        good = self.seen[-1] in self.accepted
        return web.json_response({"good": good}, status=200 if good else 401)

    def url(self, path: str) -> str:
        return str(self.server.make_url(path))


@pytest.fixture
async def service(aiohttp_server: AiohttpServer) -> Service:
    """The running service."""
    one = Service()
    app = web.Application()
    app.router.add_post("/token", one.token)
    app.router.add_get("/api", one.api)
    one.server = await aiohttp_server(app)
    return one


@pytest.fixture
async def pool() -> AsyncIterator[EgressPool]:
    """A pool that may use loopback."""
    one = EgressPool(allowed_networks=("127.0.0.0/8",), schemes=("http",))
    yield one
    await one.aclose()


class Clock:
    """The time of day."""

    def now(self, tz: tzinfo) -> datetime:
        """Return the current time."""
        return datetime.now(tz)


class Time:
    """A monotonic clock that the test moves."""

    now = 0.0


def broker_for(service: Service, pool: EgressPool, time: Time | None = None) -> CredentialBroker:
    """A broker with one connection of each kind."""
    moment = time or Time()
    return CredentialBroker(
        {
            "plain": StaticToken("s3cret-static"),
            "oauth": OAuthToken(service.url("/token"), "s3cret-client-id", "s3cret-refresh", "s3cret-client"),
        },
        pool,
        lambda connection: CheckedOAuthHttp(pool, pool, [service.url("/")], "tools.networks"),
        clock=lambda: moment.now,
    )


async def test_static_token(service: Service, pool: EgressPool) -> None:
    """The client sends a static token as a bearer header, only to the tool's own hosts."""
    broker = broker_for(service, pool)
    client = broker.client("plain", [host_entry(service.url("/"))])
    assert await client.get_json(service.url("/api")) == {"good": True}
    with pytest.raises(ToolFailure, match="may not call that host"):
        await broker.client("plain", ["api.example.com"]).get_json(service.url("/api"))
    service.accepted.clear()
    with pytest.raises(ToolFailure, match="status 401"):
        await client.get_json(service.url("/api"))
    assert len(service.seen) == 2, "there is no other token to try"


async def test_refresh_is_made_once_for_all_who_wait(service: Service, pool: EgressPool) -> None:
    """Twenty calls that need a token at the same time cause one refresh, in the form of RFC 6749."""
    service.release.clear()
    client = broker_for(service, pool).client("oauth", [host_entry(service.url("/"))])
    calls = [asyncio.create_task(client.get_json(service.url("/api"))) for _ in range(20)]
    await asyncio.sleep(0)
    service.release.set()
    assert await asyncio.gather(*calls) == [{"good": True}] * 20
    assert service.forms == [
        {
            "grant_type": "refresh_token",
            "refresh_token": "s3cret-refresh",
            "client_id": "s3cret-client-id",
            "client_secret": "s3cret-client",
        }
    ]


async def test_who_goes_does_not_end_the_refresh(service: Service, pool: EgressPool) -> None:
    """If the call that started a refresh is cancelled, the other waiting calls still get the token."""
    service.release.clear()
    client = broker_for(service, pool).client("oauth", [host_entry(service.url("/"))])
    first, second = (asyncio.create_task(client.get_json(service.url("/api"))) for _ in range(2))
    for _ in range(5):
        await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    service.release.set()
    assert await second == {"good": True}
    assert len(service.forms) == 1


async def test_refresh_comes_before_the_end(service: Service, pool: EgressPool) -> None:
    """The broker refreshes a token one minute before it expires, and uses it until then."""
    time = Time()
    client = broker_for(service, pool, time).client("oauth", [host_entry(service.url("/"))])
    for moment, refreshes in ((0.0, 1), (3539.0, 1), (3540.0, 2)):
        time.now = moment
        await client.get_json(service.url("/api"))
        assert len(service.forms) == refreshes


async def test_a_401_refreshes_once(service: Service, pool: EgressPool) -> None:
    """After a 401 the broker refreshes the token once for all calls; a second 401 is a failure."""
    time = Time()
    client = broker_for(service, pool, time).client("oauth", [host_entry(service.url("/"))])
    await client.get_json(service.url("/api"))
    service.accepted.clear()
    time.now = 100.0
    results = await asyncio.gather(*(client.get_json(service.url("/api")) for _ in range(5)))
    assert results == [{"good": True}] * 5
    assert len(service.forms) == 2
    service.answer = {"access_token": "s3cret-access-x", "token_type": "Bearer"}
    service.accepted.clear()
    service.seen.clear()
    time.now = 200.0
    for sent in (2, 3):
        with pytest.raises(ToolFailure, match="status 401"):
            await client.get_json(service.url("/api"))
        assert len(service.seen) == sent, "a token that was just made is not made again"
    assert len(service.forms) == 3


async def test_a_token_that_cannot_be_replaced_is_used_to_its_end(service: Service, pool: EgressPool) -> None:
    """If a refresh fails shortly before a token expires, the token is used until it expires."""
    time = Time()
    client = broker_for(service, pool, time).client("oauth", [host_entry(service.url("/"))])
    await client.get_json(service.url("/api"))
    service.answer, service.status = {"error": "invalid_client"}, 401
    time.now = 3590.0
    assert await client.get_json(service.url("/api")) == {"good": True}
    time.now = 3600.0
    with pytest.raises(ToolFailure, match="cannot be used"):
        await client.get_json(service.url("/api"))


async def test_a_rotated_refresh_token_is_kept(service: Service, pool: EgressPool) -> None:
    """If the provider rotates refresh tokens, the next refresh sends the newest one."""
    time = Time()
    client = broker_for(service, pool, time).client("oauth", [host_entry(service.url("/"))])
    service.answer = {"access_token": "a1", "refresh_token": "s3cret-refresh-2", "expires_in": "60"}
    service.accepted = {"Bearer a1"}
    await client.get_json(service.url("/api"))
    time.now = 30.0
    service.answer = {"access_token": "a2"}
    service.accepted = {"Bearer a2"}
    await client.get_json(service.url("/api"))
    assert [form["refresh_token"] for form in service.forms] == ["s3cret-refresh", "s3cret-refresh-2"]


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (400, {"error": "invalid_grant", "error_description": "s3cret-refresh was revoked"}),
        (400, {"error": "s3cret-refresh"}),
        (500, ["s3cret-refresh"]),
        (200, {"access_token": "a\r\nX: s3cret-access"}),
        (200, {"access_token": ""}),
        (200, {"access_token": 7}),
        (200, {"access_token": "s3cret-access", "token_type": "mac"}),
        (200, ["s3cret-access"]),
        (200, {"access_token": "x" * 20000}),
    ],
)
async def test_a_failed_refresh_says_nothing_secret(
    service: Service, pool: EgressPool, status: int, answer: dict[str, Any] | list[str]
) -> None:
    """The error of a failed refresh names the connection and quotes neither request nor answer."""
    time = Time()
    client = broker_for(service, pool, time).client("oauth", [host_entry(service.url("/"))])
    service.answer, service.status = answer, status
    with structlog.testing.capture_logs() as lines:
        for _ in range(2):
            with pytest.raises(HttpFailure, match='connection "oauth" cannot be used') as caught:
                await client.get_json(service.url("/api"))
            assert caught.value.json is None
    assert len(service.forms) == 1, "a failed refresh is not repeated at once"
    assert [line["connection"] for line in lines] == ["oauth"]
    assert "s3cret" not in repr(lines) + str(caught.value)
    time.now = 5.0
    service.answer = None
    service.status = 200
    assert await client.get_json(service.url("/api")) == {"good": True}


async def test_missing_connection(service: Service, pool: EgressPool) -> None:
    """A call through a connection that is not configured fails with a message that names it."""
    client = broker_for(service, pool).client("other", ["*"])
    for call in (
        client.get_json(service.url("/api")),
        client.post_json(service.url("/api"), {}),
        client.get_text(service.url("/api")),
    ):
        with pytest.raises(ToolFailure, match='connection "other" is not set up'):
            await call


async def test_nothing_of_a_credential_gets_out(service: Service, pool: EgressPool, log: MemoryLog) -> None:
    """Rule T6: no token appears in results, rows, log lines, errors or the repr of any object."""
    entry = host_entry(service.url("/"))

    @tool(connection="oauth", hosts=(entry,), effect="read_only", redaction=Redaction(output=("*",)))
    async def ask(path: str, http: HttpClient) -> Any:
        """Ask."""
        answer = await http.get_json(service.url(path))
        return {"answer": answer, "client": repr(http), "looks": str(http)}

    time = Time()
    broker = broker_for(service, pool, time)
    provider = FunctionProvider("t", [ask], Capabilities(connected=broker.client))

    registry = await Registry.load([provider])
    runner = Runner(registry, Policy(allow=("*",)), log, None, Clock(), credentials=broker)
    with structlog.testing.capture_logs() as lines:
        good = await runner.run(ToolCall("c", "t__ask", '{"path":"/api"}', 0), RunContext("r", 1, "open"))
        service.accepted.clear()
        time.now = 100.0
        service.answer, service.status = {"error": "invalid_grant"}, 400
        bad = await runner.run(ToolCall("c", "t__ask", '{"path":"/api"}', 0), RunContext("r2", 1, "open"))
    assert json.loads(good.content)["answer"] == {"good": True}
    assert not bad.ok
    assert "oauth" in bad.safe_message
    everything = repr((good, bad, log.opened, log.closed, lines, broker, vars(broker)))
    everything += repr((StaticToken("s3cret"), OAuthToken("u", "s3cret", "s3cret", "s3cret")))
    assert "s3cret" not in everything


async def test_calls_of_a_turn_share_one_refresh(service: Service, pool: EgressPool, log: MemoryLog) -> None:
    """Rule T6: a turn gets its token once, before its first row is opened; an expired one is refreshed."""
    time = Time()
    broker = broker_for(service, pool, time)
    seen = []

    @tool(
        connection="oauth",
        hosts=(host_entry(service.url("/")),),
        effect="read_only",
        redaction=Redaction(output=("*",)),
    )
    async def ask(number: int, http: HttpClient) -> Any:
        """Ask."""
        seen.append((len(service.forms), len(log.opened) > 0))
        time.now = 4000.0 if number == 9 else time.now
        return await http.get_json(service.url("/api"))

    provider = FunctionProvider("t", [ask], Capabilities(connected=broker.client))
    registry = await Registry.load([provider])
    runner = Runner(registry, Policy(allow=("*",)), log, None, Clock(), credentials=broker)
    service.release.clear()
    calls = [ToolCall(f"c{number}", "t__ask", f'{{"number":{number}}}', number) for number in range(10)]
    turn = asyncio.create_task(runner.run_many(calls[:8], RunContext("r", 1, "open")))
    await service.arrived.wait()
    assert log.opened == []
    service.release.set()
    assert all(result.ok for result in await turn)
    assert seen == [(1, True)] * 8
    assert len(service.forms) == 1
    assert (await runner.run(calls[9], RunContext("r", 2, "open"))).ok
    assert len(service.forms) == 2
    with pytest.raises(ToolFailure, match='connection "other" is not set up'):
        await broker.prepare("other")
    await broker.prepare("plain")


def sharing(
    service: Service, pool: EgressPool, vault: Vault | None, time: Time, refresh: str = "s3cret-refresh"
) -> Any:
    """The HTTP client of an OAuth connection that shares its tokens through the vault."""
    connection = OAuthToken(service.url("/token"), "s3cret-client-id", refresh)
    http = CheckedOAuthHttp(pool, pool, [service.url("/")], "tools.networks")
    broker = CredentialBroker(
        {"oauth": connection},
        pool,
        lambda connection: http,
        clock=lambda: time.now,
        vault=vault,
        now=lambda: 1e9 + time.now,
    )
    return broker.client("oauth", [host_entry(service.url("/"))])


async def test_what_one_process_brings_the_others_use(service: Service, pool: EgressPool) -> None:
    """Rule T6: of two processes that need a token only one requests it; a third one uses the same token."""
    vault, time = Vault(), Time()
    clients = [sharing(service, pool, vault, time) for _ in range(2)]
    await asyncio.gather(*(client.get_json(service.url("/api")) for client in clients))
    time.now = 3000
    await sharing(service, pool, vault, time).get_json(service.url("/api"))
    assert len(service.forms) == 1
    time.now = 3541
    await asyncio.gather(*(client.get_json(service.url("/api")) for client in clients))
    assert len(service.forms) == 2


async def test_a_401_takes_the_token_that_another_process_has_brought(
    service: Service, pool: EgressPool
) -> None:
    """After a 401 a process uses a newer token of another process instead of requesting one."""
    vault, time = Vault(), Time()
    first, second = (sharing(service, pool, vault, time) for _ in range(2))
    for client in (first, second):
        await client.get_json(service.url("/api"))
    time.now = 100
    service.accepted.clear()
    assert await first.get_json(service.url("/api")) == {"good": True}
    assert await second.get_json(service.url("/api")) == {"good": True}
    assert len(service.forms) == 2


async def test_a_rotated_refresh_token_outlives_the_process(service: Service, pool: EgressPool) -> None:
    """A new process sends the newest refresh token; it sends the configured one only if that has changed."""
    vault, time = Vault(), Time()
    rotated = {"access_token": "s3cret-access", "token_type": "bearer", "expires_in": 60}
    service.answer = {**rotated, "refresh_token": "s3cret-rotated"}
    service.accepted = {"Bearer s3cret-access"}
    await sharing(service, pool, vault, time).get_json(service.url("/api"))
    time.now = 61
    await sharing(service, pool, vault, time).get_json(service.url("/api"))
    await sharing(service, pool, vault, time, "s3cret-refresh-2").get_json(service.url("/api"))
    sent = [form["refresh_token"] for form in service.forms]
    assert sent == ["s3cret-refresh", "s3cret-rotated", "s3cret-refresh-2"]
    assert not any(secret in name for name in vault.kept for secret in SECRETS)


@pytest.mark.parametrize("what", ["load", "exclusive"])
async def test_without_its_record_nothing_is_refreshed(service: Service, pool: EgressPool, what: str) -> None:
    """If the token store cannot be read or locked, nothing is refreshed, and a valid token stays in use."""
    vault, time = Vault(), Time()
    client = sharing(service, pool, vault, time)
    vault.broken = {what}
    with pytest.raises(ToolFailure) as caught:
        await client.get_json(service.url("/api"))
    assert "cannot be used now" in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert service.forms == []
    vault.broken = set()
    time.now = 10
    await client.get_json(service.url("/api"))
    vault.broken = {what}
    time.now = 3600
    await client.get_json(service.url("/api"))
    assert len(service.forms) == 1


async def test_tokens_that_could_not_be_kept_are_used(service: Service, pool: EgressPool) -> None:
    """If the token store cannot save new tokens, the call still succeeds and an error is logged."""
    vault, time = Vault(), Time()
    vault.broken = {"save"}
    with structlog.testing.capture_logs() as lines:
        await sharing(service, pool, vault, time).get_json(service.url("/api"))
    assert [line["event"] for line in lines if line["log_level"] == "error"] == ["credentials_not_kept"]
    assert "s3cret" not in repr(lines)


async def test_a_token_that_was_not_kept_is_not_lost_to_an_older_one(
    service: Service, pool: EgressPool
) -> None:
    """After a failed save a process goes on with its own newest refresh token and saves later ones."""
    vault, time = Vault(), Time()
    client = sharing(service, pool, vault, time)
    for number, broken in enumerate([set(), {"save"}, set(), set()]):
        vault.broken = broken
        service.answer = {"access_token": "a", "expires_in": 60, "refresh_token": f"s3cret-{number}"}
        service.accepted = {"Bearer a"}
        time.now += 100
        await client.get_json(service.url("/api"))
    sent = [form["refresh_token"] for form in service.forms]
    assert sent == ["s3cret-refresh", "s3cret-0", "s3cret-1", "s3cret-2"]
    assert b"s3cret-3" in next(iter(vault.kept.values()))


@pytest.mark.parametrize("shared", [True, False])
async def test_a_refresh_that_nobody_waits_for_is_not_lost(
    service: Service, pool: EgressPool, shared: bool
) -> None:
    """Rule T6: a refresh goes on after its only caller is cancelled, and its refresh token is kept."""
    vault, time = Vault(), Time()
    client = sharing(service, pool, vault if shared else None, time)
    service.answer = {"access_token": "a", "expires_in": 60, "refresh_token": "s3cret-new"}
    service.accepted = {"Bearer a"}
    service.release.clear()
    call = asyncio.create_task(client.get_json(service.url("/api")))
    await service.arrived.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    service.release.set()
    assert await client.get_json(service.url("/api")) == {"good": True}
    assert len(service.forms) == 1
    time.now = 100
    await client.get_json(service.url("/api"))
    assert service.forms[1]["refresh_token"] == "s3cret-new"


@pytest.mark.parametrize(
    "kept",
    [
        b"\xff", b"[]", b"{}", b"null", b'{"access_token":"a b","refresh_token":"r","made_at":1e9}',
        b'{"access_token":"a","refresh_token":"r","made_at":"1e9"}',
        b'{"access_token":"a","refresh_token":1,"made_at":1e9}',
        b'{"access_token":"a","refresh_token":"s3cret-refresh","made_at":2e9,"lasts_s":1e9}',
    ],
)  # fmt: skip
async def test_what_is_no_good_in_a_vault_is_passed_over(
    service: Service, pool: EgressPool, kept: bytes
) -> None:
    """A process ignores invalid content in the token store and requests a new token."""
    vault, time = Vault(), Time()
    client = sharing(service, pool, vault, time)
    await client.get_json(service.url("/api"))
    (name,) = vault.kept
    vault.kept[name] = kept
    assert await sharing(service, pool, vault, time).get_json(service.url("/api")) == {"good": True}
    assert [form["refresh_token"] for form in service.forms] == ["s3cret-refresh"] * 2
