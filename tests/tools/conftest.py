"""What the tests of the runner share: a log that remembers, a clock, and a quick way to a runner."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, tzinfo
from typing import Any

import pytest

from proxy.errors import StoreUnavailable
from proxy.events import ToolCall
from proxy.records import NativeCall, ToolInvocationRecord
from proxy.tools.access.catalog import Registry
from proxy.tools.access.policy import Policy
from proxy.tools.contract.capabilities import Capabilities
from proxy.tools.providers.function import FunctionProvider
from proxy.tools.running.ledger import RunContext
from proxy.tools.running.runner import Runner


class MemoryLog:
    """An InvocationLog that keeps every write in order."""

    def __init__(self) -> None:
        self.opened: list[tuple[ToolInvocationRecord, bool]] = []
        self.closed: list[ToolInvocationRecord] = []
        self.native: list[NativeCall] = []
        self.broken = False

    async def open_invocation(self, record: ToolInvocationRecord, *, durable: bool) -> None:
        """Keep an opened row, or fail as a locked database does."""
        if self.broken:
            raise StoreUnavailable("locked")
        self.opened.append((record, durable))

    def close_invocation(self, record: ToolInvocationRecord) -> None:
        """Keep a closed row."""
        self.closed.append(record)

    def put_native_call(self, record: NativeCall) -> None:
        """Keep a call as it came."""
        self.native.append(record)


class StillClock:
    """A clock that stands still."""

    def now(self, tz: tzinfo) -> datetime:
        """2026-11-21 13:05 UTC in the zone asked for."""
        return datetime.fromisoformat("2026-11-21T13:05:00+00:00").astimezone(tz)


class StillTime:
    """What ``time`` is to the runner: seconds that pass only where a test adds them.

    A run's seconds are counted before a call begins; how slow the machine is must not use them up.  How
    long something is waited for is real.
    """

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """The seconds up to now."""
        return self.now

    perf_counter = monotonic
    time = monotonic


MakeRunner = Callable[..., Awaitable[Runner]]


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
def call() -> Callable[..., ToolCall]:
    """Makes a call of a tool of provider ``t``."""

    def make(name: str, arguments: str = "{}", seq: int = 0) -> ToolCall:
        return ToolCall(f"call_{seq}", f"t__{name}", arguments, seq)

    return make
