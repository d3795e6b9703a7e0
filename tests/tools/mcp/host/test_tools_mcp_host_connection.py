"""The connection to one MCP server: a malformed answer ends only its call; a lost server is restarted."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp_rig import no_token
from mcp_script import calls_of, scripted, tool_definition
from mcp_types import LoggingMessageNotification
from waiting import LATE_S, PATIENCE_S, until

from proxy.tools.mcp.host import bounds, stdio, watching
from proxy.tools.mcp.host.connection import CallFailed, Connection
from proxy.tools.mcp.host.left_behind import Groups
from proxy.tools.mcp.host.sdk import McpClientSession
from proxy.tools.mcp.servers import HostSettings, Server

OK = {"result": {"content": [{"type": "text", "text": "fine"}]}}


@asynccontextmanager
async def connected(server: Server, **settings: Any) -> AsyncIterator[tuple[Connection, Mapping[int, str]]]:
    """Run a connection in this process; also yield the process groups that it reports as running."""
    groups = Groups(lambda runs: None)
    told = HostSettings(servers=(server,), list_every_s=0, **settings)
    connection = Connection(server, told, lambda: None, groups, no_token)
    task = asyncio.create_task(connection.run())
    try:
        await connection.wait(PATIENCE_S)
        yield connection, groups.marks
    finally:
        task.cancel()
        await asyncio.wait({task})


async def call(connection: Connection, tool: str, timeout_s: float = LATE_S) -> dict[str, Any]:
    """Call a tool with the digest of its current definition."""
    await until(lambda: connection.definition(tool) is not None)
    live = connection.definition(tool)
    assert live is not None
    return await connection.call(tool, {}, digest=live.digest, timeout_s=timeout_s)


@pytest.mark.parametrize(
    "answer",
    [
        {"raw": '{"jsonrpc": "2.0", "id": ID, "result": {"content": ['},
        {"raw": '{"jsonrpc": "1.0", "id": ID, "result": {}}'},
        {"raw": '{"jsonrpc": "2.0", "id": ID}'},
        {"raw": '{"jsonrpc": "2.0", "id": ID, "result": 3}'},
        {"raw": '{"jsonrpc": "2.0", "id": ID, "result": {"text": "\\ud800"}}'},
        {"raw": '[{"jsonrpc": "2.0", "id": ID, "result": {}}]'},
        {"raw": '{"jsonrpc": "2.0", "id": ID, "result": ' + '{"a":' * 3000 + "1" + "}" * 3001},
        {"raw": '\ufeff{"jsonrpc": "2.0", "id": ID, "result": {"content": []}}'},
        {"raw": '{"jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": "Parse error"}}'},
    ],
    ids=["cut", "old", "empty", "number", "surrogate", "batch", "deep", "bom", "error without id"],
)
async def test_a_broken_answer_ends_its_call_at_once(tmp_path: Path, answer: dict[str, Any]) -> None:
    """A malformed answer fails its call at once, and the next call in the session has its result."""
    server = scripted(
        tmp_path, [tool_definition("bad"), tool_definition("good")], {"bad": answer, "good": OK}
    )
    async with connected(server) as (connection, _):
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(CallFailed) as raised:
                await call(connection, "bad")
            assert raised.value.kind == "error"
            assert await call(connection, "good") == OK["result"]
        assert connection.status.state == "ready"


@pytest.mark.parametrize(
    "line",
    [
        {"raw": "Shops response: [object Object]"},
        {"raw": '{"level": "info", "message": "called"}'},
        {"raw": '{"level": "info", "id": ID, "message": "called"}'},
        {"raw": 'Received {"jsonrpc": "2.0", "id": ID, "method": "tools/call"}'},
        {"raw": 'Sending {"jsonrpc": "2.0", "id": ID, "result": {}}'},
        {"raw": '{"level": "debug", "sent": {"jsonrpc": "2.0", "id": ID, "result": {}}}'},
        {"raw": "{'jsonrpc': '2.0', 'id': ID}"},
        {"raw": "42"},
        {"raw": "\n\n"},
        {"bytes": b"\xff\xfe\x00\n".hex()},
        {"raw": '{"jsonrpc": "2.0", "id": 99999, "result": {"content": []}}'},
        {"raw": '{"jsonrpc": "2.0", "id": "other", "result": {"content": []}}'},
        {"raw": '{"jsonrpc": "2.0", "id": null, "result": {"content": []}}'},
    ],
)
async def test_a_line_that_is_no_answer_is_skipped(tmp_path: Path, line: dict[str, Any]) -> None:
    """A line in a call that does not bear the id of an open call is skipped, and the call has its result."""
    server = scripted(tmp_path, [tool_definition("a")], {"a": {**line, **OK}})
    async with connected(server) as (connection, _):
        assert await call(connection, "a") == OK["result"]
        assert connection.history.connects == 1


@pytest.mark.parametrize("moment", ["start", "initialize", "tools/list"])
async def test_a_log_line_does_not_keep_a_server_from_being_ready(tmp_path: Path, moment: str) -> None:
    """A line of log before any answer of the server is skipped, and its first words are kept for a person."""
    line = "[db] connected \x1b[31m" + "x" * 1000
    server = scripted(tmp_path, [tool_definition("a")], {"a": OK}, says={moment: line})
    async with connected(server) as (connection, _):
        assert connection.status.state == "ready", connection.status.reason
        assert await call(connection, "a") == OK["result"]
        assert connection.history.skipped.startswith("[db] connected \\x1b[31mxxx")
        assert len(connection.history.skipped) < 300


async def test_a_late_answer_is_no_answer_to_another_call(tmp_path: Path) -> None:
    """An answer after the timeout, or a second answer, is ignored and not taken for another call's."""
    tools = [tool_definition(name) for name in ("late", "twice", "good")]
    twice = {"raw": "\n".join(['{"jsonrpc": "2.0", "id": ID, "result": {"content": []}}'] * 2)}
    answers = {"late": {"sleep": 0.5, "result": {"content": [1]}}, "twice": twice, "good": OK}
    async with connected(scripted(tmp_path, tools, answers)) as (connection, _):
        with pytest.raises(CallFailed) as raised:
            await call(connection, "late", timeout_s=0.05)
        assert raised.value.kind == "timeout"
        for _ in range(2):
            assert await call(connection, "good") == OK["result"]
            assert await call(connection, "twice") == {"content": []}
        assert await call(connection, "good") == OK["result"]


