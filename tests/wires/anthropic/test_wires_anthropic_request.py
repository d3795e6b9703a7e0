"""Messages requests: what the proxy reads from them, and how it recognizes a conversation."""

from typing import Any

import pytest
from messages_rig import ASK, WIRE
from messages_script import text, thinking, tool, tool_use, user

from proxy.base.errors import RequestError
from proxy.wires.client_port import ClientRequest


def asked(**fields: Any) -> ClientRequest:
    """Return the parsed request."""
    return WIRE.parse({**ASK, **fields})


def result(call_id: Any, content: Any = "x", **more: Any) -> dict[str, Any]:
    """Return a tool result of the client's."""
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def said(*blocks: dict[str, Any], text: str = "") -> dict[str, Any]:
    """Return a message of the model's."""
    return {"role": "assistant", "content": text or list(blocks)}


CALLED = [user(text="hi"), said(text("So."), tool_use("toolu_1", "mine", {"a": 1}))]


def test_what_decides_is_read() -> None:
    """The proxy reads model, stream, tools, choice, user and preview of a request."""
    request = asked(
        tools=[tool("mine"), {"type": "web_search_20250305", "name": "web_search"}, {"type": "mcp_toolset"}],
        tool_choice={"type": "tool", "name": "mine"},
        metadata={"user_id": "u-1"},
        messages=[user(text("Hello "), text("you"))],
    )
    assert (request.model, request.stream, request.declared) == ("m", True, ("mine", "web_search"))
    assert (request.forced, request.tools_forbidden) == (frozenset({"mine"}), False)
    assert (request.people, request.preview) == ("u-1", "Hello you")
    assert asked(tool_choice={"type": "none"}).tools_forbidden
    assert asked(tool_choice={"type": "any"}).forced is None
    assert asked(metadata={"user_id": 3}).people == ""
    assert (request.choices, request.may_store, request.continues, request.max_calls) == (1, True, None, None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": ""}, "model"),
        ({"model": 3}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"tools": {}}, "tools"),
        ({"tools": [tool("a"), tool("a")]}, "tools[1].name"),
    ],
)
def test_a_mistake_names_its_field(fields: dict[str, Any], param: str) -> None:
    """Rule E1: the error names the missing or invalid field."""
    with pytest.raises(RequestError) as refused:
        asked(**fields)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "odd",
    [
        {"tools": [None, "x", {"name": 3}]},
        {"tool_choice": "auto"},
        {"system": [None, {"text": 3}]},
        {"metadata": "x"},
        {"output_config": "x"},
        {"messages": [{"role": "assistant"}, {"content": [None, {"type": "tool_use"}]}, {"role": 3}]},
    ],
)
def test_what_is_odd_is_the_upstreams_to_judge(odd: dict[str, Any]) -> None:
    """Values of unexpected types do not raise an error; the upstream judges them."""
    request = asked(**odd)
    request.check_history(lambda name: False)
    assert not request.answers()
    assert not request.returned_calls()
    assert request.answer_keys("me", "", [(None, "x")])[0]


def test_results_answer_calls() -> None:
    """Results may be in several messages, also with a system message between them."""
    two = said(tool_use("a", "mine"), tool_use("b", "mine"))
    asked(
        messages=[two, user(result("a")), {"role": "system", "content": "x"}, user(result("b"))]
    ).check_history(lambda name: False)


@pytest.mark.parametrize(
    ("results", "place"),
    [
        ([result("toolu_1"), result("toolu_1")], 1),
        ([result("toolu_2")], 0),
        ([result("")], 0),
        ([result(3)], 0),
        ([text("x"), result("t" * 300)], 1),
    ],
)
def test_a_result_that_answers_nothing_is_refused(results: list[dict[str, Any]], place: int) -> None:
    """Rule E1: the error for a result without its call names the position of its block."""
    with pytest.raises(RequestError) as refused:
        asked(messages=[*CALLED, user(*results)]).check_history(lambda name: False)
    assert refused.value.param == f"messages[2].content[{place}].tool_use_id"


def test_nobody_else_answers_for_a_server_tool() -> None:
    """The proxy refuses a client's result for a server tool's call."""
    with pytest.raises(RequestError, match="server tool"):
        asked(messages=[*CALLED, user(result("toolu_1"))]).check_history(lambda name: name == "mine")


def test_what_the_client_sends_back_is_found() -> None:
    """The proxy finds returned calls with their ids, and answers with their text."""
    request = asked(
        messages=[*CALLED, user(result("toolu_1")), said(thinking("Hm."), text("It "), text("is."))]
    )
    (returned,) = request.returned_calls()
    assert (returned.position, returned.call_ids) == (1, frozenset({"toolu_1"}))
    (answer,) = request.answers()
    assert (answer.position, answer.text) == (3, "It is.")
    assert request.returns_calls


