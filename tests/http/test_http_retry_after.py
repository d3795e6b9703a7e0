"""How long a server asks its clients to wait."""

import time
from email.utils import formatdate

import pytest

from proxy.http.retry_after import wait_in_seconds


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("0", 0.0), ("7", 7.0), (" 7 ", 7.0), ("1.5", 1.5), (formatdate(1, usegmt=True), 0.0)],
)
def test_what_is_told(value: str, seconds: float) -> None:
    """A number is seconds, and a date in the past means now."""
    assert wait_in_seconds(value) == seconds


@pytest.mark.parametrize(
    "value", [None, "", "soon", "-1", "nan", "inf", "1e3", "٣", "9" * 65, "Sat, 99 Nov 2020"]
)
def test_what_tells_nothing(value: str | None) -> None:
    """Other values are no wait."""
    assert wait_in_seconds(value) is None


def test_a_date_to_come_is_so_far_away() -> None:
    """A date gives the seconds until then."""
    seconds = wait_in_seconds(formatdate(time.time() + 1000, usegmt=True))
    assert seconds is not None
    assert 900 < seconds <= 1000
