"""The providers as sets of rules, and what each of them says to a request."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from provider_rules.chat import CHAT_RULES
from provider_rules.messages import MESSAGES_RULES
from provider_rules.ollama import OLLAMA_RULES
from provider_rules.responses import RESPONSES_RULES
from provider_rules.rule import Asked, Body, Fault, Rule
from provider_rules.shapes import SHAPES

JSON = Rule("json", tuple(SHAPES), lambda _: (), "RFC 8259")
"""A body that is not the JSON of an object, or whose members have impossible types."""
RULES: Mapping[str, Rule] = {
    rule.name: rule for rule in (JSON, *CHAT_RULES, *RESPONSES_RULES, *MESSAGES_RULES, *OLLAMA_RULES)
}
"""All rules by their names."""
PROVIDERS: Mapping[str, tuple[Rule, ...]] = {
    name: tuple(rule for rule in RULES.values() if name in rule.providers) for name in SHAPES
}
"""The rules of each provider."""
REFERENCE: Mapping[str, str] = {
    "chat": "openai", "responses": "openai-responses", "messages": "anthropic", "ollama": "ollama",
}  # fmt: skip
"""The provider that stands for each dialect."""
_PATHS = {
    "/chat/completions": "chat", "/responses": "responses", "/messages": "messages", "/api/chat": "ollama"
}  # fmt: skip


class Broken(NamedTuple):
    """A rule that a request breaks, and how."""

    rule: Rule
    fault: Fault

    def __str__(self) -> str:
        said = self.fault.said or f"unknown: {self.fault.place}"
        return f"{self.rule.name}: {said} (source: {self.rule.source})"


@dataclass(frozen=True)
class Refusal:
    """A provider's error."""

    status: int
    body: Any

    @property
    def data(self) -> bytes:
        """The body as JSON."""
        return json.dumps(self.body, default=str).encode()


def dialect_of(target: str) -> str | None:
    """Return the dialect of a path with its query, or ``None`` if the path asks no model."""
    path = target.partition("?")[0]
    return next((dialect for end, dialect in _PATHS.items() if path.endswith(end)), None)


def broken(
    provider: str, body: bytes | Body, headers: Iterable[tuple[str, str]] = (), off: Iterable[str] = ()
) -> Iterator[Broken]:
    """Yield the rules of a provider that a request breaks, except those whose names are ``off``."""
    try:
        parsed = json.loads(body) if isinstance(body, bytes) else body
    except ValueError:
        parsed = None
    try:
        if not isinstance(parsed, dict):
            raise TypeError("the body is not a JSON object")
        asked = Asked({name.lower(): value for name, value in headers}, parsed)
        for rule in PROVIDERS[provider]:
            if rule.name not in off:
                yield from (Broken(rule, fault) for fault in rule.faults(asked))
    except (AttributeError, KeyError, TypeError) as error:
        if JSON.name not in off:
            yield Broken(JSON, Fault(f"Invalid type: {error}"))


def refusal(provider: str, found: Iterable[Broken]) -> Refusal | None:
    """Return the provider's error for the first rule that is not only ignored."""
    first = next((one for one in found if not one.rule.ignored), None)
    return None if first is None else Refusal(*SHAPES[provider](first.fault))