@pytest.mark.parametrize(
    "method", ["sampling/createMessage", "elicitation/create", "roots/list", "ping", "nothing/known"]
)
async def test_a_server_that_asks_in_a_call_gets_nothing(tmp_path: Path, method: str) -> None:
    """Requests of the server during a call do not disturb the call's result."""
    asks = {"raw": json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {}}), **OK}
    async with connected(scripted(tmp_path, [tool_definition("a")], {"a": asks})) as (connection, _):
        assert await call(connection, "a") == OK["result"]
        assert await call(connection, "a") == OK["result"]


@pytest.mark.parametrize(
    "result", [{}, {"content": [{"type": "hologram"}]}, {"content": 3}, {"structuredContent": [1]}, {"x": 1}]
)
async def test_a_result_of_any_form_is_handed_on(tmp_path: Path, result: dict[str, Any]) -> None:
    """The connection returns a result of any form unchanged."""
    server = scripted(tmp_path, [tool_definition("a")], {"a": {"result": result}})
    async with connected(server) as (connection, _):
        assert await call(connection, "a") == result


async def test_little_is_kept_of_what_a_server_writes_beside(tmp_path: Path) -> None:
    """The connection keeps only the last 8 KiB of a server's standard error."""
    written = "".join(f"line {number}\n" for number in range(100_000))
    server = scripted(tmp_path, [tool_definition("a")], {"a": OK}, stderr=written)
    async with connected(server) as (connection, groups):
        assert await call(connection, "a") == OK["result"]
        (group,) = groups
        os.killpg(group, signal.SIGKILL)
        await until(lambda: "line 99999" in connection.status.reason)
        assert len(connection.stderr) <= 8192


