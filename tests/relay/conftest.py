"""What the tests of the relay share."""

from collections.abc import Iterator

import pytest
from probe_tools import WATCH, Watch


@pytest.fixture
def watch() -> Iterator[Watch]:
    """What the probe tools do, forgotten between tests."""
    WATCH.reset()
    yield WATCH
    WATCH.reset()
