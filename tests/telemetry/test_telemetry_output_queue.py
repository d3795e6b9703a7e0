"""The queue before standard error and standard output: a reader that does not read blocks nobody."""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from process_tree import children
from proxy_process import write_config
from running_proxy import ProxyAddress
from waiting import PATIENCE_S, until

from proxy.telemetry.log.output_queue import OutputQueue

PROGRAM = """
import logging, os, sys, time
from proxy.telemetry.log.output_queue import queue_output
from proxy.telemetry.log.setup import configure_logging
import structlog
queue_output()
configure_logging(format="json")
"""


def told(program: str, *, read: bool = True) -> "subprocess.CompletedProcess[str]":
    """Run a program that logs through the queue, and return its output."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM + program],
        capture_output=read,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_lines_keep_their_order_and_none_is_lost_at_the_end() -> None:
    """Log lines, prints and lines of other loggers keep their order, and none is lost at the end."""
    said = told(
        "log = structlog.get_logger('t')\n"
        "for number in range(3000):\n"
        "    log.info('line', number=3 * number)\n"
        "    print(3 * number + 1, file=sys.stderr)\n"
        "    logging.getLogger('other').warning(str(3 * number + 2))\n"
    )
    numbers = []
    for line in said.stderr.splitlines():
        made = json.loads(line)
        numbers.append(made if isinstance(made, int) else made.get("number", made.get("event")))
    assert [int(number) for number in numbers] == list(range(9000))


@pytest.mark.parametrize("end", ["raise RuntimeError('canary')", "sys.exit(3)", "os.kill(os.getpid(), 15)"])
def test_what_was_logged_before_a_crash_is_written(end: str) -> None:
    """Lines logged before an exit, a handled signal or an uncaught exception are written, and come first."""
    handled = "import signal; signal.signal(15, lambda *_: sys.exit(4))\n"
    said = told(f"{handled}structlog.get_logger('t').info('before')\n{end}\ntime.sleep(1)\n")
    lines = said.stderr.splitlines()
    assert json.loads(lines[0])["event"] == "before"
    if "raise" in end:
        assert lines[-1] == "RuntimeError: canary"
        assert said.returncode == 1


def test_a_line_while_the_interpreter_ends_does_not_keep_the_process() -> None:
    """A line that is logged after the last chance to start a thread is dropped; the process ends."""
    said = told(
        "class Late:\n"
        "    def __del__(self, put=sys.stderr.put):\n"
        "        put(b'late\\n')\n"
        "late = Late()\n"
        "structlog.get_logger('t').info('before')\n"
    )
    assert (said.returncode, json.loads(said.stderr)["event"]) == (0, "before")


def test_a_fork_writes_its_own_lines_and_nobody_elses() -> None:
    """After a fork the lines of the child and of the parent each come once."""
    said = told(
        "log = structlog.get_logger('t')\n"
        "log.info('parent')\n"
        "if os.fork() == 0:\n"
        "    log.info('child')\n"
        "    sys.exit()\n"
        "os.wait()\n"
    )
    assert sorted(json.loads(line)["event"] for line in said.stderr.splitlines()) == ["child", "parent"]


def test_what_does_not_fit_is_dropped_counted_and_told_in_its_place() -> None:
    """The queue is bounded in lines and in bytes; one line in place of the dropped ones counts them."""
    reading, writing = os.pipe()
    try:
        blocked = b"x" * 65535 + b"\n"
        queue = OutputQueue(writing, max_lines=3, max_bytes=400_000)
        queue.put(blocked)
        while not queue._asleep:  # The line is in the pipe, which is full now.
            time.sleep(0.001)
        queue.put(b"next\n")
        while queue._lines:
            time.sleep(0.001)
        for number in range(5):
            queue.put(b"%d\n" % number)
        assert queue.dropped == 2
        assert not queue.flush(0.01)
        queue.put(b"y" * 400_000)
        assert queue.dropped == 3
        got = b""
        while not got.endswith(b"the reader of the log did not keep up\n"):
            got += os.read(reading, 65536)
        assert got.startswith(blocked + b"next\n0\n1\n2\ntoolrelay: 3 lines were dropped")
        assert queue.flush(PATIENCE_S)
        queue.put(b"again\n")
        assert os.read(reading, 65536) == b"again\n"
        queue.close(PATIENCE_S)
    finally:
        os.close(reading)
        os.close(writing)


REQUESTS = 14_000
AT_ONCE = 4


async def test_a_log_that_nobody_reads_stops_no_request(tmp_path: Path) -> None:
    """While nobody reads the log, the server answers thousands of requests; it counts the lines that it
    drops, reports them when somebody reads again, and ends in time."""
    write_config(tmp_path, "http://127.0.0.1:9/v1")
    read, write = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy", "serve"), cwd=tmp_path, stdout=subprocess.PIPE, stderr=write
    )
    os.close(write)
    try:
        assert process.stdout is not None
        first = (await process.stdout.readline()).decode()
        proxy = ProxyAddress(int(first.rpartition(":")[2].partition("/")[0]))

        async def ask() -> None:
            async with proxy.connect() as conversation:
                for _ in range(REQUESTS // AT_ONCE // 50):
                    conversation.writer.write(proxy.request(method="GET", path="/healthz") * 50)
                    for _ in range(50):
                        assert (await conversation.answer()).status == 200

        await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
        figures = (await proxy.ask(method="GET", path="/metrics")).body.decode()
        (line,) = [
            one for one in figures.splitlines() if one.startswith("toolrelay_log_dropped_lines_total ")
        ]
        dropped = int(float(line.split()[1]))
        assert dropped > 0

        lines: list[str] = []
        rest = b""

        async def take() -> bool:
            nonlocal rest
            rest += await asyncio.to_thread(os.read, read, 1 << 20)
            *whole, last = rest.split(b"\n")
            rest = last
            lines.extend(one.decode() for one in whole)
            return any("log_lines_dropped" in one for one in lines)

        await until(take)
        (loss,) = [json.loads(one) for one in lines if "log_lines_dropped" in one]
        assert loss["dropped"] >= dropped
        assert loss["note"].startswith(f"{loss['dropped']} log lines were dropped")
        # Each request has a line, or its dropped line was counted.
        seen = sum('"path":"/healthz"' in one for one in lines)
        assert seen + loss["dropped"] >= REQUESTS
        # Nobody reads again, and the server ends all the same.
        await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
        started = children(process.pid)
        assert len(started) == 1
        process.terminate()
        async with asyncio.timeout(PATIENCE_S):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
        os.close(read)
        await process.communicate()


async def test_a_command_that_does_not_serve_waits_for_its_reader(tmp_path: Path) -> None:
    """A command that does not serve drops no output, even if its reader begins late."""
    environment = {**os.environ, "TOOLRELAY_UPSTREAMS__DEFAULT__BASE_URL": "http://127.0.0.1:9/v1"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _MANY_LINES), cwd=tmp_path, env=environment, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    # Longer than a server would wait at its end.
    await asyncio.sleep(1.5)
    out, _ = await process.communicate()
    assert out.count(b"\n") == 20_000
    assert process.returncode == 0


_MANY_LINES = """
from proxy.commands.common import say, start_logging
from proxy.config.load import load_config
import os
start_logging(load_config(None, os.environ))
for number in range(20_000):
    say(f"line {number}")
"""