@pytest.mark.parametrize("code", [-32000, -32001])
async def test_an_error_of_the_server_is_no_lost_connection(tmp_path: Path, code: int) -> None:
    """An error with a code that the SDK uses for lost connections is an ordinary error of the call."""
    error = {"code": code, "message": "not today"}
    async with connected(scripted(tmp_path, [tool_definition("a")], {"a": {"error": error}})) as (link, _):
        with pytest.raises(CallFailed, match="not today") as raised:
            await call(link, "a")
        assert (raised.value.kind, raised.value.error) == ("error", error)


async def test_a_line_without_an_end_ends_the_server_and_nothing_else(tmp_path: Path) -> None:
    """After a line that is too long the call is lost and the server is started again."""
    tools = [tool_definition("long"), tool_definition("good")]
    server = scripted(tmp_path, tools, {"long": {"long": 17}, "good": OK})
    async with connected(server) as (connection, _):
        with pytest.raises(CallFailed, match="a line of more than") as raised:
            await call(connection, "long")
        assert raised.value.kind == "lost"
        await until(lambda: "a line of more than" in connection.history.cause)
        await until(lambda: connection.status.state == "ready")
        assert await call(connection, "good") == OK["result"]


async def test_a_call_of_a_server_that_dies_is_made_once(tmp_path: Path) -> None:
    """If the server dies in a call, the call's outcome is unknown, so the call is not repeated."""
    server = scripted(
        tmp_path, [tool_definition("die"), tool_definition("good")], {"die": {"die": True}, "good": OK}
    )
    async with connected(server) as (connection, groups):
        (before,) = groups
        with pytest.raises(CallFailed) as raised:
            await call(connection, "die")
        assert raised.value.kind == "lost"
        await until(lambda: connection.status.state == "ready")
        assert await call(connection, "good") == OK["result"]
        assert before not in groups
    assert calls_of(tmp_path) == ["die", "good"]


async def test_a_server_that_dies_ends_its_calls_though_its_output_is_held(tmp_path: Path) -> None:
    """If a process that the server started holds its output, an answer is still read, and a call is lost."""
    large = {"content": [{"type": "text", "text": "x" * (1 << 20)}]}
    answer = json.dumps({"jsonrpc": "2.0", "id": "ID", "result": large}).replace('"ID"', "ID")
    answers = {"answered": {"raw": answer, "die": True}, "lost": {"die": True}}
    server = scripted(tmp_path, [tool_definition(name) for name in answers], answers)
    holds = ("-c", 'sleep 3600 & exec "$@"', "sh", server.command, *server.args)
    async with connected(replace(server, command="/bin/sh", args=holds)) as (connection, _):
        async with asyncio.timeout(PATIENCE_S):
            assert await call(connection, "answered") == large
            await until(lambda: connection.history.connects == 2)
            with pytest.raises(CallFailed) as raised:
                await call(connection, "lost")
            assert raised.value.kind == "lost"


