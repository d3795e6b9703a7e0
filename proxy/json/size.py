"""Count the values in a JSON text before it is parsed.

A parser makes an object of 50 to 200 bytes for each value, in about 50 ns, and lets nothing else run
meanwhile. So the cost of a text depends on its values, not on its bytes. One long string is cheap; a list
of empty objects takes thirty times its own size in memory.
"""

from typing import Final

from proxy.json.in_thread import LARGE_BYTES

MOST_READ_VALUES: Final = 600_000
"""The most values that the proxy reads in one event or reply of an upstream. A long answer with the twenty
likeliest alternatives for each token has half a million. To free as many takes 20 ms of the event loop."""

SMALL_BYTES: Final = 64 * 1024
"""A text of at most this size is parsed on the event loop, whatever it holds."""
_FEW_VALUES: Final = 10_000
"""Parsed in 5 to 20 ms, including the check for duplicate keys."""

_WINDOW: Final = 1 << 16
_OPENERS_AND_COMMAS: Final = (b",", b"{", b"[")


def is_large(raw: bytes | bytearray) -> bool:
    """Return whether a text is too large to be parsed on the event loop."""
    size = len(raw)
    return size > SMALL_BYTES and (size > LARGE_BYTES or count_values(raw, _FEW_VALUES) > _FEW_VALUES)


def count_values(data: bytes | bytearray, limit: int) -> int:
    """Return how many values ``data`` may hold, counting containers and their contents.

    Keys do not count. An empty container counts as two, because it takes the memory of several numbers. If
    the text holds at most ``limit`` values, the result is at most ``limit``, but it may be too high.
    Otherwise it is any larger number. This serves callers that only compare, and costs them no more. Text
    that is not JSON is counted as what a parser might make of it before it notices.

    Every value but the first follows a comma or an opening bracket. So these are counted first, wherever
    they are. Only if there are too many of them, the strings are cut out.
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
    """Count again without the marks inside strings, which takes a few times as long.

    The work is done in windows, so that it ends early and takes little memory. A window never ends between
    a backslash and the character that it escapes.
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
        # Pairs first: after this, a backslash before a quote escapes the quote.
        pieces = window.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(pieces[quotes % 2 :: 2])
        quotes += len(pieces) - 1
        for mark in _OPENERS_AND_COMMAS:
            count += outside.count(mark)
        # A value has at most one string of its own and one for its key, and a string has two quotes. So a
        # text with more quotes has too many values, or is malformed. Without this check it could take
        # seconds.
        if count > limit or quotes > 4 * limit:
            return limit + 1
    return count
