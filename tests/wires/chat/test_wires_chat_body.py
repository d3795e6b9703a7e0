"""The request that goes upstream: only necessary changes, and each turn extends what was sent before."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.base.events import ToolCall, ToolDefinition
from proxy.json.splice import elements, members
from proxy.wires.chat.body import ChatBody
from proxy.wires.chat.request import parse_chat_request
from proxy.wires.upstream_port import BodyEditor, SuspendedCall

TIME = ToolDefinition("core__time", "Tells the time.", {"type": "object", "properties": {}}, strict=True)
WEATHER = ToolDefinition("core__weather", "Tells the weather.", {"type": "object"})
OWN = b'{"type" : "function","function":{"name":"book","parameters":{"max":1e2}}}'
ODD = (
    b' { "model":"m" ,"temperature": 1.0, "seed":12345678901234567890123,"top_p":1e-7 ,\n'
    b'"messages" : [ {"role":"user","content":"h\\u0069 \\/ \xc3\xa9"} ,'
    b' {"role":"assistant","content":null} ],'
    b'"tools":[' + OWN + b'],"x":{"b":1,"a":[ ]},"stream":true} '
)


def unmasked(name: str, arguments: str) -> str:
    """A mask that hides no argument."""
    return arguments


def editor(raw: bytes | dict[str, Any]) -> BodyEditor:
    """Return an editor of this request."""
    text = raw if isinstance(raw, bytes) else json.dumps(raw).encode()
    return BodyEditor(ChatBody(text, parse_chat_request(json.loads(text))))


def request(**fields: Any) -> dict[str, Any]:
    """Return a small request."""
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}


def rendered(body: BodyEditor) -> dict[str, Any]:
    """Return the body as an upstream reads it."""
    found = json.loads(body.render())
    assert isinstance(found, dict)
    return found


def test_every_value_keeps_its_bytes() -> None:
    """A body that nobody edits keeps the bytes and order of its values."""
    body = editor(ODD)
    before, after = members(ODD), members(body.render())
    assert list(after) == list(before)
    assert after == before


def test_offering_changes_the_tools_alone() -> None:
    """Server tools follow the client's own tools, and nothing else in the body changes."""
    body = editor(ODD)
    body.offer([WEATHER, TIME], [])
    before, after = members(ODD), members(body.render())
    assert {key for key in before if before[key] != after[key]} == {"tools"}
    assert elements(after["tools"])[0] == OWN
    assert [json.loads(t)["function"]["name"] for t in elements(after["tools"])] == [
        "book",
        "core__time",
        "core__weather",
    ]


def test_a_tool_definition_has_these_keys() -> None:
    """Golden: the exact keys and bytes of a tool's definition, strict or not."""
    body = editor(request())
    body.offer([WEATHER, TIME], [])
    assert elements(members(body.render())["tools"]) == [
        b'{"type":"function","function":{"name":"core__time","description":"Tells the time.",'
        b'"parameters":{"type":"object","properties":{}},"strict":true}}',
        b'{"type":"function","function":{"name":"core__weather","description":"Tells the weather.",'
        b'"parameters":{"type":"object"}}}',
    ]


def test_a_legacy_definition_has_these_keys() -> None:
    """Golden: a legacy definition has no type and no ``strict``, and stands in ``functions``."""
    own = {"name": "book", "parameters": {}}
    body = editor(request(functions=[own]))
    body.offer([TIME], [])
    after = members(body.render())
    assert "tools" not in after
    assert elements(after["functions"]) == [
        json.dumps(own).encode(),
        b'{"name":"core__time","description":"Tells the time.",'
        b'"parameters":{"type":"object","properties":{}}}',
    ]


def test_our_schema_takes_the_place_of_a_declaration() -> None:
    """If the client declares a server tool's name, the server's schema replaces the declaration."""
    tools = [{"type": "function", "function": {"name": name}} for name in ("core__time", "book")]
    body = editor(request(tools=[*tools, {"odd": 1}]))
    body.offer([WEATHER], [TIME])
    sent = rendered(body)["tools"]
    assert [t.get("function", {}).get("name") for t in sent] == ["core__time", "book", None, "core__weather"]
    assert sent[0]["function"]["description"] == "Tells the time."
    assert sent[2] == {"odd": 1}


def test_our_schema_takes_the_place_of_a_legacy_declaration() -> None:
    """A server's schema also replaces a declaration in ``functions``."""
    body = editor(request(functions=[{"name": "core__time"}, {"name": "book"}]))
    body.offer([], [TIME])
    assert [f.get("description") for f in rendered(body)["functions"]] == ["Tells the time.", None]


