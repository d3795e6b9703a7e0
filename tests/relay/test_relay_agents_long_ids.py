"""Approvals of calls whose ids are longer than what the record keeps, of a model's own and of an agent's.

LiteLLM puts Gemini's thought signatures into call ids (https://github.com/BerriAI/litellm/pull/16895).
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from agents_rig import AGENT, RESEARCHER
from approvals_rig import BUY, ID, MILK
from chat_script import call, content, finish, reply, role, stream
from probe_tools import WATCH
from raw_upstream import RawRequest, RawUpstream, Step
from running_proxy import make_config, running

from proxy.records.approvals import ApprovalFilter

LONG = "call_1__thought__" + "CiQB+/jz9A0=" * 300


def answered(request: RawRequest) -> Sequence[Step]:
    """Return the answer of a model: one call with a long id, then the result of the call as text."""
    asked = json.loads(request.body)
    results = [said["content"] for said in asked["messages"] if said["role"] == "tool"]
    made = (LONG, RESEARCHER, '{"task":"Buy milk."}') if asked["model"] == "boss" else (LONG, BUY, MILK)
    if not asked.get("stream"):
        return reply(results[0]) if results else reply(None, made)
    if results:
        return stream(role(), content(results[0]), finish())
    return stream(role(), call(*made), finish("tool_calls"))


@pytest.mark.accepts("chat-calls", why="gateways take their own ids back")
@pytest.mark.parametrize("model", ["boss", "small"], ids=["an agent's call", "a model's call"])
async def test_a_call_with_a_long_id_can_be_approved(model: str, tmp_path: Path) -> None:
    """The call waits, runs once after its approval, and its record and approval have a short id."""
    WATCH.reset()
    async with (
        RawUpstream(answered) as upstream,
        running(
            make_config(
                upstream.url,
                allow=("probe_tools__*", "agent__*"),
                modules=("probe_tools",),
                policy={"approve": (BUY,)},
                approvals={},
                agents={"researcher": AGENT},
                store={"url": f"sqlite:///{tmp_path / 'r.db'}"},
            )
        ) as proxy,
    ):
        body: Any = {"model": model, "messages": [{"role": "user", "content": "Buy milk."}]}
        notice = (await proxy.ask(body)).json["choices"][0]["message"]["content"]
        (approval_id,) = set(ID.findall(notice))
        body["messages"] += [
            {"role": "assistant", "content": notice},
            {"role": "user", "content": "Go on."},
        ]
        answer = await proxy.ask(body, {"x-toolrelay-approve": approval_id})
        assert answer.status == 200, answer.body
        assert "milk" in answer.json["choices"][0]["message"]["content"]
        log: Any = proxy.services.store
        (row,) = await log.list_approvals(ApprovalFilter())
        assert (row.tool, row.status) == (BUY, "used")
        assert len(row.call_id) <= 128
        messages = [said for request in upstream.requests for said in json.loads(request.body)["messages"]]
    sent = [one["id"] for said in messages for one in said.get("tool_calls", ())]
    assert set(sent) == {LONG}
    assert WATCH.finished == ["buy"]
