"""Token limits to send to a model if the client sets none.

Messages needs a limit, other dialects do not.  Source: Anthropic's overview of its models, "Max output".
"""

from typing import Final

from proxy.globs import fits

__all__ = ["output_limit"]

_OTHER: Final = 8192
"""The limit for models of other makers, and for Claude models without a limit in the table."""
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
"""The first pattern that fits applies; gateways add a prefix or a suffix to a model's name."""


def output_limit(model: str) -> int:
    """Return the largest number of output tokens that a model gives in one answer."""
    return next((most for pattern, most in _LIMITS if fits(model, pattern)), _OTHER)
