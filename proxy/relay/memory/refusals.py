"""Remember what models have refused: tools, images in results, fields of their own messages."""

import time
from typing import Literal

from proxy.base.caches import CacheSize, declare, text_bytes

_MOST_FIELDS = 32
"""The most fields that are remembered for one model; real models refuse one or two."""

Refused = Literal["tools", "images", "strict"]


_MAX_MODEL_CHARS = 200
_MAX_FIELDS_BYTES = 2000
_MOST_TOOLS = 64
_TOOL_BYTES = 250
"""A digest as text, and its place in a set."""
_NO_TOOLS: tuple[float, frozenset[str], int | None] = (0.0, frozenset(), None)


class RefusalCache:
    """The models of upstreams that refused tools, images in results, or fields of their own messages.

    It also has the digests of single tools whose definitions a model refused, and the most tools that it
    takes.

    The cache is bounded, and its entries expire.
    """

    def __init__(self, *, keep_s: float = 3600.0, most: int = 1024) -> None:
        self._keep_s = keep_s
        self._most = most
        self._refused: dict[tuple[str, str, Refused], float] = {}
        self._fields: dict[tuple[str, str], tuple[float, frozenset[str]]] = {}
        self.knows_fields = False
        """Whether any model has refused a field."""
        self._tools: dict[tuple[str, str], tuple[float, frozenset[str], int | None]] = {}
        self.knows_tools = False
        """Whether any model has refused single tools, their number, or ``strict``."""
        declare("refusals", self._cache_size)

    def refuses(self, upstream: str, model: str, what: Refused = "tools") -> bool:
        """Return whether this model recently refused ``what``."""
        until = self._refused.get((upstream, model, what))
        return until is not None and until > time.monotonic()

    def remember(self, upstream: str, model: str, what: Refused = "tools") -> None:
        if len(model) > _MAX_MODEL_CHARS:
            return  # A client may have invented the name.
        if len(self._refused) >= self._most:
            self._refused.pop(next(iter(self._refused)))
        self._refused[upstream, model, what] = time.monotonic() + self._keep_s
        self.knows_tools |= what == "strict"

    def refused_fields(self, upstream: str, model: str) -> frozenset[str]:
        """Return the fields of its own messages that this model recently refused."""
        until, names = self._fields.get((upstream, model), (0.0, frozenset()))
        return names if until > time.monotonic() else frozenset()

    def remember_fields(self, upstream: str, model: str, names: frozenset[str]) -> None:
        if len(model) > _MAX_MODEL_CHARS:
            return
        known = self.refused_fields(upstream, model) | names
        self._fields.pop((upstream, model), None)
        if len(self._fields) >= self._most:
            self._fields.pop(next(iter(self._fields)))
        if len(known) <= _MOST_FIELDS and text_bytes(known) <= _MAX_FIELDS_BYTES:
            self._fields[upstream, model] = time.monotonic() + self._keep_s, known
            self.knows_fields = True

    def refused_tools(self, upstream: str, model: str) -> tuple[frozenset[str], int | None]:
        """Return the digests of the tools that this model recently refused, and the most tools that
        it takes, ``None`` if that is not known."""
        until, digests, most = self._tools.get((upstream, model), _NO_TOOLS)
        return (digests, most) if until > time.monotonic() else (frozenset(), None)

    def remember_tools(
        self, upstream: str, model: str, digests: frozenset[str] = frozenset(), most: int | None = None
    ) -> None:
        """Remember that this model refused the tools with these digests, or more than ``most`` tools."""
        if len(model) > _MAX_MODEL_CHARS:
            return
        known, before = self.refused_tools(upstream, model)
        self._tools.pop((upstream, model), None)
        if len(self._tools) >= self._most:
            self._tools.pop(next(iter(self._tools)))
        joined = known | digests
        kept = frozenset(sorted(joined if len(joined) <= _MOST_TOOLS else digests)[:_MOST_TOOLS])
        until = time.monotonic() + self._keep_s
        self._tools[upstream, model] = until, kept, before if most is None else most
        self.knows_tools = True

    def _cache_size(self) -> CacheSize:
        entry = 400 + 4 * _MAX_MODEL_CHARS
        fields = sum(entry + 100 * len(names) + text_bytes(names) for _, names in self._fields.values())
        tools = sum(entry + _TOOL_BYTES * len(digests) for _, digests, _ in self._tools.values())
        more = 100 * _MOST_FIELDS + _MAX_FIELDS_BYTES + _TOOL_BYTES * _MOST_TOOLS
        return CacheSize(entry * len(self._refused) + fields + tools, (3 * entry + more) * self._most)
