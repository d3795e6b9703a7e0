"""``/mcp``: the server tools for clients that run a model themselves."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import mcp_types
import pytest
from client_keys import ALICE, BOB, bearer, declared
from mcp_client import ACCEPT, HANDSHAKE, MODERN, NONE, ask, call, events, headers_of, message
from mcp_types.methods import validate_server_result
from probe_tools import WATCH
from running_proxy import Proxy, make_config, running
from waiting import LATE_S, until

from proxy.api.admin.run_meaning import withheld
from proxy.base.errors import ConfigError
from proxy.config.checks.rules import find_conflicts

PROBES = "probe_tools__*"


@pytest.fixture(autouse=True)
def _fresh_watch() -> None:
    """Reset the record of what the probe tools do."""
    WATCH.reset()


@asynccontextmanager
async def serving(allow: Sequence[str] = (PROBES,), **sections: Any) -> AsyncIterator[Proxy]:
    """Run a proxy that serves its tools; the tests send nothing to its upstream."""
    sections.setdefault("mcp", {"serve": True})
    sections.setdefault("tools", {"keepalive_s": LATE_S})
    config = make_config("http://127.0.0.1:9", allow=allow, modules=("probe_tools",), **sections)
    async with running(config) as proxy:
        yield proxy


def text_of(result: dict[str, Any]) -> str:
    """Return the only text of a result."""
    (block,) = result["content"]
    assert block["type"] == "text"
    return str(block["text"])


async def begin(proxy: Proxy, headers: Mapping[str, str] = NONE) -> str:
    """Make a handshake, and return the id of its session."""
    hello = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    answer = await ask(proxy, "initialize", hello, version=HANDSHAKE, headers=headers)
    assert answer.status == 200, answer.body
    return str(answer.header("mcp-session-id"))


# ---------------------------------------------------------------- revisions with and without a handshake


async def test_it_is_served_only_where_the_operator_says_so() -> None:
    """Without ``mcp.serve`` the path ``/mcp`` does not exist."""
    async with serving(mcp={}) as proxy:
        answer = await ask(proxy, "tools/list")
        assert answer.status == 404
        assert answer.error["code"] == "not_found"


@pytest.mark.parametrize("version", mcp_types.version.HANDSHAKE_PROTOCOL_VERSIONS)
async def test_a_handshake_agrees_on_the_revision_that_the_client_speaks(version: str) -> None:
    """The proxy answers in the client's revision, and the SDK's models of it accept each result."""
    async with serving() as proxy:
        hello = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        answer = await ask(proxy, "initialize", hello, version=version)
        result = answer.json["result"]
        validate_server_result("initialize", version, result)
        assert result["protocolVersion"] == version
        assert result["serverInfo"]["name"] == "toolrelay"
        told = await ask(proxy, "notifications/initialized", version=version, number=None)
        assert (told.status, told.body) == (202, b"")
        listed = (await ask(proxy, "tools/list", version=version)).json["result"]
        validate_server_result("tools/list", version, listed)
        result = await call(proxy, "probe_tools__echo", {"text": "hello"}, version=version)
        validate_server_result("tools/call", version, result)
        assert json.loads(text_of(result))["echo"] == "hello"


async def test_a_client_of_an_unknown_revision_is_offered_the_newest() -> None:
    """A client with an unknown revision is offered the newest one that has a handshake."""
    async with serving() as proxy:
        hello = {"protocolVersion": "1999-01-01", "capabilities": {}}
        answer = await ask(proxy, "initialize", hello, version=HANDSHAKE)
        assert answer.json["result"]["protocolVersion"] == HANDSHAKE


async def test_without_a_handshake_each_request_stands_for_itself() -> None:
    """In revision 2026-07-28 requests need no session, and the SDK's models of it accept each result."""
    async with serving() as proxy:
        for method in ("server/discover", "tools/list"):
            answer = await ask(proxy, method)
            assert answer.status == 200, answer.body
            validate_server_result(method, MODERN, answer.json["result"])
            assert answer.header("mcp-session-id") is None
        result = await call(proxy, "probe_tools__echo", {"text": "hello"})
        validate_server_result("tools/call", MODERN, result)
        assert json.loads(text_of(result))["echo"] == "hello"


