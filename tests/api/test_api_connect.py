"""An end user's own account: from the call that needs it, over link and login, to the call that has it."""

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from aiohttp import web
from api_documents import document, operation
from chat_script import reply
from in_process import serving_app
from oauth_rig import redirected
from oauth_server import OAuthServer
from oauth_server import running as running_oauth
from raw_upstream import RawRequest, RawUpstream, Step
from running_proxy import Answer, Proxy, make_config, running

from proxy.app.app import Overrides
from proxy.config.secret import Secret
from proxy.tools.mcp.pins import GivenPins, Pin
from proxy.tools.openapi.api import Api
from proxy.tools.openapi.document import read_document
from proxy.tools.openapi.operations import read_operations

PUBLIC = "http://localhost:1"
"""The address that links name; these tests follow them at the proxy's real port."""

TOOL = "openapi__crm__me"
PER_USER = {"grant": "authorization_code", "per_user": True, "scopes": ["read"]}
DOCUMENT = document(
    {"/me": {"get": operation("me")}},
    components={"securitySchemes": {"o": {"type": "oauth2", "flows": {}}}},
    security=[{"o": []}],
)


def model(request: RawRequest) -> list[Step]:
    """Answer as a model that calls the tool once and repeats its result."""
    messages = json.loads(request.body)["messages"]
    results = [str(message["content"]) for message in messages if message["role"] == "tool"]
    return reply(results[-1]) if results else reply(None, ("call_0", TOOL, "{}"))


@dataclass
class Crm:
    """A proxy with an API, its authorization server, and what the API was sent."""

    proxy: Proxy
    oauth: OAuthServer
    tokens: list[str] = field(default_factory=list)

    async def ask(self, user: str = "alice@example.com", **headers: str) -> str:
        """Ask for a user, and return what the model was told by the tool."""
        sent = {"x-user": user, **headers} if user else headers
        answer = await self.proxy.ask({"model": "m", "messages": [{"role": "user", "content": "me"}]}, sent)
        assert answer.status == 200, answer.body
        return str(answer.json["choices"][0]["message"]["content"])

    async def link(self, user: str = "alice@example.com") -> str:
        """Ask for a user who has not logged in, and return the path of the link."""
        told = await self.ask(user)
        found = re.search(rf"{PUBLIC}(/connect/crm\?t=[\w-]+)", told)
        assert found is not None, told
        assert "login_required" in told
        return found[1]


class Browser:
    """A browser with one cookie."""

    def __init__(self, proxy: Proxy, cookie: str = "") -> None:
        self.proxy = proxy
        self.cookie = cookie

    async def get(self, path: str) -> Answer:
        """Follow a link of another site, and keep the cookie."""
        headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        if self.cookie:
            headers["Cookie"] = self.cookie
        answer = await self.proxy.get(path, headers)
        if (given := answer.header("set-cookie")) is not None:
            self.cookie = given.partition(";")[0]
            assert "HttpOnly" in given
            assert "SameSite=Lax" in given
        return answer

    async def agree(self, link: str) -> str:
        """Open a link and agree; return the page of the authorization server."""
        page = await self.get(link)
        assert page.status == 200, page.body
        (on,) = re.findall(r'<a href="([^"]+)"', page.body.decode())
        begun = await self.get(on.replace("&amp;", "&"))
        assert begun.status == 303, begun.body
        return str(begun.header("location"))

    async def log_in(self, link: str) -> Answer:
        """Do all of it; return the last page."""
        back = await redirected(await self.agree(link))
        assert back.startswith(f"{PUBLIC}/connect/callback?")
        return await self.get(back.removeprefix(PUBLIC))


@asynccontextmanager
async def crm(oauth: OAuthServer | None = None, auth: Mapping[str, Any] | None = None) -> AsyncIterator[Crm]:
    """Run a proxy, an API that tells whose token it was sent, and an authorization server."""
    with TemporaryDirectory() as folder:
        async with _crm(folder, oauth, auth) as one:
            yield one


@asynccontextmanager
async def _crm(folder: str, oauth: OAuthServer | None, auth: Mapping[str, Any] | None) -> AsyncIterator[Crm]:
    tokens: list[str] = []

    async def me(request: web.Request) -> web.Response:
        token = request.headers["Authorization"].removeprefix("Bearer ")
        tokens.append(token)
        owners = [
            n for n, login in enumerate(server.logins) if login.access_token == token and not login.ended
        ]
        return web.json_response({"account": owners[0]}) if owners else web.Response(status=401)

    app = web.Application()
    app.router.add_get("/me", me)
    async with (
        running_oauth(oauth) as server,
        serving_app(app) as api,
        RawUpstream(model) as upstream,
    ):
        own = Api("crm", base_url=api.rstrip("/"), connection="crm")
        found = read_operations(read_document(json.dumps(DOCUMENT).encode(), "s"), own)
        pins = GivenPins([Pin(definition, own.identity, 0.0) for definition in found.definitions])
        config = make_config(
            upstream.url,
            allow=("openapi__*",),
            tools={"networks": ["127.0.0.0/8"]},
            openapi={"crm": {"file": "crm.json", "base_url": own.base_url, "connection": "crm"}},
            credentials={
                "crm": {
                    "grant": "authorization_code",
                    "per_user": True,
                    "issuer": server.url,
                    "scopes": ["read"],
                }
            },
            store={"url": f"sqlite:///{folder}/record.db", "seal_key": Secret("env:K", "ab" * 32)},
            server={"public_url": PUBLIC},
            auth=auth or {"end_user": "header:x-user"},
        )
        async with running(config, Overrides(pins=pins)) as proxy:
            yield Crm(proxy, server, tokens)


