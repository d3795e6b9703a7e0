"""The official ``openai`` package for Node and the Vercel AI SDK ask a person about calls."""

import json
from pathlib import Path
from typing import Any

import pytest
from approvals_rig import BUY, SHOP, config_of, turns_of
from e2e_packages import run_node
from probe_tools import WATCH
from raw_upstream import RawUpstream
from running_proxy import running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]

STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
UNSENT = "Results for OpenAI tool mcp.buy are not sent to the API when store is false"
APPROVE = pytest.mark.parametrize("approve", [True, False], ids=["yes", "no"])


async def asked_of(script: Path, tmp_path: Path, *, stream: bool, **question: Any) -> tuple[Any, list[Any]]:
    """Run a script; return what it found on each API, and the requests that the model got."""
    WATCH.reset()
    chat, responses = (turns_of(wire, stream=stream) for wire in ("chat", "responses"))
    async with (
        RawUpstream(*chat, chat[1], *responses, responses[1]) as upstream,
        running(config_of(upstream.url, tmp_path)) as proxy,
    ):
        url = f"http://127.0.0.1:{proxy.port}/v1"
        found = await run_node(script, {"baseURL": url, "stream": stream, "tool": SHOP, **question})
        assert WATCH.finished == (["buy"] * 2 if question["approve"] else [])
        return found, [json.loads(request.body) for request in upstream.requests]


def check_sent(bodies: list[Any], *, approve: bool, reason: str) -> None:
    """Check that each model was asked three times, and saw the call's result but not the question."""
    assert len(bodies) == 6
    for body in bodies:
        assert "appr_" not in json.dumps(body), body
        assert "mcpr_" not in json.dumps(body), body
    for body in bodies[1:3]:
        (result,) = [message["content"] for message in body["messages"] if message["role"] == "tool"]
        assert ("milk" if approve else "approval_denied") in result
        assert approve or reason in result
    for body in bodies[4:]:
        items = body["input"]
        (result,) = [item["output"] for item in items if item.get("type") == "function_call_output"]
        assert ("milk" if approve else "approval_denied") in result
        assert approve or reason in result


@pytest.mark.accepts("responses-parts", why="the package sends back what it parsed")
@STREAM
@APPROVE
@pytest.mark.parametrize(("store", "by_id"), [(True, True), (True, False), (False, False)])
async def test_the_openai_package(
    scripts: Path, tmp_path: Path, store: bool, by_id: bool, approve: bool, stream: bool
) -> None:
    """``runTools`` answers the asking function, and a loop answers the items of the Responses API."""
    found, bodies = await asked_of(
        scripts / "approvals_openai.mjs", tmp_path, stream=stream, approve=approve, store=store, byId=by_id
    )
    milk = {"what": "milk"}
    assert found == {
        "chat": {"text": "Bought.", "asked": [[BUY, milk]], "next": "Bought."},
        "responses": {"text": "Bought.", "asked": [["shop.buy", milk]], "next": "Bought."},
    }
    check_sent(bodies, approve=approve, reason="We have milk.")


@STREAM
@APPROVE
@pytest.mark.parametrize("store", [True, False], ids=["stored", "store false"])
async def test_the_vercel_sdk(
    scripts: Path, tmp_path: Path, store: bool, approve: bool, stream: bool
) -> None:
    """The AI SDK answers approvals for hosted tools, and for the asking function as its own tool.

    The SDK sends no reason; without storage, it sends the answer without the question.
    """
    found, bodies = await asked_of(
        scripts / "approvals_ai.mjs", tmp_path, stream=stream, approve=approve, store=store
    )
    assert found["faults"] == []
    chat, responses = found["chat"], found["responses"]
    assert [(name, asked["tool"], asked["arguments"]) for name, asked in chat.pop("asked")] == [
        ("toolrelay__approve", BUY, {"what": "milk"})
    ]
    assert chat == {"text": "Bought.", "next": "Bought.", "warnings": [], "ran": []}
    # The SDK gives the call that ran an id of its own.
    assert responses.pop("ran") == ([["mcp.buy", '{"what":"milk"}', None]] if approve else [])
    unsent = [one["message"] for one in responses.pop("warnings")]
    assert unsent == ([UNSENT] if approve and not store else [])
    assert responses == {
        "text": "Bought.",
        "next": "Bought.",
        "asked": [["mcp.buy", {"what": "milk"}]],
    }
    check_sent(bodies, approve=approve, reason="A person refused this call")
