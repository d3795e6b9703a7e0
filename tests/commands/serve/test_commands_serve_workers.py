"""Worker processes start, end and are replaced without a client's notice."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from chat_script import DONE, content, finish, role, stream
from proxy_process import ProxyProcess, serving, write_config
from raw_upstream import HANG, KEEP, LAST_CHUNK, RawUpstream, Step, chunk, head
from running_proxy import Answer, ProxyAddress
from waiting import PATIENCE_S, until

ASK = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
HELLO = stream(role(), content("Hello."), finish())
HELLO_BYTES = role() + content("Hello.") + finish() + DONE
BEGUN = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
NO_LIMITS = "[limits]\nrequests = []\ntool_calls = []\n"


@asynccontextmanager
async def workers(
    folder: Path,
    *scripts: Sequence[Step],
    arguments: Sequence[str] = (),
    more: str = NO_LIMITS,
    **server: Any,
) -> AsyncIterator[tuple[ProxyProcess, RawUpstream]]:
    """Run two workers in front of a scripted upstream."""
    async with RawUpstream(*scripts) as upstream:
        write_config(folder, upstream.url, more=more, **{"workers": 2, **server})
        async with serving(folder, *arguments) as proxy:
            yield proxy, upstream


def pids(proxy: ProxyProcess) -> set[int]:
    """Return the processes that the supervisor has started and that still run."""
    pid = proxy.process.pid
    found = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        found |= {int(word) for word in (thread / "children").read_text().split()}
    return found


def alive(pid: int) -> bool:
    """Say whether a process runs and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Client:
    """A client that sends request after request, on a kept connection or on a new one each time."""

    def __init__(self, proxy: ProxyAddress, *, keeps: bool) -> None:
        self.proxy = proxy
        self.keeps = keeps
        self.answered = 0
        self.connections = 0
        self._over = False
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while not self._over:
            async with self.proxy.connect() as conversation:
                self.connections += 1
                kept = True
                while kept and not self._over:
                    conversation.writer.write(self.proxy.request(ASK))
                    answer = await conversation.answer()
                    assert (answer.status, answer.clean, answer.body) == (200, True, HELLO_BYTES)
                    self.answered += 1
                    kept = self.keeps and answer.header("connection") != "close"

    async def more(self, requests: int = 5) -> None:
        """Wait for so many more answers; raise the client's error if it failed."""
        goal = self.answered + requests
        await until(lambda: self.answered >= goal or self.task.done())
        if self.task.done():
            self.task.result()

    async def leave(self) -> None:
        self._over = True
        await self.task


async def test_a_restart_loses_no_connection(tmp_path: Path) -> None:
    """SIGHUP under load replaces all workers; every request and the open stream are answered in full."""
    going = asyncio.Event()
    slow: list[Step] = [BEGUN, chunk(role()), going, chunk(content("x") + finish() + DONE), LAST_CHUNK, KEEP]
    async with (
        workers(tmp_path, slow, HELLO) as (proxy, upstream),
        proxy.sent(ASK) as streaming,
        proxy.sent(method="GET", path="/readyz") as checking,
    ):
        await upstream.asked(1)
        assert (await checking.answer()).status == 200
        clients = [Client(proxy, keeps=keeps) for keeps in (True, True, False, False)]
        first = pids(proxy)
        assert len(first) == 2
        for times in (1, 2):
            before = pids(proxy)
            for client in clients:
                await client.more()
            proxy.signal(signal.SIGHUP)
            await proxy.says("restarted: 2 new workers serve", times)
            for client in clients:
                await client.more()
            assert len(pids(proxy) - before) == 2
        # The worker behind this kept connection is ending, but the server is ready.
        checking.writer.write(proxy.request(method="GET", path="/readyz"))
        ready = await checking.answer()
        assert (ready.status, ready.header("connection")) == (200, "close")
        going.set()
        answer = await streaming.answer()
        assert (answer.clean, answer.body) == (True, role() + content("x") + finish() + DONE)
        streaming.leave()  # an ending worker would wait for that connection, up to drain_s
        for client in clients:
            await client.leave()
        await until(lambda: not first & pids(proxy))
        assert all(client.connections >= 3 for client in clients)
        proxy.signal()
        assert await proxy.ended() == 0


async def test_a_dead_worker_is_replaced(tmp_path: Path) -> None:
    """If a worker is killed, the log says so, the other serves meanwhile, and a new one starts."""
    async with workers(tmp_path, HELLO) as (proxy, _):
        first = pids(proxy)
        victim = min(first)
        os.kill(victim, signal.SIGKILL)
        await proxy.says('"event":"worker_died"')
        assert (await proxy.ask(ASK)).status == 200
        await proxy.says('"event":"worker_started"')
        assert len(pids(proxy) - {victim}) == 2
        (line,) = [json.loads(line) for line in proxy.log if "worker_died" in line]
        assert (line["worker"] in (1, 2), line["status"]) == (True, -signal.SIGKILL)
        for _ in range(8):
            assert (await proxy.ask(ASK)).status == 200
        proxy.signal()
        assert await proxy.ended() == 0


