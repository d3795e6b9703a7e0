"""People decide about calls, and the official ``openai`` package continues the conversation."""

import asyncio
import json
from pathlib import Path
from typing import Any

import chat_script
import pytest
from approvals_rig import BUY, ID, config_of, say, turns_of
from openai import AsyncOpenAI
from probe_tools import WATCH
from raw_upstream import RawUpstream
from running_proxy import Proxy, running

from proxy.config.secret import Secret
from proxy.records.approvals import ApprovalFilter


def client_of(proxy: Proxy) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="unused", max_retries=0)


@pytest.mark.parametrize("more", [False, True], ids=["alone", "beside"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("wire", ["chat", "responses"])
async def test_an_approved_call_runs_once(wire: str, stream: bool, more: bool, tmp_path: Path) -> None:
    """The answer asks for an approval in text; the call runs once, after the client has approved it."""
    WATCH.reset()
    async with (
        RawUpstream(*turns_of(wire, stream=stream, more=more)) as upstream,
        running(config_of(upstream.url, tmp_path)) as proxy,
        client_of(proxy) as client,
    ):
        first = "input" if wire == "responses" else "messages"
        conversation: list[Any] = [{"role": "user", "content": "Buy milk."}]
        told = await say(client, wire, conversation, stream=stream)
        (approval_id,) = ID.findall(told)[:1]
        assert BUY in told
        assert '{"what":"milk"}' in told
        conversation.append({"role": "user", "content": "Well?"})
        again = await say(client, wire, conversation, stream=stream)
        assert approval_id in again
        assert "still waiting" in again
        assert len(upstream.requests) == 1
        assert "buy" not in WATCH.started
        conversation.append({"role": "user", "content": "I approve."})
        header = {"x-toolrelay-approve": approval_id}
        assert await say(client, wire, conversation, stream=stream, extra_headers=header) == "Bought."
        assert WATCH.finished == ["buy"]
        sent = json.loads(upstream.requests[-1].body)[first]
        results = [one for one in sent if one.get("role") == "tool" or "output" in one]
        assert len(results) == 1 + more
        assert "milk" in str(results[-1])
        assert "toolrelay-waits-for" not in str(sent)
        assert conversation[-2]["content"] == "I approve."
        log: Any = proxy.services.store
        (row,) = await log.list_approvals(ApprovalFilter())
        assert (row.status, row.decided_via, row.tool) == ("used", "header", BUY)
        run = await proxy.services.store.get_run(row.run_id)
        assert run is not None
        called = [one for one in run.invocations if one.tool == BUY]
        assert [one.status for one in called] == ["success"]
        assert approval_id in called[0].decision


ADMIN = {"authorization": "Bearer sk-admin-0123456789abcdef0123456789abcdef"}


async def asked(proxy: Proxy, conversation: list[Any]) -> str:
    """Have a model call the tool; return the id of the waiting approval."""
    async with client_of(proxy) as client:
        return str(ID.findall(await say(client, "chat", conversation, stream=False))[0])


def keys() -> dict[str, Any]:
    """Keys of an administrator and of a client."""
    secret = Secret("env:ADMIN", ADMIN["authorization"].removeprefix("Bearer "))
    caller = Secret("env:CALLER", "unused")
    return {"boss": {"secret": secret, "admin": True}, "app": {"secret": caller}}


async def test_a_refusal_is_read_by_the_model_and_nothing_runs(tmp_path: Path) -> None:
    """The model gets a denial's reason and the call does not run; a later approval is refused."""
    WATCH.reset()
    async with (
        RawUpstream(*turns_of("chat", stream=False)) as upstream,
        running(config_of(upstream.url, tmp_path, keys=keys())) as proxy,
        client_of(proxy) as client,
    ):
        conversation: list[Any] = [{"role": "user", "content": "Buy milk."}]
        approval_id = await asked(proxy, conversation)
        path = f"/admin/approvals/{approval_id}"
        wrongs: list[Any] = [
            {"approve": "true"},
            {"approve": 1},
            {},
            [],
            b'{"approve":false,"approve":true}',
        ]
        for wrong in wrongs:
            assert (await proxy.ask(wrong, ADMIN, path=path)).status == 400
        assert (await proxy.ask({"approve": True}, path=path)).status == 401
        assert (await proxy.ask({"approve": True}, ADMIN, path=path[:-1] + "x")).status == 404
        listed = (await proxy.get("/admin/approvals?waiting=true", ADMIN)).json
        assert [one["id"] for one in listed["data"]] == [approval_id]
        no = {"approve": False, "reason": "We have milk."}
        for _ in range(2):
            answer = await proxy.ask(no, ADMIN, path=path)
            assert (answer.status, answer.json["status"]) == (200, "denied")
        assert (await proxy.ask({"approve": True}, ADMIN, path=path)).status == 409
        conversation.append({"role": "user", "content": "Go on."})
        assert await say(client, "chat", conversation, stream=False) == "Bought."
        assert "We have milk." in upstream.requests[-1].body.decode()
        assert "approval_denied" in upstream.requests[-1].body.decode()
        assert WATCH.started == []


async def test_eight_clicks_run_a_call_once(tmp_path: Path) -> None:
    """If eight requests approve a call at once, it runs once, and all of them get its result."""
    WATCH.reset()
    last = chat_script.reply("Bought.")
    async with (
        RawUpstream(turns_of("chat", stream=False)[0], *[last] * 8) as upstream,
        running(config_of(upstream.url, tmp_path)) as proxy,
        client_of(proxy) as client,
    ):
        conversation: list[Any] = [{"role": "user", "content": "Buy milk."}]
        approval_id = await asked(proxy, conversation)
        conversation.append({"role": "user", "content": "Go on."})
        header = {"x-toolrelay-approve": approval_id}
        said = await asyncio.gather(
            *(say(client, "chat", list(conversation), stream=False, extra_headers=header) for _ in range(8))
        )
        assert said == ["Bought."] * 8
        assert WATCH.finished == ["buy"]
        assert all(b"milk" in request.body for request in upstream.requests[1:])
        told = {json.loads(request.body)["messages"][2]["content"] for request in upstream.requests[1:]}
        assert len(told) == 1
