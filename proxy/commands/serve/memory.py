"""Memory settings to be applied first, so that a serving process holds no more than it needs."""

import os
import sys

_M_ARENA_MAX = -8
"""The value in glibc's ``malloc.h``."""


def share_one_arena() -> None:
    """Let all threads allocate from one arena; call this before a second thread starts.

    By default, glibc gives each thread its own arena, which keeps freed memory. Python threads take turns
    anyway, so they gain nothing from it. Does nothing with another C library, or if the operator has set the
    number.
    """
    tuned = "MALLOC_ARENA_MAX" in os.environ or "arena_max" in os.environ.get("GLIBC_TUNABLES", "")
    if sys.platform != "linux" or tuned:
        return
    try:
        import ctypes  # Only serving processes need it.

        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    except (ImportError, OSError):  # Some builds of Python lack it or are linked statically.
        return
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
