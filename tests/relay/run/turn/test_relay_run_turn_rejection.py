"""How long the proxy waits before it asks again for a turn."""

import time
from dataclasses import dataclass
from email.utils import formatdate
from typing import cast

import pytest

from proxy.relay.run.turn.rejection import retry_wait
from proxy.upstreams.base import UpstreamResponse


@dataclass
class _Answer:
    """The part of a response that is read."""

    headers: list[tuple[str, str]]


def wait(*headers: tuple[str, str], attempt: int = 0) -> float | None:
    """The wait that these headers ask for."""
    return retry_wait(cast(UpstreamResponse, _Answer([*headers])), attempt)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ([], 0.5),
        ([("Retry-After", "2")], 2.0),
        ([("retry-after-ms", "1500")], 1.5),
        ([("Retry-After", "soon"), ("retry-after-ms", "20")], 0.02),
        ([("Retry-After", "soon")], 0.5),
        ([("Retry-After", "6")], None),
        ([("Retry-After", formatdate(1, usegmt=True))], 0.0),
    ],
)
def test_what_is_waited(headers: list[tuple[str, str]], seconds: float | None) -> None:
    """The wait is the upstream's, up to 5 s; unreadable headers are no wait."""
    assert wait(*headers) == seconds


def test_a_date_is_waited_for() -> None:
    """``Retry-After`` may be a date (RFC 9110); one that is far away ends the run's retries."""
    seconds = wait(("Retry-After", formatdate(time.time() + 4, usegmt=True)))
    assert seconds is not None
    assert 2 < seconds <= 4
    assert wait(("Retry-After", formatdate(time.time() + 60, usegmt=True))) is None
