"""Hooks and what outlives one request: approvals, hidden turns, clients that call tools themselves."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from approvals_rig import BUY, ID
from mcp_client import call
from pair_kits import SPEAKERS, Call, Message, Turn
from probe_tools import WATCH
from raw_upstream import RawRequest, RawUpstream, Step
from running_proxy import Proxy, make_config, running

from proxy.records.approvals import Approval, ApprovalFilter

CODE = """
from proxy.hooks import OutcomeChange, Refusal, RequestChange, ToolChange

ASKED = []

class Hooks:
    async def before_tool(self, call):
        ASKED.append(call.arguments)
        if "nothing" in call.arguments:
            return Refusal("Buy something.")
        return ToolChange(call.arguments.replace("milk", "oat milk"))

    async def after_tool(self, outcome):
        return OutcomeChange(outcome.text.replace("hidden", "shown"))

class Masks:
    async def before_request(self, request):
        texts = [one.text.replace("Anna", "[NAME_a]") for one in request.texts]
        return RequestChange(texts=texts, originals={"[NAME_a]": "Anna"})

hooks = [Hooks(), Masks()]
"""


@pytest.fixture(autouse=True)
def _fresh_watch() -> None:
    WATCH.reset()


@pytest.fixture
def hooks(tmp_path: Path) -> dict[str, Any]:
    """The section with the hooks of this module."""
    path = tmp_path / "shopping.py"
    path.write_text(CODE)
    return {"modules": (str(path),)}


async def waiting(proxy: Proxy) -> Sequence[Approval]:
    """Return the approvals that were asked for."""
    log: Any = proxy.services.store
    found: Sequence[Approval] = await log.list_approvals(ApprovalFilter())
    return found


async def test_a_person_approves_what_the_hook_has_left(hooks: dict[str, Any], tmp_path: Path) -> None:
    """The question has the hook's arguments; after the approval exactly these run, without asking again."""
    chat = SPEAKERS["chat"]
    turns = Turn(calls=(Call("call_1", BUY, {"what": "milk"}),)), Turn("Bought.")
    store = {"url": f"sqlite:///{tmp_path / 'r.db'}"}
    policy = {"approve": (BUY,), "allow": ("probe_tools__*",)}
    async with RawUpstream(*(chat.script(turn) for turn in turns)) as server:
        config = make_config(
            server.url, modules=("probe_tools",), hooks=hooks, store=store, policy=policy, approvals={}
        )
        async with running(config) as proxy:
            said = [Message("user", "Buy milk for Anna.")]
            seen = chat.seen(await proxy.ask(chat.ask(said), path=chat.path))
            (approval_id,) = set(ID.findall(seen.text))
            (row,) = await waiting(proxy)
            assert json.loads(row.arguments) == {"what": "oat milk"}
            assert WATCH.started == []
            said += [*seen.returned, Message("user", "Yes, Anna.")]
            headers = {"x-toolrelay-approve": approval_id}
            seen = chat.seen(await proxy.ask(chat.ask(said), headers, path=chat.path))
            assert seen.text == "Bought."
    assert WATCH.started == ["buy"]
    (result,) = chat.got(json.loads(server.requests[-1].body)).results.values()
    assert json.loads(result)["what"] == "oat milk"


async def test_a_call_that_a_hook_refuses_asks_nobody(hooks: dict[str, Any], tmp_path: Path) -> None:
    """The model reads the refusal at once."""
    chat = SPEAKERS["chat"]
    turns = Turn(calls=(Call("call_1", BUY, {"what": "nothing"}),)), Turn("Fine.")
    store = {"url": f"sqlite:///{tmp_path / 'r.db'}"}
    policy = {"approve": (BUY,), "allow": ("probe_tools__*",)}
    async with RawUpstream(*(chat.script(turn) for turn in turns)) as server:
        config = make_config(
            server.url, modules=("probe_tools",), hooks=hooks, store=store, policy=policy, approvals={}
        )
        async with running(config) as proxy:
            assert (
                chat.seen(await proxy.ask(chat.ask([Message("user", "Buy.")]), path=chat.path)).text
                == "Fine."
            )
            assert not await waiting(proxy)
    (result,) = chat.got(json.loads(server.requests[1].body)).results.values()
    assert json.loads(result)["message"] == "Buy something."