async def test_a_user_logs_in_at_the_link_of_a_failed_call() -> None:
    """The first call gives a link, the login at it is the user's, and the next call has the account."""
    async with crm() as one:
        link = await one.link()
        done = await Browser(one.proxy).log_in(link)
        assert done.status == 200
        assert b"Logged in to crm" in done.body
        assert await one.ask() == '{"account":0}'
        assert one.tokens == [one.oauth.logins[0].access_token]


async def test_nobody_gets_the_account_of_another() -> None:
    """Each user has a link and a login of their own; a user who has none gets a link, never a token."""
    async with crm() as one:
        await Browser(one.proxy).log_in(await one.link("alice"))
        assert "login_required" in await one.ask("bob")
        await Browser(one.proxy).log_in(await one.link("bob"))
        assert await one.ask("alice") == '{"account":0}'
        assert await one.ask("bob") == '{"account":1}'
        assert len(one.oauth.registered) == 1


async def test_a_shared_key_without_a_user_gets_neither_account_nor_link() -> None:
    """Where nobody knows who asks, there is no link that could bind anybody."""
    async with crm() as one:
        told = await one.ask("")
        assert "login_required" in told
        assert "/connect/" not in told
        assert "auth.end_user" in told
        assert one.tokens == []


async def test_the_page_says_whom_it_binds_and_asks() -> None:
    """The page names the user as the client does, escaped, and nothing happens before the reader agrees."""
    async with crm() as one:
        page = await Browser(one.proxy).get(await one.link("<b>eve</b>@example.com"))
        text = page.body.decode()
        assert "&lt;b&gt;eve&lt;/b&gt;@example.com" in text
        assert "<b>eve</b>" not in text
        assert "Go on only if this is you" in text
        assert one.oauth.url in text
        assert page.header("x-frame-options") == "DENY"
        assert "frame-ancestors 'none'" in str(page.header("content-security-policy"))
        assert page.header("cache-control") == "no-store"
        assert page.header("referrer-policy") == "no-referrer"
        assert [path for path in one.oauth.asked if "authorize" in path] == []


async def test_a_link_works_once() -> None:
    """After the login that it led to, a link leads nowhere, in any browser."""
    async with crm() as one:
        link = await one.link()
        await Browser(one.proxy).log_in(link)
        again = await Browser(one.proxy).get(link)
        assert again.status == 409
        assert b"This link was used" in again.body


async def test_a_link_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten minutes later a link does not work, and neither does an attempt that it began."""
    async with crm() as one:
        link, browser = await one.link(), Browser(one.proxy)
        back = await redirected(await browser.agree(link))
        logins = one.proxy.services.credentials
        assert logins is not None
        assert logins.logins is not None
        now = logins.logins._now()
        monkeypatch.setattr(logins.logins, "_now", lambda: now + 700)
        assert (await Browser(one.proxy).get(link)).status == 400
        assert (await browser.get(back.removeprefix(PUBLIC))).status == 400
        assert one.oauth.logins == []


@pytest.mark.parametrize("change", ["other connection", "one letter", "nothing", "twice"])
async def test_a_link_cannot_be_made_up(change: str) -> None:
    """A link is sealed for its connection and its person."""
    async with crm() as one:
        link = await one.link()
        made = {
            "other connection": link.replace("/crm?", "/other?"),
            "one letter": link[:-3] + ("A" if link[-3] != "A" else "B") + link[-2:],
            "nothing": link.partition("?")[0],
            "twice": f"{link}&{link.partition('?')[2]}",
        }[change]
        assert (await Browser(one.proxy).get(made)).status == 400


async def test_only_the_page_that_a_browser_was_shown_leads_on() -> None:
    """A page of a stranger cannot begin a login in its reader's browser (RFC 9700, 4.7)."""
    async with crm() as one:
        link = await one.link()
        page = (await Browser(one.proxy).get(link)).body.decode()
        (on,) = re.findall(r'<a href="([^"]+)"', page)
        other = Browser(one.proxy)
        assert (await other.get(on.replace("&amp;", "&"))).status == 200  # Without a cookie, it asks first.
        answer = await other.get(on.replace("&amp;", "&"))
        assert answer.status == 400
        assert one.oauth.registered == []