@pytest.mark.parametrize(
    ("method", "version", "status"),
    [
        ("ping", HANDSHAKE, 200),
        ("ping", MODERN, 404),
        ("initialize", MODERN, 404),
        ("server/discover", HANDSHAKE, 200),
        ("resources/list", HANDSHAKE, 200),
        ("resources/list", MODERN, 404),
    ],
)
async def test_each_era_has_its_methods(method: str, version: str, status: int) -> None:
    """A method outside the client's revision gets error -32601, with a 404 in the one without a handshake."""
    async with serving() as proxy:
        answer = await ask(proxy, method, version=version, number="seven")
        assert answer.status == status
        assert answer.json["id"] == "seven"
        if method == "ping" and version == HANDSHAKE:
            assert answer.json["result"] == {}
        else:
            assert answer.json["error"]["code"] == -32601


async def test_a_client_that_contradicts_itself_is_refused() -> None:
    """A request whose MCP headers are missing, repeated or unlike its body is refused with error -32020."""
    body = message("tools/call", {"name": "probe_tools__echo", "arguments": {"text": "x"}})
    right = headers_of(body)
    wrong: list[dict[str, str]] = [
        {**right, "Mcp-Name": "probe_tools__buy"},
        {**right, "Mcp-Method": "tools/list"},
        {**right, "MCP-Protocol-Version": HANDSHAKE},
        {name: value for name, value in right.items() if name != "Mcp-Name"},
        {name: value for name, value in right.items() if name != "MCP-Protocol-Version"},
        {**right, "Mcp-Name": "=?base64?!?="},
    ]
    async with serving() as proxy:
        for headers in wrong:
            answer = await proxy.ask(body, headers, path="/mcp")
            assert answer.status == 400, headers
            assert answer.json["error"]["code"] == -32020
            assert answer.json["id"] == 1
        twice = [*right.items(), ("mcp-name", "probe_tools__echo")]
        assert (await proxy.ask(body, twice, path="/mcp")).json["error"]["code"] == -32020
        # The base64 text means probe_tools__echo.
        encoded = {**right, "Mcp-Name": "=?base64?cHJvYmVfdG9vbHNfX2VjaG8=?="}
        assert (await proxy.ask(body, encoded, path="/mcp")).status == 200


@pytest.mark.parametrize(
    ("body", "code", "number"),
    [
        (b"[]", -32700, None),
        (b"{", -32700, None),
        ({"jsonrpc": "1.0", "method": "ping", "id": 3}, -32600, 3),
        ({"jsonrpc": "2.0", "id": 3}, -32600, 3),
        ({"jsonrpc": "2.0", "method": 5, "id": 3}, -32600, 3),
        ({"jsonrpc": "2.0", "method": "ping", "id": None}, -32600, None),
        ({"jsonrpc": "2.0", "method": "ping", "id": True}, -32600, None),
        ({"jsonrpc": "2.0", "method": "ping", "id": 1.5}, -32600, None),
        ({"jsonrpc": "2.0", "method": "ping", "id": "x" * 300}, -32600, None),
        ({"jsonrpc": "2.0", "method": "ping", "params": [], "id": 3}, -32602, 3),
        ({"jsonrpc": "2.0", "method": "ping", "params": {"_meta": 1}, "id": 3}, -32602, 3),
    ],
)
async def test_what_is_no_message_is_refused(body: Any, code: int, number: Any) -> None:
    """Rule E1: an invalid message gets an error of JSON-RPC, with its id if that is valid."""
    async with serving() as proxy:
        answer = await proxy.ask(body, {"Accept": ACCEPT}, path="/mcp")
        assert answer.status == 400
        assert answer.json["error"]["code"] == code
        assert answer.json["id"] == number


