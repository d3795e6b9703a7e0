"""Chat requests: what the proxy reads from them, and which mistakes it refuses."""

from typing import Any

import pytest

from proxy.base.errors import RequestError
from proxy.wires.chat.request import ChatRequest, declared_name, parse_chat_request


def parse(*messages: Any, **fields: Any) -> ChatRequest:
    """Return a request with these messages."""
    return parse_chat_request({"model": "m", "messages": list(messages), **fields})


def function(name: Any) -> dict[str, Any]:
    """Return a declared function."""
    return {"type": "function", "function": {"name": name}}


USER = {"role": "user", "content": "hi"}


def test_what_a_plain_request_says() -> None:
    """A request without tools, streaming and choices has these defaults."""
    request = parse(USER)
    assert (request.model, request.stream, request.declared, request.choices) == ("m", False, (), 1)
    assert (request.tools_forbidden, request.forced, request.wants_usage) == (False, None, False)
    assert (request.wants_json, request.legacy, request.preview) == (False, False, "hi")
    assert list(request.messages) == [USER]
    assert (request.background, request.continues, request.may_store) == (False, None, True)
    assert (request.max_calls, request.open_names, request.has_proxy_calls) == (None, False, False)


@pytest.mark.parametrize(
    ("payload", "param"),
    [
        ({"messages": []}, "model"),
        ({"model": "", "messages": []}, "model"),
        ({"model": 5, "messages": []}, "model"),
        ({"model": "m"}, "messages"),
        ({"model": "m", "messages": {"role": "user"}}, "messages"),
        ({"model": "m", "messages": [USER, "hi"]}, "messages[1]"),
    ],
)
def test_a_request_without_its_parts(payload: dict[str, Any], param: str) -> None:
    """Rule E1: a missing or invalid part is a 400 that names the field."""
    with pytest.raises(RequestError) as error:
        parse_chat_request(payload)
    assert (error.value.status, error.value.param) == (400, param)
    assert param.partition("[")[0] in error.value.message


@pytest.mark.parametrize(
    ("fields", "declared", "legacy"),
    [
        ({"tools": [function("a"), {"type": "custom", "custom": {"name": "b"}}]}, ("a", "b"), False),
        (
            {"tools": [function("b"), 5, {}, function(None), {"function": "x"}, function("a")]},
            ("b", "a"),
            False,
        ),
        ({"functions": [{"name": "a"}, {}]}, ("a",), True),
        ({"tools": [], "functions": [{"name": "a"}]}, ("a",), True),
        ({"tools": [function("a")], "functions": [{"name": "b"}]}, ("a",), False),
        ({"tools": None, "functions": []}, (), False),
    ],
)
def test_declared_tools(fields: dict[str, Any], declared: tuple[str, ...], legacy: bool) -> None:
    """Declared names are read in order, in both forms; a tool without a name is left to the upstream."""
    request = parse(USER, **fields)
    assert (request.declared, request.legacy) == (declared, legacy)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [function("a"), function("b"), function("a")]}, "tools[2].function.name"),
        ({"functions": [{"name": "a"}, {"name": "a"}]}, "functions[1].name"),
    ],
)
def test_one_name_twice(fields: dict[str, Any], param: str) -> None:
    """A name that is declared twice is a 400 that names the place."""
    with pytest.raises(RequestError, match="'a' is declared twice") as error:
        parse(USER, **fields)
    assert (error.value.status, error.value.param) == (400, param)


@pytest.mark.parametrize("field", ["tools", "functions"])
@pytest.mark.parametrize("given", ["x", "", {}, {"a": 1}, 5, False])
def test_tools_that_are_no_list(field: str, given: Any) -> None:
    """Rule E1: tools that are not a list are a 400, since server tools would otherwise replace them."""
    with pytest.raises(RequestError, match="must be a list") as error:
        parse(USER, **{field: given})
    assert (error.value.status, error.value.param) == (400, field)


def test_declared_name_of_each_form() -> None:
    """The name is in the function, in the custom tool, or at the top of the legacy form."""
    assert declared_name(function("a")) == "a"
    assert declared_name({"custom": {"name": "a"}}) == "a"
    assert declared_name({"name": "a"}) is None
    assert declared_name({"name": "a"}, True) == "a"
    assert declared_name(function(5)) is None
    assert declared_name("a") is None


