"""The tool loop over real sockets: the model calls server tools, the client sees one ordinary stream."""

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from chat_script import (
    DONE,
    call,
    chunk_of,
    content,
    events_of,
    finish,
    payloads_of,
    reply,
    role,
    sse,
    stream,
    text_of,
    usage,
)
from looping import ANSWER, ASK, CLIENT_TOOL, ECHO, TIME, called, follow_up, looping, messages_of, one_loop
from probe_tools import Watch
from raw_upstream import FIN, HANG, KEEP, LAST_CHUNK, RESET, Step, chunk, chunked, head, whole
from waiting import PATIENCE_S

from proxy.base.events import ToolCall
from proxy.relay.run.job import Job
from proxy.wires.anthropic import dialect as anthropic
from proxy.wires.dialect import ErrorText
from proxy.wires.openai.dialect import read_error

SSE_HEAD = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
PLAIN = {**ASK, "stream": False}
NOON = '{"timezone":"UTC","iso":"2026-11-21T12:00:00+00:00"}'
UTC = '{"timezone":"UTC"}'


# ---------------------------------------------------------------- one call


async def test_one_call_makes_one_ordinary_stream() -> None:
    """Rules W3, W4, W5: the client gets one id, role, finish reason and end mark, and nothing of the call."""
    answer, requests = await one_loop(called(("call_1", TIME, UTC)), ANSWER)
    chunks = payloads_of(answer.body)
    assert answer.clean
    assert text_of(chunks) == "It is noon."
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert {c["id"] for c in chunks} == {"chatcmpl-1"}
    assert b"core__" not in answer.body
    assert b"call_1" not in answer.body
    message, results = follow_up(requests)
    assert message["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": TIME, "arguments": UTC}}
    ]
    assert results == [{"role": "tool", "tool_call_id": "call_1", "content": NOON}]
    assert len(requests) == 2


async def test_each_event_leaves_whole() -> None:
    """Rule W6: each event of a composed stream goes out with its blank line in one write."""
    answer, _ = await one_loop(called(("call_1", TIME, UTC)), ANSWER)
    assert all(piece.endswith(b"\n\n") for piece in answer.pieces)


async def test_one_call_without_streaming() -> None:
    """Rules W4, W5: without a stream, the reply has the last turn's text and the usage of both turns."""
    answer, requests = await one_loop(
        reply(None, ("call_1", TIME, UTC), used=(10, 5)), reply("It is noon.", used=(30, 7)), ask=PLAIN
    )
    assert answer.status == 200
    (choice,) = answer.json["choices"]
    assert choice["message"] == {"role": "assistant", "content": "It is noon."}
    assert choice["finish_reason"] == "stop"
    assert answer.json["object"] == "chat.completion"
    assert answer.json["usage"] == {"prompt_tokens": 40, "completion_tokens": 12, "total_tokens": 52}
    assert answer.header("content-length") == str(len(answer.body))
    assert follow_up(requests)[1][0]["content"] == NOON


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_legacy_function_call(streaming: bool) -> None:
    """The proxy answers a ``function_call`` with a ``function`` message, which has a name and no id."""
    made: dict[str, Any] = {"function_call": {"name": TIME, "arguments": UTC}}
    function = {"name": "mine", "parameters": {"type": "object", "properties": {}}}
    first = (
        stream(role(), chunk_of(made), finish("function_call"))
        if streaming
        else reply(None, reason="function_call", **made)
    )
    second = ANSWER if streaming else reply("It is noon.")
    ask = {**ASK, "stream": streaming, "functions": [function]}
    answer, requests = await one_loop(first, second, ask=ask)
    asked = json.loads(requests[1].body)
    assert "tools" not in asked
    assert asked["functions"][0]["name"] == "mine"
    assert asked["messages"][-2]["function_call"] == {"name": TIME, "arguments": UTC}
    assert asked["messages"][-1] == {"role": "function", "name": TIME, "content": NOON}
    assert b"function_call" not in answer.body
    text = text_of(payloads_of(answer.body)) if streaming else answer.json["choices"][0]["message"]["content"]
    assert text == "It is noon."


def every_split() -> dict[str, list[Step]]:
    """Return streams of the same call, cut and written in different ways."""
    whole_turn = (
        role()
        + call("call_1", TIME, "")
        + b"".join(call(None, None, letter) for letter in UTC)
        + finish("tool_calls")
        + DONE
    )
    once = call("call_1", TIME, UTC)
    over = finish("tool_calls")
    made = {"index": 0, "id": "call_1", "type": "function", "function": {"name": TIME, "arguments": UTC}}
    azure = sse({"id": "", "choices": [], "prompt_filter_results": []})
    parts: dict[str, list[bytes]] = {
        "one delta": [role(), once, over, DONE],
        "with the role": [chunk_of({"role": "assistant", "content": None, "tool_calls": [made]}), over, DONE],
        "with the finish": [role(), chunk_of({"tool_calls": [made]}, "tool_calls"), DONE],
        "name in two": [role(), call("call_1", TIME[:6], None), call(None, TIME[6:], UTC), over, DONE],
        "name repeated": [role(), call("call_1", TIME, UTC[:5]), call("call_1", TIME, UTC[5:]), over, DONE],
        "no index": [role(), call("call_1", TIME, UTC, None), over, DONE],
        "two end marks": [role(), once, over, DONE, DONE],
        "no end mark": [role(), once, over],
        "no finish": [role(), once, DONE],
        "stop": [role(), once, finish("stop"), DONE],
        "crlf": [(role() + once + over + DONE).replace(b"\n", b"\r\n")],
        "cr": [(role() + once + over + DONE).replace(b"\n", b"\r")],
        "single bytes": [whole_turn[at : at + 1] for at in range(len(whole_turn))],
        "no role": [once, over, DONE],
        "bom": [b"\xef\xbb\xbf" + role(), once, over, DONE],
        "sparse index": [role(), call("call_1", TIME, UTC, 7), over, DONE],
        "negative index": [role(), call("call_1", TIME, UTC, -1), over, DONE],
        "huge index": [role(), call("call_1", TIME, UTC, 2**31), over, DONE],
        "azure": [azure, role(), once, over, DONE],
        "invalid utf-8": [role(), once.replace(b"UTC", b"UTC").replace(b'"m"', b'"m\xff"'), over, DONE],
        "not a number": [
            role(),
            once.replace(b'"created":7', b'"created":NaN,"big":123456789012345678901234'),
            over,
            DONE,
        ],
        "lone surrogate": [role(), once.replace(b'"model":"m"', b'"model":"\\ud83d"'), over, DONE],
    }
    cuts = sorted(random.Random(5).sample(range(1, len(whole_turn)), 150))
    parts["150 places"] = [whole_turn[a:b] for a, b in pairwise([0, *cuts, len(whole_turn)])]
    return {name: chunked(*pieces) for name, pieces in parts.items()}


