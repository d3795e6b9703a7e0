"""``/docs/errors``: the proxy serves a page about each of its errors."""

import base64
import hashlib
import re
from typing import Any

import pytest
from client_keys import ALICE, declared
from raw_upstream import RawUpstream, whole
from running_proxy import Proxy, make_config, running

from proxy import __version__
from proxy.base.error_codes import ERRORS, docs_path

HTML = ("Accept", "text/html,application/xhtml+xml,*/*;q=0.8")
SECTIONS: dict[str, dict[str, Any]] = {
    "open": {"auth": {"mode": "open"}},
    "start token": {"auth": {"mode": "auto"}},
    "keys": {"keys": {"alice": declared(ALICE)}},
    "forward": {"auth": {"mode": "forward"}},
}


async def page(proxy: Proxy, path: str, *headers: tuple[str, str]) -> Any:
    """Ask for a path without a key."""
    return await proxy.ask(None, headers, method="GET", path=path)


def config_of(mode: str) -> Any:
    """Return the configuration of a server with this kind of authentication."""
    return make_config({"base_url": "http://127.0.0.1:9/v1"}, **SECTIONS[mode])


@pytest.mark.parametrize("mode", SECTIONS)
async def test_an_error_leads_to_its_page(mode: str) -> None:
    """The body and the Link header of an error have the address of its page, which needs no key."""
    async with running(config_of(mode)) as proxy:
        refused = await proxy.ask(b"{", path="/v1/chat/completions")
        assert refused.status in (400, 401)
        address = refused.error["doc_url"]
        assert address.startswith(f"http://127.0.0.1:{proxy.port}/docs/errors/")
        assert refused.header("link") == f'<{address}>; rel="help"'
        shown = await page(proxy, address.partition(str(proxy.port))[2])
        assert shown.status == 200
        assert shown.body.decode().startswith(refused.error["code"] or str(refused.status))


@pytest.mark.parametrize("name", ERRORS)
async def test_each_code_has_a_page(name: str) -> None:
    """A page has its code, its statuses, what happened and what to do, without the marks of Markdown."""
    async with running(config_of("keys")) as proxy:
        error = ERRORS[name]
        text = (await page(proxy, f"/docs/errors/{name}")).body.decode()
        assert text.startswith(name if error.code else "no code")
        assert all(str(status) in text for status in error.statuses)
        assert "What happened: " in text
        assert ("What to do: " in text) == bool(error.remedy)
        html = (await page(proxy, f"/docs/errors/{name}", HTML)).body.decode()
        assert f"<title>{name if error.code else 'no code'}" in html
        assert __version__ in html
        for shown in (text, html):
            assert "`" not in shown
            assert "](" not in shown


async def test_all_are_on_one_page() -> None:
    """``/docs/errors`` lists all codes, each with a link to its page."""
    async with running(config_of("keys")) as proxy:
        for path in ("/docs/errors", "/docs/errors/"):
            html = (await page(proxy, path, HTML)).body.decode()
            assert re.findall(r'<a href="/docs/errors/(\w+)">', html) == list(ERRORS)
            text = (await page(proxy, path)).body.decode()
            assert text.count("What happened: ") == len(ERRORS)


async def test_a_page_runs_and_loads_nothing() -> None:
    """The content security policy of a page allows nothing but the one style in the page."""
    async with running(config_of("keys")) as proxy:
        answer = await page(proxy, "/docs/errors/rate_limit_exceeded", HTML)
        style = re.search(rb"<style>(.*)</style>", answer.body)
        assert style is not None
        digest = base64.b64encode(hashlib.sha256(style[1]).digest()).decode()
        policy = answer.header("content-security-policy") or ""
        assert policy.startswith("default-src 'none'; ")
        assert policy.endswith(f"; style-src 'sha256-{digest}'")
        assert "frame-ancestors 'none'" in policy
        assert answer.header("x-content-type-options") == "nosniff"
        assert b"<script" not in answer.body


@pytest.mark.parametrize("name", ["context_length_exceeded", "a/b", "%3Cb%3E", "x" * 200])
async def test_a_code_of_somebody_else_has_none(name: str) -> None:
    """An unknown code gets a 404 in JSON, which says that the code may be the model provider's."""
    async with running(config_of("keys")) as proxy:
        answer = await page(proxy, f"/docs/errors/{name}", HTML)
        assert answer.status == 404
        assert answer.header("content-type") == "application/json"
        assert answer.error["code"] == "not_found"
        assert "It may be the model provider's" in answer.error["message"]


@pytest.mark.parametrize("mode", SECTIONS)
async def test_a_reader_may_follow_a_link_from_another_site(mode: str) -> None:
    """A browser may follow a link of another site to a page, but a script of that site gets a 403."""
    async with running(config_of(mode)) as proxy:
        elsewhere = ("Sec-Fetch-Site", "cross-site")
        link = (elsewhere, ("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "document"))
        assert (await page(proxy, "/docs/errors/not_found", HTML, *link)).status == 200
        script = (elsewhere, ("Sec-Fetch-Mode", "cors"), ("Sec-Fetch-Dest", "empty"))
        assert (await page(proxy, "/docs/errors/not_found", *script)).status == 403


async def test_no_host_no_address() -> None:
    """Without a valid ``Host`` the Link header has only a path, and the body has no address."""
    async with running(config_of("keys")) as proxy, proxy.connect() as connection:
        connection.writer.write(b"GET /v1/models HTTP/1.1\r\nHost: <b>\r\n\r\n")
        answer = await connection.answer()
        assert answer.status >= 400
        assert "doc_url" not in answer.error
        assert (answer.header("link") or "").startswith("</docs/errors/")
        assert b"<b>" not in answer.body


async def test_an_upstreams_own_error_leads_nowhere() -> None:
    """An upstream's error passes unchanged, without a link to a page of the proxy."""
    body = b'{"error":{"message":"No.","type":"t","param":null,"code":"model_not_found"}}'
    async with (
        RawUpstream(whole(body, status="404 Not Found")) as upstream,
        running(make_config({"base_url": upstream.url})) as proxy,
    ):
        answer = await proxy.ask({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
        assert (answer.status, answer.body) == (404, body)
        assert answer.header("link") is None


def test_codes_of_others_lead_nowhere() -> None:
    """A code outside the table has no page, and an error without a code has the page of its status."""
    assert docs_path("model_not_found", 404) == "/docs/errors/model_not_found"
    assert docs_path(None, 414) == "/docs/errors/414"
    assert docs_path(None, 418) == "/docs/errors"
    assert docs_path("context_length_exceeded", 400) == ""
