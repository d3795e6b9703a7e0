"""Conversation keys, which are stored in records and must not change between versions."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wires.chat.request import parse_chat_request
from proxy.wires.responses.request import parse_responses_request
from proxy.wires.turn import digest
from proxy.wires.turn.digest import canonical_arguments, conversation_digest, sent_arguments, user_key


def test_a_digest_stays_the_same() -> None:
    """A lone surrogate and an empty text give the same key as in earlier versions."""
    assert (
        conversation_digest(["chat", "key:a", "é\ud800", ""], b"\x00" * 32)
        == "2d0e7e1f66032032607b1f04fa8c63b0404f88e0fbebb536"
    )


def test_keys_of_a_conversation_stay_the_same() -> None:
    """Rule R4: a Chat request gives the same keys as in earlier versions."""
    function = {"name": "f", "arguments": '{"b": 1, "a": 2}'}
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "function": function}]},
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
        {"role": "assistant", "content": "done"},
    ]
    request = parse_chat_request({"model": "m", "messages": messages})
    assert (
        request.answer_keys("key:a", "shape", [(4, "done")])[0]
        == "040a026dbb6a5b9d53384f1fe7a3f96592f662c47d155806"
    )
    assert (
        request.conversation_key("key:a", ["c1"], upto=2)
        == "4a74cf8f17184bc59448b33fe392a29777e5571c051b3097"
    )
    assert (
        request.answer_keys("key:a", "shape", [(None, "more")])[0]
        == "c44f10eaf03848b3adf804c6f86e61fcb2f413dff60a5061"
    )


def test_keys_of_a_list_of_items_stay_the_same() -> None:
    """Rule R4: a Responses request gives the same keys as in earlier versions."""
    items = [{"role": "user", "content": "hi"}, {"type": "reasoning", "id": "rs_1", "summary": []}]
    request = parse_responses_request(
        {"model": "m", "instructions": "Be brief.", "input": items, "user": "u"}
    )
    assert (
        request.answer_keys("key:a", "shape", [(None, "done")])[0]
        == "4f0d1a167361a1ba0f1fa14cd17e74eec50654618e2bbed5"
    )
    assert request.conversation_key("key:a", ["c1"]) == "c7222939ee9a5babf06025c1dc9af3436f3a557866518d8b"


CHANGED: dict[str, dict[str, Any]] = {
    "another user": {"user": "bob"},
    "no user": {"user": None},
    "an empty user": {"user": ""},
    "a safety identifier": {"safety_identifier": "ann"},
    "the other field": {"user": None, "safety_identifier": "ann"},
    "another model": {"model": "n"},
}
TOLD: dict[str, dict[str, Any]] = {
    "other instructions": {"instructions": "Be long."},
    "no instructions": {"instructions": None},
    "a stored prompt": {"prompt": {"id": "pmpt_1"}},
    "another response": {"previous_response_id": "resp_2"},
    "none before it": {"previous_response_id": None},
}


@pytest.mark.parametrize("change", CHANGED)
def test_whom_a_request_is_for_and_of_which_model_is_in_both_keys(change: str) -> None:
    """Rule R4: another user or model in the body changes both keys, on both wires."""
    asked: dict[str, Any] = {"model": "m", "user": "ann", "messages": [], "input": []}
    for parse in (parse_chat_request, parse_responses_request):
        one, other = parse(asked), parse(asked | CHANGED[change])
        assert one.answer_keys("k", "s", [(None, "t")])[0] != other.answer_keys("k", "s", [(None, "t")])[0]
        assert one.conversation_key("k", ["c"]) != other.conversation_key("k", ["c"])


@pytest.mark.parametrize("change", TOLD)
def test_what_a_model_is_told_is_in_both_keys(change: str) -> None:
    """Rule R4: other instructions, another prompt or another previous response change both keys."""
    asked: dict[str, Any] = {
        "model": "m", "instructions": "Be brief.", "previous_response_id": "resp_1", "input": []
    }  # fmt: skip
    one, other = parse_responses_request(asked), parse_responses_request(asked | TOLD[change])
    assert one.answer_keys("k", "s", [(None, "t")])[0] != other.answer_keys("k", "s", [(None, "t")])[0]
    assert one.conversation_key("k", ["c"]) != other.conversation_key("k", ["c"])


def test_nobody_is_named_in_several_ways() -> None:
    """A user field that is null, empty or missing gives the same empty key."""
    bodies: list[dict[str, Any]] = [{}, {"user": None}, {"user": ""}, {"user": "", "safety_identifier": None}]
    assert [user_key(body) for body in bodies] == [""] * 4
    assert user_key({"user": "ann"}) != user_key({"safety_identifier": "ann"})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"n":100000000000000000000001}', '{"n":100000000000000000000002}'),
        ('{"n":0.12345678901234567}', '{"n":0.12345678901234568}'),
        (
            '{"n":100000000000000000000001,"m":0.12345678901234567}',
            '{"n":100000000000000000000001,"m":0.12345678901234568}',
        ),
        ('{"n":1e-400}', '{"n":0.0}'),
        ('{"a":1,"a":2}', '{"a":2}'),
        ('{"a":1,"a":"\\u0022\\u0022"}', '{"a":"\\u0022\\u0022"}'),
        ('{"n":1}', '{"n":1.0}'),
        ('{"n":"\u00e9"}', '{"n":"e\u0301"}'),
        ("{", "{}"),
    ],
)
def test_arguments_that_differ_are_told_apart(one: str, other: str) -> None:
    """Rule R4: the canonical form keeps every difference of numbers, keys and letters."""
    assert canonical_arguments(one) != canonical_arguments(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1, "b": [2]}', '{"b":[2],"a":1}'),
        ('{"a":"\\u00e9"}', '{"a":"\u00e9"}'),
        ('{"a":"\\u0022"}', '{"a":"\\""}'),
        ('{"n":1e2}', '{"n":100.0}'),
        ('{"n": 100000000000000000000001, "m": 0.5}', '{"m":0.5,"n":100000000000000000000001}'),
        ('{"a": "page123", "b": "1234567890123456"}', '{"b":"1234567890123456","a":"page123"}'),
        ('{"a": "\\"", "b": "-e400"}', '{"b":"-e400","a":"\\""}'),
    ],
)
def test_arguments_written_in_another_way_are_the_same(one: str, other: str) -> None:
    """Spaces, order, escapes and exponents do not change the canonical form; digits in a text are text."""
    assert canonical_arguments(one) == canonical_arguments(other)


NUMBERS = st.sampled_from(["1", "0." + "1" * 15, "1" * 16, "-1e400", "1E-007", "1e+12", "2.50", "1e00"])
TEXTS = st.sampled_from(
    ['""', '"' + "7" * 20 + '"', '"a\\\\"', '"\\""', '"1e999"', '"é\\u0022"', '"\\\\\\""']
)
VALUES = st.recursive(
    NUMBERS | TEXTS | st.just("null"),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda each: f"[{','.join(each)}]")
        | st.lists(inner, max_size=3).map(lambda each: f"{{{','.join(f'{TAG}:{one}' for one in each)}}}")
    ),
    max_leaves=6,
)
TAG = '"k"'


@given(VALUES)
def test_a_number_is_long_as_the_pattern_says(text: str) -> None:
    """Long numbers outside strings are found as by the pattern, which reads each number by itself."""
    outside = re.sub(r'"[^"\\]*(?:\\.[^"\\]*)*"', '""', text)
    assert digest._has_long_number(text.encode()) == (digest._MANY_DIGITS.search(outside) is not None)


def test_what_is_no_object_goes_back_as_an_empty_one() -> None:
    """Rule W8: arguments that are not an object are compared as the ``{}`` that the upstream got."""
    assert [sent_arguments(text) for text in ("{", "[1]", "", None, "{}", ' {"a": 1}')] == [
        "{}", "{}", "{}", "{}", "{}", '{"a":1}'
    ]  # fmt: skip
