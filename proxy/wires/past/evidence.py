"""Evidence that finds the place of a model's answer in a conversation that has changed since.

Some programs cut off the oldest messages. Others add retrieved text to a question and leave it out of later
requests. Then the conversation before an answer is no longer the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["Evidence", "Speaker", "fits_window", "was_asked"]

Speaker = Literal["system", "user", "model", "tool"]
"""Who wrote a message. A result of a client's tool counts as written by the tool, not by the user."""

_BEFORE: Final = "\n:>\"'`"
_BEHIND: Final = "\n<\"'`"
_ENOUGH: Final = 2
"""How many equal messages before a question are enough if the earlier ones differ."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The place of an answer in a conversation.

    ``system`` is a digest of the system messages. ``previous`` is one of the model's last message before the
    question, ``question`` one of the messages since then. ``text`` is the text of the question, empty if
    the question is more than text. ``chain`` are digests of the messages before the question, oldest first;
    ``whole`` means that these are all.
    """

    system: bytes
    previous: str
    chain: tuple[str, ...]
    question: str
    text: str
    whole: bool


def fits_window(kept: Sequence[str], shown: Sequence[str], *, whole: bool) -> bool:
    """Return whether the messages ``shown`` before a question are the newest of those ``kept``.

    The oldest may be gone or replaced. ``whole`` means that ``shown`` are all messages; then it is enough
    that all of them match.
    """
    same = 0
    for one, other in zip(reversed(kept), reversed(shown), strict=False):
        if one != other:
            break
        same += 1
    return same >= _ENOUGH or (whole and same == len(shown))


def was_asked(kept: str, shown: str) -> bool:
    """Return whether the text ``shown`` is the question ``kept`` or a separate part of it: on lines of its
    own, after a colon, in a tag or in quotes."""
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
