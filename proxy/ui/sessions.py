"""Manage the sessions of the web UI: a signed cookie that every worker can check, and codes that sign in
once.

A session has no row: its data is in the cookie, with a MAC whose key is derived from the record's hash key.
So each process that shares the record can check it. A session ends with the client key that opened it; that
key is looked up for each request. The record stores only which codes were used and which sessions were
signed out.
"""

import hashlib
import hmac
import secrets
import struct
import time
from collections.abc import Callable, Mapping
from typing import Final, Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from proxy.rights.callers import end_user_name
from proxy.server.auth.jwt.tokens import Person
from proxy.server.auth.key_ring import Key
from proxy.ui.cookies import decode, encode, read_signed, signed

Role = Literal["admin", "approver", "viewer"]

IDLE_S: Final = 3600.0
"""Seconds without a request after which a session ends."""
CODE_S: Final = 60.0
"""Seconds for which the code in a sign-in link is valid."""
OPERATOR: Final = "operator"
"""The name of a user who signed in with a link; making a link needs write access to the record."""

_RENEW_S: Final = 60.0
_NONCE_BYTES: Final = 16
_CODE_NONCE_BYTES: Final = 8
_CODE_MAC_BYTES: Final = 17
_CODE_CHARS: Final = 44
"""The length of a code, short enough for one line of a terminal."""

_COOKIE: Final = b"toolrelay ui session"
_CODE: Final = b"toolrelay ui code"


class Grants(Protocol):
    """The rights of a key or of a role, as far as they count for the web UI."""

    @property
    def admin(self) -> bool:
        """Whether they are those of an administrator."""

    @property
    def approves(self) -> tuple[str, ...]:
        """Patterns of the tools whose calls may be approved."""


class NamedKeys(Protocol):
    """The client keys that are valid now: a :class:`~proxy.server.auth.key_ring.KeyRing`."""

    async def find(self, secret: str) -> Key | None:
        """Return the valid key with this secret, or ``None``; raises RequestError (503) if keys cannot be
        read."""

    async def find_by_id(self, key_id: str) -> Key | None:
        """Return the valid key with this id, or ``None``; raises as :meth:`find` does."""


class Marks(Protocol):
    """The record's marks of codes and sessions: a :class:`~proxy.store.base.Store`."""

    async def mark_once(self, name: str, until: float) -> bool:
        """Set a mark; return whether it is new. Raises StoreError."""

    async def is_marked(self, name: str) -> bool:
        """Return whether a mark is set. Raises StoreError."""


class UiSession(Struct, frozen=True):
    """A signed-in user; times are epoch seconds.

    ``key_id`` is ``None`` after a sign-in with a link or at an OpenID provider; after the latter, ``user`` is
    the person as the record names the caller of their tokens, and ``group`` a digest of the role that
    applies. ``name`` is for people. ``nonce`` identifies the session. ``began`` and ``seen`` are when it was
    made and last renewed. ``approves`` are patterns of the tools whose calls the user may approve; the cookie
    does not contain them.
    """

    nonce: str
    key_id: str | None
    name: str
    role: Role
    began: float
    seen: float
    expires_at: float
    approves: tuple[str, ...] = ("*",)
    user: str = ""
    group: str = ""

    @property
    def via(self) -> Literal["key", "openid", "link"]:
        """How the user signed in."""
        return "key" if self.key_id is not None else "openid" if self.user else "link"

    def sees(self, caller: str) -> bool:
        """Return whether the user may look at the runs of a caller: an administrator at all, and a person who
        logged in at their own."""
        return self.role == "admin" or (bool(self.user) and f"{caller}/".startswith(f"{self.user}/"))

    @property
    def idle_at(self) -> float:
        """The time when the session ends if no further request arrives."""
        return min(self.seen + IDLE_S, self.expires_at)

    @property
    def caller(self) -> str:
        """The user's name in the log."""
        return self.key_id or self.user or OPERATOR


def signing_key(hash_key: bytes) -> bytes:
    """Derive the key of the MACs from the record's hash key."""
    return hashlib.blake2b(b"toolrelay ui", key=hash_key, digest_size=32).digest()


def login_code(key: bytes, *, now: float, lasts_s: float = CODE_S) -> str:
    """Return a code that signs an operator in once, until ``lasts_s`` seconds after ``now``."""
    payload = struct.pack(">d", now + lasts_s) + secrets.token_bytes(_CODE_NONCE_BYTES)
    return encode(payload + _code_mac(key, payload))


