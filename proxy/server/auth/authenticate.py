"""Finds out who sends a request, in one of the modes ``open``, ``keys``, ``start_token``, ``jwt`` and
``forward``.

The mode is fixed when the server starts. ``auto`` depends on whether a client key ever existed. If the last
key is revoked or no longer declared, or if the record is lost, the server admits nobody. Before the first key
clients need the start token, which the server prints when it starts.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal, Protocol

from aiohttp import hdrs

from proxy.base.caches import declare_lru
from proxy.base.errors import ConfigError, RequestError
from proxy.base.globs import fits
from proxy.config.key_grants import KeyGrants
from proxy.rights.callers import Caller, Rights
from proxy.server.auth.key_ring import Key, KeyRing, new_secret
from proxy.server.auth.key_spellings import KeyFinder
from proxy.server.auth.minting import TOKEN_PREFIX, Minting
from proxy.server.connections.client_address import counted_address
from proxy.server.messages.request import EdgeRequest
from proxy.server.messages.target import Target
from proxy.store.base import KeySource
from proxy.wires.dialect import Credential

Mode = Literal["open", "start_token", "keys", "jwt", "forward"]

TOKENS_PATH: Final = "/toolrelay/tokens"
"""The path below ``/v1`` where tokens are made."""

_MAX_CREDENTIAL: Final = 8192
_AUTHORIZATION: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9-]{0,31}) +(?P<said>[A-Za-z0-9!#$%&()+*./:<=>?@\[\]^_`{|}~-]+)"
)
"""A scheme and one word, without quotes, commas and semicolons, which some parsers treat as syntax."""
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f]")


def fixed_mode(wanted: Mode | Literal["auto"], *, keys: bool, loopback: bool) -> Mode:
    """Return the mode that ``auth.mode`` means for this start; ``keys`` says whether a key ever existed.

    Raises :class:`~proxy.base.errors.ConfigError` if ``auto`` would admit other machines without a key.
    """
    if wanted != "auto":
        return wanted
    if keys:
        return "keys"
    if loopback:
        return "start_token"
    raise ConfigError(
        "auth.mode",
        "other machines can reach the address in server.host, and there are no client keys",
        'Create a key with: toolrelay keys create NAME. Or set auth.mode = "start_token" '
        '(TOOLRELAY_AUTH__MODE=start_token) for a token that each start prints, auth.mode = "open" to '
        'serve without authentication, or server.host = "127.0.0.1"',
    )


def credential(request: EdgeRequest, credentials: Iterable[Credential]) -> str:
    """Return the key or token of a request in the form for comparison; empty if it has none.

    The first of the dialect's ``credentials`` that a request has is the one that counts. A header that stands
    twice counts as none, because two parsers could choose differently.
    """
    for name, scheme in credentials:
        values = request.headers.getall(name, ())
        if not values:
            continue
        value = values[0].strip()
        if len(values) > 1 or len(value) > _MAX_CREDENTIAL:
            return ""
        if not scheme:
            return value
        prefix, _, secret = value.partition(" ")
        return secret.strip() if prefix.lower() == scheme.lower() else ""
    return ""


def may_call(rights: Rights, method: str, target: Target) -> bool:
    """Return whether a path of the API is served to a caller with these rights."""
    below, endpoint = target.below or "", target.endpoint
    if not rights.isolated or endpoint.is_inference or endpoint.kind in ("models", "stored", "mcp"):
        return True
    if (method, below) == ("POST", TOKENS_PATH):
        return True
    return any(fits(below, pattern) for pattern in rights.endpoints)


def not_permitted(request: EdgeRequest, target: Target) -> RequestError:
    """Return the error for a caller that may not call a path."""
    return RequestError(
        403,
        f"This key may not call {request.method} {target.shown}. Ask the proxy's operator to add the path to "
        "the key's endpoints.",
        code="endpoint_not_allowed",
    )


def _unauthorized(message: str) -> RequestError:
    return RequestError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def _unknown() -> RequestError:
    # One answer for every reason: a stranger learns nothing from the difference.
    return _unauthorized(
        "Incorrect API key provided: send a valid client key of this proxy as 'Authorization: Bearer "
        "tr_…'. The proxy's operator creates one with: toolrelay keys create NAME"
    )


class Authenticator(Protocol):
    """The component that decides which requests are let in."""

    def admit(self, request: EdgeRequest, target: Target) -> Caller | Awaitable[Caller]:
        """Return the caller of an API request, directly if that needs no wait.

        Raises :class:`RequestError`: 401 for an unknown caller, 403 or 404 for one without the
        right, 503 if nobody can be let in.
        """

    async def admit_admin(self, request: EdgeRequest, target: Target) -> Caller:
        """Return the caller of a request below ``/admin``; raise as :meth:`admit` does for everybody but
        administrators, on loopback too."""

    async def admit_approver(self, request: EdgeRequest, target: Target) -> Key:
        """Return the key of an administrator or approver, for ``/admin/approvals``; raise as
        :meth:`admit_admin` does for everybody else."""

    async def admit_scraper(self, request: EdgeRequest, target: Target) -> None:
        """Return if the sender may read ``/metrics``; otherwise raise as :meth:`admit_admin` does.

        If there are keys, only an administrator may read them, on loopback too: behind a reverse proxy on
        this machine all requests come from loopback.
        """


class ClosingAuthenticator(Authenticator, Protocol):
    """An authenticator that has connections."""

    async def aclose(self) -> None:
        """Close them."""


class _Admins:
    """The part that all modes share: administrators' keys are valid in each of them."""

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring

    async def admit_admin(self, request: EdgeRequest, target: Target) -> Caller:
        """Return the administrator who sent a request; raise 401 for everybody else, 503 if keys cannot be
        read."""
        secret = credential(request, target.endpoint.dialect.credentials)
        key = await self._key(secret) if secret else None
        if key is None or not key.admin:
            raise _unauthorized(
                "Send an administrator's key. The proxy's operator creates one with: toolrelay keys "
                "create NAME --admin"
            )
        return key.caller

    async def admit_approver(self, request: EdgeRequest, target: Target) -> Key:
        """Return the administrator or approver who sent a request; raise as :meth:`admit_admin` does."""
        secret = credential(request, target.endpoint.dialect.credentials)
        key = await self._key(secret) if secret else None
        if key is None or not (key.admin or key.approves):
            raise _unauthorized(
                "Send the key of an administrator or an approver. The proxy's operator creates one with: "
                "toolrelay keys create NAME --approves TOOLS"
            )
        return key

    async def _key(self, secret: str) -> Key | None:
        """Return the key with this secret; raise as :meth:`KeyRing.find` does."""
        return await self._ring.find(secret)

    async def admit_scraper(self, request: EdgeRequest, target: Target) -> None:
        """Require an administrator: behind a reverse proxy on this machine all requests come from
        loopback."""
        await self.admit_admin(request, target)


