"""Decisions about approvals whose edited arguments no tool or record can hold, from each who may decide."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from approvals_rig import BUY, config_of, turns_of
from client_keys import ALICE, BOB, bearer, declared
from probe_tools import WATCH
from raw_upstream import RawUpstream
from running_proxy import Proxy, running

from proxy.records.approvals import Approval, ApprovalFilter

ADMIN, CLIENT = bearer(ALICE), bearer(BOB)
KEYS = {"root": declared(ALICE, admin=True), "alice": declared(BOB)}
APPROVE = "toolrelay__approve"
ODD = {
    "an integer of 400 digits": '{"what":%s}' % ("9" * 400),
    "an integer of 5000 digits": '{"what":%s}' % ("9" * 5000),
    "a number too large": '{"what":1e999}',
    "an extra number too large": '{"what":"milk","extra":1e999}',
    "an extra integer of 400 digits": '{"what":"milk","extra":%s}' % ("9" * 400),
    "no number": '{"what":NaN}',
    "half a character": '{"what":"milk \\ud800"}',
    "half a character in a name": '{"what":"milk","\\udfff":1}',
    "a name twice": '{"what":"milk","what":"gold"}',
    "very deep": '{"what":' + "[" * 5000 + "]" * 5000 + "}",
}


@asynccontextmanager
async def asking(tmp_path: Path) -> AsyncIterator[tuple[Proxy, Any]]:
    """Run a proxy with ``approvals.edit`` whose model has asked to buy milk; yield also the conversation."""
    WATCH.reset()
    body: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": "Buy."}],
        "tools": [{"type": "function", "function": {"name": APPROVE, "parameters": {"type": "object"}}}],
    }
    async with (
        RawUpstream(*turns_of("chat", stream=False)) as upstream,
        running(config_of(upstream.url, tmp_path, keys=KEYS, approvals={"edit": True})) as proxy,
    ):
        await proxy.ask(body, CLIENT)
        yield proxy, body


async def row_of(proxy: Proxy) -> Approval:
    """Return the only approval on record."""
    log: Any = proxy.services.store
    (row,) = await log.list_approvals(ApprovalFilter())
    assert isinstance(row, Approval)
    return row


def answer_in_conversation(row: Approval, said: str) -> list[dict[str, Any]]:
    """Return the call that asked a client for a decision, and the client's answer."""
    asked = {"approval_id": row.id, "tool": BUY, "arguments": {"what": "milk"}}
    function = {"name": APPROVE, "arguments": json.dumps(asked)}
    call = {"id": f"call_{row.id}", "type": "function", "function": function}
    return [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": said},
    ]


@pytest.mark.parametrize("arguments", ODD.values(), ids=ODD)
async def test_an_administrator_is_told_what_is_wrong(arguments: str, tmp_path: Path) -> None:
    """The admin API answers 400, and the call still waits and can be approved."""
    async with asking(tmp_path) as (proxy, _):
        path = f"/admin/approvals/{(await row_of(proxy)).id}"
        said = b'{"approve":true,"arguments":%s}' % arguments.encode()
        answer = await proxy.ask(said, ADMIN, path=path)
        assert answer.status == 400, answer.body
        assert (await row_of(proxy)).status == "pending"
        assert (await proxy.ask({"approve": True}, ADMIN, path=path)).status == 200


@pytest.mark.parametrize(
    "said", ['{"\\ud800":1}', '{"approve":true,"grant":{"for":"1h","\\udfff":1}}'], ids=["field", "grant"]
)
async def test_a_name_that_no_error_can_show_is_refused(said: str, tmp_path: Path) -> None:
    """A field whose name has half a character gets an answer of 400, from either side."""
    async with asking(tmp_path) as (proxy, body):
        row = await row_of(proxy)
        answer = await proxy.ask(said.encode(), ADMIN, path=f"/admin/approvals/{row.id}")
        assert (answer.status, answer.json["error"]["code"]) == (400, "invalid_json")
        body["messages"] += answer_in_conversation(row, said)
        assert (await proxy.ask(body, CLIENT)).status == 200
        assert (await row_of(proxy)).status == "denied"
    assert WATCH.started == []


@pytest.mark.parametrize("arguments", ODD.values(), ids=ODD)
async def test_a_client_is_told_what_is_wrong(arguments: str, tmp_path: Path) -> None:
    """An answer within the conversation is a 400 or a refusal, and the tool does not run."""
    async with asking(tmp_path) as (proxy, body):
        said = f'{{"approve":true,"arguments":{arguments}}}'
        body["messages"] += answer_in_conversation(await row_of(proxy), said)
        answer = await proxy.ask(body, CLIENT)
        assert answer.status in (200, 400), answer.body
        assert (await row_of(proxy)).status == ("pending" if answer.status == 400 else "denied")
    assert WATCH.started == []
