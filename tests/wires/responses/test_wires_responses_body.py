"""A Responses request that goes upstream, turn after turn."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from responses_rig import OURS, WIRE, chain_of, continued
from responses_script import custom, function, function_call, message, output, reasoning, user

from proxy.base.events import ToolCall, ToolDefinition
from proxy.wires.responses.body import upstream_ids
from proxy.wires.responses.own_items.signing import ItemSigner
from proxy.wires.responses.wire import ResponsesWire
from proxy.wires.upstream_port import BodyEditor, StateHabit, SuspendedCall

CALL = function_call("call_h", OURS, '{"zone":"UTC"}')
RESULT = output("call_h", "noon")
BLOB = reasoning("hm", encrypted_content="blob")
KEY = bytes(32)


def keep(name: str, arguments: str) -> str:
    """A mask that hides no argument."""
    return arguments


def body_of(ask: dict[str, Any] | str, state: StateHabit = "auto") -> BodyEditor:
    """Return the editor of a request."""
    raw = ask if isinstance(ask, str) else json.dumps(ask)
    return WIRE.editor(raw.encode(), WIRE.parse(json.loads(raw)), state)


def ask(*items: Any, **more: Any) -> dict[str, Any]:
    """Return a request with these items as its input."""
    return {"model": "m", "input": list(items), **more}


def turn_of(*items: dict[str, Any], id: str = "resp_1", store: bool | None = None) -> bytes:
    """Return a turn as the reader returns it."""
    return json.dumps({"id": id, "store": store, "output": list(items)}).encode()


def sent(body: BodyEditor) -> dict[str, Any]:
    """Return what goes upstream next."""
    return dict(json.loads(body.render()))


def result(call_id: str, content: str = "noon") -> bytes:
    """Return one result, encoded for the wire."""
    return body_of(ask()).result_message(ToolCall(call_id, OURS, "{}", 0), content)


# The first turn.


@pytest.mark.parametrize(
    "raw",
    [
        '{"model":"m","input":"hi","temperature":0.10}',
        '{"model":"m","input":"hi \\ud83d\\udd5b","seed":12345678901234567890}',
        '{"model":"m"}',
        '{"model":"m","input":null,"prompt":{"id":"p"}}',
        '{"model":"m","input":[]}',
        '{"model":"m","input":[{"role":"user","content":[ {"type":"input_text","text":"a" } ]},{"x":1.0}]}',
        '{"model":"m","input":"hi","max_output_tokens":20,"max_tool_calls":3}',
    ],
)
def test_what_is_not_edited_keeps_its_bytes(raw: str) -> None:
    """A body that nobody edits keeps its exact bytes."""
    assert body_of(raw).render().decode() == raw


def test_tools_are_added_after_the_clients_own() -> None:
    """Server tools follow the client's own, sorted, flat and with ``strict``; the client's bytes stay."""
    body = body_of(
        '{"model":"m","tools":[{"type":"web_search","x":1.0},{"type":"function","name":"mine"}],"input":"a"}'
    )
    added = [ToolDefinition(name, "d", {"type": "object"}, True) for name in ("core__b", "core__a")]
    body.offer(added, [])
    text = body.render().decode()
    assert '"tools":[{"type":"web_search","x":1.0},{"type":"function","name":"mine"},{' in text
    assert [tool.get("name") for tool in json.loads(text)["tools"]][1:] == ["mine", "core__a", "core__b"]
    assert json.loads(text)["tools"][-1] == {
        "type": "function",
        "name": "core__b",
        "description": "d",
        "parameters": {"type": "object"},
        "strict": True,
    }


def test_a_declaration_of_ours_gets_our_schema() -> None:
    """If the client declares a server tool's name, the server's definition replaces the declaration."""
    body = body_of(ask(tools=[{"type": "custom", "name": "mine"}, function("now")]))
    body.offer([], [ToolDefinition("now", "ours", {"type": "object"}, False)])
    assert [tool.get("description") for tool in sent(body)["tools"]] == [None, "ours"]


def test_an_offer_is_withdrawn() -> None:
    """A withdrawn offer leaves the client's own tools, or none."""
    for tools in ({}, {"tools": [function("mine")]}):
        body = body_of(ask(user("hi"), **tools))
        body.offer([ToolDefinition(OURS, "d", {}, False)], [])
        body.withdraw()
        assert sent(body) == ask(user("hi"), **tools)


def named(name: str, kind: str = "function") -> dict[str, Any]:
    """A choice of one tool, or one element of a list of allowed tools."""
    return {"type": kind, "name": name}


