"""What tokens cost."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.events import Usage
from proxy.relay.routing.prices import NANOS, Price, Prices, cost_number, cost_text, estimated_usage, to_nanos

MINI = Price(to_nanos(0.15), to_nanos(0.075), to_nanos(0.6))


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        (Usage(1_000_000, 0, 1_000_000), 150_000_000),
        (Usage(0, 1_000_000, 1_000_000), 600_000_000),
        (Usage(1_000_000, 0, 1_000_000, {}, 1_000_000), 75_000_000),
        (Usage(100, 10, 110, {}, 40), 60 * 150 + 40 * 75 + 10 * 600),
        (Usage(10, 0, 10, {}, 50), 10 * 75),
        (Usage(10, 5, 40), 10 * 150 + 30 * 600),
        (Usage(10, 5, 0), 10 * 150 + 5 * 600),
        (Usage(0, 0, 0), 0),
    ],
)
def test_a_turn_costs_its_tokens(usage: Usage, cost: int) -> None:
    """Cached tokens have a price of their own, and tokens that only the total shows are output."""
    assert MINI.cost(usage) == cost


@given(st.integers(0, 10**7), st.integers(0, 10**7), st.decimals(0, 1000, places=4))
def test_cost_is_exact_to_a_billionth(received: int, sent: int, price: Decimal) -> None:
    """The cost of a turn is that of decimal arithmetic, rounded once."""
    nanos = to_nanos(float(price))
    assert nanos == int(price * NANOS)
    exact = (Decimal(received + sent) * price * NANOS) / 1_000_000
    assert abs(Price(nanos, nanos, nanos).cost(Usage(received, sent, received + sent)) - exact) <= Decimal(
        "0.5"
    )


def test_an_absurd_count_costs_no_absurd_sum() -> None:
    """An upstream that claims more tokens than there are is believed up to a bound."""
    assert MINI.cost(Usage(10**30, 10**30, 10**30)) < 10**18


def test_names_before_patterns_and_the_clients_name_before_the_upstreams() -> None:
    """A model goes by the client's name, then the upstream's; exact names come before patterns, in order."""
    prices = {
        name: Price(number, number, number)
        for number, name in enumerate(["gpt-4o*", "gpt-*", "gpt-4o-mini", "fast"])
    }
    table = Prices(prices)
    assert table.of("gpt-4o-mini") == prices["gpt-4o-mini"]
    assert table.of("gpt-4o-mini-2024-07-18") == prices["gpt-4o*"]
    assert table.of("gpt-5") == prices["gpt-*"]
    assert table.of("fast", "gpt-4o-mini") == prices["fast"]
    assert table.of("quick", "gpt-4o-mini") == prices["gpt-4o-mini"]
    assert table.of("claude", "claude") is None
    assert Prices().of("gpt-5") is None
    assert not Prices()


def test_cost_is_shown_in_full() -> None:
    """People get every digit and two decimals at least, machines the nearest number."""
    assert [cost_text(nanos) for nanos in (None, 0, 5, 1_500_000_000, 12 * NANOS, 123_456_789_123)] == [
        "-",
        "0.00",
        "0.000000005",
        "1.50",
        "12.00",
        "123.456789123",
    ]
    assert cost_number(None) is None
    assert cost_number(123_456_789) == 0.123456789


def test_an_estimate_knows_of_text_and_events() -> None:
    """Four bytes of a request are a token, an image in it is none, and each event brings one."""
    image = b'{"url":"data:image/png;base64,' + b"iVBORw0KGgo/+" * 1000 + b'"}'
    least = estimated_usage(b'{"content":"' + b"some words " * 40 + b'"}' + image, 7)
    assert (least.output_tokens, least.total_tokens) == (7, least.input_tokens + 7)
    assert 440 // 4 <= least.input_tokens <= 520 // 4
    assert estimated_usage(b"", 0).all_tokens == 0
