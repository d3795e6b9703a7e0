"""Ollama's chat end to end: tool loop, mixed turns, errors and cut streams."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from looping import TIME, looping
from ollama_script import (
    LINES,
    Read,
    assistant,
    call,
    done,
    error,
    read_reply,
    read_stream,
    reply,
    said,
    stream,
    tool,
    turn,
    user,
)
from probe_tools import Watch
from raw_upstream import FIN, RawRequest, RawUpstream, Step, chunk, chunked, head, whole
from running_proxy import Answer, make_config, running

SERVED = {"served": {"wires": ["ollama"]}}
PATH = "/api/chat"
ASK: dict[str, Any] = {"model": "m", "messages": [user("hi")]}
ZONE = {"timezone": "UTC"}
SERVER = call(TIME, ZONE, "call_s")
MINE = call("mine", {"a": 1}, "call_c", 1)
ANSWER = stream("It is noon.", eval_count=9)


async def one_run(
    *scripts: Sequence[Step], ask: Any = None, headers: Any = (), path: str = PATH, **config: Any
) -> tuple[Answer, list[RawRequest]]:
    """Send one request; return its answer and the requests that the upstream got."""
    async with looping(*scripts, **{**SERVED, **config}) as (proxy, upstream):
        return await proxy.ask(ask or ASK, headers, path=path), upstream.requests


def asked(requests: Sequence[RawRequest], at: int = -1) -> dict[str, Any]:
    """Return the body of a request that the upstream got."""
    return dict(json.loads(requests[at].body))


def read_of(answer: Answer, streaming: bool) -> Read:
    """Return what a client reads from an answer."""
    return read_stream(answer.body) if streaming else read_reply(answer.body)


def turn_of(streaming: bool, text: str, *calls: Any, **more: Any) -> list[Step]:
    """Return a turn, as a stream or as one reply."""
    return stream(text, *calls, **more) if streaming else reply(text, *calls, **more)


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_server_tool_is_run(streaming: bool) -> None:
    """Rules W3, W5: the client gets one answer and nothing of the call; the model gets its thinking back."""
    ask = {**ASK, "stream": streaming}
    first = stream("Wait. ", SERVER, thinking="Hm.") if streaming else reply("Wait. ", SERVER)
    answer, requests = await one_run(first, turn_of(streaming, "It is noon."), ask=ask)
    read = read_of(answer, streaming)
    assert (read.text, read.calls) == ("Wait. It is noon.", [])
    assert (read.last["prompt_eval_count"], read.last["eval_count"]) == (20, 14)
    assert (read.last["done_reason"], read.last["model"]) == ("stop", "m")
    assert read.last["total_duration"] > 0
    assert TIME.encode() not in answer.body
    assert requests[0].target == PATH
    assert requests[0].header("authorization")
    first_body, second = asked(requests, 0), asked(requests, 1)
    assert TIME in [one["function"]["name"] for one in first_body["tools"]]
    made, answered = second["messages"][1:]
    assert made["content"] == "Wait. "
    assert made.get("thinking") == ("Hm." if streaming else None)
    assert made["tool_calls"][0]["id"] == "call_s"
    assert made["tool_calls"][0]["function"]["arguments"] == ZONE
    assert (answered["role"], answered["tool_name"], answered["tool_call_id"]) == ("tool", TIME, "call_s")
    assert "UTC" in answered["content"]


@pytest.mark.parametrize("allow", [(), ("core__*",)])
@pytest.mark.parametrize("streaming", [True, False])
async def test_what_calls_no_server_tool_passes_byte_for_byte(allow: Any, streaming: bool) -> None:
    """Rules W1, W2: without a server call the answer keeps its bytes; without tools so does the request."""
    body = turn("Héllo “you”.", call("mine", {"big": 12345678901234567890123, "f": 1.0}), thinking="Hm.")
    script = chunked(body, content_type=LINES) if streaming else whole(body.splitlines()[-1])
    ask = json.dumps({**ASK, "stream": streaming, "tools": [tool("mine")], "keep_alive": -1}).encode()
    answer, requests = await one_run(script, ask=ask, allow=allow)
    assert answer.body == (body if streaming else body.splitlines()[-1])
    assert answer.header("content-type") == (LINES if streaming else "application/json")
    if not allow:
        assert requests[0].body == ask
    assert b'[{"role": "user", "content": "hi"}]' in requests[0].body
    assert asked(requests)["keep_alive"] == -1


@pytest.mark.parametrize("base", ["", "/v1", "/api"])
async def test_a_base_url_is_taken_with_and_without_its_version(base: str) -> None:
    """A base URL works with and without ``/v1`` or ``/api``."""
    async with RawUpstream(ANSWER) as upstream:
        url = upstream.url.removesuffix("/v1") + base
        served = {"base_url": url, "wires": ("ollama",)}
        async with running(make_config(served)) as proxy:
            answer = await proxy.ask(ASK, path=PATH)
        assert read_stream(answer.body).text == "It is noon."
        assert upstream.requests[0].target == PATH


async def test_a_mixed_turn_is_put_back_for_a_client_without_ids() -> None:
    """Rules W5, R4: Ollama's Python client sends no ids; the proxy matches its results by name and order."""
    ask = {**ASK, "tools": [tool("mine")]}
    other = call("mine", {"a": 2}, "call_d", 2)
    async with looping(stream("So: ", SERVER, MINE, other), stream("Both."), **SERVED) as (proxy, upstream):
        read = read_stream((await proxy.ask(ask, path=PATH)).body)
        assert read.called() == [("mine", {"a": 1}), ("mine", {"a": 2})]
        calls = [call("mine", made["function"]["arguments"], index=None) for made in read.calls]
        back = [assistant(read.text, *calls), {"role": "tool", "content": "one"}]
        back.append({"role": "tool", "content": "two", "tool_name": "mine"})
        again = await proxy.ask({**ask, "messages": [*ask["messages"], *back]}, path=PATH)
        assert read_stream(again.body).text == "Both."
        _, made, *results = asked(upstream.requests)["messages"]
    assert [one["id"] for one in made["tool_calls"]] == ["call_s", "call_c", "call_d"]
    assert [one["content"] for one in results][1:] == ["one", "two"]
    assert results[0]["tool_name"] == TIME


