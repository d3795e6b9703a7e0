"""Evidence that finds the place of a model's answer in a conversation that has changed since.

Some programs cut off the oldest messages. Others add retrieved text to a question and leave it out of later
requests. Then the conversation before an answer is no longer the same.
"""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from msgspec import Struct

Speaker = Literal["system", "user", "model", "tool"]
"""Who wrote a message. A result of a client's tool counts as written by the tool, not by the user."""

_BEFORE: Final = "\n:>\"'`"
_BEHIND: Final = "\n<\"'`"
_BLANKS: Final = " \t"
_CHAINED_CHARS: Final = 12


class Evidence(Struct, frozen=True):
    """The place of an answer in a conversation.

    ``system`` is a digest of the system messages, and ``question`` one of the messages since the model's last
    message. ``text`` is the text of the question, empty if the question is more than text. ``chain`` are
    digests of the messages before the question, oldest first.
    """

    system: bytes
    chain: tuple[str, ...]
    question: str
    text: str


class Place(NamedTuple):
    """The part of :class:`Evidence` that takes no time.

    ``system`` is the same digest, ``first`` the position of the question. ``whole`` says whether all
    messages before the question are in the chain.
    """

    system: bytes
    first: int
    whole: bool


def chained(digest: str) -> str:
    """Return the beginning of a message's digest: long enough for a chain, of which each answer keeps one."""
    return digest[:_CHAINED_CHARS]


def fits_window(kept: Sequence[str], shown: Sequence[str]) -> bool:
    """Return whether all messages ``shown`` before a question are the newest of those ``kept``.

    The oldest ones may be gone. A message that is still there must be the same: otherwise the client has
    edited it, or this is another conversation that ends alike.
    """
    gone = len(kept) - len(shown)
    return gone >= 0 and list(kept[gone:]) == list(shown)


def was_asked(kept: str, shown: str) -> bool:
    """Return whether the text ``shown`` is the question ``kept`` or a separate part of it: on lines of its
    own, after a colon, in a tag or in quotes."""
    kept, shown = kept.strip(), shown.strip()
    if not shown or not kept:
        return False
    at = kept.find(shown)
    while at >= 0:
        before, behind = at - 1, at + len(shown)
        while before >= 0 and kept[before] in _BLANKS:
            before -= 1
        while behind < len(kept) and kept[behind] in _BLANKS:
            behind += 1
        if (before < 0 or kept[before] in _BEFORE) and (behind == len(kept) or kept[behind] in _BEHIND):
            return True
        at = kept.find(shown, at + 1)
    return False