@pytest.mark.parametrize("tools", [None, []])
def test_tools_that_are_none(tools: Any) -> None:
    """A request with null or empty tools gets server tools, and its own value when they are withdrawn."""
    body = editor(request(tools=tools))
    body.offer([TIME], [])
    assert len(rendered(body)["tools"]) == 1
    body.withdraw()
    assert rendered(body)["tools"] == tools


def test_nothing_to_offer() -> None:
    """An offer of no tools changes nothing."""
    body = editor(request())
    body.offer([], [])
    assert rendered(body) == request()


def test_withdrawing() -> None:
    """A withdrawn offer leaves the body as the client sent it."""
    for raw in (ODD, json.dumps(request()).encode()):
        body = editor(raw)
        body.offer([TIME], [])
        body.withdraw()
        assert body.render() == editor(raw).render()


def named(name: str) -> dict[str, Any]:
    """A choice of one function, or one element of a list of allowed tools."""
    return {"type": "function", "function": {"name": name}}


def allowed(*names: str, mode: str = "auto") -> dict[str, Any]:
    """A choice among these functions."""
    return {
        "type": "allowed_tools",
        "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]},
    }


def test_what_is_withheld_is_not_sent() -> None:
    """A withheld tool leaves the same bytes as an offer without it, and a later call can undo that."""
    body, less = editor(ODD), editor(ODD)
    body.offer([TIME, WEATHER], [])
    before = members(body.render())
    body.edit(withheld=[TIME.name])
    less.offer([WEATHER], [])
    assert body.render() == less.render()
    after = members(body.render())
    assert list(after) == list(before)
    assert {key for key in before if before[key] != after[key]} == {"tools"}
    body.edit(withheld=[])
    assert members(body.render()) == before


def test_a_declaration_of_ours_is_withheld_too() -> None:
    """A withheld tool disappears even if the client declared it; the client's own functions stay."""
    body = editor(request(tools=[named("mine"), named("now")]))
    body.offer([], [ToolDefinition("now", "ours", {})])
    body.edit(withheld=["now"])
    assert rendered(body)["tools"] == [named("mine")]


@pytest.mark.parametrize(
    ("choice", "left"),
    [
        ("auto", "auto"),
        ("required", "required"),
        (named(TIME.name), "auto"),
        ({"type": "function", "name": TIME.name}, "auto"),
        (named("mine"), named("mine")),
        ({"type": "function", "function": {"name": [TIME.name]}}, None),
        (allowed(TIME.name, "mine", mode="required"), allowed("mine", mode="required")),
        (allowed("mine"), allowed("mine")),
        (allowed(TIME.name), "none"),
        (allowed(), allowed()),
    ],
)
def test_no_choice_names_what_is_withheld(choice: Any, left: Any) -> None:
    """A choice of a withheld tool becomes ``auto``; it leaves a list, and an empty list becomes ``none``."""
    body = editor(request(tools=[named("mine")], tool_choice=choice))
    body.offer([TIME], [])
    body.edit(withheld=[TIME.name])
    assert rendered(body)["tool_choice"] == (choice if left is None else left)
    raw = json.dumps(choice).encode()
    assert (members(body.render())["tool_choice"] == raw) == (left in (choice, None))


@pytest.mark.parametrize("choice", ["auto", "none", "required", named(TIME.name), allowed(TIME.name)])
def test_nothing_is_chosen_where_no_tool_is_left(choice: Any) -> None:
    """Without tools, no choice and no ``parallel_tool_calls`` is sent, because upstreams refuse them."""
    body = editor(request(tool_choice=choice, parallel_tool_calls=False))
    body.offer([TIME], [])
    body.edit(withheld=[TIME.name])
    assert rendered(body) == request()
    body.forbid_tools()
    assert rendered(body) == request()
    body.withdraw()
    assert rendered(body) == request(tool_choice="none", parallel_tool_calls=False)


def test_the_older_form_is_withheld_alike() -> None:
    """Withheld tools also disappear from ``functions`` and ``function_call``."""
    own = {"name": "mine", "parameters": {}}
    for declared, choice, left in (
        ([own], {"name": TIME.name}, request(functions=[own], function_call="auto")),
        ([own], {"name": "mine"}, request(functions=[own], function_call={"name": "mine"})),
        ([{"name": "now"}], "auto", request()),
    ):
        body = editor(request(functions=declared, function_call=choice))
        body.offer([TIME], [ToolDefinition("now", "ours", {})])
        body.edit(withheld=[TIME.name, "now"])
        assert rendered(body) == left


