"""Sign-in to the web UI: by key or link, for its own origin only, and only while the key is valid."""

import json
import time
from typing import Any

import pytest
from client_keys import declared, made
from running_proxy import Proxy, make_config, running
from structlog.testing import capture_logs
from ui_rig import ADMIN, CLIENT, Browser, ui_proxy

from proxy.ui.sessions import Sessions, login_code, signing_key

GETS = ("runs", "runs/run_1", "compare", "tools", "mcp", "keys", "usage", "upstreams", "settings", "health")


async def code_of(proxy: Proxy, **how: float) -> str:
    """Return a code for a link, as ``toolrelay ui`` makes it from the store."""
    _, hash_key = await proxy.services.store.hash_key()
    return login_code(signing_key(hash_key), now=time.time() + how.get("later_s", 0.0))


async def test_an_administrators_key_is_exchanged_for_a_cookie() -> None:
    """An administrator gets a cookie for paths below ``/ui`` only, hidden from scripts and other sites."""
    async with ui_proxy() as (browser, _):
        assert (await browser.get("session")).status == 401
        answer = await browser.send("POST", "session", {"key": ADMIN})
        assert answer.status == 200
        said = answer.json
        assert (said["object"], said["name"], said["role"], said["via"]) == (
            "ui.session",
            "boss",
            "admin",
            "key",
        )
        assert ADMIN not in answer.body.decode()
        cookie = answer.header("set-cookie") or ""
        parts = cookie.split("; ")
        assert {"Path=/ui", "HttpOnly", "SameSite=Strict"} <= set(parts)
        assert parts[0].startswith("toolrelay_ui=")
        assert "Secure" not in parts
        assert answer.header("cache-control") == "no-store"
        assert (await browser.get("session")).json["name"] == "boss"
        assert (await browser.get("runs")).status == 200


async def test_over_https_the_cookie_is_sent_by_https_alone() -> None:
    """If the browser's origin is https, the cookie is marked as secure."""
    async with ui_proxy() as (browser, _):
        host = f"127.0.0.1:{browser.proxy.port}"
        answer = await browser.send(
            "POST", "session", {"key": ADMIN}, {"Origin": f"https://{host}", "Host": host}
        )
        assert answer.status == 200
        cookie = answer.header("set-cookie") or ""
        assert cookie.startswith("__Secure-toolrelay_ui=")
        assert "Secure" in cookie.split("; ")
        assert (await browser.get("runs")).status == 200


async def test_nobody_signs_in_in_the_clear_from_another_machine() -> None:
    """Sign-in over plain HTTP from another machine is refused, as others could read the session."""
    async with ui_proxy(server={"host": "0.0.0.0"}) as (browser, _):
        host = f"192.0.2.1:{browser.proxy.port}"
        answer = await browser.send(
            "POST", "session", {"key": ADMIN}, {"Origin": f"http://{host}", "Host": host}
        )
        assert (answer.status, answer.error["code"]) == (403, "insecure_sign_in")


async def test_a_link_signs_in_once_and_not_for_long() -> None:
    """A code works once, within its minute, and only if it was made with the store's own key."""
    async with ui_proxy() as (browser, _):
        code = await code_of(browser.proxy)
        answer = await browser.send("POST", "session", {"code": code})
        assert (answer.status, answer.json["name"], answer.json["via"]) == (200, "operator", "link")
        assert (await browser.get("runs")).status == 200
        for bad in (
            code,
            await code_of(browser.proxy, later_s=-61),
            login_code(b"k" * 32, now=9e9),
            "x",
            "é",
        ):
            other = Browser(browser.proxy)
            refused = await other.send("POST", "session", {"code": bad})
            assert (refused.status, refused.error["code"]) == (401, "sign_in_failed")
            assert refused.header("set-cookie") is None


async def test_a_cookie_is_no_code_and_a_code_no_cookie() -> None:
    """A cookie does not work as a code, and a code does not work as a cookie."""
    async with ui_proxy() as (browser, _):
        await browser.sign_in()
        cookie = browser.cookie.partition("=")[2]
        assert (await Browser(browser.proxy).send("POST", "session", {"code": cookie})).status == 401
        browser.cookie = f"toolrelay_ui={await code_of(browser.proxy)}"
        assert (await browser.get("runs")).status == 401


