"""A construct of regular expressions that some Python versions match wrongly."""

import sys

_SOUND = sys.version_info >= (3, 11, 5)


def repeated(pattern: bytes) -> bytes:
    """Return a pattern that matches ``pattern`` as often as possible and never gives a repetition back.

    Python before 3.11.5 continues in the wrong place if a further repetition matches only partly
    (gh-100061). A greedy group inside an atomic group means the same, and is a little slower.
    """
    return rb"(?:%b)*+" % pattern if _SOUND else rb"(?>(?:%b)*)" % pattern
