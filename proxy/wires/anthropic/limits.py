"""How many tokens a model may be asked for where a client sets no bound.

Messages needs a bound, other dialects do not.  Source: Anthropic's overview of its models, "Max output".
"""

from typing import Final

from proxy.globs import fits

__all__ = ["output_limit"]

_OTHER: Final = 8192
"""For models of other makers, and for Claude models that are not known here by another figure."""
_LIMITS: Final = (
    ("*claude-3-5-*", 8192),
    ("*claude-3-7-*", 64_000),
    ("*claude-3-*", 4096),
    ("*claude-opus-4-2025*", 32_000),
    ("*claude-opus-4-0*", 32_000),
    ("*claude-opus-4-1*", 32_000),
    ("*claude-opus-4*", 64_000),
    ("*claude-sonnet-4*", 64_000),
    ("*claude-haiku-4*", 64_000),
)
"""The first pattern that fits applies; names of gateways have a prefix or a suffix more."""


def output_limit(model: str) -> int:
    """The most output tokens that a model gives in one answer."""
    return next((most for pattern, most in _LIMITS if fits(model, pattern)), _OTHER)