class Sessions:
    """Makes and checks sessions. A session lasts at most ``lasts_s`` seconds."""

    def __init__(
        self,
        key: bytes,
        keys: NamedKeys,
        marks: Marks,
        *,
        lasts_s: float,
        roles: Mapping[str, Grants] | None = None,
        realm: str = "",
        now: Callable[[], float] = time.time,
    ) -> None:
        """``roles`` are the rights of people by the role that their OpenID provider names, ``None`` if nobody
        logs in at one; ``realm`` names the provider and the client there."""
        self._key = key
        self._realm = realm
        self._roles = {self._group(role): grants for role, grants in (roles or {}).items()}
        self._keys = keys
        self._marks = marks
        self._lasts_s = lasts_s
        self._now = now

    def code(self, lasts_s: float = CODE_S) -> str:
        """Return a code for a link; see :func:`login_code`."""
        return login_code(self._key, now=self._now(), lasts_s=lasts_s)

    async def by_code(self, code: str) -> UiSession | None:
        """Open a session with a code; return ``None`` if the code is forged, has expired or was used.

        Raises :class:`~proxy.base.errors.StoreError` if the record cannot tell whether it was used.
        """
        read = _read_code(self._key, code)
        if read is None:
            return None
        nonce, until = read
        if self._now() >= until or not await self._marks.mark_once(f"code:{nonce}", until):
            return None
        return self._begin(None, OPERATOR, "admin")

    async def by_key(self, secret: str) -> UiSession | None:
        """Open a session with a client key; return ``None`` for a key that may not use the web UI.

        Raises :class:`~proxy.base.errors.RequestError` (503) if the keys cannot be read.
        """
        key = await self._keys.find(secret)
        role = role_of(key)
        if key is None or role is None:
            return None
        return replace(self._begin(key.caller.name, key.name, role), approves=_approves(key))

    async def by_person(self, person: Person, shown: str, state: str, lasts_s: float) -> UiSession | None:
        """Open a session for a person who logged in; it lasts no longer than their token.

        Returns ``None`` if a session was opened with this ``state`` before, within ``lasts_s`` seconds.
        Raises :class:`~proxy.base.errors.StoreError` if the record cannot tell.
        """
        if not await self._marks.mark_once(f"login:{state}", self._now() + lasts_s):
            return None
        session = self._begin(None, shown, role_of_person(person.grants))
        return replace(
            session,
            expires_at=min(session.expires_at, person.until),
            approves=_approves(person.grants),
            user=person.name,
            group=self._group(person.role),
        )

    async def by_cookie(self, cookie: str) -> UiSession | None:
        """Return the session of a cookie, or ``None`` if the cookie is forged or the session has ended.

        Raises :class:`RequestError` (503) and :class:`StoreError` if the record
        cannot be read.
        """
        session = _session_in(read_signed(self._key, _COOKIE, cookie))
        if session is None or not session.seen <= self._now() + _RENEW_S or self._now() >= session.idle_at:
            return None
        if session.key_id is not None:
            key = await self._keys.find_by_id(session.key_id)
            if key is None or role_of(key) != session.role:
                return None
            session = replace(session, approves=_approves(key))
        elif session.user:
            grants = self._roles.get(session.group)
            if grants is None or role_of_person(grants) != session.role:
                return None
            session = replace(session, approves=_approves(grants))
        return None if await self._marks.is_marked(f"session:{session.nonce}") else session

    async def end(self, session: UiSession) -> None:
        """End a session on every worker; raises :class:`~proxy.base.errors.StoreError`."""
        await self._marks.mark_once(f"session:{session.nonce}", session.expires_at)

    def cookie(self, session: UiSession) -> str:
        """Return the value of a session's cookie."""
        return signed(
            self._key,
            _COOKIE,
            {
                "n": session.nonce,
                "k": session.key_id,
                "c": session.name,
                "r": session.role,
                "b": session.began,
                "s": session.seen,
                "e": session.expires_at,
                "u": session.user,
                "g": session.group,
            },
        )

    def renewed(self, session: UiSession) -> UiSession | None:
        """Return the session, renewed now, or ``None`` if its cookie is new enough."""
        if self._now() - session.seen < _RENEW_S:
            return None
        return replace(session, seen=self._now())

    def _group(self, role: str) -> str:
        """Return the short name of a role in a cookie, which no other provider's role has."""
        return end_user_name(f"{self._realm} {role}")

    def _begin(self, key_id: str | None, name: str, role: Role) -> UiSession:
        now = self._now()
        nonce = secrets.token_urlsafe(_NONCE_BYTES)
        return UiSession(nonce, key_id, name, role, now, now, now + self._lasts_s)


def role_of(key: Key | None) -> Role | None:
    """Return the role that a key gives, or ``None``."""
    return role_of_person(key) if key is not None and (key.admin or key.approves) else None


def role_of_person(grants: Grants) -> Role:
    """Return the role of a person who logged in: at least that of who sees their own runs."""
    return "admin" if grants.admin else "approver" if grants.approves else "viewer"


def _approves(grants: Grants) -> tuple[str, ...]:
    return ("*",) if grants.admin else grants.approves


def _read_code(key: bytes, code: str) -> tuple[str, float] | None:
    """Return the nonce and the expiry time of a code, or ``None`` for a forged code."""
    if len(code) != _CODE_CHARS or not code.isascii():
        return None
    try:
        raw = decode(code)
    except ValueError:
        return None
    payload, mac = raw[:-_CODE_MAC_BYTES], raw[-_CODE_MAC_BYTES:]
    if not hmac.compare_digest(mac, _code_mac(key, payload)):
        return None
    return payload[8:].hex(), float(struct.unpack(">d", payload[:8])[0])


def _code_mac(key: bytes, payload: bytes) -> bytes:
    return hashlib.blake2b(_CODE + b"\0" + payload, key=key, digest_size=_CODE_MAC_BYTES).digest()


def _session_in(content: dict[str, object] | None) -> UiSession | None:
    match content:
        case {
            "n": str(nonce),
            "k": (str() | None) as key_id,
            "c": str(name),
            "r": ("admin" | "approver" | "viewer") as role,
            "b": float(began),
            "s": float(seen),
            "e": float(expires_at),
            "u": str(user),
            "g": str(group),
        }:
            return UiSession(nonce, key_id, name, role, began, seen, expires_at, user=user, group=group)
    return None