async def test_a_revision_that_is_not_served_is_named_with_those_that_are() -> None:
    """The error for an unknown revision lists the supported ones, so that the client can ask again."""
    async with serving() as proxy:
        body = message("tools/list", {"_meta": {"io.modelcontextprotocol/protocolVersion": "2031-01-01"}})
        answer = await proxy.ask(
            body, {**headers_of(body), "MCP-Protocol-Version": "2031-01-01"}, path="/mcp"
        )
        assert answer.status == 400
        error = answer.json["error"]
        assert (error["code"], error["data"]["supported"]) == (-32022, [MODERN])
        told = message("notifications/x", version=HANDSHAKE, number=None)
        answer = await proxy.ask(told, {"MCP-Protocol-Version": "2031-01-01"}, path="/mcp")
        assert answer.json["error"]["code"] == -32022


async def test_answers_to_what_was_never_asked_are_passed_over() -> None:
    """The proxy accepts and ignores a response that it never asked for, and a notification of progress."""
    async with serving() as proxy:
        assert (await proxy.ask({"jsonrpc": "2.0", "id": 1, "result": {}}, path="/mcp")).status == 202
        assert (await ask(proxy, "notifications/progress", number=None)).status == 202


async def test_only_a_post_of_json_is_served() -> None:
    """Other methods get a 405, paths below a 404, other types of body a 415, and an unusable Accept a 406."""
    async with serving() as proxy:
        for method in ("GET", "DELETE", "PUT"):
            answer = await proxy.ask(headers={"Accept": "text/event-stream"}, method=method, path="/mcp")
            assert answer.status == 405
            assert answer.header("allow") == "POST"
        for path in ("/mcp/", "/mcp/x", "/mcp/x/y"):
            assert (await proxy.ask({}, path=path)).status == 404
        answer = await proxy.ask(b"{}", {"Content-Type": "text/plain"}, path="/mcp")
        assert answer.status == 415
        answer = await proxy.ask({}, {"Accept": "image/png"}, path="/mcp")
        assert answer.status == 406
        assert answer.json["error"]["code"] == -32600


async def test_a_client_that_takes_a_stream_alone_gets_one() -> None:
    """A client that accepts only an event stream gets one, with the answer as its only event."""
    async with serving() as proxy:
        params = {"name": "probe_tools__echo", "arguments": {"text": "x"}}
        for method, told in (("tools/list", {}), ("tools/call", params)):
            answer = await ask(proxy, method, told, headers={"Accept": "text/event-stream"})
            assert answer.header("content-type") == "text/event-stream"
            assert answer.clean
            (event,) = events(answer.body)
            assert event["id"] == 1


# ---------------------------------------------------------------- permissions and limits


async def test_a_page_of_another_origin_is_refused() -> None:
    """A call from a page of another origin gets a 403, also after DNS rebinding, and no tool runs."""
    async with serving() as proxy:
        for headers in (
            {"Origin": "http://evil.example"},
            {"Host": "evil.example:1", "Origin": "http://evil.example:1"},
        ):
            answer = await ask(
                proxy, "tools/call", {"name": "probe_tools__buy", "arguments": {"what": "x"}}, headers=headers
            )
            assert answer.status == 403
            assert answer.json["jsonrpc"] == "2.0"
        own = f"http://127.0.0.1:{proxy.port}"
        assert (await ask(proxy, "tools/list", headers={"Origin": own})).status == 200
    assert WATCH.started == []


async def test_a_client_needs_a_key_where_there_are_keys() -> None:
    """Rule T2: a client without a key gets a 401; others see and call only the tools of their key."""
    keys = {"alice": declared(ALICE), "bob": declared(BOB, tools=("probe_tools__echo",))}
    async with serving(keys=keys) as proxy:
        answer = await ask(proxy, "tools/list")
        assert answer.status == 401
        assert answer.header("www-authenticate") == "Bearer"
        assert answer.json["error"]["data"]["code"] == "invalid_api_key"

        async def names(secret: str) -> list[str]:
            answer = await ask(proxy, "tools/list", headers=bearer(secret))
            return [tool["name"] for tool in answer.json["result"]["tools"]]

        assert "probe_tools__buy" in await names(ALICE)
        assert await names(BOB) == ["probe_tools__echo"]
        params = {"name": "probe_tools__buy", "arguments": {"what": "milk"}}
        denied = await ask(proxy, "tools/call", params, headers=bearer(BOB))
        assert denied.status == 400
        unknown = await ask(proxy, "tools/call", {"name": "probe_tools__no"}, headers=bearer(BOB))
        words = denied.json["error"]["message"].replace("buy", "no")
        assert (unknown.status, unknown.json["error"]["message"]) == (400, words)
    assert WATCH.started == []


