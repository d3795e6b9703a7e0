"""The client's limit on output tokens, which all turns of its run share."""

from typing import Final

LEAST_TOKENS: Final = 16
"""The number of tokens that a turn may always use, whatever the earlier turns of its run used."""


def tokens_left(bound: int, used: int, least: int = LEAST_TOKENS) -> bytes:
    """Return, as JSON text, the client's ``bound`` on output tokens minus the tokens ``used``.

    The result is at least ``least``, or ``bound`` if that is lower still.
    """
    return str(max(bound - used, min(least, bound))).encode()
