"""The doors: open, for clients with a key or the start token, and for those that bring the provider's key.

Which one there is, is settled when the server starts.  It counts the keys that were ever made: where
the last one is revoked or no longer declared, or the record is lost, nobody comes in, and nothing opens.
Before the first key there is the start token, which the server prints when it starts.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal, Protocol

from aiohttp import hdrs
from multidict import istr

from proxy.caches import declare_lru
from proxy.errors import ConfigError, RequestError
from proxy.globs import fits
from proxy.server.auth.key_ring import Key, KeyRing, new_secret
from proxy.server.auth.key_spellings import KeyFinder
from proxy.server.auth.minting import TOKEN_PREFIX, Minting
from proxy.server.callers import Caller, Rights
from proxy.server.config.key_grants import KeyGrants
from proxy.server.serving.client_address import counted_address
from proxy.server.serving.request import EdgeRequest
from proxy.store.base import KeySource
from proxy.wires.dialects.table import ENDPOINTS, find_endpoint

__all__ = [
    "INFERENCE",
    "TOKENS_PATH",
    "Authentication",
    "Authenticator",
    "ForwardAuthenticator",
    "KeyAuthenticator",
    "Mode",
    "OpenAuthenticator",
    "StartTokenAuthenticator",
    "credential",
    "fixed_mode",
    "make_authentication",
    "may_call",
]

Mode = Literal["open", "start_token", "keys", "forward"]

TOKENS_PATH: Final = "/toolrelay/tokens"
"""Where tokens are made, below ``/v1``."""

INFERENCE: Final = frozenset(
    {TOKENS_PATH, *(known.path for known in ENDPOINTS if known.kind in ("generate", "count", "infer"))}
)
"""What any client key may POST to."""

_CREDENTIALS: Final = (hdrs.AUTHORIZATION, istr("api-key"), istr("x-api-key"))
"""Where keys are looked for.  SDKs of OpenAI send the first, of Azure the second, of Anthropic the
third; the first one that a request has is the one that counts."""

_MAX_CREDENTIAL: Final = 8192
_AUTHORIZATION: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9-]{0,31}) +(?P<said>[A-Za-z0-9!#$%&()+*./:<=>?@\[\]^_`{|}~-]+)"
)
"""A scheme and one word: without quotes, commas and semicolons, which some readers take for something."""
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f]")


def fixed_mode(wanted: Mode | Literal["auto"], *, keys: bool, loopback: bool) -> Mode:
    """The mode that ``auth.mode`` means for this start; ``keys`` says whether there ever were any.

    Raises :class:`~proxy.errors.ConfigError` where ``auto`` would open the door to other machines.
    """
    if wanted != "auto":
        return wanted
    if keys:
        return "keys"
    if loopback:
        return "start_token"
    raise ConfigError(
        "auth.mode",
        "server.host lets other machines in and there are no client keys",
        'Make one with: toolrelay keys create NAME. Or set auth.mode = "start_token" '
        "(TOOLRELAY_AUTH__MODE=start_token) for a token that is printed at each start, "
        'auth.mode = "open" to let everybody in, or server.host = "127.0.0.1"',
    )


def credential(request: EdgeRequest) -> str:
    """The key or token of a request, as it is compared; empty where it has none that can be one.

    A header that stands twice is none: two readers could take it for two.
    """
    for name in _CREDENTIALS:
        values = request.headers.getall(name, ())
        if not values:
            continue
        value = values[0].strip()
        if len(values) > 1 or len(value) > _MAX_CREDENTIAL:
            return ""
        if name is not hdrs.AUTHORIZATION:
            return value
        scheme, _, secret = value.partition(" ")
        return secret.strip() if scheme.lower() == "bearer" else ""
    return ""


def may_call(rights: Rights, method: str, below: str) -> bool:
    """Whether a path below ``/v1`` is served to somebody."""
    if not rights.keyed:
        return True
    if method == "POST" and below in INFERENCE:
        return True
    if find_endpoint(method, below).kind in ("models", "stored"):
        return True
    return any(fits(below, pattern) for pattern in rights.endpoints)


def _unauthorized(message: str) -> RequestError:
    return RequestError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def _unknown() -> RequestError:
    # One answer for every reason: a stranger learns nothing from the difference.
    return _unauthorized(
        "Incorrect API key provided: send a valid client key of this proxy as 'Authorization: Bearer tr_…'. "
        "Its operator makes one with: toolrelay keys create NAME"
    )


class Authenticator(Protocol):
    """Decides who comes in."""

    def admit(self, request: EdgeRequest, below: str) -> Caller | Awaitable[Caller]:
        """The caller of a request for ``below`` (a path below ``/v1``), at once where that can be said.

        Raises :class:`~proxy.errors.RequestError`: 401 for one who is unknown, 403 or 404 for one
        who may not, 503 where nobody can be let in.
        """
        ...

    async def admit_admin(self, request: EdgeRequest) -> Caller:
        """The caller of a request below ``/admin``; raises as :meth:`admit` does for all but an
        administrator, on loopback too."""
        ...

    async def admit_scraper(self, request: EdgeRequest) -> None:
        """Return if the sender may read ``/metrics``, raise as :meth:`admit_admin` does if not.

        Where there are keys that is an administrator, on loopback too: behind a reverse proxy on
        this machine everybody comes from loopback.
        """
        ...


class _Admins:
    """What all doors have in common: there are keys, at least those of administrators, whatever the mode."""

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring

    async def admit_admin(self, request: EdgeRequest) -> Caller:
        """The administrator who sent a request; 401 for everybody else, 503 where keys cannot be read."""
        secret = credential(request)
        key = await self._ring.find(secret) if secret else None
        if key is None or not key.admin:
            raise _unauthorized(
                "This needs an administrator's key; make one with: toolrelay keys create NAME --admin"
            )
        return key.caller

    async def admit_scraper(self, request: EdgeRequest) -> None:
        """An administrator: behind a reverse proxy on this machine everybody comes from loopback."""
        await self.admit_admin(request)


class OpenAuthenticator(_Admins):
    """Lets everybody in who reaches the port, and counts them by address."""

    def admit(self, request: EdgeRequest, below: str) -> Caller:
        """Anybody."""
        return _anybody(counted_address(request))

    async def admit_scraper(self, request: EdgeRequest) -> None:
        """Anybody."""
        return


@lru_cache(maxsize=1024)
def _anybody(address: str) -> Caller:
    """Whoever is counted by an address: to make one takes ten times as long as to find one."""
    return Caller(counted_as=address)


declare_lru("anonymous_callers", _anybody, 1500)


class KeyAuthenticator(_Admins):
    """Lets in who has a client key, or a token of one."""

    def __init__(self, ring: KeyRing, tokens: Minting) -> None:
        super().__init__(ring)
        self._tokens = tokens

    def admit(self, request: EdgeRequest, below: str) -> Caller | Awaitable[Caller]:
        """Whoever a key or token is for; see :class:`Authenticator`."""
        # Whose head it is has been found out, and what they may call; whether they still may is asked.
        key: Key | None = request.head.get(self)
        if key is not None and self._ring.holds(key):
            return key.caller
        key = self._known(request)
        if key is None or not may_call(key.caller.rights, request.method, below):
            return self._admit(request, below)
        request.head[self] = key
        return key.caller

    def _known(self, request: EdgeRequest) -> Key | None:
        """The key of a request whose ``Authorization`` is that of the one before it on its connection."""
        let_in = request.protocol.let_in
        if let_in is None:
            return None
        said, key = let_in
        values = request.headers.getall(hdrs.AUTHORIZATION, ())
        # A proxy in front may send strangers' requests over one connection: a clock tells them nothing.
        if len(values) != 1 or not values[0].isascii() or not hmac.compare_digest(values[0], said):
            return None
        return key if self._ring.holds(key) else None

    async def _admit(self, request: EdgeRequest, below: str) -> Caller:
        request.protocol.let_in = None
        secret = credential(request)
        caller: Caller | None = None
        key: Key | None = None
        if secret.startswith(TOKEN_PREFIX):
            caller = await self._tokens.find(secret)
        elif secret and (key := await self._ring.find(secret)) is not None:
            caller = key.caller
            if (said := request.headers.get(hdrs.AUTHORIZATION, "")) and said.isascii():
                request.protocol.let_in = (said, key)
        if caller is None:
            raise self._refusal()
        if not may_call(caller.rights, request.method, below):
            raise RequestError(
                403,
                f"This key may not call {request.method} /v1{below[:100]}. To allow it, name the path in the "
                "key's endpoints.",
                code="endpoint_not_allowed",
            )
        if key is not None:
            request.head[self] = key
        return caller

    def _refusal(self) -> RequestError:
        """What one is told who is unknown."""
        if not self._ring.any_valid():
            return RequestError(
                503,
                "No client key is valid here. The operator of this proxy makes one with: "
                "toolrelay keys create NAME",
                type="server_error",
                code="no_client_keys",
                headers={"x-should-retry": "false"},
            )
        return _unknown()


class StartTokenAuthenticator(KeyAuthenticator):
    """Lets in who has the token that this start printed; and keys, from the first that is made on.

    Who has it may do what everybody may where the door is open, and is counted by address likewise.
    """

    def __init__(self, ring: KeyRing, tokens: Minting, start_token: str) -> None:
        super().__init__(ring, tokens)
        self._start_token = start_token.encode()
        self._shown = object()

    def admit(self, request: EdgeRequest, below: str) -> Caller | Awaitable[Caller]:
        """Whoever has the token, or a key; see :class:`Authenticator`."""
        # The token does not change, so a head that showed it once has it whenever it comes.
        if self._shown in request.head:
            return _anybody(counted_address(request))
        if not self._is_shown(request):
            return super().admit(request, below)
        request.head[self._shown] = True
        return _anybody(counted_address(request))

    async def admit_scraper(self, request: EdgeRequest) -> None:
        """Whoever has the token, or an administrator."""
        if not self._is_shown(request):
            await super().admit_scraper(request)

    def _is_shown(self, request: EdgeRequest) -> bool:
        said = credential(request).encode("utf-8", "surrogateescape")
        return hmac.compare_digest(said, self._start_token)

    def _refusal(self) -> RequestError:
        return _unauthorized(
            "Incorrect API key provided: send the start token as 'Authorization: Bearer tr_…'. toolrelay "
            "printed it when it started, in the line that begins with 'auth: start token'. To serve without "
            "one, start it with: toolrelay serve --open"
        )


class ForwardAuthenticator(_Admins):
    """Lets in who brings an ``Authorization`` of the provider's, which goes upstream in place of ours.

    Callers are told apart by a keyed hash of the credential in it, the same for every worker and after a
    restart, however the header is written.  Anybody can make up credentials, so what is counted by them is
    counted by address as well, under the same limits.
    """

    def __init__(self, ring: KeyRing, hash_key: bytes, keys: KeyFinder) -> None:
        super().__init__(ring)
        self._hash_key = hash_key
        self._keys = keys

    def admit(self, request: EdgeRequest, below: str) -> Caller:
        """Whoever has an ``Authorization``; 401 without one, or with a key of this proxy's own."""
        name: str | None = request.head.get(self)
        if name is None:
            # Of the head alone; whoever sends it may come from anywhere.
            name = request.head[self] = self._name(request.headers.getall(hdrs.AUTHORIZATION, ()))
        return _forwarded(name, counted_address(request))

    def _name(self, values: Sequence[str]) -> str:
        """What a caller is called who sends these lines of ``Authorization``; raises as :meth:`admit`."""
        value = values[0].strip() if len(values) == 1 else ""
        said = _forwardable(value) if len(value) <= _MAX_CREDENTIAL else None
        if value and len(value) <= _MAX_CREDENTIAL and self._keys.holds(value):
            raise _unauthorized(
                "Incorrect API key provided: this is a key of the proxy, which must not go to the model "
                "provider. Send the provider's own key."
            )
        if said is None:
            raise _unauthorized(
                "Incorrect API key provided: send the model provider's own key as 'Authorization: Bearer …', "
                "once, without quotes; this proxy passes it on."
            )
        digest = hashlib.blake2b(said, key=self._hash_key, digest_size=12, person=b"forward")
        return f"forward:{digest.hexdigest()}"


