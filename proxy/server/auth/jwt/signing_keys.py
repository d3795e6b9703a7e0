"""The public keys of an OpenID provider, fetched, kept, and fetched again when it rotates them.

A token's ``kid`` is a stranger's word: an unknown one causes a fetch, but at most one in ``_AGAIN_S``
seconds for all tokens together. Nothing in a token says where keys are (RFC 8725, section 3.10). While the
provider does not answer, the keys that are known stay in use for a day.
"""

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import structlog
from msgspec import Struct

from proxy.base.errors import RequestError
from proxy.tools.contract.capabilities import HttpFailure

if TYPE_CHECKING:
    from joserfc.jwk import ECKey, OKPKey, RSAKey

    PublicKey = RSAKey | ECKey | OKPKey

_AGAIN_S: Final = 10.0
_FRESH_S: Final = 3600.0
"""Seconds after which keys are fetched again in the background."""
_STALE_S: Final = 86400.0
"""Seconds for which keys are used while the provider does not answer."""
_MOST_KEYS: Final = 100
_LONGEST_ID: Final = 512
_FEWEST_RSA_BITS: Final = 2048
"""RFC 7518, section 3.3."""

_CURVES: Final = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "Ed25519": "Ed25519"}
_KINDS: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
_USED_CURVES: Final = frozenset((_KINDS[alg[:2]], curve) for alg, curve in _CURVES.items())

GetJson = Callable[[str], Awaitable[Any]]
"""Returns the JSON at a URL, bounded in size and time; raises HttpFailure."""


class SigningKey(Struct, frozen=True):
    """A public key of the provider. ``alg`` is the only algorithm that it is for; empty: any of its kind."""

    kid: str
    kind: str
    curve: str
    alg: str
    key: "PublicKey"

    def fits(self, alg: str) -> bool:
        """Return whether the key may verify signatures of this algorithm (RFC 8725, sections 3.1 and 3.2)."""
        if self.alg and self.alg != alg:
            return False
        return self.kind == _KINDS[alg[:2]] and _CURVES.get(alg, "") == self.curve