def allowed(*tools: dict[str, Any], mode: str = "auto") -> dict[str, Any]:
    """A choice among these tools."""
    return {"type": "allowed_tools", "mode": mode, "tools": list(tools)}


def test_what_is_withheld_is_not_sent() -> None:
    """A withheld tool leaves the same bytes as an offer without it, also with hosted tools."""
    now, then = ToolDefinition(OURS, "d", {}, False), ToolDefinition("core__then", "d", {}, False)
    asked = ask(user("hi"), tools=[{"type": "web_search"}, named("mine", "custom"), function("mine_too")])
    body, less = body_of(asked), body_of(asked)
    body.offer([now, then], [])
    body.edit(withheld=[OURS])
    less.offer([then], [])
    assert body.render() == less.render()
    body.append_turn(turn_of(CALL), [result("call_h")])
    less.append_turn(turn_of(CALL), [result("call_h")])
    assert body.render() == less.render()


@pytest.mark.parametrize(
    ("choice", "left"),
    [
        ("auto", "auto"),
        ("required", "required"),
        (named(OURS), "auto"),
        (named(OURS, "custom"), "auto"),
        (named("mine"), named("mine")),
        ({"type": "mcp", "server_label": "s", "name": OURS}, None),
        ({"type": "function", "name": {}}, None),
        (allowed(named(OURS), named("mine"), mode="required"), allowed(named("mine"), mode="required")),
        (allowed(named(OURS), {"type": "web_search"}), allowed({"type": "web_search"})),
        (allowed(named(OURS)), "none"),
    ],
)
def test_no_choice_names_what_is_withheld(choice: Any, left: Any) -> None:
    """A choice of a withheld tool becomes ``auto``; it leaves a list, and an empty list becomes ``none``."""
    body = body_of(ask(user("hi"), tools=[function("mine")], tool_choice=choice))
    body.offer([ToolDefinition(OURS, "d", {}, False)], [])
    body.edit(withheld=[OURS])
    assert sent(body)["tool_choice"] == (choice if left is None else left)


def test_nothing_is_chosen_where_no_tool_is_left() -> None:
    """Without tools no choice is sent, unless a stored prompt may bring tools."""
    for prompt in ({}, {"prompt": {"id": "pmpt_1"}}):
        body = body_of(ask(user("hi"), tool_choice=named(OURS), **prompt))
        body.offer([ToolDefinition(OURS, "d", {}, False)], [])
        body.edit(withheld=[OURS])
        left = {"tool_choice": "auto", **prompt} if prompt else {}
        assert sent(body) == ask(user("hi"), **left)
        body.forbid_tools()
        left = {"tool_choice": "none", **prompt} if prompt else {}
        assert sent(body) == ask(user("hi"), **left)
        body.withdraw()
        assert sent(body) == ask(user("hi"), tool_choice="none", **prompt)


def test_a_model_is_renamed() -> None:
    """A new model name replaces the old one, and nothing else changes."""
    body = body_of(ask(user("hi")))
    body.edit(model="other")
    assert sent(body) == {**ask(user("hi")), "model": "other"}


def test_reasoning_that_lost_what_it_led_to_is_dropped() -> None:
    """Reasoning that no item of the model follows is dropped, because the API would refuse it."""
    kept = reasoning("b", id="rs_2")
    body = body_of(ask(user("a"), BLOB, user("b"), kept, message("c"), BLOB))
    assert sent(body)["input"] == [user("a"), user("b"), kept, message("c")]


# The proxy's own items that a client sends back.


def shown(name: str = OURS, *, caller: str = "", **more: Any) -> dict[str, Any]:
    """A server call as the client got it; ``more`` are the client's changes."""
    item_id = ItemSigner(KEY, caller).item_id(name, '{"a":1}', output="noon", error=None)
    return {
        "id": item_id, "type": "mcp_call", "server_label": "toolrelay", "name": name,
        "arguments": '{"a":1}', "output": "noon", "error": None, "status": "completed", **more,
    }  # fmt: skip


def signing(*items: Any, caller: str = "", key: bytes = b"") -> list[dict[str, Any]]:
    """Return what goes upstream for items that a caller sends back."""
    wire = ResponsesWire(key or KEY)
    raw = json.dumps(ask(*items)).encode()
    body = wire.editor(raw, wire.parse(json.loads(raw)), caller=caller)
    return list(json.loads(body.render())["input"])


def test_a_call_that_was_shown_becomes_one_that_the_upstream_knows() -> None:
    """A returned ``mcp_call`` becomes a function call and its output, with one id."""
    first, call, answer, *rest = signing(user("a"), shown(), message("b"), user("c"))
    assert first == user("a")
    assert call == {"type": "function_call", "call_id": call["call_id"], "name": OURS, "arguments": '{"a":1}'}
    assert answer == output(call["call_id"], "noon")
    assert rest == [message("b"), user("c")]


