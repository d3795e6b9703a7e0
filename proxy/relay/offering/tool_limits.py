"""What a model of an upstream takes of tools: any at all, how many, and which definitions."""

from collections.abc import Iterable
from functools import lru_cache

from msgspec import Struct

from proxy.base.caches import declare_lru
from proxy.base.plain_text import plain_text
from proxy.schemas.portable import REFUSED_BY, subschemas
from proxy.tools.contract.spec import ToolSpec

REFUSED = "the model was seen to refuse its definition"
"""Why a tool is withheld that a model has refused."""


class ToolLimits(Struct, frozen=True):
    """What a model takes of tools.

    ``takes``: whether it takes any. ``most`` is the largest number in a request, the client's own included;
    ``None`` if it is not known. ``refused`` are digests of tools whose definitions the model has refused
    (:attr:`~proxy.tools.contract.spec.ToolSpec.digest`). ``without`` are the keys of
    :data:`~proxy.schemas.portable.REFUSED_BY`, and other keywords, that it refuses in schemas. ``strict``:
    whether it takes ``strict`` tools.
    """

    takes: bool = True
    most: int | None = None
    refused: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()
    strict: bool = True

    def room_beside(self, declared: int) -> int | None:
        """Return for how many tools a request that declares so many has room; ``None`` if it is not known."""
        return None if self.most is None else max(0, self.most - declared)

    def refusals(self, specs: Iterable[ToolSpec]) -> dict[str, str]:
        """Return the tools that the model refuses, each with the reason, by id."""
        if not self.refused and not self.without:
            return {}
        found = {}
        for spec in specs:
            if spec.digest in self.refused:
                found[spec.name] = REFUSED
            elif (odd := self._odd(spec)) is not None:
                found[spec.name] = f"the upstream refuses {odd[0]} in its schema: {odd[1]}"
        return found

    def _odd(self, spec: ToolSpec) -> tuple[str, str] | None:
        """Return what the model refuses in the schema of a tool, with its path."""
        for what in sorted(self.without.intersection(spec.unportable)):
            return what, spec.unportable[what]
        if other := self.without.difference(REFUSED_BY):
            for path, node in subschemas(spec.definition().parameters, "parameters"):
                for keyword in sorted(other.intersection(node)):
                    return keyword, plain_text(path)
        return None


ANY_TOOLS = ToolLimits()
NO_TOOLS = ToolLimits(takes=False)


@lru_cache(128)
def limits_of(refused: frozenset[str], most: int | None, without: tuple[str, ...]) -> ToolLimits:
    """Return the limits of a model that takes ``most`` tools, no schemas with what its dialect ``refused``
    or what its profile goes ``without``."""
    return ToolLimits(most=most, without=refused.union(without))


declare_lru("tool_limits", limits_of, 1000)


class ToolLesson(Struct, frozen=True):
    """What a refusal says about tools; to be remembered for the model if it then takes the request.

    ``digests`` are those of tools whose definitions it refused, ``most`` the most tools that it takes, and
    ``strict`` says that it takes no strict tools.
    """

    digests: frozenset[str] = frozenset()
    most: int | None = None
    strict: bool = False


def too_many(most: int) -> str:
    """Return why a tool is withheld for which a request has no room."""
    return f"the upstream takes at most {most} tools in a request, and the client's come first"
