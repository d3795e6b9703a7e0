"""What this process asks of Linux for itself; on other systems these functions do nothing.

Source: ``prctl(2)`` and the kernel's ``linux/prctl.h``.
"""

import sys
from typing import Final

_PR_SET_DUMPABLE: Final = 4
_PR_SET_CHILD_SUBREAPER: Final = 36


def hide_memory() -> None:
    """Let no other process of this user read the memory or the environment of this one, or trace it.

    It also writes no core dump. Only root may still look, with ``py-spy`` for example. A program that this
    process starts is not affected.
    """
    _prctl(_PR_SET_DUMPABLE, 0)


def adopt_orphans() -> None:
    """Let descendants whose parent has ended become children of this process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if sys.platform != "linux":
        return
    try:
        import ctypes  # Only some processes need it.

        prctl = getattr(ctypes.CDLL(None), "prctl", None)
    except (ImportError, OSError):  # Some builds of Python lack it or are linked statically.
        return
    if prctl is not None:
        prctl(option, value, 0, 0, 0)
