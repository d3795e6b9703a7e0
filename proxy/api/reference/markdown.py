"""Converts the reference's simple Markdown to plain text or HTML."""

import html
import re
from typing import Final

__all__ = ["marked_up", "plain"]

_MARKED: Final = re.compile(r"`([^`]+)`|\[([^\]\[]+)\]\([^)]+\)")


def plain(text: str) -> str:
    """Return Markdown without its marks; a link becomes its words, since the documentation is elsewhere."""
    return _MARKED.sub(lambda found: found[1] or found[2], text)


def marked_up(text: str) -> str:
    """Return Markdown as HTML; a link becomes its words."""
    return _MARKED.sub(
        lambda found: f"<code>{found[1]}</code>" if found[1] else found[2], html.escape(text, quote=False)
    )
