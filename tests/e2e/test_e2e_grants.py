"""A person grants later calls for a time, or within one conversation."""

import json
from pathlib import Path
from typing import Any

import chat_script
import httpx
import pytest
import responses_script
from approvals_rig import BUY, ID, config_of, say
from openai import AsyncOpenAI, BadRequestError, PermissionDeniedError
from probe_tools import WATCH
from raw_upstream import RawUpstream
from running_proxy import Proxy, running

from proxy.config.secret import Secret
from proxy.store.base import RunFilter

APPROVE = "toolrelay__approve"
ADMIN = {"authorization": "Bearer sk-admin-0123456789abcdef0123456789abcdef"}


def client_of(proxy: Proxy, key: str = "unused") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key=key, max_retries=0)


def keys() -> dict[str, Any]:
    """An administrator and two callers."""
    secret = Secret("env:ADMIN", ADMIN["authorization"].removeprefix("Bearer "))
    app, other = Secret("env:APP", "unused"), Secret("env:OTHER", "another-key")
    return {"boss": {"secret": secret, "admin": True}, "app": {"secret": app}, "other": {"secret": other}}


def buys(wire: str, number: int) -> Any:
    """A model's turn that buys something."""
    what = json.dumps({"what": f"milk {number}"})
    if wire == "chat":
        return chat_script.reply(None, (f"call_{number}", BUY, what))
    return responses_script.reply(
        responses_script.function_call(f"call_{number}", BUY, what), id=f"resp_{number}"
    )


def says(wire: str, number: int) -> Any:
    if wire == "chat":
        return chat_script.reply(f"Done {number}.")
    return responses_script.reply(
        responses_script.message(f"Done {number}.", id=f"msg_{number}"), id=f"resp_s{number}"
    )


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def decisions(proxy: Proxy) -> list[str]:
    """Return the recorded decision about each call that ran, oldest first."""
    found = []
    for run in reversed(await proxy.services.store.list_runs(RunFilter())):
        detail = await proxy.services.store.get_run(run.id)
        assert detail is not None
        found += [one.decision for one in detail.invocations]
    return found


@pytest.mark.parametrize("wire", ["chat", "responses"])
async def test_a_grant_holds_in_the_conversation_that_asked(wire: str, tmp_path: Path) -> None:
    """Later calls of the conversation run unasked; another or a rewritten conversation asks again."""
    WATCH.reset()
    turns = [buys(wire, 1), says(wire, 1), buys(wire, 2), says(wire, 2), buys(wire, 3), says(wire, 3)]
    async with (
        RawUpstream(*turns, buys(wire, 4), buys(wire, 5)) as upstream,
        running(config_of(upstream.url, tmp_path)) as proxy,
        client_of(proxy) as client,
    ):
        conversation: list[Any] = [user("Buy milk.")]
        told = await say(client, wire, conversation, stream=False)
        header = {"x-toolrelay-approve": f"{ID.findall(told)[0]};conversation"}
        conversation.append(user("Always in this conversation."))
        assert await say(client, wire, conversation, stream=False, extra_headers=header) == "Done 1."
        for number in (2, 3):
            conversation.append(user("More."))
            assert await say(client, wire, conversation, stream=False) == f"Done {number}."
        assert WATCH.finished == ["buy"] * 3
        granted = [one for one in await decisions(proxy) if one.startswith("granted by")]
        assert len(granted) == 2
        assert all("(grant_" in one and 'policy.approve has "' in one for one in granted)
        assert "waiting for approval" in await say(client, wire, [user("Buy milk.")], stream=False)
        rewritten = [user("Buy it all."), *conversation[1:], user("More.")]
        assert "waiting for approval" in await say(client, wire, rewritten, stream=False)
        assert WATCH.finished == ["buy"] * 3


