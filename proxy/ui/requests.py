"""Check requests below ``/ui/api``: their origin, their cookie and their body."""

from collections.abc import Mapping
from typing import Any, Final

import orjson
from aiohttp import hdrs
from multidict import istr

from proxy.base.errors import RequestError
from proxy.http.own_headers import UI_PROOF
from proxy.server.messages.body import read_body
from proxy.server.messages.request import EdgeRequest
from proxy.server.middleware.page_guard import is_loopback_name, is_own_origin
from proxy.ui.cookies import values_of

COOKIE: Final = "toolrelay_ui"
SECURE_COOKIE: Final = "__Secure-toolrelay_ui"
"""The cookie's name over HTTPS; browsers accept it only over HTTPS."""

_COOKIES: Final = frozenset({COOKIE, SECURE_COOKIE})
_PROOF: Final = istr(UI_PROOF)
_SITE: Final = istr("Sec-Fetch-Site")
_MAX_COOKIES: Final = 4
_MAX_BODY: Final = 16 * 1024
_BODY_S: Final = 10.0
_KINDS: Final[Mapping[type, str]] = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    type(None): "null",
}
_READS: Final = frozenset({"GET", "HEAD"})


def check_origin(request: EdgeRequest) -> None:
    """Refuse a request that a page of another site may have sent with the user's cookie.

    A page of another origin cannot set the header ``x-toolrelay-ui`` without a preflight request, and
    browsers name the origin of a page. Pages of ``server.cors_origins`` are refused, too: they may use only
    the API.
    Raises :class:`~proxy.base.errors.RequestError` (403, 415).
    """
    headers = request.headers
    site = request.head.listed(_SITE)
    origins = headers.getall(hdrs.ORIGIN, ())
    host = headers.get(hdrs.HOST, "").lower()
    own = all(is_own_origin(origin, host) for origin in origins) and len(origins) <= 1
    reads = request.method in _READS
    if not own or (site and site != ["same-origin"] and not (reads and site == ["none"])):
        raise _refused("only the pages of this proxy may call this path")
    if reads:
        return
    if headers.getall(_PROOF, ()) != ["1"]:
        raise _refused("a request that changes something needs the header x-toolrelay-ui: 1")
    kind = headers.get(hdrs.CONTENT_TYPE, "").partition(";")[0].strip().lower()
    if request.body_exists and kind != "application/json":
        raise RequestError(
            415,
            "Send JSON with Content-Type: application/json.",
            param="Content-Type",
            code="content_type_not_allowed",
        )


def is_secure(request: EdgeRequest) -> bool:
    """Return whether the browser reached the server over HTTPS, according to its ``Origin`` header.

    Raises :class:`~proxy.base.errors.RequestError` (403) if a cookie would cross a network unencrypted.
    """
    if request.headers.get(hdrs.ORIGIN, "").startswith("https://"):
        return True
    if not is_loopback_name(request.headers.get(hdrs.HOST, "")):
        raise RequestError(
            403,
            "The web UI does not allow a sign-in over plain HTTP from another machine, because others on the "
            "network could read the session. Use HTTPS, or an SSH tunnel: "
            "ssh -L 8080:127.0.0.1:8080 HOST",
            code="insecure_sign_in",
        )
    return False


def address_of(request: EdgeRequest) -> str:
    """Return the origin at which the browser of a signed-in user reaches the server.

    Browsers send no ``Origin`` with reads. Behind a proxy that ends TLS, the name of the session's cookie
    shows the scheme: browsers send the secure one only over HTTPS.
    """
    named = request.headers.get(hdrs.ORIGIN, "").startswith("https://")
    lines = request.headers.getall(hdrs.COOKIE, ())
    pairs = (part.strip() for line in lines for part in line.split(";"))
    secure = named or any(pair.startswith(f"{SECURE_COOKIE}=") for pair in pairs)
    return f"{'https' if secure else 'http'}://{request.headers.get(hdrs.HOST, '127.0.0.1:8080')}"


def cookies_of(request: EdgeRequest) -> list[str]:
    """Return the values of the session's cookie in a request."""
    return values_of(request.headers.getall(hdrs.COOKIE, []), _COOKIES, _MAX_COOKIES)


async def read_object(request: EdgeRequest, known: Mapping[str, type | tuple[type, ...]]) -> dict[str, Any]:
    """Read the JSON object of a body. ``known`` maps the allowed members to their types.

    Raises :class:`~proxy.base.errors.RequestError` (400, 408, 413).
    """
    raw = await read_body(request, _MAX_BODY, _BODY_S)
    try:
        value = orjson.loads(raw) if raw.strip() else {}
    except orjson.JSONDecodeError:
        raise RequestError(400, "The body is not JSON.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise RequestError(400, "The body must be a JSON object.", code="invalid_json")
    for name, member in value.items():
        if name not in known:
            there = ", ".join(known) or "none"
            raise RequestError(
                400, f"{name[:40]!r} is not a known field. Known fields: {there}.", param=name[:40]
            )
        wrong = not isinstance(member, known[name]) or (isinstance(member, bool) and known[name] is int)
        if wrong:
            raise RequestError(400, f"{name} must be {_kinds(known[name])}.", param=name)
    return value


def _kinds(kinds: type | tuple[type, ...]) -> str:
    """Describe the types that a member may have."""
    listed = kinds if isinstance(kinds, tuple) else (kinds,)
    return " or ".join(
        _KINDS.get(kind, kind.__name__) for kind in listed if not (kind is int and float in listed)
    )


def _refused(why: str) -> RequestError:
    return RequestError(403, f"Refused: {why}.", code="csrf_refused")