async def test_an_answer_in_another_browser_changes_nothing() -> None:
    """Who sends a victim the end of his own login gives him nothing (RFC 9700, 4.7)."""
    async with crm() as one:
        mallory, alice = Browser(one.proxy), Browser(one.proxy)
        back = await redirected(await mallory.agree(await one.link("mallory")))
        assert (await alice.get(back.removeprefix(PUBLIC))).status == 400
        await alice.get(await one.link("alice"))
        assert (await alice.get(back.removeprefix(PUBLIC))).status == 400
        assert one.oauth.logins == []
        assert (await mallory.get(back.removeprefix(PUBLIC))).status == 200


async def test_an_answer_is_taken_once() -> None:
    """A code that was seen is not taken again."""
    async with crm() as one:
        browser = Browser(one.proxy)
        back = (await redirected(await browser.agree(await one.link()))).removeprefix(PUBLIC)
        cookie = browser.cookie
        assert (await browser.get(back)).status == 200
        assert (await Browser(one.proxy, cookie).get(back)).status == 400
        assert len(one.oauth.logins) == 1


async def test_a_changed_state_is_refused() -> None:
    """An answer with another state is not of this attempt, which goes on."""
    async with crm() as one:
        browser = Browser(one.proxy)
        back = (await redirected(await browser.agree(await one.link()))).removeprefix(PUBLIC)
        assert (await browser.get(re.sub(r"state=[^&]+", "state=mine", back))).status == 400
        assert one.oauth.logins == []
        assert (await browser.get(back)).status == 200


async def test_an_answer_of_another_issuer_ends_the_attempt() -> None:
    """A mix-up of two authorization servers is noticed by ``iss`` (RFC 9207; RFC 9700, 4.4)."""
    async with crm(OAuthServer(iss="https://evil.example.com")) as one:
        browser = Browser(one.proxy)
        link = await one.link()
        back = (await redirected(await browser.agree(link))).removeprefix(PUBLIC)
        page = await browser.get(back)
        assert page.status == 502
        assert b"mix-up" in page.body
        assert one.oauth.forms == []
        assert "login_required" in await one.ask()


async def test_a_refusal_is_shown_and_not_believed() -> None:
    """What the authorization server says is shown escaped, and no login is kept."""
    async with crm(OAuthServer(refuses="<script>")) as one:
        page = await Browser(one.proxy).log_in(await one.link())
        assert page.status == 502
        assert b"<script>" not in page.body
        assert "login_required" in await one.ask()


async def test_tokens_are_refreshed_for_their_person_and_a_login_that_ended_gives_a_link() -> None:
    """A refused token is refreshed, with rotation; when the login has ended, the user gets a link."""
    async with crm() as one:
        await Browser(one.proxy).log_in(await one.link("alice"))
        await Browser(one.proxy).log_in(await one.link("bob"))
        assert await one.ask("alice") == '{"account":0}'
        one.oauth.logins[0].access_token = "rotated away"
        refreshers = one.proxy.services.credentials
        assert refreshers is not None
        for refresher in refreshers.broker._of_people.values():
            refresher._refreshed_at -= 60
        assert await one.ask("alice") == '{"account":0}'
        assert [form["grant_type"] for form in one.oauth.forms] == ["authorization_code"] * 2 + [
            "refresh_token"
        ]
        one.oauth.logins[0].ended = True
        for refresher in refreshers.broker._of_people.values():
            refresher._refreshed_at -= 60
        assert "login_required" in await one.ask("alice")
        assert await one.ask("bob") == '{"account":1}'


async def test_nothing_of_a_login_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    """Neither answers nor log have a token, a code, a verifier or a link's secret."""
    async with crm() as one:
        link = await one.link()
        page = await Browser(one.proxy).log_in(link)
        told = await one.ask()
        runs = await one.proxy.runs()
    out, err = capfd.readouterr()
    secrets = [
        one.oauth.logins[0].access_token,
        one.oauth.logins[0].refresh_token,
        *one.oauth.forms[0].values(),
    ]
    for secret in [each for each in secrets if len(each) > 20 and not each.startswith("http")]:
        for text in (page.body.decode(), told, str(runs), out, err):
            assert secret not in text
    assert link.partition("t=")[2] not in out + err


async def test_without_such_a_connection_there_are_no_pages() -> None:
    """The paths exist only where a connection is per user."""
    async with RawUpstream(model) as upstream, running(make_config(upstream.url)) as proxy:
        assert (await proxy.get("/connect/crm?t=x")).status == 404


async def test_other_methods_are_refused() -> None:
    """The pages only read."""
    async with crm() as one, one.proxy.client.post("/connect/crm", json={}) as answer:
        assert answer.status == 405
