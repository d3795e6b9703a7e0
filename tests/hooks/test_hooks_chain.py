"""The chain of hooks: their order, what they may change, and what happens when one fails."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from proxy.base.errors import RequestError
from proxy.hooks import (
    OutcomeChange,
    Refusal,
    Request,
    RequestChange,
    RequestText,
    ToolChange,
    ToolOutcome,
    ToolUse,
)
from proxy.hooks.chain import HookChain, HookRefusal, NamedHook
from proxy.hooks.placeholders import Placeholders

REQUEST = Request("req_1", "anna", "key", "chat", "m", (RequestText("user", "hello"),))
CALL = ToolUse("run_1", "anna", "key", "core__calculate", "read_only", '{"a": 1}')
RESULT = ToolOutcome("run_1", "anna", "key", "core__calculate", True, "one")
SECRET = "the secret of hook"


class Says:
    """A hook that answers the same at every point, or raises it."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.saw: list[Any] = []

    async def before_request(self, value: Any) -> Any:
        self.saw.append(value)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    before_tool = after_tool = before_request


class Hangs:
    """A hook that never answers, and ignores that it is cancelled."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def before_request(self, value: Any) -> None:
        while not self.may_end.is_set():
            try:
                await self.may_end.wait()
            except asyncio.CancelledError:
                continue

    before_tool = after_tool = before_request


def chain(*hooks: Any, counts: list[tuple[str, str, str]] | None = None, **options: Any) -> HookChain:
    named = [NamedHook(f"h{place}", hook) for place, hook in enumerate(hooks)]
    counted = (lambda *one: counts.append(one)) if counts is not None else (lambda *_: None)
    return HookChain(named, counted=counted, **options)


async def test_hooks_see_what_those_before_them_left() -> None:
    """They run in their order; each gets the value that the one before it left."""
    counts: list[tuple[str, str, str]] = []
    last = Says(None)
    hooks = chain(Says(RequestChange(["hi"], model="other")), last, counts=counts)
    left = await hooks.before_request(REQUEST, Placeholders())
    assert left == replace(REQUEST, texts=(RequestText("user", "hi"),), model="other")
    assert last.saw == [left]
    assert counts == [("before_request", "h0", "changed"), ("before_request", "h1", "kept")]
    call, names = await chain(Says(ToolChange('{"a": 2}')), Says(None)).before_tool(CALL)
    assert (call.arguments, names) == ('{"a": 2}', "h0")
    originals = Placeholders()
    text = await chain(Says(OutcomeChange("[X_a]", {"[X_a]": "one"}))).after_tool(RESULT, originals)
    assert (text, originals.restored("[X_a]")) == ("[X_a]", "one")


async def test_a_value_that_stays_is_the_same_object() -> None:
    """Nothing is written anew if no hook changes anything."""
    hooks = chain(Says(RequestChange(["hello"])), Says(None), Says(RequestChange()))
    assert await hooks.before_request(REQUEST, Placeholders()) is REQUEST
    assert (await chain(Says(ToolChange(CALL.arguments))).before_tool(CALL))[0] is CALL


async def test_a_refusal_ends_the_request_with_its_message() -> None:
    """The hooks after it are not asked."""
    after = Says(None)
    hooks = chain(Says(Refusal("Not on Sundays.")), after)
    with pytest.raises(RequestError) as refused:
        await hooks.before_request(REQUEST, Placeholders())
    error = refused.value
    assert (error.status, error.code, error.message) == (403, "refused_by_hook", "Not on Sundays.")
    with pytest.raises(HookRefusal) as denied:
        await hooks.before_tool(CALL)
    assert (denied.value.message, denied.value.code, denied.value.hook) == (
        "Not on Sundays.", "policy_denied", "h0"
    )  # fmt: skip
    assert after.saw == []


class Trap(dict[str, str]):
    """Placeholders with code of their own, which fails."""

    def items(self) -> Any:
        raise KeyError(SECRET)


WRONG: list[Any] = [
    RuntimeError(SECRET),
    SystemExit(SECRET),
    asyncio.CancelledError(SECRET),
    RequestChange(originals=Trap({"[a]": SECRET})),
    SECRET,
    RequestChange(["a", SECRET]),
    RequestChange([5]),  # type: ignore[list-item]
    RequestChange(["\ud800"]),
    RequestChange(model=""),
    RequestChange(originals={"[a]": SECRET, "[a]b": SECRET}),
    ToolChange(5),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda one: type(one).__name__)
async def test_a_hook_that_fails_shows_nothing_of_itself(wrong: Any) -> None:
    """Clients and models read that something could not be checked; the log has no text of the hook."""
    counts: list[tuple[str, str, str]] = []
    hooks = chain(Says(wrong), counts=counts)
    with capture_logs() as lines:
        with pytest.raises(RequestError) as failed:
            await hooks.before_request(REQUEST, Placeholders())
        with pytest.raises(HookRefusal) as unmade:
            await hooks.before_tool(CALL)
        with pytest.raises(HookRefusal) as unshown:
            await hooks.after_tool(RESULT, None)
    assert (failed.value.status, failed.value.code) == (503, "hook_failed")
    said = "".join(str(one.value) for one in (failed, unmade, unshown))
    assert SECRET not in said + repr(lines)
    assert [line["event"] for line in lines] == ["hook_failed"] * 3
    assert {outcome for _, _, outcome in counts} == {"failed"}


@pytest.mark.parametrize("wrong", [RuntimeError("no"), "nothing"])
async def test_the_operator_may_ignore_a_failure(wrong: Any) -> None:
    """With ``ignore`` the value goes on as if there were no such hook; the next hook sees it."""
    after = Says(None)
    hooks = chain(Says(wrong), after, refuses=False)
    assert await hooks.before_request(REQUEST, Placeholders()) is REQUEST
    assert await hooks.before_tool(CALL) == (CALL, "")
    assert await hooks.after_tool(RESULT, None) == "one"
    assert after.saw == [REQUEST, CALL, RESULT]


@pytest.mark.parametrize("message", ["\ud800", None])
async def test_a_refusal_without_a_text_is_a_failure(message: Any) -> None:
    """What no client could be told does not end in a fault of the proxy."""
    with pytest.raises(RequestError) as failed:
        await chain(Says(Refusal(message))).before_request(REQUEST, Placeholders())
    assert failed.value.code == "hook_failed"


async def test_a_client_that_leaves_ends_the_wait_for_a_hook() -> None:
    """A cancelled request is cancelled, also where failures of hooks are ignored."""
    hook = Hangs()
    hooks = chain(hook, refuses=False, timeout_s=60)
    asked = asyncio.ensure_future(hooks.before_request(REQUEST, Placeholders()))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    hook.may_end.set()


async def test_a_hook_that_hangs_is_left_behind() -> None:
    """The time of a hook ends although it ignores its cancellation."""
    counts: list[tuple[str, str, str]] = []
    hook = Hangs()
    with pytest.raises(RequestError):
        await chain(hook, counts=counts, timeout_s=0.01).before_request(REQUEST, Placeholders())
    assert await chain(hook, timeout_s=0.01, refuses=False).before_tool(CALL) == (CALL, "")
    assert counts == [("before_request", "h0", "timed_out")]
    hook.may_end.set()


def test_points_without_hooks_are_known() -> None:
    """Whoever could ask a hook knows whether there is one, without a call."""

    class OnlyResults:
        async def after_tool(self, outcome: ToolOutcome) -> None: ...

    only = chain(OnlyResults())
    assert (only.requests, only.calls, only.results) == (False, False, True)
    none = HookChain()
    assert (none.requests, none.calls, none.results) == (False, False, False)
