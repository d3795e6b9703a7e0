"""Random programs whose process dies at random points, with random decisions, end as without a kill.

The processes are inside of the test's (``shaken_lives.py``), so a kill costs a copy of the record. A few real
processes are killed in ``tests/e2e/test_e2e_programs_kills.py``.
"""

import asyncio
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from agents_rig import Asked, Models, Turn
from approvals_rig import ID
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from raw_upstream import RawUpstream
from running_proxy import Proxy, make_config
from shaken_lives import Life, Record, World, expire, is_answered, living, new_record
from shaken_programs import Program, allowed, place_of, programs
from store_postgres import need_postgres
from waiting import PATIENCE_S

from proxy.base.events import RUN_PROGRAM
from proxy.config.load import Config
from proxy.records.approvals import ApprovalFilter

QUESTION: Any = {"role": "user", "content": "Do it."}
RETRY = {"x-stainless-retry-count": "1"}


async def said(proxy: Proxy, messages: list[Any], headers: dict[str, str]) -> str:
    """Ask, and return the answer's text."""
    answer = await proxy.ask({"model": "m", "messages": messages}, headers)
    assert answer.status == 200, answer.body
    return str(answer.json["choices"][0]["message"]["content"])


async def decided(proxy: Proxy, program: Program, record: Record, ids: set[str]) -> dict[str, str]:
    """Decide these approvals and return the header that says so; those that expire do it now."""
    log: Any = proxy.services.store
    told = []
    for row in await log.list_approvals(ApprovalFilter()):
        if row.id not in ids:
            continue
        match program.decision(row.arguments_shown["name"]):
            case "expire":
                await expire(record, row.id)
            case decision:
                told.append(row.id if decision == "approve" else f"{row.id};deny")
    return {"x-toolrelay-approve": ",".join(told)} if told else {}


def config_of(url: str, record: Record) -> Config:
    """The configuration of a life."""
    return make_config(
        url,
        allow=("shaken_lives__*",),
        modules=("shaken_lives",),
        tools={"programs": "on", "programs_timeout_s": 200},
        policy={"approve": ("shaken_lives__ask",)},
        approvals={},
        store={"url": record.url, "seal": False},
    )


async def told_in_lives(
    url: str, program: Program, record: Record, kills: list[int], marked: bool, world: World
) -> str:
    """Ask until there is an answer of the model, in as many lives as it takes, and return it."""
    messages, headers, answered = [QUESTION], dict[str, str](), False
    lives = [*kills, 0]
    for number, dies_at in enumerate(lives):
        life = Life(world, record, dies_at)
        config = config_of(url, record)
        # By the record an answer that was lost after its end has come: then only the mark tells a repeat.
        again = RETRY if number and (marked or answered) else {}
        async with living(config, life) as proxy:
            while True:
                asking = asyncio.create_task(said(proxy, messages, {**headers, **again}))
                dying = asyncio.create_task(life.killed.wait())
                await asyncio.wait({asking, dying}, return_when=asyncio.FIRST_COMPLETED)
                dying.cancel()
                if life.killed.is_set():
                    asking.cancel()
                    await asyncio.wait({asking})
                    break
                text = await asking
                ids = set(ID.findall(text))
                if not ids:
                    return text
                headers, again = await decided(proxy, program, record, ids), {}
                messages = [
                    *messages,
                    {"role": "assistant", "content": text},
                    {"role": "user", "content": "Go on."},
                ]
        assert life.next_record is not None
        record = life.next_record
        answered = await is_answered(record)
    raise AssertionError("no life came to an end")


async def shaken(kind: str, program: Program, kills: list[int], marked: bool) -> None:
    """Run a program through its kills, and check what came of it."""

    def say(asked: Asked) -> Turn:
        return (
            Turn(asked.results[-1]) if asked.results else Turn(calls=[(RUN_PROGRAM, {"code": program.code})])
        )

    world = World()
    with tempfile.TemporaryDirectory() as folder:
        async with new_record(kind, Path(folder)) as record, RawUpstream(Models({"m": say})) as upstream:
            text = await told_in_lives(upstream.url, program, record, kills, marked, world)
    note(f"{text}\n{world}")
    made = program.check(json.loads(text), allowed(program, world.under_way))
    told = dict(one for one in json.loads(text) if one[0] != "end")
    assert set(world.effects) <= set(made)
    places = Counter(place_of(name) for name in world.effects.elements())
    assert not places or max(places.values()) == 1, places
    for name in made:
        count = world.effects[name]
        if told[name] == f"did {name}":
            assert count == 1, name
        else:
            assert count <= (name in world.under_way), name


async def test_a_program_that_had_ended_is_told_again(tmp_path: Path) -> None:
    """The process dies after the program's end and before the model has answered; nothing runs twice."""
    code = "seen = await shaken_lives__look(name='a')\n[seen, await shaken_lives__act(name=seen)]"
    died = asyncio.Event()

    def say(asked: Asked) -> Turn:
        if not asked.results:
            return Turn(calls=[(RUN_PROGRAM, {"code": code})])
        first = not died.is_set()
        died.set()
        return Turn(asked.results[-1], before=[asyncio.Event()] if first else [])

    world = World()
    async with new_record("sqlite", tmp_path) as record, RawUpstream(Models({"m": say})) as upstream:
        life = Life(world, record, -1)
        async with living(config_of(upstream.url, record), life) as proxy:
            asking = asyncio.create_task(said(proxy, [QUESTION], {}))
            await died.wait()
            await proxy.services.store.wait_until_visible(PATIENCE_S)
            copy = await record.copied()
            asking.cancel()
            await asyncio.wait({asking})
        async with living(config_of(upstream.url, copy), Life(world, copy)) as proxy:
            text = await said(proxy, [QUESTION], RETRY)
    assert json.loads(text) == ["saw a 1", "did saw a 1"]
    assert (world.looks, world.effects) == (1, {"saw a 1": 1})


KILLS = st.lists(st.integers(1, 60), max_size=4)


@pytest.mark.timeout(600)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_no_kill_and_no_decision_changes_the_end_of_a_program(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No effect happens twice, no result is lost, and the program ends as it would have without a kill.

    The exception is an effect that was under way when the process died: the program may be told that nobody
    knows how it ended. It happens at most once, too.
    """
    if kind == "postgres":
        need_postgres()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    @settings(
        deadline=None,
        max_examples=40 if kind == "sqlite" else 8,
        suppress_health_check=[HealthCheck.too_slow],
        phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
    )
    @given(programs(), KILLS, st.booleans())
    def each(program: Program, kills: list[int], marked: bool) -> None:
        asyncio.run(shaken(kind, program, kills, marked))

    each()
