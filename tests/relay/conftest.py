"""Fixtures that the tests of the relay share."""

from collections.abc import Iterator

import pytest
from probe_tools import WATCH, Watch


@pytest.fixture
def watch() -> Iterator[Watch]:
    """What the probe tools did; it is reset before and after each test."""
    WATCH.reset()
    yield WATCH
    WATCH.reset()
