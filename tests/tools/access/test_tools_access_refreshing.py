"""Tokens of a login: how they are refreshed, rotated, ended, and replaced by those of a new login."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import structlog
from oauth_rig import Brokers, brokers, log_in
from oauth_server import OAuthServer, running
from token_vault import Vault

from proxy.base.errors import ToolFailure
from proxy.tools.access.credentials import Connection, ConnectionFailure, CredentialBroker, TokenRefresher
from proxy.tools.contract.capabilities import HttpFailure
from proxy.tools.oauth.grants import ClientCredentials, LoggedIn, OAuthToken, grant_of, login_place
from proxy.tools.oauth.stored_tokens import read_stored_tokens


class Time:
    """A monotonic clock and a wall clock that the test moves."""

    passed = 0.0

    def monotonic(self) -> float:
        """Return the seconds that have passed."""
        return self.passed

    def now(self) -> float:
        """Return the seconds since the epoch."""
        return NOW + self.passed


NOW = 1.0e9


@pytest.fixture
async def server() -> AsyncIterator[OAuthServer]:
    """An authorization server and an MCP server."""
    async with running() as one:
        yield one


@pytest.fixture
async def made(server: OAuthServer) -> AsyncIterator[Brokers]:
    """Credential brokers without a login."""
    async with brokers(server) as found:
        yield found


async def log_in_at(made: Brokers, time: Time) -> None:
    """Log in, at the time of the test's clock."""
    tokens = await log_in(made.server, made.vault)
    assert tokens.login is not None
    tokens = replace(tokens, made_at=time.now(), login=replace(tokens.login, at=time.now()))
    await made.vault.save(login_place("issues"), tokens.to_json())


def process(made: Brokers, time: Time, connection: Connection | None = None) -> TokenRefresher:
    """Make the token refresher that one process has for the connection."""
    meant = connection or LoggedIn(server_url=made.server.mcp)
    assert isinstance(meant, LoggedIn | ClientCredentials | OAuthToken)
    http = made.pools.http(server_url=made.server.mcp)
    return TokenRefresher(
        "issues", grant_of("issues", meant), http, vault=made.vault, clock=time.monotonic, now=time.now
    )


async def test_a_login_is_refreshed_with_its_resource(server: OAuthServer, made: Brokers) -> None:
    """RFC 8707: each refresh names the resource, too, and sends the newest refresh token."""
    time = Time()
    await log_in_at(made, time)
    one = process(made, time)
    assert await one.authorization() == f"Bearer {server.logins[0].access_token}"
    for _ in range(3):
        time.passed += 3600
        header = await one.authorization()
        assert header == f"Bearer {server.logins[0].access_token}"
    refreshes = server.forms[1:]
    assert [form["grant_type"] for form in refreshes] == ["refresh_token"] * 3
    assert {form["resource"] for form in refreshes} == {server.mcp}
    assert len({form["refresh_token"] for form in refreshes}) == 3
    assert not server.logins[0].ended


async def test_processes_share_a_refresh(server: OAuthServer, made: Brokers) -> None:
    """If ten processes need a new token at the same time, only one of them requests it."""
    time = Time()
    await log_in_at(made, time)
    processes = [process(made, time) for _ in range(10)]
    time.passed = 3600
    headers = await asyncio.gather(*(one.authorization() for one in processes))
    assert len(set(headers)) == 1
    assert len(server.forms) == 2


async def test_a_login_that_ended_is_asked_for_once(server: OAuthServer, made: Brokers) -> None:
    """A refused refresh token is not sent again; the log says once which command the operator must run."""
    time = Time()
    await log_in_at(made, time)
    one = process(made, time)
    server.logins[0].ended = True
    time.passed = 3600
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            with pytest.raises(ConnectionFailure) as caught:
                await one.authorization()
            time.passed += 10
    words = "the login has ended (invalid_grant); run: toolrelay credentials login issues"
    assert (caught.value.reason, caught.value.needs_login) == (words, True)
    assert "s3cret" not in f"{caught.value}{lines}"
    assert [line["reason"] for line in lines] == [words]
    assert len(server.forms) == 2
    await log_in_at(made, time)
    assert await one.authorization() == f"Bearer {server.logins[1].access_token}"


async def test_a_failed_refresh_is_tried_again_later(server: OAuthServer, made: Brokers) -> None:
    """If the token endpoint fails, the login goes on, and the refresh is retried only after a few seconds."""
    time = Time()
    await log_in_at(made, time)
    one = process(made, time)
    time.passed = 3600
    server.token_answer, server.token_status = {"error": "s3cret"}, 500
    for _ in range(3):
        with pytest.raises(ConnectionFailure) as caught:
            await one.authorization()
    assert (caught.value.reason, caught.value.needs_login) == ("no usable answer", False)
    assert len(server.forms) == 2
    server.token_answer = None
    time.passed += 5
    assert await one.authorization() == f"Bearer {server.logins[0].access_token}"


