"""Limits: how their texts are parsed, which ones hold for a caller, and the cap on open requests."""

from collections.abc import Callable, Sequence

import pytest
from limits import parse

from proxy.base.errors import ConfigError
from proxy.rights.limit_rules import (
    ConcurrentStreams,
    KeyLimits,
    Limit,
    LimitSet,
    parse_cost_limits,
    parse_limits,
)


@pytest.mark.parametrize(
    "text", ["", "often", "600", "0/minute", "600/fortnight", "-5/minute", "0.5/minute", "9" * 16 + "/day"]
)
def test_a_bad_limit_names_its_setting(text: str) -> None:
    """A text that is not a limit is refused with the name of its setting and an example."""
    with pytest.raises(ConfigError) as caught:
        parse_limits("limits.requests", [text])
    assert caught.value.setting == "limits.requests"
    assert "600/minute" in caught.value.remedy


@pytest.mark.parametrize(
    "text", ["", "5", "0/day", "0.0000000001/day", "-1/day", "1e3/day", "5 EUR/day", ".5/day"]
)
def test_a_bad_limit_of_cost_names_its_setting(text: str) -> None:
    """A text that is not a limit of cost is refused, and so is an amount too small to count."""
    with pytest.raises(ConfigError) as caught:
        parse_cost_limits("limits.cost", [text])
    assert caught.value.setting == "limits.cost"
    assert "0.50/hour" in caught.value.remedy


@pytest.mark.parametrize(
    "text",
    [
        "1 per" + " " * 150 + "x",
        "1/" + " " * 15_000,
        "1" + " " * 15_000 + "/day",
        "1/day;" * 200 + "1/day",
        "1/11 year",
        f"1/{'9' * 150}year",
    ],
)
@pytest.mark.parametrize("parse", [parse_limits, parse_cost_limits])
def test_a_limit_is_bounded_in_length_and_window(
    parse: Callable[[str, Sequence[str]], object], text: str
) -> None:
    """The parser refuses a text that is too long, and a window that is too long for the counters."""
    with pytest.raises(ConfigError):
        parse("limits.x", [text])


def test_limits_are_few() -> None:
    """A list holds at most 16 limits, whether they are in one text or in several."""
    assert len(parse_limits("x", ["1/day;2/day"] * 8)) == 16
    for texts in (["1/day;2/day"] * 8 + ["3/day"], ["1/day"] * 100_000):
        with pytest.raises(ConfigError, match="more than 16 limits"):
            parse_limits("x", texts)


def test_limits_are_read_as_written() -> None:
    """The parser reads the amount and the window of each limit, also of several limits in one text."""
    items = parse_limits("x", ["600/minute", "5 per 2 seconds; 7/day"])
    assert [(item.amount, item.get_expiry()) for item in items] == [(600, 60), (5, 2), (7, 86400)]


def test_limits_of_cost_are_decimals() -> None:
    """The parser converts an amount of cost to billionths exactly."""
    items = parse_cost_limits("x", ["5/day", "0.50/hour; 0.1 per 2 minutes", "12.000000001/month"])
    assert [(item.amount, item.get_expiry()) for item in items] == [
        (5_000_000_000, 86400),
        (500_000_000, 3600),
        (100_000_000, 120),
        (12_000_000_001, 2592000),
    ]


def test_a_limit_says_itself_in_words() -> None:
    """A limit as a text has its amount in the unit of the configuration, and its window in words."""
    assert str(Limit("requests", 600, 60)) == "600 per minute"
    assert str(Limit("tokens", 5, 7200)) == "5 per 2 hours"
    assert str(Limit("requests", 5, 90)) == "5 per 90 seconds"
    assert str(Limit("cost", 500_000_000, 86400)) == "0.5 per day"
    assert str(Limit("cost", 12 * 10**9, 2592000)) == "12 per month"
    assert str(Limit("concurrent_streams", 4, 0)) == "4"


def test_a_callers_own_limits_come_before_the_general_ones() -> None:
    """None keeps the general limit, an empty list removes it; only a caller has a cap on open streams."""
    general = KeyLimits(
        requests=parse_limits("x", ["600/minute"]),
        tool_calls=parse_limits("x", ["60/minute"]),
        tokens=parse_limits("x", ["1000/day", "1000/day"]),
        cost=parse_cost_limits("x", ["1/day"]),
    )
    assert LimitSet.of(KeyLimits(), general) == LimitSet(
        (Limit("requests", 600, 60),),
        (Limit("tool_calls", 60, 60),),
        (Limit("tokens", 1000, 86400), Limit("cost", 10**9, 86400)),
        None,
    )
    own = KeyLimits(requests=(), tokens=(parse("5/hour"),), concurrent_streams=2)
    assert LimitSet.of(own, general) == LimitSet(
        (),
        (Limit("tool_calls", 60, 60),),
        (Limit("tokens", 5, 3600), Limit("cost", 10**9, 86400)),
        2,
    )


def test_one_open_stream_too_many_is_refused() -> None:
    """One open request too many gets a 429 with OpenAI's error code and a time to wait."""
    refusal = ConcurrentStreams(2).refusal()
    assert (refusal.status, refusal.code) == (429, "rate_limit_exceeded")
    assert refusal.headers == {"retry-after": "1"}


def test_a_cap_below_one_is_refused() -> None:
    """A cap below 1 would admit no request, so it is a configuration error."""
    with pytest.raises(ConfigError, match=r"limits.concurrent_streams"):
        ConcurrentStreams(0)
