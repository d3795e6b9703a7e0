"""Digests of what a client was shown of a turn."""

import hashlib
import json
from collections.abc import Sequence

from proxy.events import ToolCall

__all__ = ["digest_of_calls", "digest_of_text"]


def digest_of_text(text: str) -> str:
    """A digest of a text that a client was shown, in hexadecimal; of none, too.

    Blanks around it do not count: models begin and end with them, and libraries trim.
    """
    return hashlib.blake2b(text.strip().encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def digest_of_calls(calls: Sequence[ToolCall]) -> str:
    """A digest of what a client was asked to do, in hexadecimal."""
    asked = json.dumps([[call.name, call.arguments] for call in calls])
    return hashlib.blake2b(asked.encode(), digest_size=16).hexdigest()