def test_a_failure_that_was_shown_comes_back_with_its_words() -> None:
    """A failed call becomes an output with its error, even if null fields are missing."""
    item_id = ItemSigner(KEY, "").item_id(OURS, "{}", output=None, error="timeout: no")
    failed = {
        k: v for k, v in shown(id=item_id, arguments="{}", error="timeout: no").items() if k != "output"
    }
    items = signing(failed, shown(), shown())
    assert items[1]["output"] == "timeout: no"
    assert len({item["call_id"] for item in items}) == 3


FORGED = [
    {"id": "mcp_toolrelay01"}, {"id": None}, {"id": f"mcp_toolrelay{'0' * 48}"}, {"name": "core__pay"},
    {"arguments": '{"a":2}'}, {"arguments": None}, {"output": "midnight"}, {"output": None},
    {"error": "timeout: no"}, {"output": {"x": 1}}, {"name": 5}, {"output": None, "error": {"code": 1}},
]  # fmt: skip


@pytest.mark.parametrize("changed", FORGED)
def test_a_call_that_was_not_shown_is_the_clients_own_word(changed: dict[str, Any]) -> None:
    """An item without a valid signature becomes text of the user, not a tool result."""
    (said,) = signing({**shown(), **changed})
    assert (said["type"], said["role"]) == ("message", "user")
    assert said["content"].startswith("The client reports this tool call.")
    assert "call_id" not in json.dumps(said)


@pytest.mark.parametrize(("caller", "key"), [("bob", b""), ("ann", b"\1" * 32)])
def test_a_call_that_somebody_else_was_shown_is_not_ours(caller: str, key: bytes) -> None:
    """A signature is valid only for the same caller and the same key."""
    item = shown(caller="ann")
    assert [one["type"] for one in signing(item, caller="ann")] == ["function_call", "function_call_output"]
    assert [one["type"] for one in signing(item, caller=caller, key=key)] == ["message"]


@given(
    st.lists(st.text(max_size=3) | st.none(), min_size=4, max_size=4), st.integers(0, 3), st.text(max_size=3)
)
def test_a_signature_is_of_every_word(words: list[str | None], at: int, other: str) -> None:
    """A signature covers name, arguments, output and error, and the borders between them."""
    name, arguments, out, error = words
    fields = {"name": name or "", "arguments": arguments or "", "output": out, "error": error}
    signer = ItemSigner(KEY, "ann")
    item_id = signer.item_id(fields["name"] or "", fields["arguments"] or "", output=out, error=error)
    item = {"type": "mcp_call", "server_label": "toolrelay", "id": item_id, **fields}
    assert signer.verify(item)
    assert len(item_id) <= 64
    changed = {**item, list(fields)[at]: other}
    assert signer.verify(changed) == (changed == item)
    moved = {**item, "name": (name or "") + (arguments or ""), "arguments": ""}
    assert signer.verify(moved) == (moved == item)


def test_what_we_said_of_calls_does_not_go_upstream() -> None:
    """The proxy removes its own lines and items about calls and approvals from the input."""
    ours = [
        reasoning("core__now(): done", id="rs_toolrelay1"),
        message("> core__now(): done", id="msg_toolrelay1"),
        {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "toolrelay"},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_toolrelay1", "approve": True},
        {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "toolrelay"},
        {"type": "item_reference", "id": "msg_toolrelay1"},
    ]
    assert sent(body_of(ask(user("a"), *ours, message("b"))))["input"] == [user("a"), message("b")]


def test_what_only_speaks_of_us_stays() -> None:
    """A text that names the proxy, and another server's call, stay unchanged."""
    theirs = [user('"toolrelay" is a proxy'), message("toolrelay"), shown(server_label="other", id="mcp_1")]
    assert sent(body_of(ask(*theirs)))["input"] == theirs
    assert WIRE.parse(ask(*theirs)).has_proxy_calls is False
    assert WIRE.parse(ask(shown())).has_proxy_calls is True


# Later turns.


def test_a_turn_goes_on_from_the_one_that_the_upstream_kept() -> None:
    """In a chain the next turn has the response's id and the outputs, and repeats all settings."""
    first = ask(user("hi"), instructions="Be brief.", tools=[function("mine")], temperature=0.3)
    body = body_of(first)
    body.append_turn(turn_of(BLOB, CALL, store=True), [result("call_h")])
    assert sent(body) == {**first, "previous_response_id": "resp_1", "input": [RESULT]}
    body.append_turn(turn_of(function_call("call_2", OURS), id="resp_2", store=True), [result("call_2")])
    assert sent(body) == {**first, "previous_response_id": "resp_2", "input": [output("call_2", "noon")]}


