"""Skips a test if the machine lacks a program that it needs, or fails it if the program is required.

``TOOLRELAY_TEST_REQUIRE`` lists the required programs, separated by commas (``node,curl``).
"""

import os

import pytest


def require(name: str, available: bool, reason: str) -> None:
    """Go on if ``available``; else skip the test with ``reason``, or fail it if ``name`` is required."""
    if available:
        return
    required = {part.strip() for part in os.environ.get("TOOLRELAY_TEST_REQUIRE", "").split(",")}
    if name in required:
        pytest.fail(f"{name} is required here: {reason}", pytrace=False)
    pytest.skip(reason)