@pytest.mark.parametrize("split", every_split())
async def test_every_split_of_a_call_comes_to_the_same(split: str) -> None:
    """Rules W6, W7: however a call arrives, it runs once and the client sees the same stream."""
    answer, requests = await one_loop(every_split()[split], ANSWER)
    # Bytes that passed before the call began keep the upstream's own line ends.
    body = answer.body.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert text_of(payloads_of(body)) == "It is noon."
    assert b"core__" not in answer.body
    _, results = follow_up(requests)
    assert results == [{"role": "tool", "tool_call_id": "call_1", "content": NOON}]


@pytest.mark.parametrize("call_ids", [("", ""), ("a", "a"), (None, None)], ids=["blank", "repeated", "none"])
async def test_ids_are_repaired_only_where_they_must(call_ids: tuple[str | None, str | None]) -> None:
    """Rule W8: the proxy replaces blank and repeated call ids; the first of two equal ids stays."""
    first = stream(role(), *[call(i, TIME, UTC, at) for at, i in enumerate(call_ids)], finish("tool_calls"))
    answer, requests = await one_loop(first, ANSWER)
    message, results = follow_up(requests)
    assert [r["content"] for r in results] == [NOON, NOON]
    assert message["tool_calls"][0]["id"] == (call_ids[0] or message["tool_calls"][0]["id"])
    assert answer.clean


# ---------------------------------------------------------------- several calls and turns


async def test_two_calls_of_one_turn_run_and_are_answered_in_order() -> None:
    """Rule W7: two calls of one turn get two results, in the order of the calls."""
    _, requests = await one_loop(called(("call_1", ECHO, '{"text":"a"}'), ("call_2", TIME, UTC)), ANSWER)
    _, results = follow_up(requests)
    assert [r["tool_call_id"] for r in results] == ["call_1", "call_2"]
    assert json.loads(results[0]["content"])["echo"] == "a"
    assert results[1]["content"] == NOON


async def test_sixty_four_calls_are_all_answered(watch: Watch) -> None:
    """Rule T7: calls over the limit get a refusal as their result, and the next turn is the last."""
    calls = [(f"call_{n}", ECHO, json.dumps({"text": str(n)})) for n in range(64)]
    answer, requests = await one_loop(called(*calls), ANSWER)
    _, results = follow_up(requests)
    assert [r["tool_call_id"] for r in results] == [f"call_{n}" for n in range(64)]
    assert len(watch.started) == 32
    assert json.loads(results[63]["content"])["error_code"] == "budget_exhausted"
    assert json.loads(requests[1].body)["tool_choice"] == "none"
    assert text_of(payloads_of(answer.body)) == "It is noon."


