"""``python -m bench.kept_bytes``: the cost of keeping the bytes of each run, from client and upstream.

Two proxies run side by side. Both keep all content and offer tools, so each request is a run in the record.
One of them also keeps the bytes.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from bench.contestants import PROXY_CORE, toolrelay
from bench.pairs import Pair, compare
from bench.processes import Process


@contextlib.contextmanager
def proxies(folder: Path, upstream: int) -> Iterator[Pair]:
    """Run a proxy that keeps only messages, and one that keeps messages and bytes."""

    def serve(name: str, keeps: str) -> contextlib.AbstractContextManager[Process]:
        env = {"TOOLRELAY_STORE__CONTENT": "all", "TOOLRELAY_STORE__WIRE_BYTES": keeps}
        return toolrelay(name, folder, upstream, tools=True, core=PROXY_CORE, env=env)

    with serve("messages", "false") as messages, serve("bytes", "true") as kept:
        yield messages, kept


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    return compare(
        "bench.kept_bytes",
        "Measure the cost of kept bytes.",
        ("messages", "messages and bytes"),
        proxies,
        arguments,
    )


if __name__ == "__main__":
    raise SystemExit(main())
