"""After thousands of mixed streams with faults, the process has the resources that it had before.

``TOOLRELAY_TEST_SOAK`` is the number of streams: 2000 in CI, 10000 with ``python -m bench.soak``.
"""

import asyncio
import collections
import gc
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from faults_rig import ECHO, SSE_HEAD, TIME, before
from raw_upstream import FIN, HANG, RESET, RawRequest, RawUpstream, Step, chunk, chunked, whole
from running_proxy import Answer, Proxy
from waiting import LATE_S, until
from wire_kits import KITS, Kit

from proxy.base.caches import cache_sizes

STREAMS = int(os.environ.get("TOOLRELAY_TEST_SOAK", "2000"))
AT_ONCE = 32
FIRST = 400
"""Streams before the first measurement, which fill imports, pools and caches."""

TEXT = ("Grüße ", "aus ", "dem ", "Rechenzentrum ") * 4
CALLS = (("call_1", TIME, '{"timezone":"UTC"}'), ("call_2", ECHO, '{"text":"a"}'))


def _script(kit: Kit, case: str, later: bool) -> list[Step]:
    """Return the upstream's script for a case, on its first turn or a later one."""
    if later and case != "later turn breaks":
        return kit.whole("done") if case == "tools, whole" else kit.stream("done")
    begun = chunk(kit.begun("a"))
    scripts: dict[str, list[Step]] = {
        "plain": kit.stream(*TEXT),
        "whole": kit.whole("fine"),
        "tools": kit.turn(*CALLS, text="Wait."),
        "tools, whole": kit.whole("", *CALLS),
        "client tool": kit.turn(("call_c", "mine", "{}")),
        "reset": [SSE_HEAD, begun, RESET],
        "closed": [SSE_HEAD, begun, FIN],
        "malformed chunk": [SSE_HEAD + begun + b"zz\r\n", HANG],
        "half call": [SSE_HEAD, chunk(kit.half_call(ECHO, '{"te')), FIN],
        "no answer": [RESET],
        "refused": whole(b'{"error":{"message":"slow"}}', status="429 Slow"),
        "later turn breaks": [SSE_HEAD, begun, RESET] if later else kit.turn(CALLS[0]),
        "rubbish": chunked(b"data: {\n\n" * 20, kit.text("a")),
        "leaves": [SSE_HEAD, begun, HANG],
        "leaves early": [HANG],
    }
    return scripts[case]


def _play(request: RawRequest) -> list[Step]:
    kit = next(kit for kit in KITS.values() if kit.path == request.target)
    later = b'"role":"tool"' in request.body or b"function_call_output" in request.body
    return _script(kit, request.header("x-case") or "", later)


Check = Callable[[Kit, Answer], None]


def _says(text: str, *, stream: bool = True) -> Check:
    def check(kit: Kit, answer: Answer) -> None:
        said = kit.said(stream, answer.body, hidden=(TIME, ECHO))
        assert answer.clean
        assert said.text.endswith(text)
        assert said.error is None

    return check


def _breaks(kit: Kit, answer: Answer) -> None:
    assert answer.clean
    assert kit.read(answer.body, hidden=(TIME, ECHO)).error is not None


def _fails(status: int) -> Check:
    def check(kit: Kit, answer: Answer) -> None:
        assert (answer.status, answer.clean) == (status, True)

    return check


def _calls_mine(kit: Kit, answer: Answer) -> None:
    assert kit.read(answer.body).calls == [("call_c", "mine", "{}")]


def _passes_rubbish(kit: Kit, answer: Answer) -> None:
    assert answer.clean
    assert answer.body.endswith(kit.text("a"))


CASES: Mapping[str, Check] = {
    "plain": _says("".join(TEXT)),
    "whole": _says("fine", stream=False),
    "tools": _says("done"),
    "tools, whole": _says("done", stream=False),
    "client tool": _calls_mine,
    "reset": _breaks,
    "closed": _breaks,
    "malformed chunk": _breaks,
    "half call": _breaks,
    "no answer": _fails(502),
    "refused": _fails(429),
    "later turn breaks": _breaks,
    "rubbish": _passes_rubbish,
}


async def _stream(proxy: Proxy, kit: Kit, case: str) -> None:
    """Play one client, from its connection to its end."""
    tools = ["mine"] if case == "client tool" else []
    body = kit.ask(stream=not case.endswith("whole"), tools=tools)
    if case in CASES:
        CASES[case](kit, await proxy.ask(body, {"x-case": case}, path=kit.path))
    elif case == "malformed":
        async with proxy.connect() as conversation:
            conversation.writer.write(b"POST /v1 HTTP/1.1\r\nX : a\r\n\r\n")
            assert (await conversation.answer()).status == 400
    else:
        async with proxy.sent(body, {"x-case": case}, path=kit.path) as conversation:
            if case == "leaves":
                await conversation.reader.readuntil(b'"a"')
            conversation.leave()


async def _soak(proxy: Proxy, upstream: RawUpstream, streams: int, rng: random.Random) -> None:
    """Play so many streams, several at once."""
    kits = [*KITS.values()]
    cases = [*CASES, "plain", "tools", "malformed", "leaves", "leaves early"]
    left = iter(range(streams))

    async def worker() -> None:
        for _ in left:
            await _stream(proxy, rng.choice(kits), rng.choice(cases))
            # The requests that the upstream keeps would count as the proxy's memory.
            upstream.requests.clear()

    await asyncio.gather(*[worker() for _ in range(AT_ONCE)])


def _state() -> tuple[int, int, collections.Counter[str]]:
    """Count descriptors, tasks, and living objects of the proxy and of aiohttp by type."""
    gc.collect()
    kinds = collections.Counter(
        f"{type(thing).__module__}.{type(thing).__qualname__}"
        for thing in gc.get_objects()
        if str(type(thing).__module__).startswith(("proxy.", "aiohttp."))
    )
    return len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks()), kinds


def _rss() -> int:
    pages = Path("/proc/self/statm").read_text("ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.timeout(120 + STREAMS // 10)
async def test_soak(tmp_path: Path) -> None:
    """C39: after many streams, tools and faults, no descriptor, task, object or memory is left over."""
    rng = random.Random(20)
    store = {"url": f"sqlite:///{tmp_path}/record.db"}
    served = {"idle_timeout_s": LATE_S, "forward_headers": ["x-case"]}
    async with before(_play, store=store, served=served) as (proxy, upstream):

        async def quiet() -> bool:
            return not any(run.status == "running" for run in await proxy.runs())

        await _soak(proxy, upstream, FIRST, rng)
        await until(quiet)
        fds, tasks, kinds = _state()
        pooled, memory = upstream.open_connections, _rss()
        await _soak(proxy, upstream, max(STREAMS - FIRST, FIRST), rng)
        await until(quiet)
        # Connections kept for the next request are no leak; each has two sockets in this process.
        spare = 2 * max(0, upstream.open_connections - pooled)

        async def as_before() -> bool:
            now_fds, now_tasks, _ = _state()
            return now_fds <= fds + spare + 4 and now_tasks <= tasks + spare // 2 + 4

        await until(as_before)
        _, _, now = _state()
        grown = {
            kind: count - kinds[kind] for kind, count in now.items() if count - kinds[kind] > 3 * AT_ONCE
        }
        assert grown == {}
        over = {name: size for name, size in cache_sizes().items() if size.held > size.limit}
        assert over == {}
        assert _rss() - memory <= 32 << 20
