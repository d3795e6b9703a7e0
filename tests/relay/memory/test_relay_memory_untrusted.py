"""An untrusted result within a run: later turns are not offered the tools that could do harm with it."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import responses_script
from chat_script import reply
from looping import ANSWER, ASK, CLIENT_TOOL, called, looping, messages_of
from probe_tools import Watch
from raw_upstream import RawRequest, RawUpstream, whole
from responding import client_of
from responses_script import function, function_call, message
from running_proxy import make_config, running

from proxy.json.splice import members
from proxy.store.base import RunFilter
from proxy.store.sql.tables.threads import SqlThreads

PAGE = called(("call_p", "probe_tools__page", "{}"))
BUY = called(("call_b", "probe_tools__buy", '{"what":"milk"}'))
HARMFUL = {f"probe_tools__{name}" for name in ("buy", "slow_buy", "paint", "browse")}
BROWSE = "probe_tools__browse"


def names_of(request: RawRequest) -> set[str]:
    """The functions that a request offers to an upstream, in either dialect."""
    return {tool.get("function", tool)["name"] for tool in json.loads(request.body).get("tools", ())}


def part(request: RawRequest, key: str) -> bytes | None:
    """The bytes of one member of a request to an upstream."""
    return members(request.body).get(key)


async def test_later_turns_of_a_run_are_not_shown_what_a_page_could_use(watch: Watch) -> None:
    """Rule T2: after an untrusted result the proxy withholds harmful tools and refuses calls of them."""
    async with looping(PAGE, BUY, ANSWER) as (proxy, upstream):
        await proxy.ask({**ASK, "tools": [CLIENT_TOOL]})
        detail = await proxy.only_run()
    first, second, third = (names_of(request) for request in upstream.requests)
    assert first >= HARMFUL
    assert first - second == HARMFUL
    assert "mine" in second
    assert third == second
    assert part(upstream.requests[2], "tools") == part(upstream.requests[1], "tools")
    assert watch.finished == []
    assert "approval_required" in messages_of(upstream.requests[2])[-1]["content"]
    # The run began with these tools; its record says from which turn on they were withheld, and why.
    assert set(detail.run.offered) == first - {"mine"}
    assert not HARMFUL & set(detail.run.withheld)
    assert [set(turn.withheld) for turn in detail.turns] == [set(), HARMFUL, HARMFUL]
    rule = 'policy.after_untrusted = "approve": the run has read a result of probe_tools__page'
    assert set(detail.turns[1].withheld.values()) == {rule}


async def test_calls_beside_the_page_were_written_before_it_was_read(watch: Watch) -> None:
    """A call in the same turn as the untrusted result runs, since the model wrote it before reading that."""
    both = called(("call_p", "probe_tools__page", "{}"), ("call_b", "probe_tools__buy", '{"what":"milk"}'))
    async with looping(both, ANSWER) as (proxy, upstream):
        await proxy.ask(ASK)
    assert watch.finished == ["buy"]
    assert names_of(upstream.requests[0]) - names_of(upstream.requests[1]) == HARMFUL


async def test_an_operator_may_allow_it(watch: Watch) -> None:
    """With ``after_untrusted = "allow"`` the tools are the same bytes in each turn, and their calls run."""
    async with looping(PAGE, BUY, ANSWER, policy={"after_untrusted": "allow"}) as (proxy, upstream):
        await proxy.ask(ASK)
        detail = await proxy.only_run()
    assert len({part(request, "tools") for request in upstream.requests}) == 1
    assert watch.finished == ["buy"]
    assert [turn.withheld for turn in detail.turns] == [{}, {}, {}]


async def test_a_request_that_goes_on_has_the_tools_of_the_runs_last_turns() -> None:
    """A request that restores a run has the tools of the run's last turns, so that the prompt cache holds."""
    hi, thanks = ASK["messages"][0], {"role": "user", "content": "thanks"}
    asked = {**ASK, "tools": [CLIENT_TOOL], "tool_choice": "required"}
    async with looping(PAGE, ANSWER, ANSWER) as (proxy, upstream):
        await proxy.ask({**asked, "messages": [hi]})
        said = {"role": "assistant", "content": "It is noon."}
        await proxy.ask({**asked, "messages": [hi, said, thanks]})
        newest = (await proxy.runs())[0]
    assert part(upstream.requests[2], "tools") == part(upstream.requests[1], "tools")
    later = messages_of(upstream.requests[2])
    assert later[: len(messages_of(upstream.requests[1]))] == messages_of(upstream.requests[1])
    assert set(newest.withheld) >= HARMFUL
    assert not HARMFUL & set(newest.offered)


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": BROWSE}}])
async def test_without_a_tool_left_nothing_is_said_of_tools(choice: Any) -> None:
    """If all tools are withheld, neither tools nor a choice go upstream, also at the end of a budget."""
    asked = {**ASK, "tool_choice": choice, "parallel_tool_calls": False}
    browse = called(("call_p", BROWSE, '{"url":"https://a.example/"}'))
    async with looping(browse, browse, ANSWER, allow=(BROWSE,), tools={"max_calls": 1}) as (proxy, upstream):
        answer = await proxy.ask(asked)
    assert b"is noon." in answer.body
    assert names_of(upstream.requests[0]) == {BROWSE}
    for request in upstream.requests[1:]:
        assert set(members(request.body)) == {"model", "stream", "messages"}
    refused = messages_of(upstream.requests[2])[-1]["content"]
    assert "budget_exhausted" in refused