class OpenAuthenticator(_Admins):
    """The authenticator that lets in everybody who reaches the port, and counts them by address."""

    def admit(self, request: EdgeRequest, target: Target) -> Caller:
        """Return a caller for any request."""
        return _anybody(counted_address(request))

    async def admit_scraper(self, request: EdgeRequest, target: Target) -> None:
        """Let anybody read the metrics."""
        return


@lru_cache(maxsize=1024)
def _anybody(address: str) -> Caller:
    """Return the caller that is counted by an address; a cached one takes a tenth of the time of a new
    one."""
    return Caller(counted_as=address)


declare_lru("anonymous_callers", _anybody, 1500)


class KeyAuthenticator(_Admins):
    """The authenticator that lets in clients with a client key, or with a token of one."""

    def __init__(self, ring: KeyRing, tokens: Minting) -> None:
        super().__init__(ring)
        self._tokens = tokens

    def admit(self, request: EdgeRequest, target: Target) -> Caller | Awaitable[Caller]:
        """Return the caller of a key or token; see :class:`Authenticator`."""
        # The head is known: its key and its right to this path were checked. Only the key's validity is
        # checked again.
        key: Key | None = request.head.get(self)
        if key is not None and self._is_still_valid(key):
            return key.caller
        return self._admit(request, target)

    def _is_still_valid(self, key: Key) -> bool:
        return self._ring.is_still_valid(key)

    async def _admit(self, request: EdgeRequest, target: Target) -> Caller:
        secret = credential(request, target.endpoint.dialect.credentials)
        caller: Caller | None = None
        key: Key | None = None
        if secret.startswith(TOKEN_PREFIX):
            caller = await self._tokens.find(secret)
        elif secret and (key := await self._ring.find(secret)) is not None:
            caller = key.caller
        if caller is None:
            raise self._refusal()
        if not may_call(caller.rights, request.method, target):
            raise not_permitted(request, target)
        if key is not None:
            request.head[self] = key
        return caller

    def _refusal(self) -> RequestError:
        """Return the error for an unknown caller."""
        if not self._ring.any_valid():
            return RequestError(
                503,
                "The proxy has no valid client key. Its operator creates one with: "
                "toolrelay keys create NAME",
                type="server_error",
                code="no_client_keys",
                headers={"x-should-retry": "false"},
            )
        return _unknown()


