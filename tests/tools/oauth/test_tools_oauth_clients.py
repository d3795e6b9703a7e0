"""The OAuth client that the proxy is at an authorization server, and how it authenticates."""

import base64
from collections.abc import Mapping
from typing import Any

import pytest

from proxy.tools.contract.capabilities import HttpFailure
from proxy.tools.oauth.clients import Client, choose_client, configured_client, with_authentication
from proxy.tools.oauth.metadata import AuthorizationServer
from proxy.tools.oauth.port import OAuthFault

ISSUER = "https://as.example"
REDIRECT = "http://127.0.0.1:8765/callback"


class Registry:
    """A fake registration endpoint with one answer."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[Any] = []

    async def get_json(self, url: str) -> Any:
        """Fail the test."""
        raise AssertionError(url)

    async def post_json(self, url: str, body: Any) -> Any:
        """Record the request and return the answer."""
        self.asked.append(body)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def post_form(self, url: str, fields: Mapping[str, str], authorization: str | None = None) -> Any:
        """Fail the test."""
        raise AssertionError(url)

    async def challenge(self, url: str) -> str:
        """Fail the test."""
        raise AssertionError(url)


def server(**more: Any) -> AuthorizationServer:
    """An authorization server."""
    return AuthorizationServer(ISSUER, f"{ISSUER}/authorize", f"{ISSUER}/token", **more)


@pytest.mark.parametrize(
    ("methods", "method"),
    [
        (None, "client_secret_basic"),
        (("client_secret_post", "client_secret_basic"), "client_secret_basic"),
        (("client_secret_post",), "client_secret_post"),
    ],
)
def test_a_secret_goes_the_way_that_the_server_takes(methods: Any, method: str) -> None:
    """RFC 8414: the client uses Basic if the server allows it or names no methods, else the form."""
    assert configured_client(server(auth_methods=methods), "me", "s3cret").method == method
    assert configured_client(server(auth_methods=methods), "me", "").method == "none"


def test_a_secret_goes_no_way_that_is_not_known() -> None:
    """A server that accepts no client secret, but only a signed key, is refused."""
    with pytest.raises(OAuthFault, match="accepts no client secret, only: private_key_jwt"):
        configured_client(server(auth_methods=("private_key_jwt",)), "me", "s3cret")


def test_a_client_proves_itself() -> None:
    """RFC 6749, section 2.3.1: id and secret are in the form, or each percent-encoded in the Basic header."""
    form = {"grant_type": "x"}
    assert with_authentication(Client("me", "document"), form) == ({**form, "client_id": "me"}, None)
    posted = with_authentication(Client("me", "configured", "a:b", "client_secret_post"), form)
    assert posted == ({**form, "client_id": "me", "client_secret": "a:b"}, None)
    fields, header = with_authentication(Client("m:e", "configured", "a b%", "client_secret_basic"), form)
    assert fields == form
    assert header == f"Basic {base64.b64encode(b'm%3Ae:a%20b%25').decode()}"
    assert "s3cret" not in repr(Client("me", "configured", "s3cret"))


async def test_clients_are_chosen_in_order() -> None:
    """The order is: configured client, client document, earlier registration, new registration."""
    registry = Registry({"client_id": "new"})
    full = server(accepts_client_documents=True, registration_endpoint=f"{ISSUER}/register")
    document = "https://example.com/client.json"

    async def choose(at: AuthorizationServer = full, **options: Any) -> Client:
        return await choose_client(registry, at, redirect_uri=REDIRECT, **options)

    known = Client("old", "registered", redirect_uri=REDIRECT)
    assert (await choose(client_id="mine", document_url=document, known=known)).id == "mine"
    assert (await choose(document_url=document, known=known)).id == document
    assert (await choose(known=known)).id == "old"
    assert registry.asked == []
    moved = Client("old", "registered", redirect_uri="http://127.0.0.1:1/callback")
    assert (await choose(known=moved, scopes=("a",))).id == "new"
    without = server(registration_endpoint=f"{ISSUER}/register")
    assert (await choose(without, document_url=document)).id == "new"
    assert registry.asked[0] == {
        "client_name": "toolrelay",
        "redirect_uris": [REDIRECT],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
        "application_type": "native",
        "scope": "a",
    }
    with pytest.raises(OAuthFault, match="registers no clients by itself") as caught:
        await choose(server())
    assert REDIRECT in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "method"),
    [
        ({"client_id": "a", "client_secret": "s"}, "client_secret_basic"),
        ({"client_id": "a", "client_secret": ""}, "none"),
        ({"client_id": "a", "client_secret": "s", "token_endpoint_auth_method": "none"}, "none"),
        (
            {"client_id": "a", "client_secret": "s", "token_endpoint_auth_method": "client_secret_post"},
            "client_secret_post",
        ),
        ({"client_id": "a", "client_secret_expires_at": 0, "redirect_uris": [REDIRECT]}, "none"),
    ],
)
async def test_a_registration_is_what_the_server_made_of_it(answer: Any, method: str) -> None:
    """RFC 7591, section 3.2.1: the client uses the authentication method that the server registered."""
    at = server(registration_endpoint=f"{ISSUER}/register")
    client = await choose_client(Registry(answer), at, redirect_uri=REDIRECT)
    assert (client.method, bool(client.secret)) == (method, method != "none")


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        {},
        {"client_id": ""},
        {"client_id": "a\nb"},
        {"client_id": "x" * 3000},
        {"client_id": "a", "token_endpoint_auth_method": "private_key_jwt"},
        {"client_id": "a", "token_endpoint_auth_method": "client_secret_basic"},
        {"client_id": "a", "client_secret": 7},
        {"client_id": "a", "redirect_uris": ["https://evil.example/callback"]},
        {"client_id": "a", "client_secret_expires_at": "soon"},
        HttpFailure("the service answered with status 500", status=500, body=b's3cret'),
    ],
)  # fmt: skip
async def test_a_registration_that_is_no_use_is_refused(answer: Any) -> None:
    """An unusable registration is refused, and the message does not quote the server's answer."""
    at = server(registration_endpoint=f"{ISSUER}/register")
    with pytest.raises(OAuthFault) as caught:
        await choose_client(Registry(answer), at, redirect_uri=REDIRECT)
    assert "s3cret" not in str(caught.value)
