"""Fixtures that run each case on every wire, and with and without tools offered."""

from collections.abc import Iterator

import pytest
from faults_rig import MODES
from probe_tools import WATCH, Watch
from wire_kits import KITS, Kit


@pytest.fixture(params=KITS)
def kit(request: pytest.FixtureRequest) -> Kit:
    """Run the test on each wire."""
    return KITS[request.param]


@pytest.fixture(params=MODES)
def allow(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The tools that the policy allows: none, so that bytes pass through, or some, so that they are read."""
    return MODES[request.param]


@pytest.fixture(autouse=True)
def watch() -> Iterator[Watch]:
    """Reset the record of the probe tools; release waiting ones at the end."""
    WATCH.reset()
    yield WATCH
    WATCH.go_on.set()
