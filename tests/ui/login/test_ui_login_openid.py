"""The login of people at an OpenID provider, and the attacks on it that its standards name."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from client_keys import declared
from joserfc.jwk import RSAKey
from openid_provider import (
    CLIENT_ID,
    CLIENT_SECRET,
    URL,
    LoginBrowser,
    OpenIdProvider,
    asked_of,
    openid_provider,
)
from running_proxy import Answer, make_config, running
from structlog.testing import capture_logs
from ui_rig import ADMIN

from proxy.config.load import Config
from proxy.config.secret import Secret
from proxy.ui.login.openid import page_after

ROLES: Mapping[str, Any] = {
    "platform": {"admin": True},
    "leads": {"approves": ["core__*"]},
    "developers": {"models": ["m"]},
}


def config_of(provider: OpenIdProvider, *, roles: Mapping[str, Any] = ROLES, **more: Any) -> Config:
    """Return a configuration with keys and a login at this provider."""
    login = {"client_id": CLIENT_ID, "url": URL, **more.pop("login", {})}
    if provider.secret:
        login["client_secret"] = Secret("env:LOGIN_SECRET", provider.secret)
    return make_config(
        "http://127.0.0.1:9/v1",
        keys={"boss": declared(ADMIN, admin=True)},
        auth={
            "mode": "keys",
            "jwt": {
                "issuer": provider.url,
                "networks": ["127.0.0.0/8"],
                "roles": roles,
                **more.pop("jwt", {}),
            },
        },
        ui={"login": login, **more.pop("ui", {})},
        **more,
    )


@asynccontextmanager
async def login_rig(
    provider_settings: Mapping[str, Any] | None = None, **config: Any
) -> AsyncIterator[tuple[LoginBrowser, OpenIdProvider]]:
    """Run a provider and a proxy, and yield a browser that has not signed in."""
    async with (
        openid_provider(**(provider_settings or {})) as provider,
        running(config_of(provider, **config)) as proxy,
    ):
        yield LoginBrowser(proxy), provider


async def refused(browser: LoginBrowser, answer: Answer, status: int, words: str) -> None:
    """Check that a login failed with a page that says why, and that nobody is signed in."""
    text = answer.body.decode()
    assert (answer.status, words in text) == (status, True), text
    assert "<script" not in text
    policy = answer.header("content-security-policy") or ""
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.header("cache-control") == "no-store"
    assert not any(cookie.startswith(("toolrelay_ui=", "__Secure-toolrelay_ui=")) for cookie in browser.set)
    assert (await browser.data("session")).status == 401


async def test_a_person_logs_in_and_returns_to_their_page() -> None:
    """The code flow with PKCE, state, nonce and iss ends at the page that was asked for, with a session."""
    async with login_rig() as (browser, provider):
        offer = (await browser.data("login")).json
        assert (offer["provider"], offer["address"]) == (urlsplit(provider.url).netloc, f"{URL}/ui/login")
        with capture_logs() as lines:
            answer = await browser.log_in("/ui/runs?status=failed")
        assert (answer.status, answer.header("location")) == (303, "/ui/runs?status=failed")
        session = (await browser.data("session")).json
        assert (session["name"], session["role"], session["via"]) == ("Anna", "admin", "openid")
        assert (await browser.data("runs")).status == 200
        assert (await browser.data("settings")).status == 200
        (line,) = [line for line in lines if line["event"] == "ui_signed_in"]
        assert line["caller"].startswith("jwt:")
        (form,) = provider.tokens
        said = f"{lines} {answer.headers} {answer.body!r}"
        for secret in (CLIENT_SECRET, form["code"], form["code_verifier"]):
            assert secret not in said


async def test_the_cookies_are_hidden_from_scripts_and_other_sites() -> None:
    """Over HTTPS both cookies are for HTTPS alone; the login's is of this host alone and ends with it."""
    settings = {"redirect_uri": "https://proxy.example.com/ui/login/done"}
    async with login_rig(settings, login={"url": "https://proxy.example.com"}) as (browser, _):
        await browser.log_in()
        begun, ended, session = (cookie.split("; ") for cookie in browser.set)
        assert begun[0].startswith("__Host-toolrelay_login=")
        assert {"Path=/", "HttpOnly", "Secure", "SameSite=Lax", "Max-Age=600"} == set(begun[1:])
        assert (ended[0], "Max-Age=0" in ended) == ("__Host-toolrelay_login=", True)
        assert session[0].startswith("__Secure-toolrelay_ui=")
        assert {"Path=/ui", "HttpOnly", "Secure", "SameSite=Strict"} < set(session[1:])