async def test_a_mixed_turn_is_put_back_for_a_client_with_ids() -> None:
    """The proxy tells two equal calls apart by the ids of their results, in any order."""
    ask = {**ASK, "tools": [tool("mine")]}
    same = [call("mine", {"a": 1}, "call_c", 1), call("mine", {"a": 1}, "call_d", 2)]
    async with looping(stream("", SERVER, *same), stream("Both."), **SERVED) as (proxy, upstream):
        read = read_stream((await proxy.ask(ask, path=PATH)).body)
        ids = [made["id"] for made in read.calls]
        back = [
            assistant("", *read.calls),
            {"role": "tool", "content": "two", "tool_name": "mine", "tool_call_id": ids[1]},
            {"role": "tool", "content": "one", "tool_name": "mine", "tool_call_id": ids[0]},
        ]
        again = await proxy.ask({**ask, "messages": [*ask["messages"], *back]}, path=PATH)
        assert read_stream(again.body).text == "Both."
        _, _, *results = asked(upstream.requests)["messages"]
    assert [(one["tool_call_id"], one["content"]) for one in results[1:]] == [
        ("call_c", "one"), ("call_d", "two"),
    ]  # fmt: skip


async def test_hidden_turns_are_put_back() -> None:
    """Rule R4: when the client sends the answer back, the proxy restores the hidden turns before it."""
    async with looping(stream("", SERVER), ANSWER, ANSWER, **SERVED) as (proxy, upstream):
        read = read_stream((await proxy.ask(ASK, path=PATH)).body)
        messages = [*ASK["messages"], assistant(read.text), user("And?")]
        answer = await proxy.ask({**ASK, "messages": messages}, path=PATH)
        assert answer.status == 200
        sent = asked(upstream.requests)["messages"]
    assert [one["role"] for one in sent] == ["user", "assistant", "tool", "assistant", "user"]


@pytest.mark.parametrize("allow", [(), ("core__*",)])
async def test_a_stream_that_merely_ends_is_an_error(allow: Any) -> None:
    """Rule E1: an early end is an error, because Ollama's client takes it for a whole answer."""
    cut: list[Step] = [
        head(f"Content-Type: {LINES}", "Transfer-Encoding: chunked"),
        chunk(said("It") + b'{"model":"m","mess'),
        chunk(b""),
    ]
    answer, _ = await one_run(cut, allow=allow)
    read = read_stream(answer.body)
    assert read.text == "It"
    assert read.error


