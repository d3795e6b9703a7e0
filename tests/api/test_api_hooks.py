"""Hooks in a whole proxy: what they see, change, refuse and mask, in every dialect."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import websocket_client
from agents_rig import RESEARCHER, Models, agents
from agents_rig import Turn as ModelTurn
from pair_kits import SPEAKERS, Call, Message, Turn
from probe_tools import WATCH
from raw_upstream import RawRequest, RawUpstream, Step
from running_proxy import make_config, running
from structlog.testing import capture_logs
from waiting import until

from proxy.store.base import RequestFilter

MASKING = str(Path(__file__).resolve().parents[2] / "examples" / "masking" / "masking.py")
EMAIL = "anna.smith@example.com"
MARK = re.compile(r"\[EMAIL_[a-p]{16}\]")
DIALECTS = sorted(SPEAKERS)
ECHO = "probe_tools__echo"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASKING_KEY", "a secret of this test")
    WATCH.reset()


def module(folder: Path, code: str, name: str = "guarding.py") -> str:
    """Write a file with hooks; return its path."""
    path = folder / name
    path.write_text(f"from proxy.hooks import *\n\n{code}\n")
    return str(path)


def config(server: RawUpstream, wire: str, *modules: str, **sections: Any) -> Any:
    table = {"base_url": server.url, "wires": (wire,), "retries": 0}
    hooks = {"modules": modules, **sections.pop("hooks", {})}
    return make_config(table, modules=("probe_tools",), hooks=hooks, **sections)


def marks(request: RawRequest) -> list[str]:
    return MARK.findall(request.body.decode())


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "reply"])
@pytest.mark.parametrize("upstream", DIALECTS)
@pytest.mark.parametrize("client", DIALECTS)
async def test_what_is_masked_is_restored_for_the_client_alone(
    client: str, upstream: str, stream: bool
) -> None:
    """The model never sees the address; text and calls for the client have it; the next request masks it
    in the same way."""
    speaker, model = SPEAKERS[client], SPEAKERS[upstream]

    def answer(request: RawRequest) -> list[Step]:
        mark = marks(request)[0]
        calls = (Call("call_1", "send", {"to": mark, "more": f"<{mark}>"}),)
        first = len(server.requests) == 1
        return model.script(Turn(f"I write to {mark}.", calls if first else ()), stream=stream)

    async with RawUpstream(answer) as server:
        async with running(config(server, upstream, MASKING, policy={"allow": ()})) as proxy:
            said = [Message("user", f"Write to {EMAIL}, please.")]
            with capture_logs() as lines:
                ask = speaker.ask(said, stream=stream, tools=("send",), system=f"Be {EMAIL}.")
                seen = speaker.seen(await proxy.ask(ask, path=speaker.path), stream=stream)
                assert seen.text == f"I write to {EMAIL}."
                assert [call.arguments for call in seen.calls] == [{"to": EMAIL, "more": f"<{EMAIL}>"}]
                said += [*seen.returned, Message("tool", f"sent to {EMAIL}", call_id=seen.calls[0].id)]
                ask = speaker.ask(said, stream=stream, tools=("send",), system=f"Be {EMAIL}.")
                seen = speaker.seen(await proxy.ask(ask, path=speaker.path), stream=stream)
                assert seen.text == f"I write to {EMAIL}."
            metrics = (await proxy.get("/metrics")).body.decode()
        first, second = server.requests
    assert EMAIL not in (first.body + second.body).decode()
    assert len(set(marks(first) + marks(second))) == 1
    assert len(marks(second)) >= 5
    assert EMAIL not in repr(lines) + metrics
    assert 'toolrelay_hooks_total{hook="masking",outcome="changed",point="before_request"} 2' in metrics


@pytest.mark.parametrize("wire", DIALECTS)
async def test_results_of_server_tools_are_masked_too(wire: str) -> None:
    """A result brings an address; the model gets its placeholder, and the client the address in the
    answer."""
    speaker = SPEAKERS[wire]

    def answer(request: RawRequest) -> list[Step]:
        if found := marks(request):
            return speaker.script(Turn(f"It says {found[-1]}"))
        halves = {"text": "anna.smith" + "@" + "example.com"}
        return speaker.script(Turn(calls=(Call("call_1", ECHO, halves),)))

    async with RawUpstream(answer) as server, running(config(server, wire, MASKING)) as proxy:
        answered = await proxy.ask(speaker.ask([Message("user", "Look.")]), path=speaker.path)
        assert speaker.seen(answered).text == f"It says {EMAIL}"
        run = await proxy.only_run()
    results = speaker.got(json.loads(server.requests[1].body)).results
    assert [MARK.search(one) is not None and EMAIL not in one for one in results.values()] == [True]
    assert run.run.status == "completed"
    assert [call.result_redacted for call in run.invocations] == [{"echo": "[changed by a hook]"}]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "reply"])
@pytest.mark.parametrize("upstream", DIALECTS)
@pytest.mark.parametrize("client", DIALECTS)
async def test_an_error_keeps_its_status_where_answers_are_restored(
    client: str, upstream: str, stream: bool
) -> None:
    """The client reads why the upstream refused its request, and when it may come again."""
    speaker = SPEAKERS[client]
    error = json.dumps({"type": "error", "error": {"message": "slow down", "type": "rate_limit_error"}})
    head = (
        f"HTTP/1.1 429 No\r\nContent-Type: application/json\r\nRetry-After: 7\r\nContent-Length: {len(error)}"
    )
    refusal = f"{head}\r\n\r\n{error}".encode()
    async with RawUpstream([refusal]) as server, running(config(server, upstream, MASKING)) as proxy:
        ask = speaker.ask([Message("user", f"Write to {EMAIL}.")], stream=stream)
        answer = await proxy.ask(ask, path=speaker.path)
    assert answer.status == 429
    assert "slow down" in answer.body.decode()


async def test_a_stream_that_fails_sends_what_was_held_back() -> None:
    """Neither the beginning of a placeholder nor the error that follows it is lost."""

    def answer(request: RawRequest) -> list[Step]:
        begin = marks(request)[0][:8]
        usage = {"input_tokens": 1, "output_tokens": 1}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": {**message, "stop_reason": None, "usage": usage}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": begin}},
        ]
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9999\r\n\r\n"
        return [(head + "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events)).encode()]

    speaker = SPEAKERS["anthropic"]
    async with RawUpstream(answer) as server, running(config(server, "anthropic", MASKING)) as proxy:
        ask = speaker.ask([Message("user", f"Write to {EMAIL}.")], stream=True)
        said = (await proxy.ask(ask, path=speaker.path)).body.decode()
    assert "[EMAIL_" in said
    assert "event: error" in said


CHANGING = """
class Changing:
    async def before_tool(self, call):
        if "forbidden" in call.arguments:
            return Refusal("Not this word.")
        return ToolChange(call.arguments.replace("hi", "hello"))

    async def after_tool(self, outcome):
        return OutcomeChange(outcome.text.upper())