def test_offers_are_byte_stable() -> None:
    """Rule T7: the same tools give the same bytes, in whatever order they are offered."""
    one, other = editor(ODD), editor(ODD)
    one.offer([TIME, WEATHER], [])
    other.offer([WEATHER, TIME], [])
    assert one.render() == other.render()


def test_renaming() -> None:
    """A new model name replaces the old one in its place."""
    body = editor(ODD)
    body.edit(model='x"y')
    assert members(body.render())["model"] == b'"x\\"y"'
    assert next(iter(members(body.render()))) == "model"


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        (None, b'{"include_usage":true}'),
        (b"null", b'{"include_usage":true}'),
        (b'{"include_usage":false,"x":1.0}', b'{"include_usage":true,"x":1.0}'),
        (b'{"x":1e5}', b'{"x":1e5,"include_usage":true}'),
    ],
)
def test_asking_for_usage(options: bytes | None, sent: bytes) -> None:
    """The editor asks for usage and keeps other stream options."""
    more = b"" if options is None else b',"stream_options":' + options
    body = editor(b'{"model":"m","messages":[]' + more + b"}")
    body.edit(asks_usage=True)
    assert members(body.render())["stream_options"] == sent


# Turns.

texts = st.text(max_size=5)
messages = st.fixed_dictionaries({"role": st.sampled_from(["user", "system"]), "content": texts | st.none()})


@given(
    st.lists(messages, max_size=3),
    st.lists(st.tuples(texts, st.lists(texts, max_size=3)), max_size=3),
    st.booleans(),
    st.booleans(),
)
def test_what_was_sent_stays_a_prefix(
    history: list[dict[str, Any]], turns: list[tuple[str, list[str]]], forced: bool, last: bool
) -> None:
    """Each turn's messages begin with the exact bytes of the turn before, so that prompt caches work."""
    body = editor(request(messages=history, **({"tool_choice": "required"} if forced else {})))
    body.offer([WEATHER, TIME], [])
    before = members(body.render())
    for text, results in turns:
        calls = [ToolCall(f"c{n}", "core__time", "{}", n) for n in range(len(results))]
        answers = [body.result_message(c, r) for c, r in zip(calls, results, strict=True)]
        body.append_turn(json.dumps({"role": "assistant", "content": text}).encode(), answers)
        body.relax_tool_choice(["core__time"])
        body.edit(used_tokens=5)
        if last:
            body.forbid_tools()
        after = members(body.render())
        assert after["tools"] == before["tools"]
        sent = elements(before["messages"])
        assert elements(after["messages"])[: len(sent)] == sent
        assert len(elements(after["messages"])) == len(sent) + 1 + len(results)
        assert after["messages"].startswith(before["messages"][:-1])
        before = after


def test_a_result_has_these_keys() -> None:
    """Golden: the exact bytes of a result, as text under the id of its call."""
    body = editor(request())
    call = ToolCall("functions.time:0", "core__time", "{}", 0)
    assert body.result_message(call, '{"t":1}') == (
        b'{"role":"tool","tool_call_id":"functions.time:0","content":"{\\"t\\":1}"}'
    )
    legacy = ToolCall("call_1", "core__time", "{}", 0, legacy=True)
    assert body.result_message(legacy, "x") == b'{"role":"function","name":"core__time","content":"x"}'


def test_turns_are_spliced_in() -> None:
    """A turn's message and results follow the client's messages with their exact bytes."""
    body = editor(ODD)
    message, result = b'{"role":"assistant","content":1.0}', b'{"role":"tool"}'
    body.append_turn(message, [result, result])
    before = elements(members(ODD)["messages"])
    assert elements(members(body.render())["messages"]) == [*before, message, result, result]


# Choices.


ALLOWED: dict[str, Any] = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "required", "tools": [named("a")], "x": 1},
}


