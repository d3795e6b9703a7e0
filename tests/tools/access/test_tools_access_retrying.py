"""When to retry a request to a service: the headers that say so, and the wait."""

import time

import pytest
from multidict import CIMultiDict

from proxy.tools.access.retrying import parse_retry_after, wait_before_retry

PAST = "Sat, 21 Nov 2020 13:07:00 GMT"


@pytest.mark.parametrize(
    ("status", "headers", "seconds"),
    [
        (429, {"ratelimit-limit": "60", "ratelimit-remaining": "0", "ratelimit-reset": PAST}, 0.0),
        (429, {"RateLimit-Remaining": "0", "RateLimit-Reset": "53"}, 53.0),
        (429, {"ratelimit-reset": "53"}, 53.0),
        (429, {"ratelimit-remaining": " 0 ", "ratelimit-reset": "1"}, 1.0),
        (429, {"ratelimit-remaining": "7", "ratelimit-reset": "53"}, None),
        (429, {"ratelimit-remaining": "0", "ratelimit-reset": "soon"}, None),
        (429, {"ratelimit-remaining": "0"}, None),
        (429, {"ratelimit-remaining": "0", "ratelimit-reset": "53", "retry-after": "1"}, 1.0),
        (429, {"ratelimit-remaining": "0", "ratelimit-reset": "53", "retry-after": "soon"}, 53.0),
        (503, {"ratelimit-remaining": "0", "ratelimit-reset": "53"}, None),
        (503, {"Retry-After": "2"}, 2.0),
        (429, {}, None),
    ],
)
def test_what_is_told(status: int, headers: dict[str, str], seconds: float | None) -> None:
    """The wait comes from ``Retry-After``, or else after a 429 from the reset of a used-up rate limit."""
    assert parse_retry_after(status, CIMultiDict(headers)) == seconds


def test_a_date_to_come_is_so_far_away() -> None:
    """A rate limit's reset that is a date gives the seconds until that date."""
    moment = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 1000))
    retry_after_s = parse_retry_after(
        429, CIMultiDict({"ratelimit-remaining": "0", "ratelimit-reset": moment})
    )
    assert retry_after_s is not None
    assert 0 < retry_after_s <= 1000


@pytest.mark.parametrize(
    ("status", "retry_after_s", "attempt", "repeatable", "wait"),
    [
        (429, None, 0, False, 0.25),
        (429, None, 2, False, 1.0),
        (429, 2.0, 0, False, 2.0),
        (429, 2.1, 0, True, None),
        (503, None, 0, True, 0.25),
        (503, None, 0, False, None),
        (503, 0.0, 0, False, 0.0),
        (503, None, 4, True, None),
        (500, 0.0, 0, True, None),
        (404, None, 0, True, None),
    ],
)
def test_what_is_waited(
    status: int, retry_after_s: float | None, attempt: int, repeatable: bool, wait: float | None
) -> None:
    """The wait grows by attempt or is the service's own if short; ``None`` means that no retry is safe."""
    assert wait_before_retry(status, retry_after_s, attempt, repeatable=repeatable) == wait
