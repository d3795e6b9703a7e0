"""Every recorded exchange, end to end: what the client gets, what the upstream was asked, the record.

Each test runs twice, with the recordings embedded and over a second socket, and expects the same bytes.
"""

import json
from operator import attrgetter
from typing import Any

import pytest
from e2e_rig import (
    CORE_TOOLS,
    PINNED_CLOCK,
    Answer,
    ProxyFor,
    fixtures_for,
    golden_file,
    invocation_rows,
    is_orchestrated,
    of_any_run,
    repair_for,
    with_ids_of,
)
from fixture_loader import FIXTURES, Exchange, Turn, all_exchanges
from responses_check import check_response_stream
from sse_check import check_chat_stream

pytestmark = pytest.mark.asyncio(loop_scope="module")

END_MARK = b"data: [DONE]\n\n"
ALL = all_exchanges()
ORCHESTRATED = [e for e in ALL if is_orchestrated(e)]
PASSED = [e for e in ALL if not is_orchestrated(e)]
named = attrgetter("name")


def expected_rows(fixture: Exchange) -> list[dict[str, Any]]:
    """The tool calls that an exchange leads to."""
    file = fixture.path / "expected" / "invocations.json"
    return list(json.loads(file.read_text("utf-8")))


def goldens(fixture: Exchange) -> list[bytes]:
    """The answers to the client's requests."""
    count = max(1, len(fixture.client_requests))
    return [golden_file(fixture, position).read_bytes() for position in range(count)]


def body_of(turn: Turn, fixture: Exchange) -> bytes:
    """A recorded body as it is sent for this exchange."""
    body = turn.sse if fixture.streams and turn.sse is not None else turn.json_body
    assert body is not None
    return body


def passed_through(turn: Turn, fixture: Exchange) -> bytes:
    """Return a turn that nobody changed: the upstream's bytes, with an end mark if it had none."""
    body = body_of(turn, fixture)
    streamed = fixture.streams and turn.status == 200 and fixture.wire != "anthropic"
    return body + END_MARK if streamed and b"data: [DONE]" not in body else body


def assert_golden(fixture: Exchange, answers: list[Answer]) -> None:
    """Check that each answer equals its golden byte for byte, apart from the new response id."""
    for position, (golden, answer) in enumerate(zip(goldens(fixture), answers, strict=True)):
        assert answer.status == fixture.turns[position].status
        assert answer.whole
        told = with_ids_of(golden, answer.body)
        assert golden == (of_any_run(told) if is_orchestrated(fixture) else told)
        stream = "application/x-ndjson" if fixture.wire == "ollama" else "text/event-stream"
        kind = stream if fixture.streams and answer.status == 200 else "application/json"
        assert answer.headers["content-type"].split(";")[0] == kind


