"""A worker whose stages are metered: ``python -m bench.staged_worker CONFIG METER FOLDER``.

Every SIGUSR2 begins or ends a measurement. Its end writes the file ``FOLDER/N``, JSON: pairs of a stage and
what one piece of it took. The pieces of the stage ``MARKS`` are what the marks themselves take.
"""

import asyncio
import functools
import gc
import importlib
import inspect
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Mapping
from pathlib import Path
from types import FrameType, MappingProxyType, coroutine
from typing import Any

MARK = "getsid"
"""A function of libc that nothing else calls: callgrind dumps its counts before each call."""
_CALIBRATED = 50
REST = "connections and the loop"
MARKS = "marks"
THREADS = "threads (record, log)"
STAGES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "access, routes": ("server.middleware.access:AccessMiddleware.handle",),
        "access log": ("telemetry.log.access_log:AccessLog.write",),
        "metrics": (
            "telemetry.metrics:Metrics.request_ended",
            "telemetry.metrics:Metrics.operation_ended",
            "telemetry.metrics:Metrics.invocation_ended",
        ),
        "authentication": ("server.auth.authenticate:KeyAuthenticator.admit",),
        "limits": (
            "server.limits.limiter:RateLimiter.admit",
            "server.limits.limiter:Admission.hit",
            "server.limits.limiter:Admission.spend",
        ),
        "answer": ("api.generate.generate:Generate.answer",),
        "body": ("api.generate.request_reader:RequestReader.read",),
        "plan": ("relay.planning:Planner.next",),
        "hidden turns looked up": ("relay.memory.hidden.history:History.restore",),
        "forwarding": ("api.generate.forwarder:Forwarder.send_to",),
        "upstream": ("telemetry.hooks:Hooks.open",),
        "run": ("relay.run.orchestrator:Orchestrator.run",),
        "turn": ("relay.run.turn.model_turn:ModelTurns.call",),
        "tools": ("tools.running.runner:Runner.run_many", "tools.running.runner:Runner._process"),
        "run's end": ("relay.run.ending:RunEnding.finish",),
        "notes of answers": (
            "relay.memory.hidden.history:History.remember",
            "relay.memory.hidden.history:History.note_plain",
        ),
        "journal": tuple(f"relay.run.journal:Journal.{name}" for name in ("began", "turn_ended", "ended")),
        "rows": tuple(
            f"store.sql.store:SqlStore.{name}"
            for name in (
                "put_run", "put_turn", "put_messages", "put_native_call", "put_hidden", "open_invocation",
                "close_invocation", "claim_effect",
            )
        ),
        "group of rows": ("store.sql.writing.writer:GroupWriter._group",),
    }
)  # fmt: skip
"""What counts as which stage, less the stages that it calls; inside a stage that is listed first."""


class Meter:
    """Notes what the loop's thread spends between each two marks. Subclasses read what was spent so far."""

    def __init__(self) -> None:
        self.on = False
        self.spent: list[tuple[str, int]] = []
        """What each piece of a stage took, in order."""
        self._stages = [REST]
        self._last = 0
        self._others = 0

    def now(self) -> int:
        """Return what this thread has spent so far."""
        return 0

    def others(self) -> int:
        """Return what all other threads have spent so far."""
        return 0

    def begin(self) -> None:
        """Begin a measurement."""
        self.on = True
        self.spent = []
        self._others = self.others()
        self._last = self.now()
        self.mark("")
        self._stages.append(MARKS)
        nothing = _metered(self, MARKS, int)
        for _ in range(_CALIBRATED):
            nothing()
        self._stages.pop()
        self.mark(MARKS)

    def end(self) -> None:
        """End it, with what other threads spent as the last piece."""
        self.mark(REST)
        self.on = False
        self.spent.append((THREADS, self.others() - self._others))

    def mark(self, stage: str) -> None:
        """Note what was spent since the last mark as a piece of ``stage``."""
        now = self.now()
        self.spent.append((stage, now - self._last))
        self._last = self.now()

    def enter(self, stage: str) -> None:
        """Begin a stage inside the current one."""
        if self.on:
            self.mark(self._stages[-1])
        self._stages.append(stage)

    def leave(self) -> None:
        """End the current stage."""
        stage = self._stages.pop()
        if self.on:
            self.mark(stage)


