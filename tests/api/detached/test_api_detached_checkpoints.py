"""A process dies at any step of a run of several turns: another goes on after the last complete step."""

import json
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from abandoned_rig import LOOK, PLAN, STRIKE, WORLD, Left, abandoned, turns_complete
from running_proxy import Proxy
from waiting import until

from proxy.api.detached.logs.event_log import EventLog, LocalLogs
from proxy.relay.memory import steps

SOME = {"within 2", "look 2 begins", "strike c is over"}
"""The places at which a record in PostgreSQL is copied, since a copy takes seconds."""
Events = list[tuple[int, bytes]]


async def ended(proxy: Proxy, response_id: str) -> dict[str, Any]:
    """Wait for the end of a response, and return it."""
    found: dict[str, Any] = {}

    async def is_over() -> bool:
        answer = await proxy.get(f"/v1/responses/{response_id}")
        found.update(answer.json)
        return found.get("status") in ("completed", "failed", "cancelled")

    await until(is_over)
    return found


async def events(proxy: Proxy, response_id: str, query: str = "") -> tuple[int, Events]:
    """Return the status and the events of a stream of a response."""
    answer = await proxy.get(f"/v1/responses/{response_id}?stream=true{query}")
    pieces = [piece + b"\n\n" for piece in answer.body.split(b"\n\n") if b"sequence_number" in piece]
    numbers = [json.loads(piece.partition(b"data: ")[2])["sequence_number"] for piece in pieces]
    return answer.status, list(zip(numbers, pieces, strict=True))


def is_open(left: Left) -> bool:
    """Return whether nobody knows how an effect ended that had begun at a place."""
    return left.place.startswith("strike")


@pytest.mark.parametrize(
    ("kind", "wire"),
    [("sqlite", "responses"), ("sqlite", "chat"), ("sqlite", "anthropic"), ("postgres", "responses")],
)
async def test_a_background_response_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, wire: str
) -> None:
    """Wherever its process died, the response ends with one answer. No complete turn is asked again and no
    effect happens twice; a reader goes on after each event that is part of the answer."""
    async with abandoned(monkeypatch, tmp_path, kind, wire) as run:
        shown = watched_logs(monkeypatch)
        left, response_id = await run.until_the_end(
            ask_in_background, shown, SOME if kind == "postgres" else ()
        )
        assert {one.place for one in left} >= SOME
        for one in left:
            async with run.found(one) as proxy:
                await check(proxy, response_id, one)


async def ask_in_background(proxy: Proxy) -> str:
    """Ask for a response in the background, and return its id when it has ended."""
    ask = {"model": "gpt-4o-mini", "input": "Do it.", "background": True}
    response_id = str((await proxy.ask(ask, path="/v1/responses")).json["id"])
    await ended(proxy, response_id)
    return response_id


def watched_logs(monkeypatch: pytest.MonkeyPatch) -> Callable[[Proxy], Events]:
    """Return a function that returns the events that readers of the newest log have."""
    logs: list[EventLog] = []
    opened = LocalLogs.open

    def watched(self: LocalLogs, name: str, **more: Any) -> EventLog:
        logs[:] = [opened(self, name, **more)]
        return logs[0]

    monkeypatch.setattr(LocalLogs, "open", watched)
    return lambda _: [event for log in logs for event in log.events]


async def check(proxy: Proxy, response_id: str, left: Left) -> None:
    """Check how another process ends a response, and what its readers get."""
    done = await ended(proxy, response_id)
    assert WORLD.struck == list(dict.fromkeys(WORLD.struck)), f"{left.place}: an effect happened twice"
    if is_open(left) or (done["status"] == "failed" and left.struck and not left.settled):
        assert done["status"] == "failed"
        assert "nobody knows whether it took effect" in done["error"]["message"]
        return
    assert (left.place, done["status"]) == (left.place, "completed"), done.get("error")
    assert WORLD.struck == ["a", "b", "c"]
    assert done["usage"]["total_tokens"] == 15 * len(PLAN)
    if left.settled:
        assert WORLD.turns == list(range(turns_complete(left) + 1, len(PLAN) + 1)), left.place
    status, whole = await events(proxy, response_id)
    numbers = [number for number, _ in whole]
    assert (status, numbers) == (200, sorted(set(numbers)))
    common = [event for event in left.shown if event in whole]
    assert common == left.shown[: len(common)] == whole[: len(common)]
    if left.settled and left.place.startswith("within"):
        assert len(common) < len(left.shown) or left.place == "within 1"
    for place, (number, event) in enumerate(left.shown):
        status, rest = await events(proxy, response_id, f"&starting_after={number}")
        if (number, event) in common:
            assert (status, rest) == (200, whole[place + 1 :]), (left.place, number)
        elif b"response.created" not in event and b"response.in_progress" not in event:
            assert status == 400, (left.place, number)


