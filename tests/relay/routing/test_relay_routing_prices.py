"""The cost of tokens."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.base.events import Usage
from proxy.relay.routing.prices import NANOS, Price, Prices, cost_number, cost_text, estimated_usage, to_nanos

MINI = Price(to_nanos(0.15), to_nanos(0.075), to_nanos(0.3), to_nanos(0.6))


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        (Usage(1_000_000, 0, 1_000_000), 150_000_000),
        (Usage(0, 1_000_000, 1_000_000), 600_000_000),
        (Usage(1_000_000, 0, 1_000_000, {}, 1_000_000), 75_000_000),
        (Usage(100, 10, 110, {}, 40), 60 * 150 + 40 * 75 + 10 * 600),
        (Usage(10, 0, 10, {}, 50), 10 * 75),
        (Usage(100, 10, 110, {}, 40, 0, 20), 40 * 150 + 40 * 75 + 20 * 300 + 10 * 600),
        (Usage(10, 0, 10, {}, 4, 0, 50), 4 * 75 + 6 * 300),
        (Usage(10, 5, 40), 10 * 150 + 30 * 600),
        (Usage(10, 5, 0), 10 * 150 + 5 * 600),
        (Usage(0, 0, 0), 0),
    ],
)
def test_a_turn_costs_its_tokens(usage: Usage, cost: int) -> None:
    """Each kind of token has its own price; tokens that only the total counts are priced as output."""
    assert MINI.cost(usage) == cost


@given(st.integers(0, 10**7), st.integers(0, 10**7), st.decimals(0, 1000, places=4))
def test_cost_is_exact_to_a_billionth(received: int, sent: int, price: Decimal) -> None:
    """The cost of a turn equals exact decimal arithmetic, rounded once."""
    nanos = to_nanos(float(price))
    assert nanos == int(price * NANOS)
    exact = (Decimal(received + sent) * price * NANOS) / 1_000_000
    assert abs(
        Price(nanos, nanos, nanos, nanos).cost(Usage(received, sent, received + sent)) - exact
    ) <= Decimal("0.5")


def test_an_absurd_count_costs_no_absurd_sum() -> None:
    """The cost is bounded, however many tokens an upstream claims."""
    assert MINI.cost(Usage(10**30, 10**30, 10**30)) < 10**18


def test_names_before_patterns_and_the_clients_name_before_the_upstreams() -> None:
    """The client's model name comes before the upstream's, an exact name before patterns in their order."""
    prices = {
        name: Price(number, number, number, number)
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
    """The text for people has every digit and at least two decimals; machines get the nearest float."""
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
    """Four bytes of a request count as a token, an image in it as none, each event of the answer as one."""
    image = b'{"url":"data:image/png;base64,' + b"iVBORw0KGgo/+" * 1000 + b'"}'
    least = estimated_usage(b'{"content":"' + b"some words " * 40 + b'"}' + image, 7)
    assert (least.output_tokens, least.total_tokens) == (7, least.input_tokens + 7)
    assert 440 // 4 <= least.input_tokens <= 520 // 4
    assert estimated_usage(b"", 0).all_tokens == 0