@pytest.mark.parametrize(
    ("choice", "forbidden", "forced"),
    [
        ("none", True, None),
        ("auto", False, None),
        ("required", False, None),
        (function("a"), False, {"a"}),
        ({"type": "custom", "custom": {"name": "a"}}, False, {"a"}),
        ({"type": "function", "name": "a"}, False, {"a"}),
        ({"allowed_tools": {"mode": "auto", "tools": [function("a"), function("b"), 5]}}, False, {"a", "b"}),
        ({"allowed_tools": {"tools": None}}, False, None),
        ({"allowed_tools": {"tools": 5}}, False, None),
        ({"allowed_tools": {}, "name": "a"}, False, None),
        ({"name": 5}, False, None),
        ({}, False, None),
        (5, False, None),
    ],
)
def test_tool_choice(choice: Any, forbidden: bool, forced: set[str] | None) -> None:
    """The request knows which tools a choice forces, and whether it forbids all."""
    request = parse(USER, tool_choice=choice)
    assert (request.tools_forbidden, request.forced) == (forbidden, forced)


def test_the_older_choice() -> None:
    """Legacy functions use ``function_call`` and ignore ``tool_choice``, and tools do the opposite."""
    request = parse(USER, functions=[{"name": "a"}], function_call={"name": "a"}, tool_choice="none")
    assert (request.tools_forbidden, request.forced) == (False, frozenset({"a"}))
    assert parse(USER, functions=[{"name": "a"}], function_call="none").tools_forbidden
    assert not parse(USER, tools=[function("a")], function_call="none").tools_forbidden


@pytest.mark.parametrize(
    ("fields", "stream", "usage", "json_mode", "choices"),
    [
        ({"stream": True, "stream_options": {"include_usage": True}}, True, True, False, 1),
        ({"stream": "true", "stream_options": {"include_usage": 1}}, False, False, False, 1),
        ({"stream": 1, "stream_options": True, "n": 3}, False, False, False, 3),
        ({"response_format": {"type": "json_object"}, "n": "3"}, False, False, True, 3),
        ({"response_format": {"type": "json_schema"}, "n": True}, False, False, True, 1),
        ({"response_format": {"type": "text"}, "n": None}, False, False, False, 1),
        ({"response_format": "json_object", "n": 1}, False, False, False, 1),
    ],
)
def test_flags(fields: dict[str, Any], stream: bool, usage: bool, json_mode: bool, choices: int) -> None:
    """Only valid values of these fields count."""
    request = parse(USER, **fields)
    assert (request.stream, request.wants_usage, request.wants_json, request.choices) == (
        stream,
        usage,
        json_mode,
        choices,
    )


@pytest.mark.parametrize(
    ("content", "preview"),
    [
        ("x" * 300, "x" * 120),
        ([{"type": "text", "text": "a"}, {"type": "image_url"}, 5, {"text": 5}, {"text": "b"}], "a b"),
        (None, ""),
        (5, ""),
    ],
)
def test_preview(content: Any, preview: str) -> None:
    """The preview is the beginning of the last user text."""
    later = {"role": "assistant", "content": "no"}
    assert parse(USER, {"role": "user", "content": content}, later).preview == preview


def test_no_preview() -> None:
    """A conversation without a user message has an empty preview."""
    assert parse({"role": "system", "content": "x"}).preview == ""


# Tool results without a matching call.


def assistant(*ids: Any, name: str = "book", **fields: Any) -> dict[str, Any]:
    """Return an assistant message with calls."""
    calls = [{"id": call_id, "type": "function", "function": {"name": name}} for call_id in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls, **fields}


def result(call_id: Any) -> dict[str, Any]:
    """Return a result."""
    return {"role": "tool", "tool_call_id": call_id, "content": "x"}


def check(*messages: dict[str, Any]) -> None:
    """Check a history in which names that begin with ``core__`` are server tools."""
    parse(*messages).check_history(lambda name: name.startswith("core__"))


LONG = "x" * 5000