async def test_keys_that_open_nothing_here_are_refused_alike() -> None:
    """A client's key, an unknown key and an empty one get the same refusal."""
    async with ui_proxy() as (browser, _):
        answers = [await browser.send("POST", "session", {"key": key}) for key in (CLIENT, "tr_unknown", "")]
        assert {answer.status for answer in answers} == {401}
        assert len({answer.body for answer in answers}) == 1


async def test_failed_sign_ins_are_few() -> None:
    """After five failed sign-ins from an address in a minute, a wrong key gets a 429 without a log line."""
    async with ui_proxy() as (browser, _):
        for _ in range(5):
            assert (await browser.send("POST", "session", {"key": "tr_wrong"})).status == 401
        with capture_logs() as lines:
            answer = await browser.send("POST", "session", {"key": "tr_wrong"})
        assert (answer.status, answer.error["code"]) == (429, "too_many_sign_ins")
        assert 1 <= int(answer.header("retry-after") or "") <= 61
        assert not [line for line in lines if line["event"] == "ui_sign_in_failed"]


@pytest.mark.parametrize("by_link", [False, True], ids=["key", "link"])
async def test_nobody_locks_an_address_out(by_link: bool) -> None:
    """After any number of failed sign-ins from an address, a key or link that is right still signs in."""
    async with ui_proxy() as (browser, _):
        for _ in range(9):
            await browser.send("POST", "session", {"key": "tr_wrong"})
            await browser.send("POST", "session", {"code": "x" * 44})
        said = {"key": ADMIN}
        if by_link:
            _, hash_key = await browser.proxy.services.store.hash_key()
            said = {"code": login_code(signing_key(hash_key), now=time.time())}
        assert (await browser.send("POST", "session", said)).status == 200


@pytest.mark.parametrize("path", GETS)
async def test_nothing_is_read_without_a_session(path: str) -> None:
    """A request without a cookie, or with an invalid one, gets a 401."""
    async with ui_proxy() as (browser, _):
        for cookie in ("", "toolrelay_ui=x", "toolrelay_ui=a.b", "toolrelay_ui=e30.AAAA", "other=1"):
            browser.cookie = cookie
            answer = await browser.get(path)
            assert (answer.status, answer.error["code"]) == (401, "not_signed_in")
            assert answer.header("cache-control") == "no-store"
            assert answer.header("content-security-policy")