async def test_a_session_ends_with_its_token() -> None:
    """The cookie and the session last as long as the ID token and the leeway, not as long as ui.session_s."""
    async with login_rig({"lasts_s": 120}, ui={"session_s": 28800}) as (browser, _):
        await browser.log_in()
        session = (await browser.data("session")).json
        assert 120 < session["expires_at"] - time.time() <= 150
        lasts = int(browser.set[-1].split("Max-Age=")[1].split(";")[0])
        assert 120 < lasts <= 150


async def test_a_session_lasts_no_longer_than_the_setting() -> None:
    """A token that is valid for a year gives a session of ui.session_s."""
    async with login_rig({"lasts_s": 31_536_000}, ui={"session_s": 600}) as (browser, _):
        await browser.log_in()
        assert (await browser.data("session")).json["expires_at"] - time.time() <= 600


async def test_every_worker_and_host_knows_a_login(tmp_path: Path) -> None:
    """One process begins, another ends, a third serves the session, and all know the sign-out."""
    store = {"url": f"sqlite:///{tmp_path / 'r.db'}"}
    async with openid_provider() as provider:
        config = config_of(provider, store=store)
        async with running(config) as one, running(config) as two, running(config) as three:
            browser = LoginBrowser(one)
            address = await browser.at_provider()
            browser.proxy = two
            assert (await browser.back(address)).status == 303
            browser.proxy = three
            assert (await browser.data("runs")).status == 200
            kept = dict(browser.cookies)
            assert (await browser.data("session", "DELETE")).status == 200
            browser.proxy, browser.cookies = one, kept
            assert (await browser.data("runs")).status == 401


async def test_a_public_client_logs_in_without_a_secret() -> None:
    """Without ui.login.client_secret the client sends its id alone."""
    async with login_rig({"secret": ""}) as (browser, _):
        assert (await browser.log_in()).status == 303
        assert (await browser.data("session")).status == 200


# Who may do what


@pytest.mark.parametrize(
    ("groups", "role"),
    [
        (["platform"], "admin"),
        (["leads", "developers"], "approver"),
        (["developers"], "viewer"),
        ("other developers", "viewer"),
    ],
)
async def test_groups_give_roles(groups: Any, role: str) -> None:
    """The first table of auth.jwt.roles that fits decides, as for tokens of the API."""
    async with login_rig({"claims": {"groups": groups}}) as (browser, _):
        await browser.log_in()
        session = (await browser.data("session")).json
        assert (session["role"], session["own_runs"]) == (role, True)
        assert (await browser.data("runs")).status == 200
        assert (await browser.data("approvals")).status == (403 if role == "viewer" else 200)
        for path in ("settings", "keys", "usage", "tools", "upstreams", "health", "mcp", "compare?a=x&b=y"):
            allowed = (await browser.data(path)).status != 403
            assert allowed == (role == "admin"), path


async def test_without_tables_everybody_sees_their_own_runs_alone() -> None:
    """Without auth.jwt.roles a person is nobody's administrator."""
    async with login_rig({"claims": {"groups": ["platform"]}}, roles={}) as (browser, _):
        await browser.log_in()
        assert (await browser.data("session")).json["role"] == "viewer"


async def test_an_unknown_group_is_told_which_claim_decides() -> None:
    """Somebody in no configured group gets a page that names the claim, and no session."""
    async with login_rig({"claims": {"groups": ["guests"]}}) as (browser, _):
        await refused(browser, await browser.log_in(), 403, "the claim groups of the ID token names no group")


async def test_a_missing_claim_is_named() -> None:
    """If the ID token lacks the claim, the page says so, with a dotted path as it is configured."""
    async with login_rig({"claims": {"groups": None}}, jwt={"roles_claim": "realm_access.roles"}) as (
        browser,
        _,
    ):
        await refused(browser, await browser.log_in(), 403, "has no claim realm_access.roles")


async def test_a_role_that_is_taken_away_ends_sessions(tmp_path: Path) -> None:
    """A session's rights are those that the configuration gives its role now; without the role it ends, and
    so it does with another client at the provider."""
    store = {"url": f"sqlite:///{tmp_path / 'r.db'}"}
    async with openid_provider() as provider:
        async with running(config_of(provider, store=store)) as proxy:
            browser = LoginBrowser(proxy)
            await browser.log_in()
        for changed, status in (
            ({"roles": {"platform": {"approves": ["x__*"]}}}, 401),
            ({"roles": {"others": {"admin": True}}}, 401),
            ({"login": {"client_id": "another"}}, 401),
            ({}, 200),
        ):
            async with running(config_of(provider, store=store, **changed)) as proxy:
                answer = await LoginBrowser(proxy, dict(browser.cookies)).data("session")
                assert answer.status == status, changed


