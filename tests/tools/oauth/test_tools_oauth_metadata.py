"""Metadata documents of resources and authorization servers: their URLs, and their validation."""

from typing import Any

import pytest

from proxy.tools.oauth.metadata import (
    covers,
    is_same_issuer,
    read_protected_resource,
    read_server,
    resource_metadata_urls,
    resource_of,
    server_metadata_urls,
)
from proxy.tools.oauth.port import OAuthFault

ISSUER = "https://as.example"
SERVER: dict[str, Any] = {"issuer": ISSUER, "token_endpoint": f"{ISSUER}/token"}
MCP = "https://mcp.example/tools/mcp"
RESOURCE: dict[str, Any] = {"resource": MCP, "authorization_servers": [ISSUER]}


def test_places_in_the_order_of_the_specifications() -> None:
    """The URLs follow RFC 9728 and RFC 8414, sections 3.1, and OpenID Connect Discovery, section 4."""
    assert resource_metadata_urls(MCP) == [
        "https://mcp.example/.well-known/oauth-protected-resource/tools/mcp",
        "https://mcp.example/.well-known/oauth-protected-resource",
    ]
    assert resource_metadata_urls("https://mcp.example/") == resource_metadata_urls("https://mcp.example")
    assert server_metadata_urls("https://as.example/tenant/") == [
        "https://as.example/.well-known/oauth-authorization-server/tenant",
        "https://as.example/.well-known/openid-configuration/tenant",
        "https://as.example/tenant/.well-known/openid-configuration",
    ]
    assert (
        server_metadata_urls("https://as.example")[1] == "https://as.example/.well-known/openid-configuration"
    )


@pytest.mark.parametrize(
    ("resource", "server", "does"),
    [
        (MCP, MCP, True),
        ("https://mcp.example", MCP, True),
        ("https://MCP.example:443/tools/", MCP, True),
        ("https://mcp.example/tools", MCP, True),
        ("https://mcp.example/too", MCP, False),
        ("https://mcp.example/tools/mcp/x", MCP, False),
        ("https://mcp.example/tools/../tools", MCP, False),
        ("http://mcp.example/tools", MCP, False),
        ("https://mcp.example:8443/tools", MCP, False),
        ("https://mcp.example.evil.example/tools", MCP, False),
        ("https://mcp.example/tools#x", MCP, False),
        ("https://mcp.example:x/", MCP, False),
        ("https://other.example/tools/mcp", MCP, False),
    ],
)
def test_what_a_resource_covers(resource: str, server: str, does: bool) -> None:
    """A resource covers a server of the same origin whose path is the resource's or lies below it."""
    assert covers(resource, server) is does


def test_the_canonical_name_of_a_server() -> None:
    """RFC 8707, section 2: scheme and host are in lower case, and there is no fragment."""
    assert resource_of("HTTPS://MCP.Example/Tools#x") == "https://mcp.example/Tools"


def test_issuers_differ_by_no_more_than_a_slash() -> None:
    """Two issuers are the same if they differ only by a slash directly after the origin."""
    assert is_same_issuer(ISSUER, f"{ISSUER}/")
    assert not is_same_issuer(f"{ISSUER}/a", f"{ISSUER}/a/")
    assert not is_same_issuer(ISSUER, "https://as.example.evil/")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"resource": "https://other.example/mcp"}, "is about https://other.example/mcp"),
        ({"resource": 7}, "resource is not valid"),
        ({"authorization_servers": []}, "authorization_servers is not valid"),
        ({"authorization_servers": [f"https://{number}.example" for number in range(21)]}, "not valid"),
        ({"authorization_servers": ["https://a.example/\n"]}, "authorization_servers.0 is not valid"),
        ({"resource": "x" * 3000}, "resource is not valid"),
    ],
)
def test_a_document_of_another_resource_is_refused(change: dict[str, Any], words: str) -> None:
    """A document about another resource, or an invalid one, is refused with a short message."""
    with pytest.raises(OAuthFault) as caught:
        read_protected_resource({**RESOURCE, **change}, "https://place", MCP)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 600
    nothing: list[Any] = [[], None, "x", 3]
    for none in nothing:
        with pytest.raises(OAuthFault, match="the document is not valid"):
            read_protected_resource(none, "https://place", MCP)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"issuer": "https://evil.example"},
            "is about the issuer https://evil.example, not https://as.example",
        ),
        ({"issuer": f"{ISSUER}/"}, "is about the issuer https://as.example/, not"),
        ({"issuer": "https://AS.example"}, "is about the issuer"),
        ({"token_endpoint": None}, "token_endpoint is not valid"),
        ({"token_endpoint": ["https://a.example"]}, "token_endpoint is not valid"),
        ({"scopes_supported": ["x"] * 1001}, "scopes_supported is not valid"),
        ({"authorization_endpoint": "https://a.example/ x"}, "authorization_endpoint is not valid"),
    ],
)
def test_a_document_of_another_issuer_is_refused(change: dict[str, Any], words: str) -> None:
    """A document whose issuer differs in any character, or with an invalid field, is refused."""
    with pytest.raises(OAuthFault) as caught:
        read_server({**SERVER, **change}, "https://place", ISSUER)
    assert words in str(caught.value)


def test_a_server_is_what_it_says() -> None:
    """A server that does not declare PKCE with S256 counts as without; unknown fields are ignored."""
    plain = read_server({**SERVER, "x": {"y": [1]}}, "https://place", ISSUER)
    assert (plain.has_pkce, plain.sends_iss, plain.accepts_client_documents) == (False, False, False)
    assert plain.auth_methods is None
    weak = read_server({**SERVER, "code_challenge_methods_supported": ["plain"]}, "https://place", ISSUER)
    assert not weak.has_pkce
    assert read_server({**SERVER, "issuer": f"{ISSUER}/"}, "p", ISSUER, loosely=True).issuer == f"{ISSUER}/"
