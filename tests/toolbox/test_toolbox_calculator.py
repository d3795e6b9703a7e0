"""``core__calculate``: the values it computes, the expressions it refuses, and its limits."""

import contextlib
import operator
from datetime import UTC, datetime
from fractions import Fraction

import pytest
from http_fakes import NoHttp
from hypothesis import given
from hypothesis import strategies as st

from proxy.base.errors import ToolFailure
from proxy.toolbox.calculator import MAX_LENGTH, calculate, evaluate
from proxy.toolbox.clock import FixedClock
from proxy.toolbox.core import core_provider
from proxy.tools.contract.provider import ArgumentsInvalid, CallContext
from proxy.tools.contract.spec import ToolEffect


async def test_the_tool_as_it_is_loaded() -> None:
    """Rules T3 and T4: the tool takes one text of limited length, is read-only, and records its result."""
    provider = core_provider(FixedClock(datetime(2026, 11, 21, tzinfo=UTC)), NoHttp().client)
    spec = {spec.name: spec for spec in await provider.list_tools()}["core__calculate"]
    assert spec.effect is ToolEffect.READ_ONLY
    assert spec.parameters["required"] == ["expression"]
    assert spec.redaction is not None
    assert spec.redaction.output == ("result", "exact")
    for arguments in ({}, {"expression": ""}, {"expression": 7}, {"expression": "1" * (MAX_LENGTH + 1)}):
        with pytest.raises(ArgumentsInvalid):
            spec.validate(arguments)
    result = await provider.call_tool(
        spec, spec.validate({"expression": "(1299.99 * 3 - 50) * 1.19"}), CallContext("r", "i", "c", "k")
    )
    assert result == {"result": "4581.4643", "exact": True}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("0.1 + 0.2", "0.3"),
        ("1.10 - 0.1", "1"),
        ("2 + 3 * 4", "14"),
        ("(2 + 3) * 4", "20"),
        ("2 - 3 - 4", "-5"),
        ("24 / 4 / 2", "3"),
        ("-2 ** 2", "-4"),
        ("(-2) ** 2", "4"),
        ("2 ** 3 ** 2", "512"),
        ("2 ** -3", "0.125"),
        ("10 ** -3", "0.001"),
        ("--2", "2"),
        ("+-+2", "-2"),
        ("3 * -2", "-6"),
        ("7 % 3", "1"),
        ("-7 % 3", "2"),
        ("7 % -3", "-2"),
        ("5.5 % 2", "1.5"),
        ("sqrt(2.25)", "1.5"),
        ("SQRT(9)", "3"),
        ("abs(-1.5)", "1.5"),
        ("floor(-2.5)", "-3"),
        ("ceil(2.1)", "3"),
        ("round(2.5)", "3"),
        ("round(-2.5)", "-3"),
        ("round(2.345, 2)", "2.35"),
        ("round(1234, -2)", "1200"),
        ("min(3, 1, 2) + max(4, 5)", "6"),
        (" .5 + 1. ", "1.5"),
        ("1e3 + 1E-1", "1000.1"),
        ("-0", "0"),
        ("99999999999999999999 * 99999999999999999999", "9999999999999999999800000000000000000001"),
        ("1e999", "1E+999"),
        ("2 ** 600", str(2**600)),
    ],
)
def test_exact_values(expression: str, value: str) -> None:
    """Operators and functions follow the usual precedence, and a result without rounding is marked exact."""
    assert evaluate(expression) == (value, True)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 / 3", "0." + "3" * 50),
        ("2 / 3", "0." + "6" * 49 + "7"),
        ("1 / 3 * 3", "1"),
        ("floor(1 / 3 * 3)", "1"),
        ("1 / 3 * 3 % 1", "0"),
        ("2 ** (1 / 3 * 3)", "2"),
        ("round(100 / 3, 2)", "33.33"),
        ("sqrt(2)", "1.4142135623730950488016887242096980785696718753769"),
        ("10 ** 200 + 1", "1E+200"),
    ],
)
def test_rounded_values(expression: str, value: str) -> None:
    """If a step had to round, the result has at most 50 digits and is marked as not exact."""
    assert evaluate(expression) == (value, False)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("1 / 0", "divides by zero"),
        ("0 / 0", "divides by zero"),
        ("1 % 0", "divides by zero"),
        ("0 ** -1", "divides by zero"),
        ("0 ** 0", "no defined value"),
        ("sqrt(-1)", "no defined value"),
        ("1e300 % 7", "no defined value"),
        ("2 ** 10000", "more than 1000 digits"),
        ("1e999 * 100", "more than 1000 digits"),
        ("1e9999", "more than 1000 digits"),
        ("1e-999 / 10 ** 300", "too small"),
        ("min(1e-1100, 1 / 3)", "too small"),
        ("7e-1060 % (1 / 3)", "too small"),
    ],
)
def test_values_that_are_none(expression: str, said: str) -> None:
    """A division by zero, an undefined value or one beyond the limits is a failure that names the cause."""
    with pytest.raises(ToolFailure, match=said) as caught:
        evaluate(expression)
    assert caught.value.code == "execution_failed"


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("", "ends too early"),
        ("   ", "ends too early"),
        ("1 +", "ends too early"),
        ("(1", "ends too early"),
        ("15%", "ends too early"),
        ("sqrt", "ends too early"),
        ("1)", "character 2 "),
        ("1 2", "character 3 "),
        ("2(3)", "character 2 "),
        ("1, 2", "character 2 "),
        ("min()", "character 5 "),
        ("min(1,)", "character 7 "),
        ("5 // 2", "character 4 "),
        ("2 ^ 3", "character 3 .*not understood"),
        ("1..2", "character 1 .*not understood"),
        ("0x10", "character 1 .*not understood"),
        ("1_000", "character 1 .*not understood"),
        ("1e", "character 1 .*not understood"),
        ("1e99999", "character 1 .*not understood"),
        ("1 + ٣", "character 5 .*not understood"),
        ("__import__('os')", "not understood"),
        ("open(1)", "is none of sqrt, abs"),
        ("sqrt(1, 2)", "another number of values"),
        ("round(1, 2, 3)", "another number of values"),
        ("2 ** 0.5", "whole number"),
        ("2 ** 10001", "whole number"),
        ("round(1, 51)", "places"),
        ("round(1, 0.5)", "places"),
        ("(" * 40 + "1" + ")" * 40, "nested deeper"),
        ("-" * 40 + "1", "nested deeper"),
        ("1" * (MAX_LENGTH + 1), "longer than"),
    ],
)
def test_what_is_no_expression(expression: str, said: str) -> None:
    """Rule T3: an invalid expression fails with a message that names the problem and quotes nothing."""
    with pytest.raises(ToolFailure, match=said) as caught:
        evaluate(expression)
    assert caught.value.code == "invalid_arguments"
    for word in ("__import__", "0x10", "open", "'os'"):
        assert word not in caught.value.message