# Attacks


async def test_a_login_that_began_elsewhere_signs_nobody_in() -> None:
    """Login CSRF: an attacker's answer in another browser, with or without a login of its own, is refused."""
    async with login_rig() as (attacker, _):
        address = await attacker.at_provider()
        victim = LoginBrowser(attacker.proxy)
        await refused(victim, await victim.back(address), 400, "did not begin in this browser")
        await victim.at_provider()
        await refused(victim, await victim.back(address), 400, "did not begin in this browser")


async def test_a_cookie_of_another_host_begins_no_login() -> None:
    """Login CSRF: hosts beside this one can set the cookie's plain name, with a login of their own in it."""
    settings = {"redirect_uri": "https://proxy.example.com/ui/login/done"}
    async with login_rig(settings, login={"url": "https://proxy.example.com"}) as (browser, _):
        address = await browser.at_provider()
        browser.cookies["toolrelay_login"] = browser.cookies.pop("__Host-toolrelay_login")
        await refused(browser, await browser.back(address), 400, "did not begin in this browser")


async def test_an_answer_counts_once() -> None:
    """A replayed answer is refused, also in the browser that began the login."""
    async with login_rig() as (browser, _):
        address = await browser.at_provider()
        again = LoginBrowser(browser.proxy, dict(browser.cookies))
        assert (await browser.back(address)).status == 303
        await refused(again, await again.back(address), 403, "has expired or was used before")


async def test_the_same_state_opens_one_session() -> None:
    """Two codes for one login, which only its own provider could make, open one session."""
    async with login_rig() as (browser, provider):
        begun = await browser.get("/ui/login")
        asked = asked_of(begun.header("location"))
        kept = dict(browser.cookies)
        answers = []
        for _ in range(2):
            browser.cookies, query = dict(kept), f"state={asked['state']}&iss={provider.url}"
            answers.append(await browser.get(f"/ui/login/done?{query}&code={provider.code_for(asked)}"))
        assert [answer.status for answer in answers] == [303, 400]
        assert b"completed before" in answers[1].body


async def test_an_injected_code_is_worth_nothing() -> None:
    """A stolen code of another login, in one's own answer, fails by PKCE at the provider."""
    async with login_rig() as (victim, _):
        stolen = asked_of(await victim.at_provider())["code"]
        attacker = LoginBrowser(victim.proxy)
        own = asked_of(await attacker.at_provider())
        answer = await attacker.get(f"/ui/login/done?state={own['state']}&iss={own['iss']}&code={stolen}")
        await refused(attacker, answer, 403, "has expired or was used before")


async def test_an_injected_code_of_a_provider_without_pkce_fails_by_its_nonce() -> None:
    """An ID token with another login's nonce is refused, and so is one without."""
    for nonce in ("x" * 43, None, 7, "é" * 43):
        async with login_rig({"claims": {"nonce": nonce}}) as (browser, _):
            await refused(browser, await browser.log_in(), 403, "(nonce)")


@pytest.mark.parametrize("iss", ["https://evil.example.com", None, ""])
async def test_the_answer_of_another_provider_is_a_mix_up(iss: str | None) -> None:
    """RFC 9207: an answer must name the issuer that promises to name itself."""
    async with login_rig({"answer": {"iss": iss}}) as (browser, provider):
        await refused(browser, await browser.log_in(), 403, "The login failed")
        assert provider.tokens == []


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"iss": "https://evil.example.com"}, "of another issuer"),
        ({"aud": "other"}, "ui.login.client_id"),
        ({"aud": [CLIENT_ID, "other"]}, "(azp)"),
        ({"aud": [CLIENT_ID, "other"], "azp": "other"}, "(azp)"),
        ({"azp": "other"}, "(azp)"),
        ({"exp": 1_000_000}, "has expired"),
        ({"exp": None}, "has no expiry"),
        ({"iat": time.time() + 3600}, "not valid yet"),
        ({"sub": None}, "has no claim sub"),
    ],
)
async def test_id_tokens_that_do_not_fit(claims: dict[str, Any], words: str) -> None:
    """OpenID Connect Core 1.0, section 3.1.3.7: issuer, audience, authorized party and times are checked."""
    async with login_rig({"claims": claims}) as (browser, _):
        await refused(browser, await browser.log_in(), 403, words)


