"""What becomes of the fields of a dialect's requests in another one, as data."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import orjson

from proxy.conversation import Loss, Native

__all__ = [
    "UNKNOWN_FIELD",
    "FieldTable",
    "Rule",
    "general_path",
    "inverse",
    "omitted",
    "refused",
    "rows_of",
    "translated",
    "unneeded",
    "unsaid_rows_of",
]

_INDEX = re.compile(r"\[\d+\]")
_DATE = re.compile(r"_20\d{6}(?=\]$)")
"""How Anthropic ends the types of its own tools; a newer one is the same tool."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What becomes of a field.

    ``translated`` fields become the aspects ``to`` (see :data:`proxy.conversation.ASPECTS`), or, in the
    other direction, the field ``to`` of the body.  For every other one ``reason`` says why not.
    """

    handling: Literal["translated"] | Loss
    to: tuple[str, ...] = ()
    reason: str = ""


def translated(*to: str) -> Rule:
    """A field that crosses."""
    return Rule("translated", to)


def unneeded(reason: str) -> Rule:
    """A field without which the answer is the same."""
    return Rule("unneeded", reason=reason)


def omitted(reason: str) -> Rule:
    """A field that is left out, which is reported."""
    return Rule("omitted", reason=reason)


def refused(reason: str) -> Rule:
    """A field that the request is refused for."""
    return Rule("refused", reason=reason)


def inverse(read: Mapping[str, Rule]) -> dict[str, Rule]:
    """For each aspect that these fields become, the first of them."""
    found: dict[str, Rule] = {}
    for name, rule in read.items():
        for aspect in rule.to:
            found.setdefault(aspect, translated(name))
    return found


UNKNOWN_FIELD: Final = refused("This proxy does not know the field, so it cannot translate it.")
UNKNOWN_VALUE: Final = refused("This proxy does not know the value, so it cannot translate it.")


@dataclass(frozen=True, slots=True)
class FieldTable:
    """What a dialect does about every field.

    ``read`` says of each field of its requests, by its path (``messages[].name``), what it becomes; a
    part, item or tool of some type stands there as ``input[type=web_search_call]``.  ``written`` says of
    each aspect of a conversation how its bodies say it.
    """

    dialect: str
    read: Mapping[str, Rule]
    written: Mapping[str, Rule]

    def native(self, value: Any, path: str, keys: tuple[str, ...] = (), kind: str = "") -> Native:
        """Something that no other dialect has a form for; ``kind`` is its type where it has one."""
        place = general_path(path)
        if kind:
            place = f"{place.removesuffix('[]')}[type={kind}]"
        rule = self.read.get(place) or self.read.get(_DATE.sub("", place), UNKNOWN_FIELD)
        if rule.handling == "translated":
            rule = UNKNOWN_VALUE
        loss = cast("Loss", rule.handling)
        return Native(self.dialect, keys, path, orjson.dumps(value), loss, rule.reason)


def general_path(path: str) -> str:
    """A path without the numbers in it: ``messages[].name``."""
    return _INDEX.sub("[]", path)


_WORDS: Final[Mapping[str, str]] = {"unneeded": "not needed", "omitted": "left out", "refused": "refused"}


def rows_of(table: FieldTable) -> str:
    """A Markdown table of what becomes of each field of a dialect's requests in another dialect."""
    rows = ["| field | becomes |", "|---|---|"]
    for name in sorted(table.read):
        rule = table.read[name]
        becomes = f"`{'`, `'.join(rule.to)}`" if rule.to else f"{_WORDS[rule.handling]}: {rule.reason}"
        rows.append(f"| `{name}` | {becomes} |")
    return "\n".join(rows) + "\n"


def unsaid_rows_of(table: FieldTable) -> str:
    """A Markdown table of what clients of other dialects can ask for and this one has no form for."""
    rows = ["| asked for | which is |", "|---|---|"]
    for name, rule in sorted(table.written.items()):
        if not rule.to:
            rows.append(f"| `{name}` | {_WORDS[rule.handling]}: {rule.reason} |")
    return "\n".join(rows) + "\n"
