"""Two upstreams serve one model: when the proxy asks the second one, and when it must not."""

import gc
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog
from chat_script import content, finish, payloads_of, role, stream, text_of
from closed_port import closed_port
from looping import ANSWER, CLOCK, TIME, called
from raw_upstream import FIN, HANG, RESET, RawRequest, RawUpstream, Step, chunk, head, whole
from responses_check import check_response_stream
from responses_script import function_call, message
from responses_script import reply as response_reply
from responses_script import stream as response_stream
from running_proxy import Proxy, make_config, running
from waiting import LATE_S

from proxy.app.app import Overrides
from proxy.base.errors import RequestError, UpstreamError
from proxy.relay.routing.fallback import NO_FALLBACK, FallbackRules, fallback_rules_of
from proxy.relay.routing.router import Route, Router, ServedUpstream
from proxy.upstreams.base import UpstreamRequest

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
ASK: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
ASK_RESPONSES = {"model": "m", "stream": True, "input": "hi"}
UTC = '{"timezone":"UTC"}'
HELLO = stream(role(), content("Hello."), finish())
HELLO_RESPONSE = response_stream(message("Hello."), id="resp_b")

WIRES = {"chat": (CHAT, ASK, HELLO), "responses": (RESPONSES, ASK_RESPONSES, HELLO_RESPONSE)}
both_wires = pytest.mark.parametrize("wire", sorted(WIRES))
with_tools_or_not = pytest.mark.parametrize("allow", [(), ("core__*",)], ids=["none offered", "offered"])


def refused(status: str, message: str = "no") -> list[Step]:
    """An error response of the provider's own."""
    return whole(
        json.dumps({"error": {"message": message, "type": "t", "param": None, "code": None}}).encode(),
        status=status,
    )


@asynccontextmanager
async def two(
    first: Sequence[Sequence[Step]],
    second: Sequence[Sequence[Step]],
    allow: tuple[str, ...] = (),
    habits: tuple[dict[str, Any], dict[str, Any]] = ({}, {}),
    **config: Any,
) -> AsyncIterator[tuple[Proxy, RawUpstream, RawUpstream]]:
    """A proxy before two upstreams, ``a`` and ``b``, that serve the same models."""
    async with RawUpstream(*first) as a, RawUpstream(*second) as b:
        # The proxy gives up early only on an upstream that is meant to stay silent.
        patience = [0.5 if [HANG] in scripts else LATE_S for scripts in (first, second)]
        tables = [
            {"name": n, "base_url": upstream.url, "retries": 0, "first_byte_timeout_s": wait, **habit}
            for n, upstream, wait, habit in zip("ab", (a, b), patience, habits, strict=True)
        ]
        settings = make_config(*tables, allow=allow, **config)
        async with running(settings, Overrides(clock=CLOCK)) as proxy:
            yield proxy, a, b


def body_of(request: RawRequest) -> dict[str, Any]:
    return dict(json.loads(request.body))


LACKING = pytest.mark.parametrize("lacking", [{"tools": False}, {"tools": ("core__get_*",)}])
WANTED = {"x-toolrelay-tools": "core__calculate"}


@LACKING
@both_wires
async def test_an_upstream_without_the_tools_that_are_named_takes_no_place(
    wire: str, lacking: dict[str, Any]
) -> None:
    """Rule E2: if the second upstream lacks the tools that a client names, the first one's 503 passes."""
    path, ask, hello = WIRES[wire]
    failing = refused("503 Busy")
    async with two([failing], [hello], ("core__*",), ({}, lacking)) as (proxy, a, b):
        answer = await proxy.ask(ask, WANTED, path=path)
        assert answer.status == 503
        assert (await proxy.run_reaches("failed")).run.upstream == "a"
        assert (len(a.requests), len(b.requests)) == (1, 0)
        answer = await proxy.ask(ask, path=path)
        assert answer.status == 200
        assert len(b.requests) == 1


