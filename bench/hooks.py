"""``python -m bench.hooks``: what hooks cost, beside the same proxy without any.

The first table has a hook for calls of tools, and no request calls one: what is not asked costs nothing. In
the second a hook for requests reads each conversation and changes nothing. In the third one it puts a
placeholder into each, so that every event of the answer is read to put the original back.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.contestants import PROXY_CORE, toolrelay
from bench.pairs import Pair, compare

HOOKS = {
    "a hook that is not asked": """
class Hook:
    async def before_tool(self, call):
        return None
""",
    "a hook that reads": """
class Hook:
    async def before_request(self, request):
        return None
""",
    "a hook that masks": """
from proxy.hooks import RequestChange

class Hook:
    async def before_request(self, request):
        texts = [f"[MASKED_ABC] {one.text}" for one in request.texts]
        return RequestChange(texts=texts, originals={"[MASKED_ABC]": "an original"})
""",
}


def proxies(code: str) -> Callable[[Path, int], contextlib.AbstractContextManager[Pair]]:
    """Return what runs a proxy without a hook, and one with the hook of this code."""

    @contextlib.contextmanager
    def run(folder: Path, upstream: int) -> Iterator[Pair]:
        path = folder / "bench_hook.py"
        path.write_text(f"{code}\nhooks = Hook()\n")
        with (
            toolrelay("without", folder, upstream, tools=False, core=PROXY_CORE) as without,
            toolrelay(
                "hooked",
                folder,
                upstream,
                tools=False,
                core=PROXY_CORE,
                more=f'[hooks]\nmodules = ["{path}"]\n',
            ) as hooked,
        ):
            yield without, hooked

    return run


def main(arguments: list[str] | None = None) -> int:
    """Print the tables."""
    about = "Measure what hooks cost."
    return max(
        compare("bench.hooks", about, ("no hook", title), proxies(code), arguments)
        for title, code in HOOKS.items()
    )


if __name__ == "__main__":
    raise SystemExit(main())
