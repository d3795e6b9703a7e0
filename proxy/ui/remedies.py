"""Explain why a tool is withheld, and which lines of the configuration would change that.

The rules are those that policy and planning name (``policy.allow lacks "core__a"``). This module changes
nothing: the page shows what an operator would write.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
from msgspec import Struct, field

_LACKS: Final = re.compile(r'(?P<setting>.+) lacks "(?P<tool>[^"]*)"\Z', re.DOTALL)
_HAS: Final = re.compile(
    r'(?P<setting>policy\.(?:approve|approve_effects|approve_safety)) has "(?P<word>.*)"\Z'
)
_MISSING: Final = re.compile(r"credentials\.(?P<name>[A-Za-z0-9_-]+) is missing\Z")
_KEYS_LIST: Final = re.compile(r"the tool list of key (?P<key>.+)\Z")
_SETTING: Final = re.compile(r"(?P<table>[A-Za-z0-9_.-]+)\.(?P<name>[a-z_]+)\Z")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+\Z")
_MOST_SHOWN: Final = 200
_OF_THE_REQUEST: Final[Mapping[str, str]] = {
    "the request runs in the background": "The client sends background: true. Without it, tools are offered.",
    "the request asks for more than one choice": "The client sends n > 1; server tools need n = 1.",
    "the request forbids tool calls": 'The client sends tool_choice: "none".',
    "the request forces a tool of the client's own": "The client's tool_choice names one of its own tools.",
    "the client declared a function of this name": "The client declares a function of this name itself; "
    "set tools.aliases to run the server's tool in its place.",
}


class Lines(Struct, frozen=True):
    """The configuration's lists that decide about tools, by their settings (``policy.allow``)."""

    lists: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def with_word(self, setting: str, word: str) -> list[str]:
        """Return a list with this word added."""
        have = list(self.lists.get(setting, ()))
        return have if word in have else [*have, word]

    def without(self, setting: str, word: str) -> list[str]:
        """Return a list without this word."""
        return [value for value in self.lists.get(setting, ()) if value != word]


def remedy_of(rule: str, tool: str, upstream: str, lines: Lines) -> dict[str, Any] | None:
    """Return what would change a rule's decision: the setting, its new lines as TOML, and a note.

    Returns ``None`` for an unknown rule. ``toml`` is ``None`` if no setting decides.
    """
    if (note := _OF_THE_REQUEST.get(rule)) is not None:
        return _remedy(None, None, note)
    if rule == "tools.enabled is false":
        return _remedy("tools.enabled", _toml("tools.enabled", True), None)
    if rule == "the upstream takes no tools":
        setting = f"upstreams.{upstream}.tools"
        return _remedy(
            setting, _toml(setting, True), "Run `toolrelay doctor` to find out whether its models call tools."
        )
    if rule.startswith("policy.after_untrusted"):
        note = "With this, text from untrusted pages and servers can lead to calls with effects."
        return _remedy("policy.after_untrusted", _toml("policy.after_untrusted", "allow"), note)
    if (match := _MISSING.match(rule)) is not None:
        setting = f"credentials.{match['name']}"
        return _remedy(setting, f'[{setting}]\ntoken = "env:NAME"', "See docs/credentials.md.")
    if (match := _HAS.match(rule)) is not None:
        setting = match["setting"]
        note = "With this, its calls run without approval."
        return _remedy(setting, _toml(setting, lines.without(setting, match["word"])), note)
    if (match := _LACKS.match(rule)) is not None:
        return _of_list(match["setting"], match["tool"] or tool, lines)
    return None


def _of_list(setting: str, tool: str, lines: Lines) -> dict[str, Any]:
    """Return the change for a list that must name the tool."""
    if (key := _KEYS_LIST.match(setting)) is not None:
        return _remedy(
            None,
            None,
            f"The key {key['key'][:64]} was created with a fixed list of tools. Create one that names it.",
        )
    if not _SETTING.match(setting):
        return _remedy(None, None, f"{setting[:100]} does not name the tool.")
    return _remedy(setting, _toml(setting, lines.with_word(setting, tool)), None)


def _remedy(setting: str | None, toml: str | None, note: str | None) -> dict[str, Any]:
    return {"setting": setting, "toml": toml, "note": note}


def _toml(setting: str, value: bool | str | list[str]) -> str:
    """Return a setting in its table, as TOML."""
    table, _, name = setting.rpartition(".")
    parts = [part if _BARE.match(part) else orjson.dumps(part).decode() for part in table.split(".")]
    shown = value
    if isinstance(shown, list):
        shown = shown[:_MOST_SHOWN]
        text = "[" + ", ".join(orjson.dumps(word).decode() for word in shown) + "]"
    else:
        text = orjson.dumps(shown).decode()
    return f"[{'.'.join(parts)}]\n{name} = {text}"
