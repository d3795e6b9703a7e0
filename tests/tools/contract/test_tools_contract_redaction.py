"""Redaction: an allowlist for outputs, a mask for arguments, and a size limit for both; rule T4."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, SecretBytes, SecretStr

from proxy.tools import Redaction, ToolTester, tool
from proxy.tools.contract.redaction import (
    MASK,
    bounded,
    described,
    mask_arguments,
    mask_values,
    private_values,
    redact_arguments,
    redact_output,
)
from proxy.tools.contract.spec import ToolSpec
from proxy.tools.providers.function import FunctionProvider

OUTPUT: dict[str, Any] = {
    "offers": [{"id": 1, "price": {"amount": "9", "currency": "EUR"}, "name": "Ada"}, {"id": 2}],
    "next": "token",
    "by_day": {"mon": {"n": 1, "who": "Ada"}, "tue": {"n": 2}},
}


class Text(str):
    """A subclass of ``str``, as a library may define it."""


class Number(int):
    """A subclass of ``int``."""


class Object(dict[str, Any]):
    """A subclass of ``dict``."""


class Items(list[Any]):
    """A subclass of ``list``."""


def test_kinds_of_a_librarys_own_are_what_they_derive_from() -> None:
    """Rule T4: ``bounded`` cuts values of subclasses of str, int, dict and list like the base types."""
    own = Object(
        a=Text("x" * 9999), b=Items([Number(1 << 70), Number(7), True]), c=Object(d=Items([[]] * 99))
    )
    plain = {"a": "x" * 9999, "b": [1 << 70, 7, True], "c": {"d": [[]] * 99}}
    shown = bounded(own)
    assert shown == bounded(plain)
    assert shown["b"] == ["[cut]", 7, True]
    assert len(shown["a"]) < 600
    assert len(shown["c"]["d"]) == 65


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
def test_only_allowlisted_output_is_shown(paths: tuple[str, ...], shown: dict[str, Any] | None) -> None:
    """Rule T4: only output that a path names is shown; a path reaches a list's elements by * only."""
    assert redact_output(OUTPUT, Redaction(output=paths)) == shown


@pytest.mark.parametrize("value", ["text", 7, None, ["a"]])
def test_plain_output_needs_the_star(value: object) -> None:
    """Rule T4: an output without fields is shown by ("*",) alone."""
    assert redact_output(value, Redaction(output=("text", "a"))) is None
    assert redact_output(value, Redaction(output=("*",))) == value


class Principal(BaseModel):
    """A person with a secret, and with a friend of the same type."""

    model_config = ConfigDict(extra="forbid")
    name: str
    pin: SecretStr = SecretStr("")
    friend: "Principal | None" = None


def test_what_is_secret_by_its_type_is_private() -> None:
    """Rule T4: a secret type is masked at any depth, and a recursive model with a secret as a whole."""

    @tool(effect="read_only", redaction=Redaction(private_arguments=("note",)))
    async def login(
        word: SecretStr,
        raw: SecretBytes,
        note: str,
        who: Principal,
        many: list[Principal],
        either: int | SecretStr,
    ) -> str:
        """Log in."""
        return word.get_secret_value()

    ada = {"name": "Ada", "pin": "1", "friend": None}
    called = ToolTester(login).call(
        word="w", raw="r", note="n", who={**ada, "friend": ada}, many=[ada], either="e"
    )
    masked = {"name": "Ada", "pin": MASK, "friend": MASK}
    assert called.content == "w"
    assert called.arguments_redacted == {
        **dict.fromkeys(("word", "raw", "note", "either"), MASK),
        "who": masked,
        "many": [masked],
    }


def test_a_model_inside_itself_without_secrets_is_shown() -> None:
    """A recursive model without secrets is not masked."""

    class Folder(BaseModel):
        name: str
        inner: "list[Folder]" = []

    @tool(effect="read_only", redaction=Redaction())
    async def look(folder: Folder, by_name: dict[str, SecretStr]) -> str:
        """Look."""
        return "seen"

    folder = {"name": "a", "inner": [{"name": "b"}]}
    shown = ToolTester(look).call(folder=folder, by_name={"a": "s"}).arguments_redacted
    assert shown == {"folder": folder, "by_name": {"a": MASK}}


def test_private_arguments_are_masked() -> None:
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


