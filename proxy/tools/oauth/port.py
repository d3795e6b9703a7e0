"""The protocol of the HTTP client that the OAuth code uses, and the error of the OAuth code."""

from collections.abc import Mapping
from typing import Any, Protocol


class OAuthFault(Exception):
    """A failure to get a token. The message is for the operator and contains no token and no secret.

    ``code`` is the error code of a token endpoint, if it is a known one, for example of RFC 6749, section
    5.2. ``needs_login`` says that only a new login helps.
    """

    def __init__(
        self, message: str, *, status: int | None = None, code: str = "", needs_login: bool = False
    ) -> None:
        self.status = status
        self.code = code
        self.needs_login = needs_login
        super().__init__(message)


class OAuthHttp(Protocol):
    """An HTTP client for URLs that servers name; it checks them and bounds size and time.

    Every method raises :class:`~proxy.tools.contract.capabilities.HttpFailure` for a URL that must not be
    called and if there is no usable response.
    """

    async def get_json(self, url: str) -> Any:
        """Return a JSON document."""

    async def post_json(self, url: str, body: Any) -> Any:
        """POST JSON and return the JSON of a 2xx response."""

    async def post_form(self, url: str, fields: Mapping[str, str], authorization: str | None = None) -> Any:
        """POST a form and return the JSON of a 2xx response, ``None`` if it is empty."""

    async def challenge(self, url: str) -> str:
        """Return the ``WWW-Authenticate`` of the response to a request without a token, or ``""``."""