def _forwardable(value: str) -> bytes | None:
    """The credential of an ``Authorization``, the same however it is written; ``None`` for no proper one.

    The scheme does not count: a server that does not look at it must not make as many callers as it has
    spellings.  Of ``Basic`` it is what the base64 says, in one spelling of that.  (RFC 9110, 11.4, has an
    older form as well, a list of parameters, which no provider of models takes.)
    """
    found = _AUTHORIZATION.fullmatch(value)
    if found is None:
        return None
    scheme, said = found["scheme"].lower(), found["said"]
    if scheme != "basic":
        return said.rstrip("=").encode() or None
    try:
        pair = base64.b64decode(said, validate=True)
    except binascii.Error:
        return None
    if base64.b64encode(pair).decode() != said or b":" not in pair or _CONTROL.search(pair):
        return None
    return b"basic " + pair


@lru_cache(maxsize=1024)
def _forwarded(name: str, address: str) -> Caller:
    """Whoever brings a credential from an address."""
    return Caller(name=name, counted_as=name, also_counted_as=f"address:{address}")


declare_lru("forwarding_callers", _forwarded, 1500)


@dataclass(frozen=True, slots=True)
class Authentication:
    """How clients come in, for as long as the process lives.

    ``tokens`` are made where keys are asked for.  ``start_token`` is empty where none is.
    """

    mode: Mode
    door: Authenticator
    ring: KeyRing
    tokens: Minting | None
    finder: KeyFinder
    start_token: str = field(default="", repr=False)


