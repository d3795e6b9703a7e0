"""The terms of a grant: which ones the proxy accepts, and that each error names its field."""

from typing import Any

import pytest

from proxy.api.admin.grant_terms import read_terms
from proxy.base.errors import RequestError


def test_all_words_of_a_grant() -> None:
    """A grant takes a duration, a restriction to the conversation, and limits as in policy.arguments."""
    terms = read_terms({"for": "90m", "conversation": True, "arguments": {"to.*": {"pattern": "a+"}}})
    assert (terms.seconds, terms.in_conversation) == (5400.0, True)
    assert terms.limits.to_json() == '{"to.*": {"pattern": "a+"}}'
    assert read_terms({"conversation": True}).seconds is None
    assert read_terms({"for": "1w"}).seconds == 604800.0


@pytest.mark.parametrize(
    ("value", "param", "words"),
    [
        (None, "grant", "must be a JSON object"),
        ({}, "grant", "must say how long"),
        ({"conversation": False}, "grant", "must say how long"),
        ({"for": "1h", "tool": "x"}, "grant", "unknown field 'tool'"),
        ({"for": True}, "grant.for", "must be a duration"),
        ({"for": "-1h"}, "grant.for", "must be a duration"),
        ({"for": "1h", "conversation": 1}, "grant.conversation", "must be true or false"),
        ({"for": "1h", "arguments": []}, "grant.arguments", "must be an object"),
        ({"for": "1h", "arguments": {"a..b": {"max": 1}}}, "grant.arguments", "is not an argument path"),
        ({"for": "1h", "arguments": {"a": {}}}, "grant.arguments.a", "sets no limit"),
        ({"for": "1h", "arguments": {"a": {"pattern": "("}}}, "grant.arguments.a.pattern", "pattern"),
        ({"for": "1h", "arguments": {"a": {"most": 1}}}, "grant.arguments.a.most", ""),
        ({"for": "1h", "arguments": {"a": {"enum": ["x" * 1001]}}}, "grant.arguments.a.enum", "at most"),
        (
            {"for": "1h", "arguments": {f"a{n}": {"max": 1} for n in range(33)}},
            "grant.arguments",
            "at most 32",
        ),
    ],
)
def test_each_fault_names_its_field(value: Any, param: str, words: str) -> None:
    """The proxy refuses wrong terms with a 400 that names the field and says what is wrong."""
    with pytest.raises(RequestError) as caught:
        read_terms(value)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert words in caught.value.message