@pytest.mark.parametrize(
    "messages",
    [
        [USER, assistant("a", "b"), result("b"), result("a"), USER],
        [assistant("a"), result("a"), assistant("a"), result("a")],
        [assistant("a", "a"), result("a"), result("a")],
        [assistant(LONG), result(LONG)],
        [assistant("a"), USER],
        [assistant("a"), USER, result("a")],
        [{"role": "assistant", "tool_calls": [{"id": "a", "custom": {"name": "book"}}]}, result("a")],
        [{"role": "assistant", "tool_calls": [{"id": "a", "function": 5}]}, result("a")],
        [{"role": "function", "name": "book", "content": "x"}],
        [assistant("a", name="core__time")],
    ],
)
def test_histories_that_hold(messages: list[dict[str, Any]]) -> None:
    """A history is valid if each result belongs to one call of the message before; ids may repeat later."""
    check(*messages)


@pytest.mark.parametrize(
    ("messages", "position", "why"),
    [
        ([USER, result("a")], 1, "does not match a call"),
        ([assistant("a"), result("b")], 1, "does not match a call"),
        ([assistant("a"), result("a"), assistant("b"), result("a")], 3, "does not match a call"),
        ([assistant("a"), result("a"), result("a")], 2, "already has a result"),
        ([assistant("a", "a"), result("a"), result("a"), result("a")], 3, "already has a result"),
        ([assistant("a"), {"role": "tool", "content": "x"}], 1, "must name"),
        ([assistant("a"), result("")], 1, "must name"),
        ([assistant("a"), result(5)], 1, "must name"),
        ([assistant("a", name="core__time"), result("a")], 1, "only the proxy"),
        (
            [{"role": "assistant", "tool_calls": [{"id": "a", "custom": {"name": "core__x"}}]}, result("a")],
            1,
            "only the proxy",
        ),
        ([{"role": "assistant", "tool_calls": "x"}, result("a")], 1, "does not match a call"),
        (
            [{"role": "assistant", "tool_calls": [5, {"id": 5}, {"id": None}]}, result("5")],
            1,
            "does not match a call",
        ),
    ],
)
def test_results_that_answer_nothing(messages: list[dict[str, Any]], position: int, why: str) -> None:
    """Rule E1: a result without its call, repeated, nameless or of a server call is a 400."""
    with pytest.raises(RequestError, match=why) as error:
        check(*messages)
    param = f"messages[{position}].tool_call_id"
    assert (error.value.status, error.value.param) == (400, param)
    assert param in error.value.message


@pytest.mark.parametrize("name", ["core__time", "book"])
def test_a_function_message_answers_none_of_ours(name: str) -> None:
    """Rule E1: a client cannot answer a server tool's call in the legacy form either."""
    called = {"role": "assistant", "function_call": {"name": "core__time", "arguments": "{}"}}
    with pytest.raises(RequestError, match="only the proxy") as error:
        check(USER, called, {"role": "function", "name": name, "content": "x"})
    assert (error.value.status, error.value.param) == (400, "messages[2].name")


def test_returned_calls() -> None:
    """The request knows which messages of the history have calls, and their ids."""
    odd = {"role": "assistant", "tool_calls": [5, {"id": 5}]}
    user = assistant("z") | {"role": "user"}
    request = parse(USER, assistant("a", "b"), result("a"), odd, user, assistant("a"))
    found = request.returned_calls()
    assert [(r.position, r.call_ids) for r in found] == [(1, frozenset({"a", "b"})), (5, frozenset({"a"}))]


def test_used_ids() -> None:
    """The request knows every call id of the history."""
    assert parse(USER, assistant("a", "b"), result("c"), assistant("a")).used_ids() == {"a", "b"}


# Keys of conversations.


def key(*messages: dict[str, Any], caller: str = "k", ids: Any = ("a",), upto: int | None = None) -> str:
    """Return the key of a conversation."""
    return parse(*messages).conversation_key(caller, ids, upto)