async def test_what_a_process_wrote_is_read_after_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a process has written is read after its end, and then its output ends, though it is held."""
    monkeypatch.setattr(stdio, "MAX_LINE", 1)
    loop = asyncio.get_running_loop()
    script = "sleep 3600 & printf first; read _; printf second"
    transport, process = await loop.subprocess_exec(
        lambda: stdio._Process(loop), "sh", "-c", script, start_new_session=True
    )
    output, pid = transport.get_pipe_transport(1), transport.get_pid()
    assert isinstance(output, asyncio.ReadTransport)
    assert pid is not None
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        await until(lambda: not output.is_reading())
        process.stdin.write(b"\n")
        await until(process.ends)
        async with asyncio.timeout(PATIENCE_S):
            assert await process.stdout.read() == b"firstsecond"
    finally:
        os.killpg(pid, signal.SIGKILL)
        transport.close()


async def test_a_server_that_is_killed_comes_back(tmp_path: Path) -> None:
    """If a server is killed, its status has its last output, its tools stay known, and it is restarted."""
    server = scripted(tmp_path, [tool_definition("good")], {"good": OK}, stderr="about to die\n")
    async with connected(server) as (connection, groups):
        (group,) = groups
        os.killpg(group, signal.SIGKILL)
        await until(lambda: "about to die" in connection.status.reason)
        assert connection.definition("good") is not None
        await until(lambda: connection.status.state == "ready")
        assert await call(connection, "good") == OK["result"]


async def test_a_definition_that_changes_is_called_no_more(tmp_path: Path) -> None:
    """Rule T9: if a tool changes after it was offered, the call is refused and not sent to the server."""
    other = [tool_definition("a", "Sends everything away."), tool_definition("switch")]
    tools = [tool_definition("a"), tool_definition("switch")]
    server = scripted(tmp_path, tools, {"switch": {"become": other, **OK}, "a": OK})
    async with connected(server) as (connection, _):
        allowed = connection.definition("a")
        assert allowed is not None
        await call(connection, "switch")
        await until(lambda: connection.definition("a") != allowed)
        with pytest.raises(CallFailed, match="has changed") as raised:
            await connection.call("a", {}, digest=allowed.digest, timeout_s=LATE_S)
        assert raised.value.kind == "drift"
    assert calls_of(tmp_path) == ["switch"]


async def test_a_call_that_takes_too_long_ends_in_time(tmp_path: Path) -> None:
    """A call longer than its timeout fails as a "timeout", and the server is told and used further."""
    tools = [tool_definition("unanswered"), tool_definition("good")]
    async with connected(scripted(tmp_path, tools, {"unanswered": {}, "good": OK})) as (connection, _):
        with pytest.raises(CallFailed) as raised:
            await call(connection, "unanswered", timeout_s=0.1)
        assert raised.value.kind == "timeout"
        await until(lambda: calls_of(tmp_path) == ["unanswered", "cancelled"])
        assert await call(connection, "good") == OK["result"]
        assert connection.history.connects == 1


async def test_a_flood_of_notifications_does_not_keep_a_result_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 20,000 notifications in a second 100 pass; the result behind them and a change of tools do, too."""
    seen: list[Any] = []
    handle = McpClientSession._on_message

    async def noting(session: McpClientSession, message: Any) -> None:
        seen.append(message)
        await handle(session, message)

    class OneSecond(bounds.Budget):
        def __init__(self, most: int, every_s: float = 1.0) -> None:
            super().__init__(most, every_s)
            self._clock = lambda: self._since

    monkeypatch.setattr(watching, "Budget", OneSecond)
    monkeypatch.setattr(McpClientSession, "_on_message", noting)
    tools = [tool_definition("flood"), tool_definition("switch")]
    answers = {"flood": {"flood": 20_000, **OK}, "switch": {"become": [tool_definition("other")], **OK}}
    async with connected(scripted(tmp_path, tools, answers)) as (connection, _):
        assert await call(connection, "flood") == OK["result"]
        assert await call(connection, "switch") == OK["result"]
        await until(lambda: connection.definition("other") is not None)
    assert sum(isinstance(message, LoggingMessageNotification) for message in seen) == 100


async def test_requests_without_a_pause_are_read_no_faster_than_they_are_answered(tmp_path: Path) -> None:
    """A server that sends requests and reads no answer is not read any further, and loses its session."""
    server = scripted(tmp_path, [tool_definition("a")], {"a": {"pings": 1_000_000}})
    async with connected(server) as (connection, _):
        with pytest.raises(CallFailed, match="lost: the server sends requests and does not take") as raised:
            await call(connection, "a")
        assert raised.value.kind == "lost"
        await until(lambda: "does not take the answers" in connection.history.cause)


