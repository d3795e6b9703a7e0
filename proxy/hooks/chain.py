"""Runs hooks in their order, each within its time, and turns whatever they do into a decision.

What a hook raises or returns wrongly never reaches a client or a model. With ``on_error`` of ``refuse`` the
request or the call then ends; with ``ignore`` it goes on as if this hook did not exist.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import structlog
from msgspec import Struct
from msgspec.structs import replace

from proxy.base.errors import RequestError, ToolFailure, fault_facts
from proxy.base.hard_timeout import HardTimeout
from proxy.hooks.contract import (
    POINTS,
    OutcomeChange,
    Refusal,
    Request,
    RequestChange,
    RequestText,
    ToolChange,
    ToolOutcome,
    ToolUse,
)
from proxy.hooks.placeholders import Placeholders

HookOutcome = str
Counted = Callable[[str, str, HookOutcome], None]
"""Called as ``(point, name, outcome)`` for each call of a hook. The outcomes are ``kept``, ``changed``,
``refused``, ``failed`` and ``timed_out``."""

_MOST_MESSAGE: Final = 1000
_MOST_MODEL: Final = 500
T = TypeVar("T")


class NamedHook(Struct, frozen=True):
    """A hook with the name by which logs and metrics know it."""

    name: str
    hook: Any


class _Failed(Exception):
    """A hook failed, and the operator wants that to end what it was asked about."""


class _Crashed(Struct):
    cause: BaseException


def ignore_count(point: str, name: str, outcome: HookOutcome) -> None:
    """Count nothing."""


class HookChain:
    """The hooks of a process, in the order in which they run."""

    def __init__(
        self,
        hooks: Sequence[NamedHook] = (),
        *,
        timeout_s: float = 2.0,
        refuses: bool = True,
        counted: Counted = ignore_count,
    ) -> None:
        """``timeout_s`` limits each call of a hook; ``refuses`` is what a failure means."""
        self._timeout_s = timeout_s
        self._refuses = refuses
        self._counted = counted
        self._patience = HardTimeout()
        self._at = {point: [one for one in hooks if hasattr(one.hook, point)] for point in POINTS}
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.hooks")
        self.requests, self.calls, self.results = (bool(self._at[point]) for point in POINTS)
        """Whether there are hooks for requests, for calls of tools and for their results."""

    async def before_request(self, request: Request, originals: Placeholders) -> Request:
        """Return a request as the hooks leave it; their placeholders are added to ``originals``.

        Raise :class:`~proxy.base.errors.RequestError`: 403 for a refusal, 503 if a hook fails.
        """
        for one in self._at["before_request"]:

            def read(said: Any, now: Request = request) -> Request:
                return _changed_request(now, said, originals)

            try:
                answer = await self._ask("before_request", one, request, read)
            except _Failed:
                raise RequestError(
                    503,
                    "The request could not be checked, so it was not sent on. Try again later.",
                    type="server_error",
                    code="hook_failed",
                ) from None
            if isinstance(answer, Refusal):
                raise RequestError(403, answer.message, type="permission_error", code="refused_by_hook")
            request = answer
        return request

    async def before_tool(self, call: ToolUse) -> tuple[ToolUse, str]:
        """Return a call as the hooks leave it, and the names of those that changed it.

        Raise :class:`~proxy.base.errors.ToolFailure`, with the name of the hook as its second argument.
        """
        changed: list[str] = []
        for one in self._at["before_tool"]:

            def read(said: Any, now: ToolUse = call) -> ToolUse:
                return _changed_call(now, said)

            try:
                answer = await self._ask("before_tool", one, call, read)
            except _Failed:
                raise HookRefusal("the call could not be checked, so it was not made", one.name) from None
            if isinstance(answer, Refusal):
                raise HookRefusal(answer.message, one.name)
            if answer is not call:
                changed.append(one.name)
            call = answer
        return call, ", ".join(changed)

    async def after_tool(self, outcome: ToolOutcome, originals: Placeholders | None) -> str:
        """Return the text of a result as the hooks leave it; raise :class:`~proxy.base.errors.ToolFailure`
        if a hook fails."""
        for one in self._at["after_tool"]:

            def read(said: Any, now: ToolOutcome = outcome) -> ToolOutcome:
                return _changed_outcome(now, said, originals)

            try:
                answer = await self._ask("after_tool", one, outcome, read)
            except _Failed:
                raise HookRefusal("the result could not be checked, so it is not shown", one.name) from None
            if not isinstance(answer, Refusal):
                outcome = answer
        return outcome.text

    async def _ask(self, point: str, one: NamedHook, value: T, read: Callable[[Any], T]) -> T | Refusal:
        """Return the value as one hook leaves it, or its refusal."""
        outcome, facts = "failed", {}
        try:
            said = await self._patience.run(_guarded(getattr(one.hook, point), value), self._timeout_s)
            if isinstance(said, _Crashed):
                facts = fault_facts(said.cause)
            elif isinstance(said, Refusal) and point != "after_tool":
                refusal = _plain_refusal(said)
                self._counted(point, one.name, "refused")
                return refusal
            else:
                left = value if said is None else read(said)
                self._counted(point, one.name, "kept" if left is value else "changed")
                return left
        except TimeoutError:
            outcome, facts = "timed_out", {"seconds": str(self._timeout_s)}
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # Nobody waits for the answer any more.
            facts = {"exception": "CancelledError"}
        except (TypeError, ValueError) as error:  # What it returned cannot be used.
            facts = {"exception": type(error).__name__, "reason": str(error)[:200]}
        # What it returned may have code of its own.
        except Exception as error:  # noqa: BLE001
            facts = fault_facts(error)
        self._counted(point, one.name, outcome)
        self._log.warning("hook_failed", hook=one.name, point=point, outcome=outcome, **facts)
        if self._refuses:
            raise _Failed
        return value


class HookRefusal(ToolFailure):
    """A call that a hook refused, or could not check. ``hook`` is its name."""

    def __init__(self, message: str, hook: str) -> None:
        super().__init__(message, code="policy_denied")
        self.hook = hook


async def _guarded(method: Callable[[Any], Awaitable[Any]], value: Any) -> Any:
    try:
        return await method(value)
    except asyncio.CancelledError:
        raise
    # The boundary to the operator's code; a SystemExit from there would end the process.
    except BaseException as error:  # noqa: BLE001
        return _Crashed(error)


def _plain_refusal(said: Refusal) -> Refusal:
    return Refusal(_text(said.message)[:_MOST_MESSAGE].strip() or "This is not allowed here.")


def _changed_request(request: Request, said: Any, originals: Placeholders) -> Request:
    if not isinstance(said, RequestChange):
        raise TypeError("before_request returned neither a RequestChange, a Refusal nor None")
    texts = request.texts
    if said.texts is not None:
        if len(said.texts) != len(texts):
            raise ValueError(f"before_request returned {len(said.texts)} texts for {len(texts)}")
        texts = tuple(
            one if _text(new) == one.text else RequestText(one.role, new)
            for one, new in zip(texts, said.texts, strict=True)
        )
    model = request.model if said.model is None else _text(said.model)
    if not 0 < len(model) <= _MOST_MODEL:
        raise ValueError("before_request returned a model without a name")
    originals.add(said.originals)
    is_same = model == request.model and all(map(_is, texts, request.texts))
    return request if is_same else replace(request, texts=texts, model=model)


def _is(one: object, other: object) -> bool:
    return one is other


def _changed_call(call: ToolUse, said: Any) -> ToolUse:
    if not isinstance(said, ToolChange):
        raise TypeError("before_tool returned neither a ToolChange, a Refusal nor None")
    return call if _text(said.arguments) == call.arguments else replace(call, arguments=said.arguments)


def _changed_outcome(outcome: ToolOutcome, said: Any, originals: Placeholders | None) -> ToolOutcome:
    if not isinstance(said, OutcomeChange):
        raise TypeError("after_tool returned neither an OutcomeChange nor None")
    if originals is not None:
        originals.add(said.originals)
    return outcome if _text(said.text) == outcome.text else replace(outcome, text=said.text)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a text is no str")
    value.encode()  # UnicodeEncodeError is a ValueError.
    return value