@pytest.mark.parametrize(
    ("choice", "called", "left"),
    [
        ("required", ["a"], "auto"),
        ("required", [], "required"),
        ("auto", ["a"], "auto"),
        ("none", ["a"], "none"),
        (named("a"), ["b", "a"], "auto"),
        (named("a"), ["b"], named("a")),
        ({"type": "custom", "custom": {"name": "a"}}, ["a"], "auto"),
        ({"type": "function", "name": "a"}, ["a"], "auto"),
        (ALLOWED, ["a"], {**ALLOWED, "allowed_tools": {**ALLOWED["allowed_tools"], "mode": "auto"}}),
        (ALLOWED, [], ALLOWED),
        ({"allowed_tools": {"mode": "auto"}}, ["a"], {"allowed_tools": {"mode": "auto"}}),
        ({"allowed_tools": {"mode": "odd"}}, ["a"], {"allowed_tools": {"mode": "odd"}}),
        ({}, ["a"], {}),
        (None, ["a"], None),
        (5, ["a"], 5),
    ],
)
def test_relaxing(choice: Any, called: list[str], left: Any) -> None:
    """Rule W9: a forced choice becomes ``auto`` after its call; a list of allowed tools stays a list."""
    body = editor(request(tool_choice=choice))
    body.relax_tool_choice(called)
    assert rendered(body)["tool_choice"] == left


MINE = [named("mine"), named("now")]
EITHER = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "required", "tools": [named("a"), named("mine")]},
}


@pytest.mark.parametrize("choice", ["required", named("mine"), EITHER])
def test_a_call_of_ours_does_not_satisfy_what_the_client_forces(choice: Any) -> None:
    """Rule W9: a choice that the client's tool can satisfy waits for it; a spent budget keeps that tool."""
    body = editor(request(tools=MINE, tool_choice=choice))
    body.offer([ToolDefinition("a", "", {})], [ToolDefinition("now", "ours", {})])
    body.relax_tool_choice(["a", "now"])
    assert rendered(body)["tool_choice"] == choice
    assert body.forbid_tools()
    last = rendered(body)
    assert [tool["function"]["name"] for tool in last["tools"]] == ["mine"]
    left = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named("mine")]}}
    assert last["tool_choice"] == (left if choice is EITHER else choice)


@pytest.mark.parametrize(
    ("choice", "left"),
    [
        ("required", "auto"),
        (ALLOWED, {**ALLOWED, "allowed_tools": {**ALLOWED["allowed_tools"], "mode": "auto"}}),
    ],
)
def test_a_call_of_ours_satisfies_what_only_ours_can(choice: Any, left: Any) -> None:
    """Rule W9: a server call satisfies a choice that only server tools can satisfy."""
    tools = [named("now")] if choice == "required" else MINE
    body = editor(request(tools=tools, tool_choice=choice))
    body.offer([ToolDefinition("a", "", {})], [ToolDefinition("now", "ours", {})])
    body.relax_tool_choice(["now"])
    assert rendered(body)["tool_choice"] == left
    assert not body.forbid_tools()
    assert rendered(body)["tool_choice"] == "none"


def test_relaxing_the_older_form() -> None:
    """Rule W9: a forced ``function_call`` becomes ``auto`` after its call, too."""
    body = editor(request(functions=[{"name": "a"}], function_call={"name": "a"}))
    body.offer([], [ToolDefinition("a", "ours", {})])
    body.relax_tool_choice(["a"])
    assert rendered(body)["function_call"] == "auto"
    body.forbid_tools()
    assert rendered(body)["function_call"] == "none"
    assert "tool_choice" not in rendered(body)


def test_nothing_to_relax() -> None:
    """Rule W9: without a forced choice, relaxing writes nothing."""
    body = editor(request())
    body.relax_tool_choice(["a"])
    assert "tool_choice" not in rendered(body)
    body.forbid_tools()
    assert rendered(body)["tool_choice"] == "none"


@pytest.mark.parametrize(
    ("bound", "used", "left"),
    [
        (100, 0, 100),
        (100, 30, 70),
        (100, 84, 16),
        (100, 90, 16),
        (100, 500, 16),
        (5, 3, 5),
        (None, 9, None),
        ("7", 9, "7"),
    ],
)
@pytest.mark.parametrize("key", ["max_tokens", "max_completion_tokens"])
def test_tokens_are_spent(key: str, bound: Any, used: int, left: Any) -> None:
    """The client's token limit covers all turns: later turns get what is left, with a small minimum."""
    body = editor(request(**{key: bound}))
    body.edit(used_tokens=used)
    assert rendered(body)[key] == left


def test_no_bound_is_made_up() -> None:
    """The editor adds no token limit if the client set none."""
    body = editor(request())
    body.edit(used_tokens=50)
    assert rendered(body) == request()


def test_nothing_is_recovered() -> None:
    """The editor has no way to recover from a refusal of a plain request."""
    assert editor(request()).recover("no", "x") is False


# Suspended turns.