@pytest.mark.parametrize(
    ("choice", "left"),
    [
        ({"type": "function", "function": {"name": "probe_tools__buy"}}, "auto"),
        ("auto", "auto"),
        (None, None),
    ],
)
async def test_a_choice_of_what_is_withheld_is_no_choice(choice: Any, left: Any) -> None:
    """A choice that forces a withheld tool becomes ``auto``; other choices stay."""
    asked = ASK if choice is None else {**ASK, "tool_choice": choice}
    async with looping(PAGE, ANSWER) as (proxy, upstream):
        assert (await proxy.ask(asked)).status == 200
    assert json.loads(upstream.requests[1].body).get("tool_choice") == left


# On Responses.


@pytest.mark.parametrize("kept", [True, False], ids=["chained", "stateless"])
async def test_later_turns_on_responses(kept: bool, watch: Watch) -> None:
    """Rule T2: on Responses harmful tools are withheld, too, and the client reads the tools that it sent."""
    page = function_call("call_p", "probe_tools__page")
    buy = function_call("call_b", "probe_tools__buy", '{"what":"milk"}')
    forced = {"type": "function", "name": "probe_tools__buy"}
    asked = {
        "model": "m", "stream": True, "input": "hi", "store": kept,
        "tools": [function("mine")], "tool_choice": forced,
    }  # fmt: skip
    async with client_of(
        responses_script.stream(page, store=kept),
        responses_script.stream(buy, id="resp_2", store=kept),
        responses_script.stream(message("Done."), id="resp_3", store=kept),
        responses_script.stream(message("Bye."), id="resp_4", store=kept),
    ) as client:
        read = await client.said(asked, hidden=('"call_p"', '"call_b"'))
        assert read.response["tools"] == [{**function("mine"), "description": None, "strict": None}]
        assert read.response["tool_choice"] == forced
        requests = client.upstream.requests
        first, second, third = (names_of(request) for request in requests)
        detail = await client.proxy.only_run()
        if kept:
            await client.ask({**asked, "input": "so?", "previous_response_id": read.id})
            # A request that continues the response has the tools with which the run ended.
            assert part(requests[3], "tools") == part(requests[2], "tools")
            assert client.asked(4)["tool_choice"] == "auto"
    assert first - second == HARMFUL
    assert third == second
    assert "mine" in second
    assert part(requests[2], "tools") == part(requests[1], "tools")
    assert client.asked(1)["tool_choice"] == forced
    assert client.asked(2)["tool_choice"] == "auto"
    assert watch.finished == []
    assert "approval_required" in client.asked(3)["input"][-1]["output"]
    assert [set(turn.withheld) for turn in detail.turns] == [set(), HARMFUL, HARMFUL]


