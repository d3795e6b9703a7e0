"""Programs survive ``kill -9`` at every step: no effect twice, no result lost, and the same end."""

import asyncio
import json
import random
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from agents_rig import Asked, Models, Turn
from approvals_rig import ID
from process_tree import kill_tree
from proxy_process import ProxyProcess, serving, write_config
from raw_upstream import RawUpstream
from store_postgres import need_postgres, new_schema
from waiting import until

from proxy.base.events import RUN_PROGRAM

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TOOLS = '''
import asyncio
from pathlib import Path
from proxy.tools import Redaction, tool

async def held(name: str) -> None:
    """Tell the test that a call has begun, and wait if the test wants to kill the server here."""
    if Path(f"hold-{name}").exists():
        Path(f"holds-{name}").touch()
        while Path(f"hold-{name}").exists():
            await asyncio.sleep(0.01)

@tool(effect="external_side_effect", timeout_s=120, redaction=Redaction())
async def act(name: str) -> str:
    """Change the world, after the test lets it."""
    await held(name)
    with Path("effects").open("a") as file:
        file.write(f"{name}\\n")
    return f"did {name}"

@tool(effect="external_side_effect", timeout_s=120, redaction=Redaction())
async def ask(name: str) -> str:
    """Change the world, after a person has approved it."""
    await held(name)
    with Path("effects").open("a") as file:
        file.write(f"{name}\\n")
    return f"did {name}"

@tool(effect="read_only", timeout_s=120, redaction=Redaction())
async def look(name: str) -> str:
    """Read something."""
    await held(name)
    return f"saw {name}"
'''
MORE = """
[approvals]
enabled = true
"""
RETRY = {"x-stainless-retry-count": "1"}
"""The header by which OpenAI's clients mark a request that they send again."""


def program(seed: int) -> tuple[str, list[tuple[str, str]]]:
    """A random program, and its calls in order as (tool, name); some of them run at the same time."""
    dice = random.Random(seed)
    lines, calls = ["import asyncio", "said = []"], []
    for step in range(dice.randint(3, 5)):
        made = [
            (dice.choice(("act", "look", "look")), f"{step}{at}") for at in range(dice.choice((1, 1, 2, 3)))
        ]
        calls += made
        awaited = ", ".join(f"effect__{tool}(name='{name}')" for tool, name in made)
        lines.append(f"said += await asyncio.gather({awaited})")
    return "\n".join([*lines, "said"]), calls


@asynccontextmanager
async def record(kind: str, folder: Path) -> AsyncIterator[str]:
    """The lines of the configuration for a record of this kind."""
    if kind == "sqlite":
        yield f'[store]\nurl = "sqlite:///{folder / "toolrelay.db"}"\n'
        return
    need_postgres()
    async with new_schema() as url:
        yield f'[store]\nurl = "{url}"\nseal = false\n'


