"""What the tests of the runner share, and a quick way to a runner."""

from collections.abc import Sequence
from typing import Any

import pytest
from runner_kit import MakeCall, MakeRunner, MemoryLog, StillClock, StillTime

from proxy.events import ToolCall
from proxy.tools.access.catalog import Registry
from proxy.tools.access.policy import Policy
from proxy.tools.contract.capabilities import Capabilities
from proxy.tools.providers.function import FunctionProvider
from proxy.tools.running.ledger import RunContext
from proxy.tools.running.runner import Runner


@pytest.fixture
def log() -> MemoryLog:
    """An empty log."""
    return MemoryLog()


@pytest.fixture
def still_time(monkeypatch: pytest.MonkeyPatch) -> StillTime:
    """No time passes for the runner; to be asked for before one is made."""
    still = StillTime()
    for module in ("runner", "execution", "invocation"):
        monkeypatch.setattr(f"proxy.tools.running.{module}.time", still)
    return still


@pytest.fixture
def make_runner(log: MemoryLog) -> MakeRunner:
    """Makes a runner over functions, in a provider named ``t``, all allowed unless told otherwise."""

    async def make(
        functions: Sequence[Any], *, policy: Policy | None = None, limiter: Any = None, **options: Any
    ) -> Runner:
        provider = FunctionProvider("t", functions, Capabilities(clock=StillClock()))
        registry = await Registry.load([provider])
        return Runner(registry, policy or Policy(allow=("*",)), log, limiter, StillClock(), **options)

    return make


@pytest.fixture
def context() -> RunContext:
    """A fresh run's first turn."""
    return RunContext("run_1", 1, "open", request_id="req_1")


@pytest.fixture
def call() -> MakeCall:
    """Makes a call of a tool of provider ``t``."""

    def make(name: str, arguments: str = "{}", seq: int = 0) -> ToolCall:
        return ToolCall(f"call_{seq}", f"t__{name}", arguments, seq)

    return make