async def test_a_logout_is_noticed(server: OAuthServer, made: Brokers) -> None:
    """Five seconds after a logout, a process no longer uses the token, though it has not expired."""
    time = Time()
    await log_in_at(made, time)
    one = process(made, time)
    await one.authorization()
    await made.vault.forget(login_place("issues"))
    time.passed = 5
    with pytest.raises(ConnectionFailure, match="cannot be used") as caught:
        await one.authorization()
    assert "nobody has logged in" in caught.value.reason


async def test_a_login_anew_takes_the_place_of_the_last(server: OAuthServer, made: Brokers) -> None:
    """Five seconds after a new login a process uses its token, without a refresh or a restart."""
    time = Time()
    await log_in_at(made, time)
    one = process(made, time)
    await one.authorization()
    await log_in_at(made, time)
    time.passed = 5
    assert await one.authorization() == f"Bearer {server.logins[1].access_token}"
    assert [form["grant_type"] for form in server.forms] == ["authorization_code"] * 2


async def test_a_record_that_is_away_ends_no_token(server: OAuthServer, made: Brokers) -> None:
    """If the token store fails, a process uses its token until it expires, and does not refresh it."""
    time = Time()
    await log_in_at(made, time)
    one = process(made, time)
    header = await one.authorization()
    made.vault.broken = {"load", "exclusive"}
    time.passed = 3590
    assert await one.authorization() == header
    time.passed = 3600
    with pytest.raises(ConnectionFailure):
        await one.authorization()
    assert len(server.forms) == 1


async def test_tokens_that_could_not_be_kept_are_kept_later(server: OAuthServer, made: Brokers) -> None:
    """Tokens that could not be saved are saved when the store works again, without a second refresh."""
    time = Time()
    await log_in_at(made, time)
    one = process(made, time)
    time.passed = 3600
    made.vault.broken = {"save"}
    header = await one.authorization()
    made.vault.broken = set()
    time.passed += 6
    assert await one.authorization() == header
    tokens = read_stored_tokens(made.vault.kept[login_place("issues")])
    assert tokens is not None
    assert f"Bearer {tokens.access_token}" == header
    assert len(server.forms) == 2


@pytest.mark.parametrize(
    "other",
    [
        LoggedIn(server_url="https://other.example/mcp"),
        LoggedIn(issuer="https://other.example"),
        LoggedIn(server_url="{URL}/mcp", issuer="https://other.example"),
        LoggedIn(server_url="{URL}/mcp", client_id="another"),
        LoggedIn(server_url="{URL}/other"),
    ],
)
async def test_a_login_is_used_for_nothing_else(server: OAuthServer, made: Brokers, other: LoggedIn) -> None:
    """If the configured server, issuer or client has changed, the token of the old login is not used."""
    time = Time()
    await log_in_at(made, time)
    meant = replace(other, server_url=other.server_url.replace("{URL}", server.url))
    with pytest.raises(ConnectionFailure) as caught:
        await process(made, time, meant).authorization()
    assert "nobody has logged in" in caught.value.reason
    assert len(server.forms) == 1


async def test_client_credentials(server: OAuthServer, made: Brokers) -> None:
    """Processes share one token of the client; no name in the token store contains the client's secret,
    and the server's metadata is read only once."""
    time = Time()
    machine = ClientCredentials(server.url, "machine", "s3cret:&", server.mcp, ("read",))
    one, other = (process(made, time, machine) for _ in range(2))
    assert await one.authorization() == await other.authorization()
    (form,) = server.forms
    assert form == {
        "grant_type": "client_credentials",
        "scope": "read",
        "resource": server.mcp,
        "client_id": "machine",
        "client_secret": "s3cret:&",
        "method": "basic",
    }
    assert "s3cret" not in "".join(made.vault.kept)
    time.passed = 3600
    await one.authorization()
    assert len(server.forms) == 2
    documents = [path for path in server.asked if "well-known" in path]
    assert len(documents) == 2, "the server is looked for once"


async def test_a_connection_is_of_one_server(server: OAuthServer, made: Brokers) -> None:
    """A login's token is given only for its own MCP server, not to a tool or for another URL."""
    await log_in(server, made.vault)
    broker: CredentialBroker = made.broker()
    with pytest.raises(HttpFailure, match="not set up"):
        await broker.client("issues", ["*"]).get_json(f"{server.url}/x")
    with pytest.raises(ToolFailure, match="not set up"):
        await broker.authorize("issues", f"{server.url}/other")
    with pytest.raises(ToolFailure, match="not set up"):
        await broker.authorize("nobody", server.mcp)
    assert await broker.authorize("issues", server.mcp)
    assert isinstance(made.vault, Vault)