@LACKING
async def test_the_upstream_that_has_the_named_tools_is_asked(lacking: dict[str, Any]) -> None:
    """The proxy asks the upstream that offers the named tool, and answers 400 if no upstream offers it."""
    async with two([HELLO], [HELLO], ("core__*",), (lacking, {})) as (proxy, a, b):
        assert (await proxy.ask(ASK, WANTED)).status == 200
        assert (len(a.requests), len(b.requests)) == (0, 1)
        answer = await proxy.ask(ASK, {"x-toolrelay-tools": "core__nothing"})
        assert (answer.status, answer.error["param"]) == (400, "x-toolrelay-tools")


MOVING: dict[str, list[Step]] = {
    "reset": [RESET],
    "closed": [FIN],
    "half a head": [b"HTTP/1.1 200 OK\r\nContent-", RESET],
    "no HTTP": [b"SSH-2.0-x\r\n\r\n", FIN],
    "silent": [HANG],
    "408": refused("408 Request Timeout"),
    "429": refused("429 Too Many Requests"),
    "500": refused("500 Internal Server Error"),
    "502": whole(b"<html>", content_type="text/html", status="502 Bad Gateway"),
    "503": refused("503 Service Unavailable"),
    "504": refused("504 Gateway Timeout"),
    "529": refused("529 Overloaded"),
}


@both_wires
@with_tools_or_not
@pytest.mark.parametrize("failure", sorted(MOVING))
async def test_a_failure_that_moves_a_request(wire: str, allow: tuple[str, ...], failure: str) -> None:
    """The client gets the second upstream's answer, and the record and the log name that upstream."""
    path, ask, hello = WIRES[wire]
    async with two([MOVING[failure]], [hello], allow) as (proxy, a, b):
        with structlog.testing.capture_logs() as logs:
            answer = await proxy.ask(ask, path=path)
        assert (answer.status, answer.clean) == (200, True)
        assert b"Hello." in answer.body
        assert (len(a.requests), len(b.requests)) == (1, 1)
        assert a.requests[0].body == b.requests[0].body
        if allow:
            detail = await proxy.only_run()
            assert (detail.run.upstream, detail.run.status) == ("b", "completed")
    (line,) = [log for log in logs if log["event"] == "request"]
    assert (line["upstream"], line["status"]) == ("b", 200)
    (passed,) = [log for log in logs if log["event"] == "upstream_passed_over"]
    status = int(failure) if failure.isdigit() else passed["status"]
    assert (passed["upstream"], passed["status"], bool(passed["error_code"])) == ("a", status, True)


STAYING = {str(status): refused(f"{status} No") for status in (400, 401, 402, 403, 404, 409, 413, 422)}


@both_wires
@with_tools_or_not
@pytest.mark.parametrize("status", sorted(STAYING))
async def test_an_answer_about_the_request_stays(wire: str, allow: tuple[str, ...], status: str) -> None:
    """Rule E2: if an upstream refuses the request itself, the client gets that error; no other is asked."""
    path, ask, hello = WIRES[wire]
    async with two([STAYING[status]], [hello], allow) as (proxy, _, b):
        answer = await proxy.ask(ask, path=path)
        assert answer.status == int(status)
        assert answer.error["message"] == "no"
        assert not b.requests


@both_wires
@with_tools_or_not
async def test_where_all_fail_the_last_ones_answer_passes(wire: str, allow: tuple[str, ...]) -> None:
    """Rule E2: if all upstreams fail, the client gets the error of the one that was asked last."""
    path, ask, _ = WIRES[wire]
    last = refused("503 Service Unavailable", "full")
    async with two([MOVING["500"]], [last], allow) as (proxy, a, b):
        answer = await proxy.ask(ask, path=path)
        assert (answer.status, answer.error["message"]) == (503, "full")
        assert (len(a.requests), len(b.requests)) == (1, 1)
        if allow:
            assert (await proxy.only_run()).run.error_code == "http_503"


