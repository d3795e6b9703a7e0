"""Each case runs on every wire, and where it matters with and without tools offered."""

from collections.abc import Iterator

import pytest
from faults_rig import MODES
from probe_tools import WATCH, Watch
from wire_kits import KITS, Kit


@pytest.fixture(params=KITS)
def kit(request: pytest.FixtureRequest) -> Kit:
    """One wire after the other."""
    return KITS[request.param]


@pytest.fixture(params=MODES)
def allow(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """What the policy allows: nothing, so that bytes pass through, or tools, so that they are read."""
    return MODES[request.param]


@pytest.fixture(autouse=True)
def watch() -> Iterator[Watch]:
    """The probe tools, with nothing on their record."""
    WATCH.reset()
    yield WATCH
    WATCH.go_on.set()
