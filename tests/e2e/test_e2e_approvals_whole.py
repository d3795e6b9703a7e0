"""Whoever approves a call sees all of its arguments, or is told where to read and approve them."""

import json
from pathlib import Path
from typing import Any

import chat_script
import httpx
import pytest
import responses_script
from approvals_rig import BUY, ID, SHOP, config_of, say
from client_keys import bearer, declared
from openai import AsyncOpenAI
from probe_tools import WATCH
from raw_upstream import RawUpstream, Script
from running_proxy import Proxy, running
from ui_rig import ADMIN

from proxy.records.approvals import MOST_IN_TEXT

WHAT = "milk `for` <!-- " + "very " * 200 + "\u202e\u200b\u00a0\x7f\x9b money --> in all 9,000 EUR"
"""More than a row of the record shows, with characters that hide text, and with the price at the end."""
LONG = "x" * MOST_IN_TEXT + " 9,000 EUR"
APPROVE = "toolrelay__approve"
DECLARED: Any = {
    "type": "function",
    "function": {"name": APPROVE, "parameters": {"type": "object", "properties": {}}},
}


def turns(wire: str, what: str) -> list[Script]:
    """A model that buys something, and then says so."""
    written = json.dumps({"what": what})
    if wire == "responses":
        call = responses_script.function_call("call_b", BUY, written)
        return [
            responses_script.reply(call, id="resp_1"),
            responses_script.reply(responses_script.message("Bought.", id="msg_2"), id="resp_2"),
        ]
    return [chat_script.reply(None, ("call_b", BUY, written)), chat_script.reply("Bought.")]


def client_of(proxy: Proxy) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="x", max_retries=0)


def written_in(notice: str) -> Any:
    """The arguments in the code span of a notice, parsed."""
    assert notice.isascii()
    assert notice.isprintable() or "\n" in notice
    return json.loads(notice.partition(" with `")[2].partition("`")[0])


async def test_a_text_shows_every_argument(tmp_path: Path) -> None:
    """The text has all arguments in one code span of ASCII, which no argument can end."""
    WATCH.reset()
    async with (
        RawUpstream(*turns("chat", WHAT)) as upstream,
        running(config_of(upstream.url, tmp_path)) as proxy,
        client_of(proxy) as client,
    ):
        conversation: list[Any] = [{"role": "user", "content": "Buy milk."}]
        notice = await say(client, "chat", conversation, stream=False)
        assert written_in(notice) == {"what": WHAT}
        assert "\\u202e\\u200b\\u00a0\\u007f\\u009b" in notice
        header = {"x-toolrelay-approve": ID.findall(notice)[0]}
        conversation.append({"role": "user", "content": "Yes."})
        assert await say(client, "chat", conversation, stream=False, extra_headers=header) == "Bought."
        assert WATCH.finished == ["buy"]


async def test_what_a_text_does_not_show_is_not_approved_by_its_header(tmp_path: Path) -> None:
    """The text about very long arguments says where to read them, and a header can only refuse the call."""
    WATCH.reset()
    keys = {"boss": declared(ADMIN, admin=True)}
    async with (
        RawUpstream(*turns("chat", LONG)) as upstream,
        running(
            config_of(upstream.url, tmp_path, policy={"max_argument_bytes": 1 << 16}, auth={}, keys=keys)
        ) as proxy,
    ):
        body: Any = {"model": "m", "messages": [{"role": "user", "content": "Buy milk."}]}
        me = bearer(ADMIN)
        notice = (await proxy.ask(body, me)).json["choices"][0]["message"]["content"]
        (one,) = set(ID.findall(notice))
        assert f"toolrelay approvals show {one}" in notice
        assert "x-toolrelay-approve" not in notice
        answer = await proxy.ask(body, {**me, "x-toolrelay-approve": one})
        assert (answer.status, answer.json["error"]["code"]) == (403, "approval_not_allowed")
        assert f"/admin/approvals/{one}" in answer.json["error"]["message"]
        listed = (await proxy.get("/admin/approvals", me)).json["data"][0]
        assert (listed["status"], listed["arguments_cut"]) == ("pending", True)
        path = f"/admin/approvals/{one}"
        shown = (await proxy.ask(None, me, method="GET", path=path)).json
        assert (shown["arguments"], shown["arguments_cut"]) == ({"what": LONG}, False)
        denied = await proxy.ask(body, {**me, "x-toolrelay-approve": f"{one};deny"})
        assert denied.status == 200
        assert WATCH.started == []


@pytest.mark.parametrize("what", [WHAT, LONG], ids=["hidden", "long"])
async def test_an_item_shows_every_argument(what: str, tmp_path: Path) -> None:
    """An item asks with all arguments, as JSON in which each character that hides is an escape."""
    WATCH.reset()
    config = {"policy": {"max_argument_bytes": 1 << 16}}
    async with (
        RawUpstream(*turns("responses", what)) as upstream,
        running(config_of(upstream.url, tmp_path, **config)) as proxy,
        client_of(proxy) as client,
    ):
        first: Any = await client.responses.create(model="m", input="Buy milk.", tools=[SHOP])
        (asked,) = [item for item in first.output if item.type == "mcp_approval_request"]
        assert json.loads(asked.arguments) == {"what": what}
        assert asked.arguments.isascii()
        assert asked.arguments.isprintable()
        said: Any = {"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": True}
        await client.responses.create(model="m", input=[said], previous_response_id=first.id, tools=[SHOP])
        assert WATCH.finished == ["buy"]


@pytest.mark.parametrize("what", [WHAT, LONG], ids=["hidden", "long"])
@pytest.mark.parametrize("wire", ["chat", "anthropic", "ollama"])
async def test_a_call_shows_every_argument(wire: str, what: str, tmp_path: Path) -> None:
    """The call of the approval function has all arguments in each dialect, and a summary in plain ASCII."""
    WATCH.reset()
    config = {"policy": {"max_argument_bytes": 1 << 16}}
    path, more, tool = {
        "chat": ("/v1/chat/completions", {}, DECLARED),
        "anthropic": (
            "/v1/messages",
            {"max_tokens": 9},
            {"name": APPROVE, "input_schema": {"type": "object"}},
        ),
        "ollama": ("/api/chat", {}, DECLARED),
    }[wire]
    async with (
        RawUpstream(*turns("chat", what)) as upstream,
        running(config_of(upstream.url, tmp_path, **config)) as proxy,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{proxy.port}") as http,
    ):
        asked = {"model": "m", "messages": [{"role": "user", "content": "Buy."}], "tools": [tool]}
        answer = (await http.post(path, json={**asked, "stream": False, **more})).json()
        if wire == "anthropic":
            (said,) = [block["input"] for block in answer["content"] if block["type"] == "tool_use"]
        else:
            message = answer["message"] if wire == "ollama" else answer["choices"][0]["message"]
            said = message["tool_calls"][0]["function"]["arguments"]
            said = json.loads(said) if isinstance(said, str) else said
        assert said["arguments"] == {"what": what}
        assert said["summary"].isascii()
        assert said["summary"].isprintable()
        if what == WHAT:
            assert written_in(said["summary"]) == {"what": what}