def key(*messages: dict[str, Any], system: Any = None) -> str:
    """Return the key of an answer to a conversation."""
    fields = {"system": system} if system is not None else {}
    return asked(messages=list(messages), **fields).answer_keys("me", "shape", [(None, "It is.")])[0]


SAME = [
    [user(text="hi"), said(text="So.")],
    [user(text("hi")), said(text("So."))],
    [user(text("hi", cache_control={"type": "ephemeral"})), said(text("So.", citations=None))],
    [user(text("h"), text("i")), said(thinking("Hm."), text("So."))],
]


@pytest.mark.parametrize("messages", SAME)
def test_a_conversation_is_the_same_whoever_writes_it(messages: list[dict[str, Any]]) -> None:
    """Cache breakpoints, nulls, thoughts and the form of a text do not change the key."""
    assert key(*messages) == key(*SAME[0])


@pytest.mark.parametrize(
    "messages",
    [
        [user(text="ho"), said(text="So.")],
        [said(text="hi"), said(text="So.")],
        [user(text="hi"), said(tool_use("a", "mine", {"x": 1}))],
        [user(text="hi"), said(tool_use("a", "mine", {"x": 2}))],
    ],
)
def test_another_conversation_is_another(messages: list[dict[str, Any]]) -> None:
    """Another word, role or argument changes the key."""
    assert key(*messages) != key(*SAME[0])


def test_a_result_counts_by_what_it_says() -> None:
    """The text of a result counts for the key, and its form does not."""
    one, same, other = (
        key(*CALLED, user(result("toolu_1", content)))
        for content in ("ok", [text("ok", cache_control={"type": "ephemeral"})], "no")
    )
    assert one == same != other


def test_the_system_prompt_counts_but_for_a_clients_billing() -> None:
    """The key ignores Claude Code's billing line, which differs in each request."""
    billing = text("x-anthropic-billing-header: cch=1;")
    assert key(system="You are.") == key(system=[billing, text("You are.")]) != key(system="You were.")


def test_keys_belong_to_a_caller() -> None:
    """Caller, call ids, model and the user in the body each change the key."""
    request = asked()
    keys = {
        request.conversation_key("me", ["a"]),
        request.conversation_key("you", ["a"]),
        request.conversation_key("me", ["b"]),
        asked(model="n").conversation_key("me", ["a"]),
        asked(metadata={"user_id": "u"}).conversation_key("me", ["a"]),
    }
    assert len(keys) == 5


HELD = {
    "messages": [
        '{"role":"assistant","content":[{"type":"tool_use","id":"u1","name":"mine","input":{"a":1}}]}'
    ],
    "calls": [
        {"call_id": "u1", "client_id": "toolu_1", "result": None},
        {"call_id": "u0", "client_id": None, "result": "{}"},
    ],
}


def fits(*messages: dict[str, Any], shown: bool = True) -> bool:
    """Return whether the second message is what the client got of the held turn."""
    return asked(messages=list(messages)).fits(1, HELD, lambda said: shown)


def test_a_turn_fits_what_was_shown_of_it() -> None:
    """A held turn fits the same call with or without a result, and an answer of text."""
    assert fits(*CALLED, user(result("toolu_1")))
    assert fits(*CALLED)
    assert fits(
        user(text="hi"), said(tool_use("toolu_1", "mine", {"a": 1})), user(result("toolu_1")), shown=False
    )
    assert fits(user(text="hi"), said(text="An answer."))


@pytest.mark.parametrize(
    "messages",
    [
        [user(text="hi"), said(tool_use("toolu_1", "mine", {"a": 2}))],
        [user(text="hi"), said(tool_use("toolu_1", "yours", {"a": 1}))],
        [user(text="hi"), said(tool_use("toolu_1", "mine", {"a": 1}), tool_use("toolu_2", "mine"))],
        [*CALLED, user(result("toolu_1"), result("toolu_1"))],
        [*CALLED, user(result("toolu_2"))],
    ],
)
def test_another_turn_does_not(messages: list[dict[str, Any]]) -> None:
    """Rule R4: a held turn does not fit another call, other arguments, or a surplus or foreign result."""
    assert not fits(*messages)


def test_a_text_that_was_not_shown_does_not_fit() -> None:
    """A text that the client did not get does not fit."""
    assert not fits(*CALLED, user(result("toolu_1")), shown=False)


def test_our_thoughts_are_known_again() -> None:
    """The proxy recognizes its own thinking blocks by their signature."""
    ours = said(thinking("core__now: done", "toolrelay"), text("So."))
    assert asked(messages=[user(text="hi"), ours]).has_proxy_calls
    assert not asked(messages=[user(text="hi"), said(thinking("Hm.", "sig"))]).has_proxy_calls