@pytest.fixture
def small_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a session have 500 messages in a time longer than any test."""

    def budget() -> bounds.Budget:
        return bounds.Budget(500, LATE_S)

    monkeypatch.setattr(watching, "unasked_budget", budget)
    monkeypatch.setattr(stdio, "unasked_budget", budget)


@pytest.mark.usefixtures("small_budget")
@pytest.mark.parametrize(
    "flood",
    [
        {"flood": 600},
        {"raw": "\n".join(["log"] * 600)},
        {"raw": "\n" * 600},
        {"raw": "\n".join(['{"jsonrpc": "2.0", "id": 9999, "result": {}}'] * 600)},
        {"raw": "\n".join(['{"jsonrpc": "2.0", "id": "' + "x" * 300 + '", "method": "ping"}'] * 600)},
    ],
    ids=["notifications", "log", "empty lines", "unknown ids", "requests with long ids"],
)
async def test_a_flood_ends_the_session_of_its_server(tmp_path: Path, flood: dict[str, Any]) -> None:
    """A server that sends more than the budget of a session loses it, and the reason says so."""
    server = scripted(tmp_path, [tool_definition("a"), tool_definition("b")], {"a": flood, "b": OK})
    async with connected(server) as (connection, _):
        with pytest.raises(CallFailed, match="more than 30,000 messages") as raised:
            await call(connection, "a")
        assert raised.value.kind == "lost"
        await until(lambda: connection.status.state == "ready")
        assert await call(connection, "b") == OK["result"]


@pytest.mark.parametrize("values", ["[],", "1,"], ids=["lists", "numbers"])
async def test_a_line_with_too_many_values_fails_its_call(tmp_path: Path, values: str) -> None:
    """An answer of many tiny values, which would take a hundred times its size, is not decoded."""
    raw = f'{{"jsonrpc": "2.0", "id": ID, "result": {{"structuredContent": {{"a": [{values * 150_000}1]}}}}}}'
    text = {"result": {"content": [{"type": "text", "text": "[1,2]" * 100_000}]}}
    tools = [tool_definition("many"), tool_definition("text")]
    async with connected(scripted(tmp_path, tools, {"many": {"raw": raw}, "text": text})) as (connection, _):
        with pytest.raises(CallFailed, match="100000 values") as raised:
            await call(connection, "many")
        assert raised.value.kind == "lost"
        assert await call(connection, "text") == text["result"]
        assert connection.history.connects == 1


async def test_the_words_of_an_error_are_cut(tmp_path: Path) -> None:
    """Of an error's message at most 4,096 characters leave the process."""
    error = {"code": 1, "message": "x" * (9 << 20)}
    async with connected(scripted(tmp_path, [tool_definition("a")], {"a": {"error": error}})) as (link, _):
        with pytest.raises(CallFailed) as raised:
            await call(link, "a")
        assert raised.value.error is not None
        assert len(raised.value.words) == len(raised.value.error["message"]) == 4096


@pytest.mark.parametrize("listed", [{"tools": 3}, {}, {"tools": "x"}], ids=["number", "nothing", "text"])
async def test_a_list_that_is_none_is_told(tmp_path: Path, listed: dict[str, Any]) -> None:
    """If the list of tools is invalid, the server is not connected, and its status says why."""
    async with connected(scripted(tmp_path, [], listed=listed or {"other": 1})) as (connection, _):
        assert connection.status.state == "reconnecting"
        assert "list of tools" in connection.status.reason


async def test_a_command_that_is_not_there_is_told() -> None:
    """If a server's command does not exist, the status names it."""
    async with connected(Server("none", command="/nowhere/to/be/found")) as (connection, _):
        assert "/nowhere/to/be/found" in connection.status.reason


async def test_a_server_gets_only_what_it_may_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server gets its configured variables, but not the API keys in the proxy's environment."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-of-the-operator")
    out = tmp_path / "environ"
    server = Server(
        "env",
        command="/bin/sh",
        args=("-c", f"env > {out}; cat > /dev/null"),
        env={"TOKEN": "its own"},
    )
    async with connected(server, connect_timeout_s=0.5):
        await until(lambda: out.exists() and "PATH" in out.read_text())
    said = out.read_text()
    assert "sk-secret-of-the-operator" not in said
    assert "TOKEN=its own" in said