MESSAGE = (
    b'{"role":"assistant","content":"t",'
    b'"tool_calls":[{"id":"s","function":{"name":"core__time","arguments":"{}"}}]}'
)


def held(body: BodyEditor) -> bytes:
    """A turn with a server call, a client call with a changed id, and one with its own id."""
    result = body.result_message(ToolCall("s", "core__time", "{}", 0), "noon")
    calls = [
        SuspendedCall("s", None, result),
        SuspendedCall("up1", "mine1", None),
        SuspendedCall("up2", "up2", None),
    ]
    return body.suspend(MESSAGE, calls, unmasked)


def test_a_suspended_turn_comes_back() -> None:
    """The hidden part is restored, with one result for each call, in order, under the call's id."""
    body = editor(request())
    body.append_turn(b'{"role":"assistant","content":"early"}', [b'{"role":"tool","tool_call_id":"e"}'])
    payload = held(body)
    answers = [
        b'{"tool_call_id": "up2","role":"tool","x":1.0}',
        b'{"role":"tool","tool_call_id":"mine1","y":1e2}',
    ]
    user, later = b'{"role":"user","content":"hi"}', b'{"role":"user","content":"and?"}'
    shown = b'{"role":"assistant","tool_calls":[]}'
    raw = b'{"model":"m","messages":[' + b",".join([user, shown, *answers, later]) + b"]}"
    back = editor(raw)
    back.restore(1, payload)
    assert back.restored > (0, 0)
    assert elements(members(back.render())["messages"]) == [
        user,
        b'{"role":"assistant","content":"early"}',
        b'{"role":"tool","tool_call_id":"e"}',
        MESSAGE,
        b'{"role":"tool","tool_call_id":"s","content":"noon"}',
        b'{"role":"tool","tool_call_id":"up1","y":1e2}',
        answers[0],
        later,
    ]


def test_two_suspended_turns_come_back() -> None:
    """A second turn is restored at the right place after the first one added messages."""
    payload = held(editor(request()))
    shown = {"role": "assistant", "tool_calls": []}
    answer = {"role": "tool", "tool_call_id": "mine1", "content": "1"}
    back = editor(request(messages=[shown, answer, {"role": "user"}, shown, answer]))
    back.restore(0, payload)
    assert back.restored > (0, 0)
    back.restore(3, payload)
    assert back.restored > (0, 0)
    roles = [m["role"] for m in rendered(back)["messages"]]
    assert roles == ["assistant", "tool", "tool", "user", "assistant", "tool", "tool"]


def test_a_result_that_the_client_did_not_bring() -> None:
    """A restored turn is sent without a result that the client did not send; the upstream judges that."""
    back = editor(request(messages=[{"role": "assistant"}]))
    back.restore(0, held(editor(request())))
    assert back.restored > (0, 0)
    assert [m["role"] for m in rendered(back)["messages"]] == ["assistant", "tool"]


def test_private_arguments_are_not_kept() -> None:
    """Rule R3: private arguments are masked in what is stored, in both forms; the rest keeps its bytes."""

    def mask(name: str, arguments: str) -> str:
        return '{"pin":"***"}' if name == "core__time" else arguments

    legacy = b'{"role":"assistant","function_call":{"name":"core__time","arguments":"{\\"pin\\":1}"}}'
    custom = (
        b'{"role":"assistant","tool_calls":[{"id":"x","type":"custom","custom":{"name":"c","input":"i"}}]}'
    )
    plain = b'{"role":"assistant", "tool_calls":null}'
    body = editor(request())
    body.append_turn(legacy, [custom, plain])
    stored = json.loads(body.suspend(MESSAGE, [], mask))["messages"]
    assert json.loads(stored[0])["function_call"] == {"name": "core__time", "arguments": '{"pin":"***"}'}
    assert stored[1:3] == [custom.decode(), plain.decode()]
    assert json.loads(stored[3])["tool_calls"][0]["function"]["arguments"] == '{"pin":"***"}'
    assert body.render().count(b"***") == 0
    both = json.loads(MESSAGE)
    both["tool_calls"].append({"id": "b", "function": {"name": "book", "arguments": "{}"}})
    stored = json.loads(editor(request()).suspend(json.dumps(both).encode(), [], mask))["messages"]
    arguments = [call["function"]["arguments"] for call in json.loads(stored[0])["tool_calls"]]
    assert arguments == ['{"pin":"***"}', "{}"]


