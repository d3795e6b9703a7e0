"""Patterns of names in which ``*`` stands for any text, matched without regular expressions.

:mod:`fnmatch` compiles one for each pattern, in a quarter of a millisecond, and keeps a few hundred of them.
Those of a token come new with each token, so that whoever holds one could have 60 made for each request.
"""

from fnmatch import fnmatchcase

__all__ = ["fits", "is_costly"]


def is_costly(pattern: str) -> bool:
    """Whether a pattern takes a regular expression after all: it has more than ``*`` in it."""
    return "?" in pattern or "[" in pattern


def fits(name: str, pattern: str) -> bool:
    """Whether all of a name fits a pattern; the same as :func:`fnmatch.fnmatchcase` says."""
    if "*" not in pattern and not is_costly(pattern):
        return name == pattern
    if is_costly(pattern):
        return fnmatchcase(name, pattern)
    first, *middle, last = pattern.split("*")
    if len(name) < len(first) + len(last) or not name.startswith(first) or not name.endswith(last):
        return False
    # Each part where it stands first leaves the most for the others.
    at, end = len(first), len(name) - len(last)
    for part in middle:
        at = name.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True
