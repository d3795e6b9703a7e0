"""Redaction: allowlist for outputs, mask for arguments, and a bound on both; rule T4."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.tools.redaction import MASK, bounded, mask_private_values, redact_arguments, redact_output
from proxy.tools.spec import Redaction

OUTPUT = {
    "offers": [{"id": 1, "price": {"amount": "9", "currency": "EUR"}, "name": "Ada"}, {"id": 2}],
    "next": "token",
    "by_day": {"mon": {"n": 1, "who": "Ada"}, "tue": {"n": 2}},
}


@pytest.mark.parametrize(
    ("paths", "shown"),
    [
        ((), None),
        (("*",), OUTPUT),
        (("missing",), {}),
        (("next",), {"next": "token"}),
        (("offers.*.id",), {"offers": [{"id": 1}, {"id": 2}]}),
        (("offers.id",), {}),
        (("offers.*.price.amount",), {"offers": [{"price": {"amount": "9"}}, {}]}),
        (
            ("offers.*.price", "offers.*.price.amount"),
            {"offers": [{"price": OUTPUT["offers"][0]["price"]}, {}]},
        ),
        (("by_day.*.n",), {"by_day": {"mon": {"n": 1}, "tue": {"n": 2}}}),
        (("by_day.mon.who", "by_day.*.n"), {"by_day": {"mon": {"who": "Ada", "n": 1}, "tue": {"n": 2}}}),
        (("next.deeper",), {}),
    ],
)
def test_only_allowlisted_output_is_shown(paths, shown):
    """Rule T4: what no path names is not shown; a list is entered by * only."""
    assert redact_output(OUTPUT, Redaction(output=paths)) == shown


@pytest.mark.parametrize("value", ["text", 7, None, ["a"]])
def test_plain_output_needs_the_star(value):
    """Rule T4: an output without fields is shown by ("*",) alone."""
    assert redact_output(value, Redaction(output=("text", "a"))) is None
    assert redact_output(value, Redaction(output=("*",))) == value


def test_private_arguments_are_masked():
    """Rule T4: private fields are masked, at any depth, and everything else stays."""
    arguments = {"pin": "1", "people": [{"name": "Ada", "mail": "a@b"}], "map": {"x": {"k": 1}}, "n": None}
    rule = Redaction(private_arguments=("pin", "people.*.mail", "map.*.k"))
    assert redact_arguments(arguments, rule) == {
        "pin": MASK,
        "people": [{"name": "Ada", "mail": MASK}],
        "map": {"x": {"k": MASK}},
        "n": None,
    }
    assert redact_arguments(arguments, Redaction()) == arguments
    assert arguments["pin"] == "1", "the arguments themselves are not touched"


def test_private_values_are_masked_in_messages():
    """Rule T4: a message that quotes a private argument is masked, longest value first."""
    rule = Redaction(private_arguments=("pin", "box"))
    arguments = {"pin": "12", "box": {"deep": ["1234", 77, True]}, "open": "free"}
    said = mask_private_values("12 and 1234 and 77 and free and True", arguments, rule)
    assert said == f"{MASK} and {MASK} and {MASK} and free and True"
    assert mask_private_values("12", arguments, Redaction()) == "12"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=2000),
    lambda inner: st.lists(inner, max_size=100) | st.dictionaries(st.text(), inner, max_size=100),
    max_leaves=300,
)


@settings(max_examples=30, deadline=None)
@given(json_values)
def test_whatever_is_shown_is_bounded(value):
    """Rule T7: nothing that traces and rows show is ever large, and it is still JSON."""
    assert len(json.dumps(bounded(value), ensure_ascii=False)) < 64 * 1024


def test_bounds_hold_for_deep_wide_and_long():
    """Depth, breadth, long texts and giant numbers are cut and marked."""
    deep: Any = "leaf"
    for _ in range(60):
        deep = [deep]
    assert "leaf" not in repr(bounded(deep))
    assert len(bounded(list(range(1000)))) == 65
    assert bounded("x" * 1000) == "x" * 512 + "[cut]"
    assert bounded({"n": 10**40}) == {"n": "[cut]"}
    assert len(repr(bounded({str(n): "y" * 500 for n in range(1000)}))) < 64 * 1024