async def test_calls_without_end_end_in_an_answer(watch: Watch) -> None:
    """Rule T7: a model that always calls is asked max_turns + 1 times, then the user is told why it ends."""
    endless = called(("call_1", ECHO, '{"text":"a"}'))
    answer, requests = await one_loop(endless, tools={"max_turns": 3})
    chunks = payloads_of(answer.body)
    assert len(requests) == 4
    assert [json.loads(r.body).get("tool_choice") for r in requests] == [None, None, None, "none"]
    assert len(watch.started) == 2
    assert "tool budget of this request is spent" in text_of(chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert b"tool_calls" not in answer.body
    messages_of(requests[3])


@pytest.mark.parametrize("budget", [{"max_calls": 1}, {"request_timeout_s": 0.001}])
async def test_spent_budgets_still_answer(budget: dict[str, Any], watch: Watch) -> None:
    """Rule T7: once the calls or the seconds are used up, the model answers without tools."""
    answer, requests = await one_loop(
        called(("call_1", ECHO, '{"text":"a"}'), ("call_2", ECHO, '{"text":"b"}')), ANSWER, tools=budget
    )
    assert text_of(payloads_of(answer.body)) == "It is noon."
    assert len(watch.started) <= 1
    assert json.loads(requests[1].body)["tool_choice"] == "none"


async def test_a_token_budget_counts_what_the_turns_used(watch: Watch) -> None:
    """Rule T7: the proxy asks for usage, counts a turn's tokens against the budget, and tells the client
    none that it did not ask for."""
    first = stream(role(), call("call_1", ECHO, '{"text":"a"}'), finish("tool_calls"), usage(90, 20))
    answer, requests = await one_loop(first, ANSWER, tools={"max_tokens": 100})
    asked = [json.loads(request.body)["stream_options"] for request in requests]
    assert asked == [{"include_usage": True}] * 2
    assert watch.started == []
    assert json.loads(follow_up(requests)[1][0]["content"])["error_code"] == "budget_exhausted"
    assert b"usage" not in answer.body


ONE_ECHO = called(("call_1", ECHO, '{"text":"a"}'))
TWO_ECHOES = called(("call_1", ECHO, '{"text":"a"}'), ("call_2", ECHO, '{"text":"b"}'))
COSTLY = stream(role(), call("call_1", ECHO, '{"text":"a"}'), finish("tool_calls"), usage(90, 20))


@pytest.mark.parametrize(
    ("setting", "budget", "first", "refused"),
    [
        ("tools.max_turns", {"max_turns": 1}, ONE_ECHO, [(1, "call_1"), (2, "call_1")]),
        ("tools.max_calls", {"max_calls": 1}, TWO_ECHOES, [(1, "call_2"), (2, "call_1"), (2, "call_2")]),
        ("tools.max_tokens", {"max_tokens": 100}, COSTLY, [(1, "call_1"), (2, "call_1")]),
        ("tools.request_timeout_s", {"request_timeout_s": 1e-6}, ONE_ECHO, [(1, "call_1"), (2, "call_1")]),
    ],
)
async def test_each_call_that_a_budget_refuses_is_on_record(
    setting: str, budget: dict[str, Any], first: Any, refused: list[tuple[int, str]], watch: Watch
) -> None:
    """Rule T7: a call that a budget refuses has a row that names the budget, as the run does; so has a call
    that the model makes in its last turn."""
    async with looping(first, tools=budget) as (proxy, _):
        await proxy.ask(ASK)
        detail = await proxy.only_run()
    assert detail.run.spent == setting
    rows = [row for row in detail.invocations if row.error_code == "budget_exhausted"]
    assert [(row.turn, row.call_id) for row in rows] == refused
    assert {(row.tool, row.status, row.decision) for row in rows} == {(ECHO, "error", f"refused: {setting}")}
    assert len(detail.invocations) - len(rows) == len(watch.started)


async def test_a_run_within_its_budgets_has_spent_none() -> None:
    """The record of a run names no budget if none is used up."""
    async with looping(ONE_ECHO, ANSWER) as (proxy, _):
        await proxy.ask(ASK)
        assert (await proxy.only_run()).run.spent is None


async def test_a_function_of_the_clients_in_a_wrapper_is_on_record() -> None:
    """A client's function inside a wrapper does not run, and has a row that says so."""
    use = {"recipient_name": "functions.mine", "parameters": {}}
    wrapped = called(("call_1", "multi_tool_use.parallel", json.dumps({"tool_uses": [use]})))
    async with looping(wrapped, ANSWER) as (proxy, _):
        await proxy.ask({**ASK, "tools": [CLIENT_TOOL]})
        (row,) = (await proxy.only_run()).invocations
    assert (row.tool, row.error_code, row.decision) == (
        "mine", "invalid_arguments", "refused: the function is the client's",
    )  # fmt: skip


async def test_use_that_was_not_reported_is_no_zero() -> None:
    """A turn without reported usage has no tokens on record, and the run counts such turns."""
    async with looping(COSTLY, ANSWER) as (proxy, _):
        await proxy.ask(ASK)
        detail = await proxy.only_run()
    assert [turn.total_tokens for turn in detail.turns] == [110, None]
    assert (detail.run.total_tokens, detail.run.unreported) == (110, 1)


async def test_texts_of_all_turns_in_order() -> None:
    """Rule W4: the client gets the texts of all turns as one text, separated by a blank line."""
    first = stream(role(), content("Let me ", "look."), call("call_1", TIME, UTC), finish("tool_calls"))
    answer, requests = await one_loop(first, ANSWER)
    assert text_of(payloads_of(answer.body)) == "Let me look.\n\nIt is noon."
    assert follow_up(requests)[0]["content"] == "Let me look."


async def test_usage_is_the_sum_and_comes_last() -> None:
    """Rule W4: the last chunk before the end mark has the usage of all turns, nested details included."""
    first = stream(
        role(), call("call_1", TIME, UTC), finish("tool_calls"), usage(10, 5, x={"cached_tokens": 4})
    )
    second = stream(
        role(id="b"), content("noon", id="b"), finish(id="b"), usage(30, 7, id="b", x={"cached_tokens": 8})
    )
    ask = {**ASK, "stream_options": {"include_usage": True}}
    answer, _ = await one_loop(first, second, ask=ask)
    last = payloads_of(answer.body)[-1]
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 40, "completion_tokens": 12, "total_tokens": 52, "x": {"cached_tokens": 12}
    }  # fmt: skip


async def test_usage_inside_a_choice_is_counted_and_comes_last() -> None:
    """Moonshot's usage stands in a choice; the client gets the sum of all turns, and no single turn's."""
    told = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, "cached_tokens": 4}
    ends = [
        sse({"id": "a", "choices": [{"index": 0, "delta": {}, "finish_reason": reason, "usage": told}]})
        for reason in ("tool_calls", "stop")
    ]
    first = stream(role(), call("call_1", TIME, UTC), ends[0])
    second = stream(role(id="b"), content("noon", id="b"), ends[1])
    answer, _ = await one_loop(first, second, ask={**ASK, "stream_options": {"include_usage": True}})
    payloads = payloads_of(answer.body)
    assert payloads[-1]["usage"] == {name: 2 * count for name, count in told.items()}
    assert all("usage" not in choice for one in payloads for choice in one["choices"])


async def test_usage_that_nobody_asked_for_stays_out() -> None:
    """Rule W4: a client that did not ask for usage gets none, even if the upstream sends it."""
    first = stream(role(), call("call_1", TIME, UTC), finish("tool_calls"), usage(10, 5))
    answer, _ = await one_loop(first, stream(role(), content("noon"), finish(), usage(30, 7)))
    assert all("usage" not in c for c in payloads_of(answer.body))


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.accepts("chat-word-json", why="the format is not about what is asked")
async def test_json_output_is_never_glued(streaming: bool) -> None:
    """With ``response_format`` the client gets only the last turn's text: two JSON texts are no JSON."""
    ask = {**ASK, "stream": streaming, "response_format": {"type": "json_object"}}
    first = (
        stream(role(), content('{"a"', ":1}"), call("call_1", TIME, UTC), finish("tool_calls"))
        if streaming
        else reply('{"a":1}', ("call_1", TIME, UTC))
    )
    second = stream(role(), content('{"b"', ":2}"), finish()) if streaming else reply('{"b":2}')
    answer, requests = await one_loop(first, second, ask=ask)
    text = text_of(payloads_of(answer.body)) if streaming else answer.json["choices"][0]["message"]["content"]
    assert text == '{"b":2}'
    assert follow_up(requests)[0]["content"] == '{"a":1}'