@pytest.mark.parametrize(
    ("state", "store", "more"),
    [
        ("auto", False, {}),
        ("auto", None, {}),
        ("stateless", True, {}),
        ("auto", True, {"store": False}),
        ("chained", True, {"store": False}),
    ],
)
def test_a_turn_that_was_not_kept_is_sent_whole(state: StateHabit, store: bool | None, more: Any) -> None:
    """Without a chain the next turn repeats all items, with their encrypted reasoning."""
    first = ask(user("hi"), instructions="Be brief.", temperature=0.3, **more)
    body = body_of(first, state)
    odd = {**CALL, "namespace": "n"}
    body.append_turn(turn_of(BLOB, odd, store=store), [result("call_h")])
    assert sent(body) == {**first, "input": [user("hi"), BLOB, odd, RESULT]}
    body.append_turn(turn_of(function_call("call_2", OURS), store=store), [result("call_2")])
    again = [function_call("call_2", OURS), output("call_2", "noon")]
    assert sent(body)["input"] == [user("hi"), BLOB, odd, RESULT, *again]


def test_chained_takes_the_operators_word() -> None:
    """``responses_state = "chained"``: turns are chained even if the upstream does not say that it stores."""
    body = body_of(ask(user("hi")), "chained")
    body.append_turn(turn_of(CALL), [result("call_h")])
    assert sent(body)["previous_response_id"] == "resp_1"
    body = body_of(ask(user("hi")), "chained")
    body.append_turn(turn_of(CALL, id=""), [result("call_h")])
    assert "previous_response_id" not in sent(body)


def test_a_text_becomes_an_item_when_items_follow() -> None:
    """A text as ``input`` becomes a user message when a turn is appended."""
    body = body_of({"model": "m", "input": "hi"})
    body.append_turn(turn_of(CALL), [result("call_h")])
    assert sent(body)["input"] == [user("hi"), CALL, RESULT]


def test_a_conversation_gets_the_outputs_alone() -> None:
    """In an upstream's conversation only outputs are sent, since the upstream appends each turn itself."""
    body = body_of(ask(user("hi"), conversation="conv_1"))
    body.append_turn(turn_of(CALL, store=True), [result("call_h")])
    assert sent(body) == {"model": "m", "conversation": "conv_1", "input": [RESULT]}


def test_a_programs_call_wants_its_caller_back() -> None:
    """The output of a program's call repeats the call's ``caller``."""
    caller = {"type": "program", "caller_id": "cm_1"}
    body = body_of(ask(user("hi")))
    body.append_turn(turn_of({**CALL, "caller": caller}, store=True), [result("call_h")])
    assert sent(body)["input"] == [{**RESULT, "caller": caller}]


def test_a_call_id_that_comes_again_is_another_call() -> None:
    """A repeated call id gets a new id upstream, since Kimi counts its calls from 0 in each turn."""
    body = body_of(ask(user("hi")))
    for text in ("one", "two", "three"):
        body.append_turn(turn_of(function_call("now:0", OURS)), [result("now:0", text)])
    items = sent(body)["input"][1:]
    calls, answers = items[::2], items[1::2]
    assert calls[0]["call_id"] == "now:0"
    assert len({call["call_id"] for call in calls}) == 3
    assert [call["call_id"] for call in calls] == [answer["call_id"] for answer in answers]
    assert [answer["output"] for answer in answers] == ["one", "two", "three"]


# Forced tools and budgets.