def comparable(request: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return conversation and tools of a request, with results as JSON, so that spacing is ignored."""
    conversation = []
    given = request["messages"] if "messages" in request else request["input"]
    for entry in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        copy = dict(entry)
        if copy.get("role") in ("tool", "function"):
            copy["content"] = json.loads(copy["content"])
        if copy.get("type") == "function_call_output":
            copy["output"] = json.loads(copy["output"])
        if copy.get("type") == "function_call":
            # An item goes back with the id and status it came with; the recording client left them out.
            copy = {key: value for key, value in copy.items() if key not in ("id", "status")}
        conversation.append(copy)
    tools = [dict(tool) for tool in request.get("tools", request.get("functions", []))]
    for tool in tools:
        if tool.get("name") in CORE_TOOLS and "input" in request:
            # On this wire, strict is the default, so a tool that is not strict has to say so.
            tool.pop("strict", None)
    return conversation, tools


def other_fields(request: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that a turn's request keeps; the bound of tokens counts over all turns."""
    changed = {"messages", "input", "tools", "functions"}
    changed |= {"max_tokens", "max_completion_tokens", "max_output_tokens", "previous_response_id"}
    return {key: value for key, value in request.items() if key not in changed}


@pytest.mark.parametrize("fixture", ORCHESTRATED, ids=named)
async def test_an_exchange_with_server_tools(fixture: Exchange, way: str, shared_proxy: ProxyFor) -> None:
    """The client's bytes, the upstream's requests and the rows on record are those of the exchange."""
    clock = fixture.meta.get("clock", PINNED_CLOCK)
    proxy = await shared_proxy(way, clock=clock, repair=repair_for(fixture))
    answers = await proxy.play(fixture)
    assert_golden(fixture, answers)
    assert all(answer.run_id for answer in answers)
    asked = [comparable(request) for request in proxy.upstream_requests]
    assert asked == [comparable(turn.request or {}) for turn in fixture.turns]
    for request in proxy.upstream_requests:
        assert other_fields(request) == other_fields(fixture.client_request)
    rows = [row for a in answers for row in invocation_rows(await proxy.invocations(a.run_id))]
    assert rows == expected_rows(fixture)


@pytest.mark.parametrize("fixture", PASSED, ids=named)
async def test_an_exchange_without_server_tools(fixture: Exchange, way: str, shared_proxy: ProxyFor) -> None:
    """Rule W1: without an allowed tool, both sides get each other's bytes; only an end mark is added."""
    proxy = await shared_proxy(way, allow=(), fixtures=fixtures_for(fixture), repair=repair_for(fixture))
    answers = await proxy.play(fixture)
    assert_golden(fixture, answers)
    assert [answer.run_id for answer in answers] == [None] * len(answers)
    assert proxy.upstream_requests == fixture.client_requests


@pytest.mark.parametrize("fixture", [e for e in PASSED if e.client_requests], ids=named)
async def test_an_exchange_in_which_no_server_tool_is_called(
    fixture: Exchange, way: str, shared_proxy: ProxyFor
) -> None:
    """Rule W2: if tools are offered but none is called, the client gets the same bytes."""
    proxy = await shared_proxy(way, fixtures=fixtures_for(fixture), repair=repair_for(fixture))
    answers = await proxy.play(fixture)
    assert_golden(fixture, answers)
    for asked, sent in zip(fixture.client_requests, proxy.upstream_requests, strict=True):
        declared = asked.get("tools", [])
        names = [tool["function"]["name"] for tool in sent.get("tools", ())] if fixture.wire == "chat" else []
        own = [tool["function"]["name"] for tool in declared] if fixture.wire == "chat" else []
        assert names in (own, [*own, *CORE_TOOLS])
        assert (names == own) == (not may_inject(asked, fixture))
        assert {k: v for k, v in sent.items() if k != "tools"} == {
            k: v for k, v in asked.items() if k != "tools"
        }
    for answer in answers:
        assert await proxy.invocations(answer.run_id) == []


def may_inject(request: dict[str, Any], fixture: Exchange) -> bool:
    """Say whether server tools may be added: not with several choices, ``none`` or a forced client tool."""
    choice = request.get("tool_choice")
    forced = isinstance(choice, dict) and choice.get("type") == "function"
    return fixture.wire == "chat" and request.get("n", 1) == 1 and choice != "none" and not forced


# Checks of the golden files themselves, which find a wrong one whatever the proxy answers.


@pytest.mark.parametrize("fixture", PASSED, ids=named)
async def test_a_golden_that_was_passed_through_is_the_upstreams_own(fixture: Exchange) -> None:
    """Rule W1: the golden has the upstream's bytes, and an end mark if the upstream sent none."""
    expected = [passed_through(turn, fixture) for turn in fixture.turns[: len(goldens(fixture))]]
    assert goldens(fixture) == expected


@pytest.mark.parametrize("fixture", ORCHESTRATED, ids=named)
async def test_a_golden_keeps_the_rules(fixture: Exchange) -> None:
    """Rules W3, W4 and W5 hold for every composed golden; all others are the upstream's bytes."""
    rows = expected_rows(fixture)
    for position, golden in enumerate(goldens(fixture)):
        first = fixture.turns[position]
        if golden == passed_through(first, fixture):
            continue
        assert rows or not first_turn_is_whole(first), "composed, although nothing was hidden"
        if fixture.wire == "responses":
            check_response(golden, fixture, position)
            continue
        if fixture.wire == "ollama":
            check_lines(golden, fixture)
            continue
        if not fixture.streams:
            check_reply(json.loads(golden), fixture)
            continue
        read = check_chat_stream(
            golden,
            wants_usage=bool(fixture.client_request.get("stream_options", {}).get("include_usage")),
            hidden=("core__", "multi_tool_use", "x_toolrelay"),
            forwarded=forwarded_chunks(golden, first.sse or b""),
        )
        turns = fixture.turns if fixture.run_by == "server" else [first]
        # Only the last turn's JSON is shown: two joined JSON texts are not valid JSON.
        shown = turns[-1:] if "response_format" in fixture.client_request else turns
        assert read.text == "\n\n".join(text for turn in shown if (text := text_of(turn)))
        if read.usage is not None:
            assert read.usage == summed_usage(turns)


async def test_no_golden_is_left_without_an_exchange() -> None:
    """Every answer file belongs to a request, every list of rows to an orchestrated exchange."""
    known = {golden_file(e, n) for e in ALL for n in range(max(1, len(e.client_requests)))}
    assert set(FIXTURES.rglob("client/response*")) == known
    rows = {file.parent.parent for file in FIXTURES.rglob("expected/invocations.json")}
    assert rows == {e.path for e in ORCHESTRATED}


def payloads(body: bytes) -> list[dict[str, Any]]:
    """The JSON objects of a stream's whole events."""
    events = body.replace(b"\r\n", b"\n").split(b"\n\n")[:-1]
    lines = [line for event in events for line in event.split(b"\n")]
    return [json.loads(line[5:]) for line in lines if line.startswith(b"data:") and b"[DONE]" not in line]


def first_turn_is_whole(turn: Turn) -> bool:
    """Say whether a recorded stream came to its end, with a finish reason that lets calls run."""
    ended = b"[DONE]" in (turn.sse or turn.json_body or b"")
    reasons = [c.get("finish_reason") for p in payloads(turn.sse or b"") for c in p.get("choices") or ()]
    return ended and "length" not in reasons


def forwarded_chunks(golden: bytes, upstream: bytes) -> int:
    """How many chunks at the start of a stream are the upstream's own."""
    count = 0
    for ours, theirs in zip(payloads(golden), payloads(upstream), strict=False):
        if ours != theirs:
            break
        count += 1
    return count


def text_of(turn: Turn) -> str:
    """Return the joined text of a recorded stream."""
    text = ""
    for payload in payloads(turn.sse or b""):
        for choice in payload.get("choices") or ():
            content = (choice.get("delta") or {}).get("content")
            text += content if isinstance(content, str) else ""
    return text


def summed_usage(turns: list[Turn]) -> dict[str, Any]:
    """Each count of the last usage of each turn, added up."""
    total: dict[str, Any] = {}
    for turn in turns:
        last: dict[str, Any] = {}
        for payload in payloads(turn.sse or b""):
            groq = payload.get("x_groq") or {}
            last = payload.get("usage") or groq.get("usage") or last
        add(total, last)
    return total


def add(total: dict[str, Any], usage: dict[str, Any]) -> None:
    """Add the numbers of one usage to another, nested ones too."""
    for key, value in usage.items():
        if isinstance(value, dict):
            add(total.setdefault(key, {}), value)
        elif isinstance(value, int | float):
            total[key] = total.get(key, 0) + value


def check_reply(reply: dict[str, Any], fixture: Exchange) -> None:
    """Check a composed reply that was not streamed: it is whole, and no server call is in it."""
    assert reply["object"] == "chat.completion"
    assert reply["id"]
    assert reply["model"] == fixture.client_request["model"]
    (choice,) = reply["choices"]
    assert choice["index"] == 0
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["role"] == "assistant"
    assert "tool_calls" not in choice["message"]
    assert "core__" not in json.dumps(reply)
    replies = [json.loads(turn.json_body or b"{}") for turn in fixture.turns]
    texts = [r["choices"][0]["message"].get("content") for r in replies]
    assert choice["message"]["content"] == "\n\n".join(text for text in texts if text)
    total: dict[str, Any] = {}
    for part in replies:
        add(total, part["usage"])
    assert reply["usage"] == total


def check_lines(golden: bytes, fixture: Exchange) -> None:
    """Check an answer of Ollama's chat: one end, no server call, and the texts and counts of all turns."""
    shown = [json.loads(line) for line in golden.splitlines()]
    turns = [
        [json.loads(line) for line in ((turn.sse if fixture.streams else turn.json_body) or b"").splitlines()]
        for turn in fixture.turns
    ]
    assert [line["done"] for line in shown] == [False] * (len(shown) - 1) + [True]
    assert {line["model"] for line in shown} == {fixture.client_request["model"]}
    assert b"core__" not in golden
    assert not any("tool_calls" in line["message"] for line in shown)
    for field in ("content", "thinking"):
        told, *texts = (
            "".join(line["message"].get(field, "") for line in lines) for lines in (shown, *turns)
        )
        assert told == "\n\n".join(text for text in texts if text)
    for count in ("prompt_eval_count", "eval_count", "prompt_eval_duration", "eval_duration"):
        assert shown[-1][count] == sum(lines[-1][count] for lines in turns)


def check_response(golden: bytes, fixture: Exchange, position: int) -> None:
    """Check a Responses stream: its rules, the client's tools, and the text and usage of its turns."""
    mixed = fixture.run_by == "mixed"
    first = payloads(fixture.turns[position].sse or b"")[0]
    read = check_response_stream(
        golden,
        hidden=("core__", "toolrelay"),
        unnumbered=0 if "sequence_number" in first else 2,
        # A turn that is passed on as it came is less complete than a composed one.
        complete=position == 0,
    )
    assert read.response["tools"] == fixture.client_requests[position].get("tools", [])
    turns = [fixture.turns[position]] if mixed else fixture.turns
    total: dict[str, Any] = {}
    for turn in turns:
        add(total, payloads(turn.sse or b"")[-1]["response"]["usage"])
    for name in ("input_tokens", "output_tokens", "total_tokens"):
        assert read.response["usage"][name] == total[name]
    shown = turns[-1:] if "text" in fixture.client_request else turns
    texts = [
        e for turn in shown for e in payloads(turn.sse or b"") if e["type"] == "response.output_text.delta"
    ]
    assert read.text == "".join(e["delta"] for e in texts)