@pytest.mark.accepts("chat-word-json", why="the format is not about what is asked")
async def test_json_output_without_a_call_passes_untouched() -> None:
    """Rule W2: with ``response_format``, an answer without server calls passes unchanged."""
    data = role() + content('{"b"', ":2}") + finish() + DONE
    answer, _ = await one_loop(chunked(data), ask={**ASK, "response_format": {"type": "json_object"}})
    assert answer.body == data


def allowed_tools(mode: str) -> dict[str, Any]:
    """Return a ``tool_choice`` that names the tools which may be called."""
    tools = [{"type": "function", "function": {"name": TIME}}]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize(
    ("choice", "relaxed"),
    [
        ("required", "auto"),
        ({"type": "function", "function": {"name": TIME}}, "auto"),
        (allowed_tools("required"), allowed_tools("auto")),
        (allowed_tools("auto"), allowed_tools("auto")),
        ("auto", "auto"),
    ],
)
async def test_a_forced_choice_is_relaxed(choice: Any, relaxed: Any) -> None:
    """Rule W9: after a turn that satisfied the choice, the model is free to answer."""
    _, requests = await one_loop(called(("call_1", TIME, UTC)), ANSWER, ask={**ASK, "tool_choice": choice})
    assert json.loads(requests[0].body)["tool_choice"] == choice
    assert json.loads(requests[1].body)["tool_choice"] == relaxed


