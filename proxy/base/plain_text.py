"""Escape control characters in untrusted text for a terminal.

A model, a tool or a client chooses much of what the commands print: names, messages, error texts. Escape
sequences in it could rewrite what the operator has read, set the window's title or paste into the shell.
Bidirectional overrides could turn a line around, and ``[link=…]`` is a command to rich.
"""

import json
import re
import unicodedata
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:  # Imported only where something is printed: the server prints plain lines only.
    from rich.text import Text

DEFAULT_LIMIT: Final = 200

_HIDDEN_CATEGORIES: Final = frozenset(
    {
        "Cc",  # control characters: C0, DEL, C1
        "Cf",  # formats: bidirectional marks and overrides, zero-width ones, tags
        "Cs",  # surrogates, which no terminal's encoding has
        "Co",  # private use
        "Cn",  # not assigned
        "Zl",  # line separator
        "Zp",  # paragraph separator
    }
)
INVISIBLE: Final = frozenset(
    map(chr, (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x2800, 0x3164, 0xFFA0))
) | frozenset(map(chr, range(0xE0100, 0xE01F0)))
"""Letters and marks that look like nothing. Source: Default_Ignorable_Code_Point of Unicode, and the empty
pattern of Braille."""

VARIATIONS: Final = frozenset(map(chr, range(0xFE00, 0xFE10)))
"""Each selects the look of the character before it; many in a row could encode a text."""

HIDDEN: Final = (
    "\x00-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5"
    "\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ud800-\udfff\ufeff\uffa0\ufff9-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0001\U000e0020-\U000e007f\U000e0100-\U000e01ef"
)
"""All characters that act or hide, as a class of a regular expression without its brackets.

Those are the assigned characters of the categories Cc, Cf, Cs, Zl and Zp, and :data:`INVISIBLE`.
"""

_ACTING: Final = re.compile(f"[{HIDDEN}]")
_LAYOUT: Final = "\n\t"

_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}
_MOST_COMBINING: Final = 4


def plain_text(text: str, limit: int = DEFAULT_LIMIT) -> str:
    """Return the text on one line, with each control character as an escape (``\\x1b``).

    A backslash is doubled, so that an escape differs from the same letters in the text. At most ``limit``
    characters of the text are shown, then an ellipsis. Use it for output that interprets no markup, such as
    an error line.
    """
    shown: list[str] = []
    combining, before = 0, ""
    for character in text[:limit]:
        # Some languages put a few marks on a letter; a pile of them would cover other lines.
        combining = combining + 1 if unicodedata.category(character) in ("Mn", "Me") else 0
        if combining > _MOST_COMBINING or character in INVISIBLE or _is_idle(character, before):
            shown.append(written_out(character))
        elif character in _SHORT:
            shown.append(_SHORT[character])
        elif unicodedata.category(character) in _HIDDEN_CATEGORIES:
            shown.append(written_out(character))
        else:
            shown.append(character)
        before = character
    if len(text) > limit:
        shown.append("…")
    return "".join(shown)


def printable(text: str) -> str:
    """Return lines with each character that acts or hides as an escape; only line feeds and tabs stay.

    It is for output that is escaped already where somebody else wrote it: nothing reaches a terminal past it.
    """
    return _ACTING.sub(lambda found: found[0] if found[0] in _LAYOUT else written_out(found[0]), text)


def written_out(character: str) -> str:
    """Return a character as an escape: ``\\x1b``, ``\\u202e``, ``\\U000e0041``."""
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def ascii_json(value: Any, *, default: Callable[[Any], Any] | None = None, compact: bool = False) -> str:
    """Return JSON on one line, in which each character that is not printable ASCII is an escape of JSON's.

    So no character acts or hides where the text is shown, and a parser gets the same value. ``default`` and
    the errors raised are those of ``json.dumps``; ``compact`` leaves out spaces.
    """
    separators = (",", ":") if compact else None
    return json.dumps(value, default=default, separators=separators).replace("\x7f", "\\u007f")


def safe_cell(text: str, style: str = "", limit: int = DEFAULT_LIMIT) -> "Text":
    """Return the text as a rich object, in which no markup and no ``:emoji:`` is interpreted."""
    from rich.text import Text

    return Text(plain_text(text, limit), style=style)


def counted(number: int, thing: str) -> str:
    """Return a number with its noun, whose plural ends in -s: ``1 turn``, ``2 turns``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _is_idle(character: str, before: str) -> bool:
    """Return whether a character selects the look of the one before it, but there is none."""
    return character in VARIATIONS and (before in VARIATIONS or not before.strip())
