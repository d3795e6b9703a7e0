"""Check JSON Web Tokens of one issuer, and find the rights of who sends them.

The checks are those of RFC 8725, "JSON Web Token Best Current Practices", and RFC 7519: only the configured
algorithms, which are all asymmetric; keys of the issuer alone, each for its own kind of algorithm; no
``crit``; an expiry; the configured issuer and audience. Other members of the header (``jku``, ``x5u``,
``jwk``, ``x5c``) are not read.
"""

import base64
import binascii
import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from proxy.base.caches import CacheSize, declare
from proxy.base.errors import RequestError, ToolRelayError
from proxy.config.key_grants import KeyGrants, key_limits
from proxy.json.splice import load_strict
from proxy.rights.callers import Caller, end_user_name
from proxy.server.auth.jwt.signing_keys import SigningKey, SigningKeys
from proxy.server.auth.key_ring import Key

MAX_LENGTH: Final = 8192
"""Bytes of a token; a header of a request is hardly larger."""

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "Ed25519"),
)
"""The algorithms that may be configured: none of them is symmetric, so no public key can be one's secret."""

_MAX_SIGNATURE: Final = 1024
_MOST_AUDIENCES: Final = 64
_MOST_ROLES: Final = 1000
_LONGEST_NAME: Final = 512
_MAX_KNOWN_BYTES: Final = 16 * 2**20
_KNOWN_BYTES: Final = 3000
"""Memory that a known token takes: its digest, its caller and its rights."""


class TokenRefused(ToolRelayError):
    """A token is not valid here. The message says why, in words that follow "the token"."""


class JwtRules(Struct, frozen=True):
    """What a token must have.

    ``user`` and ``roles`` are dotted paths of claims. ``grants`` are the rights by role, in the order in
    which they are tried; ``*`` is every token. Without any, a valid token has the rights of a client key.
    ``leeway_s`` is how many seconds clocks may differ. ``setting`` is the one that names the audience.
    """

    issuer: str
    audience: tuple[str, ...]
    algorithms: tuple[str, ...] = ALGORITHMS
    leeway_s: float = 30.0
    user: str = "sub"
    roles: str = "groups"
    grants: Mapping[str, KeyGrants] = {}
    setting: str = "auth.jwt.audience"


class Person(Struct, frozen=True):
    """Who a token is about: ``user`` as the claim names them, and ``name`` as the record does.

    ``role`` is the configured role that applies, with its ``grants``; ``until`` is when the token expires,
    in seconds since the epoch, clocks that differ included.
    """

    user: str
    name: str
    role: str
    grants: KeyGrants
    until: float


class _Known(Struct, frozen=True):
    """A checked token; ``generation`` is that of the keys that verified it."""

    key: Key
    generation: int


