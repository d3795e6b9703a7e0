"""Which web pages may call: origins named exactly, and what their browsers are told (Fetch standard).

Pages carry a key in a header, never a cookie, so browsers are never told to send credentials.
"""

import re
from collections.abc import Mapping, Sequence

from aiohttp import web

from proxy.errors import RequestError
from proxy.http.own_headers import TO_CLIENTS
from proxy.server.serving.request import EdgeRequest

__all__ = ["METHODS", "Cors"]

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_MAX_AGE_S = 7200
"""Seconds that a browser keeps the answer to a preflight: Chromium takes no more."""

_NAMES = re.compile(r"[A-Za-z0-9_-]{1,64}(?:[ \t]*,[ \t]*[A-Za-z0-9_-]{1,64}){0,63}\Z")
_OF_UPSTREAMS = ("content-disposition", "openai-processing-ms", "openai-version")
_EXPOSED = ", ".join((*_OF_UPSTREAMS, *(name for header in TO_CLIENTS for name in header.names)))
"""What a page may read beside what the Fetch standard always lets it read."""


class Cors:
    """The origins that pages may call from, each as a browser writes it: ``https://app.example.com``."""

    def __init__(self, origins: Sequence[str] = ()) -> None:
        # Also where there is no origin: a cache must not give that response to a page.
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
        """Those that are listed."""
        return tuple(self._origins)

    def __bool__(self) -> bool:
        return bool(self._origins)

    def headers(self, request: EdgeRequest) -> Mapping[str, str]:
        """What tells the browser that the page may read a response: a stream's, an error's, any."""
        return self._origins.get(request.headers.get("Origin", ""), self._nobody)

    def allows(self, origin: str) -> bool:
        """Whether pages of this origin may call."""
        return origin in self._origins

    def preflight(self, request: EdgeRequest) -> web.Response:
        """The answer to a preflight request of an allowed page.

        Raises :class:`~proxy.errors.RequestError` (400) for header names that no page could use.
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
            # The page is on the public network, the proxy is not: who listed the origin wants that.
            headers["Access-Control-Allow-Private-Network"] = "true"
        return web.Response(status=204, headers=headers)