@both_wires
@with_tools_or_not
async def test_nothing_is_asked_twice_once_an_answer_began(wire: str, allow: tuple[str, ...]) -> None:
    """If a stream breaks after its response head, the client gets an error and no other upstream is asked."""
    path, ask, hello = WIRES[wire]
    begun = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
    scripts: list[list[Step]] = [[begun, RESET], [begun, chunk(b"data: {}\n\n"), RESET]]
    for script in scripts:
        async with two([script], [hello], allow) as (proxy, _, b):
            answer = await proxy.ask(ask, path=path)
            assert b"upstream_broken" in answer.body
            assert answer.body.endswith(b"data: [DONE]\n\n") == (answer.status == 200)
            assert not b.requests


@with_tools_or_not
async def test_one_upstream_alone_is_as_before(allow: tuple[str, ...]) -> None:
    """Rule E2: if only one upstream serves the model, the client gets each of its failures."""
    for name, script in MOVING.items():
        async with RawUpstream(script) as only, RawUpstream(HELLO) as other:
            tables: list[dict[str, Any]] = [
                {"name": "a", "base_url": only.url, "retries": 0, "first_byte_timeout_s": 0.5},
                {"name": "b", "base_url": other.url, "models": ("other",)},
            ]
            async with running(make_config(*tables, allow=allow)) as proxy:
                answer = await proxy.ask(ASK)
        assert answer.status >= 408, name
        assert len(only.requests) == 1
        assert not other.requests


@with_tools_or_not
async def test_the_body_is_the_second_ones(allow: tuple[str, ...]) -> None:
    """The second upstream gets the same body with its own name for the model."""
    habits = ({"models": {"m": "first-m"}}, {"models": {"m": "second-m"}})
    async with two([MOVING["503"]], [HELLO], allow, habits) as (proxy, a, b):
        await proxy.ask(ASK)
        one, other = body_of(a.requests[0]), body_of(b.requests[0])
    assert (one.pop("model"), other.pop("model")) == ("first-m", "second-m")
    assert one == other


async def test_the_habits_are_the_second_ones() -> None:
    """The settings of the second upstream decide whether it gets tools and is asked for usage."""
    habits = ({"force_usage": True}, {"tools": False})
    async with two([MOVING["503"]], [HELLO], ("core__*",), habits) as (proxy, a, b):
        await proxy.ask(ASK)
        assert {"tools", "stream_options"} <= set(body_of(a.requests[0]))
        assert body_of(b.requests[0]) == ASK
        assert (await proxy.only_run()).run.offered == ()
    async with two([MOVING["503"]], [called(("c", TIME, UTC)), ANSWER], ("core__*",), habits[::-1]) as (
        proxy,
        a,
        b,
    ):
        answer = await proxy.ask(ASK)
        assert text_of(payloads_of(answer.body)) == "It is noon."
        assert not any("usage" in payload for payload in payloads_of(answer.body))
        assert body_of(a.requests[0]) == ASK
        assert {"tools", "stream_options"} <= set(body_of(b.requests[0]))


async def test_how_turns_are_joined_is_the_second_ones() -> None:
    """``responses_state`` of the upstream that answered the first turn decides how the second one is sent."""
    habits = ({"responses_state": "chained"}, {"responses_state": "stateless"})
    turns = [response_stream(function_call("call_s", TIME, UTC)), HELLO_RESPONSE]
    async with two([MOVING["503"]], turns, ("core__*",), habits) as (proxy, _, b):
        answer = await proxy.ask(ASK_RESPONSES, path=RESPONSES)
        assert check_response_stream(answer.body, hidden=(TIME,)).text == "Hello."
        second = body_of(b.requests[1])
    assert "previous_response_id" not in second
    assert [item.get("type") for item in second["input"]][1:] == ["function_call", "function_call_output"]


async def test_a_run_stays_with_the_upstream_that_began_it() -> None:
    """Later turns go to the upstream that answered the first; if it fails then, the run fails."""
    async with two([MOVING["503"], HELLO], [called(("c", TIME, UTC)), ANSWER], ("core__*",)) as (proxy, a, b):
        answer = await proxy.ask(ASK)
        assert text_of(payloads_of(answer.body)) == "It is noon."
        assert (len(a.requests), len(b.requests)) == (1, 2)
    turns = [called(("c", TIME, UTC)), MOVING["503"]]
    async with two(turns, [HELLO], ("core__*",)) as (proxy, a, b):
        answer = await proxy.ask(ASK)
        assert b"upstream_error" in answer.body
        assert (len(a.requests), len(b.requests)) == (2, 0)