async def test_it_goes_on_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second process dies, too: the third goes on after the steps of both, and so do readers of each."""
    async with abandoned(monkeypatch, tmp_path, "sqlite", "responses") as run:
        shown = watched_logs(monkeypatch)
        left, response_id = await run.until_the_end(ask_in_background, shown, {"within 2"})

        async def go_on(proxy: Proxy) -> None:
            await ended(proxy, response_id)

        more, _ = await run.until_the_end(go_on, shown, {"within 4"}, left[0])
        assert [one.place for one in more] == ["within 4"]
        async with run.found(more[0]) as proxy:
            await check(proxy, response_id, more[0])
            _, whole = await events(proxy, response_id)
    assert sorted({number // 10**6 for number, _ in whole}) == [0, 1, 2]


async def test_what_is_too_large_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run keeps no step past its limit of bytes, and says so; the next process goes on after the last one
    that was kept, unless an effect has happened since."""
    async with abandoned(monkeypatch, tmp_path, "sqlite", "responses") as run:
        monkeypatch.setattr(steps, "MOST_BYTES", 6000)
        left, response_id = await run.until_the_end(ask_in_background, None, {"look 1 begins", "asked 4"})
        async with run.found(left[0]) as proxy:
            assert (await ended(proxy, response_id))["status"] == "completed"
            assert WORLD.turns == [2, 3, 4]
        async with run.found(left[1]) as proxy:
            failed = await ended(proxy, response_id)
    assert failed["status"] == "failed"
    assert "It had called abandoned_rig__strike." in failed["error"]["message"]
    assert "run_not_continuable" in capsys.readouterr().out


@pytest.mark.parametrize("place", ["look 1 begins", "asked 3"])
async def test_another_configuration_starts_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """If the next process cannot do the steps again, it runs the response from the start, under new numbers;
    it fails if it has had an effect."""
    async with abandoned(monkeypatch, tmp_path, "sqlite", "responses") as run:
        left, response_id = await run.until_the_end(ask_in_background, None, {place})
        run.name = "another"
        async with run.found(left[0]) as proxy:
            done = await ended(proxy, response_id)
            _, whole = await events(proxy, response_id)
    if place == "asked 3":
        assert done["status"] == "failed"
        assert "Another one could not continue it" in done["error"]["message"]
        assert (WORLD.struck, WORLD.turns) == (["a"], [])
        return
    assert done["status"] == "completed"
    assert (WORLD.struck, WORLD.turns) == (["a", "b", "c"], [1, 2, 3, 4])
    assert [number for number, _ in whole] == list(range(2 * 10**6, 2 * 10**6 + len(whole)))


async def test_a_call_that_a_person_approved_runs_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A response that begins with an approved call goes on without running it again."""
    plan = (((STRIKE, "a"),), ((LOOK, 1),), ())
    sections = {"approvals": {}, "policy": {"approve": (STRIKE,)}}
    async with abandoned(monkeypatch, tmp_path, "sqlite", "responses", **sections) as run:
        WORLD.plan = plan

        async def serve(proxy: Proxy) -> str:
            said: list[Any] = [{"role": "user", "content": "Do it."}]
            ask: dict[str, Any] = {"model": "gpt-4o-mini", "input": said}
            answer = await proxy.ask({**ask, "stream": True}, path="/v1/responses")
            *_, last = (line[6:] for line in answer.body.splitlines() if line.startswith(b"data: {"))
            output = json.loads(last)["response"]["output"]
            (approval,) = re.findall(r"appr_[0-9a-f]{32}", json.dumps(output))[:1]
            ask = {**ask, "input": [*said, *output], "background": True}
            begun = await proxy.ask(ask, {"x-toolrelay-approve": approval}, path="/v1/responses")
            assert (await ended(proxy, begun.json["id"]))["status"] == "completed"
            return str(begun.json["id"])

        left, response_id = await run.until_the_end(serve, None, {"look 1 begins", "asked 3"})
        for one in left:
            async with run.found(one) as proxy:
                done = await ended(proxy, response_id)
            assert (one.place, done["status"]) == (one.place, "completed"), done
            assert WORLD.struck == ["a"]
            assert WORLD.turns == [3]


async def test_no_client_reads_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps hold what a client may not see, such as whole results: they are no result of any caller. A run
    whose client waits as usual keeps none."""
    async with abandoned(monkeypatch, tmp_path, "sqlite", "responses") as run:
        left, _ = await run.until_the_end(ask_in_background, None, {"asked 4"})
        with sqlite3.connect(left[0].url.removeprefix("sqlite:///")) as record:
            kept = record.execute("SELECT * FROM kept_results WHERE handle LIKE 'step_%'").fetchall()
        assert len(kept) == 6
        assert not [row for row in kept if b"Turn 1" in repr(row).encode() or "open" in row]

        async def plainly(proxy: Proxy) -> None:
            ask = {"model": "gpt-4o-mini", "input": "Do it.", "stream": True}
            answer = await proxy.ask(ask, path="/v1/responses")
            assert b"response.completed" in answer.body

        left, _ = await run.until_the_end(plainly, None, {"asked 4"})
        with sqlite3.connect(left[0].url.removeprefix("sqlite:///")) as record:
            assert record.execute("SELECT * FROM kept_results WHERE handle LIKE 'step_%'").fetchall() == []
