"""``core__calculate``: decimal arithmetic on an expression, with its own parser.

Nothing is evaluated as code. Numbers are decimals of 200 digits, so that ``0.1 + 0.2`` is ``0.3``. If a
step has to round (``1 / 3``, ``sqrt(2)``), the answer has 50 digits and says that it is not exact. Length,
nesting, digits and exponents are limited, and so is the time: at the limits an expression takes milliseconds.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import (
    ROUND_CEILING,
    ROUND_FLOOR,
    ROUND_HALF_EVEN,
    ROUND_HALF_UP,
    Clamped,
    Context,
    Decimal,
    DecimalException,
    DivisionByZero,
    Inexact,
    InvalidOperation,
    Overflow,
    Underflow,
)
from types import MappingProxyType
from typing import Annotated, Any, NoReturn

from msgspec import Struct
from pydantic import Field

from proxy.base.errors import ToolFailure
from proxy.tools.contract.spec import Redaction
from proxy.tools.providers.function import tool

MAX_LENGTH = 500
MAX_DEPTH = 32
WORKING_DIGITS = 200
SETTLED_DIGITS = 150
SHOWN_DIGITS = 50
MAX_EXPONENT = 10_000
MAX_MAGNITUDE = 1_000
"""The number of digits that a number may have on either side of the point."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]{1,4})?(?![A-Za-z0-9_.]))"
    r"|(?P<name>[A-Za-z_]{1,16}[0-9]*)|(?P<sign>\*\*|[-+*/%(),]))"
)


class _Token(Struct, frozen=True):
    """One token and the position of its first character, from 1. The end token has an empty text."""

    kind: str
    text: str
    at: int


def evaluate(expression: str) -> tuple[str, bool]:
    """Return the value of an expression as plain decimal text, and whether no step had to round.

    Raises :class:`ToolFailure` for text that is no expression, a division by zero, an undefined
    value, or a number beyond the limits. No message repeats the text.
    """
    if len(expression) > MAX_LENGTH:
        _refuse(f"the expression is longer than {MAX_LENGTH} characters")
    context = _context()
    parser = _Parser(_tokens(expression), context)
    try:
        value = parser.value()
        exact = not context.flags[Inexact]
        # Writing rounds to fewer digits, so a number may become too small or too large here, too.
        return _text(value, exact), exact
    except DivisionByZero:
        raise ToolFailure("the expression divides by zero") from None
    except Overflow:
        raise ToolFailure(f"a number has more than {MAX_MAGNITUDE} digits before the point") from None
    except (Underflow, Clamped):
        raise ToolFailure("a number is too small to be told from zero") from None
    except (InvalidOperation, DecimalException):
        raise ToolFailure("a step of the expression has no defined value") from None


@tool(
    name="calculate",
    description=(
        "Evaluate an arithmetic expression with exact decimals. Takes numbers, + - * / % ** and "
        "parentheses, and sqrt, abs, floor, ceil, round(x, places), min and max; ** takes whole "
        "exponents, round goes half away from zero"
    ),
    effect="read_only",
    redaction=Redaction(output=("result", "exact")),
)
def _calculate(
    expression: Annotated[
        str,
        Field(
            description="The expression, e.g. (1299.99 * 3 - 50) * 1.19", min_length=1, max_length=MAX_LENGTH
        ),
    ],
) -> dict[str, Any]:
    """Return ``{"result", "exact"}``; ``result`` is decimal text, rounded where not ``exact``."""
    result, exact = evaluate(expression)
    return {"result": result, "exact": exact}


calculate: Callable[..., Any] = _calculate


def _context(rounding: str = ROUND_HALF_EVEN, digits: int = WORKING_DIGITS) -> Context:
    """Build a decimal context that raises for every meaningless number."""
    return Context(
        prec=digits,
        rounding=rounding,
        Emin=-MAX_MAGNITUDE,
        Emax=MAX_MAGNITUDE,
        traps=[DivisionByZero, InvalidOperation, Overflow, Underflow],
    )


def _refuse(message: str) -> NoReturn:
    """Raise a failure that says that the expression itself is wrong."""
    raise ToolFailure(message, code="invalid_arguments")


def _tokens(expression: str) -> list[_Token]:
    """Return the tokens of an expression, with an end token last."""
    tokens: list[_Token] = []
    at, end = 0, len(expression.rstrip())
    while at < end:
        match = _TOKEN.match(expression, at, end)
        if match is None or match.lastgroup is None:
            at += len(expression[at:end]) - len(expression[at:end].lstrip())
            _refuse(f"character {at + 1} of the expression is not understood")
        kind = match.lastgroup
        tokens.append(_Token(kind, match[kind], match.start(kind) + 1))
        at = match.end()
    return [*tokens, _Token("end", "", end + 1)]