# Requests that belong to one upstream.


@pytest.mark.parametrize(
    ("payload", "rules"),
    [
        ({}, FallbackRules(unsent=True, failed=True)),
        (
            {"tools": [{"type": "function"}, {"type": "web_search_preview"}]},
            FallbackRules(unsent=True, failed=True),
        ),
        ({"tools": [{"name": "mine", "input_schema": {}}]}, FallbackRules(unsent=True, failed=True)),
        ({"tools": [{"type": "mcp"}]}, FallbackRules(unsent=True)),
        ({"tools": [{"type": "not known yet"}]}, FallbackRules(unsent=True)),
        ({"tools": [{"type": "code_interpreter"}]}, FallbackRules(unsent=True)),
        ({"tools": [{"type": "computer_use_preview"}]}, FallbackRules(unsent=True, failed=True)),
        ({"tools": [{}]}, FallbackRules(unsent=True)),
        ({"tools": "odd"}, FallbackRules(unsent=True, failed=True)),
        ({"prompt": "a completion's"}, FallbackRules(unsent=True, failed=True)),
        ({"prompt": {"id": "pmpt_1"}}, NO_FALLBACK),
        ({"conversation": "conv_1"}, NO_FALLBACK),
        ({"background": True}, NO_FALLBACK),
        ({"previous_response_id": "resp_1"}, FallbackRules(unsent=True, failed=True, unknown=True)),
    ],
)
def test_how_freely_a_request_moves(payload: dict[str, Any], rules: FallbackRules) -> None:
    """A request about objects of one provider stays there; one whose tools may act moves only if unsent."""
    assert fallback_rules_of(payload) == rules


@pytest.mark.parametrize("failure", sorted(MOVING))
async def test_what_a_provider_may_have_done_is_not_done_again(failure: str) -> None:
    """A request with a remote MCP server moves only after a 429 or a refused connection."""
    ask = {**ASK_RESPONSES, "tools": [{"type": "mcp", "server_label": "x", "server_url": "https://x"}]}
    async with two([MOVING[failure]], [HELLO_RESPONSE]) as (proxy, _, b):
        await proxy.ask(ask, path=RESPONSES)
        assert len(b.requests) == (failure == "429")
    with closed_port() as nobody:
        dead = f"http://127.0.0.1:{nobody}/v1"
        async with two([HELLO_RESPONSE], [HELLO_RESPONSE], habits=({"base_url": dead}, {})) as (proxy, a, b):
            await proxy.ask(ask, path=RESPONSES)
            assert (len(a.requests), len(b.requests)) == (0, 1)


GONE = whole(
    b'{"error":{"message":"Previous response not found.","type":"invalid_request_error",'
    b'"param":"previous_response_id","code":"previous_response_not_found"}}',
    status="400 Bad Request",
)


UNKNOWN = {
    "openai": GONE,
    "vllm": whole(
        b'{"error":{"message":"Response with id \'resp_b\' not found.","type":"invalid_request_error",'
        b'"param":"response_id","code":404}}',
        status="404 Not Found",
    ),
}
MODEL_GONE = whole(
    b'{"error":{"message":"The model `m` does not exist","type":"invalid_request_error","param":null,'
    b'"code":"model_not_found"}}',
    status="404 Not Found",
)


@pytest.mark.parametrize("wording", sorted(UNKNOWN))
async def test_providers_say_in_their_own_words_that_a_response_is_unknown(wording: str) -> None:
    """The proxy asks the next upstream if one does not know the response, but not if it lacks the model."""
    ask = {**ASK_RESPONSES, "previous_response_id": "resp_b"}
    async with two([UNKNOWN[wording]], [HELLO_RESPONSE]) as (proxy, _, b):
        assert (await proxy.ask(ask, path=RESPONSES)).status == 200
    async with two([MODEL_GONE], [HELLO_RESPONSE]) as (proxy, _, b):
        assert (await proxy.ask(ask, path=RESPONSES)).error["code"] == "model_not_found"
        assert not b.requests


