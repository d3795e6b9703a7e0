"""Requests to an MCP server with a connection: a worker gives the token, and only for that server."""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog
from mcp_rig import Hosted, hosted
from oauth_rig import LOOPBACK, Brokers, brokers, log_in
from oauth_server import OAuthServer, running
from waiting import LATE_S, PATIENCE_S, until

from proxy.base.errors import ToolFailure
from proxy.tools.mcp.host_client import HostClient
from proxy.tools.mcp.results import read_result


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


async def call(host: Hosted, tool: str) -> str:
    """Call a tool and return the text of its result."""
    found = await host.definitions("issues")
    return read_result(await host.client.call("issues", tool, found[tool].digest, {}, LATE_S)).text


async def test_each_request_has_the_token_of_the_server(server: OAuthServer, made: Brokers) -> None:
    """Handshake, list and calls all have the login's token, and the token is not refreshed without need."""
    await log_in(server, made.vault)
    known = made.mcp_server
    async with hosted(known, authorize=made.authorizer(known), networks=LOOPBACK) as host:
        assert await call(host, "read") == "read is done"
    (login,) = server.logins
    asked = server.seen[1:]
    assert {headers["authorization"] for headers in asked} == {f"Bearer {login.access_token}"}
    assert len(server.forms) == 1


async def test_a_server_waits_for_a_login(server: OAuthServer, made: Brokers) -> None:
    """Without a login the state names the command and no request is sent; a login works without restart."""
    known = made.mcp_server
    async with hosted(known, authorize=made.authorizer(known), networks=LOOPBACK) as host:
        listing = await host.client.listing("issues", PATIENCE_S)
        assert listing.status.state == "unauthorized"
        assert listing.status.reason == "nobody has logged in; run: toolrelay credentials login issues"
        assert server.seen == []
        await log_in(server, made.vault)
        await host.becomes("issues", "ready")
        assert await call(host, "read") == "read is done"


async def test_a_missing_scope_names_the_login(server: OAuthServer, made: Brokers) -> None:
    """If a scope is missing, only that call fails; the state names the login command that adds the scope."""
    kept = await log_in(server, made.vault)
    known = made.mcp_server
    with structlog.testing.capture_logs() as lines:
        async with hosted(known, authorize=made.authorizer(known), networks=LOOPBACK) as host:
            for _ in range(2):
                with pytest.raises(ToolFailure, match="lacks a scope") as caught:
                    await call(host, "write")
                assert "write" not in str(caught.value)
            status = host.client.statuses["issues"]
            assert (status.state, status.reason) == (
                "ready",
                "the server asks for the scope write; run: toolrelay credentials login issues --scope write",
            )
            assert await call(host, "read") == "read is done"
            await log_in(server, made.vault, scopes=["write"], before=kept)
            assert await call(host, "write") == "write is done"
            await until(lambda: host.client.statuses["issues"].reason == "")
    assert server.authorized[1]["scope"] == "read write"
    (line,) = [line for line in lines if line["event"] == "mcp_scope_missing"]
    assert (line["server"], line["connection"]) == ("issues", "issues")


@pytest.mark.parametrize("scope", ["a`touch x`", "$(touch x)", "a;b", "a'b"])
async def test_a_hostile_scope_is_no_command(server: OAuthServer, made: Brokers, scope: str) -> None:
    """The command for the operator quotes the scope that the server asks for, so it is safe to copy."""
    authorize = made.authorizer(made.mcp_server)
    kept = await log_in(server, made.vault)
    told = await authorize("issues", f"Bearer {kept.access_token}", (scope,))
    command = told.reason.partition("run: ")[2]
    quoted = "'" + scope.replace("'", "'\"'\"'") + "'"
    assert command == f"toolrelay credentials login issues --scope {quoted}"


async def test_a_refused_token_is_replaced_in_the_call(server: OAuthServer, made: Brokers) -> None:
    """If the server revokes a token, the worker refreshes it and calls work again."""
    kept = await log_in(server, made.vault)
    known = made.mcp_server
    async with hosted(known, authorize=made.authorizer(known), networks=LOOPBACK) as host:
        await host.definitions("issues")
        await asyncio.sleep(0)
        server.logins[0].access_token = "taken back"
        await until(lambda: _calls(host))
    assert [form["grant_type"] for form in server.forms] == ["authorization_code", "refresh_token"]
    assert server.forms[1]["refresh_token"] == kept.refresh_token


async def _calls(host: Hosted) -> bool:
    # The worker does not replace a token in the first seconds, so calls fail until then.
    try:
        return await call(host, "read") == "read is done"
    except ToolFailure:
        return False


async def test_another_worker_is_asked_where_one_ends(server: OAuthServer, made: Brokers) -> None:
    """If one worker ends, another worker gives the token."""
    await log_in(server, made.vault)
    known = made.mcp_server
    async with hosted(known, authorize=made.authorizer(known), networks=LOOPBACK) as host:
        await host.definitions("issues")
        other = HostClient(host.process.path, made.authorizer(known))
        other.start()
        found = (await other.listing("issues", PATIENCE_S)).definitions[0]
        await host.client.aclose()
        assert read_result(await other.call("issues", found.name, found.digest, {}, LATE_S)).text
        await other.aclose()


async def test_the_process_has_no_secret_that_it_does_not_need(server: OAuthServer, made: Brokers) -> None:
    """The memory of the MCP process has neither a refresh token nor a client secret."""
    server.documents["/.well-known/oauth-authorization-server"] = {
        "issuer": "{URL}",
        "authorization_endpoint": "{URL}/authorize",
        "token_endpoint": "{URL}/token",
        "registration_endpoint": "{URL}/register",
        "token_endpoint_auth_methods_supported": ["client_secret_basic"],
        "code_challenge_methods_supported": ["S256"],
    }
    server.sends_iss = False
    kept = await log_in(server, made.vault)
    assert kept.login is not None
    assert kept.login.client.secret.startswith("s3cret-client-")
    known = made.mcp_server
    async with hosted(known, authorize=made.authorizer(known), networks=LOOPBACK) as host:
        assert await call(host, "read") == "read is done"
        memory = await asyncio.to_thread(_memory_of, host.process._pid)
    assert b"read is done" in memory, "the memory could be read"
    assert kept.refresh_token.encode() not in memory
    assert kept.login.client.secret.encode() not in memory


def _memory_of(pid: int) -> bytes:
    """Read the private memory of a process."""
    found = []
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            area = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw-p", line)
            if area is None or "[v" in line:
                continue
            begin, end = (int(part, 16) for part in area.groups())
            try:
                found.append(os.pread(memory.fileno(), min(end - begin, 256 << 20), begin))
            except OSError:
                continue
    return b"".join(found)
