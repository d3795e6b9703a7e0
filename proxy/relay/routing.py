"""Which upstream serves a model, and under which name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from proxy.errors import RequestError
from proxy.upstreams.base import Upstream
from proxy.wires.base import StateHabit

__all__ = ["Route", "Router", "Served"]


@dataclass(frozen=True, slots=True)
class Served:
    """One upstream and the models it serves.

    ``models`` are patterns; ``renamed`` maps a client's name to the upstream's.  ``responses_state``
    and ``force_usage`` are habits of the provider.
    """

    upstream: Upstream
    wires: frozenset[str]
    models: tuple[str, ...] = ("*",)
    renamed: Mapping[str, str] | None = None
    tools: bool = True
    force_usage: bool = False
    retries: int = 2
    responses_state: StateHabit = "auto"

    def model_name(self, model: str) -> str | None:
        """What the upstream calls ``model``, or ``None`` where it does not serve it."""
        if self.renamed is not None:
            return self.renamed.get(model)
        return model if any(fnmatchcase(model, pattern) for pattern in self.models) else None

    def shown_name(self, model: str) -> str | None:
        """What a client calls the upstream's ``model``, or ``None`` where it is not served."""
        if self.renamed is not None:
            return next((name for name, target in self.renamed.items() if target == model), None)
        return model if any(fnmatchcase(model, pattern) for pattern in self.models) else None


@dataclass(frozen=True, slots=True)
class Route:
    """Where one request goes."""

    served: Served
    model: str
    renamed: bool


class Router:
    """The upstreams in the order of the configuration; the first that fits serves a model."""

    def __init__(self, served: Sequence[Served]) -> None:
        self.served = tuple(served)

    @property
    def default(self) -> Served:
        return self.served[0]

    @property
    def is_plain(self) -> bool:
        """Whether every model goes to one upstream under its own name."""
        return len(self.served) == 1 and self.default.renamed is None and self.default.models == ("*",)

    def route(self, model: str, wire: str) -> Route:
        """Raises :class:`RequestError` (404, as OpenAI does) for a model nobody serves."""
        for served in self.served:
            name = served.model_name(model)
            if name is not None and wire in served.wires:
                return Route(served, name, name != model)
        raise RequestError(
            404,
            f"The model {model[:100]!r} does not exist or is not served here.",
            param="model",
            code="model_not_found",
        )
