"""Progress of calls: an MCP server's notifications reach clients that asked for them, and nobody else."""

import json
from pathlib import Path
from typing import Any

from chat_script import DONE, call, content, finish, role
from mcp_client import HANDSHAKE, MODERN, events, headers_of, message
from mcp_proxy import mcp_proxy
from mcp_script import scripted, tool_definition
from mcp_types.methods import parse_server_notification
from raw_upstream import RawRequest, Step, chunked
from running_proxy import Proxy
from waiting import LATE_S

OK = {"result": {"content": [{"type": "text", "text": "fine"}]}}
STEPS = [[1, 4, "one of four: PRIVATE\u202e"], ["2", 4, "no number"], [0.5, 4, "falls"]]
KEPT: dict[str, Any] = {
    "tools": {"keepalive_s": LATE_S, "trace_max": "events"},
    "policy": {"after_untrusted": "allow"},
}


def model(request: RawRequest) -> list[Step]:
    """A model that streams, calls the tool, and then sends the tool's result as text."""
    results = [one["content"] for one in json.loads(request.body)["messages"] if one["role"] == "tool"]
    if results:
        return chunked(role(), content(str(results[0])), finish(), DONE)
    return chunked(role(), call("c1", "mcp__toy__a", "{}"), finish("tool_calls"), DONE)


def close(gate: Path) -> None:
    """Make the tool wait."""
    gate.unlink(missing_ok=True)


def pass_gate(gate: Path) -> None:
    """Let the tool go on."""
    gate.touch()


async def streamed(proxy: Proxy, path: str, body: dict[str, Any], gate: Path) -> str:
    """Read a whole answer with the trace of events; let the tool go on once its progress has arrived."""
    close(gate)
    headers = {"x-toolrelay-trace": "events"}
    async with proxy.sent(body, headers, path=path) as conversation:
        head = await conversation.head()
        read = b""
        async for piece in conversation.pieces(head):
            read += piece
            if b"tool_progress" in read:
                pass_gate(gate)
        assert head.clean
        return read.decode()


async def test_progress_is_in_the_trace_of_events(tmp_path: Path) -> None:
    """In each dialect that shows a call before it is over, the trace of events has the progress as numbers.
    The tool's message is not in it: it is part of the output, which redaction hides."""
    gate = tmp_path / "gate"
    tool = {"progress": STEPS, "until": str(gate), **OK}
    server = scripted(tmp_path, [tool_definition("a")], {"a": tool})
    asked = {"model": "m", "messages": [{"role": "user", "content": "go"}], "stream": True}
    bodies = {
        "/v1/chat/completions": asked,
        "/v1/messages": {**asked, "max_tokens": 100},
        "/api/chat": asked,
    }
    async with mcp_proxy(server, model=model, **KEPT) as (proxy, _, _):
        for path, body in bodies.items():
            text = await streamed(proxy, path, body, gate)
            (told,) = [
                json.loads(line[line.index("{") :])["x_toolrelay"]
                for line in text.splitlines()
                if "tool_progress" in line
            ]
            assert (told["name"], told["progress"], told["total"]) == ("mcp__toy__a", 1, 4)
            assert "PRIVATE" not in text
            assert "fine" in text
        pass_gate(gate)
        quiet = await proxy.ask(asked, {"x-toolrelay-trace": "status"})
        assert quiet.status == 200
        assert b"tool_progress" not in quiet.body


async def test_a_client_of_mcp_is_told_of_progress_if_it_asks(tmp_path: Path) -> None:
    """A client with a progress token gets numbers that rise and the message without invisible characters."""
    gate = tmp_path / "gate"
    tool = {"progress": STEPS, "until": str(gate), **OK}
    server = scripted(tmp_path, [tool_definition("a")], {"a": tool})
    async with mcp_proxy(server, mcp={"serve": True}, **KEPT) as (proxy, _, _):
        for version in (HANDSHAKE, MODERN):
            close(gate)
            params = {"name": "mcp__toy__a", "_meta": {"progressToken": "mine"}}
            body = message("tools/call", params, version=version)
            async with proxy.sent(body, headers_of(body, version), path="/mcp") as conversation:
                head = await conversation.head()
                read = b""
                async for piece in conversation.pieces(head):
                    read += piece
                    pass_gate(gate)
            assert head.clean
            told, answer = events(read)
            parse_server_notification("notifications/progress", version, told["params"])
            said = {"progressToken": "mine", "progress": 1, "total": 4, "message": "one of four: PRIVATE"}
            assert told["params"] == said
            assert answer["result"]["content"][0]["text"] == "fine"
        body = message("tools/call", {"name": "mcp__toy__a"})
        whole = await proxy.ask(body, headers_of(body), path="/mcp")
        assert whole.header("content-type") == "application/json"
