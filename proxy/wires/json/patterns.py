"""A part of regular expressions that not every Python reads right."""

import sys

__all__ = ["repeated"]

_SOUND = sys.version_info >= (3, 11, 5)


def repeated(pattern: bytes) -> bytes:
    """``pattern`` as often as it fits, and never less often to make the rest fit.

    Pythons before 3.11.5 go on in the wrong place where one more of a group fits half (gh-100061).
    A greedy group in an atomic one means the same, with a little more work.
    """
    return rb"(?:%b)*+" % pattern if _SOUND else rb"(?>(?:%b)*)" % pattern
