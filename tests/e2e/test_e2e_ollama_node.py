"""Ollama's package for Node: models, its program's tool beside a server tool, thinking and errors."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ollama_script as script
import pytest
from chat_script import call, chunk_of, content, finish, reply, role, stream, usage
from e2e_packages import run_node
from looping import ECHO
from ollama_clients import serving
from raw_upstream import FIN, Step, chunk, head, whole

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]

SAID = {"text": "noon"}
SUM = {"a": 1, "b": 2}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
}
TAGS = {"models": [{"name": "m:latest", "model": "m:latest", "size": 7, "digest": "ab" * 32, "details": {}}]}


def lost(content_type: str, begun: bytes) -> list[Step]:
    """A stream whose connection closes before its end."""
    return [head(f"Content-Type: {content_type}", "Transfer-Encoding: chunked"), chunk(begun), FIN]


SCRIPTS: dict[str, Sequence[Sequence[Step]]] = {
    "chat": (
        whole(b'{"object":"list","data":[{"id":"m"}]}'),
        whole(b'{"object":"list","data":[{"id":"m"}]}'),
        stream(
            role(),
            chunk_of({"reasoning_content": "Two "}),
            chunk_of({"reasoning_content": "calls."}),
            call("call_1", ECHO, json.dumps(SAID)),
            call("call_2", "add", '{"a": 1, ', 1),
            call(None, None, '"b": 2}', 1),
            finish("tool_calls"),
            usage(7, 3),
        ),
        stream(role(), content("It ", "is noon."), finish(), usage(9, 4)),
        reply("Hello.", used=(3, 2), reasoning_content="Greet."),
        lost("text/event-stream", role() + content("It")),
    ),
    "ollama": (
        whole(json.dumps(TAGS).encode()),
        whole(b'{"capabilities":["completion","tools","thinking"]}'),
        script.stream(
            "", script.call(ECHO, SAID), script.call("add", SUM), thinking="Two calls.", eval_count=3
        ),
        script.stream("It is noon.", eval_count=4),
        whole(script.done("stop", "Hello.").replace(b'"content"', b'"thinking":"Greet.","content"')),
        lost(script.LINES, script.said("It")),
    ),
}


@pytest.mark.accepts("chat-members", why="the model's reasoning goes back to it, which OpenAI never sends")
@pytest.mark.parametrize("wire", SCRIPTS)
async def test_a_program_on_an_upstream(scripts: Path, wire: str) -> None:
    """Rules W5, E1: the program sees only its own call, gets the answer, and sees what fails."""
    async with serving(wire, *SCRIPTS[wire]) as (host, upstream):
        question = {"host": host, "model": "m", "tool": TOOL, "lost": 1}
        found = await run_node(scripts / "ollama_client.mjs", question)
        bodies = [request.body for request in upstream.requests]
    assert found["models"] == {"listed": ["m:latest" if wire == "ollama" else "m"], "tools": True}
    first, second = found["loop"]["first"], found["loop"]["second"]
    assert (first["thinking"], first["text"]) == ("Two calls.", "")
    assert [(one["function"]["name"], one["function"]["arguments"]) for one in first["calls"]] == [
        ("add", SUM)
    ]
    assert (first["ends"], first["reason"], first["used"]) == (1, "stop", 3)
    assert (second["text"], second["calls"], second["ends"], second["used"]) == ("It is noon.", [], 1, 4)
    # The model gets its server call and the results back.
    assert ECHO.encode() in bodies[3]
    assert b"noon" in bodies[3]
    assert found["whole"] == {"text": "Hello.", "thinking": "Greet.", "reason": "stop"}
    broken, refused = found["errors"]
    assert "upstream" in broken
    assert "endpoints" in refused
