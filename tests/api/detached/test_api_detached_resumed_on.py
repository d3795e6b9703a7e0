"""A process dies at any step of a stream that may be resumed: the next process goes on with it."""

import re
from pathlib import Path
from typing import Any

import pytest
from abandoned_rig import PLAN, WORLD, abandoned, turns_complete
from official_clients import READERS
from pair_kits import SPEAKERS, Message
from running_proxy import Proxy

from proxy.base.errors import RequestError
from proxy.relay.planning import Planner

PLACES = {"asked 1", "within 1", "look 1 begins", "strike a begins", "asked 3", "within 4"}
CROSSED = {"chat": "chat", "responses": "responses", "anthropic": "anthropic", "ollama": "chat"}


@pytest.mark.parametrize("client", ["chat", "responses", "anthropic", "ollama"])
async def test_a_resumed_stream_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: str) -> None:
    """Wherever its process died, the official client of each dialect gets one whole answer with the words of
    the complete turns, which are not asked again. No effect happens twice."""
    speaker, wire = SPEAKERS[client], CROSSED[client]
    body = {**speaker.ask([Message("user", "Do it.")]), "model": SPEAKERS[wire].model}

    def heard(answer: bytes) -> dict[int, str]:
        text = READERS[client]([answer], stream=True).text
        return {int(turn): word for turn, word in re.findall(r"Turn (\d), (\w{8})\.", text)}

    async with abandoned(monkeypatch, tmp_path, "sqlite", wire) as run:

        async def serve(proxy: Proxy) -> tuple[str, bytes]:
            answer = await proxy.ask(body, {"x-toolrelay-resume": "on"}, path=speaker.path)
            assert (answer.status, answer.clean) == (200, True)
            return answer.header("x-toolrelay-run") or "", answer.body

        left, (run_id, first) = await run.until_the_end(serve, None, PLACES)
        said = heard(first)
        assert sorted(said) == [1, 2, 3, 4]
        for one in left:
            async with run.found(one) as proxy:
                answer = await proxy.ask(body, {"x-toolrelay-resume": run_id}, path=speaker.path)
            assert (answer.status, answer.clean, one.place) == (200, True, one.place)
            assert answer.header("x-toolrelay-run") != run_id
            again, done = heard(answer.body), turns_complete(one)
            assert sorted(again) == [1, 2, 3, 4]
            assert {turn: again[turn] for turn in range(1, done + 1)} == {
                turn: said[turn] for turn in range(1, done + 1)
            }
            assert WORLD.turns == list(range(done + 1, len(PLAN) + 1)), one.place
            assert WORLD.struck == list(dict.fromkeys(WORLD.struck)), one.place


async def test_a_refused_attempt_leaves_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that has no room now takes nothing from the run: the client's next attempt goes on with it."""
    speaker = SPEAKERS["chat"]
    body = {**speaker.ask([Message("user", "Do it.")]), "model": speaker.model}

    async def refuse(*_: Any) -> Any:
        raise RequestError(503, "no room")

    async with abandoned(monkeypatch, tmp_path, "sqlite", "chat") as run:

        async def serve(proxy: Proxy) -> str:
            answer = await proxy.ask(body, {"x-toolrelay-resume": "on"}, path=speaker.path)
            return answer.header("x-toolrelay-run") or ""

        left, run_id = await run.until_the_end(serve, None, {"asked 3"})
        async with run.found(left[0]) as proxy:
            with monkeypatch.context() as patch:
                patch.setattr(Planner, "job", refuse)
                refused = await proxy.ask(body, {"x-toolrelay-resume": run_id}, path=speaker.path)
            answer = await proxy.ask(body, {"x-toolrelay-resume": run_id}, path=speaker.path)
    assert (refused.status, answer.status) == (503, 200)
    done = turns_complete(left[0])
    assert done > 0
    assert WORLD.turns == list(range(done + 1, len(PLAN) + 1))


async def test_nothing_is_counted_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record counts each answer of the model once: in the run that asked for it."""
    speaker = SPEAKERS["chat"]
    body = {**speaker.ask([Message("user", "Do it.")]), "model": speaker.model}

    async with abandoned(monkeypatch, tmp_path, "sqlite", "chat") as run:

        async def serve(proxy: Proxy) -> str:
            answer = await proxy.ask(body, {"x-toolrelay-resume": "on"}, path=speaker.path)
            return answer.header("x-toolrelay-run") or ""

        left, run_id = await run.until_the_end(serve, None, {"asked 3"})
        async with run.found(left[0]) as proxy:
            answer = await proxy.ask(body, {"x-toolrelay-resume": run_id}, path=speaker.path)
            detail = await proxy.services.store.get_run(answer.header("x-toolrelay-run") or "")
    done = turns_complete(left[0])
    assert done == 2
    assert detail is not None
    assert detail.run.total_tokens == 15 * (len(PLAN) - done)
    assert [turn.total_tokens for turn in detail.turns] == [0] * done + [15] * (len(PLAN) - done)
