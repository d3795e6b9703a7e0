"""Agents whose own calls need approvals, with clients of other dialects than Chat."""

import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from agents_rig import RESEARCHER, Asked, Models, Turn, agents
from approvals_rig import BUY
from openai import AsyncOpenAI
from probe_tools import Watch
from raw_upstream import RawUpstream
from running_proxy import Proxy, make_config, running

APPROVE = "toolrelay__approve"
TEAM: Any = {
    "type": "mcp",
    "server_label": "team",
    "server_url": "toolrelay/agent",
    "require_approval": "never",
}


def boss(asked: Asked) -> Turn:
    """Give one task to the agent, and repeat its report."""
    return Turn(asked.results[-1]) if asked.results else Turn(calls=[(RESEARCHER, {"task": "Shop."})])


def small(asked: Asked) -> Turn:
    """Buy milk, then eggs, and report the results."""
    done = len(asked.results)
    if done < 2:
        return Turn(calls=[(BUY, {"what": ("milk", "eggs")[done]})])
    return Turn("Report: " + ", ".join(asked.results))


@asynccontextmanager
async def served(tmp_path: Path) -> AsyncIterator[tuple[Proxy, Models]]:
    """A proxy with one agent before models that speak Chat alone."""
    models = Models({"boss": boss, "small": small})
    async with (
        RawUpstream(models) as upstream,
        running(
            make_config(
                {"base_url": upstream.url, "wires": ("chat",)},
                allow=("probe_tools__*", "agent__*"),
                modules=("probe_tools",),
                policy={"approve": (BUY,)},
                approvals={},
                agents=agents(),
                store={"url": f"sqlite:///{tmp_path / 'r.db'}"},
            )
        ) as proxy,
    ):
        yield proxy, models


async def respond(client: AsyncOpenAI, stream: bool, **asked: Any) -> Any:
    """One response, whole or assembled from its events."""
    if not stream:
        return await client.responses.create(model="boss", **asked)
    async with client.responses.stream(model="boss", **asked) as events:
        async for _ in events:
            pass
        return await events.get_final_response()


@pytest.mark.parametrize("by_id", [True, False], ids=["previous", "resent"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_responses_asks_by_items_under_the_label_of_the_agent(
    watch: Watch, tmp_path: Path, stream: bool, by_id: bool
) -> None:
    """Each question is an item that names the tool; the agent's call is an item once the agent has ended."""
    async with (
        served(tmp_path) as (proxy, models),
        AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="x", max_retries=0) as client,
    ):
        history: list[Any] = [{"role": "user", "content": "Shop."}]
        answer = await respond(client, stream, input=history, tools=[TEAM])
        for what in ("milk", "eggs"):
            (asked,) = [item for item in answer.output if item.type == "mcp_approval_request"]
            assert (asked.server_label, asked.name) == ("team", BUY)
            assert json.loads(asked.arguments) == {"what": what}
            yes: Any = {"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": True}
            if by_id:
                previous = answer.id
                answer = await respond(
                    client, stream, input=[yes], previous_response_id=previous, tools=[TEAM]
                )
            else:
                history += [item.model_dump(exclude_none=True) for item in answer.output] + [yes]
                answer = await respond(client, stream, input=history, tools=[TEAM])
        assert answer.output_text.startswith("Report: ")
        ran = [item for item in answer.output if item.type == "mcp_call"]
        assert [(one.name, one.approval_request_id, one.status) for one in ran] == [
            ("researcher", asked.id, "completed")
        ]
        assert watch.finished == ["buy", "buy"]
        said = models.asked["boss"][-1].body["messages"]
        assert [one["role"] for one in said] == ["user", "assistant", "tool"]
        if by_id:
            previous, more = answer.id, [{"role": "user", "content": "Thanks."}]
            await respond(client, stream, input=more, previous_response_id=previous, tools=[TEAM])
        else:
            history += [item.model_dump(exclude_none=True) for item in answer.output]
            history.append({"role": "user", "content": "Thanks."})
            await respond(client, stream, input=history, tools=[TEAM])
        assert watch.finished == ["buy", "buy"]
        assert len(models.asked["small"]) == 3
        assert "appr_" not in "".join(one.text for each in models.asked.values() for one in each)


async def test_nothing_is_stored_for_a_client_that_wants_that(watch: Watch, tmp_path: Path) -> None:
    """With store=false the turns of the client and of the agent are only in memory, and the agent goes on."""
    async with (
        served(tmp_path) as (proxy, _),
        AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="x", max_retries=0) as client,
    ):
        history: list[Any] = [{"role": "user", "content": "Shop."}]
        for _ in range(3):
            answer = await respond(client, False, input=history, tools=[TEAM], store=False)
            history += [item.model_dump(exclude_none=True) for item in answer.output]
            history += [
                {"type": "mcp_approval_response", "approval_request_id": item.id, "approve": True}
                for item in answer.output
                if item.type == "mcp_approval_request"
            ]
        assert answer.output_text.startswith("Report: ")
        with contextlib.closing(sqlite3.connect(tmp_path / "r.db")) as db:
            assert db.execute("SELECT count(*) FROM approvals").fetchone() == (2,)
            for table in ("suspended_turns", "responses", "messages"):
                assert db.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table
    assert watch.finished == ["buy", "buy"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("wire", ["anthropic", "ollama"])
async def test_other_dialects_ask_by_calls(watch: Watch, tmp_path: Path, wire: str, stream: bool) -> None:
    """The client gets both questions in the form of its dialect, and the report after its second answer."""
    async with (
        served(tmp_path) as (proxy, models),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{proxy.port}") as http,
    ):
        path, more = "/v1/messages", {"max_tokens": 100}
        tool: Any = {"name": APPROVE, "description": "", "input_schema": {"type": "object"}}
        if wire == "ollama":
            path, more = "/api/chat", {}
            tool = {
                "type": "function",
                "function": {"name": APPROVE, "parameters": {"type": "object", "properties": {}}},
            }
        conversation: list[Any] = [{"role": "user", "content": "Shop."}]
        asked = {"model": "boss", "messages": conversation, "tools": [tool], "stream": stream, **more}
        for what in ("milk", "eggs"):
            answer = await http.post(path, json=asked)
            assert answer.status_code == 200, answer.text
            message, question, reply = _question(wire, answer.text, stream)
            assert question["arguments"] == {"what": what}
            conversation += [message, reply]
        answer = await http.post(path, json=asked)
        assert "Report: " in answer.text, answer.text
        assert watch.finished == ["buy", "buy"]
        assert [one["role"] for one in models.asked["boss"][-1].body["messages"]] == [
            "user",
            "assistant",
            "tool",
        ]


def _question(wire: str, answer: str, stream: bool) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The message of an answer, the question in it, and the client's answer to that."""
    yes = '{"approve": true}'
    if wire == "ollama":
        lines = [json.loads(line) for line in answer.splitlines()]
        (call,) = [call for line in lines for call in line["message"].get("tool_calls", ())]
        message = {"role": "assistant", "content": "", "tool_calls": [call]}
        reply = {"role": "tool", "tool_name": APPROVE, "content": yes}
        return message, call["function"]["arguments"], reply
    if stream:
        events = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: ")]
        (block,) = [one["content_block"] for one in events if one["type"] == "content_block_start"]
        pieces = [one["delta"]["partial_json"] for one in events if one["type"] == "content_block_delta"]
        block = {**block, "input": json.loads("".join(pieces))}
    else:
        (block,) = json.loads(answer)["content"]
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": yes}
    return {"role": "assistant", "content": [block]}, block["input"], {"role": "user", "content": [result]}