@pytest.mark.parametrize(
    ("choice", "called", "relaxed"),
    [
        ("required", [OURS], "auto"),
        ("required", [], "required"),
        ("auto", [OURS], "auto"),
        ({"type": "function", "name": OURS}, [OURS], "auto"),
        ({"type": "function", "name": OURS}, ["other"], {"type": "function", "name": OURS}),
        ({"type": "allowed_tools", "mode": "required", "tools": [1]}, [OURS],
         {"type": "allowed_tools", "mode": "auto", "tools": [1]}),
        ({"type": "allowed_tools", "mode": "required", "tools": [1]}, [],
         {"type": "allowed_tools", "mode": "required", "tools": [1]}),
        ({"type": "allowed_tools", "mode": "auto", "tools": [1]}, [OURS],
         {"type": "allowed_tools", "mode": "auto", "tools": [1]}),
        ({"type": "mcp", "server_label": "x"}, [OURS], {"type": "mcp", "server_label": "x"}),
    ],
)  # fmt: skip
def test_a_forced_choice_is_relaxed(choice: Any, called: list[str], relaxed: Any) -> None:
    """Rule W9: a forced choice becomes ``auto`` after its call."""
    body = body_of(ask(user("hi"), tool_choice=choice))
    body.relax_tool_choice(called)
    assert sent(body)["tool_choice"] == relaxed


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "mine"},
        {"type": "allowed_tools", "mode": "required", "tools": [function(OURS), function("mine")]},
    ],
)
def test_a_call_of_ours_does_not_satisfy_what_the_client_forces(choice: Any) -> None:
    """Rule W9: a choice that the client's tool can satisfy waits for it; a spent budget keeps that tool."""
    body = body_of(ask(user("hi"), tools=[function("mine")], tool_choice=choice))
    body.offer([ToolDefinition(OURS, "d", {}, False)], [])
    body.relax_tool_choice([OURS])
    assert sent(body)["tool_choice"] == choice
    assert body.forbid_tools()
    left = {**choice, "tools": [function("mine")]} if "mode" in choice else choice
    assert (sent(body)["tools"], sent(body)["tool_choice"]) == ([function("mine")], left)


def test_tools_are_forbidden_on_the_last_turn() -> None:
    """Forbidding tools sets the choice to ``none``, so that the model answers without calls."""
    body = body_of(ask(user("hi"), tool_choice="required"))
    body.forbid_tools()
    assert sent(body)["tool_choice"] == "none"


@pytest.mark.parametrize(
    ("bound", "used", "left"), [(100, 30, 70), (100, 95, 16), (100, 500, 16), (10, 5, 10), (100, 0, 100)]
)
def test_the_clients_bound_counts_over_the_run(bound: int, used: int, left: int) -> None:
    """``max_output_tokens`` is reduced by what earlier turns used, with a small minimum."""
    body = body_of(ask(user("hi"), max_output_tokens=bound))
    body.edit(used_tokens=used)
    assert sent(body)["max_output_tokens"] == left


def test_no_bound_is_made_up() -> None:
    """The editor adds no limit if the client set none."""
    body = body_of(ask(user("hi")))
    body.edit(used_tokens=10)
    body.append_turn(turn_of(CALL), [result("call_h")])
    assert not {"max_output_tokens", "max_tool_calls"} & set(sent(body))


def test_the_clients_bound_on_calls_counts_over_the_run() -> None:
    """``max_tool_calls`` is reduced by server calls and the provider's own, but stays at least 1."""
    body = body_of(ask(user("hi"), max_tool_calls=5))
    assert sent(body)["max_tool_calls"] == 5
    search = {"id": "ws_1", "type": "web_search_call", "status": "completed"}
    body.append_turn(turn_of(search, custom("c", "theirs", "x"), CALL), [result("call_h")])
    assert sent(body)["max_tool_calls"] == 3
    body.append_turn(turn_of(search, search, search, CALL), [result("call_h")])
    assert sent(body)["max_tool_calls"] == 1


# Refusals.


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("The encrypted content gAAA... could not be verified.", "invalid_encrypted_content"),
        ("Item 'rs_1' of type 'reasoning' was provided without its required following item.", None),
        ("Item with id 'rs_1' not found. Items are not persisted when `store` is set to false.", None),
        ("Item 'fc_1' of type 'function_call' was provided without its required 'reasoning' item.", None),
        ("no", "invalid_encrypted_content"),
    ],
)
def test_reasoning_that_was_refused_is_left_out_once(text: str, code: str | None) -> None:
    """After a refusal of reasoning the request is repeated once, without reasoning."""
    body = body_of(ask(user("hi"), BLOB, CALL, RESULT))
    assert body.recover(text, code) is True
    bare = {key: value for key, value in CALL.items() if key != "id"}
    assert sent(body)["input"] == [user("hi"), bare, RESULT]
    assert body.recover(text, code) is False


def test_reasoning_of_later_turns_is_left_out_too() -> None:
    """After a refusal the reasoning of the run's own turns is left out, too."""
    body = body_of(ask(user("hi"), store=False))
    body.append_turn(turn_of(BLOB, CALL), [result("call_h")])
    assert body.recover("encrypted content", None) is True
    assert [item.get("type") for item in sent(body)["input"]] == [
        None,
        "function_call",
        "function_call_output",
    ]


