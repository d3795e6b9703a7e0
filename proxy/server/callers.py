"""Who sent a request, and what they may do: settled once, before anything else is read."""

import hashlib
from dataclasses import dataclass, field
from typing import Final

from proxy.server.limits.rules import KeyLimits
from proxy.tools.contract.bounds import ArgumentBound
from proxy.wires.client_port import Trace

__all__ = ["Caller", "OwnBound", "Rights", "end_user_name"]


@dataclass(frozen=True, slots=True)
class OwnBound:
    """What one argument may be for one caller: at ``path``, of the tools that fit ``tools``.

    ``setting`` is what it is written under.
    """

    setting: str
    tools: str
    path: str
    bound: ArgumentBound


@dataclass(frozen=True, slots=True)
class Rights:
    """What a caller may reach; without arguments: everything.

    ``models`` are lists of patterns, and a model must fit one of each list; no list allows all.
    ``upstreams`` of ``None`` are all.  ``tools`` are patterns beside the name of the setting that they
    came from, one for each list that must allow a tool.  ``arguments`` are bounds beside those of
    policy; all of them hold.  ``endpoints`` are patterns of paths below
    ``/v1`` that are served beside inference.  With ``keyed`` only inference and ``endpoints`` are
    served, and only the caller's own responses.  With ``shared`` several people come with one key.
    """

    models: tuple[tuple[str, ...], ...] = ()
    upstreams: frozenset[str] | None = None
    tools: tuple[tuple[str, tuple[str, ...]], ...] = ()
    arguments: tuple[OwnBound, ...] = ()
    endpoints: tuple[str, ...] = ()
    trace_max: Trace | None = None
    keyed: bool = False
    shared: bool = False
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        narrowed = (self.models, self.upstreams, self.tools, self.arguments, self.endpoints, self.trace_max)
        object.__setattr__(self, "_hash", hash((narrowed, self.keyed, self.shared)))

    def __hash__(self) -> int:
        """Worked out once: permissions are looked up by it with each request."""
        return self._hash


EVERYTHING: Final = Rights()
"""The rights of those whom nothing is kept from."""


@dataclass(frozen=True, slots=True)
class Caller:
    """One who was let in.

    ``name`` is what the record calls them: a client key's id, a digest of what a client sends
    upstream itself, or ``"open"``.  ``counted_as`` is what limits count by: the key, or the address
    where there are no keys.  ``limits`` are the caller's own; ``None`` where the general ones hold.
    ``also_counted_as`` is the key behind a minted token, and ``also_limits`` are its limits: they hold
    as well, for all its tokens together.  It is the address of one who brings a credential that is not
    checked here, under the general limits.  ``end_user`` is the person that a token was made for.
    """

    name: str = "open"
    counted_as: str = "unknown"
    limits: KeyLimits | None = None
    also_counted_as: str | None = None
    also_limits: KeyLimits | None = None
    rights: Rights = EVERYTHING
    end_user: str = ""


def end_user_name(user: str) -> str:
    """What the record calls an end user, behind the key and a slash: 24 hexadecimal digits."""
    return hashlib.blake2b(user.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
