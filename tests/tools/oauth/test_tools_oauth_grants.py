"""The grant of a login: which scopes a refresh names, and what is kept of the answer."""

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from proxy.tools.contract.capabilities import HttpFailure
from proxy.tools.oauth.clients import Client
from proxy.tools.oauth.grants import LoggedIn, grant_of
from proxy.tools.oauth.port import OAuthFault
from proxy.tools.oauth.stored_tokens import Login, StoredTokens

ENDPOINT = "https://login.example.com/token"
SCOPES = ("api://example/mcp.access", "offline_access")


class Endpoint:
    """A token endpoint that gives its answers in turn and records the forms."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.forms: list[Mapping[str, str]] = []

    async def get_json(self, url: str) -> Any:
        """Nothing is fetched here."""
        raise AssertionError(url)

    async def post_json(self, url: str, body: Any) -> Any:
        """Nothing is registered here."""
        raise AssertionError(url)

    async def challenge(self, url: str) -> str:
        """No server is asked here."""
        raise AssertionError(url)

    async def post_form(self, url: str, fields: Mapping[str, str], authorization: str | None = None) -> Any:
        """Record a form and give the next answer."""
        assert url == ENDPOINT
        self.forms.append(fields)
        answer = self.answers.pop(0)
        if isinstance(answer, HttpFailure):
            raise answer
        return answer


def answer(**more: Any) -> Mapping[str, Any]:
    """Return an answer with tokens."""
    return {"access_token": "a2", "token_type": "Bearer", "expires_in": 3600, **more}


def refused(code: str) -> HttpFailure:
    """Return a refusal of RFC 6749, section 5.2."""
    return HttpFailure("it was refused", status=400, body=orjson.dumps({"error": code}))


async def refreshed(endpoint: Endpoint, scopes: tuple[str, ...] = SCOPES) -> StoredTokens:
    """Refresh the tokens of a login with these scopes."""
    server = "https://mcp.example.com/mcp"
    login = Login(
        "l1", 0.0, "https://login.example.com", ENDPOINT, Client("id", "configured"), server, scopes
    )
    grant = grant_of("issues", LoggedIn("https://login.example.com", server, "id"))
    return await grant.ask(endpoint, StoredTokens("a1", "r1", 0.0, 3600.0, login), lambda: 4000.0)


async def test_a_refresh_names_the_granted_scopes() -> None:
    """A refresh names the scopes of the login, and none if none are known."""
    endpoint = Endpoint(answer(), answer())
    assert (await refreshed(endpoint)).access_token == "a2"
    assert endpoint.forms[0]["scope"] == "api://example/mcp.access offline_access"
    await refreshed(endpoint, scopes=())
    assert "scope" not in endpoint.forms[1]


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        (None, SCOPES),
        ("api://example/mcp.access", SCOPES),
        ("other", ("other", "offline_access")),
    ],
)
async def test_offline_access_stays_though_an_answer_does_not_repeat_it(
    told: str | None, kept: tuple[str, ...]
) -> None:
    """After a refresh the login has the scopes of the answer, and still the one for refresh tokens."""
    tokens = await refreshed(Endpoint(answer() if told is None else answer(scope=told)))
    assert tokens.login is not None
    assert tokens.login.scopes == kept


async def test_scopes_that_a_server_refuses_are_not_named_again() -> None:
    """If a server refuses the scopes, the refresh is tried once without them; other refusals stay."""
    endpoint = Endpoint(refused("invalid_scope"), answer())
    assert (await refreshed(endpoint)).access_token == "a2"
    assert ["scope" in form for form in endpoint.forms] == [True, False]
    endpoint = Endpoint(refused("invalid_scope"), refused("invalid_scope"))
    with pytest.raises(OAuthFault, match="invalid_scope"):
        await refreshed(endpoint)
    endpoint = Endpoint(refused("invalid_request"))
    with pytest.raises(OAuthFault, match="invalid_request"):
        await refreshed(endpoint)
    assert len(endpoint.forms) == 1