class Rig:
    """A server that can be killed and started again, and a client that asks the same question again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.proxy: ProxyProcess | None = None
        self._stack = AsyncExitStack()

    async def start(self) -> ProxyProcess:
        """Start the server."""
        self.proxy = await self._stack.enter_async_context(serving(self.folder))
        return self.proxy

    async def kill(self) -> None:
        """Kill all its processes at once."""
        assert self.proxy is not None
        kill_tree(self.proxy.process.pid)
        await self.proxy.ended()

    async def stop(self) -> None:
        """End what is left."""
        await self._stack.aclose()

    @property
    def effects(self) -> list[str]:
        """What has happened, in order."""
        file = self.folder / "effects"
        return file.read_text().split() if file.exists() else []


@asynccontextmanager
async def rig(kind: str, code: str, folder: Path, approve: str = "") -> AsyncIterator[Rig]:
    """A server with programs, before a model that runs this one and repeats its result."""

    def say(asked: Asked) -> Turn:
        return Turn(asked.results[-1]) if asked.results else Turn(calls=[(RUN_PROGRAM, {"code": code})])

    async with record(kind, folder) as store, RawUpstream(Models({"m": say})) as upstream:
        policy = f"approve = {json.dumps([approve])}\n" if approve else ""
        write_config(folder, upstream.url, allow=("effect__*",), more=MORE + store)
        (folder / "effect.py").write_text(TOOLS)
        file = folder / "toolrelay.toml"
        written = file.read_text().replace(
            "[tools]\n", '[tools]\nprograms = "on"\nprograms_timeout_s = 200\n'
        )
        file.write_text(written.replace("[policy]\n", f"[policy]\n{policy}"))
        made = Rig(folder)
        try:
            yield made
        finally:
            await made.stop()


async def say(proxy: ProxyProcess, *more: Any, **headers: str) -> str:
    """Ask, and return the answer."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    messages = [{"role": "user", "content": "Do it."}, *more]
    answer = await proxy.ask({"model": "m", "messages": messages}, headers={**RETRY, **named})
    assert answer.status == 200, answer.body
    return str(answer.json["choices"][0]["message"]["content"])


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("seed", [2, 5, 8])
async def test_a_program_ends_the_same_whatever_read_it_was_killed_in(
    seed: int, kind: str, tmp_path: Path
) -> None:
    """The server is killed in each read of a random program; each effect happens once."""
    code, calls = program(seed)
    reads = [name for tool, name in calls if tool == "look"]
    async with rig(kind, code, tmp_path) as made:
        for name in reads:
            (tmp_path / f"hold-{name}").touch()
        for name in reads:
            proxy = await made.start()

            asking = asyncio.create_task(say(proxy))
            await until((tmp_path / f"holds-{name}").exists)
            await made.kill()
            await asyncio.wait({asking})
            (tmp_path / f"hold-{name}").unlink()
        text = await say(await made.start())
        assert json.loads(text) == [f"{'did' if tool == 'act' else 'saw'} {name}" for tool, name in calls]
        assert sorted(made.effects) == sorted(name for tool, name in calls if tool == "act")


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_an_effect_whose_end_nobody_knows_is_not_repeated(kind: str, tmp_path: Path) -> None:
    """If the server dies while an effect is under way, the program is told that nobody knows, and goes on."""
    code = (
        "await effect__act(name='a')\n"
        "try:\n    said = await effect__act(name='b')\nexcept RuntimeError as error:\n    said = str(error)\n"
        "[said, await effect__act(name='c')]"
    )
    async with rig(kind, code, tmp_path) as made:
        (tmp_path / "hold-b").touch()

        asking = asyncio.create_task(say(await made.start()))
        await until((tmp_path / "holds-b").exists)
        await made.kill()
        await asyncio.wait({asking})
        (tmp_path / "hold-b").unlink()
        said, last = json.loads(await say(await made.start()))
        assert "nobody knows" in said
        assert last == "did c"
        assert made.effects == ["a", "c"]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("decision", ["", ";deny"])
async def test_a_decision_after_a_kill_continues_the_program(
    decision: str, kind: str, tmp_path: Path
) -> None:
    """A server that is killed while a person decides continues the program from where it waited."""
    code = (
        "first = await effect__act(name='a')\n"
        "try:\n    said = await effect__ask(name='b')\nexcept RuntimeError as error:\n    said = str(error)\n"
        "[first, said, await effect__act(name='c')]"
    )
    async with rig(kind, code, tmp_path, approve="effect__ask") as made:
        notice = await say(await made.start())
        (approval,) = set(ID.findall(notice))
        assert made.effects == ["a"]
        await made.kill()
        more = [{"role": "assistant", "content": notice}, {"role": "user", "content": "Go on."}]
        text = await say(await made.start(), *more, x_toolrelay_approve=approval + decision)
        first, said, last = json.loads(text)
        assert (first, last) == ("did a", "did c")
        assert ("approval_denied" in said) is bool(decision)
        assert made.effects == (["a", "c"] if decision else ["a", "b", "c"])


