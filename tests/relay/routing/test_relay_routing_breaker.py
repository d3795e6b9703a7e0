"""The circuit breaker, with a clock that the test sets."""

from proxy.relay.routing.breaker import Breaker


class Time:
    """A clock that changes only when the test sets it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def opened(failures: int = 3) -> tuple[Breaker, Time]:
    """A breaker that has just opened, and its clock."""
    clock = Time()
    breaker = Breaker(failures, 30.0, clock=clock)
    for _ in range(failures):
        breaker.failed()
    return breaker, clock


def test_it_opens_after_failures_in_a_row_and_says_so_once() -> None:
    """Three failures in a row open it, only the third one is reported, and a success resets the count."""
    breaker = Breaker(3, 30.0, clock=Time())
    assert [breaker.failed(), breaker.failed()] == [False, False]
    breaker.succeeded()
    assert [breaker.failed(), breaker.failed()] == [False, False]
    assert (breaker.ready, breaker.admit()) == (True, True)
    assert [breaker.failed(), breaker.failed()] == [True, False]
    assert (breaker.ready, breaker.admit()) == (False, False)


def test_half_open_it_lets_one_probe_through() -> None:
    """When its time is over, the breaker admits one request as a probe and no other request."""
    breaker, clock = opened()
    clock.now += 29.9
    assert not breaker.admit()
    clock.now += 0.1
    assert (breaker.ready, breaker.admit()) == (True, True)
    assert (breaker.ready, breaker.admit()) == (False, False)


def test_a_probe_that_is_answered_closes_it() -> None:
    """After an answered probe the breaker admits every request, and one failure does not open it."""
    breaker, clock = opened()
    clock.now += 30
    assert breaker.admit()
    breaker.succeeded()
    assert breaker.admit()
    assert breaker.admit()
    assert not breaker.failed()
    assert breaker.ready


def test_a_probe_that_fails_opens_it_anew() -> None:
    """One failed probe opens the breaker again, and its time starts at that failure."""
    breaker, clock = opened()
    clock.now += 30
    assert breaker.admit()
    clock.now += 10
    assert not breaker.failed()
    clock.now += 29.9
    assert not breaker.ready
    clock.now += 0.1
    assert breaker.ready


def test_a_probe_that_never_ends_holds_nothing_up() -> None:
    """If a probe never ends, because its client left, the next one is admitted after the same time."""
    breaker, clock = opened()
    clock.now += 30
    assert breaker.admit()
    clock.now += 30
    assert breaker.admit()


def test_nought_failures_never_open_it() -> None:
    """With 0 as the number of failures the breaker never opens."""
    breaker = Breaker(0, 30.0, clock=Time())
    assert not any(breaker.failed() for _ in range(100))
    assert breaker.admit()
