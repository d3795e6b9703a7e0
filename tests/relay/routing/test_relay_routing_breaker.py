"""The circuit breaker, with a clock that the test turns."""

from proxy.relay.routing.breaker import Breaker


class Time:
    """A clock that stands still until it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def opened(failures: int = 3) -> tuple[Breaker, Time]:
    """A breaker that has just opened."""
    clock = Time()
    breaker = Breaker(failures, 30.0, clock=clock)
    for _ in range(failures):
        breaker.failed()
    return breaker, clock


def test_it_opens_after_failures_in_a_row_and_says_so_once() -> None:
    """Three failures open it, the third says so, and a success before the third begins the count anew."""
    breaker = Breaker(3, 30.0, clock=Time())
    assert [breaker.failed(), breaker.failed()] == [False, False]
    breaker.succeeded()
    assert [breaker.failed(), breaker.failed()] == [False, False]
    assert (breaker.ready, breaker.admit()) == (True, True)
    assert [breaker.failed(), breaker.failed()] == [True, False]
    assert (breaker.ready, breaker.admit()) == (False, False)


def test_half_open_it_lets_one_probe_through() -> None:
    """When its time is over one request goes out; the others wait for what becomes of it."""
    breaker, clock = opened()
    clock.now += 29.9
    assert not breaker.admit()
    clock.now += 0.1
    assert (breaker.ready, breaker.admit()) == (True, True)
    assert (breaker.ready, breaker.admit()) == (False, False)


def test_a_probe_that_is_answered_closes_it() -> None:
    """After an answer everything goes through again, and it takes as many failures as at first."""
    breaker, clock = opened()
    clock.now += 30
    assert breaker.admit()
    breaker.succeeded()
    assert breaker.admit()
    assert breaker.admit()
    assert not breaker.failed()
    assert breaker.ready


def test_a_probe_that_fails_opens_it_anew() -> None:
    """One failure is enough then, and the time begins where the probe failed."""
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
    """A client may leave before its answer; the next probe goes out after the same time."""
    breaker, clock = opened()
    clock.now += 30
    assert breaker.admit()
    clock.now += 30
    assert breaker.admit()


def test_nought_failures_never_open_it() -> None:
    """An operator can do without."""
    breaker = Breaker(0, 30.0, clock=Time())
    assert not any(breaker.failed() for _ in range(100))
    assert breaker.admit()
