"""How Claude's models are told to think or not to think.

Source: Anthropic's guides "Effort" and "Thinking", and the SDK's types ``ThinkingConfigParam`` and
``ThinkingTypes``.  An effort alone leaves the models of 4.6 to 4.8 without thinking; later ones think by
default.  Sonnet 5.5 refuses ``disabled`` and takes ``between_tools`` instead.
"""

from typing import Final

from proxy.base.globs import fits

__all__ = ["needs_adaptive", "thinking_off"]

_ADAPTIVE: Final = tuple(
    f"*claude-{name}*"
    for line in ("opus", "sonnet")
    for name in (*(f"{line}-4-{n}" for n in (6, 7, 8)), *(f"{line}-4.{n}" for n in (6, 7, 8)))
)
_BETWEEN_TOOLS: Final = ("*claude-sonnet-5-5*", "*claude-sonnet-5.5*")


def needs_adaptive(model: str) -> bool:
    """Return whether a model thinks only if the request asks for ``adaptive`` thinking."""
    return any(fits(model, pattern) for pattern in _ADAPTIVE)


def thinking_off(model: str) -> str:
    """Return the type of thinking with which a model thinks least."""
    return "between_tools" if any(fits(model, pattern) for pattern in _BETWEEN_TOOLS) else "disabled"
