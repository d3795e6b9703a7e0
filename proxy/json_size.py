"""The number of values in a JSON text, counted before it is parsed.

A parser makes an object of 50 to 200 bytes for each value, in about 50 ns, without letting anything else run:
what a text costs hangs on its values, not on its bytes. One long string is cheap; a list of empty objects
takes thirty times its own size in memory.
"""

from typing import Final

from proxy.in_thread import LARGE_BYTES

__all__ = ["MOST_READ_VALUES", "SMALL_BYTES", "count_values", "is_large"]

MOST_READ_VALUES: Final = 600_000
"""Of one event or reply of an upstream's that is read: a long answer with the likeliest twenty of each token
has half a million.  To free as many takes 20 ms of the loop."""

SMALL_BYTES: Final = 64 * 1024
"""A text of no more than that is parsed where it stands, whatever it holds."""
_FEW_VALUES: Final = 10_000
"""Parsed in 5 to 20 ms, with the check for repeated keys."""

_WINDOW: Final = 1 << 16
_OPENERS_AND_COMMAS: Final = (b",", b"{", b"[")


def is_large(raw: bytes | bytearray) -> bool:
    """Whether a text is not to be parsed on the event loop."""
    size = len(raw)
    return size > SMALL_BYTES and (size > LARGE_BYTES or count_values(raw, _FEW_VALUES) > _FEW_VALUES)


def count_values(data: bytes | bytearray, limit: int) -> int:
    """How many values ``data`` may hold, containers and what is in them.

    Keys do not count, and an empty container counts for two: it takes the memory of several numbers.
    The answer is not more than ``limit`` where the text holds no more, though up to ``limit`` it may be too
    high: whoever needs only the comparison pays for nothing else.  Past it, it is just some larger number.
    Text that is not JSON is counted as what a parser might make of it before it finds out.

    A value but the first follows a comma or an opening bracket, so these are counted first, wherever they
    stand; only where that is too many are the strings cut out.
    """
    if len(data) <= limit:
        return len(data)
    bound = 1
    for start in range(0, len(data), _WINDOW):
        stop = start + _WINDOW
        for mark in _OPENERS_AND_COMMAS:
            bound += data.count(mark, start, stop)
        if bound > limit:
            return _count_outside_strings(data, limit)
    return bound


def _count_outside_strings(data: bytes | bytearray, limit: int) -> int:
    """The same with the marks that stand in strings left out, which takes a few times as long.

    It is done by windows, so that it ends early and takes little memory.  A window never ends between a
    backslash and what that escapes.
    """
    count, quotes, start, size = 1, 0, 0, len(data)
    while start < size:
        window = data[start : start + _WINDOW]
        start += _WINDOW
        if window.endswith(b"\\") and start < size:
            escapes = len(window) - len(window.rstrip(b"\\"))
            if escapes % 2:
                window = window[:-1]
                start -= 1
        # Pairs first: then a backslash before a quote escapes it.
        pieces = window.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(pieces[quotes % 2 :: 2])
        quotes += len(pieces) - 1
        for mark in _OPENERS_AND_COMMAS:
            count += outside.count(mark)
        # Each value has one string of its own and one for its key at most, and each string two quotes: so a
        # text of more quotes has too many values, or is malformed.  Without this it could take seconds.
        if count > limit or quotes > 4 * limit:
            return limit + 1
    return count
