"""What stands at ``/``: what this server is, for whoever types its address into a browser.

It says the same whatever the server's mode is, and nothing that its reader does not know but what it is.
"""

import html
import json
from typing import Final

from aiohttp import hdrs, web

from proxy.server.edge_request import EdgeRequest
from proxy.server.page_guard import host_name

__all__ = ["front_page"]

_WHAT: Final = "an OpenAI-compatible API"
_KEY: Final = "the key that the operator of this server gave you, or the start token that it printed"
_DOCS: Final = "the README of toolrelay, and toolrelay --help where it runs"
_PAGE: Final = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>toolrelay</title>
<h1>toolrelay</h1>
<p>This is {what}. It is for programs; there is nothing here to look at.
<p>In a client, set the base URL to <code>{base_url}</code>
and the API key to {key}. An open server takes any key.
<p>More is in {docs}.
"""
_HEADERS: Final = {
    # Nothing in it may run or load, or be framed by a page that wants it clicked.
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # It names the address that its reader called.
    "Cache-Control": "no-store",
    "Vary": "Accept",
}


def front_page(request: EdgeRequest) -> web.Response:
    """A page for browsers, one JSON object for all others."""
    base_url = _base_url(request)
    if "text/html" in request.headers.get(hdrs.ACCEPT, "").lower():
        text = _PAGE.format(what=_WHAT, base_url=html.escape(base_url), key=_KEY, docs=_DOCS)
        return web.Response(text=text, content_type="text/html", headers=_HEADERS)
    said = {"name": "toolrelay", "what": _WHAT, "base_url": base_url, "api_key": _KEY, "docs": _DOCS}
    return web.Response(text=json.dumps(said), content_type="application/json", headers=_HEADERS)


def _base_url(request: EdgeRequest) -> str:
    """What a client would call: the address that this request was sent to, as far as it can be known."""
    hosts = request.headers.getall(hdrs.HOST, ())
    if len(hosts) != 1 or not host_name(hosts[0]):
        return "/v1"
    # Whoever makes this up shows it to nobody else.
    secure = request.headers.get("X-Forwarded-Proto", "").strip().lower() == "https"
    return f"{'https' if secure else 'http'}://{hosts[0].lower()}/v1"