def test_a_refused_field_of_the_clients_stays_though_its_reasoning_goes() -> None:
    """A refused field is left out only of the run's own calls, even if the client's lost their reasoning."""
    body = body_of(ask(user("hi"), BLOB, CALL, RESULT, store=False))
    body.append_turn(turn_of({**CALL, "call_id": "call_2"}), [result("call_2")])
    assert body.recover("encrypted content", None) is True
    body.leave_out_fields({"status"})
    theirs, ours = [item for item in sent(body)["input"] if item.get("type") == "function_call"]
    assert theirs == {key: value for key, value in CALL.items() if key != "id"}
    assert "status" not in ours


def test_what_has_no_reasoning_is_not_asked_again() -> None:
    """A request that would not change is not repeated."""
    assert body_of(ask(user("hi"))).recover("encrypted content", None) is False
    assert body_of(ask(user("hi"), BLOB, message("a"))).recover("The model is overloaded.", None) is False


def test_a_chain_that_was_refused_is_sent_whole() -> None:
    """If the upstream does not know its own response, all items are sent from then on."""
    body = body_of(ask(user("hi")))
    body.append_turn(turn_of(CALL, store=True), [result("call_h")])
    assert body.recover("Previous response not found", "previous_response_not_found") is True
    assert sent(body)["input"] == [user("hi"), CALL, RESULT]
    assert "previous_response_id" not in sent(body)
    body.append_turn(turn_of(function_call("call_2", OURS), store=True), [result("call_2")])
    assert len(sent(body)["input"]) == 5
    assert body.recover("Previous response not found", "previous_response_not_found") is False


def test_the_clients_own_chain_is_the_clients() -> None:
    """If the upstream does not know the client's own id, the request is not repeated."""
    body = body_of(ask(user("hi"), previous_response_id="resp_x"))
    assert body.recover("Previous response not found", "previous_response_not_found") is False


# A turn that waits for the client.

THEIRS = function_call("call_1", "mine")
HELD = [SuspendedCall("call_h", None, result("call_h")), SuspendedCall("call_1", "call_1", None)]


def test_a_held_turn_takes_the_place_of_the_clients_version() -> None:
    """A restored turn has its hidden items in place, and the client's output for the client's call."""
    held = body_of(ask(user("hi"))).suspend(turn_of(BLOB, CALL, THEIRS), HELD, keep)
    body = body_of(ask(user("hi"), {**THEIRS, "id": None}, output("call_1", "theirs"), user("so?")))
    body.restore(1, held)
    assert body.restored > (0, 0)
    assert sent(body)["input"] == [
        user("hi"), BLOB, CALL, THEIRS, RESULT, output("call_1", "theirs"), user("so?"),
    ]  # fmt: skip


def test_a_held_turn_has_the_hidden_turns_before_it() -> None:
    """A restored turn brings back the hidden turns that ran before it."""
    editor = body_of(ask(user("hi")))
    editor.append_turn(turn_of(function_call("call_0", OURS)), [result("call_0", "first")])
    held = editor.suspend(turn_of(THEIRS), [SuspendedCall("call_1", "call_1", None)], keep)
    body = body_of(ask(user("hi"), THEIRS, output("call_1", "theirs")))
    body.restore(1, held)
    assert sent(body)["input"] == [
        user("hi"),
        function_call("call_0", OURS),
        output("call_0", "first"),
        THEIRS,
        output("call_1", "theirs"),
    ]


def test_two_held_turns_are_put_back() -> None:
    """Positions of restored turns refer to the request as it came."""
    editor = body_of(ask(user("hi")))
    one = editor.suspend(turn_of(CALL, THEIRS), HELD, keep)
    back = [user("hi"), THEIRS, output("call_1", "a"), function_call("call_2", "mine"), output("call_2", "b")]
    two = editor.suspend(
        turn_of(function_call("h2", OURS), function_call("call_2", "mine")),
        [SuspendedCall("h2", None, result("h2")), SuspendedCall("call_2", "call_2", None)],
        keep,
    )
    body = body_of(ask(*back))
    body.restore(1, one)
    body.restore(3, two)
    assert [item.get("call_id") for item in sent(body)["input"]] == [
        None, "call_h", "call_1", "call_h", "call_1", "h2", "call_2", "h2", "call_2",
    ]  # fmt: skip


def test_a_conversation_keeps_the_turn_itself() -> None:
    """In an upstream's conversation only the server's results are restored, before the client's outputs."""
    editor = body_of(ask(user("hi"), conversation={"id": "conv_1"}))
    held = editor.suspend(turn_of(CALL, THEIRS), HELD, keep)
    body = body_of(ask(output("call_1", "theirs"), conversation={"id": "conv_1"}))
    body.restore(0, held)
    assert sent(body)["input"] == [RESULT, output("call_1", "theirs")]