@pytest.mark.parametrize("max_turns", [8, 1])
async def test_a_client_that_requires_its_own_tool_gets_its_call(max_turns: int) -> None:
    """Rule W9: if a client requires a call of its own tool (pydantic-ai's ``output_type``), the choice still
    holds after server tools ran, and when the budget of turns is spent."""
    own = {**CLIENT_TOOL, "function": {**CLIENT_TOOL["function"], "name": "final_result"}}
    ask = {**ASK, "tools": [own], "tool_choice": "required"}
    answer, requests = await one_loop(
        called(("call_1", TIME, UTC)),
        called(("call_2", "final_result", '{"hour":12}')),
        ask=ask,
        tools={"max_turns": max_turns},
    )
    second = json.loads(requests[1].body)
    assert second["tool_choice"] == "required"
    names = [tool["function"]["name"] for tool in second["tools"]]
    assert (TIME in names) == (max_turns == 8)
    assert "final_result" in names
    chunks = payloads_of(answer.body)
    made = [
        c for chunk in chunks for choice in chunk["choices"] for c in choice["delta"].get("tool_calls", ())
    ]
    assert [c["function"]["name"] for c in made if "id" in c] == ["final_result"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_tokens_that_are_spent_are_taken_off_the_clients_bound() -> None:
    """The client's limit of output tokens holds for all turns together, so that later turns get the rest."""
    first = stream(role(), call("call_1", TIME, UTC), finish("tool_calls"), usage(10, 40))
    _, requests = await one_loop(first, ANSWER, ask={**ASK, "max_completion_tokens": 100})
    assert json.loads(requests[1].body)["max_completion_tokens"] == 60


# ---------------------------------------------------------------- what the upstream gets


@pytest.mark.accepts("chat-fields", "chat-members", why="the members are made up")
async def test_the_clients_json_keeps_its_bytes() -> None:
    """Rule W8: numbers, key order, escapes and unknown fields go to the upstream as the client wrote them."""
    raw = (
        b'{"zeta":1.0,"model":"m","seed":12345678901234567,"temperature":1E-1,"messages":[ '
        b'{"content":"h\\u00e9", "role":"user","x":0.10} ],'
        b'"stream":true,"logit_bias":{"50256":-100},"alpha":[1.50,{}]}'
    )
    _, requests = await one_loop(called(("call_1", TIME, UTC)), ANSWER, ask=raw)
    for request in requests:
        body = request.body
        for piece in (
            b'"zeta":1.0,"model":"m","seed":12345678901234567,"temperature":1E-1,"messages":[',
            b'{"content":"h\\u00e9", "role":"user","x":0.10}',
            b'"logit_bias":{"50256":-100},"alpha":[1.50,{}]',
        ):
            assert piece in body
    tools = requests[0].body[requests[0].body.index(b'"tools":') :]
    assert tools == requests[1].body[requests[1].body.index(b'"tools":') :]


@pytest.mark.accepts("chat-members", why="other providers have these members")
async def test_the_assistant_message_goes_back_as_it_came() -> None:
    """Rule W8: the model gets its reasoning, thought signatures and unknown fields back."""
    fragment = {
        "index": 0, "id": "call_1", "type": "function",
        "function": {"name": TIME, "arguments": UTC, "thoughts": "t"},
        "extra_content": {"google": {"thought_signature": "sig=="}},
    }  # fmt: skip
    first = stream(
        role(),
        chunk_of({"reasoning_content": "Let me "}),
        chunk_of({"reasoning_content": "think."}),
        chunk_of({"reasoning_details": [{"type": "reasoning.encrypted", "data": "abc", "index": 0}]}),
        chunk_of({"tool_calls": [fragment]}),
        finish("tool_calls"),
    )
    _, requests = await one_loop(first, ANSWER)
    message, _ = follow_up(requests)
    assert message["reasoning_content"] == "Let me think."
    assert message["reasoning_details"] == [{"type": "reasoning.encrypted", "data": "abc", "index": 0}]
    (made,) = message["tool_calls"]
    assert made["extra_content"] == {"google": {"thought_signature": "sig=="}}
    assert made["function"] == {"name": TIME, "arguments": UTC, "thoughts": "t"}
    assert made["id"] == "call_1"


# ---------------------------------------------------------------- calls that are refused

DEEP = '{"timezone":' + "[" * 50_000 + "]" * 50_000 + "}"
BAD = {
    "truncated": ('{"timezone":"U', "invalid_json", "{}"),
    "prose": ("the time in UTC please", "invalid_json", "{}"),
    "array": ('["UTC"]', "invalid_arguments", "{}"),
    "string": ('"UTC"', "invalid_arguments", "{}"),
    "deep": (DEEP, "invalid_arguments", "{}"),
    "deep but short": ('{"timezone":' + "[" * 2000 + "]" * 2000 + "}", "invalid_json", "{}"),
    "duplicate keys": ('{"timezone":"UTC","timezone":"Asia/Tokyo"}', "invalid_json", None),
    "extra field": ('{"timezone":"UTC","x":1}', "invalid_arguments", None),
    "wrong type": ('{"timezone":7}', "invalid_arguments", None),
    "missing": ("{}", "invalid_arguments", None),
    "null": ("null", "invalid_arguments", "{}"),
    "empty": ("", "invalid_arguments", "{}"),
    "surrogate": ('{"timezone":"\\ud800"}', "invalid_json", "{}"),
    "nan": ('{"timezone":NaN}', "invalid_json", "{}"),
}


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("bad", BAD)
async def test_bad_arguments_are_answered_with_why(bad: str, streaming: bool) -> None:
    """Rules T3, W8: a call with bad arguments does not run; the model is told why, without their text."""
    arguments, code, sent = BAD[bad]
    if streaming:
        answer, requests = await one_loop(called(("call_1", TIME, arguments)), ANSWER)
        assert text_of(payloads_of(answer.body)) == "It is noon."
    else:
        answer, requests = await one_loop(
            reply(None, ("call_1", TIME, arguments)), reply("It is noon."), ask=PLAIN
        )
        assert answer.json["choices"][0]["message"]["content"] == "It is noon."
    message, (result,) = follow_up(requests)
    told = json.loads(result["content"])
    assert set(told) == {"ok", "error_code", "message"}
    assert (told["ok"], told["error_code"]) == (False, code)
    assert "Tokyo" not in told["message"]
    assert message["tool_calls"][0]["function"]["arguments"] == (arguments if sent is None else sent)


async def test_five_megabytes_of_arguments_do_not_go_back() -> None:
    """Rules T7, W8: arguments over the size limit are refused and do not go back to the upstream."""
    arguments = json.dumps({"timezone": "x" * (5 << 20)})
    pieces = [call("call_1", TIME, "")] + [
        call(None, None, arguments[at : at + 65536]) for at in range(0, len(arguments), 65536)
    ]
    answer, requests = await one_loop(stream(role(), *pieces, finish("tool_calls")), ANSWER)
    assert text_of(payloads_of(answer.body)) == "It is noon."
    assert len(requests[1].body) < 100_000
    message, (result,) = follow_up(requests)
    assert message["tool_calls"][0]["function"]["arguments"] == "{}"
    assert json.loads(result["content"])["error_code"] == "invalid_arguments"


@pytest.mark.parametrize("depth", [300, 900])
async def test_values_too_deep_to_be_written_again_end_in_an_error(depth: int) -> None:
    """If unknown fields are nested too deeply to be written again, the client gets an error it can read."""
    first = (
        role()
        + f'data: {{"choices":[{{"index":0,"delta":{{"zz":{"[" * depth}{"]" * depth}}}}}]}}\n\n'.encode()
        + call("call_1", TIME, UTC)
        + finish("tool_calls")
        + DONE
    )
    async with looping(chunked(first), ANSWER) as (proxy, _):
        answer = await proxy.ask(ASK)
        assert answer.clean
        *_, last = events_of(answer.body)
        assert last == "[DONE]"
        assert (await proxy.run_reaches("failed")).run.error_code == "upstream_malformed"


@pytest.mark.parametrize(
    "name", ["core__get_curent_time", "rm", TIME + "\u200b", "core__get_weather2", "mine2"]
)
async def test_unknown_names_are_told_and_never_leave(name: str) -> None:
    """Rules T3, W5: a call of an undeclared name gets an error as its result; the client never sees it."""
    answer, requests = await one_loop(
        called(("call_1", name, UTC), ("call_2", TIME, UTC)), ANSWER, ask={**ASK, "tools": [CLIENT_TOOL]}
    )
    _, results = follow_up(requests)
    assert json.loads(results[0]["content"])["error_code"] == "unknown_tool"
    assert results[1]["content"] == NOON
    assert name.encode() not in answer.body
    assert "tool_calls" not in answer.body.decode()


async def test_a_tool_that_was_not_offered_does_not_run(watch: Watch) -> None:
    """Rule T2: if the model calls a tool that the client did not choose, the call is refused."""
    headers = {"x-toolrelay-tools": TIME}
    _, requests = await one_loop(called(("call_1", ECHO, '{"text":"a"}')), ANSWER, headers=headers)
    assert [t["function"]["name"] for t in json.loads(requests[0].body)["tools"]] == [TIME]
    assert json.loads(follow_up(requests)[1][0]["content"])["error_code"] == "policy_denied"
    assert watch.started == []


async def test_a_denied_tool_is_not_offered_and_does_not_run(watch: Watch) -> None:
    """Rule T2: a tool that the policy does not allow is not offered, and does not run if it is called."""
    _, requests = await one_loop(
        called(("call_1", ECHO, '{"text":"a"}')), ANSWER, allow=("core__get_current_time",)
    )
    assert b"probe_tools__" not in requests[0].body
    assert json.loads(follow_up(requests)[1][0]["content"])["error_code"] == "policy_denied"
    assert watch.started == []


@pytest.mark.parametrize(
    "policy",
    [{"approve_effects": ["external_side_effect"]}, {"approve": ["probe_tools__b*"]}],
    ids=["effect", "name"],
)
async def test_a_tool_that_needs_an_approval_is_refused(watch: Watch, policy: dict[str, Any]) -> None:
    """Rule T2: if nobody can give the approval, a tool is neither offered nor run, and the model is told."""
    _, requests = await one_loop(
        called(("call_1", "probe_tools__buy", '{"what":"x"}')), ANSWER, policy=policy
    )
    assert b"probe_tools__buy" not in requests[0].body
    assert json.loads(follow_up(requests)[1][0]["content"])["error_code"] == "approval_required"
    assert watch.started == []


class ToyApprover:
    """An approver that asks a callback about each call."""

    def __init__(self, approves: Callable[[ToolCall], bool]) -> None:
        self.asked: list[tuple[str, str]] = []
        self._approves = approves

    async def decide(self, job: Job, calls: Sequence[ToolCall]) -> frozenset[int]:
        """Return the indices of the calls that the callback approves."""
        self.asked += [(call.name, call.arguments) for call in calls]
        return frozenset(call.index for call in calls if self._approves(call))


async def test_an_approver_decides_about_each_call(watch: Watch) -> None:
    """Rule T2: of two calls with one id only the approved one runs; other tools need no approval."""
    turn = called(
        ("call_1", "probe_tools__buy", '{"what":"milk"}'),
        ("call_1", "probe_tools__buy", '{"what":"a car"}'),
        ("call_2", ECHO, '{"text":"a"}'),
    )
    approver = ToyApprover(lambda call: "milk" in call.arguments)
    policy = {"approve": ["probe_tools__buy"]}
    async with looping(turn, ANSWER, policy=policy, overrides={"approver": approver}) as (proxy, upstream):
        answer = await proxy.ask(ASK)
        detail = await proxy.only_run()
    assert text_of(payloads_of(answer.body)) == "It is noon."
    assert approver.asked == [
        ("probe_tools__buy", '{"what":"milk"}'),
        ("probe_tools__buy", '{"what":"a car"}'),
    ]
    assert sorted(watch.started) == ["buy", "echo"]
    rows = {(row.tool, row.error_code): row.decision for row in detail.invocations}
    assert rows["probe_tools__buy", None] == 'approved: policy.approve has "probe_tools__buy"'
    assert rows["probe_tools__buy", "approval_required"].startswith("needs_approval: ")
    bought, refused, _ = follow_up(upstream.requests)[1]
    assert json.loads(bought["content"])["done"] is True
    assert json.loads(refused["content"])["error_code"] == "approval_required"


async def test_an_approver_is_asked_about_what_a_page_could_have_caused(watch: Watch) -> None:
    """Rule T2: after a result with untrusted text, a call runs only if it is approved."""
    page = called(("call_p", "probe_tools__page", "{}"))
    buys = called(("call_b", "probe_tools__buy", '{"what":"milk"}'))
    for approves, code in ((True, None), (False, "approval_required")):
        watch.reset()
        approver = ToyApprover(lambda call, approves=approves: approves)  # type: ignore[misc]
        async with looping(page, buys, ANSWER, overrides={"approver": approver}) as (proxy, upstream):
            await proxy.ask(ASK)
        result = json.loads(messages_of(upstream.requests[2])[-1]["content"])
        assert result.get("error_code") == code
        assert watch.finished == (["buy"] if approves else [])
        assert [name for name, _ in approver.asked] == ["probe_tools__buy"]


async def test_a_client_is_kept_alive_while_an_approver_thinks() -> None:
    """While an approver takes its time, the client gets keep-alive comments."""
    decided = asyncio.Event()

    class Slow(ToyApprover):
        async def decide(self, job: Job, calls: Sequence[ToolCall]) -> frozenset[int]:
            await decided.wait()
            return await super().decide(job, calls)

    policy = {"approve": ["probe_tools__buy"]}
    overrides = {"approver": Slow(lambda call: True)}
    turn = called(("call_1", "probe_tools__buy", '{"what":"milk"}'))
    config: dict[str, Any] = {"policy": policy, "overrides": overrides, "tools": {"keepalive_s": 0.05}}
    async with looping(turn, ANSWER, **config) as (proxy, _), proxy.sent(ASK) as client:
        answer = await client.head()
        async with asyncio.timeout(PATIENCE_S):
            async for piece in client.pieces(answer):
                if piece.startswith(b":"):
                    decided.set()
                answer.pieces.append(piece)
    assert answer.clean
    assert text_of(payloads_of(b"".join(answer.pieces))) == "It is noon."


async def test_a_denied_tool_needs_no_approval(watch: Watch) -> None:
    """Rule T2: if a tool is denied and also needs an approval, the model is told that it is denied."""
    policy = {"approve_effects": ["external_side_effect"]}
    buys = called(("call_1", "probe_tools__buy", '{"what":"x"}'))
    _, requests = await one_loop(buys, ANSWER, allow=("core__*",), policy=policy)
    assert json.loads(follow_up(requests)[1][0]["content"])["error_code"] == "policy_denied"
    assert watch.started == []


async def test_a_tool_that_fails_tells_the_model() -> None:
    """Rule T3: a tool's failure is its result for the model, and the run goes on."""
    answer, requests = await one_loop(called(("call_1", "probe_tools__fail", "{}")), ANSWER)
    told = json.loads(follow_up(requests)[1][0]["content"])
    assert told == {"ok": False, "error_code": "execution_failed", "message": "the shop is closed"}
    assert text_of(payloads_of(answer.body)) == "It is noon."


@pytest.mark.accepts("chat-answers", why="the client leaves its call open")
async def test_calls_that_the_client_sends_are_never_run(watch: Watch) -> None:
    """Rule T1: a call in the client's messages does not run; only the model's calls of this request do."""
    made = {"id": "c", "type": "function", "function": {"name": ECHO, "arguments": '{"text":"x"}'}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "user", "content": "go on"},
    ]
    answer, requests = await one_loop(ANSWER, ask={**ASK, "messages": messages})
    assert watch.started == []
    assert len(requests) == 1
    assert json.loads(requests[0].body)["messages"] == messages
    assert answer.clean


