"""Fixtures that the tests of the tools share: a log, a stopped time, runners and calls."""

from collections.abc import Sequence
from typing import Any

import pytest
from runner_kit import MakeCall, MakeRunner, MemoryLog, StillClock, StillTime

from proxy.base.events import ToolCall
from proxy.tools.access.call_prices import CallPrices
from proxy.tools.access.catalog import Registry
from proxy.tools.access.policy import Policy
from proxy.tools.contract.capabilities import Capabilities
from proxy.tools.providers.function import FunctionProvider
from proxy.tools.running.ledger import RunContext
from proxy.tools.running.runner import Runner


@pytest.fixture
def log() -> MemoryLog:
    """An empty invocation log."""
    return MemoryLog()


@pytest.fixture
def still_time(monkeypatch: pytest.MonkeyPatch) -> StillTime:
    """Stop the runner's time; a test must request this fixture before it makes a runner."""
    still = StillTime()
    for module in ("runner", "execution", "invocation"):
        monkeypatch.setattr(f"proxy.tools.running.{module}.time", still)
    return still


@pytest.fixture
def make_runner(log: MemoryLog) -> MakeRunner:
    """A function that makes a runner for functions of a provider ``t``; by default all are allowed."""

    async def make(
        functions: Sequence[Any],
        *,
        policy: Policy | None = None,
        limiter: Any = None,
        prices: CallPrices | None = None,
        **options: Any,
    ) -> Runner:
        provider = FunctionProvider("t", functions, Capabilities(clock=StillClock()))
        registry = await Registry.load([provider], prices=prices)
        return Runner(registry, policy or Policy(allow=("*",)), log, limiter, StillClock(), **options)

    return make


@pytest.fixture
def context() -> RunContext:
    """The context of the first turn of a new run."""
    return RunContext("run_1", 1, "open", request_id="req_1")


@pytest.fixture
def call() -> MakeCall:
    """A function that makes a call of a tool of the provider ``t``."""

    def make(name: str, arguments: str = "{}", seq: int = 0) -> ToolCall:
        return ToolCall(f"call_{seq}", f"t__{name}", arguments, seq)

    return make
