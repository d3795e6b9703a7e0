"""Who sent a request and what they may do. Both are settled before the proxy reads anything else."""

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from proxy.rights.limit_rules import KeyLimits
from proxy.tools.contract.bounds import ArgumentBound

if TYPE_CHECKING:
    from proxy.wires.client_port import Trace

PLAYGROUND: Final = "ui"
"""The playground's caller in the record; the name of its user follows after a slash."""


class CallerBound(Struct, frozen=True):
    """One caller's limit on an argument: the value at ``path``, for the tools that match ``tools``.

    ``setting`` is the name of the setting that has it.
    """

    setting: str
    tools: str
    path: str
    bound: ArgumentBound


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights of a caller; by default, everything.

    ``models`` are lists of patterns; a model must match one pattern of each list, and without a list all
    models are allowed. ``upstreams`` are names; ``None`` means all. ``tools`` are pairs ``(setting,
    patterns)``, and each of these lists must allow a tool. ``arguments`` are bounds that hold in addition to
    those of the policy. ``endpoints`` are patterns of paths below ``/v1`` that are served besides inference.
    With ``isolated`` only inference and ``endpoints`` are served, and only the caller's own responses. With
    ``shared`` several people use one key.
    """

    models: tuple[tuple[str, ...], ...] = ()
    upstreams: frozenset[str] | None = None
    tools: tuple[tuple[str, tuple[str, ...]], ...] = ()
    arguments: tuple[CallerBound, ...] = ()
    endpoints: tuple[str, ...] = ()
    trace_max: "Trace | None" = None
    isolated: bool = False
    shared: bool = False
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        narrowed = (self.models, self.upstreams, self.tools, self.arguments, self.endpoints, self.trace_max)
        object.__setattr__(self, "_hash", hash((narrowed, self.isolated, self.shared)))

    def __hash__(self) -> int:
        """Return the hash, which is computed once: each request looks up its permissions by it."""
        return self._hash


EVERYTHING: Final = Rights()
"""The rights of callers that have no limits."""


class Caller(Struct, frozen=True):
    """A caller that was authenticated or let in.

    ``name`` identifies the caller in the record: a client key's id, a digest of the credential that a client
    sends to the upstream itself, or ``"open"``. Limits are counted by ``counted_as``: the key, or the address
    if there are no keys. ``limits`` are the caller's own; ``None`` if the general ones hold.

    ``parent_counted_as`` is the key behind a minted token, and ``parent_limits`` are the limits of that key;
    they hold for all its tokens together. For a caller with a credential that the proxy does not check, it is
    the address, under the general limits. ``end_user`` is the person that a token was made for.
    """

    name: str = "open"
    counted_as: str = "unknown"
    limits: KeyLimits | None = None
    parent_counted_as: str | None = None
    parent_limits: KeyLimits | None = None
    rights: Rights = EVERYTHING
    end_user: str = ""


def end_user_name(user: str) -> str:
    """Return the name of an end user in the record, after the key and a slash: 24 hexadecimal digits."""
    return hashlib.blake2b(user.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def player_name(user: str) -> str:
    """Return the name in the record of the caller that a user of the web UI is in the playground."""
    return f"{PLAYGROUND}/{end_user_name(user)}"