@with_tools_or_not
async def test_a_response_is_looked_for_where_it_may_be(allow: tuple[str, ...]) -> None:
    """The proxy tries the next upstream if the first does not know a foreign ``previous_response_id``."""
    ask = {**ASK_RESPONSES, "previous_response_id": "resp_b"}
    async with two([GONE], [HELLO_RESPONSE], allow) as (proxy, _, b):
        assert (await proxy.ask(ask, path=RESPONSES)).status == 200
        assert body_of(b.requests[0])["previous_response_id"] == "resp_b"
    async with two([MOVING["503"]], [HELLO_RESPONSE], allow) as (proxy, _, b):
        assert (await proxy.ask(ask, path=RESPONSES)).status == 200
    async with two([GONE], [GONE], allow) as (proxy, _, b):
        answer = await proxy.ask(ask, path=RESPONSES)
        assert (answer.status, answer.error["code"]) == (400, "previous_response_not_found")
    async with two([refused("400 Bad Request", "odd input")], [HELLO_RESPONSE], allow) as (proxy, _, b):
        assert (await proxy.ask(ask, path=RESPONSES)).error["message"] == "odd input"
        assert not b.requests


@with_tools_or_not
async def test_a_response_is_not_called_unknown_while_its_upstream_may_be_down(
    allow: tuple[str, ...],
) -> None:
    """If one upstream fails and the other does not know the response, the client gets the failure."""
    ask = {**ASK_RESPONSES, "previous_response_id": "resp_a"}
    async with two([MOVING["503"]], [GONE], allow) as (proxy, _, b):
        answer = await proxy.ask(ask, path=RESPONSES)
        assert (answer.status, answer.error["code"]) == (503, "upstream_error")
        assert len(b.requests) == 1


async def test_a_stored_response_is_asked_for_in_turn() -> None:
    """The proxy looks for a provider's response at one upstream after the other, and stops at a failure."""
    here = response_reply(message("Hello."), id="resp_b")
    async with two([refused("404 Not Found")], [here]) as (proxy, a, _):
        answer = await proxy.ask(method="GET", path=f"{RESPONSES}/resp_b")
        assert (answer.status, answer.json["id"]) == (200, "resp_b")
        assert a.requests[0].target == f"{RESPONSES}/resp_b"
    async with two([MOVING["503"]], [here]) as (proxy, _, b):
        assert (await proxy.ask(method="DELETE", path=f"{RESPONSES}/resp_b")).status == 503
        assert not b.requests
    async with two([refused("404 Not Found", "x")], [refused("404 Not Found", "y")]) as (proxy, _, b):
        answer = await proxy.ask(method="GET", path=f"{RESPONSES}/resp_b")
        assert (answer.status, answer.error["message"]) == (404, "y")


@pytest.mark.parametrize("state", ["chained", "stateless"])
async def test_a_response_of_ours_goes_on_where_it_was_made(state: str) -> None:
    """A response that the second upstream made is continued only there, even when the first one is back."""
    made = response_stream(function_call("call_s", TIME, UTC), id="resp_1")
    welcome = response_stream(message("Welcome."), id="resp_3")
    habits = ({"responses_state": state}, {"responses_state": state})
    first = [MOVING["503"], HELLO_RESPONSE]
    then = [made, HELLO_RESPONSE, welcome, MOVING["503"]]
    async with two(first, then, ("core__*",), habits) as (proxy, a, b):
        await proxy.ask(ASK_RESPONSES, path=RESPONSES)
        again = {"model": "m", "stream": True, "input": "thanks", "previous_response_id": "resp_1"}
        assert b"Welcome." in (await proxy.ask(again, path=RESPONSES)).body
        assert (len(a.requests), len(b.requests)) == (1, 3)
        assert (await proxy.ask(again, path=RESPONSES)).status == 503
        assert (len(a.requests), len(b.requests)) == (1, 4)