async def test_a_grant_holds_behind_a_response(tmp_path: Path) -> None:
    """A grant covers responses that continue the conversation by id, but not a new response."""
    WATCH.reset()
    turns = [buys("responses", 1), says("responses", 1), buys("responses", 2), says("responses", 2)]
    async with (
        RawUpstream(*turns, buys("responses", 3)) as upstream,
        running(config_of(upstream.url, tmp_path)) as proxy,
        client_of(proxy) as client,
    ):
        first = await client.responses.create(model="m", input="Buy milk.")
        header = {"x-toolrelay-approve": f"{ID.findall(first.output_text)[0]};conversation;for=1h"}
        second = await client.responses.create(
            model="m", input="Yes.", previous_response_id=first.id, extra_headers=header
        )
        third = await client.responses.create(model="m", input="More.", previous_response_id=second.id)
        assert (second.output_text, third.output_text) == ("Done 1.", "Done 2.")
        assert WATCH.finished == ["buy", "buy"]
        fourth = await client.responses.create(model="m", input="Buy milk.")
        assert "waiting for approval" in fourth.output_text


async def test_an_answer_within_the_conversation_gives_a_grant(tmp_path: Path) -> None:
    """The answer to the asking call gives a grant with limits; a call beyond the limits asks again."""
    WATCH.reset()
    turns = [buys("chat", 1), says("chat", 1), buys("chat", 2), says("chat", 2)]
    beyond = chat_script.reply(None, ("call_9", BUY, '{"what": "a ship"}'))
    declared: Any = [{"type": "function", "function": {"name": APPROVE}}]
    async with (
        RawUpstream(*turns, beyond) as upstream,
        running(config_of(upstream.url, tmp_path)) as proxy,
        client_of(proxy) as client,
    ):
        conversation: list[Any] = [user("Buy milk.")]

        async def ask() -> Any:
            answer = await client.chat.completions.create(model="m", messages=conversation, tools=declared)
            conversation.append(answer.choices[0].message.model_dump(exclude_none=True))
            return answer.choices[0].message

        (call,) = (await ask()).tool_calls
        limits = {"what": {"pattern": "milk [0-9]"}}
        wrong: dict[str, Any]
        for wrong, words in (
            ({"for": "1 hour"}, "messages[2].grant.for must be a duration"),
            ({}, "messages[2].grant must say how long"),
            ({"for": "1h", "arguments": {"what": {"max": "x"}}}, "messages[2].grant.arguments.what.max"),
            ({"for": "1h", "until": 1}, "messages[2].grant has the unknown field 'until'"),
        ):
            said: Any = {
                "role": "tool",
                "tool_call_id": call.id,
                "content": json.dumps({"approve": True, "grant": wrong}),
            }
            with pytest.raises(BadRequestError) as caught:
                await client.chat.completions.create(
                    model="m", messages=[*conversation, said], tools=declared
                )
            assert words in str(caught.value)
        assert WATCH.started == []
        yes = {"approve": True, "grant": {"for": "1h", "arguments": limits}}
        conversation.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(yes)})
        assert (await ask()).content == "Done 1."
        conversation[:] = [user("Buy more milk.")]
        assert (await ask()).content == "Done 2."
        conversation[:] = [user("Buy a ship.")]
        (call,) = (await ask()).tool_calls
        assert json.loads(call.function.arguments)["arguments"] == {"what": "a ship"}
        assert WATCH.finished == ["buy", "buy"]