async def test_what_needs_an_approval_is_not_there() -> None:
    """Rule T2: a tool that needs an approval is neither listed nor callable, as nobody could approve it."""
    async with serving(policy={"approve_effects": ("external_side_effect",)}) as proxy:
        tools = (await ask(proxy, "tools/list")).json["result"]["tools"]
        assert "probe_tools__echo" in [tool["name"] for tool in tools]
        assert "probe_tools__buy" not in [tool["name"] for tool in tools]
        answer = await ask(proxy, "tools/call", {"name": "probe_tools__buy", "arguments": {"what": "x"}})
        assert answer.json["error"]["code"] == -32602
    assert WATCH.started == []


async def test_without_tools_there_are_none() -> None:
    """With ``tools.enabled`` false the endpoint lists no tool and runs none."""
    async with serving(tools={"enabled": False}) as proxy:
        assert (await ask(proxy, "tools/list")).json["result"]["tools"] == []
        answer = await ask(proxy, "tools/call", {"name": "probe_tools__buy", "arguments": {"what": "x"}})
        assert answer.json["error"]["code"] == -32602
    assert WATCH.started == []


def test_forwarded_keys_open_nothing() -> None:
    """No provider would check forwarded keys at ``/mcp``, so the configuration is refused."""
    config = make_config("https://api.example.com/v1", auth={"mode": "forward"}, mcp={"serve": True})
    (fault,) = find_conflicts(config)
    assert isinstance(fault, ConfigError)
    assert fault.setting == "mcp.serve"


async def test_limits_of_tool_calls_hold() -> None:
    """A call above the limit of tool calls fails with ``rate_limited``, for the client's model to read."""
    async with serving(limits={"tool_calls": ["1/hour"]}) as proxy:
        assert not (await call(proxy, "probe_tools__echo", {"text": "x"}))["isError"]
        refused = await call(proxy, "probe_tools__echo", {"text": "x"})
        assert refused["isError"]
        assert json.loads(text_of(refused))["error_code"] == "rate_limited"


async def test_limits_of_requests_hold() -> None:
    """A request above the limit of requests gets a 429 with an error of JSON-RPC."""
    async with serving(limits={"requests": ["1/hour"]}) as proxy:
        assert (await ask(proxy, "tools/list")).status == 200
        answer = await ask(proxy, "tools/list")
        assert answer.status == 429
        assert answer.json["error"]["data"]["code"] == "rate_limit_exceeded"


# ---------------------------------------------------------------- calls


async def test_tools_are_listed_as_they_are() -> None:
    """The list has the operator's hints on effects, and requires no argument that has a default."""
    async with serving(allow=(PROBES, "core__*")) as proxy:
        tools = {tool["name"]: tool for tool in (await ask(proxy, "tools/list")).json["result"]["tools"]}
        assert list(tools) == sorted(tools)
        assert tools["probe_tools__echo"]["annotations"]["readOnlyHint"] is True
        buy = tools["probe_tools__buy"]["annotations"]
        assert (buy["readOnlyHint"], buy["destructiveHint"], buy["openWorldHint"]) == (False, True, True)
        assert tools["probe_tools__browse"]["annotations"]["openWorldHint"] is True
        weather = tools["core__get_weather"]["inputSchema"]
        assert weather["required"] == ["location"]
        answer = await ask(proxy, "tools/list", {"cursor": "2"})
        assert answer.json["error"]["code"] == -32602


