"""Side effects of two runners that share a store, as two processes do (rule R5)."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs
from request_keys import keyed
from waiting import LATE_S

from proxy.base.errors import StoreError, StoreUnavailable
from proxy.records.effects import REPEATS_WITHIN_S, EarlierEffect, EffectClaim
from proxy.records.rows import ToolInvocationRecord
from proxy.store.sqlite.memory import MemoryStore
from proxy.tools.access.policy import Policy
from proxy.tools.contract.spec import Redaction
from proxy.tools.providers.function import tool
from proxy.tools.running.ledger import RunContext, RunLedger, ServedRequest

Make = Callable[..., Any]
ASKED = ServedRequest(keyed("digest"), False, 100.0)


class World:
    """Records what the tools have bought."""

    def __init__(self) -> None:
        self.bought: list[str] = []
        self.go_on = asyncio.Event()
        self.begun = asyncio.Event()
        self.go_on.set()

    def tools(self) -> list[Any]:
        """Make the tools: one with an effect, and one whose effect is repeatable."""

        @tool(effect="external_side_effect", redaction=Redaction(output=("done",)), untrusted_output=True)
        async def buy(what: str) -> dict[str, str]:
            """Buy."""
            self.bought.append(what)
            self.begun.set()
            await self.go_on.wait()
            if what == "moon":
                raise ValueError(what)
            return {"done": what}

        @tool(effect="external_side_effect", redaction=Redaction(), repeatable=True)
        async def ring() -> str:
            """Ring."""
            self.bought.append("ring")
            return "rung"

        return [buy, ring]


@pytest.fixture
async def shared(log: Any) -> MemoryStore:
    """A store that two runners share; it gets all rows in addition to the log."""
    store = MemoryStore()
    await store.start()
    keep = log.close_invocation

    def close(record: ToolInvocationRecord) -> None:
        keep(record)
        store.close_invocation(record)

    log.close_invocation = close
    return store


@pytest.fixture
async def pair(make_runner: Make, shared: MemoryStore) -> tuple[World, Any, Any]:
    """A world and two runners with its tools."""
    world = World()
    runners = [await make_runner(world.tools(), effects=shared, default_timeout_s=LATE_S) for _ in range(2)]
    return world, *runners


def _context(run_id: str, request: ServedRequest | None = ASKED) -> RunContext:
    return RunContext(run_id, 1, "open", ledger=RunLedger(request=request))


def _again(**changes: Any) -> ServedRequest:
    return structs.replace(ASKED, is_repeat=True, asked_at=101.0, **changes)


async def test_a_repeat_elsewhere_gets_the_first_result(pair: Any, call: Make) -> None:
    """Rule R5: a repeat at another runner gets the first result, still untrusted, without a second effect."""
    world, one, two = pair
    buy = call("buy", '{"what":"milk"}')
    first = await one.run(buy, _context("run_1"))
    context = _context("run_2", _again())
    second = await two.run(replace(buy, call_id="other"), context)
    assert (second.content, second.ok, second.call_id) == (first.content, True, "other")
    assert (first.redacted, second.redacted) == ({"done": "milk"}, {"done": "milk"})
    assert context.ledger.untrusted_before(2) == "t__buy"
    assert world.bought == ["milk"]
    for request in (ASKED, _again(key=keyed("another")), None):
        assert (await two.run(buy, _context(f"run_{request}", request))).ok
    assert world.bought == ["milk"] * 4


async def test_a_repeat_waits_for_an_effect_under_way(pair: Any, call: Make) -> None:
    """Rule R5: a repeat of an effect that still runs waits for its result."""
    world, one, two = pair
    world.go_on.clear()
    buy = call("buy", '{"what":"milk"}')
    first = asyncio.create_task(one.run(buy, _context("run_1")))
    await world.begun.wait()
    second = asyncio.create_task(two.run(buy, _context("run_2", _again())))
    done, _ = await asyncio.wait([second], timeout=0.2)
    assert not done
    world.go_on.set()
    assert (await second).content == (await first).content
    assert world.bought == ["milk"]


async def test_a_repeat_waits_no_longer_than_its_run_may(still_time: Any, pair: Any, call: Make) -> None:
    """Rules R5, T7: a repeat that is out of time reports an unknown outcome and causes no effect."""
    world, one, two = pair
    world.go_on.clear()
    buy = call("buy", '{"what":"milk"}')
    first = asyncio.create_task(one.run(buy, _context("run_1")))
    await world.begun.wait()
    context = _context("run_2", _again())
    told = await two.run(buy, context, budget_s=0.1)
    assert told.error_code == "execution_failed"
    assert "nobody knows how it ended" in told.safe_message
    world.go_on.set()
    assert (await first).ok
    later = await two.run(buy, structs.replace(context, turn=2))
    assert later.content == '{"done":"milk"}'
    assert world.bought == ["milk"]


async def test_a_failure_is_repeated_in_its_own_words(pair: Any, call: Make) -> None:
    """Rule R5: a repeat of a failed effect gets the same failure and does not run the tool again."""
    world, one, two = pair
    buy = call("buy", '{"what":"moon"}')
    first = await one.run(buy, _context("run_1"))
    second = await two.run(buy, _context("run_2", _again()))
    assert (second.error_code, second.safe_message) == (first.error_code, first.safe_message)
    assert json.loads(second.content) == json.loads(first.content)
    assert world.bought == ["moon"]


async def test_one_place_of_a_run_has_one_effect(pair: Any, call: Make) -> None:
    """Rule R5: the same run, turn and index has one effect at all runners, even of a repeatable tool."""
    world, one, two = pair
    for name, arguments in (("buy", '{"what":"milk"}'), ("ring", "{}")):
        context = _context(name, None)
        await one.run(call(name, arguments), context)
        again = await two.run(call(name, arguments), structs.replace(context, ledger=RunLedger()))
        assert again.ok
    assert world.bought == ["milk", "ring"]
    await two.run(call("ring"), _context("run_9", _again()))
    assert world.bought == ["milk", "ring", "ring"]


def _told(result: Any) -> dict[str, Any]:
    """Check that a call was not made, and return what its result says about the earlier call."""
    assert (result.ok, result.error_code) == (False, "already_ran")
    told: dict[str, Any] = json.loads(result.content)["earlier_call"]
    return told


async def _buy(runner: Any, call: Make, context: RunContext, *things: str) -> list[Any]:
    """Buy these things one after another, in one turn."""
    calls = [call("buy", json.dumps({"what": what})) for what in things]
    return [await runner.run(replace(each, index=at), context) for at, each in enumerate(calls)]


async def test_a_different_call_of_a_repeat_is_answered_with_the_earlier_one(pair: Any, call: Make) -> None:
    """Rule R5: each different call of a repeat is told of one earlier effect, until none is left."""
    world, one, two = pair
    await _buy(one, call, _context("run_1"), "milk", "eggs")
    context = _context("run_2", _again())
    results = await _buy(two, call, context, "cream", "butter", "bread", "jam")
    assert [_told(result)["arguments"] for result in results[:2]] == [{"what": "milk"}, {"what": "eggs"}]
    assert [result.ok for result in results[2:]] == [True, True]
    assert world.bought == ["milk", "eggs", "bread", "jam"]
    assert context.ledger.untrusted_before(2) == "t__buy"  # The earlier result is untrusted.


async def test_equal_calls_of_a_repeat_count_first(pair: Any, call: Make) -> None:
    """Rule R5: equal calls of a repeat match their own effects in any order; a new call runs after them."""
    world, one, two = pair
    await _buy(one, call, _context("run_1"), "milk", "eggs")
    results = await _buy(two, call, _context("run_2", _again()), "eggs", "milk", "bread")
    assert [result.content for result in results] == [f'{{"done":"{w}"}}' for w in ("eggs", "milk", "bread")]
    assert world.bought == ["milk", "eggs", "bread"]
    # Effects that equal calls matched are not told to different calls; the other effects are.
    results = await _buy(two, call, _context("run_3", _again()), "eggs", "cream", "tea")
    assert [_told(result)["arguments"] for result in results[1:]] == [{"what": "milk"}, {"what": "bread"}]
    assert world.bought == ["milk", "eggs", "bread"]


@pytest.mark.parametrize("many", [1, 2], ids=["at one runner", "at two"])
async def test_a_second_repeat_knows_what_both_before_it_did(many: int, pair: Any, call: Make) -> None:
    """Rule R5: a second repeat matches the effects of both earlier attempts, whichever runner made them."""
    world, one, two = pair
    runners = [one, two] if many == 2 else [two, two]
    first = _context("run_1")
    await _buy(one, call, first, "milk")
    second = _context("run_2", _again())
    await _buy(runners[0], call, second, "milk", "eggs")
    ledger = second.ledger.for_repeat(_again())
    results = await _buy(
        runners[1], call, structs.replace(second, run_id="run_3", ledger=ledger), "milk", "oil", "tea"
    )
    assert results[0].content == '{"done":"milk"}'
    assert _told(results[1])["arguments"] == {"what": "eggs"}
    assert world.bought == ["milk", "eggs", "tea"]


async def test_what_is_past_its_hour_hides_nothing_that_is_not(
    pair: Any, call: Make, shared: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule R5: if the first effect of a request has expired, a repeat is still told of the second one."""
    world, one, two = pair
    start = 1000.0
    for after, what in ((0.0, "milk"), (REPEATS_WITHIN_S, "eggs")):
        monkeypatch.setattr(shared, "_clock", lambda at=start + after: at)
        await _buy(
            one, call, _context(what, _again() if after else ASKED), *["milk", "eggs"][: 2 if after else 1]
        )
    monkeypatch.setattr(shared, "_clock", lambda: start + REPEATS_WITHIN_S + 1)
    (result,) = await _buy(two, call, _context("run_3", _again()), "cream")
    assert _told(result)["arguments"] == {"what": "eggs"}
    assert world.bought == ["milk", "eggs"]


