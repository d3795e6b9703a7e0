"""Compares the stream costs of two proxies that differ in one thing, as ratios within one run."""

import argparse
import contextlib
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bench.contestants import INSTRUMENT_CORE
from bench.load import Load
from bench.measure import run_load
from bench.processes import Process, free_port, python, started

_CHUNKS = 100
Pair = tuple[Process, Process]


def _rows(process: Process, core: int | None, factor: float, uncounted: str, tools: str) -> dict[str, float]:
    """Measure one round: CPU microseconds for each request, stream and paced chunk."""

    def cost(load: Load) -> float:
        before = process.cpu_s(uncounted)
        result = run_load(replace(load, tools=tools), core)
        if result.failed:
            raise RuntimeError(f"{process.name}: {result.failed} of {result.done} {load.kind} failed")
        return (process.cpu_s(uncounted) - before) / result.done * 1e6

    stream = cost(Load(process.port, "burst", requests=round(1200 * factor)))
    paced_streams = round(50 * factor)
    paced = cost(Load(process.port, "paced", _CHUNKS, 10, connections=paced_streams, requests=paced_streams))
    return {
        "request": cost(Load(process.port, requests=round(3000 * factor))),
        "stream of one chunk": stream,
        "chunk, paced": (paced - stream) / _CHUNKS,
    }


def compare(
    module: str,
    about: str,
    titles: tuple[str, str],
    proxies: Callable[[Path, int], contextlib.AbstractContextManager[Pair]],
    arguments: list[str] | None,
    *,
    uncounted: str = "",
    tools: tuple[str, str] = ("", ""),
) -> int:
    """Measure the proxies in turns and print the table; return the exit status.

    ``proxies`` takes a folder and the port of the upstream. The CPU of processes whose command line contains
    ``uncounted`` does not count. ``tools`` is what the requests to each declare, as JSON.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    parser.add_argument("--rounds", type=int, default=7, help="rounds of every row (7)")
    parser.add_argument(
        "--quick", action="store_true", help="one short round: an impression, no reliable figures"
    )
    given = parser.parse_args(arguments)
    factor, count = (0.1, 1) if given.quick else (1.0, given.rounds)
    found: dict[str, tuple[list[float], list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="toolrelay-bench-") as name, contextlib.ExitStack() as stack:
        folder, port = Path(name), free_port()
        command = python("-m", "bench.mock", str(port))
        stack.enter_context(started("mock", port, command, folder / "mock.log", core=INSTRUMENT_CORE))
        both = stack.enter_context(proxies(folder, port))
        for process, declared in () if given.quick else zip(both, tools, strict=True):
            _rows(process, INSTRUMENT_CORE, 0.1, uncounted, declared)  # One-time costs do not count.
        for number in range(count):
            for which in (0, 1) if number % 2 == 0 else (1, 0):
                for row, value in _rows(
                    both[which], INSTRUMENT_CORE, factor, uncounted, tools[which]
                ).items():
                    found.setdefault(row, ([], []))[which].append(value)
    print(f"| CPU, µs | {titles[0]} | {titles[1]} | ratio of the rounds |")
    print("|---|---|---|---|")
    for row, (without, beside) in found.items():
        ratios = [much / little for little, much in zip(without, beside, strict=True)]
        print(
            f"| {row} | {statistics.median(without):.1f} | {statistics.median(beside):.1f} "
            f"| {statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f}) |"
        )
    return 0