async def test_an_administrator_gives_lists_and_revokes_grants(tmp_path: Path) -> None:
    """An administrator's grant covers one caller, is listed with its uses, and ends when revoked."""
    WATCH.reset()
    turns = [buys("chat", 1), says("chat", 1), buys("chat", 2), buys("chat", 3), says("chat", 3)]
    async with (
        RawUpstream(*turns, buys("chat", 4)) as model,
        running(config_of(model.url, tmp_path, keys=keys(), approvals={"by": "admin"})) as proxy,
        client_of(proxy) as client,
        client_of(proxy, "another-key") as other,
    ):
        conversation: list[Any] = [user("Buy milk.")]
        id_ = ID.findall(await say(client, "chat", conversation, stream=False))[0]
        conversation.append(user("Go on."))
        own = {"x-toolrelay-approve": f"{id_};for=1h"}
        with pytest.raises(PermissionDeniedError):
            await say(client, "chat", conversation, stream=False, extra_headers=own)
        path = f"/admin/approvals/{id_}"
        wrongs: list[Any] = [{"for": "40d"}, {"for": "0h"}, {"for": 3600}, {"conversation": "yes"}, [], True]
        for wrong in wrongs:
            answer = await proxy.ask({"approve": True, "grant": wrong}, ADMIN, path=path)
            assert answer.status == 400, wrong
        assert (await proxy.ask({"approve": False, "grant": {"for": "1h"}}, ADMIN, path=path)).status == 400
        yes = {"approve": True, "grant": {"for": "1h", "arguments": {"what": {"max_length": 20}}}}
        for _ in range(2):
            assert (await proxy.ask(yes, ADMIN, path=path)).status == 200
        assert await say(client, "chat", conversation, stream=False) == "Done 1."
        assert "waiting for approval" in await say(other, "chat", [user("Buy.")], stream=False)
        assert await say(client, "chat", [user("Buy more.")], stream=False) == "Done 3."
        assert WATCH.finished == ["buy", "buy"]
        listed = await proxy.get("/admin/approvals/grants?active=true&limit=5", ADMIN)
        (row,) = listed.json["data"]
        assert (row["tool"], row["status"], row["uses"], row["scope"]) == (BUY, "active", 1, "caller")
        assert (row["arguments"], row["made_by"]) == ({"what": {"max_length": 20}}, "key config:boss")
        one = f"/admin/approvals/grants/{row['id']}"
        assert (await proxy.ask(None, method="DELETE", path=one)).status == 401
        assert (await proxy.ask(None, ADMIN, method="POST", path=one)).status == 405
        assert (await proxy.ask(None, ADMIN, method="DELETE", path=f"{one[:-1]}x")).status == 404
        for _ in range(2):
            revoked = await proxy.ask(None, ADMIN, method="DELETE", path=one)
            assert (revoked.status, revoked.json["status"]) == (200, "revoked")
        assert (await proxy.ask(None, ADMIN, method="GET", path=one)).json["revoked_by"] == "key config:boss"
        assert "waiting for approval" in await say(client, "chat", [user("Buy more.")], stream=False)


async def test_a_client_that_drops_the_question_asks_again(tmp_path: Path) -> None:
    """A client that drops the asking turn is asked again; ``x-toolrelay-history: off`` does not matter."""
    WATCH.reset()
    turns = [buys("chat", 1), says("chat", 1), buys("chat", 2), says("chat", 2)]
    async with (
        RawUpstream(*turns, buys("chat", 3)) as upstream,
        running(config_of(upstream.url, tmp_path)) as proxy,
        client_of(proxy) as client,
    ):
        conversation: list[Any] = [user("Buy milk.")]
        id_ = ID.findall(await say(client, "chat", conversation, stream=False))[0]
        conversation.append(user("Yes."))
        header = {"x-toolrelay-approve": f"{id_};conversation"}
        assert await say(client, "chat", conversation, stream=False, extra_headers=header) == "Done 1."
        conversation.append(user("More."))
        off = {"x-toolrelay-history": "off"}
        assert await say(client, "chat", conversation, stream=False, extra_headers=off) == "Done 2."
        short = [*conversation[2:], user("More.")]
        assert "waiting for approval" in await say(client, "chat", short, stream=False)
        assert WATCH.finished == ["buy", "buy"]


async def test_headers_that_are_no_decision_are_refused(tmp_path: Path) -> None:
    """A header that is no valid decision is a 400 that names it; spaces between its parts are allowed."""
    async with RawUpstream() as upstream, running(config_of(upstream.url, tmp_path)) as proxy:
        id_ = "appr_" + "0" * 32
        for words in ("deny;for=1h", "for=", "for=1x", "always", "for=1h;for=2h"):
            wrong = f"{id_};{words}"
            headers = {"x-toolrelay-approve": wrong}
            answer = await proxy.ask({"model": "m", "messages": [user("x")]}, headers)
            assert answer.status == 400, wrong
            assert answer.json["error"]["param"].startswith("x-toolrelay-approve")
        async with httpx.AsyncClient() as client:
            url = f"http://127.0.0.1:{proxy.port}/v1/chat/completions"
            body = {"model": "m", "messages": [user("x")]}
            good = {"x-toolrelay-approve": f"{id_} ; for=1h ; conversation"}
            assert (await client.post(url, json=body, headers=good)).status_code == 404
