"""Short-lived tokens that a client key makes for one of its own users, for example for a web page.

A token is ``trt_<id of its key>.<claims>.<signature>``. It is stored nowhere. The key's secret signs it with
Ed25519, and every worker verifies it with the public half that is stored with the key. So it ends with its
key, and nobody can forge one from the stored data. Its claims can only narrow the key's rights: key and token
must both allow a thing.
"""

import base64
import binascii
import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Final

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from proxy.base.caches import CacheSize, declare
from proxy.base.errors import RequestError
from proxy.base.globs import is_costly
from proxy.config.key_grants import KeyGrants, check_key_limits, key_limits
from proxy.json.splice import load_strict
from proxy.relay.routing.router import fits_all
from proxy.rights.callers import Caller, end_user_name
from proxy.rights.limit_rules import KeyLimits
from proxy.server.auth.key_ring import Key, KeyRing, dummy_key, signer

TOKEN_PREFIX: Final = "trt_"
MAX_LIFE_S: Final = 900
_MAX_LENGTH: Final = 4096
_MOST_PATTERNS: Final = 32
_MOST_COSTLY: Final = 4
_MAX_KNOWN_BYTES: Final = 16 * 2**20
_KNOWN_BYTES: Final = 3000
"""Memory that a known token takes, in addition to its text, which takes eight times its size on the wire."""
_SETTING: Final = "the token's tools"


def _check_subject(value: str | None) -> str | None:
    if value is not None and not value.isprintable():
        raise ValueError("must contain only printable characters")
    return value


def _check_cost(values: list[str] | None) -> list[str] | None:
    """Refuse a list with many patterns that need a regular expression, because each token has its own."""
    if values is not None and sum(map(is_costly, values)) > _MOST_COSTLY:
        raise ValueError(f"contains more than {_MOST_COSTLY} patterns with ? or [; write * instead")
    return values


class _Narrowed(BaseModel):
    """The part of its key's rights that a token has."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    models: Annotated[
        list[str] | None, Field(min_length=1, max_length=_MOST_PATTERNS), AfterValidator(_check_cost)
    ] = None
    tools: Annotated[list[str] | None, Field(max_length=_MOST_PATTERNS), AfterValidator(_check_cost)] = None
    subject: Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_check_subject)] | None = None
    limits: Annotated[dict[str, Any], AfterValidator(check_key_limits)] = {}

    def grants(self) -> KeyGrants:
        """Return these rights as the grants of a key, validated as a key's grants are."""
        given = {"models": self.models, "tools": self.tools}
        return KeyGrants.model_validate({name: value for name, value in given.items() if value is not None})


class _Asked(_Narrowed):
    """The body of ``POST /v1/toolrelay/tokens``."""

    expires_in: int = Field(default=300, ge=1, le=MAX_LIFE_S)


class _Claims(_Narrowed):
    """The claims of a token: who it is for, when it expires (seconds since the epoch), and its rights."""

    subject: Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_check_subject)]
    until: int


