"""Sessions that a server over HTTP no longer knows."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import web
from mcp_answers import Refusal, body_of, call, connected, scripted
from mcp_script import tool_definition

from proxy.tools.mcp.host.connection import CallFailed


async def test_a_call_whose_session_the_server_forgot_is_made_in_a_new_one() -> None:
    """A call refused for an unknown session is repeated once in a new session, because it did not run."""
    sessions: set[str] = set()
    runs: list[Any] = []
    forgetful = False

    async def answer(asked: Mapping[str, Any]) -> Mapping[str, Any]:
        if asked["method"] == "tools/list":
            if forgetful:
                sessions.clear()
            return {"result": {"tools": [tool_definition("a")]}}
        runs.append(asked)
        return {"result": {"content": []}}

    async with scripted(answer, sessions) as (server, _), connected(server) as connection:
        assert connection.status.state == "ready", connection.status.reason
        await call(connection, "a")
        sessions.clear()
        assert await call(connection, "a") == {"content": []}
        assert (len(runs), connection.history.connects) == (2, 2)
        sessions.clear()
        forgetful = True
        with pytest.raises(CallFailed) as caught:
            await call(connection, "a")
        assert caught.value.kind == "away"
        assert len(runs) == 2


def _refusal(status: int, words: str, *, own_id: bool = False, events: bool = False) -> Refusal:
    """Return an answer with a JSON-RPC error, with the id of the request or none."""

    def answer(number: int | None) -> web.Response:
        error = {"code": -32000, "message": words}
        told = json.dumps({"jsonrpc": "2.0", "id": number if own_id else None, "error": error})
        if events:
            return body_of(f"data: {told}\n\n", "text/event-stream", status)
        return body_of(told, status=status)

    return answer


LOST: Mapping[str, Refusal] = {
    "400": _refusal(400, "Bad Request: No valid session ID provided"),
    "400 text": lambda number: body_of("Bad Request: unknown Mcp-Session-Id", "text/plain", 400),
    "400 not initialized": _refusal(400, "Bad Request: Server not initialized"),
    "400 with the id": _refusal(400, "Session not found", own_id=True),
    "200": _refusal(200, "Session not found", own_id=True),
    "200 events": _refusal(200, "Session not found", own_id=True, events=True),
    "500": _refusal(500, "Session expired", own_id=True),
}
"""Ways in which servers say that they do not know a session, where the specification wants 404."""


@pytest.mark.parametrize("way", LOST)
async def test_a_session_lost_in_any_way_is_begun_anew_at_once(way: str) -> None:
    """A call whose session the server does not know is made in a new one, however the server says so."""
    sessions: set[str] = set()
    runs: list[Any] = []

    async def answer(asked: Mapping[str, Any]) -> Mapping[str, Any]:
        if asked["method"] == "tools/list":
            return {"result": {"tools": [tool_definition("a")]}}
        runs.append(asked)
        return {"result": {"content": []}}

    async with scripted(answer, sessions, LOST[way]) as (server, _), connected(server) as connection:
        await call(connection, "a")
        sessions.clear()
        assert await call(connection, "a") == {"content": []}
        assert (len(runs), connection.history.connects) == (2, 2)


@pytest.mark.parametrize("status", [200, 400])
async def test_an_error_of_a_tool_about_a_session_ends_none(status: int) -> None:
    """If only one call fails with words about a session, its error is a tool's, and the call is made once."""
    runs: list[Any] = []

    async def answer(asked: Mapping[str, Any]) -> Mapping[str, Any] | web.StreamResponse:
        if asked["method"] == "tools/list":
            return {"result": {"tools": [tool_definition("a")]}}
        runs.append(asked)
        return _refusal(status, "Browser session not found", own_id=True)(asked["id"])

    async with scripted(answer, set()) as (server, _), connected(server) as connection:
        with pytest.raises(CallFailed, match="Browser session") as caught:
            await call(connection, "a")
        assert caught.value.kind == "error"
        assert (len(runs), connection.history.connects) == (1, 1)