def test_rows() -> None:
    """Rule R2: hidden turns become rows with text, other content, calls and results, in both forms."""
    body = editor(request())
    body.append_turn(MESSAGE, [b'{"role":"tool","tool_call_id":"s","content":"noon"}'])
    body.append_turn(
        b'{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{}"}}',
        [b'{"role":"function","name":"f","content":[{"a":1}]}'],
    )
    rows = body.records("r1", lambda name, arguments: '{"masked":1}' if name == "f" else arguments)
    shown = [
        (r.run_id, r.turn, r.seq, r.role, r.content, r.content_json, r.tool_call_id, r.name) for r in rows
    ]
    assert shown == [
        ("r1", 1, 0, "assistant", "t", None, None, None),
        ("r1", 1, 1, "tool", "noon", None, "s", None),
        ("r1", 2, 2, "assistant", None, None, None, None),
        ("r1", 2, 3, "function", None, '[{"a":1}]', None, "f"),
    ]
    assert [row.tool_calls for row in rows] == [
        '[{"id":"s","function":{"name":"core__time","arguments":"{}"}}]',
        None,
        None,
        None,
    ]
    assert [row.function_call for row in rows] == [
        None,
        None,
        '{"name":"f","arguments":"{\\"masked\\":1}"}',
        None,
    ]


@pytest.mark.parametrize("opening", ["", " ", "\n  "])
@pytest.mark.parametrize("between", [",", ", ", ",  ", " ,", ",\n", "\t,", " , "])
@pytest.mark.parametrize("text", ["hi", "a, {b} and }  ,  {c", ""])
def test_blanks_between_messages_stay(opening: str, between: str, text: str) -> None:
    """Rule T7: a turn's bytes begin with those of the turn before, whatever whitespace the client uses."""
    messages = [json.dumps({"role": "user", "content": text}), '{"role":"user", "content":"x"}']
    spaced = f'{{"model":"m","messages":[{opening}{between.join(messages)}{opening}'.encode()
    body = editor(spaced + b"]}")
    assert body.render() == spaced + b"]}"
    body.append_turn(b'{"role":"assistant"}', [b'{"role":"tool"}'])
    assert body.render() == spaced + b',{"role":"assistant"},{"role":"tool"}]}'


@pytest.mark.parametrize("empty", ["[]", "[ ]", "[\n]"])
def test_a_turn_is_appended_to_no_messages(empty: str) -> None:
    """A turn can be appended to an empty list of messages."""
    body = editor(f'{{"model":"m","messages":{empty}}}'.encode())
    assert body.render() == f'{{"model":"m","messages":{empty}}}'.encode()
    body.append_turn(b'{"role":"assistant"}', [])
    assert rendered(body)["messages"] == [{"role": "assistant"}]


blanks = st.text(" \t\r\n", max_size=3)


@st.composite
def spellings(draw: st.DrawFn) -> bytes:
    """A request in any order, with any whitespace, and with any of the members that are edited."""
    given = {
        "model": "m",
        "messages": draw(st.lists(messages, max_size=2)),
        **draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "tools": st.sampled_from(
                        [None, [], [{"type": "function", "function": {"name": "mine"}}]]
                    ),
                    "stream_options": st.sampled_from([None, {}, {"include_usage": False}]),
                    'x\u00e9"': st.floats(allow_nan=False, allow_infinity=False) | texts,
                },
            )
        ),
    }
    members = [
        draw(blanks)
        + draw(st.sampled_from([json.dumps(key), f'"\\u{ord(key[0]):04x}{json.dumps(key)[2:]}']))
        + draw(blanks)
        + ":"
        + draw(blanks)
        + json.dumps(given[key])
        for key in draw(st.permutations(list(given)))
    ]
    return f"{draw(blanks)}{{{','.join(each + draw(blanks) for each in members)}}}{draw(blanks)}".encode()


@given(spellings(), st.booleans(), st.booleans(), st.booleans())
def test_what_is_added_without_a_cut_is_what_a_cut_adds(
    raw: bytes, offers: bool, asks: bool, withdraws: bool
) -> None:
    """Adding members without cutting the body gives the same members as cutting it."""
    whole, cut = editor(raw), editor(raw)
    cut.edit(model="m")  # Only a cut can change a member.
    for body in (whole, cut):
        if offers:
            body.offer([WEATHER, TIME], [])
        if asks:
            body.edit(asks_usage=True)
        if withdraws:
            body.withdraw()
    assert list(members(whole.render()).items()) == list(members(cut.render()).items())
    whole.edit(model="m")
    assert whole.render() == cut.render()
