"""``python -m bench.hosted_search``: the cost of a request that declares ``web_search`` and does not use it.

Two proxies with the same configuration run side by side, with two tools offered. The requests to one of them
declare their provider's search, which one of the two tools serves; the requests to the other declare a
function, which an alias replaces by the same tool.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from bench.contestants import PROXY_CORE, toolrelay
from bench.pairs import Pair, compare

DECLARED = '[{"type": "web_search"}]'
FUNCTION = '[{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]'
SERVING = '[tools.hosted]\nweb_search = "bench_tools__work"\n[tools.aliases]\nsearch = "bench_tools__work"\n'


@contextlib.contextmanager
def proxies(folder: Path, upstream: int) -> Iterator[Pair]:
    """Run the two proxies."""
    with (
        toolrelay("function", folder, upstream, tools=True, core=PROXY_CORE, more=SERVING) as function,
        toolrelay("declared", folder, upstream, tools=True, core=PROXY_CORE, more=SERVING) as declared,
    ):
        yield function, declared


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    return compare(
        "bench.hosted_search",
        "Measure the cost of a declared search that is not used.",
        ("a function of the client's", "web_search"),
        proxies,
        arguments,
        tools=(FUNCTION, DECLARED),
    )


if __name__ == "__main__":
    raise SystemExit(main())
