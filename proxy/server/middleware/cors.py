"""Which web pages may call: the listed origins, and the headers for their browsers (Fetch standard).

Pages send a key in a header, never a cookie, so browsers are never told to send credentials.
"""

import re
from collections.abc import Mapping, Sequence

from aiohttp import web

from proxy.base.errors import RequestError
from proxy.http.own_headers import TO_CLIENTS
from proxy.server.messages.request import EdgeRequest

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_MAX_AGE_S = 7200
"""Seconds that a browser caches the answer to a preflight: Chromium's maximum."""

_NAMES = re.compile(r"[A-Za-z0-9_-]{1,64}(?:[ \t]*,[ \t]*[A-Za-z0-9_-]{1,64}){0,63}\Z")
_OF_UPSTREAMS = ("content-disposition", "openai-processing-ms", "openai-version")
_EXPOSED = ", ".join((*_OF_UPSTREAMS, *(name for header in TO_CLIENTS for name in header.names)))
"""The headers that a page may read in addition to those that the Fetch standard always allows."""


class Cors:
    """The origins that pages may call from, each as a browser writes it: ``https://app.example.com``."""

    def __init__(self, origins: Sequence[str] = ()) -> None:
        # Sent without an origin too: a cache must not give that response to a page.
        self._nobody = {"Vary": "Origin"}
        self._origins = {
            origin: {
                **self._nobody,
                "Access-Control-Allow-Origin": origin,
                "Access-Control-Expose-Headers": _EXPOSED,
            }
            for origin in origins
        }

    @property
    def origins(self) -> Sequence[str]:
        """The listed origins."""
        return tuple(self._origins)

    def __bool__(self) -> bool:
        return bool(self._origins)

    def headers(self, request: EdgeRequest) -> Mapping[str, str]:
        """Return the headers that let a page read a response of any kind, also a stream or an error."""
        return self._origins.get(request.headers.get("Origin", ""), self._nobody)

    def allows(self, origin: str) -> bool:
        """Return whether pages of this origin may call."""
        return origin in self._origins

    def preflight(self, request: EdgeRequest) -> web.Response:
        """Answer a preflight request of an allowed page.

        Raises :class:`~proxy.base.errors.RequestError` (400) for header names that no page could use.
        """
        headers = {
            "Access-Control-Allow-Methods": ", ".join(METHODS),
            "Access-Control-Max-Age": str(_MAX_AGE_S),
            "Vary": "Access-Control-Request-Method, Access-Control-Request-Headers",
        }
        asked = ", ".join(request.headers.getall("Access-Control-Request-Headers", ())).strip()
        if asked:
            if not _NAMES.match(asked):
                raise RequestError(
                    400,
                    "Access-Control-Request-Headers must be at most 64 header names, separated by commas.",
                    param="Access-Control-Request-Headers",
                )
            headers["Access-Control-Allow-Headers"] = asked
        if request.headers.get("Access-Control-Request-Private-Network") == "true":
            # The page is on the public network, the proxy is not; the operator who listed the origin allows
            # that.
            headers["Access-Control-Allow-Private-Network"] = "true"
        return web.Response(status=204, headers=headers)
