"""``python -m bench.stages``: what each stage of a request costs in one warm worker, as a table.

The unit is instructions if valgrind is installed: callgrind counts them, so the figures hardly depend on the
machine and its load. Otherwise there are two tables: calls of functions, and microseconds of CPU.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from bench.contestants import toolrelay_config
from bench.load import Load
from bench.measure import run_load
from bench.processes import Process, free_port, python, started
from bench.staged_worker import MARK, MARKS, REST, STAGES, THREADS
from bench.wire import KEY

KINDS: Mapping[str, tuple[bool, Load]] = MappingProxyType(
    {
        "passed": (False, Load(0)),
        "stream": (False, Load(0, "burst")),
        "passed, 1,000 messages": (False, Load(0, "burst", messages=1000, message_bytes=400)),
        "offered": (True, Load(0)),
        "offered stream": (True, Load(0, "burst")),
        "turn that reads": (True, Load(0, "tool", 100)),
        "turn with an effect": (True, Load(0, "act", 100)),
        "1,000 messages": (True, Load(0, "burst", messages=1000, message_bytes=400)),
        "1 MB of arguments": (True, Load(0, "tool", 1_000_000)),
    }
)
"""What is measured: whether tools are offered, and the requests."""

_FEW = 2
_LINGER_S = 0.3
"""So long the last rows and lines of a measurement may take, of the machine's time."""
_WAIT_S = 300.0
_CALLGRIND = ("--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes", f"--dump-before={MARK}")
_SHOWN = (REST, *STAGES, THREADS)
_DUMP = re.compile(r"counts\.(\d+)-(\d+)\Z")
_SUM = re.compile(rb"^summary: (\d+)", re.MULTILINE)


class _Worker:
    """A metered worker that runs, and the folder where it writes what it measured."""

    def __init__(self, process: Process, folder: Path, meter: str) -> None:
        self._process = process
        self._folder = folder
        self._meter = meter
        self._measured = 0

    def ask(self, load: Load, requests: int) -> None:
        """Send so many requests, one after the other."""
        sent = {"port": self._process.port, "connections": 1, "requests": requests}
        result = run_load(Load(**{**vars(load), **sent}), None)
        if result.failed:
            raise RuntimeError(f"{result.failed} of {result.done} requests failed")
        time.sleep(_LINGER_S)

    def measure(self, load: Load, requests: int) -> dict[str, float]:
        """Return what each stage spends on so many requests of a load, in the units of the meter."""
        self._toggle(f"{self._measured}.begun")
        self.ask(load, requests)
        pieces = json.loads(self._toggle(str(self._measured)))
        self._measured += 1
        if self._meter == "instructions":
            pieces = self._from_dumps([stage for stage, _ in pieces])
        taken = [spent for stage, spent in pieces if stage == MARKS]
        each = sum(taken) / len(taken)
        found: dict[str, float] = {}
        for stage, spent in pieces:
            found[stage] = found.get(stage, 0.0) + spent - (0 if stage == THREADS else each)
        return {stage: spent for stage, spent in found.items() if stage in _SHOWN}

    def count_instructions(self) -> None:
        """Let callgrind count from now on: the start took long enough without."""
        self._control("--instr=on")

    def _control(self, command: str) -> None:
        control = shutil.which("callgrind_control") or "callgrind_control"
        subprocess.run([control, command, str(self._process.pids()[0])], check=True, capture_output=True)

    def _toggle(self, wait_for: str) -> str:
        os.kill(self._process.pids()[0], signal.SIGUSR2)
        give_up = time.monotonic() + _WAIT_S
        while not (path := self._folder / wait_for).exists():
            if time.monotonic() > give_up or not self._process.pids():
                raise RuntimeError("the worker does not measure")
            time.sleep(0.02)
        return path.read_text()

    def _from_dumps(self, stages: Sequence[str]) -> list[tuple[str, int]]:
        """Return the pieces with their instructions: each mark made a dump of the loop's thread, in order.

        What the other threads took is in the last dump, which callgrind is asked for.
        """
        self._control("--dump")
        marked: dict[int, int] = {}
        others = 0
        for path in self._folder.iterdir():
            if found := _DUMP.search(path.name):
                text = path.read_bytes()
                instructions = int(found_sum[1]) if (found_sum := _SUM.search(text)) else 0
                if b"--dump-before" in text[:2000]:
                    marked[int(found[1])] = instructions
                elif int(found[2]) > 1:
                    others += instructions
                path.unlink()
        counts = [marked[number] for number in sorted(marked)]
        return [*zip(stages[:-1], counts, strict=True), (THREADS, others)]