class StartTokenAuthenticator(KeyAuthenticator):
    """The authenticator that lets in clients with the token that this start printed and, once there are keys,
    clients with a key.

    The token gives the rights that everybody has in the mode ``open``. Its requests are counted by address.
    """

    def __init__(self, ring: KeyRing, tokens: Minting, start_token: str) -> None:
        super().__init__(ring, tokens)
        self._start_token = start_token.encode()
        self._shown = object()

    def admit(self, request: EdgeRequest, target: Target) -> Caller | Awaitable[Caller]:
        """Return the caller for the token or a key; see :class:`Authenticator`."""
        # The token does not change, so a known head that had it once always has it.
        if self._shown in request.head:
            return _anybody(counted_address(request))
        if not self._is_shown(request, target):
            return super().admit(request, target)
        request.head[self._shown] = True
        return _anybody(counted_address(request))

    async def admit_scraper(self, request: EdgeRequest, target: Target) -> None:
        """Let in clients with the token, and administrators."""
        if not self._is_shown(request, target):
            await super().admit_scraper(request, target)

    def _is_shown(self, request: EdgeRequest, target: Target) -> bool:
        shown = credential(request, target.endpoint.dialect.credentials).encode("utf-8", "surrogateescape")
        return hmac.compare_digest(shown, self._start_token)

    def _refusal(self) -> RequestError:
        return _unauthorized(
            "Incorrect API key provided: send the start token as 'Authorization: Bearer tr_…'. toolrelay "
            "printed it at its start, in the line that begins with 'auth: start token'. To serve without a "
            "token, start it with: toolrelay serve --open"
        )


class ForwardAuthenticator(_Admins):
    """The authenticator that lets in clients with an ``Authorization`` of the provider, which goes upstream
    in place of the operator's.

    Callers are told apart by a keyed hash of the credential. The hash is the same for every worker, after a
    restart, and for every spelling of the header. Anybody can invent credentials, so these callers are also
    counted by address, under the same limits.
    """

    def __init__(self, ring: KeyRing, hash_key: bytes, keys: KeyFinder) -> None:
        super().__init__(ring)
        self._hash_key = hash_key
        self._keys = keys

    def admit(self, request: EdgeRequest, target: Target) -> Caller:
        """Return the caller of an ``Authorization``; raise 401 without one, or for a key of this proxy."""
        name: str | None = request.head.get(self)
        if name is None:
            # Depends on the head alone: connections from different addresses may share a known head.
            name = request.head[self] = self._name(request.headers.getall(hdrs.AUTHORIZATION, ()))
        return _forwarded(name, counted_address(request))

    def _name(self, values: Sequence[str]) -> str:
        """Return the name of the caller that sends these ``Authorization`` headers; raise as :meth:`admit`
        does."""
        value = values[0].strip() if len(values) == 1 else ""
        forwarded = _forwardable(value) if len(value) <= _MAX_CREDENTIAL else None
        if value and len(value) <= _MAX_CREDENTIAL and self._keys.holds(value):
            raise _unauthorized(
                "Incorrect API key provided: this is a key of the proxy, and the proxy must not send it "
                "to the model provider. Send the provider's own key."
            )
        if forwarded is None:
            raise _unauthorized(
                "Incorrect API key provided: send the model provider's own key once, as 'Authorization: "
                "Bearer …', without quotes. The proxy passes it on."
            )
        digest = hashlib.blake2b(forwarded, key=self._hash_key, digest_size=12, person=b"forward")
        return f"forward:{digest.hexdigest()}"


