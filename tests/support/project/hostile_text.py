"""A text that tries everything on a terminal, and the check that nothing of it acts."""

import re

from proxy.base.plain_text import HIDDEN

EVIL = "owned\x1b]0;title\x07\x1b[2J\x9b31m\u202e\u2066\u200b\ufeff\x7f\u2028\U000e0041[bold]\nFAKE line"
"""It sets a title, clears the screen, colours, turns lines around, hides, and begins a line of its own."""

ACTS = re.compile(f"(?![\n\t])[{HIDDEN}]|^\\s*FAKE", re.MULTILINE)


def checked(printed: str) -> str:
    """The text of a command, which has nothing of the evil text but its visible characters."""
    assert ACTS.search(printed) is None, repr(printed)
    return printed