async def make_authentication(
    wanted: Mode | Literal["auto"],
    store: KeySource,
    declared: Mapping[str, tuple[str, KeyGrants]],
    *,
    loopback: bool,
    start_token: str = "",
) -> Authentication:
    """The authentication that ``auth.mode`` means over this store and the keys that the configuration has.

    Where a ``start_token`` is asked for and none is given, one is made.  Raises what :func:`fixed_mode`
    raises, and :class:`~proxy.errors.StoreError`.
    """
    ring = KeyRing(store, declared)
    await ring.load()
    finder = KeyFinder(ring)
    mode = fixed_mode(wanted, keys=ring.ever_made, loopback=loopback)
    if mode == "keys":
        tokens = Minting(ring)
        return Authentication(mode, KeyAuthenticator(ring, tokens), ring, tokens, finder)
    if mode == "start_token":
        tokens, shown = Minting(ring), start_token or new_secret()
        finder = KeyFinder(ring, shown)
        return Authentication(mode, StartTokenAuthenticator(ring, tokens, shown), ring, tokens, finder, shown)
    if mode == "forward":
        _, hash_key = await store.hash_key()
        return Authentication(mode, ForwardAuthenticator(ring, hash_key, finder), ring, None, finder)
    return Authentication(mode, OpenAuthenticator(ring), ring, None, finder)
