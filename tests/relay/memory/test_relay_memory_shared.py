"""With several processes, what the next request continues from is stored before a client can send it."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from looping import ANSWER, ASK, CLIENT_TOOL, TIME, called, looping
from raw_upstream import Step
from responses_script import function, function_call, message
from responses_script import stream as response_stream
from running_proxy import Proxy
from waiting import until

from proxy.server.messages.response import HttpClientStream
from proxy.store.base import RunFilter

UTC = '{"timezone":"UTC"}'
CALL = called(("call_s", TIME, UTC))
MIXED = called(("call_s", TIME, UTC), ("call_c", "mine", "{}"))
RESPONSES = [
    response_stream(function_call("call_s", TIME, UTC)),
    response_stream(message("Noon."), id="resp_2"),
]
CASES: dict[str, tuple[Sequence[list[Step]], dict[str, Any], str]] = {
    "hidden turns": ([CALL, ANSWER], ASK, "/v1/chat/completions"),
    "a turn that waits": ([MIXED], {**ASK, "tools": [CLIENT_TOOL]}, "/v1/chat/completions"),
    "a response": (RESPONSES, {"model": "m", "stream": True, "input": "hi"}, "/v1/responses"),
}


@pytest.mark.parametrize("case", sorted(CASES))
@pytest.mark.parametrize("workers", [1, 2])
async def test_the_record_is_settled_before_the_end(
    case: str, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With several workers the end of a run with hidden turns waits for the record. With one worker it
    waits only if the turn waits for its client, because a crash would lose that turn."""
    scripts, ask, path = CASES[case]
    steps: list[str] = []
    finish = HttpClientStream.finish

    def watched_finish(self: HttpClientStream) -> None:
        steps.append("end")
        finish(self)

    monkeypatch.setattr(HttpClientStream, "finish", watched_finish)
    store = {"url": f"sqlite:///{tmp_path}/r.db"}
    async with looping(*scripts, store=store, server={"workers": workers}) as (proxy, _):
        watch_commits(proxy, steps, monkeypatch)
        assert (await proxy.ask(ask, path=path)).status == 200
    waits = workers > 1 or case == "a turn that waits"
    assert steps == (["settled True", "end"] if waits else ["end"])


PATH = "/v1/chat/completions"
WAITS = [response_stream(function_call("call_s", TIME, UTC), function_call("call_c", "mine"))]
UNKEPT = {"model": "m", "stream": True, "input": "hi", "store": False}
NOTHING_TO_FIND: dict[str, tuple[Sequence[list[Step]], dict[str, Any], str, dict[str, Any]]] = {
    "no hidden turn": ([ANSWER], ASK, PATH, {}),
    "answers are not looked up": ([CALL, ANSWER], ASK, PATH, {"history": False}),
    "a turn that only memory holds": (WAITS, {**UNKEPT, "tools": [function("mine")]}, "/v1/responses", {}),
    "a response that is not kept": (RESPONSES, UNKEPT, "/v1/responses", {}),
}


@pytest.mark.parametrize("case", sorted(NOTHING_TO_FIND))
async def test_a_run_that_leaves_nothing_to_find_waits_for_nothing(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even with several workers, no stream waits for the record if no other worker has to find anything."""
    scripts, ask, path, settings = NOTHING_TO_FIND[case]
    steps: list[str] = []
    store = {"url": f"sqlite:///{tmp_path}/r.db", **settings}
    async with looping(*scripts, store=store, server={"workers": 2}) as (proxy, _):
        watch_commits(proxy, steps, monkeypatch)
        assert (await proxy.ask(ask, path=path)).status == 200
    assert steps == []


async def test_without_content_there_is_nothing_to_wait_for(tmp_path: Path) -> None:
    """With ``none`` the turns are in memory only, so a locked record delays no stream."""
    store = {"url": f"sqlite:///{tmp_path}/r.db", "content": "none"}
    async with looping(CALL, ANSWER, store=store, server={"workers": 2}) as (proxy, _):
        await proxy.ask(ASK)
        with closing(sqlite3.connect(tmp_path / "r.db", isolation_level=None)) as holder:
            await until(lambda: proxy.services.store.waiting == 0)
            holder.execute("BEGIN EXCLUSIVE")
            proxy.services.store.put_run((await proxy.services.store.list_runs(RunFilter()))[0])
            assert await proxy.services.store.wait_until_visible(0.05)
            assert proxy.services.store.waiting
            holder.execute("ROLLBACK")


def watch_commits(proxy: Proxy, steps: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Add a step each time the record was waited for."""
    wait = proxy.services.store.wait_until_visible

    async def watched_wait(within_s: float) -> bool:
        done = await wait(within_s)
        steps.append(f"settled {done}")
        return done

    monkeypatch.setattr(proxy.services.store, "wait_until_visible", watched_wait)
