"""Responses requests: what the proxy reads from them."""

from typing import Any

import pytest
from responses_rig import OURS, WIRE
from responses_script import custom, function, function_call, message, output, reasoning, user

from proxy.base.errors import RequestError
from proxy.wires.responses.request import ResponsesRequest, answer_text, parse_responses_request


def parse(*items: Any, **more: Any) -> ResponsesRequest:
    """Return a request with these items."""
    return parse_responses_request({"model": "m", "input": list(items), **more})


def refused(param: str, **payload: Any) -> str:
    """Return the message of the 400 that names ``param``."""
    with pytest.raises(RequestError) as caught:
        parse_responses_request({"model": "m", **payload})
    assert (caught.value.status, caught.value.param) == (400, param)
    return caught.value.message


@pytest.mark.parametrize(
    ("payload", "param"),
    [
        ({"model": ""}, "model"),
        ({"model": 5}, "model"),
        ({"input": 5}, "input"),
        ({"input": {"role": "user"}}, "input"),
        ({"input": [user("a"), "b"]}, "input[1]"),
        ({"tools": [function("a"), {"type": "custom", "name": "a"}]}, "tools[1].name"),
        ({"tools": {}}, "tools"),
        ({"tools": "a"}, "tools"),
    ],
)
def test_a_mistake_is_named(payload: dict[str, Any], param: str) -> None:
    """Rule E1: a client's mistake is a 400 that names the field."""
    assert refused(param, **payload)


def test_the_plainest_request() -> None:
    """A text as input is one user message, and all other fields have their defaults."""
    asked = parse_responses_request({"model": "m", "input": "What time is it?"})
    assert asked.items == [user("What time is it?")]
    assert (asked.stream, asked.may_store, asked.background, asked.conversation) == (False, True, False, "")
    assert (asked.forced, asked.max_calls, asked.continues, asked.choices) == (None, None, None, 1)
    assert (asked.tools_forbidden, asked.wants_json, asked.open_names) == (False, False, False)
    assert asked.preview == "What time is it?"
    assert parse_responses_request({"model": "m"}).items == []
    assert parse_responses_request({"model": "m"}).preview == ""


def test_what_is_asked() -> None:
    """The proxy reads every field that its behaviour depends on."""
    asked = parse(
        user("first"),
        {"role": "user", "content": [{"type": "input_text", "text": "x" * 200}, {"type": "input_image"}]},
        stream=True,
        store=False,
        background=True,
        conversation={"id": "conv_1"},
        tool_choice="none",
        max_tool_calls=4,
        previous_response_id="resp_1",
        prompt={"id": "p"},
        text={"format": {"type": "json_object"}},
        tools=[function("mine"), {"type": "custom", "name": "write"}, {"type": "web_search", "name": "x"}, 5],
    )
    assert (asked.stream, asked.may_store, asked.background, asked.conversation) == (
        True,
        False,
        True,
        "conv_1",
    )
    assert (asked.tools_forbidden, asked.max_calls, asked.continues) == (True, 4, "resp_1")
    assert (asked.open_names, asked.wants_json) == (True, True)
    assert asked.declared == ("mine", "write")
    assert asked.preview == "x" * 120


@pytest.mark.parametrize("value", [-1, True, "5", 2.5])
def test_an_odd_bound_is_none(value: Any) -> None:
    """An invalid ``max_tool_calls`` counts as missing, and the upstream judges it."""
    assert parse(max_tool_calls=value).max_calls is None


@pytest.mark.parametrize(
    ("choice", "forced"),
    [
        ("auto", None),
        ("required", None),
        (None, None),
        (5, None),
        ({"type": "function", "name": "a"}, {"a"}),
        ({"type": "custom", "name": "a"}, {"a"}),
        ({"type": "web_search"}, {"web_search"}),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "a"}, {"type": "mcp"}, 5],
            },
            {"a", "mcp"},
        ),
        ({"type": "allowed_tools", "tools": None}, None),
    ],
)
def test_what_a_choice_forces(choice: Any, forced: set[str] | None) -> None:
    """The request knows the only tools that its choice allows."""
    assert parse(tool_choice=choice).forced == forced


# The history.


def check(*items: Any, **more: Any) -> str | None:
    """Return the field for which a history is refused."""
    try:
        parse(*items, **more).check_history(lambda name: name == OURS)
    except RequestError as error:
        return error.param if error.status == 400 else f"status {error.status}"
    return None


CALL = function_call("c1", "mine")


def test_a_history_that_fits() -> None:
    """Every output needs a call before it, and each call may have one output."""
    assert check(user("a"), CALL, output("c1", "x")) is None
    assert check(function_call("c2", "mine"), CALL, output("c1", "x"), output("c2", "x")) is None
    assert check(CALL, output("c1", "x"), CALL, output("c1", "y")) is None
    assert check(function_call("c1", OURS)) is None
    assert check(CALL, output("c1", [{"type": "input_text", "text": "x"}])) is None


@pytest.mark.parametrize(
    ("items", "position"),
    [
        ([user("a"), output("c1", "x")], 1),
        ([CALL, output("c1", "x"), output("c1", "x")], 2),
        ([CALL, {"type": "function_call_output", "output": "x"}], 1),
        ([CALL, output("", "x")], 1),
        ([CALL, output("x" * 129, "x")], 1),
        ([{**CALL, "call_id": 5}, output("5", "x"), output("5", "x")], 2),
        ([function_call("c1", OURS), output("c1", "x")], 1),
    ],
)
def test_an_output_that_answers_nothing(items: list[Any], position: int) -> None:
    """Rule E1: the error names the position of an output without its call, or for a server tool's call."""
    assert check(*items) == f"input[{position}].call_id"


