"""What a rule is, and the shapes in which providers refuse a request that breaks one."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

Body = dict[str, Any]
Place = tuple[str | int, ...]
"""Where something stands in a body: names of members and positions in lists."""


class Asked(NamedTuple):
    """A request as a provider sees it; the names of headers are in lower case."""

    headers: Mapping[str, str]
    body: Body

    @property
    def model(self) -> str:
        """The name of the model, without the prefix that a gateway reads."""
        return str(self.body.get("model", "")).rpartition("/")[2]


@dataclass(frozen=True)
class Fault:
    """What is wrong with a request.

    ``said`` are the provider's words. Without words the member at ``place`` is unknown to the provider, and
    each provider has words of its own for that. ``value`` is what stood there.
    """

    said: str = ""
    place: Place = ()
    code: str | None = None
    value: Any = None


@dataclass(frozen=True)
class Rule:
    """One thing that providers refuse.

    ``providers`` are those that it holds for, and ``models`` patterns of the models' names; a name that no
    pattern fits belongs to no kind. ``source`` says where the refusal is documented. ``ignored``: the
    provider answers all the same, and what the client meant is lost.
    """

    name: str
    providers: tuple[str, ...]
    check: Callable[[Asked], Iterable[Fault]]
    source: str
    models: tuple[str, ...] = ("*",)
    ignored: bool = False

    def faults(self, asked: Asked) -> Iterator[Fault]:
        """Yield what the request breaks of this rule."""
        if fits(asked.model, self.models):
            yield from self.check(asked)


def fits(model: str, patterns: Iterable[str]) -> bool:
    """Return whether a model's name fits one of the patterns; ``!`` in front excludes."""
    found = False
    for pattern in patterns:
        if fnmatchcase(model, pattern.removeprefix("!")):
            found = not pattern.startswith("!")
    return found


def unknown(member: Mapping[str, Any], known: Iterable[str], place: Place = ()) -> Iterator[Fault]:
    """Yield a fault for each member that is not known."""
    known = set(known)
    yield from (Fault(place=(*place, name), value=member[name]) for name in member if name not in known)


def length_of(value: Any, most: int, place: Place) -> Iterator[Fault]:
    """Yield OpenAI's fault for a text that is longer than ``most`` characters."""
    if isinstance(value, str) and len(value) > most:
        said = f"Invalid '{path_text(place)}': string too long. Expected a string with maximum length {most}"
        yield Fault(f"{said}, but got a string with length {len(value)} instead.", place, _LONG)


_LONG = "string_above_max_length"


def path_text(place: Place) -> str:
    """Return a place as OpenAI writes it: ``messages[1].name``."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
    return text.removeprefix(".")


Shape = Callable[[Fault], tuple[int, Any]]
"""Turns a fault into the status and the body of a provider's error."""
