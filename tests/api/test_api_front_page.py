"""The answer at ``/``: a page for a browser, a JSON object for all others, the same in every mode."""

from typing import Any

import pytest
from client_keys import ALICE, declared
from running_proxy import SERVER_KEY, Proxy, make_config, running

HTML = ("Accept", "text/html,application/xhtml+xml,*/*;q=0.8")
TYPED = ("Sec-Fetch-Site", "none")
SECTIONS: dict[str, dict[str, Any]] = {
    "open": {"auth": {"mode": "open"}},
    "start token": {"auth": {"mode": "auto"}},
    "keys": {"keys": {"alice": declared(ALICE, models=("gpt-canary",))}},
    "forward": {"auth": {"mode": "forward"}},
}


def config_of(mode: str, **server: Any) -> Any:
    """A configuration full of names that the front page must not show."""
    upstream = {"name": "canary-up", "base_url": "http://127.0.0.1:9/v1", "models": ("gpt-canary",)}
    return make_config(upstream, server=server, **SECTIONS[mode])


async def at_root(proxy: Proxy, *headers: tuple[str, str], method: str = "GET", path: str = "/") -> Any:
    """Send a request for the root and return the answer."""
    return await proxy.ask(None, headers, method=method, path=path)


@pytest.mark.parametrize("mode", SECTIONS)
async def test_a_browser_is_told_what_this_is(mode: str) -> None:
    """A browser gets a page with the base URL to set; its headers let the page run and load nothing."""
    async with running(config_of(mode)) as proxy:
        answer = await at_root(proxy, HTML, TYPED)
        assert answer.status == 200
        assert (answer.header("content-type") or "").startswith("text/html; charset=utf-8")
        text = answer.body.decode()
        for words in ("toolrelay", f"<code>http://127.0.0.1:{proxy.port}/v1</code>", "README", "API key"):
            assert words in text
        assert "default-src 'none'" in (answer.header("content-security-policy") or "")
        assert "frame-ancestors 'none'" in (answer.header("content-security-policy") or "")
        assert answer.header("cache-control") == "no-store"
        assert answer.header("x-content-type-options") == "nosniff"


@pytest.mark.parametrize("mode", SECTIONS)
async def test_others_get_an_object(mode: str) -> None:
    """Programs get the same facts as JSON; a query changes nothing, and DELETE is a 404."""
    async with running(config_of(mode)) as proxy:
        for headers in ((), (("Accept", "*/*"),), (("Accept", "application/json"),)):
            answer = await at_root(proxy, *headers)
            assert answer.status == 200
            assert answer.json["name"] == "toolrelay"
            assert answer.json["base_url"] == f"http://127.0.0.1:{proxy.port}/v1"
            assert "an open server accepts any" in answer.json["api_key"]
        assert (await at_root(proxy, path="/?token=x")).status == 200
        assert (await at_root(proxy, method="DELETE")).status == 404
        async with proxy.sent(method="HEAD", path="/") as asked:
            assert (await asked.head()).status == 200


@pytest.mark.parametrize("path", ["/chat/completions", "/models", "/v1"])
async def test_a_base_url_without_v1_is_told_what_it_should_be(path: str) -> None:
    """A request that misses the API's paths gets a 404 with the right base URL, for Azure's clients too."""
    async with running(config_of("keys", host="0.0.0.0")) as proxy:
        answer = await at_root(proxy, path=path)
        assert (answer.status, answer.error["code"]) == (404, "not_found")
        said, here = answer.error["message"], f"http://127.0.0.1:{proxy.port}"
        assert said.startswith(f"There is no endpoint at {path}. ")
        assert f"base URL to {here}/v1 " in said
        assert f"azure_endpoint to {here})" in said
        nameless = await at_root(proxy, ("Host", ""), path=path)
        assert "base URL to /v1 " in nameless.error["message"]


async def test_it_says_nothing_else() -> None:
    """The answer is the same in every mode, and shows no model, tool, upstream or key."""
    pages, objects = set(), set()
    for mode in SECTIONS:
        async with running(config_of(mode)) as proxy:
            page, said = await at_root(proxy, HTML), await at_root(proxy)
            port = str(proxy.port).encode()
            pages.add(page.body.replace(port, b"PORT"))
            objects.add(said.body.replace(port, b"PORT"))
    (page_of_all,), (object_of_all,) = pages, objects
    for word in (b"canary", b"core__", SERVER_KEY.encode(), ALICE.encode(), b"tr_", b"alice"):
        assert word not in page_of_all + object_of_all


async def test_the_address_is_the_one_that_was_called() -> None:
    """The base URL has the request's ``Host`` and forwarded scheme, but never a malformed ``Host``."""
    async with running(config_of("keys", host="0.0.0.0")) as proxy:
        for host, base_url in [
            ("llm.example.com", "http://llm.example.com/v1"),
            ("LLM.example.com:8080", "http://llm.example.com:8080/v1"),
            ("[fd00::2]:81", "http://[fd00::2]:81/v1"),
            ('"><script>alert(1)</script>', "/v1"),
            ("a b", "/v1"),
            ("x@evil.example", "/v1"),
            ("", "/v1"),
        ]:
            assert (await at_root(proxy, ("Host", host))).json["base_url"] == base_url, host
            page = (await at_root(proxy, ("Host", host), HTML)).body.decode()
            assert f"<code>{base_url}</code>" in page
            assert "script" not in page
        for said, scheme in (("https", "https"), ("https, http", "http"), ("javascript", "http")):
            headers = ("Host", "llm.example.com"), ("X-Forwarded-Proto", said)
            assert (await at_root(proxy, *headers)).json["base_url"] == f"{scheme}://llm.example.com/v1"


async def test_pages_of_other_sites_do_not_get_it() -> None:
    """A request from a page of another site, or with another ``Host``, gets a 403."""
    async with running(config_of("open")) as proxy:
        for headers in (
            ("Origin", "http://evil.example"),
            ("Sec-Fetch-Site", "cross-site"),
            ("Host", "evil"),
        ):
            assert (await at_root(proxy, headers)).status == 403


@pytest.mark.parametrize("served", [True, False])
async def test_a_browser_is_led_to_the_web_ui(served: bool) -> None:
    """The page links to /ui where that is served, and nowhere else."""
    config = make_config({"base_url": "http://127.0.0.1:9/v1"}, ui={"enabled": served}, auth={"mode": "open"})
    async with running(config) as proxy:
        text = (await at_root(proxy, HTML, TYPED)).body.decode()
        assert ('<a href="/ui">' in text) == served
        answer = await proxy.ask(None, (HTML, TYPED), method="GET", path="/ui")
        assert (answer.status < 400) == served


@pytest.mark.parametrize(
    "path", ["/v1/v1/messages", "/v1/v1/chat/completions", "/v1/v1/models", "/v1/v1/v1/x"]
)
async def test_v1_twice_is_told_the_right_base_url(path: str) -> None:
    """A client whose base URL has a /v1 too many is told how to end it, and nothing goes upstream."""
    async with running(config_of("open")) as proxy:
        for method in ("GET", "POST"):
            answer = await proxy.ask({"model": "gpt-canary"}, method=method, path=path)
            message = answer.json["error"]["message"]
            assert answer.status == 404
            assert "/v1 stands twice" in message
            assert "(http://HOST:PORT)" in message
            assert "(http://HOST:PORT/v1)" in message
