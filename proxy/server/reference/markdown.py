"""The little Markdown of the reference's texts, for readers who have only the text."""

import html
import re
from typing import Final

__all__ = ["marked_up", "plain"]

_MARKED: Final = re.compile(r"`([^`]+)`|\[([^\]]+)\]\([^)]+\)")


def plain(text: str) -> str:
    """Markdown without its marks; of a link its words, since the documentation is elsewhere."""
    return _MARKED.sub(lambda found: found[1] or found[2], text)


def marked_up(text: str) -> str:
    """Markdown as HTML; of a link its words."""
    return _MARKED.sub(
        lambda found: f"<code>{found[1]}</code>" if found[1] else found[2], html.escape(text, quote=False)
    )
