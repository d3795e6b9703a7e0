"""``python -m bench``: measure, and print tables."""

import argparse
import os
import platform
import signal
import sys
import tempfile
from pathlib import Path

from bench.contestants import INSTRUMENT_CORE, PROXY_CORE, field_of
from bench.measure import Scale, run_rows
from bench.report import plot_delays, show_table

LONG_RUNS = 300_000
"""These runs make a million calls, because three runs make ten calls."""


def main(arguments: list[str] | None = None) -> int:
    """Run the bench; return 1 if any response was wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure what the proxy costs, compared with others."
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of every row (3)")
    parser.add_argument(
        "--quick", action="store_true", help="one short round: an impression, no reliable figures"
    )
    parser.add_argument("--long", action="store_true", help=f"with a record of {LONG_RUNS} runs")
    parser.add_argument(
        "--plot", type=Path, default=None, metavar="FILE", help="write the plot of delays (SVG)"
    )
    parser.add_argument("--out", type=Path, default=None, metavar="FILE", help="write the tables there, too")
    given = parser.parse_args(arguments)
    if sys.platform != "linux":
        parser.error("it reads /proc and runs on Linux only")
    scale = Scale(
        rounds=1 if given.quick else given.rounds,
        factor=0.15 if given.quick else 1.0,
        record_runs=LONG_RUNS if given.long else 300 if given.quick else 3000,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # So that all started processes end.
    two = len(os.sched_getaffinity(0)) > 1
    core, instruments = (PROXY_CORE, INSTRUMENT_CORE) if two else (None, None)
    with tempfile.TemporaryDirectory(prefix="toolrelay-bench-") as name:
        folder = Path(name)
        with field_of(folder, core=core, instruments=instruments) as contestants:
            table, records, workers = run_rows(
                contestants,
                scale,
                folder,
                core=core,
                instruments=instruments,
                say=lambda line: print(line, file=sys.stderr, flush=True),
            )
    text = "\n\n".join(
        [
            f"Python {platform.python_version()}, {platform.system()} {platform.release()}, "
            f"{os.cpu_count()} cores, {scale.rounds} rounds",
            show_table(table, "Beside others", ("nginx", "aiohttp")),
            show_table(records, f"With {scale.record_runs} runs on record", ("empty record",)),
            show_table(workers, "Over several workers", ("1 worker",)),
        ]
    )
    print(text)
    if given.out is not None:
        given.out.write_text(text + "\n", encoding="utf-8")
    if given.plot is not None:
        given.plot.write_text(plot_delays(table), encoding="utf-8")
    for line in table.failed:
        print(f"failed: {line}", file=sys.stderr)
    return 1 if table.failed else 0


if __name__ == "__main__":
    sys.exit(main())