async def answered(proxy: ProxyProcess) -> float:
    """Return the number of chat requests that /metrics counts."""
    answer = await proxy.ask(method="GET", path="/metrics")
    assert answer.status == 200
    lines = [line.rpartition(" ") for line in answer.body.decode().splitlines()]
    name = "toolrelay_requests_total{"
    return sum(float(n) for which, _, n in lines if which.startswith(name) and "chat" in which)


async def test_figures_are_those_of_all_workers_whoever_has_gone(tmp_path: Path) -> None:
    """/metrics sums over all workers and never falls, even if a worker is killed or all are replaced."""
    async with workers(tmp_path, HELLO) as (proxy, _):

        async def ask(times: int) -> None:
            for _ in range(times):
                assert (await proxy.ask(ASK)).status == 200

        async def comes_to(total: float) -> None:
            """Wait for the total: a request is counted after its last byte, a busy worker reports late."""

            async def reached() -> bool:
                found = await answered(proxy)
                assert found <= total
                return found == total

            await until(reached)

        await ask(12)
        await comes_to(12)
        os.kill(min(pids(proxy)), signal.SIGKILL)
        await proxy.says('"event":"worker_started"')
        assert await answered(proxy) == 12
        await ask(6)
        # Nobody has asked for the last counts: the workers report them when they end.
        first = pids(proxy)
        proxy.signal(signal.SIGHUP)
        await proxy.says("restarted: 2 new workers serve")
        await until(lambda: not first & pids(proxy))
        await ask(3)
        await comes_to(21)
        proxy.signal()
        assert await proxy.ended() == 0


async def test_a_worker_that_cannot_come_up_again(tmp_path: Path) -> None:
    """The supervisor retries a worker that cannot start; SIGHUP after a repair does not wait for that."""
    async with workers(tmp_path, HELLO) as (proxy, _):
        tool = tmp_path / "effect.py"
        good = tool.read_text()
        tool.write_text("import no_such_thing\n")
        os.kill(min(pids(proxy)), signal.SIGKILL)
        await proxy.says('no_such_thing.*"event":"worker_failed"', 2)
        assert (await proxy.ask(ASK)).status == 200
        tool.write_text(good)
        proxy.signal(signal.SIGHUP)
        await proxy.says("restarted: 2 new workers serve")
        assert (await proxy.ask(ASK)).status == 200
        proxy.signal()
        assert await proxy.ended() == 0


async def test_one_worker_that_is_told_to_end_hands_over(tmp_path: Path) -> None:
    """If only workers get SIGTERM, a stream runs on, no request is refused, and new workers start."""
    going = asyncio.Event()
    slow: list[Step] = [BEGUN, chunk(role()), going, chunk(content("x") + finish() + DONE), LAST_CHUNK, KEEP]
    async with workers(tmp_path, slow, HELLO) as (proxy, upstream):
        async with proxy.sent(ASK) as streaming:
            await upstream.asked(1)
            client = Client(proxy, keeps=True)
            await client.more()
            first = pids(proxy)
            for pid in first:
                os.kill(pid, signal.SIGTERM)
                await client.more()
            going.set()
            answer = await streaming.answer()
            assert (answer.clean, answer.body) == (True, role() + content("x") + finish() + DONE)
        # Its connection is closed only now; an ending worker waits for that, up to drain_s.
        await proxy.says('"event":"worker_started"', 2)
        await client.more()
        await client.leave()
        await until(lambda: not first & pids(proxy))


async def test_a_stop_drains_every_worker(tmp_path: Path) -> None:
    """If all processes get SIGTERM, open streams end whole and new requests get 503; then the command
    ends."""
    going = asyncio.Event()
    slow: list[Step] = [BEGUN, chunk(role()), going, chunk(content("x") + finish() + DONE), LAST_CHUNK, KEEP]
    async with workers(tmp_path, slow) as (proxy, upstream), asyncio.TaskGroup() as tasks:
        streams = [tasks.create_task(proxy.ask(ASK)) for _ in range(8)]
        await upstream.asked(8)
        for pid in (*pids(proxy), proxy.process.pid):
            os.kill(pid, signal.SIGTERM)
        await proxy.says("stopping: open streams have 25 s")
        await until_refused(proxy)
        going.set()
        for one in streams:
            answer = await one
            assert (answer.clean, answer.body) == (True, role() + content("x") + finish() + DONE)
        assert await proxy.ended() == 0


async def _asked(proxy: ProxyProcess) -> Answer | None:
    """Send a body that is no request; return ``None`` if the worker ends as it takes the connection.

    A worker without an open stream ends at once and cannot know that a request is coming.
    """
    try:
        return await proxy.ask(b"{")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


async def until_refused(proxy: ProxyProcess) -> None:
    """Ask until the answer is 503: the signal takes time to reach the workers. No upstream is asked."""
    async with asyncio.timeout(PATIENCE_S):
        while (answer := await _asked(proxy)) is None or answer.status != 503:
            assert answer is None or answer.status == 400
            await asyncio.sleep(0.02)
    assert answer.error["code"] == "draining"
    assert (answer.header("retry-after"), answer.header("connection")) == ("1", "close")