hooks = Changing()
"""


async def run_call(tmp_path: Path, arguments: Any, code: str, **sections: Any) -> tuple[str, Any]:
    """Let a model call echo; return the result that it reads, and the run."""
    chat = SPEAKERS["chat"]
    turns = Turn(calls=(Call("call_1", ECHO, arguments),)), Turn("Done.")
    async with RawUpstream(*(chat.script(turn) for turn in turns)) as server:
        async with running(config(server, "chat", module(tmp_path, code), **sections)) as proxy:
            answer = await proxy.ask(chat.ask([Message("user", "Look.")]), path=chat.path)
            assert chat.seen(answer).text == "Done."
            run = await proxy.only_run()
        (result,) = chat.got(json.loads(server.requests[1].body)).results.values()
    return result, run


async def test_a_hook_changes_arguments_and_results(tmp_path: Path) -> None:
    """The tool gets the arguments of the hook, the model its text, and the record says who changed them."""
    result, run = await run_call(tmp_path, {"text": "hi"}, CHANGING)
    assert json.loads(result)["ECHO"] == "HELLO"
    (call,) = run.invocations
    assert call.arguments_redacted == {"text": "hello"}
    assert call.decision.endswith("; arguments changed by hook guarding")


async def test_a_hook_refuses_a_call(tmp_path: Path) -> None:
    """The model reads why, the tool does not run, and the record names the hook."""
    result, run = await run_call(tmp_path, {"text": "forbidden"}, CHANGING)
    assert json.loads(result) == {"ok": False, "error_code": "policy_denied", "message": "Not this word."}
    assert WATCH.started == []
    assert run.invocations[0].decision == "refused: hook guarding"


BYPASSING = """
class Bypassing:
    async def before_tool(self, call):
        return ToolChange('{"text": "far too long"}' if "long" in call.arguments else '{"pin": 1}')

