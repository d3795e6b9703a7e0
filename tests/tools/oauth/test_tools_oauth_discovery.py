"""Discovery of the authorization server of an MCP server, with valid and with hostile documents."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from oauth_rig import LOOPBACK
from oauth_server import OAuthServer, running

from proxy.tools.access.oauth_http import MAX_DOCUMENT, OAuthPools
from proxy.tools.oauth.metadata import Discovery, discover
from proxy.tools.oauth.port import OAuthFault

PLACE = "/.well-known/oauth-protected-resource/mcp"
AS = "/.well-known/oauth-authorization-server"
METADATA: dict[str, Any] = {
    "issuer": "{URL}",
    "authorization_endpoint": "{URL}/authorize",
    "token_endpoint": "{URL}/token",
    "code_challenge_methods_supported": ["S256"],
}


@asynccontextmanager
async def serving(**documents: Any) -> AsyncIterator[OAuthServer]:
    """Run the servers with these documents; ``resource`` and ``server`` stand for the two usual paths."""
    named = {"resource": PLACE, "server": AS}
    server = OAuthServer(documents={named.get(place, place): said for place, said in documents.items()})
    async with running(server):
        yield server


async def find(server: OAuthServer, *, issuer: str = "", networks: tuple[str, ...] = LOOPBACK) -> Discovery:
    """Run the discovery from the URL of the MCP server."""
    pools = OAuthPools(servers=networks)
    try:
        http = pools.http(issuer=issuer, server_url=server.mcp)
        return await discover(http, server_url=server.mcp, issuer=issuer)
    finally:
        await pools.aclose()


async def test_the_document_that_the_server_names_is_read_first() -> None:
    """The document that the challenge names is read first, and the challenge's scopes are used."""
    async with serving(**{"/elsewhere": {"resource": "{URL}", "authorization_servers": ["{URL}"]}}) as server:
        server.challenge = f'Bearer resource_metadata="{server.url}/elsewhere", scope="x y"'
        found = await find(server)
        assert (found.resource, found.scopes) == (server.url, ("x", "y"))
        assert found.server.issuer == server.url
        assert server.asked == ["POST /mcp", "GET /elsewhere", f"GET {AS}"]


async def test_without_a_challenge_the_known_places_are_looked_at() -> None:
    """Without a challenge the well-known URL with the server's path is tried first, then the root's."""
    async with serving(
        resource=None,
        **{
            "/.well-known/oauth-protected-resource": {
                "resource": "{URL}/mcp",
                "authorization_servers": ["{URL}/tenant"],
                "scopes_supported": ["a"],
            },
            "/.well-known/openid-configuration/tenant": None,
            "/tenant/.well-known/openid-configuration": {**METADATA, "issuer": "{URL}/tenant"},
        },
    ) as server:
        server.challenge = ""
        found = await find(server)
        assert (found.server.issuer, found.scopes) == (f"{server.url}/tenant", ("a",))


async def test_a_server_without_a_document_is_its_own_authorization_server() -> None:
    """As in revision 2025-03-26; a final slash after the issuer's origin is accepted there."""
    async with serving(resource=None, server={**METADATA, "issuer": "{URL}/"}) as server:
        server.challenge = "Bearer"
        found = await find(server)
        assert (found.resource, found.server.issuer) == (server.mcp, f"{server.url}/")


async def test_the_operator_chooses_the_issuer() -> None:
    """The configured issuer is used if the server names it; otherwise the discovery fails."""
    document = {"resource": "{URL}/mcp", "authorization_servers": ["https://other.example", "{URL}"]}
    async with serving(resource=document) as server:
        assert (await find(server, issuer=f"{server.url}/")).server.issuer == server.url
        with pytest.raises(
            OAuthFault, match=r"accepts no tokens from https://mine\.example; it names https://oth"
        ):
            await find(server, issuer="https://mine.example")


@pytest.mark.parametrize(
    ("documents", "words"),
    [
        ({"resource": {"resource": "https://a.example", "authorization_servers": ["{URL}"]}}, "is about"),
        ({"resource": b"[1,"}, "not JSON"),
        ({"resource": b"[" * 100_000}, "not JSON"),
        ({"resource": b" " * (MAX_DOCUMENT + 1)}, "larger than"),
        ({"resource": b"[" + b"1," * 120_000 + b"1]"}, "document is not valid"),
        ({"resource": 500}, "status 500"),
        ({"resource": 429}, "status 429"),
        ({"server": 503}, "status 503"),
        ({"server": None}, "publishes no metadata"),
        ({"server": {**METADATA, "issuer": "https://evil.example"}}, "about the issuer https://evil.example"),
        ({"server": {**METADATA, "issuer": "{URL}/"}}, "about the issuer"),
        ({"server": {**METADATA, "token_endpoint": 7}}, "token_endpoint is not valid"),
        (
            {"resource": {"resource": "{URL}/mcp", "authorization_servers": ["http://as.example"]}},
            "its address is not https",
        ),
        (
            {"resource": {"resource": "{URL}/mcp", "authorization_servers": ["file:///etc/passwd"]}},
            "its address is not https",
        ),
        (
            {"resource": {"resource": "{URL}/mcp", "authorization_servers": ["https://u:p@as.example"]}},
            "its address is not https",
        ),
        (
            {"resource": {"resource": "{URL}/mcp", "authorization_servers": ["https://10.1.2.3"]}},
            "not public; mcp.networks can open",
        ),
        (
            {"resource": {"resource": "{URL}/mcp", "authorization_servers": ["https://169.254.169.254"]}},
            "its address is not public",
        ),
        (
            {"resource": {"resource": "{URL}/mcp", "authorization_servers": ["http://169.254.169.254"]}},
            "its address is not public",
        ),
    ],
)
async def test_hostile_documents_are_refused(documents: dict[str, Any], words: str) -> None:
    """A hostile document is refused with a message of one line, and no token is requested."""
    async with serving(**documents) as server:
        with pytest.raises(OAuthFault) as caught:
            await find(server)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 700
        assert server.forms == []


async def test_a_redirect_leads_to_no_other_host() -> None:
    """A redirect to another host is not followed, even in an allowed network."""
    async with running() as other, serving(resource=web.HTTPFound(f"{other.url}{PLACE}")) as server:
        with pytest.raises(OAuthFault, match="to another host"):
            await find(server)
        assert other.asked == []


async def test_a_named_document_must_lie_where_the_server_may_point() -> None:
    """A challenge that names a disallowed URL is an error; the well-known URLs are not tried then."""
    async with serving() as server:
        for place in ("https://10.0.0.1/x", "http://example.com/x", "gopher://x", "https://127.0.0.1:1/x"):
            server.challenge = f'Bearer resource_metadata="{place}"'
            server.asked.clear()
            with pytest.raises(OAuthFault, match=r"cannot be read"):
                await find(server)
            assert server.asked == ["POST /mcp"]


async def test_a_server_that_is_not_there_is_named() -> None:
    """The message names a server that cannot be reached, or whose address is not allowed."""
    async with serving() as server:
        with pytest.raises(OAuthFault, match=r"/mcp cannot be asked: its address is not public"):
            await find(server, networks=("10.0.0.0/8",))
        assert server.asked == []
    with pytest.raises(OAuthFault, match="cannot be asked: the service cannot be reached"):
        await find(server)