@contextlib.contextmanager
def _worker(folder: Path, upstream: int, meter: str, *, tools: bool) -> Iterator[_Worker]:
    port = free_port()
    config = toolrelay_config(folder, port, upstream, tools=tools, store=folder / f"record-{port}.db")
    place = folder / f"measured-{port}"
    place.mkdir()
    command = python("-m", "bench.staged_worker", str(config), meter, str(place))
    if meter == "instructions":
        command = ["valgrind", *_CALLGRIND, f"--callgrind-out-file={place}/counts", *command]
    # Otherwise the order of sets, and with it the number of instructions, changes from run to run.
    env = {"BENCH_KEY": KEY, "PYTHONHASHSEED": "0"}
    with started(
        "worker", port, command, folder / f"{port}.log", core=None, env=env, ready_s=_WAIT_S
    ) as process:
        yield _Worker(process, place, meter)


def units() -> Sequence[str]:
    """Return the meters to use on this machine."""
    return ("instructions",) if shutil.which("valgrind") else ("calls", "cpu")


def measure(meter: str, kinds: Sequence[str], requests: int) -> dict[str, dict[str, float]]:
    """Return, for each kind of request, what each stage spends on one."""
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="toolrelay-bench-") as name, contextlib.ExitStack() as stack:
        folder, port = Path(name), free_port()
        command = python("-m", "bench.mock", str(port))
        stack.enter_context(started("mock", port, command, folder / "mock.log", core=None))
        for tools in (False, True):
            of_these = [kind for kind in kinds if KINDS[kind][0] == tools]
            if not of_these:
                continue
            with _worker(folder, port, meter, tools=tools) as worker:
                for kind in of_these:
                    worker.ask(KINDS[kind][1], 2 * requests)  # What happens once does not count.
                if meter == "instructions":
                    worker.count_instructions()
                for kind in of_these:
                    # A connection, a measurement and the idle loop cost the same for few and for many.
                    few = worker.measure(KINDS[kind][1], _FEW)
                    many = worker.measure(KINDS[kind][1], _FEW + requests)
                    found[kind] = {
                        stage: max(spent - few.get(stage, 0.0), 0.0) / requests
                        for stage, spent in many.items()
                    }
    return found


def show(found: Mapping[str, dict[str, float]], meter: str) -> str:
    """Return the table: a row for each stage, a column for each kind of request."""
    unit = {"instructions": "thousand instructions", "calls": "calls", "cpu": "µs of CPU"}[meter]
    divisor = {"instructions": 1000.0, "calls": 1.0, "cpu": 1000.0}[meter]
    lines = [f"| {unit} | " + " | ".join(found) + " |", "|---" * (len(found) + 1) + "|"]
    for stage in _SHOWN:
        cells = [f"{spent[stage] / divisor:,.0f}" if stage in spent else "" for spent in found.values()]
        if any(cells):
            lines.append(f"| {stage} | " + " | ".join(cells) + " |")
    sums = [f"**{sum(spent.values()) / divisor:,.0f}**" for spent in found.values()]
    return "\n".join([*lines, "| all | " + " | ".join(sums) + " |"])


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.stages", description="Measure by stages.")
    parser.add_argument("--requests", type=int, default=8, help="requests of each kind (8)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS], metavar="KIND")
    given = parser.parse_args(arguments)
    if shutil.which("valgrind") is None:
        print("valgrind is not installed, so no instructions are counted, but calls and CPU.\n")
    for meter in units():
        print(show(measure(meter, given.kinds, given.requests), meter), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
