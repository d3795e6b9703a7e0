"""What the server tells everybody about itself: what it is, at ``/``, and whether it is healthy.

The text is the same in every mode, and tells a reader nothing but what this server is.
"""

import html
import json
from typing import Final

from aiohttp import hdrs, web

from proxy.base.errors import RequestError
from proxy.server.messages.errors import ERROR_CODE
from proxy.server.messages.own_address import own_origin
from proxy.server.messages.request import EdgeRequest

_WHAT: Final = "an OpenAI-compatible API"
_OLLAMA: Final = "Ollama is running"
"""The words of an Ollama server at ``/``."""
_KEY: Final = (
    "the key that the operator of this server gave you, or the start token that the server printed; "
    "an open server accepts any value"
)
_DOCS: Final = (
    "the README of toolrelay, its folder docs, and toolrelay --help on the server; /docs/errors explains "
    "each error"
)
_UI: Final = '; what people look at is the <a href="/ui">web UI</a>'
_PAGE: Final = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>toolrelay</title>
<h1>toolrelay</h1>
<p>This is {what}. It is for programs{ui}.
<p>In a client, set the base URL to <code>{base_url}</code>
and the API key to {key}.
<p>More is in {docs}.
"""
_HEADERS: Final = {
    # Nothing in the page may run or load, and no other page may frame it for clickjacking.
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # The page names the address that its reader called.
    "Cache-Control": "no-store",
    "Vary": "Accept",
}


def front_page(request: EdgeRequest, *, has_ui: bool) -> web.Response:
    """Return a page for browsers, Ollama's own words for its clients, one JSON object for all others.

    The page links to the web UI if there is one.
    """
    base_url = _base_url(request)
    if "text/html" in request.headers.get(hdrs.ACCEPT, "").lower():
        ui = _UI if has_ui else "; there is nothing here to look at"
        text = _PAGE.format(what=_WHAT, ui=ui, base_url=html.escape(base_url), key=_KEY, docs=_DOCS)
        return web.Response(text=text, content_type="text/html", headers=_HEADERS)
    if _asks_for_ollama(request):
        return web.Response(text=_OLLAMA, content_type="text/plain", headers=_HEADERS)
    said = {"name": "toolrelay", "what": _WHAT, "base_url": base_url, "api_key": _KEY, "docs": _DOCS}
    return web.Response(text=json.dumps(said), content_type="application/json", headers=_HEADERS)


def _asks_for_ollama(request: EdgeRequest) -> bool:
    """Return whether a client looks for an Ollama server: several accept no other answer from one."""
    accepted = request.headers.get(hdrs.ACCEPT, "").lower()
    return request.headers.get(hdrs.USER_AGENT, "").lower().startswith("ollama") or accepted.startswith(
        "text/plain"
    )


def not_found_error(request: EdgeRequest, path: str) -> RequestError:
    """Return the error for a path outside of the API; most such clients have a base URL without ``/v1``."""
    base_url = _base_url(request)
    return RequestError(
        404,
        f"There is no endpoint at {path[:100]}. The API is below /v1: set the client's base URL to "
        f"{base_url} (of an Azure client, azure_endpoint to "
        f"{base_url.removesuffix('/v1') or 'the same without /v1'}).",
        code="not_found",
    )


def health(state: str, **parts: str) -> web.Response:
    """Return a state for probes: 200 for ``ok``, else 503; the log names the failure by its state.

    ``parts`` are the states of what the server uses.
    """
    response = web.json_response({"status": state, **parts}, status=200 if state == "ok" else 503)
    if state != "ok":
        response[ERROR_CODE] = state.replace(" ", "_")
    return response


def _base_url(request: EdgeRequest) -> str:
    """Return the base URL for a client: the address that this request was sent to, as far as it is known."""
    return f"{own_origin(request.head)}/v1"
