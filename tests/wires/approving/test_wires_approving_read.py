"""How the proxy reads approvals from a request, and removes them from it, in each dialect."""

import json
from typing import Any

import pytest

from proxy.base.errors import RequestError
from proxy.records.approvals import mention
from proxy.wires.anthropic.wire import AnthropicWire
from proxy.wires.approving.shown import APPROVE, call_id_of, item_id_of, read_approvals, visible_with
from proxy.wires.chat.wire import ChatWire
from proxy.wires.ollama.wire import OllamaWire
from proxy.wires.responses.items import answer_spans
from proxy.wires.responses.wire import ResponsesWire

FORMS = {wire.dialect.name: wire.approvals for wire in (ChatWire, ResponsesWire, AnthropicWire, OllamaWire)}
ONE, TWO = "appr_" + "1" * 32, "appr_" + "2" * 32


def read(dialect: str, **body: Any) -> tuple[Any, dict[str, Any]]:
    """Return the approvals that the proxy found, and the body that is left."""
    raw = json.dumps({"model": "m", **body}).encode()
    found = read_approvals(FORMS.get(dialect), raw, json.loads(raw))
    return found, json.loads(found.raw if found is not None else raw)


def asks(approval_id: str, dialect: str = "chat") -> dict[str, Any]:
    said = {"approval_id": approval_id, "tool": "a__b", "arguments": {"x": 1}}
    if dialect == "ollama":
        return {"function": {"name": APPROVE, "arguments": said}}
    function = {"name": APPROVE, "arguments": json.dumps(said)}
    return {"id": call_id_of(approval_id), "type": "function", "function": function}


def test_a_request_that_says_nothing_is_left_alone() -> None:
    """The proxy finds no approvals in an ordinary request, even if a text names the function and an id."""
    assert read("chat", messages=[{"role": "user", "content": "hi"}])[0] is None
    assert (
        read("chat", messages=[{"role": "user", "content": f"call {APPROVE} {call_id_of(ONE)}"}])[0] is None
    )
    assert read("mcp", messages=[])[0] is None


@pytest.mark.parametrize(
    ("choice", "left"),
    [
        (None, None),
        ("auto", "auto"),
        ({"type": "function", "function": {"name": APPROVE}}, None),
        ({"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "f"}}),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "auto",
                    "tools": [{"function": {"name": n}} for n in (APPROVE, "f")],
                },
            },
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"function": {"name": "f"}}]},
            },
        ),
    ],
)
def test_the_function_is_left_out_of_tools_and_choice(choice: Any, left: Any) -> None:
    """The proxy removes its function from tools and choice; the client's other tools stay."""
    tools = [{"type": "function", "function": {"name": name}} for name in ("f", APPROVE)]
    more = {} if choice is None else {"tool_choice": choice}
    found, body = read("chat", messages=[], tools=tools, **more)
    assert found.declares
    assert body["tools"] == tools[:1]
    assert body.get("tool_choice") == left
    found, body = read("chat", messages=[], tools=tools[1:], parallel_tool_calls=True, **more)
    assert body == {"model": "m", "messages": []}