async def test_hidden_turns_go_first_where_they_were_made() -> None:
    """A conversation goes to the upstream that made its hidden turns, and to another one if that fails."""
    async with two(
        [MOVING["503"], HELLO], [called(("c", TIME, UTC)), ANSWER, HELLO, MOVING["503"]], ("core__*",)
    ) as (proxy, a, b):
        await proxy.ask(ASK)
        said = [*ASK["messages"], {"role": "assistant", "content": "It is noon."}]
        again = {**ASK, "messages": [*said, {"role": "user", "content": "thanks"}]}
        assert (await proxy.ask(again)).header("x-toolrelay-restored") is not None
        assert (len(a.requests), len(b.requests)) == (1, 3)
        answer = await proxy.ask(again)
        assert text_of(payloads_of(answer.body)) == "Hello."
        assert (len(a.requests), len(b.requests)) == (2, 4)
        assert [m["role"] for m in body_of(a.requests[1])["messages"]] == [
            "user", "assistant", "tool", "assistant", "user",
        ]  # fmt: skip


async def test_the_header_says_what_the_upstream_that_answered_got() -> None:
    """For an upstream that offers other tools, the proxy restores no turn and sends no header about it."""
    habits: tuple[dict[str, Any], dict[str, Any]] = ({}, {"tools": ("core__calculate",)})
    turns = [called(("c", TIME, UTC)), ANSWER, MOVING["503"]]
    async with two(turns, [HELLO], ("core__*",), habits) as (proxy, _, b):
        await proxy.ask(ASK)
        said = [*ASK["messages"], {"role": "assistant", "content": "It is noon."}]
        answer = await proxy.ask({**ASK, "messages": [*said, {"role": "user", "content": "thanks"}]})
        assert text_of(payloads_of(answer.body)) == "Hello."
        assert [m["role"] for m in body_of(b.requests[0])["messages"]] == ["user", "assistant", "user"]
        assert answer.header("x-toolrelay-restored") is None


async def test_hidden_turns_do_not_wait_for_an_upstream_that_keeps_failing() -> None:
    """While the breaker of the upstream with the hidden turns is open, the conversation goes to another."""
    habits: tuple[dict[str, Any], dict[str, Any]] = ({}, {"breaker_failures": 1, "breaker_open_s": 3600})
    turns = [called(("c", TIME, UTC)), ANSWER, MOVING["503"]]
    async with two([MOVING["503"], HELLO], turns, ("core__*",), habits) as (proxy, a, b):
        await proxy.ask(ASK)
        said = [*ASK["messages"], {"role": "assistant", "content": "It is noon."}]
        again = {**ASK, "messages": [*said, {"role": "user", "content": "thanks"}]}
        for _ in range(2):
            answer = await proxy.ask(again)
            assert text_of(payloads_of(answer.body)) == "Hello."
        assert (len(a.requests), len(b.requests)) == (3, 3)


async def test_vectors_never_come_from_another_model() -> None:
    """Embeddings of two models cannot be compared, so only an upstream with the same model takes over."""
    ask = {"model": "m", "input": "x"}
    vectors = whole(b'{"data":[]}')
    async with two([MOVING["503"]], [vectors], habits=({}, {"models": {"m": "other"}})) as (proxy, _, b):
        assert (await proxy.ask(ask, path="/v1/embeddings")).status == 503
        assert not b.requests
    async with two([MOVING["503"]], [vectors]) as (proxy, _, b):
        assert (await proxy.ask(ask, path="/v1/embeddings")).status == 200


# The circuit breaker.


async def test_an_upstream_that_keeps_failing_is_passed_over() -> None:
    """After two failures in a row the proxy does not ask the first upstream any more, and logs that once."""
    habits: tuple[dict[str, Any], dict[str, Any]] = ({"breaker_failures": 2, "breaker_open_s": 3600}, {})
    async with two([MOVING["503"]], [HELLO], habits=habits) as (proxy, a, b):
        with structlog.testing.capture_logs() as logs:
            for _ in range(4):
                assert (await proxy.ask(ASK)).status == 200
        assert (len(a.requests), len(b.requests)) == (2, 4)
    opened = [(log["upstream"], log["log_level"]) for log in logs if log["event"] == "breaker_opened"]
    assert opened == [("a", "warning")]