# ---------------------------------------------------------------- turns that fail


async def test_a_cut_off_turn_runs_nothing() -> None:
    """Rule W7: a call that ``length`` cut off does not run, and the client gets ``length``."""
    first = stream(role(), content("a"), call("call_1", TIME, '{"timez'), finish("length"))
    answer, requests = await one_loop(first)
    chunks = payloads_of(answer.body)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert text_of(chunks) == "a"
    assert len(requests) == 1


HALF = SSE_HEAD + chunk(role() + content("a") + call("call_1", TIME, '{"timez'))
MID_CALL: dict[str, list[Step]] = {
    "reset": [HALF, 0.05, RESET],
    "fin": [HALF, FIN],
    "clean end": [HALF, LAST_CHUNK, KEEP],
    "error event": [HALF, chunk(sse({"error": {"message": "overloaded", "code": "busy"}})), LAST_CHUNK, KEEP],
    "whole arguments, no end": [HALF, chunk(call(None, None, 'one":"UTC"}')), LAST_CHUNK, KEEP],
}


@pytest.mark.parametrize("name", MID_CALL)
async def test_an_upstream_that_breaks_inside_a_call(name: str, watch: Watch) -> None:
    """Rules W3, W7: if the upstream breaks off inside a call, nothing runs and the client gets an error."""
    async with looping(MID_CALL[name]) as (proxy, upstream):
        answer = await proxy.ask(ASK)
        assert answer.clean
        chunks = payloads_of(answer.body)
        assert "error" in chunks[-1]
        assert b"core__" not in answer.body
        detail = await proxy.run_reaches("failed")
        assert len(upstream.requests) == 1
        assert detail.invocations == []
        assert watch.started == []
        # The next request is served.
        upstream.scripts = (ANSWER,)
        assert (await proxy.ask(ASK)).body.endswith(DONE)


