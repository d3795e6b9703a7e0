"""One attempt to log in: the URL that the browser opens, and the redirects that are accepted."""

import base64
import hashlib
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.tools.oauth.clients import Client, LoginAttempt, begin
from proxy.tools.oauth.metadata import AuthorizationServer
from proxy.tools.oauth.port import ForeignRedirect, OAuthFault

ISSUER = "https://as.example"
REDIRECT = "http://127.0.0.1:8765/callback"


def attempt(*, sends_iss: bool = False, page: str = f"{ISSUER}/authorize", pkce: bool = True) -> LoginAttempt:
    """Begin an attempt to log in at a server."""
    server = AuthorizationServer(ISSUER, page, f"{ISSUER}/token", has_pkce=pkce, sends_iss=sends_iss)
    return begin(
        server,
        Client("me", "configured"),
        redirect_uri=REDIRECT,
        resource="https://mcp.example/mcp",
        scopes=("a", "b"),
        extra_parameters={"prompt": "consent"},
    )


def back(**query: str) -> str:
    """The redirect URL with this query."""
    return f"{REDIRECT}?{urlencode(query)}"


def test_the_browser_is_sent_with_all_that_is_needed() -> None:
    """The URL has PKCE with S256, state, resource and scopes; each attempt has its own secrets."""
    one, other = attempt(page=f"{ISSUER}/authorize?tenant=7&client_id=evil"), attempt()
    asked = {name: values[0] for name, values in parse_qs(urlsplit(one.url).query).items()}
    digest = hashlib.sha256(one.verifier.encode()).digest()
    assert asked == {
        "tenant": "7",
        "prompt": "consent",
        "response_type": "code",
        "client_id": "me",
        "redirect_uri": REDIRECT,
        "state": one.state,
        "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
        "code_challenge_method": "S256",
        "scope": "a b",
        "resource": "https://mcp.example/mcp",
    }
    assert 43 <= len(one.verifier) <= 128, "RFC 7636, section 4.1"
    assert one.verifier not in one.url
    assert len({one.state, other.state, one.verifier, other.verifier}) == 4
    assert not any(secret in repr(one) for secret in (one.state, one.verifier))


@pytest.mark.parametrize(
    ("page", "pkce", "words"), [("", True, "no page"), ("https://a.example", False, "PKCE")]
)
def test_a_server_that_cannot_be_trusted_is_not_asked(page: str, pkce: bool, words: str) -> None:
    """A server without an authorization page or without PKCE is refused."""
    with pytest.raises(OAuthFault, match=words):
        attempt(page=page, pkce=pkce)


def test_the_code_comes_with_the_state() -> None:
    """The code is read from the whole redirect URL or from its query alone."""
    one = attempt(sends_iss=True)
    address = back(code="c0de", state=one.state, iss=ISSUER)
    assert one.code_of(f" {address}\n") == "c0de"
    assert one.code_of(address.partition("?")[2]) == "c0de"
    assert one.exchange("c0de") == {
        "grant_type": "authorization_code",
        "code": "c0de",
        "redirect_uri": REDIRECT,
        "code_verifier": one.verifier,
        "resource": "https://mcp.example/mcp",
    }


def test_what_is_not_of_the_attempt_is_nobodys() -> None:
    """A redirect with a wrong or missing state, a repeated parameter or too much text is refused."""
    one, other = attempt(), attempt()
    for address in (
        back(code="c", state=other.state),
        back(code="c"),
        "c0de",
        "",
        f"{back(code='c', state=one.state)}&state={other.state}",
        f"{back(code='c', state=one.state)}&code=d",
        back(code="x" * 20000, state=one.state),
        back(**{f"p{number}": "x" for number in range(60)}, state=one.state),
    ):
        with pytest.raises(ForeignRedirect):
            one.code_of(address)


@given(st.text(max_size=200))
def test_any_text_is_an_answer_or_none(text: str) -> None:
    """Any text in place of the redirect is refused without another exception."""
    one = attempt()
    for said in (text, f"{REDIRECT}?{text}", f"http://[{text}"):
        with pytest.raises((ForeignRedirect, OAuthFault)):
            one.code_of(said)


@pytest.mark.parametrize(
    ("query", "sends_iss", "words"),
    [
        ({"code": "c", "iss": "https://evil.example"}, False, "from the issuer https://evil.example"),
        ({"code": "c", "iss": f"{ISSUER}/"}, False, "may be a mix-up attack"),
        ({"code": "c"}, True, "does not name its issuer"),
        ({"error": "access_denied", "iss": "https://evil.example"}, False, "mix-up attack"),
        ({"error": "access_denied", "error_description": "\x1b[31mno"}, False, r"access_denied (\x1b[31mno)"),
        ({"code": ""}, False, "has no code"),
    ],
)
def test_an_answer_of_another_issuer_is_refused(query: dict[str, str], sends_iss: bool, words: str) -> None:
    """RFC 9207: a redirect of another issuer, or one without a code, is refused with a clear message."""
    one = attempt(sends_iss=sends_iss)
    with pytest.raises(OAuthFault) as caught:
        one.code_of(back(**query, state=one.state))
    assert words in str(caught.value)
