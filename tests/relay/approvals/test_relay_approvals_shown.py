"""What a person reads about a call that waits: all of its arguments, or where they are."""

import json
from typing import Any

import pytest
from store_records import approval

from proxy.api.admin.approvals import approval_to_json
from proxy.base.plain_text import ascii_json
from proxy.records.approvals import MOST_IN_TEXT
from proxy.relay.approvals.notice import arguments_text, notice, question
from proxy.tools.contract.redaction import MASK, mask_arguments
from proxy.tools.contract.spec import Redaction

DEEP: Any = {"a": [{"b": {"c": ["x" * 5000, *range(200)]}}] * 3, "amount": 1250.5, "none": None}


def waiting(arguments: Any, *private: str, id: str = "appr_" + "0" * 32) -> Any:
    """A call that waits, shown as the proxy shows it."""
    shown = mask_arguments(arguments, Redaction(private_arguments=private))
    return approval(id, arguments=json.dumps(arguments), arguments_shown=shown)


def test_nothing_is_cut() -> None:
    """Long texts, many items and deep values are all there, with other values than the private ones."""
    assert mask_arguments(DEEP, Redaction()) == DEEP
    shown = mask_arguments(
        {**DEEP, "pin": "12", "to": {"pin": 3, "x": 1}}, Redaction(private_arguments=("pin", "to.pin"))
    )
    assert shown == {**DEEP, "pin": MASK, "to": {"pin": MASK, "x": 1}}
    assert json.loads(arguments_text(waiting(DEEP))) == DEEP


@pytest.mark.parametrize("number", [2**53 + 1, -(2**63) - 1, 10**40])
def test_a_number_that_parsers_round_is_shown_by_its_digits(number: int) -> None:
    """A number is shown as a text where JavaScript, or a faster parser, would show another one."""
    assert mask_arguments({"amount": [number]}, Redaction()) == {"amount": [str(number)]}


def test_a_private_value_is_shown_as_such_with_the_reason() -> None:
    """The text says why a value is hidden and which command shows it; it does so only where one is hidden."""
    said = notice([waiting({"pin": "12", "to": "Ada"}, "pin")], url="", by_caller=True)
    assert f'"pin":"{MASK}"' in said
    assert "a value that the tool keeps private; `toolrelay approvals show appr_" in said
    assert "12" not in said.partition("(appr_")[0]
    assert "private" not in notice([waiting({"to": "Ada"}, "pin")], url="", by_caller=True)


def test_long_arguments_are_approved_elsewhere() -> None:
    """Of two calls the text shows the short one; only that one's id is offered in the header."""
    small, large = (
        waiting({"a": 1}, id="appr_" + "1" * 32),
        waiting({"a": "x" * MOST_IN_TEXT}, id="appr_" + "2" * 32),
    )
    said = notice([small, large], url="https://a.example/ui", by_caller=True)
    assert f"`x-toolrelay-approve: {small.id}`" in said
    assert f"decide, with `toolrelay approvals show {large.id}` or at https://a.example/ui" in said
    assert "xxx" not in said
    assert question(large)["arguments"] == large.arguments_shown
    assert "all of them in `arguments`" in question(large)["summary"]
    listed = approval_to_json(large, in_list=True)
    assert listed["arguments_cut"] is True
    assert len(json.dumps(listed)) < 4096
    assert approval_to_json(large)["arguments"] == large.arguments_shown


@pytest.mark.parametrize(
    "hidden", ["\u202e", "\u200b", "\u00a0", "\x7f", "\x9b", "\ufeff", "\U000e0041", "\n"]
)
def test_characters_that_hide_are_escapes(hidden: str) -> None:
    """No such character is in the text that people read or in the JSON; a parser gets it back."""
    said = arguments_text(waiting({f"k{hidden}": f"a{hidden}`b"}))
    assert hidden not in said
    assert "`" not in said
    assert json.loads(said) == {f"k{hidden}": f"a{hidden}`b"}
    assert hidden not in ascii_json(hidden)
    assert json.loads(ascii_json(hidden)) == hidden