async def test_a_stored_answer_goes_on_without_a_tool_left() -> None:
    """On Responses, too, no tools and no choice go upstream if all tools are withheld, without streaming."""
    browse = function_call("call_p", BROWSE, '{"url":"https://a.example/"}')
    asked = {"model": "m", "input": "hi", "tool_choice": "required", "store": False}
    async with client_of(
        responses_script.reply(browse), responses_script.reply(message("Done."), id="resp_2"), allow=(BROWSE,)
    ) as client:
        read = await client.said(asked, hidden=(BROWSE, "call_p"))
    assert read.text == "Done."
    assert names_of(client.upstream.requests[0]) == {BROWSE}
    assert set(client.asked(2)) == {"model", "input", "store"}


async def test_a_reply_in_one_piece_goes_on_alike() -> None:
    """The proxy withholds the same tools in a run that is not streamed."""
    page = reply(None, ("call_p", "probe_tools__page", "{}"))
    async with looping(page, reply("Done.")) as (proxy, upstream):
        answer = await proxy.ask({**ASK, "stream": False})
    assert answer.json["choices"][0]["message"]["content"] == "Done."
    assert names_of(upstream.requests[0]) - names_of(upstream.requests[1]) == HARMFUL


# What only the upstream keeps.

READ = function_call("call_p", "probe_tools__page")
BOUGHT = function_call("call_b", "probe_tools__buy", '{"what":"milk"}')
TALK: dict[str, Any] = {"model": "m", "input": "hi"}
TOLD = "a conversation that this proxy does not know"


def said(item: dict[str, Any], number: int, **more: Any) -> Any:
    """A whole response with one item."""
    return responses_script.reply(item, id=f"resp_{number}", **more)


async def withheld_of(client: Any) -> set[str]:
    """The tools that the newest run withheld because of an untrusted result."""
    runs = await client.proxy.services.store.list_runs(RunFilter(limit=1))
    return {name for name, rule in runs[0].withheld.items() if "after_untrusted" in rule}


async def test_a_conversation_remembers_what_was_read_in_it(watch: Watch, tmp_path: Path) -> None:
    """Rule T2: ``after_untrusted`` also holds for later requests of a conversation, at another process, too;
    a call that the model makes all the same is refused."""
    store = {"url": f"sqlite:///{tmp_path}/record.db"}
    asked = {**TALK, "conversation": "conv_1"}
    made = whole(b'{"id":"conv_1","object":"conversation"}')
    scripts = [made, said(message("Hi."), 1), said(READ, 2), said(message("Read."), 3)]
    async with client_of(*scripts, store=store) as client:
        created = await client.ask({}, path="/v1/conversations")
        assert created.status == 200
        for _ in range(2):
            await client.ask(asked)
            assert await withheld_of(client) == set()
        assert len(client.upstream.requests) == 4
    async with client_of(said(BOUGHT, 4), said(message("No."), 5), store=store) as client:
        await client.ask(asked)
        assert await withheld_of(client) == HARMFUL
        assert not HARMFUL & names_of(client.upstream.requests[0])
    assert watch.finished == []


@pytest.mark.parametrize(
    "unknown",
    [
        {"conversation": "conv_9"},
        {"conversation": {"id": "conv_9"}},
        {"previous_response_id": "resp_9"},
        {"input": [{"type": "item_reference", "id": "msg_9"}, {"role": "user", "content": "so?"}]},
    ],
)
async def test_what_is_not_known_counts_as_untrusted(unknown: dict[str, Any]) -> None:
    """Rule T2: content that only the upstream has counts as untrusted, and the record says so."""
    async with client_of(said(message("Hi."), 1)) as client:
        await client.ask({**TALK, **unknown})
        assert await withheld_of(client) == HARMFUL
        run = await client.proxy.only_run()
        assert TOLD in next(rule for rule in run.run.withheld.values() if "after_untrusted" in rule)
        assert not HARMFUL & names_of(client.upstream.requests[0])