@pytest.mark.parametrize("path", GETS)
async def test_nothing_is_read_from_another_sites_page(path: str) -> None:
    """A page of another origin gets a 403 even with its reader's cookie."""
    async with ui_proxy(server={"cors_origins": ["http://localhost:3000"]}) as (browser, _):
        await browser.sign_in()
        for headers in (
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"},
            {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-origin"},
            {"Origin": "null"},
        ):
            answer = await browser.get(path, headers)
            assert answer.status == 403, headers


@pytest.mark.parametrize(
    "headers",
    [
        {"x-toolrelay-ui": None},
        {"x-toolrelay-ui": "0"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
    ],
)
async def test_nothing_is_changed_from_another_sites_page(headers: dict[str, str | None]) -> None:
    """A write is refused unless it has the page's own header and comes from the proxy's own origin."""
    async with ui_proxy() as (browser, _):
        await browser.sign_in()
        for method, path, body in (
            ("POST", "session", {"key": ADMIN}),
            ("DELETE", "session", None),
            ("POST", "runs/run_1/replay", {}),
        ):
            assert (await browser.send(method, path, body, headers)).status == 403
        assert (await browser.get("session")).status == 200


async def test_a_form_changes_nothing() -> None:
    """A write whose body is not JSON gets a 415."""
    async with ui_proxy() as (browser, _):
        answer = await browser.send("POST", "session", {"key": ADMIN}, {"Content-Type": "text/plain"})
        assert answer.status == 415


async def test_the_cookie_is_good_for_nothing_else() -> None:
    """The API, ``/admin`` and ``/metrics`` ignore the cookie."""
    async with ui_proxy() as (browser, upstream):
        await browser.sign_in()
        headers = browser.headers(writes=False)
        for method, path in (("GET", "/v1/models"), ("GET", "/admin/runs"), ("GET", "/metrics")):
            assert (await browser.proxy.ask(None, headers, method=method, path=path)).status == 401
        answer = await browser.proxy.ask({"model": "m"}, headers)
        assert answer.status == 401
        assert not upstream.requests


async def test_signing_out_ends_the_session_for_good() -> None:
    """After signing out a copy of the cookie does not work either."""
    async with ui_proxy() as (browser, _):
        await browser.sign_in()
        kept = browser.cookie
        answer = await browser.send("DELETE", "session")
        assert answer.status == 204
        assert "Max-Age=0" in (answer.header("set-cookie") or "")
        assert browser.cookie == ""
        browser.cookie = kept
        assert (await browser.get("runs")).status == 401


async def test_a_session_ends_with_its_key() -> None:
    """The next request after the key's revocation is refused."""
    async with ui_proxy() as (browser, _):
        store = browser.proxy.services.store
        secret = await made(store, "temp", admin=True)
        await browser.sign_in(secret)
        assert (await browser.get("runs")).status == 200
        (key,) = (await store.read_keys()).keys
        assert await store.revoke_key(key.id)
        assert (await browser.get("runs")).status == 401


async def test_every_worker_knows_a_session(tmp_path: Any) -> None:
    """Servers on one store accept each other's sessions and codes, and know each other's sign-outs."""
    keys = {"boss": declared(ADMIN, admin=True)}
    store = {"url": f"sqlite:///{tmp_path / 'r.db'}"}
    config = make_config("http://127.0.0.1:9/v1", keys=keys, store=store)
    async with running(config) as one, running(config) as two:
        browser = await Browser(one).sign_in()
        elsewhere = Browser(two, browser.cookie)
        assert (await elsewhere.get("runs")).status == 200
        code = await code_of(one)
        assert (await Browser(two).send("POST", "session", {"code": code})).status == 200
        assert (await Browser(one).send("POST", "session", {"code": code})).status == 401
        assert (await elsewhere.send("DELETE", "session")).status == 204
        assert (await browser.get("runs")).status == 401


class Keys:
    """An empty set of client keys."""

    async def find(self, secret: str) -> None:
        return None

    async def find_by_id(self, key_id: str) -> None:
        return None


class Marks:
    """Marks that never expire."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    async def mark_once(self, name: str, until: float) -> bool:
        new = name not in self.names
        self.names.add(name)
        return new

    async def is_marked(self, name: str) -> bool:
        return name in self.names


async def test_sessions_end_by_the_clock() -> None:
    """A session ends after an hour without use, or at its full age; one from the future is invalid."""
    now = [1000.0]
    sessions = Sessions(b"k" * 32, Keys(), Marks(), lasts_s=3 * 3600, now=lambda: now[0])
    session = await sessions.by_code(sessions.code())
    assert session is not None
    cookie = sessions.cookie(session)
    now[0] += 3599
    assert await sessions.by_cookie(cookie) == session
    renewed = sessions.renewed(session)
    assert renewed is not None
    now[0] += 2
    assert await sessions.by_cookie(cookie) is None
    assert await sessions.by_cookie(sessions.cookie(renewed)) == renewed
    for _ in range(4):
        now[0] += 3000
        renewed = sessions.renewed(renewed) or renewed
    assert await sessions.by_cookie(sessions.cookie(renewed)) is None
    now[0] = 1000.0 - 120
    assert await sessions.by_cookie(cookie) is None


async def test_what_is_signed_cannot_be_changed() -> None:
    """A cookie with any changed character is invalid."""
    now = [1000.0]
    sessions = Sessions(b"k" * 32, Keys(), Marks(), lasts_s=3600, now=lambda: now[0])
    session = await sessions.by_code(sessions.code())
    assert session is not None
    cookie = sessions.cookie(session)
    for place in range(len(cookie)):
        changed = cookie[:place] + ("A" if cookie[place] != "A" else "B") + cookie[place + 1 :]
        # The last character of base64 may have unused bits.
        assert place in (len(cookie) - 1, cookie.index(".") - 1) or await sessions.by_cookie(changed) is None
    for odd in ("", ".", "a", "a.b.c", "x" * 5000, json.dumps({"n": 1}) + "."):
        assert await sessions.by_cookie(odd) is None