class Minting:
    """The maker and verifier of the tokens of the keys on a ring."""

    def __init__(self, ring: KeyRing, *, now: Callable[[], float] = time.time) -> None:
        self._ring = ring
        self._now = now
        self._known: OrderedDict[bytes, tuple[Key, int, Caller]] = OrderedDict()
        self._nobody: Key | None = None
        self._sizes: dict[bytes, int] = {}
        self._bytes = 0
        declare("tokens", self._cache_size)

    async def mint(self, secret: str, body: bytes) -> dict[str, Any]:
        """Make a token of the key that has ``secret``; return the body of the response.

        Raises :class:`~proxy.base.errors.RequestError`: 403 for a key that may not mint, 400 that names the
        invalid field.
        """
        key = None if secret.startswith(TOKEN_PREFIX) else await self._ring.find(secret)
        if key is None or key.verify_key is None:
            raise RequestError(
                403,
                "Only a client key with mint = true can make tokens, and a token cannot.",
                code="minting_not_allowed",
            )
        try:
            asked = _Asked.model_validate(load_strict(body) if body.strip() else {})
            grants = asked.grants()
        except ValidationError as error:
            detail = error.errors(include_url=False)[0]
            field = ".".join(str(part) for part in detail["loc"][:1])
            raise RequestError(400, f"{field}: {detail['msg']}.", param=field) from None
        for model in asked.models or ():
            if not any(mark in model for mark in "*?[") and not fits_all(model, key.caller.rights.models):
                raise RequestError(400, f"This key may not use {model[:100]!r}.", param="models")
        until = int(self._now()) + asked.expires_in
        if key.expires_at is not None:
            until = min(until, int(key.expires_at))
        claims = _Claims(
            models=list(grants.models) if asked.models else None,
            tools=asked.tools,
            limits=asked.limits,
            subject=asked.subject or f"token-{secrets.token_hex(8)}",
            until=until,
        )
        payload = _encode(orjson.dumps(claims.model_dump(exclude_defaults=True)))
        text = f"{TOKEN_PREFIX}{key.caller.name}.{payload}"
        token = f"{text}.{_encode(signer(secret).sign(text.encode()))}"
        if len(token) > _MAX_LENGTH:
            raise RequestError(
                400, "The token would be too long. Name fewer models and tools.", param="tools"
            )
        return {
            "object": "toolrelay.token",
            "token": token,
            "subject": claims.subject,
            "expires_at": until,
            "expires_in": until - int(self._now()),
        }

    async def find(self, token: str) -> Caller | None:
        """Return the caller that a token was made for; ``None`` if it is invalid or expired.

        Raises :class:`~proxy.base.errors.RequestError` (503) if the keys cannot be read.
        """
        if len(token) > _MAX_LENGTH or not token.isascii() or token.count(".") != 2:
            return None
        text, _, signature = token.rpartition(".")
        key_id, _, payload = text.removeprefix(TOKEN_PREFIX).partition(".")
        key = await self._ring.find_by_id(key_id)
        if not self._ring.mints:
            return None
        name = hashlib.blake2b(token.encode(), digest_size=32).digest()
        known = self._known.get(name)
        if known is None or known[0] is not key:
            # After keys were read again, another key may have the same id.
            known = self._checked(key, text, payload, signature)
            if known is None:
                return None
            self._keep(name, known, _KNOWN_BYTES + 8 * len(token))
        return known[2] if self._now() < known[1] else None

    def _keep(self, name: bytes, known: tuple[Key, int, Caller], size: int) -> None:
        self._bytes += size - self._sizes.get(name, 0)
        self._known[name], self._sizes[name] = known, size
        while self._bytes > _MAX_KNOWN_BYTES:
            gone, _ = self._known.popitem(last=False)
            self._bytes -= self._sizes.pop(gone)

    def _cache_size(self) -> CacheSize:
        return CacheSize(self._bytes, _MAX_KNOWN_BYTES)

    def _checked(
        self, key: Key | None, text: str, payload: str, signature: str
    ) -> tuple[Key, int, Caller] | None:
        """Return the contents of a token if its key signed it and its claims are allowed.

        It verifies a signature even if no key of that name mints tokens: otherwise the response time would
        tell a stranger the names of those that do.
        """
        by = key
        if by is None or by.verify_key is None:
            by = self._nobody = self._nobody or dummy_key()
        try:
            if not by.verifies(_decode(signature), text.encode()) or key is None or by is not key:
                return None
            claims = _Claims.model_validate(load_strict(_decode(payload)))
            grants = claims.grants()
        except (ValueError, RequestError):
            return None
        # The holder of the key's secret can sign what this proxy would not, for example a longer life.
        if claims.until > self._now() + MAX_LIFE_S:
            return None
        return key, claims.until, _caller(key, claims, grants)


def _caller(key: Key, claims: _Claims, grants: KeyGrants) -> Caller:
    parent = key.caller
    own = grants.rights(_SETTING, _SETTING)
    rights = replace(
        parent.rights,
        models=(*parent.rights.models, *own.models),
        tools=(*parent.rights.tools, *own.tools),
        isolated=True,
    )
    return Caller(
        name=parent.name,
        counted_as=f"{parent.name}/{end_user_name(claims.subject)}",
        parent_counted_as=parent.counted_as,
        parent_limits=parent.limits,
        limits=_narrower(parent.limits, key_limits(claims.limits)),
        rights=rights,
        end_user=claims.subject,
    )


def _narrower(parent: KeyLimits | None, own: KeyLimits | None) -> KeyLimits | None:
    """Combine two sets of limits: the limits of both lists hold, and of two numbers the smaller one."""
    if parent is None or own is None:
        return own or parent
    lists = {
        kind: (*(getattr(parent, kind) or ()), *(getattr(own, kind) or ()))
        for kind in ("requests", "tool_calls", "tokens", "cost")
        if getattr(parent, kind) is not None or getattr(own, kind) is not None
    }
    streams = [each.concurrent_streams for each in (parent, own) if each.concurrent_streams is not None]
    return KeyLimits(**lists, concurrent_streams=min(streams, default=None))


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    """Decode base64 as :func:`_encode` writes it; raise ``ValueError`` for any other spelling."""
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        raise ValueError("not base64") from None
    if _encode(data) != text:
        raise ValueError("not base64 as it is written here")
    return data
