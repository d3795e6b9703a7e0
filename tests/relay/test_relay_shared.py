"""Where several processes serve: what the next request goes on from is there before a client can send it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from looping import ANSWER, ASK, CLIENT_TOOL, TIME, called, looping
from raw_upstream import Step
from responses_script import function_call, message
from responses_script import stream as response_stream

from proxy.server.client_stream import HttpClientStream

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
    """With several workers the end of a run with hidden turns waits for its record; alone it does not."""
    scripts, ask, path = CASES[case]
    steps: list[str] = []
    finish = HttpClientStream.finish

    def watched_finish(self: HttpClientStream) -> None:
        steps.append("end")
        finish(self)

    monkeypatch.setattr(HttpClientStream, "finish", watched_finish)
    store = {"url": f"sqlite:///{tmp_path}/r.db"}
    async with looping(*scripts, store=store, server={"workers": workers}) as (proxy, _):
        settle = proxy.services.store.settle

        async def watched_settle(within_s: float) -> bool:
            done = await settle(within_s)
            steps.append(f"settled {done}")
            return done

        monkeypatch.setattr(proxy.services.store, "settle", watched_settle)
        assert (await proxy.ask(ask, path=path)).status == 200
    assert steps == (["settled True", "end"] if workers > 1 else ["end"])