async def test_a_different_call_waits_for_an_effect_under_way(pair: Any, call: Make) -> None:
    """Rule R5: a different call waits for an effect that still runs, and is then told of its result."""
    world, one, two = pair
    world.go_on.clear()
    first = asyncio.create_task(one.run(call("buy", '{"what":"milk"}'), _context("run_1")))
    await world.begun.wait()
    second = asyncio.create_task(two.run(call("buy", '{"what":"eggs"}'), _context("run_2", _again())))
    done, _ = await asyncio.wait([second], timeout=0.2)
    assert not done
    world.go_on.set()
    told = _told(await second)
    assert (told["outcome"], told["result"]) == ("succeeded", (await first).content)
    assert world.bought == ["milk"]


async def test_a_different_call_is_told_of_an_unknown_outcome(pair: Any, call: Make) -> None:
    """Rules R5, T7: a different call that is out of time is told of an unknown outcome; the next one runs."""
    world, one, two = pair
    world.go_on.clear()
    first = asyncio.create_task(one.run(call("buy", '{"what":"milk"}'), _context("run_1")))
    await world.begun.wait()
    context = _context("run_2", _again())
    eggs = call("buy", '{"what":"eggs"}')
    told = _told(await two.run(eggs, context, budget_s=0.1))
    assert "unknown" in told["outcome"]
    assert "result" not in told
    assert world.bought == ["milk"]
    world.go_on.set()
    assert (await first).ok
    assert (await two.run(replace(eggs, index=1), context)).ok
    assert world.bought == ["milk", "eggs"]


