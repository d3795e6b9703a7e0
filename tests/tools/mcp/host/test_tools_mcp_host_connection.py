"""The connection to one MCP server: a malformed answer ends only its call; a lost server is restarted."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp_rig import no_token
from mcp_script import calls_of, scripted, tool_definition
from waiting import LATE_S, PATIENCE_S, until

from proxy.tools.mcp.host.connection import CallFailed, Connection
from proxy.tools.mcp.servers import HostSettings, Server

OK = {"result": {"content": [{"type": "text", "text": "fine"}]}}


@asynccontextmanager
async def connected(server: Server, **settings: Any) -> AsyncIterator[tuple[Connection, set[int]]]:
    """Run a connection in this process; also yield the process groups that it reports as running."""
    groups: set[int] = set()

    def on_group(group: int, runs: bool) -> None:
        (groups.add if runs else groups.discard)(group)

    told = HostSettings(servers=(server,), list_every_s=0, **settings)
    connection = Connection(server, told, lambda: None, on_group, no_token)
    task = asyncio.create_task(connection.run())
    try:
        await connection.wait(PATIENCE_S)
        yield connection, groups
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
        {"raw": "no JSON at all"},
        {"raw": '{"jsonrpc": "1.0", "id": ID, "result": {}}'},
        {"raw": '{"jsonrpc": "2.0", "id": ID}'},
        {"raw": '{"jsonrpc": "2.0", "id": ID, "result": 3}'},
        {"raw": '{"jsonrpc": "2.0", "id": ID, "result": {"text": "\\ud800"}}'},
        {"raw": '[{"jsonrpc": "2.0", "id": ID, "result": {}}]'},
        {"raw": '{"jsonrpc": "2.0", "id": ID, "result": ' + '{"a":' * 3000 + "1" + "}" * 3001},
        {"bytes": b"\xff\xfe\x00\n".hex()},
        {"raw": '\ufeff{"jsonrpc": "2.0", "id": ID, "result": {"content": []}}'},
        {"raw": '{"jsonrpc": "2.0", "id": 99999, "result": {"content": []}}'},
        {"raw": '{"jsonrpc": "2.0", "id": "other", "result": {"content": []}}'},
        {"raw": '{"jsonrpc": "2.0", "id": null, "result": {"content": []}}'},
        {"raw": '{"jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": "Parse error"}}'},
    ],
    ids=[
        "cut",
        "text",
        "old",
        "empty",
        "number",
        "surrogate",
        "batch",
        "deep",
        "bytes",
        "bom",
        "unknown id",
        "foreign id",
        "no id",
        "error without id",
    ],
)
async def test_a_line_that_is_no_message_ends_its_call_at_once(
    tmp_path: Path, answer: dict[str, Any]
) -> None:
    """A malformed line fails its call at once, and the next call in the session has its result."""
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
        with pytest.raises(CallFailed) as raised:
            await call(connection, "long")
        assert raised.value.kind == "lost"
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
    """A call that takes longer than its timeout fails with the kind "timeout"."""
    server = scripted(tmp_path, [tool_definition("slow")], {"slow": {"sleep": 0.5}})
    async with connected(server) as (connection, _):
        with pytest.raises(CallFailed) as raised:
            await call(connection, "slow", timeout_s=0.1)
        assert raised.value.kind == "timeout"


async def test_a_flood_of_notifications_does_not_keep_a_result_back(tmp_path: Path) -> None:
    """A call gets its result even if the server sends 20,000 notifications before it."""
    server = scripted(tmp_path, [tool_definition("flood")], {"flood": {"flood": 20_000, **OK}})
    async with connected(server) as (connection, _):
        assert await call(connection, "flood") == OK["result"]


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