class _Parser:
    """Parses and computes in one pass, by recursive descent; precedence is Python's."""

    def __init__(self, tokens: Sequence[_Token], context: Context) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0
        self._context = context

    def value(self) -> Decimal:
        """Return the value of all tokens."""
        value = self._sum()
        if self._peek().kind != "end":
            self._unexpected()
        return value

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, *texts: str) -> str | None:
        """Consume the next token if it is one of ``texts``; return its text, else ``None``."""
        token = self._peek()
        if token.kind != "sign" or token.text not in texts:
            return None
        self._next += 1
        return token.text

    def _unexpected(self) -> NoReturn:
        token = self._peek()
        if token.kind == "end":
            _refuse("the expression ends too early")
        _refuse(f"character {token.at} of the expression is not expected there")

    def _expect(self, text: str) -> None:
        if self._take(text) is None:
            self._unexpected()

    def _sum(self) -> Decimal:
        value = self._product()
        while sign := self._take("+", "-"):
            other = self._product()
            combine = self._context.add if sign == "+" else self._context.subtract
            value = combine(value, other)
        return value

    def _product(self) -> Decimal:
        value = self._signed()
        while sign := self._take("*", "/", "%"):
            other = self._signed()
            if sign == "*":
                value = self._context.multiply(value, other)
            elif sign == "/":
                value = self._divide(value, other)
            else:
                value = self._modulo(value, other)
        return value

    def _signed(self) -> Decimal:
        """Parse a power with any signs before it: ``-2 ** 2`` is -4."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            _refuse(f"the expression is nested deeper than {MAX_DEPTH}")
        sign = self._take("+", "-")
        if sign is None:
            value = self._power()
        else:
            value = self._signed()
            value = self._context.minus(value) if sign == "-" else value
        self._depth -= 1
        return value

    def _power(self) -> Decimal:
        base = self._atom()
        if self._take("**") is None:
            return base
        exponent = _settled(self._context, self._signed())
        if exponent != exponent.to_integral_value() or abs(exponent) > MAX_EXPONENT:
            _refuse(f"an exponent must be a whole number of at most {MAX_EXPONENT}")
        raised = self._context.power(base, abs(exponent))
        return raised if exponent >= 0 else self._divide(Decimal(1), raised)

    def _divide(self, value: Decimal, by: Decimal) -> Decimal:
        if not by:
            raise DivisionByZero  # Also for 0 / 0, which is an undefined value for decimals.
        return self._context.divide(value, by)

    def _modulo(self, value: Decimal, by: Decimal) -> Decimal:
        """Return the remainder with the sign of the divisor."""
        if not by:
            raise DivisionByZero
        rest = self._context.remainder(_settled(self._context, value), by)
        return self._context.add(rest, by) if rest and (rest < 0) != (by < 0) else rest

    def _atom(self) -> Decimal:
        token = self._peek()
        if token.kind == "number":
            self._next += 1
            return self._context.create_decimal(token.text)
        if token.kind == "name":
            return self._call(token)
        self._expect("(")
        value = self._sum()
        self._expect(")")
        return value

    def _call(self, token: _Token) -> Decimal:
        function = _FUNCTIONS.get(token.text.lower())
        if function is None:
            _refuse(f"the name at character {token.at} is none of {', '.join(_FUNCTIONS)}")
        self._next += 1
        self._expect("(")
        values = [self._sum()]
        while self._take(","):
            values.append(self._sum())
        self._expect(")")
        if not function.least <= len(values) <= function.most:
            _refuse(f"the function at character {token.at} takes another number of values")
        return function.apply(self._context, values)


def _settled(context: Context, value: Decimal) -> Decimal:
    """Return ``value`` without its last digits if any step was rounded.

    Some steps depend on which side of a whole number a value lies. For them ``1 / 3 * 3`` must be 1 and not
    a little less.
    """
    return _context(digits=SETTLED_DIGITS).plus(value) if context.flags[Inexact] else value


def _rounded(context: Context, value: Decimal, places: Decimal, rounding: str) -> Decimal:
    """Round ``value`` to a number of places after the point.

    Rounding that the expression asks for is no loss. It happens in a context of its own, whose flags do not
    make the answer inexact.
    """
    if places != places.to_integral_value() or not -SHOWN_DIGITS <= places <= SHOWN_DIGITS:
        _refuse(f"round takes a whole number of places, {SHOWN_DIGITS} at most")
    value = _settled(context, value)
    if value.as_tuple().exponent >= -int(places):  # type: ignore[operator]  # Always finite here.
        return value
    return value.quantize(Decimal((0, (1,), -int(places))), context=_context(rounding, 2 * MAX_MAGNITUDE))


_Apply = Callable[[Context, Sequence[Decimal]], Decimal]


def _whole(rounding: str) -> _Apply:
    """Build a function that rounds to a whole number in one direction."""
    return lambda context, values: _rounded(context, values[0], Decimal(0), rounding)


def _round(context: Context, values: Sequence[Decimal]) -> Decimal:
    """Apply ``round(x)`` or ``round(x, places)``; halves are rounded away from zero."""
    return _rounded(context, values[0], values[1] if len(values) == 2 else Decimal(0), ROUND_HALF_UP)


class _Function(Struct, frozen=True):
    """A function that an expression may call, and the number of values it takes."""

    least: int
    most: int
    apply: _Apply


_FUNCTIONS: Mapping[str, _Function] = MappingProxyType(
    {
        "sqrt": _Function(1, 1, lambda context, values: context.sqrt(values[0])),
        "abs": _Function(1, 1, lambda context, values: context.abs(values[0])),
        "floor": _Function(1, 1, _whole(ROUND_FLOOR)),
        "ceil": _Function(1, 1, _whole(ROUND_CEILING)),
        "round": _Function(1, 2, _round),
        "min": _Function(1, 100, lambda _, values: min(values)),
        "max": _Function(1, 100, lambda _, values: max(values)),
    }
)


def _text(value: Decimal, exact: bool) -> str:
    """Return plain decimal text without needless zeros; very large and small numbers as ``1.5E+300``."""
    if not exact:
        value = _context(digits=SHOWN_DIGITS).plus(value)
    if not value:
        return "0"
    value = value.normalize(_context())
    if -WORKING_DIGITS < value.adjusted() < WORKING_DIGITS:
        return format(value, "f")
    return str(value)