async def test_a_failure_is_told_to_a_different_call(pair: Any, call: Make) -> None:
    """Rule R5: a different call is told of a failed effect once; the model may then call the tool again."""
    world, one, two = pair
    (first,) = await _buy(one, call, _context("run_1"), "moon")
    told, moon_cheese = await _buy(two, call, _context("run_2", _again()), "cheese", "cheese")
    assert _told(told) == {"arguments": {"what": "moon"}, "outcome": "failed", "result": first.content}
    assert moon_cheese.ok
    assert world.bought == ["moon", "cheese"]


async def test_a_request_that_its_repeat_overtook_is_told_of_its_effects(pair: Any, call: Make) -> None:
    """Rule R5: a first attempt that goes on after its repeat has acted is told of the repeat's effect."""
    world, one, two = pair
    await _buy(two, call, _context("run_2", _again()), "milk")
    results = await _buy(one, call, _context("run_1"), "eggs", "bread")
    assert _told(results[0])["arguments"] == {"what": "milk"}
    assert results[1].ok
    assert world.bought == ["milk", "bread"]


async def test_attempts_at_one_moment_cause_one_effect(pair: Any, call: Make) -> None:
    """Rule R5: of two concurrent attempts with different calls, one acts and the other one is told."""
    world, one, two = pair
    requests = (ASKED, _again())
    results = await asyncio.gather(
        *(
            runner.run(call("buy", json.dumps({"what": what})), _context(what, request))
            for runner, what, request in zip((one, two), ("milk", "eggs"), requests, strict=True)
        )
    )
    assert sorted(result.ok for result in results) == [False, True]
    assert len(world.bought) == 1


async def test_other_tools_and_other_requests_are_not_in_the_way(pair: Any, call: Make) -> None:
    """Rule R5: effects of other requests do not stop a call, and repeatable tools always run."""
    world, one, two = pair
    await _buy(one, call, _context("run_1"), "milk")
    await one.run(call("ring", "{}"), _context("run_2"))
    assert (await two.run(call("ring", "{}"), _context("run_3", _again()))).ok
    (other,) = await _buy(two, call, _context("run_4", _again(key=keyed("another"))), "eggs")
    (anew,) = await _buy(two, call, _context("run_5", structs.replace(ASKED, asked_at=200.0)), "bread")
    assert other.ok
    assert anew.ok
    assert world.bought == ["milk", "ring", "ring", "eggs", "bread"]