def test_a_repeated_id_of_a_hidden_call_is_repaired_on_return() -> None:
    """A client call with the same id as an earlier hidden call gets a new id upstream."""
    editor = body_of(ask(user("hi")))
    editor.append_turn(turn_of(function_call("f:0", OURS)), [result("f:0", "hidden")])
    held = editor.suspend(turn_of(function_call("f:0", "mine")), [SuspendedCall("f:0", "f:0", None)], keep)
    body = body_of(ask(user("hi"), function_call("f:0", "mine"), output("f:0", "theirs")))
    body.restore(1, held)
    first, hidden, second, theirs = sent(body)["input"][1:]
    assert first["call_id"] == hidden["call_id"] == "f:0"
    assert second["call_id"] == theirs["call_id"] != "f:0"
    assert theirs["output"] == "theirs"


def test_private_arguments_are_not_held() -> None:
    """Rule R3: private arguments are masked in everything that is stored."""
    editor = body_of(ask(user("hi")))
    editor.append_turn(turn_of(function_call("c0", OURS, '{"pin":"1234"}')), [result("c0")])
    private = function_call("call_h", OURS, '{"pin":"5678"}')
    mask = lambda name, arguments: '{"pin":"***"}'  # noqa: E731 (one line says it)
    for held in (
        editor.suspend(turn_of(private, THEIRS), HELD, mask),
        continued(editor, turn_of(private, THEIRS), HELD, mask),
    ):
        assert b"1234" not in held
        assert b"5678" not in held
    assert "1234" not in str(editor.records("run", mask))


# Requests that continue one of the proxy's responses.


def resumed(held: bytes, *items: Any, **more: Any) -> dict[str, Any]:
    """Return the first upstream request of a continued response."""
    body = body_of(ask(*items, previous_response_id="resp_ours", **more))
    assert body.body.chain is not None
    body.edit(resumed=held)
    return sent(body)


def test_a_chain_goes_on_from_its_end() -> None:
    """The proxy's response id becomes the id of the upstream's last response."""
    editor = body_of(ask(user("hi")))
    editor.append_turn(turn_of(CALL, store=True), [result("call_h")])
    held = continued(editor, turn_of(message("noon"), id="resp_2", store=True), [], keep)
    assert resumed(held, user("and now?")) == {
        "model": "m", "input": [user("and now?")], "previous_response_id": "resp_2",
    }  # fmt: skip


def test_without_a_chain_all_items_go_on() -> None:
    """If the upstream stored nothing, the complete conversation replaces the proxy's response id."""
    editor = body_of({"model": "m", "input": "hi"})
    editor.append_turn(turn_of(BLOB, CALL), [result("call_h")])
    held = continued(editor, turn_of(message("noon")), [], keep)
    assert resumed(held, user("and now?")) == {
        "model": "m", "input": [user("hi"), BLOB, CALL, RESULT, message("noon"), user("and now?")],
    }  # fmt: skip


def test_ids_that_repeat_over_a_chain_of_runs_are_repaired() -> None:
    """Client ids that repeat kept ones are replaced; repetitions in the client's own input stay."""
    editor = body_of(ask(user("hi")))
    editor.append_turn(turn_of(function_call("f:0", OURS)), [result("f:0", "hidden")])
    held = continued(editor, turn_of(message("noon")), [], keep)
    theirs = [function_call("f:0", "mine"), output("f:0", "theirs")]
    ids = [item["call_id"] for item in resumed(held, *theirs)["input"] if "call_id" in item]
    assert ids[0] == ids[1] == "f:0"
    assert ids[2] == ids[3] != "f:0"
    assert sent(body_of(ask(*theirs, *theirs)))["input"] == [*theirs, *theirs]


def test_a_text_goes_on_too() -> None:
    """A text as ``input`` follows the earlier items as a user message."""
    editor = body_of(ask(user("hi")))
    held = continued(editor, turn_of(message("noon")), [], keep)
    body = body_of({"model": "m", "input": "so?", "previous_response_id": "resp_ours"})
    body.edit(resumed=held)
    assert sent(body)["input"] == [user("hi"), message("noon"), user("so?")]


def test_results_that_waited_go_first() -> None:
    """After a mixed turn, the server's outputs come before the client's in one request."""
    for store in (True, None):
        held = continued(body_of(ask(user("hi"))), turn_of(CALL, THEIRS, store=store), HELD, keep)
        request = resumed(held, output("call_1", "theirs"))
        assert request["input"][-2:] == [RESULT, output("call_1", "theirs")]
        assert request.get("previous_response_id") == ("resp_1" if store else None)


