"""A process dies at any step of a run of several turns: another goes on after the last complete step."""

import json
from pathlib import Path
from typing import Any

import pytest
from abandoned_rig import PLAN, WORLD, Left, abandoned
from running_proxy import Proxy
from waiting import until

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


def turns_complete(left: Left) -> int:
    """Return how many turns were answered in full at a place."""
    kind, _, rest = left.place.partition(" ")
    number = int(rest.split()[0]) if kind in ("asked", "within") else len(left.turns) + 1
    return number - 1


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
        logs: list[Any] = []

        async def serve(proxy: Proxy) -> str:
            ask = {"model": "gpt-4o-mini", "input": "Do it.", "background": True}
            response_id = str((await proxy.ask(ask, path="/v1/responses")).json["id"])
            await ended(proxy, response_id)
            return response_id

        def shown(proxy: Proxy) -> Events:
            return [event for log in logs for event in log.events]

        _watch_logs(monkeypatch, logs)
        left, response_id = await run.until_the_end(serve, shown, SOME if kind == "postgres" else ())
        assert {one.place for one in left} >= SOME
        for one in left:
            async with run.found(one) as proxy:
                await check(proxy, response_id, one)


def _watch_logs(monkeypatch: pytest.MonkeyPatch, logs: list[Any]) -> None:
    from proxy.api.detached.logs.event_log import LocalLogs

    opened = LocalLogs.open

    def watched(self: LocalLogs, name: str, **more: Any) -> Any:
        logs.append(log := opened(self, name, **more))
        return log

    monkeypatch.setattr(LocalLogs, "open", watched)


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