def _forwardable(value: str) -> bytes | None:
    """Return the credential of an ``Authorization``, normalised; ``None`` if it is not a proper one.

    The scheme is left out: a server may ignore it, and then one credential must not become several callers
    through its spellings. For ``Basic`` the result is the decoded pair, and only its canonical base64 is
    accepted. (RFC 9110, 11.4, has an older form as well, a list of parameters, which no provider of models
    takes.)
    """
    match = _AUTHORIZATION.fullmatch(value)
    if match is None:
        return None
    scheme, value_of_scheme = match["scheme"].lower(), match["said"]
    if scheme != "basic":
        return value_of_scheme.rstrip("=").encode() or None
    try:
        pair = base64.b64decode(value_of_scheme, validate=True)
    except binascii.Error:
        return None
    if base64.b64encode(pair).decode() != value_of_scheme or b":" not in pair or _CONTROL.search(pair):
        return None
    return b"basic " + pair


@lru_cache(maxsize=1024)
def _forwarded(name: str, address: str) -> Caller:
    """Return the caller that sends a credential from an address."""
    return Caller(name=name, counted_as=name, parent_counted_as=f"address:{address}")


declare_lru("forwarding_callers", _forwarded, 1500)


@dataclass(frozen=True, slots=True)
class Authentication:
    """How clients authenticate, fixed for the life of the process.

    ``tokens`` are made if keys are required. ``start_token`` is empty if none is required.
    """

    mode: Mode
    authenticator: Authenticator
    ring: KeyRing
    tokens: Minting | None
    finder: KeyFinder
    start_token: str = field(default="", repr=False)
    closing: Callable[[], Awaitable[None]] | None = None

    async def aclose(self) -> None:
        """End what checks tokens, if anything does."""
        if self.closing is not None:
            await self.closing()


async def make_authentication(
    wanted: Mode | Literal["auto"],
    store: KeySource,
    declared: Mapping[str, tuple[str, KeyGrants]],
    *,
    loopback: bool,
    start_token: str = "",
    with_tokens: Callable[[KeyRing, Minting], ClosingAuthenticator] | None = None,
) -> Authentication:
    """Build the authentication for ``auth.mode`` from the store and the configuration's keys.

    If the mode needs a ``start_token`` and none is given, it makes one. ``with_tokens`` makes the
    authenticator of the mode ``jwt``. Raises what :func:`fixed_mode` raises, and
    :class:`~proxy.base.errors.StoreError`.
    """
    ring = KeyRing(store, declared, now=store.now)
    await ring.load()
    finder = KeyFinder(ring)
    mode = fixed_mode(wanted, keys=ring.ever_made, loopback=loopback)
    if mode == "keys":
        tokens = Minting(ring, now=store.now)
        return Authentication(mode, KeyAuthenticator(ring, tokens), ring, tokens, finder)
    if mode == "jwt":
        if with_tokens is None:
            raise RuntimeError("nobody checks the tokens of the mode jwt")
        tokens = Minting(ring, now=store.now)
        made = with_tokens(ring, tokens)
        return Authentication(mode, made, ring, tokens, finder, closing=made.aclose)
    if mode == "start_token":
        tokens, shown = Minting(ring, now=store.now), start_token or new_secret()
        finder = KeyFinder(ring, shown)
        return Authentication(mode, StartTokenAuthenticator(ring, tokens, shown), ring, tokens, finder, shown)
    if mode == "forward":
        _, hash_key = await store.hash_key()
        return Authentication(mode, ForwardAuthenticator(ring, hash_key, finder), ring, None, finder)
    return Authentication(mode, OpenAuthenticator(ring), ring, None, finder)