def outcome(expression: str) -> tuple[str, str]:
    """Return "value" and the value of an expression, or the code and the message of its failure."""
    try:
        return "value", evaluate(expression)[0]
    except ToolFailure as failure:
        return failure.code, failure.message


@given(st.text(alphabet="0123456789.eE+-*/%(), sqrtminroundfloor_'", max_size=60) | st.text(max_size=80))
def test_any_text(expression: str) -> None:
    """Any text gives a value or a ToolFailure of limited length, never another exception."""
    kind, text = outcome(expression)
    assert kind in ("value", "invalid_arguments", "execution_failed")
    assert 0 < len(text) <= 300
    if kind == "value":
        Fraction(text)


SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
NUMBERS = st.decimals(-(10**9), 10**9, places=3).map(lambda number: (str(number), Fraction(number)))
EXPRESSIONS = st.recursive(
    NUMBERS,
    lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(
        lambda parts: (
            f"({parts[0][0]} {parts[1]} {parts[2][0]})",
            SIGNS[parts[1]](parts[0][1], parts[2][1]),
        )
    ),
    max_leaves=8,
)


ODD_NUMBERS = st.builds("{}e{}".format, st.integers(0, 10**30), st.integers(-1200, 1001)) | st.sampled_from(
    ["0", "1", "3", "7", "0.5", "1e-1199", "9.9e999", "1e999"]
)
ODD_EXPRESSIONS = st.recursive(
    ODD_NUMBERS,
    lambda inner: (
        st.builds("({}{}{})".format, inner, st.sampled_from(["+", "-", "*", "/", "%", "**"]), inner)
        | st.builds("{}({})".format, st.sampled_from(["sqrt", "abs", "floor", "ceil", "round", "-"]), inner)
        | st.builds("{}({},{})".format, st.sampled_from(["min", "max", "round"]), inner, inner)
    ),
    max_leaves=6,
)


@given(ODD_EXPRESSIONS)
def test_at_the_ends_of_the_numbers(expression: str) -> None:
    """An expression of very small or very large numbers raises no exception other than ToolFailure."""
    with contextlib.suppress(ToolFailure):
        evaluate(expression)


@given(EXPRESSIONS)
def test_sums_and_products_are_those_of_fractions(pair: tuple[str, Fraction]) -> None:
    """Sums, differences and products of decimals are exact."""
    expression, wanted = pair
    text, exact = evaluate(expression)
    assert (Fraction(text), exact) == (wanted, True)


@pytest.mark.parametrize(
    ("unit", "kind"),
    [
        ("9**9**9%7+", "invalid_arguments"),
        ("sqrt(2)*", "value"),
        ("(1/3)**999*0+", "value"),
        ("9**999/7+", "value"),
        ("max(1/7,2/7)**-99+", "value"),
    ],
)
def test_the_longest_expressions(unit: str, kind: str) -> None:
    """An expression of nearly the maximum length terminates, even with roots, powers and divisions."""
    assert outcome(unit * (MAX_LENGTH // len(unit) - 1) + "1")[0] == kind


def test_the_function_itself() -> None:
    """The declared function can be called directly."""
    assert calculate("2 * 2.50") == {"result": "5", "exact": True}
