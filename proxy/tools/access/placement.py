"""Where a request carries the credentials of its connection: in a header, the query or a cookie.

Sources: the "Security Scheme Object" of OpenAPI 3.1.1; RFC 6750 (bearer); RFC 7617 (basic).
"""

import base64
from typing import Final, Literal
from urllib.parse import quote

from msgspec import Struct
from yarl import URL

from proxy.http.secrets import Secrets

_BEARER: Final = "Bearer "
_FEWEST: Final = 6
"""Shorter tokens are not removed from answers, where they could be any word."""


class Placement(Struct, frozen=True):
    """The place of a request's credentials, and their form there.

    ``form`` is ``given`` (the value as the connection has it, such as ``Bearer TOKEN``), ``token`` (the token
    alone), ``bearer``, or ``basic``, for which the token is ``USER:PASSWORD``.
    """

    where: Literal["header", "query", "cookie"] = "header"
    name: str = "Authorization"
    form: Literal["given", "token", "bearer", "basic"] = "given"

    def value(self, authorization: str) -> str:
        """Return what stands in the place, from the connection's value of a header."""
        token = authorization.removeprefix(_BEARER)
        match self.form:
            case "given":
                return authorization
            case "token":
                return token
            case "bearer":
                return f"{_BEARER}{token}"
            case "basic":
                return f"Basic {base64.b64encode(token.encode()).decode('ascii')}"

    def place(self, authorization: str, url: URL, headers: dict[str, str]) -> URL:
        """Put the credentials into the headers, or return the URL with them."""
        value = self.value(authorization)
        if self.where == "header":
            headers[self.name] = value
        elif self.where == "cookie":
            others = headers.get("Cookie")
            cookie = f"{self.name}={quote(value, safe='')}"
            headers["Cookie"] = f"{others}; {cookie}" if others else cookie
        else:
            joint = "&" if url.raw_query_string else "?"
            pair = f"{quote(self.name, safe='')}={quote(value, safe='')}"
            # The rest of the URL is encoded already; encoding it again could change what it means.
            return URL(f"{url}{joint}{pair}", encoded=True)
        return url

    def blanked(self, body: bytes, authorization: str) -> bytes:
        """Replace the credentials with asterisks in an answer: services repeat what they were sent."""
        sent = self.value(authorization).rpartition(" ")[2]
        token = authorization.removeprefix(_BEARER)
        texts = {token, sent, quote(sent, safe="")}
        if self.form == "basic":
            texts.add(token.partition(":")[2])
        shapes = [text.encode() for text in texts if len(text) >= _FEWEST]
        return Secrets(shapes).blanked(body) if shapes else body


GIVEN: Final = Placement()
"""The header ``Authorization``, with the value as the connection has it."""