FOLLOW_UPS: dict[str, list[Step]] = {
    "reset": [RESET],
    "fin": [FIN],
    "429": whole(b'{"error":{"message":"slow","code":"rate"}}', "Retry-After: 0", status="429 Slow"),
    "429 long": whole(b'{"error":{"message":"slow"}}', "Retry-After: 60", status="429 Slow"),
    "500 html": whole(b"<html>oops</html>", content_type="text/html", status="500 Oops"),
    "400": whole(b'{"error":{"message":"bad","code":"invalid"}}', status="400 Bad"),
    "reset in text": [SSE_HEAD, chunk(content("half")), 0.05, RESET],
    "json": whole(b'{"choices":[{"message":{"role":"assistant","content":"x"}}]}'),
    "html": whole(b"<html>login</html>", content_type="text/html"),
    "error event": chunked(role(), sse({"error": {"message": "overloaded"}}), DONE),
    "clean end in text": [SSE_HEAD, chunk(content("half")), LAST_CHUNK, KEEP],
    "coded": [
        head("Content-Type: text/event-stream", "Content-Encoding: br", "Content-Length: 3") + b"abc",
        KEEP,
    ],
}


@pytest.mark.parametrize("name", FOLLOW_UPS)
async def test_a_follow_up_that_fails(name: str) -> None:
    """Rules E2, W3: if a later turn fails, the client gets one error and one end mark, and never HTML."""
    first = stream(role(), content("Wait."), call("call_1", TIME, UTC), finish("tool_calls"))
    async with looping(first, FOLLOW_UPS[name]) as (proxy, upstream):
        answer = await proxy.ask(ASK)
        assert answer.clean
        chunks = payloads_of(answer.body)
        error = chunks[-1]["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert answer.header("x-toolrelay-run") == (await proxy.runs())[0].id
        assert (await proxy.runs())[0].id in error["message"]
        assert b"<html" not in answer.body
        assert b'"stop"' not in answer.body
        assert text_of(chunks).startswith("Wait.")
        detail = await proxy.run_reaches("failed")
        assert detail.run.turns == 2
        # The upstream's client itself may retry on a reused connection that breaks before its first byte.
        most = 4 if name in ("429", "500 html") else 3 if name in ("reset", "fin") else 2
        assert len(upstream.requests) in (most, 2 if most == 3 else most)
        assert all(r.body == upstream.requests[1].body for r in upstream.requests[2:])


async def test_a_follow_up_that_recovers() -> None:
    """Rule E2: the proxy retries a later turn after 429 and 5xx, which no SDK could do."""
    slow = whole(b"{}", "Retry-After-Ms: 1", status="429 Slow")
    answer, requests = await one_loop(
        called(("call_1", TIME, UTC)), slow, whole(b"", "Retry-After: 0", status="502 Gone"), ANSWER
    )
    assert text_of(payloads_of(answer.body)) == "It is noon."
    assert len(requests) == 4


async def test_a_follow_up_that_hangs_times_out() -> None:
    """If a later turn does not answer in time, the client gets a timeout error inside the stream."""
    first = stream(role(), content("Wait."), call("call_1", TIME, UTC), finish("tool_calls"))
    async with looping(first, [HANG], served={"first_byte_timeout_s": 1.0}) as (proxy, upstream):
        answer = await proxy.ask(ASK)
        assert payloads_of(answer.body)[-1]["error"]["code"] == "upstream_timeout"
        assert len(upstream.requests) == 2


async def test_a_failure_before_the_first_byte_is_a_status() -> None:
    """Rule E1: as long as nothing has been sent, a failed run is an error with its own status."""
    failing = whole(b'{"error":{"message":"bad"}}', status="400 Bad")
    answer, _ = await one_loop(reply(None, ("call_1", TIME, UTC)), failing, ask=PLAIN)
    assert answer.status == 400
    assert answer.error["message"] == "The upstream answered 400: bad"
    assert (answer.header("x-toolrelay-run") or "").startswith("run_")
    assert answer.header("x-should-retry") is None


async def test_how_long_to_wait_is_told() -> None:
    """Rule E2: if a later turn's refusal asks for a long wait, the client gets its status and its wait."""
    slow = whole(
        b'{"error":{"message":"slow"}}', "Retry-After: 60", "retry-after-ms: 60000", status="429 Slow"
    )
    answer, requests = await one_loop(reply(None, ("call_1", TIME, UTC)), slow, ask=PLAIN)
    assert (answer.status, len(requests)) == (429, 2)
    assert (answer.header("retry-after"), answer.header("retry-after-ms")) == ("60", "60000")


@pytest.mark.parametrize("status", ["500 Oops", "400 Bad", "429 Slow"])
async def test_after_a_side_effect_nobody_retries(status: str, watch: Watch) -> None:
    """Rule E3: an error after a side effect tells SDKs not to retry the request."""
    failing = whole(b'{"error":{"message":"bad"}}', "Retry-After: 60", status=status)
    answer, _ = await one_loop(
        reply(None, ("call_1", "probe_tools__buy", '{"what":"x"}')), failing, ask=PLAIN
    )
    assert watch.finished == ["buy"]
    assert answer.status == int(status[:3])
    assert answer.header("x-should-retry") == "false"


async def test_an_identical_side_effect_runs_once(watch: Watch) -> None:
    """Rule R5: if a model repeats a call in one run, its side effect happens once."""
    twice = called(
        ("call_1", "probe_tools__buy", '{"what":"x"}'), ("call_2", "probe_tools__buy", '{ "what": "x" }')
    )
    _, requests = await one_loop(twice, called(("call_1", "probe_tools__buy", '{"what":"x"}')), ANSWER)
    assert watch.finished == ["buy"]
    assert len(requests) == 3
    messages_of(requests[2])


# ---------------------------------------------------------------- models without tools

NO_TOOLS = whole(
    b'{"error":{"message":"registry.ollama.ai/m does not support tools"}}', status="400 Bad Request"
)


async def test_a_model_that_takes_no_tools_is_asked_again_without() -> None:
    """If a model refuses tools, the proxy retries without them, and remembers that for this model."""
    data = role() + content("hi") + finish() + DONE
    async with looping(NO_TOOLS, chunked(data)) as (proxy, upstream):
        assert (await proxy.ask(ASK)).body == data
        assert b'"tools"' in upstream.requests[0].body
        assert json.loads(upstream.requests[1].body) == ASK
        run = (await proxy.only_run()).run
        assert (run.offered, run.withheld[TIME]) == ((), "the model was seen to take no tools")
        assert (await proxy.ask(ASK)).body == data
        assert len(upstream.requests) == 3
        assert json.loads(upstream.requests[2].body) == ASK
        await proxy.ask({**ASK, "model": "other"})
        assert b'"tools"' in upstream.requests[3].body


async def test_an_echo_of_the_client_turns_off_nobodys_tools() -> None:
    """A refusal that only quotes the client says nothing about the model, which keeps its tools."""
    echo = whole(
        b'{"error":{"message":"service_tier: \'does not support tools\' is unknown"}}',
        status="400 Bad Request",
    )
    async with looping(echo, echo, ANSWER) as (proxy, upstream):
        assert (await proxy.ask({**ASK, "service_tier": "does not support tools"})).status == 400
        await proxy.ask(ASK)
        assert b'"tools"' in upstream.requests[2].body


@pytest.mark.parametrize("word", ["support", "tools ", "corrupt", "no", "function_call"])
def test_no_error_of_an_upstream_keeps_the_search_busy(word: str) -> None:
    """The proxy reads only the beginning of an error's message and code, however long they are."""
    error = {"message": word * 100_000, "code": word * 100_000}
    said = read_error(json.dumps({"error": error}).encode())
    assert len(said.message) <= 4096
    assert len(said.code or "") <= 4096


@pytest.mark.parametrize("read", [read_error, anthropic.read_error])
def test_an_error_in_a_list_has_its_words(read: Callable[[bytes], ErrorText]) -> None:
    """Google's endpoint for OpenAI's clients puts the error into a list; other lists say nothing."""
    body = b'[{"error":{"code":400,"message":"Unknown name \\"seed\\"","status":"INVALID_ARGUMENT"}}]'
    assert read(body) == ErrorText('Unknown name "seed"')
    for other in (b"[]", b"[7]", b"[[]]", b'[{"error":null}]'):
        assert read(other) == ErrorText()


async def test_a_400_about_something_else_is_not_retried() -> None:
    """Rule E2: any other refusal reaches the client unchanged, without a retry."""
    body = b'{"error":{"message":"messages: too long","code":"context_length_exceeded"}}'
    answer, requests = await one_loop(whole(body, status="400 Bad Request"))
    assert (answer.status, answer.body) == (400, body)
    assert len(requests) == 1


async def test_the_clients_own_tools_stay_when_ours_are_withdrawn() -> None:
    """If the model refuses tools, the proxy removes only its own; the client's tools stay."""
    ask = {**ASK, "tools": [CLIENT_TOOL]}
    _, requests = await one_loop(NO_TOOLS, NO_TOOLS, ask=ask)
    assert len(requests) == 2
    assert json.loads(requests[1].body) == ask


async def test_a_hidden_turn_needs_no_end_after_its_finish_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a finish reason, the proxy waits only briefly for the end of a hidden turn."""
    monkeypatch.setattr("proxy.relay.run.turn.stream._AFTER_REASON_S", 0.05)
    spoken = (role(), call("call_s", TIME, '{"timezone":"UTC"}'), finish("tool_calls"))
    open_ended: list[Step] = [
        head("Content-Type: text/event-stream", "Transfer-Encoding: chunked"),
        *map(chunk, spoken),
        HANG,
    ]
    answer, requests = await one_loop(open_ended, ANSWER)
    assert text_of(payloads_of(answer.body)) == "It is noon."
    assert len(requests) == 2


async def test_the_next_turn_uses_the_connection_of_the_last() -> None:
    """If a turn ends with its end mark, the next turn uses the same connection."""
    async with looping(called(("call_s", TIME, '{"timezone":"UTC"}')), ANSWER) as (proxy, upstream):
        await proxy.ask(ASK)
        assert len(upstream.requests) == 2
        assert upstream.connections == 1