CALLS = {"id": "a", "type": "function", "function": {"name": "book", "arguments": '{"x":1,"y":[2]}'}}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"role": "user", "content": "hi"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}),
        ({"role": "assistant", "content": None}, {"role": "assistant", "content": ""}),
        ({"role": "assistant"}, {"role": "assistant", "content": []}),
        (
            {"role": "assistant", "content": "x"},
            {
                "role": "assistant",
                "content": "x",
                "refusal": None,
                "audio": None,
                "annotations": [],
                "function_call": None,
                "tool_calls": None,
                "reasoning_content": "r",
                "name": None,
            },
        ),
        (
            {"role": "assistant", "tool_calls": [CALLS]},
            {
                "role": "assistant",
                "tool_calls": [
                    {**CALLS, "index": 0, "function": {"arguments": '{"y": [2], "x": 1}', "name": "book"}}
                ],
            },
        ),
        (
            {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "assistant", "function_call": {"arguments": " {} ", "name": "f", "x": None}},
        ),
        ({"role": "assistant", "tool_calls": 5}, {"role": "assistant", "tool_calls": []}),
        ({"role": "assistant", "content": ["x"]}, {"role": "assistant", "content": ["x"], "refusal": None}),
    ],
)
def test_libraries_echo_a_message_each_in_its_way(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Nulls, order, spaces and the form of parts do not change the key of a message."""
    assert key(USER, one) == key(USER, other)


@pytest.mark.parametrize(
    "other",
    [
        {"role": "assistant", "content": "x", "tool_calls": [CALLS]},
        {"role": "assistant", "content": "y"},
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "x", "name": "n"},
        {"role": "assistant", "content": "x", "tool_call_id": "n"},
        {"role": "assistant", "content": "x", "function_call": {"name": "f"}},
        {"role": "assistant", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "x"}]},
        {"role": "assistant", "content": [{"type": "image_url", "text": "x"}]},
        {"role": "assistant", "content": "x", "tool_calls": [5]},
        {"role": "assistant", "content": "x", "tool_calls": [{}]},
        {"role": "assistant", "content": "x", "refusal": "no"},
        {"role": "assistant", "content": "x", "audio": {"id": "a"}},
    ],
)
def test_what_tells_messages_apart(other: dict[str, Any]) -> None:
    """Role, content, calls, name and the id that a result answers change the key."""
    assert key({"role": "assistant", "content": "x"}) != key(other)


def test_legacy_calls_are_told_apart() -> None:
    """Name and arguments of a legacy call change the key."""
    calls = [("f", "{}"), ("g", "{}"), ("f", "[]"), ("f", None)]
    keys = {key({"role": "assistant", "function_call": {"name": n, "arguments": a}}) for n, a in calls}
    assert len(keys) == len(calls)


@pytest.mark.parametrize(
    "changed",
    [
        {"id": "b"},
        {"function": {"name": "other", "arguments": '{"x":1,"y":[2]}'}},
        {"function": {"name": "book", "arguments": '{"x":2,"y":[2]}'}},
        {"function": {"name": "book", "arguments": "{broken"}},
        {"function": {"name": "book", "arguments": None}},
        {"function": None, "custom": {"name": "book", "input": "x"}},
    ],
)
def test_what_tells_calls_apart(changed: dict[str, Any]) -> None:
    """Id, name and arguments of a call change the key."""
    assert key({"role": "assistant", "tool_calls": [CALLS]}) != key(
        {"role": "assistant", "tool_calls": [{**CALLS, **changed}]}
    )


def test_custom_calls_are_told_apart() -> None:
    """The input of a custom call changes the key."""

    def custom(text: str) -> dict[str, Any]:
        return {"role": "assistant", "tool_calls": [{"id": "a", "custom": {"name": "c", "input": text}}]}

    assert key(custom("x")) != key(custom("y"))


def test_what_tells_conversations_apart() -> None:
    """Caller, ids and messages in their order change the key; the order of the ids does not."""
    base = key(USER, ids=("a", "b"))
    assert base == key(USER, ids=("b", "a"))
    others = [
        key(USER, ids=("a", "b"), caller="other"),
        key(USER, ids=("a",)),
        key(USER, ids=("ab",)),
        key(USER, USER, ids=("a", "b")),
        key(ids=("a", "b")),
    ]
    assert len({base, *others}) == len(others) + 1
    assert key(USER, {"role": "system", "content": "x"}) != key({"role": "system", "content": "x"}, USER)
    assert len(base) == 48


def test_only_what_came_before_counts() -> None:
    """The key covers only the messages before ``upto``."""
    assert key(USER, assistant("a"), result("a"), upto=1) == key(USER)
    assert key(USER, USER, upto=None) != key(USER)


def test_odd_text_has_a_digest() -> None:
    """A lone surrogate in an id, and arguments that are nested too deeply, do not crash the process."""
    deep = "[" * 400 + "]" * 400
    call = {"id": "a", "function": {"name": "book", "arguments": deep}}
    assert key({"role": "assistant", "tool_calls": [call]}, ids=("\ud800",)) != key(USER)
