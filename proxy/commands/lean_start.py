"""What is loaded before all else, so that a process that serves holds no more than it needs."""

import sys

__all__ = ["import_structlog"]


def import_structlog() -> None:
    """Import structlog without the console library that it takes where it finds one.

    It is for drawn tracebacks; ours are plain (``server/telemetry.py``).  With what it brings it is
    four megabytes of each process.  Whoever imports it afterwards gets it as ever.
    """
    if "rich" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment]  # The import fails, as if there were none.
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]