async def test_a_second_signal_reaches_every_worker(tmp_path: Path) -> None:
    """After a second signal, all workers end their streams with a marked error, and the command ends."""
    script: list[Step] = [BEGUN, chunk(role()), HANG]
    async with workers(tmp_path, script, drain_s=600) as (proxy, upstream), asyncio.TaskGroup() as tasks:
        streams = [tasks.create_task(proxy.ask(ASK)) for _ in range(8)]
        await upstream.asked(8)
        proxy.signal()
        await proxy.says("stopping")
        proxy.signal()
        for one in streams:
            answer = await one
            assert answer.clean
            assert b'"code":"draining"' in answer.body
            assert answer.body.endswith(DONE)
        assert await proxy.ended() == 0


async def test_a_supervisor_that_is_killed_takes_its_workers_along(tmp_path: Path) -> None:
    """If the supervisor is killed, its workers finish their streams and end by themselves."""
    going = asyncio.Event()
    slow: list[Step] = [BEGUN, chunk(role()), going, chunk(content("x") + finish() + DONE), LAST_CHUNK, KEEP]
    async with workers(tmp_path, slow) as (proxy, upstream), proxy.sent(ASK) as streaming:
        await upstream.asked(1)
        left = pids(proxy)
        proxy.process.kill()
        going.set()
        answer = await streaming.answer()
        assert (answer.clean, answer.body) == (True, role() + content("x") + finish() + DONE)
        await until(lambda: not any(alive(pid) for pid in left))


async def test_a_start_that_fails_says_so_once(tmp_path: Path) -> None:
    """If no worker can load a tool module, the start fails with one line and without a traceback."""
    write_config(tmp_path, "http://127.0.0.1:9/v1", more=NO_LIMITS, workers=3)
    (tmp_path / "effect.py").write_text("import no_such_thing\n")
    with pytest.raises(AssertionError, match="listens on") as caught:
        async with serving(tmp_path):
            pass
    said = str(caught.value)
    assert said.count("tools.modules: ") == 1
    assert "no_such_thing" in said
    assert "Traceback" not in said


async def test_a_restart_that_fails_leaves_everything_as_it_is(tmp_path: Path) -> None:
    """If a restart fails for a faulty file, tool or port, the old workers serve on and the log says why."""
    async with workers(tmp_path, HELLO) as (proxy, _):
        first = pids(proxy)
        good = (tmp_path / "toolrelay.toml").read_text()
        faults = {
            good.replace("workers", "wrokers"): r"not restarted.*server\.wrokers",
            good.replace("port = 0", "port = 1"): r"not restarted.*server\.port",
            good.replace("effect.py", "gone.py"): r"not restarted.*gone\.py",
        }
        for text, complaint in faults.items():
            (tmp_path / "toolrelay.toml").write_text(text)
            proxy.signal(signal.SIGHUP)
            await proxy.says(complaint)
            assert (await proxy.ask(ASK)).status == 200
            await until(lambda: pids(proxy) == first)
        (tmp_path / "toolrelay.toml").write_text(good.replace("workers = 2", "workers = 1"))
        proxy.signal(signal.SIGHUP)
        await proxy.says("restarted: 1 new worker serves")
        assert (await proxy.ask(ASK)).status == 200


async def test_reload_follows_the_files(tmp_path: Path) -> None:
    """With ``--reload``, a changed tool or configuration takes effect, even with one worker and a store in
    memory; after a fault, the old worker serves on."""
    arguments = ("--reload", "--workers", "1")
    more = '[store]\nurl = "memory:"\n'
    async with workers(tmp_path, HELLO, arguments=arguments, more=more) as (proxy, _):
        file = tmp_path / "toolrelay.toml"
        good = file.read_text()
        file.write_text(good.replace("[server]", "[server"))
        await proxy.says("changed: toolrelay.toml")
        await proxy.says("not restarted.*not valid TOML")
        assert (await proxy.ask(ASK)).status == 200
        file.write_text(good)
        await proxy.says("restarted: 1 new")
        tool = tmp_path / "effect.py"
        tool.write_text(tool.read_text() + "\n# changed\n")
        await proxy.says("changed: effect.py")
        await proxy.says("restarted: 1 new", 2)
        assert (await proxy.ask(ASK)).status == 200
        proxy.signal()
        assert await proxy.ended() == 0


async def test_lines_of_the_log_carry_the_worker(tmp_path: Path) -> None:
    """Each access line says which worker wrote it; the supervisor's own lines have no number."""
    async with workers(tmp_path, HELLO) as (proxy, _):
        for _ in range(4):
            await proxy.ask(ASK)
        await proxy.says('"event":"request"', 4)
        lines = [json.loads(line) for line in proxy.log if '"event":"request"' in line]
        assert {line["worker"] for line in lines} <= {1, 2}
        proxy.signal(signal.SIGHUP)
        await proxy.says('"event":"restarted"')
        (line,) = [json.loads(line) for line in proxy.log if '"event":"restarted"' in line]
        assert "worker" not in line