async def test_id_tokens_with_several_audiences_name_this_client() -> None:
    """Several audiences are accepted if the authorized party is this client."""
    async with login_rig({"claims": {"aud": [CLIENT_ID, "other"], "azp": CLIENT_ID}}) as (browser, _):
        assert (await browser.log_in()).status == 303


async def test_clocks_may_differ_by_the_leeway() -> None:
    """A token that expired within the leeway still signs in, for what is left of it."""
    async with login_rig({"lasts_s": -10}) as (browser, _):
        assert (await browser.log_in()).status == 303
        assert (await browser.data("session")).json["expires_at"] - time.time() <= 20


async def test_id_tokens_of_other_keys() -> None:
    """RFC 8725: a token that the provider did not sign, or that nobody signed, is refused."""
    async with login_rig({"signs": RSAKey.generate_key(2048)}) as (browser, _):
        await refused(browser, await browser.log_in(), 403, "signature")
    async with login_rig({"header": {"alg": "none"}}) as (browser, _):
        await refused(browser, await browser.log_in(), 403, "algorithm")


async def test_an_answer_without_an_id_token() -> None:
    """OAuth without OpenID Connect names nobody."""
    async with login_rig({"token_answer": {"id_token": None}}) as (browser, _):
        await refused(browser, await browser.log_in(), 503, "cannot log anybody in")


async def test_a_person_who_says_no() -> None:
    """The provider's refusal is shown as text, whatever stands in it."""
    answer = {"code": None, "error": "access_denied", "error_description": "<script>alert(1)</script>"}
    async with login_rig({"answer": answer}) as (browser, _):
        await refused(browser, await browser.log_in(), 403, "refused: access_denied")


@pytest.mark.parametrize(
    "query",
    ["", "code=x", "state=", "state=x&code=y", "state=x&state=y&code=z", "a" * 20_000, "&" * 200, "code=%ff"],
)
async def test_answers_of_strangers(query: str) -> None:
    """What belongs to no login changes nothing, and asks the provider for nothing."""
    async with login_rig() as (browser, provider):
        before = list(provider.asked)
        answer = await browser.get(f"/ui/login/done?{query[:7000]}")
        await refused(browser, answer, 400, "did not begin in this browser")
        assert provider.asked == before


async def test_cookies_that_nobody_signed() -> None:
    """A made-up cookie, that of a session, and one of another record's key begin no login."""
    async with login_rig() as (browser, provider), running(config_of(provider)) as other:
        stranger = LoginBrowser(other)
        address = await stranger.at_provider()
        foreign = stranger.cookies["toolrelay_login"]
        await browser.log_in()
        session = browser.cookies["toolrelay_ui"]
        for cookie in ("", "x", "a.b", session, foreign, "x" * 5000):
            one = LoginBrowser(browser.proxy, {"toolrelay_login": cookie})
            await refused(one, await one.back(address), 400, "did not begin in this browser")
        turned = LoginBrowser(browser.proxy, {"toolrelay_ui": foreign})
        assert (await turned.data("session")).status == 401


async def test_a_login_begins_no_session() -> None:
    """Session fixation: a session that a browser had before is replaced by a new one."""
    async with login_rig() as (browser, _):
        await browser.log_in()
        before = browser.cookies["toolrelay_ui"]
        await browser.log_in()
        assert browser.cookies["toolrelay_ui"] != before


@pytest.mark.parametrize(
    "then",
    [
        "https://evil.example.com",
        "//evil.example.com",
        "/ui/%2e%2e/other",
        "/ui/%2E./other",
        "/ui/../..//evil.example.com",
        "/\\evil.example.com",
        "/ui\\evil",
        "/uix",
        "/admin",
        "javascript:alert(1)",
        "/ui/login",
        "/ui/login/done",
        "/ui/api/session",
        "/ui/runs\r\nSet-Cookie: a=b",
        "/ui/runs#login=x",
        "/ui/" + "x" * 600,
        "",
    ],
)
async def test_a_login_ends_at_a_page_of_the_ui_alone(then: str) -> None:
    """Open redirect: any other address is replaced by the first page."""
    assert page_after(then) == "/ui/"
    async with login_rig() as (browser, _):
        answer = await browser.log_in(then)
        assert (answer.status, answer.header("location")) == (303, "/ui/")


async def test_pages_of_the_ui() -> None:
    """Filters stand in the address, and survive a login."""
    for page in ("/ui", "/ui/", "/ui/runs", "/ui/runs/run_1?section=why", "/ui/runs?q=a%20b&model=gpt*"):
        assert page_after(page) == page