async def test_what_is_told_is_redacted_and_bounded(
    make_runner: Make, call: Make, shared: MemoryStore
) -> None:
    """Rules R5, T4: what is told of an earlier call lacks private arguments and keeps to the size limit."""

    @tool(effect="external_side_effect", redaction=Redaction(private_arguments=("pin",)))
    async def pay(to: str, pin: str) -> str:
        """Pay."""
        return f'paid "{to}"\n' * 200

    policy = Policy(allow=("*",), max_result_bytes=3000)
    one, two = [await make_runner([pay], policy=policy, effects=shared) for _ in range(2)]
    first = await one.run(call("pay", '{"to":"ann","pin":"81724"}'), _context("run_1"))
    told = await two.run(call("pay", '{"to":"bob","pin":"81724"}'), _context("run_2", _again()))
    assert len(first.content) <= 3000
    assert len(told.content) <= 3000
    assert told.truncated
    assert _told(told)["arguments"]["to"] == "ann"
    assert "its middle was left out" in _told(told)["result"]
    assert "81724" not in told.content


async def test_the_row_of_a_repeat_says_what_it_repeats(pair: Any, call: Make, log: Any) -> None:
    """Rule R5: the row of a call that did not run names the earlier call whose effect it repeats."""
    _, one, two = pair
    buy = call("buy", '{"what":"milk"}')
    await one.run(buy, _context("run_1"))
    await two.run(buy, _context("run_2", _again()))
    await two.run(call("buy", '{"what":"eggs"}'), _context("run_3", _again()))
    (other,) = [row for row in log.closed if row.run_id == "run_3"]
    assert other.decision.startswith("not made after inv_")
    assert (other.status, other.error_code, other.result_redacted) == ("error", "already_ran", None)
    (row,) = [row for row in log.closed if row.run_id == "run_2"]
    assert row.decision.startswith("repeat of inv_")
    assert (row.status, row.result_redacted) == ("success", {"done": "milk"})


class Broken(MemoryStore):
    """A store with one fault."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    async def claim_effect(self, record: ToolInvocationRecord, claim: EffectClaim) -> EarlierEffect | None:
        """Fail, or report an earlier effect, depending on the fault."""
        if self.fault == "locked":
            raise StoreUnavailable("locked")
        if self.fault == "given back":
            self.fault = ""
            return EarlierEffect("inv_0", "started")
        if self.fault:
            return EarlierEffect("inv_0", "started" if self.fault == "unreadable" else "interrupted")
        return await super().claim_effect(record, claim)

    async def find_effect(self, claim: EffectClaim) -> EarlierEffect | None:
        """Fail, or report no earlier effect."""
        if self.fault == "unreadable":
            raise StoreError("damaged")
        return None


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("locked", "could not be put on record"),
        ("unreadable", "nobody knows how it ended"),
        ("owner died", "nobody knows how it ended"),
    ],
)
async def test_a_fault_of_the_record_causes_nothing(
    make_runner: Make, call: Make, fault: str, words: str
) -> None:
    """Rules R1, R5: if the store cannot confirm that an effect belongs to this call, it does not happen."""
    world, store = World(), Broken(fault)
    await store.start()
    runner = await make_runner(world.tools(), effects=store)
    result = await runner.run(call("buy", '{"what":"milk"}'), _context("run_1"))
    assert (result.ok, result.error_code) == (False, "execution_failed")
    assert words in result.safe_message
    assert world.bought == []


async def test_an_effect_that_was_given_back_is_done(make_runner: Make, call: Make) -> None:
    """Rule R5: a call that waits for an earlier call makes the effect itself if that one never began."""
    world, store = World(), Broken("given back")
    await store.start()
    runner = await make_runner(world.tools(), effects=store)
    assert (await runner.run(call("buy", '{"what":"milk"}'), _context("run_1"))).ok
    assert world.bought == ["milk"]


async def test_a_client_that_leaves_before_the_effect_frees_it(
    make_runner: Make, call: Make, shared: MemoryStore
) -> None:
    """Rules E4, R5: if the client leaves before the effect begins, a repeat may cause the effect."""
    world = World()
    release, claimed = asyncio.Event(), asyncio.Event()
    take = shared.claim_effect

    async def slow_claim(record: ToolInvocationRecord, claim: EffectClaim) -> EarlierEffect | None:
        found = await take(record, claim)
        claimed.set()
        await release.wait()
        return found

    shared.claim_effect = slow_claim  # type: ignore[method-assign]
    runner = await make_runner(world.tools(), effects=shared)
    first = asyncio.create_task(runner.run(call("buy", '{"what":"milk"}'), _context("run_1")))
    await claimed.wait()
    first.cancel()
    await asyncio.wait([first])
    release.set()
    await runner.drain(5.0)
    assert world.bought == []
    again = await runner.run(call("buy", '{"what":"milk"}'), _context("run_2", _again()))
    assert again.ok
    assert world.bought == ["milk"]