class Cpu(Meter):
    """Counts nanoseconds of CPU."""

    def now(self) -> int:
        return time.thread_time_ns()

    def others(self) -> int:
        return time.process_time_ns() - time.thread_time_ns()


class Calls(Meter):
    """Counts calls of functions, those written in Python and those written in C."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: dict[int, int] = {}
        threading.setprofile(self._see)
        sys.setprofile(self._see)

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        if event in ("call", "c_call") and frame.f_code.co_filename != __file__:
            thread = threading.get_ident()
            self._calls[thread] = self._calls.get(thread, 0) + 1

    def now(self) -> int:
        return self._calls.get(threading.get_ident(), 0)

    def others(self) -> int:
        return sum([*self._calls.values()]) - self.now()


class Callgrind(Meter):
    """Lets callgrind dump its counts at each mark; whoever reads the dumps knows what was spent."""

    def mark(self, stage: str) -> None:
        self.spent.append((stage, 0))
        os.getsid(0)


METERS: Mapping[str, type[Meter]] = MappingProxyType({"instructions": Callgrind, "calls": Calls, "cpu": Cpu})


@coroutine
def _driven(meter: Meter, stage: str, inner: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Run a coroutine whose every step is part of a stage."""
    step: Callable[[Any], Any] = inner.send
    given: Any = None
    while True:
        meter.enter(stage)
        try:
            awaited = step(given)
        except StopIteration as end:
            return end.value
        finally:
            meter.leave()
        try:
            given = yield awaited
            step = inner.send
        except BaseException as error:  # noqa: BLE001 - whatever the loop throws is the inner one's
            given, step = error, inner.throw


def _metered(meter: Meter, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
    async def awaited(inner: Coroutine[Any, Any, Any]) -> Any:
        return await _driven(meter, stage, inner)

    @functools.wraps(function)
    def metered(*args: Any, **kwargs: Any) -> Any:
        meter.enter(stage)
        try:
            result = function(*args, **kwargs)
        finally:
            meter.leave()
        return awaited(result) if inspect.iscoroutine(result) else result

    return metered


def meter_stages(meter: Meter) -> None:
    """Meter every function of :data:`STAGES`. Raises AttributeError if one is no longer there."""
    for stage, functions in STAGES.items():
        for place in functions:
            module, _, name = place.partition(":")
            owner, _, method = name.partition(".")
            found = getattr(importlib.import_module(f"proxy.{module}"), owner)
            setattr(found, method, _metered(meter, stage, getattr(found, method)))


async def _serve(config: Path, meter: Meter, folder: Path) -> None:
    from proxy.app.app import create_app
    from proxy.commands.common import start_logging
    from proxy.commands.serve.run import run_server
    from proxy.commands.serve.sockets import bind
    from proxy.config.load import load_config

    loaded = load_config(config, os.environ)
    start_logging(loaded, serves=True)
    app = await create_app(loaded)
    ended = 0

    def toggle() -> None:
        nonlocal ended
        if not meter.on:
            gc.collect()
            gc.disable()  # When it runs depends on what was before.
            meter.begin()
            (folder / f"{ended}.begun").touch()
            return
        meter.end()
        gc.enable()
        (folder / f"{ended}.part").write_text(json.dumps(meter.spent))
        (folder / f"{ended}.part").rename(folder / str(ended))
        ended += 1

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, toggle)
    await run_server(app, bind(loaded.server.host, loaded.server.port), drain_s=1.0)


def main(config: str, meter: str, folder: str) -> None:
    """Serve until a signal ends it."""
    from proxy.commands.common import run_async

    made = METERS[meter]()
    meter_stages(made)
    run_async(_serve(Path(config), made, Path(folder)))


if __name__ == "__main__":
    main(*sys.argv[1:])
