"""The engine of programs: what a program can do, and that a hostile one only ends in an error."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from waiting import until

from proxy.tools.programs.engine import Binding, ProgramFailed, ProgramLimits, Session, Step
from proxy.tools.programs.monty import MontyEngine, MontySession

TOOLS: Mapping[str, Binding] = {"echo": Binding("probe__echo", ("text", "more"))}
LIMITS = ProgramLimits(memory=32 << 20, seconds=1.0)
PATIENT = ProgramLimits(memory=32 << 20, seconds=30.0)
LAUGHS = "a = [0]\nfor _ in range(40): a = [a, a]\n"
"""A list that is small in memory and endless once it is written out."""


@asynccontextmanager
async def session(engine: MontyEngine | None = None) -> AsyncIterator[MontySession]:
    """A session that is closed at the end."""
    opened = (engine or MontyEngine(LIMITS)).session()
    try:
        yield opened
    finally:
        await opened.close()


async def finished(opened: Session, step: Step) -> tuple[object, str, list[str]]:
    """Answer each call with its arguments; return the value, what was printed, and the calls."""
    printed, calls = step.printed, []
    while step.result is None:
        calls += [f"{call.tool} {call.arguments}" for call in step.calls]
        answers = {call.id: f'{{"ok": true, "value": {call.arguments}}}' for call in step.calls}
        step = await opened.resume(answers)
        printed += step.printed
    return json.loads(step.result), printed, calls


async def run(code: str) -> tuple[object, str, list[str]]:
    """Run a program to its end."""
    async with session() as opened:
        return await finished(opened, await opened.start(code, TOOLS))


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1 + 1", 2),
        ("x = 3", None),
        ("(await echo('a'))['text']  # a comment", "a"),
        ("return 'a'", "a"),
        ("for n in range(3):\n    if n == 1:\n        return {'n': n}", {"n": 1}),
        ("async def main():\n    return 5\nawait main()", 5),
        ("import asyncio\nasync def main():\n    return 6\nasyncio.run(main())", 6),
        ("'''two\nlines'''", "two\nlines"),
        ("return '''two\n  lines'''", "two\n  lines"),
        ("é = 'ö'\nf'{é}…'", "ö…"),
        ("def f():\n    return 1\nf(); 7", 7),
        ("{1}", "{1}"),
        ("", None),
    ],
)
async def test_the_value_is_that_of_the_last_expression(code: str, value: object) -> None:
    """A program hands out the value of its last expression, or what it returns."""
    assert (await run(code))[0] == value


async def test_calls_that_are_gathered_wait_together() -> None:
    """One step has all calls that the program waits for, in their order."""
    async with session() as opened:
        code = "import asyncio\nprint('go')\nawait asyncio.gather(echo('a'), echo(text='b', more=1))"
        step = await opened.start(code, TOOLS)
        assert [call.arguments for call in step.calls] == ['{"text": "a"}', '{"text": "b", "more": 1}']
        assert step.printed == "go\n"
        assert (await finished(opened, step))[0] == [{"text": "a"}, {"text": "b", "more": 1}]


async def test_a_failed_call_raises_in_the_program() -> None:
    """The program can catch the failure of a call, and read its message."""
    async with session() as opened:
        code = "try:\n    await echo('a')\nexcept RuntimeError as error:\n    said = str(error)\nsaid"
        step = await opened.start(code, TOOLS)
        step = await opened.resume({step.calls[0].id: '{"ok": false, "message": "timeout: too slow"}'})
    assert step.result == '"timeout: too slow"'


async def test_another_process_goes_on_from_a_state() -> None:
    """A state has variables and calls that wait; it is small."""
    engine = MontyEngine(LIMITS)
    async with session(engine) as opened:
        step = await opened.start("kept = 'k'\nfound = await echo('a')\nkept + found['text']", TOOLS)
        state = await opened.dump()
    assert len(state) < 20_000
    async with session(engine) as other:
        await other.start("", TOOLS, state)
        done = await other.resume({step.calls[0].id: '{"ok": true, "value": {"text": "z"}}'})
    assert done.result == '"kz"'


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("while True: pass", "time limit"),
        ("a = []\nwhile True: a.append('x' * 100000)", "memory"),
        ("'x' * (30 << 20)", "memory"),
        ("10 ** 10 ** 8", "memory"),
        ("def f(): return f()\nf()", "recursion"),
        (f"{LAUGHS}a", "memory"),
        (f"{LAUGHS}hidden(a)", "not defined"),
        (f"{LAUGHS}_call('probe__echo', a)", "call the tools by their names"),
        (f"def _finish(value):\n    {LAUGHS.replace(chr(10), chr(10) + '    ')}return a\n1", ""),
        ("raise ValueError('x' * 10_000_000)", "ValueError"),
        ("hidden__tool(1)", "not defined"),
        ("for _ in range(100): _call('a', 'b')", "at most 64 calls"),
        ("open('/etc/passwd').read()", "PermissionError"),
        ("import os\nos.environ", "not supported"),
        ("import os\nos.system('id')", ""),
        ("import subprocess", "ModuleNotFoundError"),
        ("import socket", "ModuleNotFoundError"),
        ("__import__('os').listdir('/')", "not defined"),
        ("import time\ntime.sleep(60)", "not supported"),
        ("(" * 5000, "SyntaxError"),
        ("x = (", "SyntaxError"),
        ("\x00", ""),
    ],
)
async def test_a_hostile_program_ends_in_an_error(code: str, said: str) -> None:
    """A program that wants too much, or out, gets an error of a bounded length, and the next one runs."""
    # On a busy machine a second may end before the memory does.
    engine = MontyEngine(LIMITS if said == "time limit" else PATIENT)
    with pytest.raises(ProgramFailed) as failed:
        async with session(engine) as opened:
            await opened.start(code, TOOLS)
    assert said.lower() in failed.value.message.lower()
    assert len(failed.value.message) < 2500
    assert str(Path.cwd()) not in failed.value.message
    async with session(engine) as opened:
        assert (await opened.start("1", TOOLS)).result == "1"


async def test_what_is_printed_is_bounded() -> None:
    """A program that prints without end is not held in memory."""
    with pytest.raises(ProgramFailed) as failed:
        async with session() as opened:
            await opened.start("while True: print('x' * 1000)", TOOLS)
    assert 100_000 < len(failed.value.printed) <= 1 << 18


async def test_a_session_that_ends_leaves_no_process() -> None:
    """Closing kills the child and its worker, also in the middle of a program."""
    opened = MontyEngine(ProgramLimits(seconds=50)).session()
    running = asyncio.create_task(opened.start("while True: pass", TOOLS))
    await until(lambda: opened.pid is not None and len(_members(opened.pid)) > 1)
    group = opened.pid
    assert group is not None
    running.cancel()
    await asyncio.wait({running})
    await opened.close()
    await until(lambda: not _members(group))


def _members(group: int) -> list[int]:
    """The processes of a group that have not ended."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(status.parent.name))
    return found


async def test_no_more_programs_run_than_there_are_places() -> None:
    """A program waits for its turn, and gets it when another one ends."""
    engine = MontyEngine(LIMITS, at_once=1)
    first = engine.session()
    await first.start("await echo('a')", TOOLS)
    second = asyncio.create_task(run_with(engine))
    await asyncio.sleep(0)
    assert not second.done()
    await first.close()
    assert await second == "1"


async def run_with(engine: MontyEngine) -> str | None:
    """Run the smallest program."""
    async with session(engine) as opened:
        return (await opened.start("1", TOOLS)).result
