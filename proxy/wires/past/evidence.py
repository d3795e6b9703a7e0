"""Where an answer of a model stood, for conversations of which a part has changed since.

Programs cut the oldest messages off, or send what they looked up for a question with that question alone.
The whole conversation before an answer is another one then.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["Evidence", "Speaker", "fits_window", "was_asked"]

Speaker = Literal["system", "user", "model"]
"""Whose a message is.  Results of tools count as the model's: they answer its calls."""

_BEFORE: Final = "\n:>\"'`"
_BEHIND: Final = "\n<\"'`"
_ENOUGH: Final = 2
"""So many equal messages before a question say where it stood, where earlier ones were replaced."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where an answer stood, in digests.

    ``told`` is that of the messages that tell the model what it is, ``previous`` of the model's last message
    before the question, ``question`` of what was asked since then, and ``text`` its text, empty where it is
    more than text.  ``chain`` are the digests of the messages before the question, the oldest first; with
    ``whole`` these are all.
    """

    told: bytes
    previous: str
    chain: tuple[str, ...]
    question: str
    text: str
    whole: bool


def fits_window(kept: Sequence[str], shown: Sequence[str], *, whole: bool) -> bool:
    """Whether the messages ``shown`` before a question are those ``kept``, less the oldest.

    Those may be gone, or something else in their place.  ``whole`` says that all messages are shown: none
    is left then that would have to fit.
    """
    same = 0
    for one, other in zip(reversed(kept), reversed(shown), strict=False):
        if one != other:
            break
        same += 1
    return same >= _ENOUGH or (whole and same == len(shown))


def was_asked(kept: str, shown: str) -> bool:
    """Whether the text ``shown`` is the question ``kept``, or stands in it by itself: in lines of its own,
    behind a colon, in a tag or in quotes."""
    kept, shown = kept.strip(), shown.strip()
    if not shown or not kept:
        return False
    at = kept.find(shown)
    while at >= 0:
        before, behind = kept[:at].rstrip(" \t"), kept[at + len(shown) :].lstrip(" \t")
        if (not before or before[-1] in _BEFORE) and (not behind or behind[0] in _BEHIND):
            return True
        at = kept.find(shown, at + 1)
    return False