def test_what_is_in_the_way_of_a_private_path_is_masked() -> None:
    """Rule T4: if the model gives a text where a private path expects an object, the text is masked."""
    rule = Redaction(private_arguments=("person.pin", "list.*.pin"))
    arguments = {"person": "4711", "list": ["4711", None, {"pin": 1, "open": 2}]}
    assert redact_arguments(arguments, rule) == {
        "person": MASK,
        "list": [MASK, None, {"pin": MASK, "open": 2}],
    }


def test_private_values_are_masked_in_messages() -> None:
    """Rule T4: private values are masked in messages, the longest value first."""
    rule = Redaction(private_arguments=("pin", "box"))
    arguments = {"pin": "12", "box": {"deep": ["1234", 77, True]}, "open": "free"}
    values = private_values(rule, arguments, {"pin": "AB"})
    said = mask_values("12 and 1234 and 77 and AB and free and True", values)
    assert said == f"{MASK} and {MASK} and {MASK} and {MASK} and free and True"
    assert private_values(Redaction(), arguments) == ()


def test_no_private_value_is_too_many_or_shows_by_the_mask() -> None:
    """Rule T4: each of many private values is masked, even if a value is a part of the mask itself."""
    rule = Redaction(private_arguments=("names",))
    names = [f"user{number}@example.com" for number in range(200)]
    values = private_values(rule, {"names": [*names, "v", "secret", "cretin"]})
    for name in names:
        assert mask_values(f"no {name}", values) == f"no {MASK}"
    assert mask_values("a secretin v", values) == f"a {MASK} {MASK}"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=2000),
    lambda inner: st.lists(inner, max_size=100) | st.dictionaries(st.text(), inner, max_size=100),
    max_leaves=300,
)


@settings(max_examples=30, deadline=None)
@given(json_values)
def test_whatever_is_shown_is_bounded(value: object) -> None:
    """Rule T7: what traces and rows show of any value is JSON of less than 64 KiB."""
    assert len(json.dumps(bounded(value), ensure_ascii=False)) < 64 * 1024


def test_bounds_hold_for_deep_wide_and_long() -> None:
    """``bounded`` cuts deep, wide and long values and giant numbers."""
    deep: Any = "leaf"
    for _ in range(60):
        deep = [deep]
    assert "leaf" not in repr(bounded(deep))
    assert len(bounded(list(range(1000)))) == 65
    assert bounded("x" * 1000) == "x" * 512 + "[cut]"
    assert bounded({"n": 10**40}) == {"n": "[cut]"}
    assert len(repr(bounded({str(n): "y" * 500 for n in range(1000)}))) < 64 * 1024


async def spec_with(describe: Any) -> ToolSpec:
    """Return the contract of a tool with a description of its calls."""

    @tool(
        name="refund",
        effect="state_change",
        redaction=Redaction(private_arguments=("iban",)),
        describe=describe,
    )
    def refund(order: str, amount: float, iban: str = "", note: str = "none") -> dict[str, str]:
        """Refund an order."""
        return {}

    (spec,) = await FunctionProvider("shop", [refund]).list_tools()
    return spec


@pytest.mark.parametrize(
    ("describe", "want"),
    [
        ("refund of {amount:.2f} for {order}", "refund of 42.50 for A-17"),
        (
            lambda arguments: f"refund for {arguments['order']} ({arguments['note']})",
            "refund for A-17 (none)",
        ),
        ("to {iban}", "to [private]"),
        ("{iban:.2f}", None),
        ("{missing}", None),
        ("{", None),
        (lambda arguments: 1 / 0, None),
        (lambda arguments: "", None),
        (lambda arguments: "a\n\x1b[31m\u202eb", "a \\x1b[31m\\u202eb"),
        (lambda arguments: "x" * 1000, "x" * 120 + "…"),
        (None, None),
    ],
)
async def test_a_tool_says_what_its_call_does(describe: Any, want: str | None) -> None:
    """A description has the masked arguments and the defaults, is one bounded line, and never fails."""
    spec = await spec_with(describe)
    arguments = {"order": "A-17", "amount": 42.5, "iban": "DE00"}
    assert spec.redaction is not None
    assert described(spec, mask_arguments(arguments, spec.redaction)) == want
    assert described(spec, None) is None
    assert described(None, arguments) is None


def test_a_description_is_a_text_or_a_function() -> None:
    """What is neither is refused with the words that say what to write."""
    with pytest.raises(TypeError, match="describe takes a text with the names of arguments in braces"):
        tool(describe=7)  # type: ignore[call-overload]