@pytest.mark.parametrize(
    "more", [{"previous_response_id": "resp_1"}, {"conversation": "conv_1"}, {"conversation": {"id": "c"}}]
)
def test_calls_that_are_elsewhere(more: dict[str, Any]) -> None:
    """If the upstream has the conversation, an output needs no call in the input, but may not repeat."""
    assert check(output("c1", "x"), **more) is None
    assert check(output("c1", "x"), output("c1", "x"), **more) == "input[1].call_id"
    assert check({"type": "item_reference", "id": "fc_1"}, output("c1", "x")) is None


def test_where_a_client_returns() -> None:
    """The request knows each span of the model's items with client calls, and their ids."""
    items = [
        user("a"),
        reasoning("r"),
        CALL,
        function_call("c2", "mine"),
        output("c1", "x"),
        output("c2", "x"),
        message("b"),
        user("c"),
        custom("c3", "write", "x"),
        {"type": "custom_tool_call_output", "call_id": "c3"},
        custom("xs", "theirs", "x"),
        message("d"),
        user("e"),
        function_call("c4", "mine"),
    ]
    found = parse(*items, tools=[{"type": "custom", "name": "write"}]).returned_calls()
    assert [(one.position, set(one.call_ids)) for one in found] == [
        (1, {"c1", "c2"}), (8, {"c3"}), (13, {"c4"}),
    ]  # fmt: skip


def test_where_a_client_returns_to_a_conversation() -> None:
    """In an upstream's conversation the client sends only outputs, which name the calls."""
    (one,) = parse(output("c1", "x"), output("c2", "x"), conversation="conv_1").returned_calls()
    assert (one.position, set(one.call_ids)) == (0, {"c1", "c2"})
    assert parse(user("a"), conversation="conv_1").returned_calls() == []


def key(
    *items: Any, caller: str = "me", ids: tuple[str, ...] = ("c1",), upto: int | None = None, **more: Any
) -> str:
    """Return the key of a conversation."""
    return parse(*items, **more).conversation_key(caller, ids, upto)


def test_a_conversation_is_known_by_what_is_visible_of_it() -> None:
    """Ids, states, reasoning and the form of a text do not change the key."""
    first = key(user("a"), message("b"), user("c"))
    parts = {"role": "user", "content": [{"type": "input_text", "text": "a"}]}
    bare = {"role": "assistant", "content": "b"}
    again = key({"type": "message", **parts}, reasoning("x"), bare, user("c"), CALL, upto=4)
    assert again == first
    searched = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": None}
    assert key(searched) == key({"type": "web_search_call"})


def test_any_difference_is_another_conversation() -> None:
    """Rule R4: caller, ids, chain, roles, texts, images, calls and outputs each change the key."""
    keys = [
        key(user("a")),
        key(user("a"), caller="you"),
        key(user("a"), ids=("c2",)),
        key(user("a"), ids=("c1", "c2")),
        key(user("a"), previous_response_id="resp_1"),
        key(user("b")),
        key({"role": "system", "content": "a"}),
        key(
            {
                "role": "user",
                "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "x"}],
            }
        ),
        key(user("a"), user("b")),
        key(user("a"), CALL),
        key(user("a"), function_call("c1", "mine", '{"a":1}')),
        key(user("a"), CALL, output("c1", "x")),
        key(user("a"), CALL, output("c1", "y")),
        key(user("a"), custom("c1", "w", "x")),
        key(user("a"), conversation="conv_1"),
        key(user("a"), conversation="conv_2"),
    ]
    assert len(set(keys)) == len(keys)


def test_a_conversation_of_the_upstreams_is_known_by_its_id() -> None:
    """The key of an upstream's conversation depends only on its id and the call ids."""
    assert key(user("a"), conversation="conv_1") == key(
        output("c1", "x"), conversation={"id": "conv_1"}, upto=0
    )


def test_strange_text_has_a_key() -> None:
    """A lone surrogate in a call id raises no error."""
    assert key(user("a"), ids=("\ud800",))


def test_the_wire_is_found_by_its_path() -> None:
    """The wire has the right name and path."""
    assert (WIRE.dialect.name, WIRE.dialect.path) == ("responses", "/responses")


def test_where_a_client_returns_by_references() -> None:
    """The outputs after an item reference name the calls that it refers to."""
    reference = {"type": "item_reference", "id": "fc_1"}
    answers = [output("c1", "x"), output("c2", "x")]
    items = [user("a"), reference, reference, *answers, user("b"), output("c3", "x")]
    found = parse(*items).returned_calls()
    assert [(one.position, set(one.call_ids)) for one in found] == [(1, {"c1", "c2"})]
    assert parse(user("a"), reference, user("b")).returned_calls() == []


def test_texts_of_an_answer_stay_apart() -> None:
    """Rule R4: the text of one message never equals the texts of two."""
    lists = [["a", "b"], ["ab"], ["a\0b"], ["a1:b"], ["b", "a"]]
    assert len({answer_text([message(text) for text in texts]) for texts in lists}) == len(lists)
    assert answer_text([message(""), reasoning("x")]) == ""