async def test_a_call_is_on_record_as_a_run_of_its_own() -> None:
    """Rule T1 and rule T4: the runner records a call as a run, redacted, and the response has its id."""
    async with serving() as proxy:
        params = {"name": "probe_tools__unlock", "arguments": {"pin": "1234"}}
        answer = await ask(proxy, "tools/call", params)
        detail = await proxy.only_run()
        assert answer.header("x-toolrelay-run") == detail.run.id
        assert (detail.run.wire, detail.run.status, detail.run.tool_calls) == ("mcp", "completed", 1)
        assert detail.run.offered == ("probe_tools__unlock",)
        (row,) = detail.invocations
        assert (row.tool, row.status, row.result_redacted) == ("probe_tools__unlock", "success", {"ok": True})
        assert "1234" not in repr(detail)


async def test_a_call_of_what_is_not_offered_is_on_record() -> None:
    """A call of a tool that policy does not allow is recorded as refused, and runs nothing."""
    async with serving(allow=()) as proxy:
        await ask(proxy, "tools/call", {"name": "probe_tools__buy", "arguments": {"what": "x"}})
        detail = await proxy.only_run()
        (row,) = detail.invocations
        assert (row.status, row.error_code) == ("error", "unknown_tool")
        assert row.decision == 'refused: policy.allow lacks "probe_tools__buy"'
    assert WATCH.started == []


async def test_a_failure_is_for_the_model_to_read() -> None:
    """Rule T3: a failure or an invalid argument is a result for the model, without the argument's value."""
    async with serving() as proxy:
        failed = await call(proxy, "probe_tools__fail")
        assert failed["isError"]
        assert json.loads(text_of(failed))["message"] == "the shop is closed"
        wrong = await call(proxy, "probe_tools__echo", {"text": 71077345})
        assert json.loads(text_of(wrong))["error_code"] == "invalid_arguments"
        assert "71077345" not in text_of(wrong)
        answer = await ask(proxy, "tools/call", {"name": "probe_tools__echo", "arguments": [1]})
        assert answer.json["error"]["code"] == -32602


async def test_an_image_comes_as_one() -> None:
    """A tool's image comes as an image block after the text of the result."""
    async with serving() as proxy:
        result = await call(proxy, "probe_tools__picture")
        kinds = [block["type"] for block in result["content"]]
        assert kinds == ["text", "image"]
        assert result["content"][1]["mimeType"] == "image/png"
        validate_server_result("tools/call", MODERN, result)


async def test_a_call_that_takes_long_becomes_a_stream() -> None:
    """A slow call becomes a stream with keep-alive comments; a client that accepts only JSON waits for it."""
    async with serving(tools={"keepalive_s": 0.01}) as proxy:
        params = {"name": "probe_tools__slow", "arguments": {}}
        body = message("tools/call", params)
        async with proxy.sent(body, headers_of(body), path="/mcp") as conversation:
            head = await conversation.head()
            assert head.header("content-type") == "text/event-stream"
            pieces = conversation.pieces(head)
            assert (await anext(pieces)).startswith(b":")
            WATCH.go_on.set()
            rest = b"".join([piece async for piece in pieces])
            assert head.clean
            (event,) = events(rest)
            assert json.loads(text_of(event["result"])) == {"done": True}
        WATCH.reset()
        async with proxy.sent(
            body, {**headers_of(body), "Accept": "application/json"}, path="/mcp"
        ) as conversation:
            await WATCH.has_started.wait()
            await asyncio.sleep(0.05)
            WATCH.go_on.set()
            answer = await conversation.answer()
            assert answer.header("content-type") == "application/json"


# ---------------------------------------------------------------- clients that leave, cancel or repeat


@pytest.mark.parametrize("tool", ["slow", "slow_buy"])
async def test_a_client_that_leaves_ends_what_only_reads(tool: str) -> None:
    """Rule E4: when the client leaves, a tool that only reads is cancelled; an effect runs to its end."""
    async with serving() as proxy:
        body = message("tools/call", {"name": f"probe_tools__{tool}", "arguments": {}})
        async with proxy.sent(body, headers_of(body), path="/mcp") as conversation:
            await WATCH.has_started.wait()
            conversation.leave()
            detail = await proxy.run_reaches("cancelled")
            assert detail.run.error_code == "client_gone"
            if tool == "slow":
                await until(lambda: WATCH.cancelled == ["slow"])
            WATCH.go_on.set()
            if tool == "slow_buy":
                await until(lambda: WATCH.finished == ["slow_buy"])