hooks = Bypassing()
"""


async def test_a_hook_bypasses_no_policy_and_no_validation(tmp_path: Path) -> None:
    """What a hook leaves is validated and bounded like what a model wrote."""
    bound = {"allow": ("probe_tools__*",), "arguments": {ECHO: {"text": {"max_length": 4}}}}
    result, _ = await run_call(tmp_path, {"text": "long"}, BYPASSING, policy=bound)
    assert json.loads(result)["error_code"] == "policy_denied"
    result, _ = await run_call(tmp_path, {"text": "hi"}, BYPASSING)
    assert json.loads(result)["error_code"] == "invalid_arguments"
    assert WATCH.started == []


FAILING = """
class Failing:
    async def before_request(self, request):
        raise RuntimeError("inner words " + request.texts[0].text)

hooks = Failing()
"""
REFUSING = """
class Refusing:
    async def before_request(self, request):
        if request.texts[0].text == "Look.":
            return Refusal("Say please.")
        return RequestChange(model="other")

hooks = Refusing()
"""


@pytest.mark.parametrize("wire", DIALECTS)
async def test_a_request_is_refused_or_changed(wire: str, tmp_path: Path) -> None:
    """A refusal is an error of the dialect with the hook's message; another model goes to its upstream."""
    speaker = SPEAKERS[wire]
    async with (
        RawUpstream(speaker.script(Turn("Done."))) as server,
        running(config(server, wire, module(tmp_path, REFUSING))) as proxy,
    ):
        answer = await proxy.ask(speaker.ask([Message("user", "Look.")]), path=speaker.path)
        assert (answer.status, speaker.error(answer.json)) == (403, "Say please.")
        assert server.requests == []
        answer = await proxy.ask(speaker.ask([Message("user", "Please.")]), path=speaker.path)
        assert speaker.seen(answer).text == "Done."
        assert json.loads(server.requests[0].body)["model"] == "other"
        wanted, rows = RequestFilter(status=403), proxy.services.store

        async def is_there() -> bool:
            return bool(await rows.list_requests(wanted))

        await until(is_there)
        assert [one.error_code for one in await rows.list_requests(wanted)] == ["refused_by_hook"]


@pytest.mark.parametrize("wire", DIALECTS)
async def test_a_failing_hook_stops_the_request_unless_the_operator_says_otherwise(
    wire: str, tmp_path: Path
) -> None:
    """Closed by default, without a word of the hook's; open by a setting."""
    speaker, ask = SPEAKERS[wire], SPEAKERS[wire].ask([Message("user", "Look.")])
    async with RawUpstream(speaker.script(Turn("Done."))) as server:
        failing = module(tmp_path, FAILING)
        async with running(config(server, wire, failing)) as proxy:
            answer = await proxy.ask(ask, path=speaker.path)
            assert answer.status == 503
            assert "checked" in speaker.error(answer.json)
            assert b"inner words" not in answer.body
            assert server.requests == []
        async with running(config(server, wire, failing, hooks={"on_error": "ignore"})) as proxy:
            assert speaker.seen(await proxy.ask(ask, path=speaker.path)).text == "Done."


