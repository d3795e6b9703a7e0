"""How many tools run at once, in a run, for a key and in the whole process, with real clients."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest
from chat_script import call, finish, role, stream
from client_keys import ALICE, BOB, bearer, declared
from looping import ANSWER, ASK, looping
from probe_tools import Watch
from raw_upstream import RawRequest, Step
from running_proxy import Conversation, Proxy
from waiting import PATIENCE_S, until

from proxy.store.base import RunFilter

KEYS = {"alice": declared(ALICE), "bob": declared(BOB)}
PATIENT = {"timeout_s": PATIENCE_S}


def turn(names: Sequence[str]) -> list[Step]:
    """Return a turn that calls a tool for each of the names at once."""
    calls = [
        call(f"call_{name}", "probe_tools__queue", json.dumps({"name": name}), at)
        for at, name in enumerate(names)
    ]
    return stream(role(), *calls, finish("tool_calls"))


def script(request: RawRequest) -> Sequence[Step]:
    """Call a tool for each name in the question; answer once there are results."""
    messages = json.loads(request.body)["messages"]
    return ANSWER if messages[-1]["role"] == "tool" else turn(messages[-1]["content"].split())


def question(names: str) -> dict[str, Any]:
    """Return a question that the model answers with those calls."""
    return {**ASK, "messages": [{"role": "user", "content": names}]}


async def opened(proxy: Proxy) -> int:
    """Return how many calls the record has."""
    runs = await proxy.services.store.list_runs(RunFilter())
    details = [await proxy.services.store.get_run(run.id) for run in runs]
    return sum(len(detail.invocations) for detail in details if detail is not None)


async def ends_one_by_one(watch: Watch, total: int, at_once: int) -> None:
    """Let the tools end one after the other, each only when as many as allowed are running."""
    for ended in range(total):
        await until(lambda: len(watch.started) >= min(total, ended + at_once))  # noqa: B023
        watch.may_end.release()
    await until(lambda: len(watch.finished) == total)


@pytest.mark.parametrize(("tools", "at_once"), [({}, 5), ({"parallel": False}, 1), ({"max_parallel": 2}, 2)])
async def test_the_reading_calls_of_a_turn_run_as_configured(
    watch: Watch, tools: dict[str, Any], at_once: int
) -> None:
    """Rule T7: reading calls run together, one by one without ``parallel``, or up to ``max_parallel``."""
    async with (
        looping(script, tools={**PATIENT, **tools}) as (proxy, _),
        proxy.sent(question("a b c d e")) as conversation,
    ):
        await ends_one_by_one(watch, 5, at_once)
        answer = await conversation.answer()
    assert (answer.status, answer.clean) == (200, True)
    assert watch.most == at_once
    assert sorted(watch.started) == list("abcde")
    assert at_once > 1 or watch.started == list("abcde")


async def test_effects_are_never_run_beside_anything(watch: Watch) -> None:
    """Rule T7: side effects of a turn run one by one, in its order, after its reading calls have ended."""
    calls = [
        call("c1", "probe_tools__slow_buy", "{}", 0),
        call("c2", "probe_tools__queue", '{"name":"a"}', 1),
        call("c3", "probe_tools__buy", '{"what":"b"}', 2),
    ]
    async with (
        looping(stream(role(), *calls, finish("tool_calls")), ANSWER, tools=PATIENT) as (proxy, _),
        proxy.sent(ASK) as conversation,
    ):
        await until(lambda: watch.started == ["a"])
        watch.may_end.release()
        await until(lambda: watch.started == ["a", "slow_buy"])
        watch.go_on.set()
        await conversation.answer()
    assert watch.started == ["a", "slow_buy", "buy"]
    assert watch.finished == ["a", "slow_buy", "buy"]


async def ask_all(
    stack: AsyncExitStack, proxy: Proxy, asked: Sequence[tuple[str, str, str]]
) -> list[Conversation]:
    """Send requests of (secret, end user, calls) at once; wait until the record has each call."""
    conversations = [
        await stack.enter_async_context(proxy.sent(question(names), {**bearer(secret), "x-user": user}))
        for secret, user, names in asked
    ]
    wanted = sum(len(names.split()) for _, _, names in asked)

    async def all_opened() -> bool:
        return await opened(proxy) == wanted

    await until(all_opened)
    return conversations


@pytest.mark.parametrize(
    ("limits", "secrets", "at_once"),
    [
        ({"concurrent_tools_per_caller": 2}, (ALICE, ALICE, ALICE), 2),
        ({"concurrent_tools_per_caller": 2}, (ALICE, BOB, ALICE, BOB), 4),
        ({"concurrent_tools": 3}, (ALICE, BOB, ALICE, BOB), 3),
    ],
)
async def test_a_key_has_its_places_however_many_people_it_names(
    watch: Watch, limits: dict[str, Any], secrets: Sequence[str], at_once: int
) -> None:
    """Rule T7: the limits hold for a key with all its end users together, and for the whole process."""
    asked = [(secret, f"user-{at}", f"{at}a {at}b") for at, secret in enumerate(secrets)]
    settings: dict[str, Any] = {
        "limits": limits,
        "keys": KEYS,
        "auth": {"end_user": "header:x-user"},
        "tools": PATIENT,
    }
    async with looping(script, **settings) as (proxy, _), AsyncExitStack() as stack:
        conversations = await ask_all(stack, proxy, asked)
        await ends_one_by_one(watch, 2 * len(asked), at_once)
        answers = await asyncio.gather(*(each.answer() for each in conversations))
        callers = {run.caller for run in await proxy.runs()}
    assert [(answer.status, answer.clean) for answer in answers] == [(200, True)] * len(asked)
    assert watch.most == at_once
    assert len(callers) == len(asked)