@pytest.mark.parametrize("wire", sorted(SPEAKERS))
async def test_hidden_turns_are_found_behind_a_masked_answer(wire: str, hooks: dict[str, Any]) -> None:
    """The client sends the restored answer back; the proxy finds the turn that it masks as before."""
    speaker = SPEAKERS[wire]

    def answer(request: RawRequest) -> list[Step]:
        if len(server.requests) == 1:
            return speaker.script(Turn(calls=(Call("call_1", "probe_tools__echo", {"text": "[NAME_a]"}),)))
        return speaker.script(Turn("It is [NAME_a]."))

    async with (
        RawUpstream(answer) as server,
        running(
            make_config(
                server.url if wire == "chat" else {"base_url": server.url, "wires": (wire,)},
                modules=("probe_tools",),
                hooks=hooks,
            )
        ) as proxy,
    ):
        said = [Message("user", "Is it Anna?")]
        seen = speaker.seen(await proxy.ask(speaker.ask(said), path=speaker.path))
        assert seen.text == "It is Anna."
        said += [*seen.returned, Message("user", "Anna, really?")]
        seen = speaker.seen(await proxy.ask(speaker.ask(said), path=speaker.path))
        assert seen.text == "It is Anna."
    got = speaker.got(json.loads(server.requests[2].body))
    assert [one.arguments for one in got.calls] == [{"text": "[NAME_a]"}]
    (result,) = got.results.values()
    assert "shown-output" in result
    assert b"Anna" not in b"".join(request.body for request in server.requests)


async def test_a_call_over_mcp_goes_through_the_hooks(hooks: dict[str, Any]) -> None:
    """A client that runs a model itself gets what the hooks leave, too."""
    config = make_config("http://127.0.0.1:9", modules=("probe_tools",), hooks=hooks, mcp={"serve": True})
    async with running(config) as proxy:
        result = await call(proxy, "probe_tools__echo", {"text": "milk"})
        assert json.loads(result["content"][0]["text"]) == {"echo": "oat milk", "inside": "shown-output"}
        refused = await call(proxy, "probe_tools__echo", {"text": "nothing"})
        assert "Buy something." in refused["content"][0]["text"]


async def test_a_prompt_without_messages_is_masked_and_restored(hooks: dict[str, Any]) -> None:
    """Ollama's ``/api/generate`` has a prompt in place of a conversation."""
    chat = SPEAKERS["chat"]
    async with (
        RawUpstream(chat.script(Turn("Dear [NAME_a],"))) as server,
        running(make_config(server.url, modules=("probe_tools",), hooks=hooks)) as proxy,
    ):
        answer = await proxy.ask({"model": "m", "prompt": "Write to Anna."}, path="/api/generate")
        assert answer.status == 200, answer.body
        lines = [json.loads(line) for line in answer.body.splitlines()]
        assert "".join(line["response"] for line in lines) == "Dear Anna,"
    assert b"Anna" not in server.requests[0].body


@pytest.mark.parametrize("wire", sorted(SPEAKERS))
async def test_an_upstream_that_fails_is_shown_without_placeholders(wire: str, hooks: dict[str, Any]) -> None:
    """The words of an upstream's refusal are restored like any other text."""
    speaker = SPEAKERS[wire]
    async with RawUpstream(speaker.refused("400 Bad Request", "Not about [NAME_a].")) as server:
        table = {"base_url": server.url, "wires": (wire,), "retries": 0}
        async with running(make_config(table, allow=(), hooks=hooks)) as proxy:
            answer = await proxy.ask(speaker.ask([Message("user", "Anna?")]), path=speaker.path)
            assert (answer.status, speaker.error(answer.json)) == (400, "Not about Anna.")


async def test_a_stream_that_is_resumed_is_restored(hooks: dict[str, Any]) -> None:
    """A client that comes back for its stream gets the same bytes, with the originals."""
    chat = SPEAKERS["chat"]
    async with (
        RawUpstream(chat.script(Turn("Dear [NAME_a], hello."))) as server,
        running(make_config(server.url, modules=("probe_tools",), hooks=hooks)) as proxy,
    ):
        ask = chat.ask([Message("user", "Write to Anna.")])
        first = await proxy.ask(ask, {"x-toolrelay-resume": "on"}, path=chat.path)
        assert chat.seen(first).text == "Dear Anna, hello."
        run_id = first.header("x-toolrelay-run")
        again = await proxy.ask(ask, {"x-toolrelay-resume": str(run_id)}, path=chat.path)
        assert again.body == first.body
    assert len(server.requests) == 1
