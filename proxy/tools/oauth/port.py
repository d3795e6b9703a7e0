"""The protocols of the OAuth code: the HTTP client that it uses and the login that it offers, and its
errors."""

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct


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


class LoginDenied(OAuthFault):
    """A login that the server refused, or an answer that is not the server's. The message is for the person
    who logs in."""


class ForeignRedirect(Exception):
    """A redirect that does not belong to an attempt: anyone may have sent it."""


class FlowSecrets(Struct, frozen=True):
    """The secrets of one login: ``state``, the nonce of the ID token, and the verifier of PKCE."""

    state: str
    nonce: str
    verifier: str


class OpenIdFlow(Protocol):
    """The code flow of one client at one OpenID provider.

    Each method raises :class:`OAuthFault` if the provider cannot be used now.
    """

    async def page(self, secrets: FlowSecrets) -> str:
        """Return the address of the provider's page to log in at."""

    async def id_token(self, query: str, secrets: FlowSecrets) -> str:
        """Exchange the code in the query of the provider's answer for an ID token, which is not checked yet.

        Raises :class:`ForeignRedirect` for the answer to another login, and :class:`LoginDenied`.
        """

    async def logout_page(self, return_to: str) -> str:
        """Return the address at which a browser logs out, and is sent on; empty if there is none."""


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
