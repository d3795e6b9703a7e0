"""What is done before all else, so that a process that serves holds no more than it needs."""

import os
import sys

__all__ = ["share_one_arena"]

_M_ARENA_MAX = -8
"""As ``malloc.h`` of glibc has it."""


def share_one_arena() -> None:
    """Let all threads allocate in one arena, before any but the first has begun.

    glibc gives each thread an arena of its own, which keeps what it once needed; threads of Python take
    turns anyway.  Does nothing with another C library, and where the operator has chosen a number.
    """
    tuned = "MALLOC_ARENA_MAX" in os.environ or "arena_max" in os.environ.get("GLIBC_TUNABLES", "")
    if sys.platform != "linux" or tuned:
        return
    try:
        import ctypes  # Only who serves needs it.

        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    except (ImportError, OSError):  # Some builds of Python are without it, or linked statically.
        return
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
