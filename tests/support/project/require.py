"""What a test needs and a machine may lack: skipped by default, a failure where it is required.

``TOOLRELAY_TEST_REQUIRE`` lists, separated by commas, what must be there (``node,curl``).
"""

import os

import pytest

__all__ = ["require"]


def require(name: str, available: bool, reason: str) -> None:
    """Go on if ``available``; else skip the test with ``reason``, or fail it where ``name`` is required."""
    if available:
        return
    required = {part.strip() for part in os.environ.get("TOOLRELAY_TEST_REQUIRE", "").split(",")}
    if name in required:
        pytest.fail(f"{name} is required here: {reason}", pytrace=False)
    pytest.skip(reason)