def test_a_foreign_chain_before_ours_is_gone_on_with() -> None:
    """The response id that the client first continued is sent again below the items that were not stored."""
    editor = body_of(ask(user("hi"), previous_response_id="resp_foreign"))
    editor.append_turn(turn_of(CALL), [result("call_h")])
    held = continued(editor, turn_of(message("noon")), [], keep)
    assert resumed(held, user("so?"))["previous_response_id"] == "resp_foreign"


def test_calls_that_nobody_ran_are_answered() -> None:
    """A server call that did not run gets an error output, so that no call is left open."""
    unanswered = [SuspendedCall("call_h", None, None)]
    for store in (True, None):
        held = continued(body_of(ask(user("hi"))), turn_of(CALL, store=store), unanswered, keep)
        answer = resumed(held, user("so?"))["input"][-2]
        assert (answer["type"], answer["call_id"]) == ("function_call_output", "call_h")
        assert json.loads(answer["output"])["error_code"] == "budget_exhausted"
    held = body_of(ask(user("hi"))).suspend(turn_of(CALL, THEIRS), [*unanswered, HELD[1]], keep)
    assert b"budget_exhausted" in held


def test_what_the_upstream_keeps_is_known() -> None:
    """The proxy knows which responses the upstream stored, so that it can delete them."""
    editor = body_of(ask(user("hi")))
    editor.append_turn(turn_of(CALL, store=True), [result("call_h")])
    editor.append_turn(turn_of(function_call("c2", OURS), id="resp_2", store=None), [result("c2")])
    editor.append_turn(turn_of(function_call("c3", OURS), id="../files/x", store=True), [result("c3")])
    held = continued(editor, turn_of(message("noon"), id="resp_4", store=True), [], keep)
    assert upstream_ids(held) == ["resp_1", "resp_4"]


def test_a_conversation_goes_on_by_itself() -> None:
    """Of an upstream's conversation only waiting results are kept."""
    editor = body_of(ask(user("hi"), conversation="conv_1"))
    held = json.loads(continued(editor, turn_of(CALL, THEIRS), HELD, keep))
    assert [json.loads(item) for item in held["items"]] == [RESULT]


def test_the_clients_own_input_is_what_it_asked() -> None:
    """``input_items`` returns the request's own input as items."""
    assert json.loads(chain_of(body_of({"model": "m", "input": "hi"})).input_items()) == [user("hi")]


# The record.


def test_what_is_kept_of_the_hidden_turns() -> None:
    """Rule R2: the record has rows for calls, results, text and reasoning, in terms that all wires share."""
    editor = body_of(ask(user("hi")))
    editor.append_turn(turn_of(BLOB, message("See:"), CALL), [result("call_h")])
    editor.append_turn(turn_of(function_call("call_2", OURS)), [result("call_2", "two")])
    rows = editor.records("run_1", keep)
    assert [(row.turn, row.seq, row.role) for row in rows] == [
        (1, 0, "assistant"), (1, 1, "assistant"), (1, 2, "assistant"), (1, 3, "tool"),
        (2, 4, "assistant"), (2, 5, "tool"),
    ]  # fmt: skip
    assert json.loads(rows[0].content_json or "")["encrypted_content"] == "blob"
    assert rows[1].content == "See:"
    (call,) = json.loads(rows[2].tool_calls or "")
    assert call == {
        "id": "call_h",
        "type": "function",
        "function": {"name": OURS, "arguments": '{"zone":"UTC"}'},
    }
    assert (rows[3].tool_call_id, rows[3].content) == ("call_h", "noon")


# Properties.

ids = st.sampled_from(["a", "b", "c"])


@given(st.lists(st.lists(ids, min_size=1, max_size=3, unique=True), max_size=5), st.booleans())
@settings(max_examples=80, deadline=None)
def test_every_call_has_one_output_however_ids_repeat(turns: list[list[str]], with_reasoning: bool) -> None:
    """Upstream, each call has a unique id and one output after it, even if the turns repeat ids."""
    body = body_of(ask(user("hi")))
    for number, names in enumerate(turns):
        items = [function_call(name, OURS, f'{{"n":{number}}}') for name in names]
        before = [BLOB] if with_reasoning else []
        body.append_turn(turn_of(*before, *items), [result(name, f"{number}{name}") for name in names])
    open_calls: dict[str, dict[str, Any]] = {}
    seen: set[str] = set()
    for item in sent(body)["input"][1:]:
        if item["type"] == "function_call":
            assert item["call_id"] not in seen
            seen.add(item["call_id"])
            open_calls[item["call_id"]] = item
        elif item["type"] == "function_call_output":
            call = open_calls.pop(item["call_id"])
            assert item["output"].startswith(str(json.loads(call["arguments"])["n"]))
    assert not open_calls