async def test_a_client_cancels_its_own_request_alone() -> None:
    """A client cancels only its own request, by id and session, as other sessions may use the same ids."""
    async with serving() as proxy:
        mine, other = await begin(proxy), await begin(proxy)
        body = message("tools/call", {"name": "probe_tools__slow"}, version=HANDSHAKE, number=7)
        headers = {**headers_of(body, HANDSHAKE), "Mcp-Session-Id": mine}
        async with proxy.sent(body, headers, path="/mcp") as conversation:
            await WATCH.has_started.wait()
            for session, number in ((other, 7), (mine, 8), ("", 7)):
                told = {"Mcp-Session-Id": session} if session else {}
                answer = await ask(
                    proxy,
                    "notifications/cancelled",
                    {"requestId": number},
                    version=HANDSHAKE,
                    number=None,
                    headers=told,
                )
                assert answer.status == 202
            assert WATCH.cancelled == []
            await ask(
                proxy,
                "notifications/cancelled",
                {"requestId": 7},
                version=HANDSHAKE,
                number=None,
                headers={"Mcp-Session-Id": mine},
            )
            answer = await conversation.answer()
        assert answer.json["id"] == 7
        assert answer.json["error"]["code"] == -32800
        assert WATCH.cancelled == ["slow"]
        assert (await proxy.run_reaches("cancelled")).run.tool_calls == 1


async def test_a_session_is_its_callers() -> None:
    """A session of another key, or an invented one, gets a 404, upon which a client begins a new one."""
    keys = {"alice": declared(ALICE), "bob": declared(BOB)}
    async with serving(keys=keys) as proxy:
        session = await begin(proxy, bearer(ALICE))
        found = await ask(
            proxy, "ping", version=HANDSHAKE, headers={"Mcp-Session-Id": session, **bearer(ALICE)}
        )
        assert found.status == 200
        for said, secret in ((session, BOB), (session[:-2] + "AA", ALICE), ("x", ALICE), ("é", ALICE)):
            answer = await ask(
                proxy, "ping", version=HANDSHAKE, headers={"Mcp-Session-Id": said, **bearer(secret)}
            )
            assert answer.status == 404
            assert answer.json["error"]["code"] == -32600


async def test_a_call_whose_answer_was_lost_is_not_made_twice() -> None:
    """Rule R5: a call repeated after a lost answer gets the first call's result; after a delivered answer it
    runs again."""
    keys = {"alice": declared(ALICE)}
    async with serving(keys=keys) as proxy:
        body = message("tools/call", {"name": "probe_tools__slow_buy", "arguments": {}})
        headers = headers_of(body) | bearer(ALICE)
        async with proxy.sent(body, headers, path="/mcp") as conversation:
            await WATCH.has_started.wait()
            conversation.leave()
            await proxy.run_reaches("cancelled")
        WATCH.go_on.set()
        repeated = await call(proxy, "probe_tools__slow_buy", headers=bearer(ALICE))
        assert json.loads(text_of(repeated)) == {"done": True}
        assert WATCH.started == ["slow_buy"]
        again = await call(proxy, "probe_tools__slow_buy", headers=bearer(ALICE))
        assert json.loads(text_of(again)) == {"done": True}
        assert WATCH.started == ["slow_buy", "slow_buy"]


async def test_the_same_idempotency_key_is_the_same_call() -> None:
    """Rule R5: two calls with the same idempotency key run the tool once."""
    async with serving(keys={"alice": declared(ALICE)}) as proxy:
        for _ in range(2):
            result = await call(
                proxy,
                "probe_tools__buy",
                {"what": "milk"},
                headers={"Idempotency-Key": "one", **bearer(ALICE)},
            )
            assert json.loads(text_of(result))["what"] == "milk"
        assert WATCH.started == ["buy"]


async def test_nothing_is_said_to_be_kept_from_who_called_itself() -> None:
    """The run of a call over MCP withholds nothing, as its client already has the result."""
    async with serving() as proxy:
        await call(proxy, "probe_tools__echo", {"text": "x"})
        assert list(withheld(await proxy.only_run())) == []