class SigningKeys:
    """The keys of one provider. ``generation`` grows each time that they change."""

    def __init__(
        self,
        issuer: str,
        jwks_url: str,
        get_json: GetJson,
        close: Callable[[], Awaitable[None]],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """An empty ``jwks_url`` is looked up in the provider's metadata. ``close`` ends connections."""
        self._issuer = issuer
        self._jwks_url = jwks_url
        self._get_json = get_json
        self._close = close
        self._monotonic = monotonic
        self._keys: tuple[SigningKey, ...] = ()
        self._fetched_at = self._tried_at = -float("inf")
        self._fetching: asyncio.Task[None] | None = None
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.server")
        self.generation = 0

    async def find(self, kid: str | None, alg: str) -> SigningKey | None:
        """Return the key that a token names, or without a name the only one that fits the algorithm.

        Raises :class:`~proxy.base.errors.RequestError` (503) if there are no keys to look in.
        """
        key = self._known(kid, alg)
        if key is None or self._age() >= _FRESH_S:
            task = self._begin()
            if key is None and task is not None:
                # The others that wait for the keys are not cancelled with this request.
                await asyncio.shield(task)
                key = self._known(kid, alg)
        if key is None and self._age() >= _STALE_S:
            raise RequestError(
                503,
                "The proxy cannot check tokens now because their issuer does not show its keys. Try again in "
                "a moment.",
                type="server_error",
                code="issuer_unavailable",
                headers={"Retry-After": str(int(_AGAIN_S))},
            )
        return key

    @property
    def is_fresh(self) -> bool:
        """Whether the keys were fetched within the hour."""
        return self._age() < _FRESH_S

    def refresh(self) -> bool:
        """Fetch old keys again in the background; return whether those that are known may still be used."""
        if not self.is_fresh:
            self._begin()
        return self._age() < _STALE_S

    async def aclose(self) -> None:
        """End a fetch in progress, and close the connections."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)
        await self._close()

    def _age(self) -> float:
        return self._monotonic() - self._fetched_at

    def _known(self, kid: str | None, alg: str) -> SigningKey | None:
        if self._age() >= _STALE_S:
            return None
        fitting = [key for key in self._keys if kid in (None, key.kid) and key.fits(alg)]
        return fitting[0] if len(fitting) == 1 else None

    def _begin(self) -> "asyncio.Task[None] | None":
        """Return the fetch in progress, or begin one; ``None`` if the last one was a moment ago."""
        if self._fetching is not None and not self._fetching.done():
            return self._fetching
        if self._monotonic() - self._tried_at < _AGAIN_S:
            return None
        self._tried_at = self._monotonic()
        self._fetching = asyncio.get_running_loop().create_task(self._fetch())
        return self._fetching

    async def _fetch(self) -> None:
        """Fetch the keys; a failure is logged, and leaves those that are known."""
        try:
            keys = read_keys(await self._get_json(self._jwks_url or await self._discovered()))
        except HttpFailure as error:
            self._log.warning("issuer_keys_unread", issuer=self._issuer, reason=str(error))
            return
        self._fetched_at = self._monotonic()
        if _identities(keys) != _identities(self._keys):
            self._keys = keys
            self.generation += 1
        if not keys:
            self._log.warning(
                "issuer_keys_unread", issuer=self._issuer, reason="it shows no key to sign with"
            )

    async def _discovered(self) -> str:
        """Return the address of the keys, from the provider's metadata.

        Source: OpenID Connect Discovery 1.0, section 4; the issuer in it must be the configured one (4.3).
        """
        document = await self._get_json(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
        if not isinstance(document, Mapping) or not isinstance(document.get("issuer"), str):
            raise HttpFailure("its metadata names no issuer")
        if document["issuer"] != self._issuer:
            raise HttpFailure("its metadata is of another issuer than auth.jwt.issuer")
        if not isinstance(address := document.get("jwks_uri"), str):
            raise HttpFailure("its metadata has no jwks_uri")
        return address


def _identities(keys: tuple[SigningKey, ...]) -> list[tuple[str, str]]:
    return [(key.kid, key.key.thumbprint()) for key in keys]


def read_keys(document: Any) -> tuple[SigningKey, ...]:
    """Return the public keys for signatures in a JWK set; others are left out (RFC 7517, section 5).

    A symmetric key is never taken: whoever reads it could sign with it. Raises
    :class:`~proxy.tools.contract.capabilities.HttpFailure` for what is no JWK set.
    """
    entries = document.get("keys") if isinstance(document, Mapping) else None
    if not isinstance(entries, list):
        raise HttpFailure("what it shows as its keys is no JWK set")
    made = [_read_key(entry) for entry in entries[:_MOST_KEYS]]
    return tuple(key for key in made if key is not None)


def _read_key(entry: Any) -> SigningKey | None:
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OKPKey, RSAKey

    if not isinstance(entry, Mapping) or entry.get("use", "sig") != "sig":
        return None
    kind, kid, alg = entry.get("kty"), entry.get("kid", ""), entry.get("alg", "")
    classes: dict[object, type[RSAKey] | type[ECKey] | type[OKPKey]] = {
        "RSA": RSAKey,
        "EC": ECKey,
        "OKP": OKPKey,
    }
    if not isinstance(kind, str) or kind not in classes:
        return None
    if not isinstance(kid, str) or not isinstance(alg, str) or len(kid) > _LONGEST_ID:
        return None
    # Only the members of a public key, so that nothing else of the provider's decides anything.
    members = {name: entry[name] for name in ("kty", "n", "e", "crv", "x", "y") if name in entry}
    if not all(isinstance(value, str) for value in members.values()):
        return None
    if kind == "RSA" and _bits(members.get("n", "")) < _FEWEST_RSA_BITS:
        return None
    if kind != "RSA" and (kind, members.get("crv")) not in _USED_CURVES:
        return None  # The library fails at some curves, and others sign nothing.
    try:
        key = classes[kind].import_key(members)
    except (JoseError, ValueError, TypeError):
        return None
    return SigningKey(kid, kind, members.get("crv", ""), alg, key)


def _bits(number: str) -> int:
    """Return the length of a number in base64url (RFC 7518, section 2), 0 if it is none."""
    try:
        raw = base64.b64decode(number + "=" * (-len(number) % 4), altchars=b"-_", validate=True)
    except ValueError:
        return 0
    return int.from_bytes(raw, "big").bit_length()