@dataclass(frozen=True)
class Call:
    """A call of a random program; the server may be killed in it. ``step`` counts from 0."""

    step: int
    tool: str
    name: str
    killed: bool


def whole_program(steps: list[list[tuple[str, bool]]]) -> tuple[str, list[Call]]:
    """A program whose steps make these calls side by side, and its calls; no failed call ends it."""
    calls = [
        Call(number, tool, f"{number}{at}", killed)
        for number, step in enumerate(steps)
        for at, (tool, killed) in enumerate(step)
    ]
    lines = [
        "import asyncio",
        "async def tried(call):",
        "    try:",
        "        return await call",
        "    except RuntimeError as error:",
        "        return str(error)",
        "said = []",
    ]
    for number in range(len(steps)):
        made = [f"tried(effect__{one.tool}(name='{one.name}'))" for one in calls if one.step == number]
        lines.append(f"said += await asyncio.gather({', '.join(made)})")
    return "\n".join([*lines, "said"]), calls


async def led(made: Rig, calls: list[Call], approves: list[bool], between: bool) -> list[str]:
    """Lead the program to its end, with a kill in each call that says so, and return what it returned.

    The ``approves`` are the decisions, one for each step that asks. With ``between`` the server is also
    killed while a person decides.
    """
    kills = [one.name for one in calls if one.killed]
    for name in kills:
        (made.folder / f"hold-{name}").touch()

    def reached() -> list[str]:
        return [name for name in kills if (made.folder / f"holds-{name}").exists()]

    proxy, more, headers, seen = await made.start(), list[Any](), dict[str, str](), list[set[str]]()
    while True:
        asking = asyncio.create_task(say(proxy, *more, **headers))
        await until(lambda: asking.done() or bool(reached()))  # noqa: B023
        if names := reached():
            await made.kill()
            await asyncio.wait({asking})
            for name in names:
                kills.remove(name)
                (made.folder / f"hold-{name}").unlink()
            proxy = await made.start()
            continue
        text = await asking
        if not (ids := set(ID.findall(text))):
            return list(json.loads(text))
        if ids not in seen:
            seen.append(ids)
            if between:
                await made.kill()
                proxy = await made.start()
        decision = "" if approves[seen.index(ids) % len(approves)] else ";deny"
        more += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}]
        headers = {"x_toolrelay_approve": ",".join(f"{one}{decision}" for one in sorted(ids))}


CASES: list[tuple[list[list[tuple[str, bool]]], list[bool], bool]] = [
    ([[("look", True), ("act", False)], [("ask", True)], [("act", True)]], [True], True),
]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize(("steps", "approves", "between"), CASES)
async def test_kills_and_decisions_at_every_step(
    kind: str,
    steps: list[list[tuple[str, bool]]],
    approves: list[bool],
    between: bool,
) -> None:
    """Whatever call the server dies in and whatever a person decides: no effect twice, no result lost.

    A step in which the server was not killed ends as it would have without any kill.
    """
    code, calls = whole_program(steps)
    asking = [number for number, step in enumerate(steps) if any(tool == "ask" for tool, _ in step)]
    # A call that a person refused never begins.
    decided = {number: approves[at % len(approves)] for at, number in enumerate(asking)}
    calls = [replace(one, killed=one.killed and (one.tool != "ask" or decided[one.step])) for one in calls]
    shaken = {one.step for one in calls if one.killed}
    with tempfile.TemporaryDirectory() as folder:
        async with rig(kind, code, Path(folder), approve="effect__ask") as made:
            said = await led(made, calls, approves, between)
            effects = Counter(made.effects)
    assert len(said) == len(calls)
    for one, text in zip(calls, said, strict=True):
        if one.tool == "look":
            assert text == f"saw {one.name}"
        elif one.tool == "ask" and not decided[one.step]:
            assert "approval_denied" in text
            assert effects[one.name] == 0
        elif text == f"did {one.name}":
            assert effects[one.name] == 1
        else:
            assert one.step in shaken
            assert "nobody knows" in text
            assert effects[one.name] <= 1
