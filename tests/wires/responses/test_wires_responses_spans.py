"""Where a model's answers begin and end in a Responses conversation."""

from typing import Any

import pytest

from proxy.records.approvals import mention
from proxy.wires.responses.items import answer_length, answer_spans

USER: Any = {"role": "user", "content": "go"}
OUTPUT: Any = {"type": "function_call_output", "call_id": "c", "output": "1"}
CALL: Any = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}


def said(text: str) -> Any:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": content}


ASKED = [said(mention(f"appr_{digit * 32}")) for digit in "12"]


@pytest.mark.parametrize(
    ("items", "found"),
    [
        ([], []),
        ([USER], []),
        ([said("a"), CALL], [(0, 2)]),
        ([USER, CALL, OUTPUT, said("a"), said("b"), USER, said("c")], [(1, 2), (3, 5), (6, 7)]),
        ([USER, said("a"), *ASKED, USER], [(1, 4)]),
        ([USER, said("a"), *ASKED, said("b"), USER], [(1, 4), (4, 5)]),
        ([USER, ASKED[0], said("b"), ASKED[1], said("c")], [(1, 2), (2, 4), (4, 5)]),
        # Only a mention that the proxy wrote ends an answer, not a text that contains one.
        ([USER, said(f"See {mention('appr_' + '1' * 32)}"), said("b")], [(1, 3)]),
        ([{"role": "user", "content": mention("appr_" + "1" * 32)}, said("b")], [(1, 2)]),
    ],
)
def test_answers_end_at_the_clients_items_and_behind_questions(
    items: list[Any], found: list[tuple[int, int]]
) -> None:
    """An answer ends before the client's items, and after the proxy's mentions of approvals."""
    assert list(answer_spans(items)) == found
    for start, end in found:
        assert answer_length(items[start:]) == end - start


def test_there_is_no_answer_where_the_client_speaks() -> None:
    """The length of an answer is 0 if the first item is the client's."""
    assert answer_length([USER, said("a")]) == 0