def test_chat_keeps_text_and_other_calls() -> None:
    """A repeated question leaves one mention; the client's own call and its result stay."""
    mine = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    found, body = read(
        "chat",
        messages=[
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": "Hello ", "tool_calls": [asks(ONE), mine]},
            {
                "role": "tool",
                "tool_call_id": call_id_of(ONE),
                "content": '{"approve": false, "reason": "no"}',
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "x"},
            {"role": "assistant", "tool_calls": [asks(ONE)]},
            {"role": "assistant", "tool_calls": [asks(ONE), asks(TWO)]},
            {"role": "tool", "tool_call_id": call_id_of(TWO), "content": [{"text": '{"approve": true}'}]},
        ],
    )
    said = [(one.approval_id, one.approve, one.reason, one.is_new) for one in found.answers]
    assert said == [(ONE, False, "no", False), (TWO, True, "", True)]
    assert {(one.tool, one.arguments["x"]) for one in found.questions} == {("a__b", 1)}
    assert body["messages"][1] == {
        "role": "assistant",
        "content": f"Hello\n\n{mention(ONE)}",
        "tool_calls": [mine],
    }
    assert [one["role"] for one in body["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert body["messages"][-1]["content"] == mention(TWO)
    assert visible_with(FORMS["chat"], "Hello ", [ONE]) == body["messages"][1]["content"]


def test_a_call_under_another_id_is_not_a_question() -> None:
    """A call of the function with another id is an ordinary call and approves nothing."""
    call = {**asks(ONE), "id": "call_appr_1"}
    answer = {"role": "tool", "tool_call_id": "call_appr_1", "content": '{"approve": true}'}
    assert read("chat", messages=[{"role": "assistant", "tool_calls": [call]}, answer])[0] is None


def test_ollama_answers_go_by_their_order() -> None:
    """Ollama's calls have no ids, so answers belong to questions by order; a surplus answer is refused."""
    question = {"role": "assistant", "content": "", "tool_calls": [asks(ONE, "ollama"), asks(TWO, "ollama")]}
    answers = [
        {"role": "tool", "tool_name": APPROVE, "content": '{"approve": false}'},
        {"role": "tool", "tool_name": APPROVE, "content": '{"approve": true}'},
    ]
    found, body = read("ollama", messages=[question, *answers])
    assert [(one.approval_id, one.approve) for one in found.answers] == [(ONE, False), (TWO, True)]
    assert body["messages"] == [
        {"role": "assistant", "content": visible_with(FORMS["ollama"], "", [ONE, TWO])}
    ]
    with pytest.raises(RequestError, match="does not match a call"):
        read("ollama", messages=[question, *answers, answers[0]])


def test_anthropic_blocks_are_taken_out() -> None:
    """The proxy removes only its own blocks; a result that is an error counts as a refusal."""
    tool_use = {"type": "tool_use", "id": call_id_of(ONE), "name": APPROVE, "input": {"tool": "a"}}
    result = {"type": "tool_result", "tool_use_id": call_id_of(ONE), "content": '{"approve": true}'}
    said = {"type": "text", "text": "go"}
    for is_error in (False, True):
        found, body = read(
            "anthropic",
            messages=[
                {"role": "assistant", "content": [{"type": "text", "text": "Hi."}, tool_use]},
                {"role": "user", "content": [{**result, "is_error": is_error}, said]},
            ],
        )
        assert found.answers[0].approve is not is_error
        text = visible_with(FORMS["anthropic"], "Hi.", [ONE])
        assert body["messages"][0]["content"] == [{"type": "text", "text": text}]
        assert body["messages"][1]["content"] == [said]


def test_items_are_taken_out_whole_or_by_reference() -> None:
    """The proxy removes its items or references, keeps other servers' items, and refuses invalid answers."""
    other = {"type": "mcp_approval_response", "approval_request_id": "mcpr_x", "approve": True}
    answer = {"type": "mcp_approval_response", "approval_request_id": item_id_of(ONE), "approve": True}
    for question in (
        {"type": "item_reference", "id": item_id_of(ONE)},
        {"type": "mcp_approval_request", "id": item_id_of(ONE), "name": "b", "arguments": '{"x":1}'},
    ):
        found, body = read("responses", input=[question, question, other, answer])
        assert [(one.approval_id, one.approve, one.is_new) for one in found.answers] == [(ONE, True, True)]
        assert body["input"][1:] == [other]
        assert body["input"][0]["content"][0]["text"] == mention(ONE)
    for wrong in ({"approve": "true"}, {"approve": None}, {"reason": 1}, {"reason": "x" * 501}):
        with pytest.raises(RequestError, match=r"input\[0\]"):
            read("responses", input=[{**answer, **wrong}])


@pytest.mark.parametrize("elsewhere", [{}, {"previous_response_id": "resp_1"}, {"conversation": "conv_1"}])
def test_an_answer_without_its_question_stands_for_both(elsewhere: dict[str, Any]) -> None:
    """Only in a complete conversation, an answer without its question leaves a mention of it."""
    user = {"role": "user", "content": "go"}
    answers: list[Any] = [
        {"type": "mcp_approval_response", "approval_request_id": item_id_of(one), "approve": True}
        for one in (ONE, TWO)
    ]
    found, body = read("responses", input=[user, answers[0], answers[0], answers[1]], **elsewhere)
    assert [one.approval_id for one in found.answers] == [ONE, ONE, TWO]
    texts = [item["content"][0]["text"] for item in body["input"][1:]]
    assert texts == ([] if elsewhere else [mention(ONE), mention(TWO)])


def test_questions_of_two_responses_are_two_answers_of_a_model() -> None:
    """The questions of each response form one answer of the model, even after the removal."""
    three = "appr_" + "3" * 32

    def item(approval_id: str) -> dict[str, Any]:
        said = {"server_label": "a", "name": "b", "arguments": "{}"}
        return {"type": "mcp_approval_request", "id": item_id_of(approval_id), **said}

    def yes(approval_id: str) -> dict[str, Any]:
        asked = item_id_of(approval_id)
        return {"type": "mcp_approval_response", "approval_request_id": asked, "approve": True}

    items = [item(ONE), yes(ONE), item(TWO), item(three), yes(TWO), yes(three)]
    _, body = read("responses", input=items)
    assert [one["content"][0]["text"] for one in body["input"]] == [mention(one) for one in (ONE, TWO, three)]
    assert list(answer_spans(body["input"])) == [(0, 1), (1, 3)]
