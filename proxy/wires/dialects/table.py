"""Which endpoint a request asks for: the one place where a path is compared with those of the dialects."""

from typing import Final

from proxy.wires.dialect import Dialect, Endpoint
from proxy.wires.dialects import chat, openai, responses

__all__ = ["DIALECTS", "ENDPOINTS", "find_endpoint"]

DIALECTS: Final[dict[str, Dialect]] = {
    dialect.name: dialect for dialect in (chat.CHAT, responses.RESPONSES, openai.OPENAI)
}
"""By name."""

ENDPOINTS: Final = (*chat.ENDPOINTS, *responses.ENDPOINTS, *openai.ENDPOINTS)
"""All that is known, the more particular before the more general."""

_PLAIN: Final = {(known.method, known.path): known for known in ENDPOINTS if "{" not in known.path}
_PATTERNS: Final = [(known.method, known.pattern, known) for known in ENDPOINTS if "{" in known.path]
_OTHER: Final = Endpoint(openai.OPENAI, "", "")


def find_endpoint(method: str, below: str) -> Endpoint:
    """What a request asks for, by its method and its path below the prefix.

    One of kind ``other`` where that is nothing known: it passes through.
    """
    found = _PLAIN.get((method, below))
    if found is not None:
        return found
    for wanted, pattern, known in _PATTERNS:
        if wanted == method and pattern.fullmatch(below) is not None:
            return known
    return _OTHER