class JwtTokens:
    """The tokens of one issuer."""

    def __init__(self, rules: JwtRules, keys: SigningKeys, *, now: Callable[[], float] = time.time) -> None:
        """``now`` is the time in seconds since the epoch."""
        self.rules = rules
        self._keys = keys
        self._now = now
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        declare("identity_tokens", self._cache_size)

    @staticmethod
    def is_token(credential: str) -> bool:
        """Return whether a credential looks like a JWT: three parts, of which the first is a JSON object."""
        return credential.startswith("eyJ") and credential.count(".") == 2

    async def find(self, token: str) -> Key:
        """Return the rights of who has a token, as those of a key that expires with it.

        Raises :class:`TokenRefused`, and :class:`~proxy.base.errors.RequestError` (503) if the issuer's keys
        are not known.
        """
        name = hashlib.blake2b(token.encode("utf-8", "surrogatepass"), digest_size=32).digest()
        known = self._known.get(name)
        # A token that is known asks for keys, too, or one whose key was withdrawn would stay valid.
        if known is None or not self._keys.refresh() or known.generation != self._keys.generation:
            key = self._key_of(await self.claims(token), token)
            known = self._known[name] = _Known(key, self._keys.generation)
            while len(self._known) * _KNOWN_BYTES > _MAX_KNOWN_BYTES:
                self._known.popitem(last=False)
        if known.key.expired(self._now()):
            raise TokenRefused("has expired")
        return known.key

    def is_still_valid(self, key: Key) -> bool:
        """Return whether a key of :meth:`find` is still valid, as far as this is known without a fetch."""
        known = self._known.get(key.digest)
        return (
            known is not None
            and known.key is key
            and self._keys.is_fresh
            and known.generation == self._keys.generation
            and not key.expired(self._now())
        )

    async def aclose(self) -> None:
        """Close the connections to the issuer."""
        await self._keys.aclose()

    def _cache_size(self) -> CacheSize:
        return CacheSize(len(self._known) * _KNOWN_BYTES, _MAX_KNOWN_BYTES)

    async def claims(self, token: str) -> Mapping[str, Any]:
        """Return the claims of a token that the issuer has signed; raise as :meth:`find` does.

        Nothing in the claims is checked yet: see :meth:`person`.
        """
        if len(token) > MAX_LENGTH or not token.isascii():
            raise TokenRefused(f"is longer than {MAX_LENGTH} bytes, or no ASCII")
        head, _, _ = token.partition(".")
        header = _object(head, "its header")
        alg, kid = header.get("alg"), header.get("kid")
        if alg not in self.rules.algorithms:
            raise TokenRefused("is signed by an algorithm that auth.jwt.algorithms does not list")
        if "crit" in header or "enc" in header or header.get("b64") is False:
            raise TokenRefused("has a header that nobody here understands")
        if kid is not None and not (isinstance(kid, str) and len(kid) <= _LONGEST_NAME):
            raise TokenRefused("has a kid that is no short text")
        key = await self._keys.find(kid, str(alg))
        if key is None:
            raise TokenRefused("is not signed by a key that its issuer shows now")
        return _verified(token, key, str(alg))

    def person(self, claims: Mapping[str, Any]) -> Person:
        """Return whom the claims of :meth:`claims` are about.

        Raises :class:`TokenRefused` for claims that do not fit, and
        :class:`~proxy.base.errors.RequestError` (403) for somebody without a configured role.
        """
        rules = self.rules
        if claims.get("iss") != rules.issuer:
            raise TokenRefused("is of another issuer than auth.jwt.issuer")
        until = self._check_times(claims)
        if not set(_audiences(claims)) & set(rules.audience):
            raise TokenRefused(f"is for another audience than {rules.setting}")
        user = claim_at(claims, rules.user)
        if not isinstance(user, str) or not 0 < len(user) <= _LONGEST_NAME or not user.isprintable():
            raise TokenRefused(f"has no claim {rules.user} that names its user")
        role, grants = self._grants(claims)
        name = f"jwt:{end_user_name(f'{rules.issuer} {user}')}"
        return Person(user, name, role, grants, until)

    def _key_of(self, claims: Mapping[str, Any], token: str) -> Key:
        """Return the rights of a verified token; raise as :meth:`person` does."""
        person = self.person(claims)
        setting, grants = f"auth.jwt.roles.{person.role}", person.grants
        caller = Caller(
            name=person.name,
            counted_as=person.name,
            limits=key_limits(grants.limits),
            rights=grants.rights(f"{setting}.tools", f"{setting}.arguments"),
        )
        digest = hashlib.blake2b(token.encode(), digest_size=32).digest()
        return Key(caller, person.user, digest, grants.admin, None, person.until, grants.approves)

    def _check_times(self, claims: Mapping[str, Any]) -> float:
        """Return when a token stops being valid, clocks that differ included."""
        now, leeway = self._now(), self.rules.leeway_s
        times = {name: _time(claims, name) for name in ("exp", "nbf", "iat")}
        if (until := times["exp"]) is None:
            raise TokenRefused("has no expiry (exp)")
        if until + leeway <= now:
            raise TokenRefused("has expired")
        for name in ("nbf", "iat"):
            if (begins := times[name]) is not None and begins - leeway > now:
                raise TokenRefused(f"is not valid yet ({name})")
        return until + leeway

    def _grants(self, claims: Mapping[str, Any]) -> tuple[str, KeyGrants]:
        """Return the first configured role that a token has, with its rights."""
        if not self.rules.grants:
            return "*", KeyGrants()
        named = claim_at(claims, self.rules.roles)
        if isinstance(named, str):
            named = named.split()  # Scopes and some providers' roles are words in one text.
        roles = (
            {role for role in named[:_MOST_ROLES] if isinstance(role, str)}
            if isinstance(named, list)
            else set()
        )
        for role, grants in self.rules.grants.items():
            if role == "*" or role in roles:
                return role, grants
        raise RequestError(
            403,
            "This token has none of the roles that may use the proxy. Its claim "
            f"{self.rules.roles} must name one of those in auth.jwt.roles.",
            code="role_not_allowed",
        )


def claim_at(claims: Mapping[str, Any], path: str) -> Any:
    """Return the claim at a dotted path, such as ``realm_access.roles``; ``None`` if it is missing.

    A claim with dots in its own name (``https://example.com/roles``) is found by its whole name.
    """
    if path in claims:
        return claims[path]
    value: Any = claims
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _audiences(claims: Mapping[str, Any]) -> Sequence[str]:
    """Return the audiences of a token, one or a list (RFC 7519, section 4.1.3)."""
    aud = claims.get("aud")
    if isinstance(aud, str):
        return [aud]
    if not isinstance(aud, list) or not all(isinstance(each, str) for each in aud):
        raise TokenRefused("has no audience (aud)")
    if len(aud) > _MOST_AUDIENCES:
        raise TokenRefused(f"has more than {_MOST_AUDIENCES} audiences")
    return aud


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    """Return a NumericDate; ``None`` if the claim is missing."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(float(value)):
        raise TokenRefused(f"has a time that is no number ({name})")
    return float(value)


def _verified(token: str, key: SigningKey, alg: str) -> Mapping[str, Any]:
    """Return the claims of a token that the key has signed."""
    from joserfc import jws
    from joserfc.errors import JoseError

    registry = jws.JWSRegistry(algorithms=[alg], strict_check_header=False)
    # The whole token is bounded; an x5c, which is not read, would pass the library's own bound.
    registry.max_header_length, registry.max_payload_length = MAX_LENGTH, MAX_LENGTH
    registry.max_signature_length = _MAX_SIGNATURE
    try:
        jws.deserialize_compact(token, key.key, algorithms=[alg], registry=registry)
    except (JoseError, ValueError, TypeError):
        raise TokenRefused("has a signature that is not its issuer's") from None
    return _object(token.split(".")[1], "its claims")


def _object(part: str, what: str) -> Mapping[str, Any]:
    """Return the JSON object in a part of a token; a name that stands twice is refused."""
    try:
        # Trailing bits that decoders ignore would give one token several spellings.
        raw = base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
        if base64.urlsafe_b64encode(raw).rstrip(b"=").decode() != part:
            raise ValueError
        value = load_strict(raw)
    except (binascii.Error, ValueError, RequestError, RecursionError, OverflowError):
        raise TokenRefused(f"is malformed: {what}") from None
    if not isinstance(value, dict):
        raise TokenRefused(f"is malformed: {what}")
    return value
