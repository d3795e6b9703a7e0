"""The rounds of measurements: each row is measured once for every contestant, then all again."""

import contextlib
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.capacity import Window, climb, hold
from bench.contestants import Field, toolrelay, toolrelay_config
from bench.load import Load, Result
from bench.processes import Process, python

DELAY_STREAMS = (1, 16, 64, 500)
ARGUMENT_BYTES = (1_000, 10_000, 100_000, 1_000_000, 5_000_000)
MESSAGES = (1, 10, 100, 1000)
_HELD = 500
_PACED = 50
_LOAD_S = 120


@dataclass(frozen=True)
class Scale:
    """The size of all measurements: factor 1 gives reliable figures, a smaller one only an impression."""

    rounds: int = 3
    factor: float = 1.0
    record_runs: int = 3000

    def of(self, count: int, least: int = 4) -> int:
        """Return a scaled number, at least ``least``."""
        return max(least, round(count * self.factor))


@dataclass
class Row:
    """One line of the table: the values of each contestant, one for each round."""

    name: str
    unit: str
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, contestant: str, value: float) -> None:
        """Add the value of one more round."""
        self.values.setdefault(contestant, []).append(value)


class Table:
    """All rows by name, in the order of their first value, and the failures."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.failed: list[str] = []

    def add(self, name: str, unit: str, contestant: str, value: float) -> None:
        """Add one value of one round."""
        self.rows.setdefault(name, Row(name, unit)).add(contestant, value)


def run_load(load: Load, core: int | None, on_open: Callable[[], None] | None = None) -> Result:
    """Run a load in its own process; call ``on_open`` when every stream has begun.

    Raises RuntimeError if it gives no result.
    """
    command = python("-m", "bench.load", json.dumps(asdict(load)))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        if core is not None and core in os.sched_getaffinity(child.pid):
            os.sched_setaffinity(child.pid, {core})
        assert child.stdout is not None
        watchdog = threading.Timer(_LOAD_S, child.kill)
        watchdog.start()
        try:
            if load.hold and child.stdout.readline() and on_open is not None:
                on_open()
            text = child.stdout.read()
        finally:
            watchdog.cancel()
    if child.wait() or not text.strip():
        raise RuntimeError(f"the load {load} gave no result")
    return Result(**json.loads(text))


class Rounds:
    """The data that all rounds share, and the measurement of each row."""

    def __init__(
        self, table: Table, field_: Field, scale: Scale, core: int | None, say: Callable[[str], None]
    ):
        self.table = table
        self.field = field_
        self.scale = scale
        self.core = core
        self.say = say
        self.fixed: dict[str, float] = {}

    def cpu_us(self, process: Process, load: Load) -> tuple[float, Result]:
        """Return the proxy's CPU microseconds for each request, and the result of the load."""
        before = process.cpu_s()
        result = run_load(load, self.core)
        spent = process.cpu_s() - before
        if result.failed:
            self.table.failed.append(f"{process.name}: {result.failed} of {result.done} {load.kind}")
        return spent / max(1, result.done) * 1e6, result

    def round(self, number: int) -> None:
        """Measure every row once for every contestant; the first contestant changes from round to round."""
        names = list(self.field.proxies)
        order = names[number % len(names) :] + names[: number % len(names)]
        rows = (self.memory, self.request, self.stream, self.burst, self.paced, *self.delays(), self.held)
        for row in rows:
            for name in order:
                row(self.field.proxies[name])
        for messages in MESSAGES:
            for name in order:
                self.messages(self.field.proxies[name], messages)
        tools = self.field.proxies["toolrelay, tools offered"]
        self.tool_turns(tools)
        for size in ARGUMENT_BYTES:
            self.arguments(tools, size)

    # One method for each row.

    def request(self, process: Process) -> None:
        cpu, result = self.cpu_us(process, Load(process.port, requests=self.scale.of(1500, 64)))
        self.table.add("request, CPU", "µs", process.name, cpu)
        self.table.add("request, wall at 16", "µs", process.name, result.wall_s / result.done * 1e6)

    def stream(self, process: Process) -> None:
        cpu, _ = self.cpu_us(process, Load(process.port, "burst", requests=self.scale.of(800, 64)))
        self.fixed[process.name] = cpu
        self.table.add("stream of one chunk, CPU", "µs", process.name, cpu)

    def burst(self, process: Process) -> None:
        chunks = 500
        cpu, _ = self.cpu_us(process, Load(process.port, "burst", chunks, requests=self.scale.of(48, 16)))
        self.table.add(
            "chunk, all at once, CPU", "µs", process.name, (cpu - self.fixed[process.name]) / chunks
        )

    def paced(self, process: Process) -> None:
        chunks = self.scale.of(100, 20)
        load = Load(process.port, "paced", chunks, 10, connections=_PACED, requests=_PACED)
        cpu, _ = self.cpu_us(process, load)
        self.table.add("chunk, paced, CPU", "µs", process.name, (cpu - self.fixed[process.name]) / chunks)

    def delays(self) -> Iterator[Callable[[Process], None]]:
        """Yield one row for each number of streams: the delay of chunks."""
        for streams in DELAY_STREAMS:

            def row(process: Process, streams: int = streams) -> None:
                pause = 20 if streams < 100 else 100
                chunks = self.scale.of(40, 10)
                load = Load(process.port, "paced", chunks, pause, connections=streams, requests=streams)
                result = run_load(load, self.core)
                if result.failed:
                    self.table.failed.append(f"{process.name}: {result.failed} of {streams} paced")
                self.table.add(f"first chunk's delay, {streams} streams", "ms", process.name, result.first[0])
                self.table.add(f"chunk's delay, {streams} streams, p50", "ms", process.name, result.delay[0])
                self.table.add(f"chunk's delay, {streams} streams, p99", "ms", process.name, result.delay[1])

            yield row

    def held(self, process: Process) -> None:
        window = Window() if self.scale.factor >= 1 else Window(0.3, 0.7)

        def run(load: Load, on_open: Callable[[], None]) -> Result:
            result = run_load(load, self.core, on_open)
            if result.failed:
                self.table.failed.append(f"{process.name}: {result.failed} of {load.requests} held")
            return result

        first = hold(process, _PACED, window, run)
        by_cpu = first.by_cpu
        if self.scale.factor >= 1:
            found = climb(first, lambda streams: hold(process, streams, window, run))
            by_cpu = found.by_cpu
            self.say(f"{process.name} held {found.streams} paced streams; then: {found.bound or 'no bound'}")
            self.table.add("paced streams held", "streams", process.name, found.streams)
        self.table.add("paced streams that the CPU would do for", "streams", process.name, by_cpu)

    def memory(self, process: Process) -> None:
        # This is measured once, in the first round and before everything else, because the process does not
        # return the memory of the streams.
        name = f"open stream, of {_HELD}"
        if process.name in self.table.rows.get(name, Row("", "")).values:
            return
        load = Load(process.port, "paced", 20, 200, connections=_HELD, requests=_HELD, hold=True)
        before = process.memory_kib()
        held: list[int] = []
        run_load(load, self.core, lambda: held.append(process.memory_kib()))
        self.table.add(name, "KiB", process.name, (held[0] - before) / _HELD)

    def messages(self, process: Process, messages: int) -> None:
        load = Load(
            process.port,
            "burst",
            connections=4,
            requests=self.scale.of(max(24, 400 // max(1, messages // 10)), 8),
            messages=messages,
            message_bytes=400,
        )
        cpu, _ = self.cpu_us(process, load)
        self.table.add(f"stream after {messages} messages, CPU", "µs", process.name, cpu)

    def tool_turns(self, process: Process) -> None:
        for kind, name in (("tool", "reads"), ("act", "acts, row committed first")):
            load = Load(process.port, kind, 100, connections=1, requests=self.scale.of(200, 20))
            cpu, result = self.cpu_us(process, load)
            self.table.add(f"tool turn ({name}), CPU", "µs", process.name, cpu - self.fixed[process.name])
            self.table.add(f"result to next byte upstream ({name}), p50", "ms", process.name, result.tool[0])

    def arguments(self, process: Process, size: int) -> None:
        requests = self.scale.of(max(3, min(100, 3_000_000 // size)), 2)
        load = Load(process.port, "tool", size, connections=1, requests=requests)
        cpu, result = self.cpu_us(process, load)
        label = f"{size // 1000} KB" if size < 1_000_000 else f"{size // 1_000_000} MB"
        self.table.add(f"tool run with {label} of arguments, CPU", "µs", process.name, cpu)
        self.table.add(f"tool run with {label} of arguments, wall", "ms", process.name, result.latency[0])


def record_rows(rounds: Rounds, folder: Path, core: int | None) -> None:
    """Measure tool turns, rehydration and the list of runs on a large record and on an empty one."""
    filled = folder / "filled.db"
    started_at = time.monotonic()
    done = subprocess.run(
        python("-m", "bench.record", str(filled), str(rounds.scale.record_runs)),
        check=True,
        capture_output=True,
        text=True,
    )
    rounds.say(
        f"prepared a record of {rounds.scale.record_runs} runs and {done.stdout.strip()} calls "
        f"in {time.monotonic() - started_at:.0f} s"
    )
    records = {"empty record": folder / "empty.db", "filled record": filled}
    mock = rounds.field.mock.port
    for name, store in records.items():
        with toolrelay(name, folder, mock, tools=True, store=store, core=core) as process:
            port = process.port
            rounds.cpu_us(process, Load(port, "tool", 100, connections=1, requests=10))  # Warms up.
            for _ in range(rounds.scale.rounds):
                count = rounds.scale.of(150, 20)
                cpu, result = rounds.cpu_us(process, Load(port, "tool", 100, connections=1, requests=count))
                rounds.table.add("tool run, CPU", "µs", name, cpu)
                rounds.table.add("tool run, wall p50", "ms", name, result.latency[0])
                asked = Load(port, "burst", connections=1, requests=count, messages=21)
                cpu, result = rounds.cpu_us(process, asked)
                rounds.table.add("ten answers looked up, CPU", "µs", name, cpu)
                rounds.table.add("ten answers looked up, wall p50", "ms", name, result.latency[0])
        config = toolrelay_config(folder, port, mock, tools=True, store=store)
        for _ in range(rounds.scale.rounds):
            cpu_ms, wall_ms = _command_cost(["-m", "proxy", "runs", "list", "--config", str(config)])
            rounds.table.add("runs list, CPU", "ms", name, cpu_ms)
            rounds.table.add("runs list, wall", "ms", name, wall_ms)


def worker_rows(rounds: Rounds, folder: Path) -> None:
    """Measure requests with one worker and with several, on all cores and without limits.

    CPU for each request shows whether workers hinder each other. The cores limit the rate, and the upstream
    and the clients share them.
    """
    mock, scale = rounds.field.mock.port, rounds.scale
    with contextlib.ExitStack() as stack:
        fields = [
            stack.enter_context(toolrelay(name, folder, mock, tools=False, core=None, workers=count))
            for count, name in _workers()
        ]
        for process in fields:
            run_load(Load(process.port, requests=200), None)
        for _ in range(scale.rounds):
            for process in fields:
                cpu, result = rounds.cpu_us(process, Load(process.port, requests=scale.of(1500, 64)))
                rounds.table.add("request, CPU", "µs", process.name, cpu)
                rounds.table.add("request, wall at 16", "µs", process.name, result.wall_s / result.done * 1e6)
        for process in fields:
            rounds.table.add("all processes", "MiB", process.name, process.memory_kib() / 1024)


def _workers() -> list[tuple[int, str]]:
    cores = len(os.sched_getaffinity(0))
    return [(count, f"{count} worker{'s' * (count > 1)}") for count in sorted({1, 2, min(cores, 8)})]


def _command_cost(arguments: Sequence[str]) -> tuple[float, float]:
    """Return CPU and wall time of one command, in milliseconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started_at = time.monotonic()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    wall = time.monotonic() - started_at
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu * 1000, wall * 1000


def run_rows(
    field_: Field,
    scale: Scale,
    folder: Path,
    *,
    core: int | None,
    instruments: int | None,
    say: Callable[[str], None],
) -> tuple[Table, Table, Table]:
    """Run all rounds; return the tables of contestants, of records, and of workers."""
    table, records, workers = Table(), Table(), Table()
    rounds = Rounds(table, field_, scale, instruments, say)
    for name, process in field_.proxies.items():
        table.add("fresh worker", "MiB", name, process.memory_kib() / 1024)
    for process in field_.proxies.values():
        for load in (Load(process.port, requests=200), Load(process.port, "burst", requests=100)):
            run_load(load, instruments)  # One-time costs do not count.
    for number in range(scale.rounds):
        say(f"round {number + 1} of {scale.rounds}")
        rounds.round(number)
    record_rows(Rounds(records, field_, scale, instruments, say), folder, core)
    say("several workers")
    worker_rows(Rounds(workers, field_, scale, None, say), folder)
    table.failed += records.failed + workers.failed
    return table, records, workers