async def test_what_hooks_cannot_read_is_refused(tmp_path: Path) -> None:
    """Embeddings are refused where requests are checked, unless the operator allows what is not read; so
    is a masked request whose answer comes later."""
    ask = {"model": "m", "input": f"about {EMAIL}"}
    async with RawUpstream(SPEAKERS["chat"].script(Turn("x"), stream=False)) as server:
        async with running(config(server, "chat", MASKING)) as proxy:
            answer = await proxy.ask(ask, path="/v1/embeddings")
            assert (answer.status, answer.error["code"]) == (403, "refused_by_hook")
            for method in ("PUT", "PATCH", "DELETE", "GET"):
                answer = await proxy.ask(ask, method=method, path="/v1/anything")
                assert (answer.status, answer.error["code"]) == (403, "refused_by_hook"), method
            answer = await proxy.ask({**ask, "background": True}, path="/v1/responses")
            assert (answer.status, answer.error["param"]) == (400, "background")
            assert server.requests == []
        async with running(config(server, "chat", MASKING, hooks={"unread": "allow"})) as proxy:
            assert (await proxy.ask(ask, path="/v1/embeddings")).status == 200


@pytest.mark.accepts("*", why="the upstream counts nothing; the body that it gets is looked at")
async def test_requests_that_count_tokens_are_masked(tmp_path: Path) -> None:
    """An upstream that counts gets the placeholders, too."""
    ask = {"model": "claude-sonnet-4-5", "messages": [{"role": "user", "content": f"to {EMAIL}"}]}
    async with (
        RawUpstream(SPEAKERS["chat"].script(Turn("x"), stream=False)) as server,
        running(config(server, "anthropic", MASKING)) as proxy,
    ):
        answer = await proxy.ask(ask, path="/v1/messages/count_tokens")
        assert answer.status == 200
    assert marks(server.requests[0])
    assert EMAIL not in server.requests[0].body.decode()


async def test_messages_of_a_websocket_are_masked_and_restored() -> None:
    """A message of a WebSocket goes through the same hooks as a request."""
    responses = SPEAKERS["responses"]

    def answer(request: RawRequest) -> list[Step]:
        return responses.script(Turn(f"To {marks(request)[0]}."))

    async with (
        RawUpstream(answer) as server,
        running(config(server, "responses", MASKING)) as proxy,
        websocket_client.connected(proxy) as socket,
    ):
        turn = await socket.ask(model=responses.model, input=f"Write to {EMAIL}.")
        assert turn.text == f"To {EMAIL}."
    assert EMAIL not in server.requests[0].body.decode()


async def test_requests_and_calls_of_agents_go_through_the_hooks(tmp_path: Path) -> None:
    """The agent's own model sees placeholders, and its report comes back to the client restored."""

    def small(asked: Any) -> ModelTurn:
        return ModelTurn(f"Found {MARK.findall(asked.text)[-1]}")

    def large(asked: Any) -> ModelTurn:
        if asked.results:
            return ModelTurn(f"Report: {MARK.findall(asked.results[0])[0]}")
        return ModelTurn(calls=[(RESEARCHER, {"task": f"Look for {MARK.findall(asked.text)[0]}"})])

    models = Models({"large": large, "small": small})
    async with RawUpstream(models) as server:
        settings = config(
            server, "chat", MASKING, agents=agents(instructions=f"You are {EMAIL}."),
            policy={"allow": (RESEARCHER, "probe_tools__*")},
        )  # fmt: skip
        async with running(settings) as proxy:
            ask = {"model": "large", "messages": [{"role": "user", "content": f"Who is {EMAIL}?"}]}
            answer = await proxy.ask(ask)
            assert answer.json["choices"][0]["message"]["content"] == f"Report: {EMAIL}"
    assert len(server.requests) == 3
    assert EMAIL not in "".join(request.body.decode() for request in server.requests)
