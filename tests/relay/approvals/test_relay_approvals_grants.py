"""Which calls a grant covers, and which it does not."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, Final

import orjson
import pytest
from runner_kit import StillClock
from store_records import run
from structlog.testing import capture_logs

from proxy.base.errors import RequestError, StoreUnavailable
from proxy.base.events import ToolCall, ToolResult
from proxy.records.approvals import Approval, ApprovalStatus
from proxy.records.grants import MOST_GRANTS, GrantFilter
from proxy.relay.approvals.approvals import Approvals, Asked
from proxy.relay.approvals.decisions import Verdict
from proxy.relay.approvals.grants import GrantTerms
from proxy.relay.approvals.rules import ApprovalRules, Decider
from proxy.relay.ask import Identity
from proxy.store.options import StoreOptions
from proxy.store.sqlite.memory import MemoryStore
from proxy.tools.access.catalog import Registry
from proxy.tools.access.policy import Policy
from proxy.tools.contract.bounds import ArgumentBound
from proxy.tools.contract.capabilities import Capabilities
from proxy.tools.contract.spec import Redaction
from proxy.tools.providers.function import FunctionProvider, tool
from proxy.tools.running.granted import ArgumentLimits
from proxy.tools.running.ledger import RunContext, RunLedger
from proxy.tools.running.runner import Runner

POLICY: Final = Policy(allow=("*",), approve=("t__*",))
BOSS: Final = Decider("key boss", tools=("*",))
HOUR: Final = GrantTerms(3600.0)
HERE: Final = GrantTerms(None, in_conversation=True)
TEA: Final = {"what": "tea", "amount": 2}


class Shop:
    """One process with a record: a model calls its tools, and a person decides."""

    def __init__(self, store: MemoryStore, rules: ApprovalRules) -> None:
        self.now = 1_800_000_000.0
        self.store = store
        self.rules = rules
        self.bought: list[str] = []
        self.told: list[tuple[str, Any]] = []
        self.runs = 0

    async def open(self, *, note: str = "") -> None:
        """Load the tools; another ``note`` changes the definition of ``buy``."""

        @tool(effect="external_side_effect", redaction=Redaction(output=("done",)), description=f"Buy.{note}")
        async def buy(what: str, amount: int = 1) -> dict[str, str]:
            self.bought.append(what)
            return {"done": what}

        @tool(effect="external_side_effect", redaction=Redaction(output=("done",)))
        async def sell(what: str, amount: int = 1) -> dict[str, str]:
            """Sell."""
            return {"done": what}

        provider = FunctionProvider("t", [buy, sell], Capabilities(clock=StillClock()))
        self.registry = await Registry.load([provider])
        self.runner = Runner(self.registry, POLICY, self.store, None, StillClock(), effects=self.store)
        told = lambda kind, facts: self.told.append((kind, facts))  # noqa: E731
        self.approvals = Approvals(self.store, self.runner, self.rules, told=told, now=lambda: self.now)

    async def asks(
        self,
        arguments: Any = TEA,
        *,
        caller: str = "alice",
        name: str = "t__buy",
        asked_in: tuple[str, ...] = (),
        untrusted: str = "",
        is_person: bool = True,
        policy: Policy = POLICY,
        runs: bool = True,
    ) -> tuple[Asked, ToolResult | None]:
        """Let a model call a tool in a new run; return also the result if a grant covers the call."""
        self.runs += 1
        run_id = f"run_{self.runs}"
        ledger = RunLedger()
        if untrusted:
            ledger.mark_untrusted(untrusted)
        call = ToolCall("call_1", name, orjson.dumps(arguments).decode(), 0)
        context = RunContext(run_id, 1, caller, ledger=ledger)
        identity = Identity(run_id, "req_1", caller, caller, is_person=is_person)
        asked = await self.approvals.ask([call], context, policy, identity, asked_in=asked_in)
        if not (asked.granted and runs):
            return asked, None
        (result,) = await self.runner.run_many([call], context, policy=policy, granted=asked.granted)
        return asked, result

    async def gives(self, terms: GrantTerms, arguments: Any = TEA, **more: Any) -> Approval:
        """Let a call wait, and let the boss approve it with a grant."""
        asked, _ = await self.asks(arguments, **more)
        return await self.approvals.decide(asked.waiting[0].id, Verdict(True, grant=terms), BOSS, "api")

    async def is_covered(self, arguments: Any = TEA, **more: Any) -> bool:
        """Whether a grant lets the call run; otherwise the call waits."""
        asked, result = await self.asks(arguments, **more)
        assert bool(asked.waiting) is (result is None)
        return result is not None and result.ok


@pytest.fixture
async def make_shop() -> AsyncIterator[Callable[..., Any]]:
    made: list[MemoryStore] = []

    async def build(**rules: Any) -> Shop:
        store = MemoryStore(StoreOptions())
        made.append(store)
        await store.start()
        shop = Shop(store, ApprovalRules(**rules))
        await shop.open()
        return shop

    yield build
    for store in made:
        await store.aclose()


MakeShop = Callable[..., Any]


async def test_a_granted_call_runs_and_says_by_whom(make_shop: MakeShop) -> None:
    """Each later call runs, its row names the grant and who gave it, and each use is counted and reported."""
    shop = await make_shop()
    approval = await shop.gives(HOUR)
    assert shop.bought == []
    with capture_logs() as lines:
        assert await shop.is_covered({"what": "milk"})
        assert await shop.is_covered({"what": "soap", "amount": 9})
    assert shop.bought == ["milk", "soap"]
    (grant,) = await shop.approvals.grants.list(GrantFilter(active=True))
    assert (grant.uses, grant.approval_id, grant.made_by) == (2, approval.id, "key boss")
    assert [line["event"] for line in lines].count("approval_grant_used") == 2
    assert [kind for kind, _ in shop.told][-2:] == ["approval_grant_used"] * 2
    shop.store.put_run(run("run_2"))
    detail = await shop.store.get_run("run_2")
    (call,) = detail.invocations
    assert call.decision == f'granted by key boss ({grant.id}): policy.approve has "t__*"'


@pytest.mark.parametrize(
    "more",
    [
        {"caller": "bob"},
        {"caller": "alice/bob"},
        {"name": "t__sell"},
        {"is_person": False},
        {"untrusted": "web__fetch"},
        {
            "policy": replace(
                POLICY, approve=("t__buy",), settings=("", "require_approval of this request", "")
            )
        },
    ],
    ids=["caller", "end user", "tool", "nobody", "untrusted", "reason"],
)
async def test_a_grant_covers_nothing_else(make_shop: MakeShop, more: dict[str, Any]) -> None:
    """A grant covers no other caller, end user or tool, no unnamed person, and no other reason to ask."""
    shop = await make_shop()
    await shop.gives(HOUR)
    assert not await shop.is_covered(**more)
    assert await shop.is_covered()


async def test_who_was_told_of_untrusted_text_grants_for_it(make_shop: MakeShop) -> None:
    """A grant given after an untrusted result covers calls after a result of that tool, and without one."""
    shop = await make_shop()
    approval = await shop.gives(HOUR, untrusted="web__fetch")
    assert approval.rule == (
        'policy.approve has "t__*"; also policy.after_untrusted = "approve": '
        "the run has read a result of web__fetch"
    )
    assert await shop.is_covered(untrusted="web__fetch")
    assert await shop.is_covered()
    assert not await shop.is_covered(untrusted="mail__read")


async def test_a_changed_definition_ends_a_grant(make_shop: MakeShop) -> None:
    """A grant no longer covers calls of a tool whose definition has changed."""
    shop = await make_shop()
    await shop.gives(HOUR)
    await shop.open(note=" Now with a discount.")
    assert not await shop.is_covered()


async def test_a_grant_expires(make_shop: MakeShop) -> None:
    """A grant of an hour covers a call after 3,599 seconds and none after 3,600."""
    shop = await make_shop()
    await shop.gives(HOUR)
    shop.now += 3599
    assert await shop.is_covered()
    shop.now += 1
    assert not await shop.is_covered()


@pytest.mark.parametrize("end", ["revoked", "expired", "gone"])
async def test_a_grant_that_ends_between_lets_nothing_run(make_shop: MakeShop, end: str) -> None:
    """If the grant ends after it covered a call and before the call runs, the call is refused."""
    shop = await make_shop()
    await shop.gives(HOUR)
    asked, _ = await shop.asks(runs=False)
    granted = asked.granted[0]
    if end == "revoked":
        await shop.approvals.grants.revoke(granted.id, BOSS)
    elif end == "expired":
        shop.now += 3600
    else:
        granted = replace(granted, use=lambda: _never())
    call = ToolCall("call_1", "t__buy", orjson.dumps(TEA).decode(), 0)
    context = RunContext("run_2", 1, "alice")
    (result,) = await shop.runner.run_many([call], context, policy=POLICY, granted={0: granted})
    assert (result.ok, result.error_code) == (False, "approval_required")
    assert shop.bought == []


async def _never() -> bool:
    return False


async def test_a_record_that_does_not_answer_lets_nothing_run(make_shop: MakeShop) -> None:
    """If the store cannot say whether the grant still holds, the call does not run."""

    async def broken() -> bool:
        raise StoreUnavailable("no disk")

    shop = await make_shop()
    await shop.gives(HOUR)
    asked, _ = await shop.asks(runs=False)
    granted = replace(asked.granted[0], use=broken)
    call = ToolCall("call_1", "t__buy", orjson.dumps(TEA).decode(), 0)
    context = RunContext("run_2", 1, "alice")
    (result,) = await shop.runner.run_many([call], context, policy=POLICY, granted={0: granted})
    assert (result.ok, shop.bought) == (False, [])


async def test_revocation_and_uses_at_once(make_shop: MakeShop) -> None:
    """If calls and a revocation race, the record counts each call that ran, and no later call is covered."""
    shop = await make_shop()
    await shop.gives(HOUR)
    (grant,) = await shop.approvals.grants.list(GrantFilter())
    asks = [shop.asks({"what": f"{number}"}) for number in range(8)]
    await asyncio.gather(*asks[:4], shop.approvals.grants.revoke(grant.id, BOSS), *asks[4:])
    (grant,) = await shop.approvals.grants.list(GrantFilter())
    assert grant.uses == len(shop.bought)
    assert not await shop.is_covered()


BELOW_TEN: Final = ArgumentLimits({"amount": ArgumentBound(max=10), "what": ArgumentBound(pattern="te[a-z]")})


@pytest.mark.parametrize(
    ("arguments", "covered"),
    [
        ({"what": "tea", "amount": 10}, True),
        ({"what": "tea"}, True),
        ({"what": "tea", "amount": 11}, False),
        ({"what": "teapot", "amount": 1}, False),
    ],
)
async def test_arguments_stay_within_the_limits(
    make_shop: MakeShop, arguments: dict[str, Any], covered: bool
) -> None:
    """A grant covers a call only if all its limits hold; an argument that is left out has its default."""
    shop = await make_shop()
    await shop.gives(GrantTerms(3600.0, limits=BELOW_TEN))
    assert await shop.is_covered(arguments) is covered


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        (GrantTerms(86401.0), "at most 86400 seconds"),
        (
            GrantTerms(3600.0, limits=ArgumentLimits({"amuont": ArgumentBound(max=10)})),
            "'amuont', which the call",
        ),
        (
            GrantTerms(3600.0, limits=ArgumentLimits({"amount": ArgumentBound(max=1)})),
            "not within grant.arguments: amount",
        ),
        (
            GrantTerms(3600.0, limits=ArgumentLimits({"what": ArgumentBound(forbidden=True)})),
            "what may not be given",
        ),
    ],
)
async def test_a_grant_that_cannot_be_given_decides_nothing(
    make_shop: MakeShop, terms: GrantTerms, words: str
) -> None:
    """A grant that is too long or whose limits do not fit the call is refused, and the call waits on."""
    shop = await make_shop()
    asked, _ = await shop.asks()
    id_ = asked.waiting[0].id
    with pytest.raises(RequestError, match=words) as caught:
        await shop.approvals.decide(id_, Verdict(True, grant=terms), BOSS, "api")
    assert caught.value.status == 400
    assert (await shop.approvals.find(id_, BOSS)).status is ApprovalStatus.PENDING


async def test_a_misspelt_prohibition_covers_nothing(make_shop: MakeShop) -> None:
    """A grant that forbids an argument which the tool does not have never lets a call run."""
    shop = await make_shop()
    await shop.gives(GrantTerms(3600.0, limits=ArgumentLimits({"amuont": ArgumentBound(forbidden=True)})))
    assert not await shop.is_covered()


async def test_grants_can_be_switched_off(make_shop: MakeShop) -> None:
    """With approvals.max_grant_s = 0 nobody can give a grant, and those on record cover nothing."""
    shop = await make_shop()
    await shop.gives(HOUR)
    shop.rules = ApprovalRules(max_grant_s=0)
    await shop.open()
    with pytest.raises(RequestError, match="Nobody can give grants"):
        await shop.gives(HOUR)
    assert not await shop.is_covered()


async def test_who_may_not_decide_gives_no_grant(make_shop: MakeShop) -> None:
    """With approvals.by = "admin" a caller who tries to give a grant gets a 403, and none is stored."""
    shop = await make_shop(by="admin")
    asked, _ = await shop.asks()
    caller = Decider("alice", caller="alice", key="alice")
    with pytest.raises(RequestError, match="Only an approver") as caught:
        await shop.approvals.decide(asked.waiting[0].id, Verdict(True, grant=HOUR), caller, "header")
    assert caught.value.status == 403
    assert list(await shop.approvals.grants.list(GrantFilter())) == []


async def test_a_conversation_is_where_the_call_was_asked_for(make_shop: MakeShop) -> None:
    """A grant for a conversation covers only requests of the same caller that continue the run that asked."""
    shop = await make_shop()
    approval = await shop.gives(HERE)
    assert await shop.is_covered(asked_in=(approval.run_id,))
    assert await shop.is_covered(asked_in=("run_0", approval.run_id, "run_9"), is_person=False)
    assert not await shop.is_covered()
    assert not await shop.is_covered(asked_in=("run_0",))
    assert not await shop.is_covered(asked_in=(approval.run_id,), caller="bob")


async def test_the_same_decision_twice_gives_one_grant(make_shop: MakeShop) -> None:
    """The same decision again adds no grant; another grant for a decided call is refused with a reason."""
    shop = await make_shop()
    approval = await shop.gives(HOUR)
    again = await shop.approvals.decide(approval.id, Verdict(True, grant=HOUR), BOSS, "api")
    assert again.status is ApprovalStatus.APPROVED
    assert len(await shop.approvals.grants.list(GrantFilter())) == 1
    with pytest.raises(RequestError, match="no grant was given") as caught:
        await shop.approvals.decide(approval.id, Verdict(True, grant=HERE), BOSS, "api")
    assert caught.value.status == 409


async def test_one_grant_more_than_may_be_decides_nothing(make_shop: MakeShop) -> None:
    """At the limit of grants, another one is refused, and the call can still be approved without a grant."""
    shop = await make_shop()
    for number in range(MOST_GRANTS):
        waits, _ = await shop.asks({"what": f"{number}"}, name="t__sell", is_person=False)
        verdict = Verdict(True, grant=HOUR)
        await shop.approvals.decide(waits.waiting[0].id, verdict, BOSS, "api")
    asked, _ = await shop.asks()
    id_ = asked.waiting[0].id
    with pytest.raises(RequestError, match=f"alice has {MOST_GRANTS} active grants") as caught:
        await shop.approvals.decide(id_, Verdict(True, grant=HOUR), BOSS, "api")
    assert (caught.value.status, caught.value.code) == (409, "too_many_grants")
    assert (await shop.approvals.decide(id_, Verdict(True), BOSS, "api")).status is ApprovalStatus.APPROVED


async def test_an_approver_sees_and_revokes_grants_of_their_tools(make_shop: MakeShop) -> None:
    """An approver cannot see or revoke a grant of another tool; a second revocation changes nothing."""
    shop = await make_shop()
    await shop.gives(HOUR)
    (grant,) = await shop.approvals.grants.list(GrantFilter())
    other, own = Decider("key anna", tools=("pay__*",)), Decider("key eve", tools=("t__buy",))
    for act in (shop.approvals.grants.find, shop.approvals.grants.revoke):
        with pytest.raises(RequestError, match="There is no grant") as caught:
            await act(grant.id, other)
        assert caught.value.status == 404
    for decider in (own, BOSS):
        revoked = await shop.approvals.grants.revoke(grant.id, decider)
        assert (revoked.revoked_by, shop.approvals.grants.state(revoked)) == ("key eve", "revoked")
    assert [kind for kind, _ in shop.told].count("approval_grant_revoked") == 1
    assert not await shop.is_covered()
