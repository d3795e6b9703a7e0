"""The metrics of approvals: the proxy counts each outcome once, no matter who decided."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from approvals_rig import BUY, ID, config_of, say, turns_of
from openai import AsyncOpenAI
from raw_upstream import RawUpstream
from running_proxy import running
from store_records import APPROVED, T0, approval, grant
from structlog.testing import capture_logs
from waiting import until

from proxy.base.errors import StoreUnavailable
from proxy.records.approvals import Approval, ApprovalEvent, Decided
from proxy.store.options import StoreOptions
from proxy.store.sqlite.memory import MemoryStore
from proxy.telemetry.approval_figures import MOST_FOLLOWED, ApprovalFigures


async def test_each_outcome_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy counts each outcome of an approval once, and measures how long each decision took."""
    now = [T0]
    store = MemoryStore(StoreOptions(clock=lambda: now[0]))
    await store.start()
    counted: Counter[tuple[str, str]] = Counter()
    waited: list[float] = []
    figures = ApprovalFigures(
        store, lambda tool, outcome: counted.update([(tool, outcome)]), waited.append, now=lambda: now[0]
    )
    asked = [approval(f"ap_{number}", call_id=f"call_{number}") for number in range(4)]
    await store.put_approvals(asked)
    for one in asked:
        figures.on_event("approval_requested", {"approval": one, "tool": one.tool})
    await figures.update()
    assert figures.figures() == {"toolrelay_approvals_pending": 4.0}
    await store.decide_approval(asked[0], APPROVED, T0 + 7)
    await store.decide_approval(asked[1], Decided(ApprovalEvent.DENY, "boss", "command"), T0 + 9)
    gone = Decided(ApprovalEvent.SUPERSEDE, "boss", "api")
    approved = await store.decide_approval(asked[2], APPROVED, T0 + 2)
    for _ in range(2):
        await figures.update()
    await store.decide_approval(approved, gone, T0 + 3)
    figures.on_event("approval_grant_used", {"tool": grant().tool})
    now[0] = T0 + 3700
    for _ in range(2):
        await figures.update()
    assert counted == {
        ("shop__buy", "requested"): 4,
        ("shop__buy", "approved"): 2,
        ("shop__buy", "denied"): 1,
        ("shop__buy", "superseded"): 1,
        ("shop__buy", "expired"): 2,
        ("shop__buy", "granted"): 1,
    }
    assert sorted(waited) == [2.0, 7.0, 9.0]
    assert figures.figures() == {"toolrelay_approvals_pending": 0.0}
    await store.aclose()


async def test_what_is_followed_is_bounded() -> None:
    """The proxy counts each request for an approval, but follows outcomes only up to its limit."""
    store = MemoryStore(StoreOptions(clock=lambda: T0))
    await store.start()
    counted: Counter[str] = Counter()
    waited: list[float] = []
    figures = ApprovalFigures(
        store, lambda _, outcome: counted.update([outcome]), waited.append, now=lambda: T0
    )

    async def ask(number: int) -> Approval:
        """Request an approval; only those that a test decides need a record."""
        one = approval(f"ap_{number}", call_id=f"call_{number}")
        if number in (0, MOST_FOLLOWED - 1) or number >= MOST_FOLLOWED:
            await store.put_approvals([one])
        figures.on_event("approval_requested", {"approval": one, "tool": one.tool})
        return one

    async def deny(one: Approval) -> None:
        await store.decide_approval(one, Decided(ApprovalEvent.DENY, "boss", "api"), T0 + 1)
        await figures.update()

    asked = [await ask(number) for number in range(MOST_FOLLOWED + 5)]
    for beyond in asked[MOST_FOLLOWED:]:
        await deny(beyond)
    assert (counted, waited) == ({"requested": MOST_FOLLOWED + 5}, [])
    for followed in (asked[0], asked[MOST_FOLLOWED - 1]):
        await deny(followed)
    assert (counted["denied"], waited) == (2, [1.0, 1.0])
    # Those that ended, or are on record no longer, make room for new ones.
    await deny(await ask(MOST_FOLLOWED + 5))
    assert counted == {"requested": MOST_FOLLOWED + 6, "denied": 3}
    await store.aclose()


async def test_a_record_that_fails_is_told() -> None:
    """If the store cannot be read, the proxy logs that it could not count the outcomes."""
    store = MemoryStore(StoreOptions())
    await store.start()
    figures = ApprovalFigures(store, lambda _tool, _outcome: None, lambda _: None, every_s=0.001)
    looked = asyncio.Event()

    async def broken() -> None:
        looked.set()
        raise StoreUnavailable("no disk")

    figures.update = broken  # type: ignore[method-assign]
    with capture_logs() as lines:
        figures.start()
        await looked.wait()
        await until(lambda: [line["event"] for line in lines[:1]] == ["approvals_uncounted"])
        await figures.aclose()
    await store.aclose()


async def test_metrics_have_approvals(tmp_path: Path) -> None:
    """/metrics counts a call that waits for approval, and then its approval by a header and its use."""
    async with (
        RawUpstream(*turns_of("chat", stream=False)) as upstream,
        running(config_of(upstream.url, tmp_path)) as proxy,
        AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="x", max_retries=0) as client,
    ):
        figures = proxy.services.approval_figures
        assert figures is not None
        conversation: list[object] = [{"role": "user", "content": "Buy milk."}]
        id_ = ID.findall(await say(client, "chat", conversation, stream=False))[0]
        await figures.update()
        text = (await proxy.get("/metrics")).body.decode()
        assert f'toolrelay_approvals_total{{outcome="requested",tool="{BUY}"}} 1.0' in text
        assert "toolrelay_approvals_pending 1.0" in text
        conversation.append({"role": "user", "content": "Yes."})
        header = {"x-toolrelay-approve": id_}
        await say(client, "chat", conversation, stream=False, extra_headers=header)
        await figures.update()
        text = (await proxy.get("/metrics")).body.decode()
        for outcome in ("approved", "used"):
            assert f'toolrelay_approvals_total{{outcome="{outcome}",tool="{BUY}"}} 1.0' in text
        assert "toolrelay_approvals_pending 0.0" in text
        assert "toolrelay_approval_wait_seconds_count 1.0" in text