async def test_what_was_made_here_is_known() -> None:
    """If a request refers to the caller's own responses or items without untrusted results, tools stay."""
    scripts = [said(message("Hi.", "msg_1"), 1), said(message("Ho.", "msg_2"), 2), said(message("Hm."), 3)]
    async with client_of(*scripts) as client:
        await client.ask(TALK)
        for more in (
            {"previous_response_id": "resp_1"},
            {"input": [{"type": "item_reference", "id": "msg_1"}, {"role": "user", "content": "so?"}]},
        ):
            await client.ask({**TALK, **more})
            assert await withheld_of(client) == set()
            assert names_of(client.upstream.requests[-1]) >= HARMFUL


async def test_items_of_an_answer_that_read_a_page_are_untrusted() -> None:
    """A reference to an item of an answer that used an untrusted result withholds the harmful tools."""
    async with client_of(
        said(READ, 1), said(message("Read.", "msg_2"), 2), said(message("Hm."), 3)
    ) as client:
        await client.ask(TALK)
        refers = [{"type": "item_reference", "id": "msg_2"}, {"role": "user", "content": "so?"}]
        await client.ask({**TALK, "input": refers})
        assert await withheld_of(client) == HARMFUL


@pytest.mark.parametrize(("allow", "guards"), [("core__get_current_time", False), ("probe_tools__buy", True)])
async def test_nothing_is_noted_where_nothing_is_guarded(
    allow: str, guards: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only if a tool could do harm, the proxy looks a conversation up and stores what was read in it."""
    find, looked_up = SqlThreads.find_threads, list[str]()

    async def noting(self: SqlThreads, ids: Sequence[str], caller: str) -> Mapping[str, str]:
        looked_up.extend(ids)
        return await find(self, ids, caller)

    monkeypatch.setattr(SqlThreads, "find_threads", noting)
    threads = ["conv_1", "resp_1"]
    async with client_of(said(message("Hi."), 1), allow=(allow,)) as client:
        assert (await client.ask({**TALK, "conversation": "conv_1"})).status == 200
        assert looked_up == (["conv_1"] if guards else [])
        noted = await client.proxy.services.store.find_threads(threads, "open")
        assert set(noted) == (set(threads) if guards else set())


@pytest.mark.parametrize("spare", [False, True])
async def test_an_approved_page_counts_although_its_request_failed(spare: bool, watch: Watch) -> None:
    """Rule T2: the page was read for a request whose model failed; whoever is asked next has it, too."""
    lost = whole(b'{"error":{"message":"down"}}', status="503 Service Unavailable")
    page = reply(None, ("call_p", "probe_tools__page", "{}"))
    turns = reply(None, ("call_b", "probe_tools__buy", '{"what":"milk"}')), reply("Done.")
    async with RawUpstream(page, lost, *([] if spare else turns)) as first, RawUpstream(*turns) as second:
        served: list[dict[str, Any]] = [{"base_url": first.url, "retries": 0}, {"base_url": second.url}]
        settings = make_config(
            *served[: 1 + spare],
            modules=("probe_tools",),
            approvals={"enabled": True},
            policy={"approve": ("probe_tools__page",)},
        )
        async with running(settings) as proxy:
            asked = json.loads((await proxy.ask({**ASK, "stream": False})).body)
            notice = asked["choices"][0]["message"]
            (approval_id,) = set(re.findall("appr_[0-9a-f]{32}", notice["content"]))
            more = {**ASK, "stream": False, "messages": [*ASK["messages"], notice, ASK["messages"][0]]}
            statuses = [(await proxy.ask(more, {"x-toolrelay-approve": approval_id})).status]
            if not spare:
                statuses.append((await proxy.ask(more)).status)
    assert statuses == ([200] if spare else [503, 200])
    assert "milk" in messages_of((second if spare else first).requests[-1])[2]["content"]
    assert watch.finished == []