async def test_an_upstream_that_recovers_is_asked_first_again() -> None:
    """After its breaker's time one request tries the upstream; if that succeeds, it is asked first again."""
    habits: tuple[dict[str, Any], dict[str, Any]] = ({"breaker_failures": 1, "breaker_open_s": 0.01}, {})
    async with two([MOVING["503"], HELLO], [HELLO], habits=habits) as (proxy, a, b):
        while len(a.requests) < 2:
            assert (await proxy.ask(ASK)).status == 200
        before = len(b.requests)
        assert (await proxy.ask(ASK)).status == 200
        assert (len(a.requests), len(b.requests)) == (3, before)


async def test_where_all_breakers_are_open_all_are_asked() -> None:
    """If the breakers of all upstreams are open, the proxy asks the upstreams all the same."""
    habits: tuple[dict[str, Any], dict[str, Any]] = ({"breaker_failures": 1}, {"breaker_failures": 1})
    async with two([MOVING["503"], MOVING["503"], HELLO], [MOVING["503"]], habits=habits) as (proxy, a, b):
        assert [(await proxy.ask(ASK)).status for _ in range(3)] == [503, 503, 200]
        assert (len(a.requests), len(b.requests)) == (3, 2)


async def test_a_limit_is_no_failure() -> None:
    """A 429 does not open the breaker: the proxy asks that upstream first each time."""
    habits: tuple[dict[str, Any], dict[str, Any]] = ({"breaker_failures": 1}, {})
    async with two([MOVING["429"]], [HELLO], habits=habits) as (proxy, a, b):
        for _ in range(3):
            assert (await proxy.ask(ASK)).status == 200
        assert (len(a.requests), len(b.requests)) == (3, 3)


# The order of the upstreams.


class Silent:
    """An upstream that is never asked."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def open(self, request: UpstreamRequest) -> Any:
        raise UpstreamError("never asked")

    async def aclose(self) -> None:
        return


def test_the_order_is_that_of_the_configuration() -> None:
    """Each model that several upstreams serve is listed with them in order, under the name it has at each."""
    router = Router(
        [
            ServedUpstream(Silent("a"), frozenset({"chat"}), models=("gpt-*", "mini")),
            ServedUpstream(
                Silent("b"), frozenset({"chat"}), models=(), renamed={"gpt-4o": "x", "mini": "mini"}
            ),
            ServedUpstream(Silent("c"), frozenset({"chat"}), models=("*",)),
        ]
    )
    said = {name: [(r.served.upstream.name, r.model) for r in routes] for name, routes in router.order()}
    assert said == {
        "gpt-*": [("a", "gpt-*"), ("c", "gpt-*")],
        "mini": [("a", "mini"), ("b", "mini"), ("c", "mini")],
        "gpt-4o": [("a", "gpt-4o"), ("b", "x"), ("c", "gpt-4o")],
    }


def test_routes_are_kept_for_few_models() -> None:
    """The router caches the routes of a few models; many or long model names do not fill the memory."""
    router = Router([ServedUpstream(Silent("a"), frozenset({"chat"}), models=("gpt-*",))])
    found = router.routes("gpt-4o", "chat")
    assert router.routes("gpt-4o", "chat") is found
    for wire, model in (("chat", "llama"), ("responses", "gpt-4o")):
        with pytest.raises(RequestError):
            router.routes(model, wire)
    long = "gpt-" + "x" * 300
    assert router.routes(long, "chat") is not router.routes(long, "chat")
    for number in range(1000):
        router.routes(f"gpt-{number}", "chat")
    assert router.routes("gpt-4o", "chat") is not found
    del found
    of_this_one = [one for one in gc.get_objects() if type(one) is Route and one.served in router.served]
    assert len(of_this_one) < 100