@pytest.mark.parametrize("allow", [(), ("core__*",)])
async def test_a_lost_upstream_is_an_error(allow: Any) -> None:
    """Rule E1: if the upstream's connection breaks, the client's last line is an error."""
    lost: list[Step] = [head(f"Content-Type: {LINES}", "Transfer-Encoding: chunked"), chunk(said("It")), FIN]
    answer, _ = await one_run(lost, allow=allow)
    assert read_stream(answer.body).error


@pytest.mark.parametrize("allow", [(), ("core__*",)])
async def test_an_upstreams_own_error_is_handed_on(allow: Any) -> None:
    """The client gets the upstream's own error byte for byte, in a stream or as a status."""
    body = said("It") + error("the model runner has died")
    answer, _ = await one_run(chunked(body, content_type=LINES), allow=allow)
    assert answer.body == body
    text = b'{"error":"model \'m\' not found"}'
    refused = [head("Content-Type: application/json", f"Content-Length: {len(text)}", status="404 No") + text]
    answer, _ = await one_run(refused, allow=allow)
    assert (answer.status, answer.body) == (404, text)


async def test_an_error_after_a_hidden_turn_is_a_line() -> None:
    """After a hidden turn the client has its status already, so that an error is a line of the stream."""
    body = b'{"error":"no memory"}'
    refused = [head("Content-Type: application/json", f"Content-Length: {len(body)}", status="400 No") + body]
    answer, _ = await one_run(stream("Wait.", SERVER), refused)
    assert "no memory" in read_stream(answer.body).error


async def test_a_busy_server_is_asked_again() -> None:
    """If a server refuses a later turn with 503, the proxy retries it."""
    body = b'{"error":"server busy, please try again.  maximum pending requests exceeded"}'
    busy = [
        head(
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "Retry-After: 0",
            status="503 Busy",
        )
        + body
    ]
    answer, requests = await one_run(stream("", SERVER), busy, ANSWER)
    assert read_stream(answer.body).text == "It is noon."
    assert len(requests) == 3


async def test_a_model_that_takes_no_tools_is_asked_without() -> None:
    """If the model refuses tools in Ollama's words, the proxy repeats the request without them."""
    body = b'{"error":"registry.ollama.ai/library/m does not support tools"}'
    refused = [head("Content-Type: application/json", f"Content-Length: {len(body)}", status="400 No") + body]
    answer, requests = await one_run(refused, ANSWER)
    assert read_stream(answer.body).text == "It is noon."
    assert "tools" not in asked(requests)


@pytest.mark.parametrize("done_line", [True, False])
async def test_calls_may_stand_on_any_line(done_line: bool) -> None:
    """A server call on any line runs, also beside text on the last; the client gets its own call."""
    calls = [call(TIME, ZONE, index=0), call("mine", {"a": 1}, index=0)]
    body = done("stop", "Hm.", *calls) if done_line else said("Hm.", *calls) + done()
    ask = {**ASK, "tools": [tool("mine")]}
    answer, _ = await one_run(chunked(body, content_type=LINES), ask=ask)
    read = read_stream(answer.body)
    assert (read.text, read.called()) == ("Hm.", [("mine", {"a": 1})])
    assert TIME.encode() not in answer.body


async def test_the_last_turn_is_asked_without_tools() -> None:
    """Rule T7: the last turn is sent without tools, because Ollama knows no other way to forbid calls."""
    answer, requests = await one_run(stream("", SERVER), ANSWER, tools={"max_turns": 1})
    assert read_stream(answer.body).text == "It is noon."
    assert "tools" not in asked(requests)


async def test_a_format_leaves_no_room_for_server_tools() -> None:
    """With ``format`` the proxy offers no server tools, because the model cannot call any."""
    answer, requests = await one_run(stream('{"a":1}'), ask={**ASK, "format": "json"})
    assert read_stream(answer.body, native=True).text == '{"a":1}'
    assert "tools" not in asked(requests)


async def test_tokens_are_spent_over_all_turns() -> None:
    """The client's limit of output tokens holds for all turns together."""
    ask = {**ASK, "options": {"num_predict": 100, "num_ctx": 4096}}
    _, requests = await one_run(stream("", SERVER, eval_count=30), ANSWER, ask=ask)
    assert asked(requests)["options"] == {"num_predict": 70, "num_ctx": 4096}


