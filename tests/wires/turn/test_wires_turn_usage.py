"""Usage in the field names of each wire, and two usage reports of one message."""

from typing import Any

import pytest

from proxy.wires.turn.usage import merge_usage, messages_usage, read_usage, usage_of

CACHED = {
    "input_tokens": 3,
    "cache_creation_input_tokens": 20,
    "cache_read_input_tokens": 100,
    "output_tokens": 4,
}


@pytest.mark.parametrize(
    ("native", "counts"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}, (5, 2, 7, 0)),
        ({"prompt_tokens": 5, "completion_tokens": 2}, (5, 2, 7, 0)),
        ({"input_tokens": 5, "output_tokens": 2, "total_tokens": None}, (5, 2, 7, 0)),
        ({"prompt_tokens": 5, "cache_read_input_tokens": 3, "completion_tokens": 2}, (5, 2, 7, 0)),
        ({"input_tokens": 5, "output_tokens": 2, "total_tokens": 7,
          "input_tokens_details": {"cached_tokens": 3}}, (5, 2, 7, 3)),
        (CACHED, (123, 4, 127, 100)),
        ({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7, "cached_tokens": 3}, (5, 2, 7, 3)),
        ({"prompt_tokens": 5, "prompt_tokens_details": {}, "cached_tokens": 3}, (5, 0, 5, 3)),
        ({"input_tokens": 3, "cache_read_input_tokens": None, "output_tokens": 4}, (3, 4, 7, 0)),
    ],
)  # fmt: skip
def test_usage_is_read_in_the_names_of_each_wire(native: dict[str, Any], counts: tuple[int, ...]) -> None:
    """Input tokens include cached ones, which Messages alone reports separately."""
    usage = read_usage(native)
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens, usage.cached_tokens) == counts


def test_tokens_written_to_a_cache_are_read_in_the_names_of_each_wire() -> None:
    """Anthropic reports them apart from the input, OpenRouter in the details of the prompt."""
    assert read_usage(CACHED).cache_write_tokens == 20
    native = {
        "prompt_tokens": 50,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cache_write_tokens": 30},
    }
    assert read_usage(native).cache_write_tokens == 30


def test_usage_stands_in_a_choice() -> None:
    """Moonshot puts the usage of a stream into the choice of its last chunk."""
    told = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7, "cached_tokens": 3}
    found = usage_of({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": told}]})
    assert found is not None
    assert (found.input_tokens, found.output_tokens, found.cached_tokens) == (5, 2, 3)


@pytest.mark.parametrize("choices", [[None], [{"usage": None}], {"usage": {}}, [{}], "usage", [[]]])
def test_choices_without_usage_report_none(choices: Any) -> None:
    """Choices without a usage object, or in a wrong form, report no usage."""
    assert usage_of({"choices": choices}) is None


def test_usage_of_messages_has_a_sum() -> None:
    """Usage of Messages has a total, even without cache counts."""
    assert messages_usage({"input_tokens": 3, "output_tokens": 4}).total_tokens == 7


def test_a_later_report_has_the_last_word_where_it_has_one() -> None:
    """A later report replaces a field, unless it lacks the field or has null there."""
    later = {"output_tokens": 9, "input_tokens": None}
    assert merge_usage(CACHED, later) == {**CACHED, "output_tokens": 9}


def test_usage_stands_in_a_message() -> None:
    """The proxy finds usage inside the message of Messages' first event."""
    found = usage_of({"type": "message_start", "message": {"usage": CACHED}})
    assert found is not None
    assert found.cached_tokens == 100
    assert usage_of({"message": "text"}) is None
