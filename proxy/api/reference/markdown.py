"""Converts the reference's simple Markdown to plain text or HTML."""

import html
import re
from typing import Final

_MARKED: Final = re.compile(r"`([^`]+)`|\[([^\]\[]+)\]\([^)]+\)")


def plain(text: str) -> str:
    """Return Markdown without its marks; a link becomes its words, since the documentation is elsewhere."""
    return _MARKED.sub(lambda match: match[1] or match[2], text)


def marked_up(text: str) -> str:
    """Return Markdown as HTML; a link becomes its words."""
    return _MARKED.sub(
        lambda match: f"<code>{match[1]}</code>" if match[1] else match[2], html.escape(text, quote=False)
    )
