"""The HTTP port of OAuth, and its errors."""

from collections.abc import Mapping
from typing import Any, Protocol

__all__ = ["OAuthFault", "OAuthHttp"]


class OAuthFault(Exception):
    """Why there is no token.  The message is for the operator; no token and no secret is in it.

    ``code`` is the error of a token endpoint, if it is one of the words of RFC 6749, section 5.2.
    ``needs_login`` says that only a new login helps.
    """

    def __init__(
        self, message: str, *, status: int | None = None, code: str = "", needs_login: bool = False
    ) -> None:
        self.status = status
        self.code = code
        self.needs_login = needs_login
        super().__init__(message)


class OAuthHttp(Protocol):
    """Requests to addresses that servers name: checked, and bounded in size and time.

    Every method raises :class:`~proxy.tools.contract.capabilities.HttpFailure` for an address that must not
    be called and where there is no usable answer.
    """

    async def get_json(self, url: str) -> Any:
        """The JSON of a document."""
        ...

    async def post_json(self, url: str, body: Any) -> Any:
        """The JSON of a 2xx answer to JSON."""
        ...

    async def post_form(self, url: str, fields: Mapping[str, str], authorization: str | None = None) -> Any:
        """The JSON of a 2xx answer to a form, ``None`` for an empty one."""
        ...

    async def challenge(self, url: str) -> str:
        """What a server says in ``WWW-Authenticate`` to somebody without a token; empty if nothing."""
        ...