async def test_only_a_navigation_begins_a_login() -> None:
    """What another site's page loads or posts is refused, and other methods are, too."""
    async with login_rig() as (browser, provider):
        for headers in (
            {"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
            {"Sec-Fetch-Dest": "iframe"},
        ):
            assert (await browser.get("/ui/login", headers)).status == 403
        for method in ("POST", "DELETE"):
            answer = await browser.proxy.ask(None, {}, method=method, path="/ui/login")
            assert answer.status == 405
        assert provider.asked == []
        assert browser.set == []


# Providers with troubles


async def test_a_provider_that_is_down_has_a_page() -> None:
    """The page says so; a key signs in meanwhile; the provider is asked again only after a few seconds."""
    async with login_rig({"down": True}) as (browser, provider):
        with capture_logs() as lines:
            for _ in range(3):
                answer = await browser.get("/ui/login")
                await refused(browser, answer, 503, "cannot log anybody in here now")
        assert answer.header("retry-after") == "5"
        assert len(provider.asked) == 1
        assert [line["event"] for line in lines].count("login_provider_unread") == 1
        assert (await browser.data("session", "POST", {"key": ADMIN})).status == 200


async def test_a_provider_that_goes_down_during_a_login() -> None:
    """The exchange of the code fails with a page, and the login can be tried again."""
    async with login_rig() as (browser, provider):
        address = await browser.at_provider()
        provider.down = True
        await refused(browser, await browser.back(address), 503, "cannot log anybody in here now")
        provider.down = False
        assert (await browser.log_in()).status == 303


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://evil.example.com"},
        {"authorization_endpoint": None},
        {"authorization_endpoint": "http://login.example.com/authorize"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"token_endpoint": None},
        {"token_endpoint_auth_methods_supported": ["private_key_jwt"]},
    ],
)
async def test_metadata_that_cannot_be_used(metadata: dict[str, Any]) -> None:
    """A provider that does not show what a login needs, or another's name, is not used."""
    async with login_rig({"metadata": metadata}) as (browser, _):
        await refused(browser, await browser.get("/ui/login"), 503, "cannot log anybody in here now")


async def test_a_wrong_secret_is_the_operators_matter() -> None:
    """The page does not show what the provider said about the client; the log does."""
    async with login_rig() as (browser, provider):
        provider.secret = "another"
        with capture_logs() as lines:
            await refused(browser, await browser.log_in(), 503, "cannot log anybody in here now")
        assert "invalid_client" in str(lines)
        assert CLIENT_SECRET not in str(lines)


async def test_a_provider_that_announces_no_pkce_is_used_with_it() -> None:
    """Some providers support PKCE without announcing it; the challenge is sent in any case."""
    async with login_rig({"metadata": {"code_challenge_methods_supported": None}}) as (browser, _):
        assert (await browser.log_in()).status == 303


# Logging out


async def test_signing_out_leads_to_the_providers_own_logout() -> None:
    """RP-initiated logout: the page goes to the provider with this client, and comes back."""
    async with login_rig() as (browser, provider):
        await browser.log_in()
        answer = await browser.data("session", "DELETE")
        address = answer.json["continue_at"]
        assert address.startswith(f"{provider.url}/logout?")
        assert asked_of(address) == {"client_id": CLIENT_ID, "post_logout_redirect_uri": f"{URL}/ui/"}
        assert (await browser.data("session")).status == 401


@pytest.mark.parametrize("address", [None, "javascript:alert(1)", "http://id.example.com/logout"])
async def test_a_provider_without_a_logout_page(address: str | None) -> None:
    """Then the session here ends, and nothing else."""
    async with login_rig({"metadata": {"end_session_endpoint": address}}) as (browser, _):
        await browser.log_in()
        assert (await browser.data("session", "DELETE")).status == 204


async def test_who_came_with_a_key_goes_nowhere() -> None:
    """Signing out of a session that a key opened does not lead to the provider."""
    async with login_rig() as (browser, _):
        await browser.data("session", "POST", {"key": ADMIN})
        assert (await browser.data("session", "DELETE")).status == 204


async def test_without_a_provider_there_is_no_login() -> None:
    """The paths are pages like any other, and nothing is offered."""
    async with running(
        make_config("http://127.0.0.1:9/v1", keys={"boss": declared(ADMIN, admin=True)})
    ) as proxy:
        browser = LoginBrowser(proxy)
        assert (await browser.data("login")).json == {"object": "ui.login", "provider": None, "address": None}
        answer = await browser.get("/ui/login")
        assert (answer.status, answer.header("content-type")) == (200, "text/html; charset=utf-8")