@pytest.mark.parametrize(
    ("ask", "status", "words"),
    [
        (b"{", 400, "JSON"),
        ({"messages": []}, 400, "model"),
        ({"model": "m", "messages": 3}, 400, "messages"),
        ({**ASK, "tools": [tool("a"), tool("a")]}, 400, "declared twice"),
        ({**ASK, "messages": [{"role": "tool", "tool_name": TIME, "content": "x"}]}, 400, "server tool"),
        (
            {**ASK, "messages": [assistant("", call(TIME, {})), {"role": "tool", "content": "x"}]},
            400,
            "server tool",
        ),
    ],
)
async def test_errors_of_ours_are_in_this_dialect(ask: Any, status: int, words: str) -> None:
    """Rule E1: the proxy's own errors are a text under ``error``, as in Ollama."""
    answer, requests = await one_run(ANSWER, ask=ask)
    assert answer.status == status
    assert list(answer.json) == ["error"]
    assert words in answer.json["error"]
    assert not requests


@pytest.mark.parametrize("trace", ["reasoning", "status", "events"])
@pytest.mark.parametrize("streaming", [True, False])
async def test_a_call_is_shown_as_far_as_is_asked(trace: str, streaming: bool) -> None:
    """The client sees a server call in the thinking, in the text, or as trace events, as it asks."""
    scripts = turn_of(streaming, "", SERVER), turn_of(streaming, "It is noon.")
    async with looping(*scripts, **SERVED, tools={"trace_max": "events"}) as (proxy, _):
        answer = await proxy.ask({**ASK, "stream": streaming}, {"x-toolrelay-trace": trace}, path=PATH)
    read = read_of(answer, streaming)
    kinds = [one["type"] for one in read.traces]
    assert kinds == (["tool_call", "tool_result"] if trace == "events" else [])
    assert (TIME in read.thinking) == (trace == "reasoning")
    assert (TIME in read.text) == (trace == "status")
    assert read.text.endswith("It is noon.")


async def test_an_empty_line_says_that_tools_run(watch: Watch) -> None:
    """While a tool runs, the client gets empty lines."""
    slow = stream("", call("probe_tools__slow", {}, "call_1"))
    got = b""
    async with (
        looping(slow, ANSWER, **SERVED, tools={"keepalive_s": 0.05}) as (proxy, _),
        proxy.sent(ASK, path=PATH) as conversation,
    ):
        async for piece in conversation.pieces(await conversation.head()):
            got += piece
            if got.count(b'"content":""') > 3:
                watch.go_on.set()
    read = read_stream(got)
    assert read.empty > 3
    assert read.text == "It is noon."


async def test_usage_is_limited() -> None:
    """The limit of tokens counts an answer whether or not the request has server tools."""
    for allow in ((), ("core__*",)):
        async with looping(ANSWER, **SERVED, allow=allow, limits={"tokens": ["15/hour"]}) as (proxy, _):
            statuses = [(await proxy.ask(ASK, path=PATH)).status for _ in range(2)]
        assert statuses == [200, 429]


async def test_the_run_is_on_record() -> None:
    """The record has the run with its dialect, its turns, its tool call, and its messages as in Chat."""
    async with looping(stream("", SERVER, thinking="Hm."), ANSWER, **SERVED) as (proxy, _):
        await proxy.ask(ASK, path=PATH)
        detail = await proxy.run_reaches("completed")
    assert detail.run.wire == "ollama"
    assert [invocation.tool for invocation in detail.invocations] == [TIME]
    turns = [
        (turn.number, turn.upstream_id, turn.finish_reason, turn.output_tokens, turn.tool_calls)
        for turn in detail.turns
    ]
    assert turns == [(1, "", "tool_calls", 7, 1), (2, "", "stop", 9, 0)]
    made, result, last = detail.messages
    function = {"name": TIME, "arguments": '{"timezone":"UTC"}'}
    assert json.loads(made.tool_calls or "") == [{"id": "call_s", "type": "function", "function": function}]
    assert (made.role, json.loads(made.content_json or "")) == ("assistant", {"thinking": "Hm."})
    assert (result.role, result.tool_call_id) == ("tool", "call_s")
    assert json.loads(result.content or "")["timezone"] == "UTC"
    assert (last.role, last.content, last.tool_calls) == ("assistant", "It is noon.", None)
    assert [message.turn for message in detail.messages] == [1, 1, 2]


async def test_a_request_that_only_loads_the_model_passes() -> None:
    """A request to load a model has no messages, and passes unchanged."""
    body = done("load", prompt_eval_count=None, eval_count=None)
    answer, requests = await one_run(chunked(body, content_type=LINES), ask={"model": "m"})
    assert answer.body == body
    assert asked(requests) == {"model": "m"}
