"""A task of a tool cannot end the process; the main task and a signal can."""

import asyncio
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
from chat_script import call, content, finish, role, stream
from proxy_process import serving, write_config
from raw_upstream import RawUpstream

from proxy.commands import common
from proxy.commands.serve.signals import STOPPING, on_signals

LOOPS = [None, common._loop_factory()]
ASK = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
DEADLY = """
import asyncio
from proxy.tools import Redaction, tool

KEPT = []

async def end(kind):
    raise {"exit": SystemExit, "interrupt": KeyboardInterrupt}[kind]("canary")

@tool(effect="read_only", redaction=Redaction())
async def deadly(kind: str) -> str:
    \"\"\"Start a task that would end the process.\"\"\"
    KEPT.append(asyncio.create_task(end(kind)))
    await asyncio.wait(KEPT)
    return "begun"
"""


@pytest.fixture(params=LOOPS, ids=["asyncio", "best"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    """``run_async`` with asyncio's event loop, and with the one that ``serve`` uses."""
    monkeypatch.setattr(common, "_loop_factory", lambda: request.param)
    return common.run_async


async def raises(error: BaseException) -> None:
    """Raise."""
    raise error


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
def test_a_task_of_a_tool_does_not_end_the_process(run: Callable[..., object], error: BaseException) -> None:
    """Rule T1: an exit or interrupt in a task other than the main one is logged, and the process goes on."""

    async def main() -> str:
        with on_signals(dict.fromkeys(STOPPING, lambda: None)):
            slow = asyncio.create_task(asyncio.sleep(0.01, "slow"))
            started = asyncio.create_task(raises(error))
            await asyncio.wait({started})
            assert started.exception() is error
            return await slow

    with structlog.testing.capture_logs() as lines:
        assert run(main()) == "slow"
    assert [(line["event"], line["log_level"], line["exception"]) for line in lines] == [
        ("exit_prevented", "error", type(error).__name__)
    ]
    assert "test_commands_exit.py:" in lines[0]["raised_at"]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ValueError()], ids=repr)
def test_what_the_main_task_raises_comes_out(run: Callable[..., object], error: BaseException) -> None:
    """An exit or error of the main task ends the process, even after another task tried to exit."""

    async def main() -> None:
        started = asyncio.create_task(raises(SystemExit(4)))
        await asyncio.wait({started})
        assert isinstance(started.exception(), SystemExit)
        raise error

    with structlog.testing.capture_logs(), pytest.raises(type(error)) as caught:
        run(main())
    assert caught.value is error


def test_a_real_interrupt_ends_what_does_not_listen(run: Callable[..., object]) -> None:
    """A handler takes SIGINT while it is set; without a handler, SIGINT ends the command."""
    ended: list[str] = []

    async def main() -> None:
        heard = asyncio.Event()
        with on_signals({signal.SIGINT: heard.set}):
            signal.raise_signal(signal.SIGINT)
            await heard.wait()
            ended.append("heard")
        try:
            signal.raise_signal(signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            ended.append("ended")

    with structlog.testing.capture_logs() as lines, pytest.raises(KeyboardInterrupt):
        run(main())
    assert (ended, lines) == (["heard", "ended"], [])


def exits_with_each_look(loop: asyncio.AbstractEventLoop) -> socket.socket:
    """Register a callback that raises SystemExit each time the event loop polls."""
    mine, other = socket.socketpair()
    other.close()
    loop.add_reader(mine, raises_now)
    return mine


def raises_now() -> None:
    """Raise."""
    raise SystemExit(4)


def test_what_exits_all_the_time_neither_hides_a_signal_nor_takes_the_result(
    run: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule T1: if a callback raises SystemExit all the time, signals still work and the result is kept."""
    monkeypatch.setattr(common, "MOST_EXITS", 2)

    async def main() -> str:
        heard = asyncio.Event()
        with on_signals(dict.fromkeys(STOPPING, heard.set)):
            mine = exits_with_each_look(asyncio.get_running_loop())
            await asyncio.sleep(0.05)
            signal.raise_signal(signal.SIGTERM)
            await heard.wait()
        kept.append(mine)
        return "result"

    kept: list[socket.socket] = []
    with structlog.testing.capture_logs() as lines:
        assert run(main()) == "result"
    kept[0].close()
    assert {line["event"] for line in lines} == {"exit_prevented"}


def test_a_result_is_kept_that_comes_with_the_exit_of_another(run: Callable[..., object]) -> None:
    """Rule T1: the result is kept if a callback raises SystemExit in the same step of the event loop."""

    async def main() -> str:
        asyncio.get_running_loop().call_soon(raises_now)
        return "result"

    with structlog.testing.capture_logs() as lines:
        assert run(main()) == "result"
    assert [line["event"] for line in lines] == ["exit_prevented"]


def test_exits_beyond_a_number_are_paused_for_and_not_logged() -> None:
    """Each second, the first MOST_EXITS exits are logged; each further one causes a pause instead."""
    now = [0.0]
    pauses: list[float] = []
    exits = common.PreventedExits(lambda: now[0], pauses.append)
    counts = []
    for second in (0.0, 0.9, 1.0):
        now[0] = second
        with structlog.testing.capture_logs() as lines:
            for _ in range(common.MOST_EXITS // 2 + 1):
                exits.add(SystemExit())
        counts.append((len(lines), len(pauses)))
    half = common.MOST_EXITS // 2
    assert counts == [(half + 1, 0), (half - 1, 2), (half + 1, 2)]


@pytest.mark.parametrize("kind", ["exit", "interrupt"])
async def test_a_server_outlives_the_tasks_of_its_tools(tmp_path: Path, kind: str) -> None:
    """Rule T1: if a tool's task exits, the run still answers, and the server still stops at a signal."""
    called = stream(role(), call("c", "deadly__deadly", f'{{"kind":"{kind}"}}'), finish("tool_calls"))
    async with RawUpstream(called, stream(role(), content("Done."), finish())) as upstream:
        write_config(tmp_path, upstream.url, allow=("deadly__*",))
        (tmp_path / "deadly.py").write_text(DEADLY)
        config = tmp_path / "toolrelay.toml"
        config.write_text(config.read_text().replace('"effect.py"', '"effect.py", "deadly.py"'))
        async with serving(tmp_path) as proxy:
            answer = await proxy.ask(ASK)
            assert answer.clean
            assert b"Done." in answer.body
            line = await proxy.says("exit_prevented")
            assert "deadly.py:" in line.string
            proxy.signal()
            assert await proxy.ended() == 0
        assert not any("canary" in line for line in proxy.log)
