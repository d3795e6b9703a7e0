"""Match names against patterns in which ``*`` stands for any text, without regular expressions.

:mod:`fnmatch` compiles a regular expression for each pattern, which takes a quarter of a millisecond, and
caches a few hundred of them. Each token brings its own patterns, so the holder of a key that creates tokens
could cause 60 compilations with each request.
"""

from fnmatch import fnmatchcase


def is_costly(pattern: str) -> bool:
    """Return whether a pattern needs a regular expression because it has more wildcards than ``*``."""
    return "?" in pattern or "[" in pattern


def fits(name: str, pattern: str) -> bool:
    """Return whether the whole name fits a pattern, with the same result as :func:`fnmatch.fnmatchcase`."""
    if "*" not in pattern and not is_costly(pattern):
        return name == pattern
    if is_costly(pattern):
        return fnmatchcase(name, pattern)
    first, *middle, last = pattern.split("*")
    if len(name) < len(first) + len(last) or not name.startswith(first) or not name.endswith(last):
        return False
    # Taking the first match of each part leaves the most text for the other parts.
    at, end = len(first), len(name) - len(last)
    for part in middle:
        at = name.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True
