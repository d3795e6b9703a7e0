"""A process that runs one program: it speaks JSON, a line for each message, and is killed at its limits."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from proxy.tools.programs.engine import ProgramCall, ProgramFailed, ProgramLimits, Step

AT_ONCE: Final = 16
"""How many programs of an engine a process of the proxy runs at the same time; others wait for their turn."""
_MOST_LINE: Final = 32 << 20
"""The most bytes of one message of the child."""
_GRACE_S: Final = 5.0
"""How many seconds the child gets beyond the program's own, to start and to report that they are over."""
_KILLED: Final = "the program used too much memory or time and was stopped"


class Child:
    """The process of one program, which runs the file ``program``; ``monty_child.py`` has its messages."""

    def __init__(self, program: Path, limits: ProgramLimits, free: asyncio.Semaphore) -> None:
        self._program = program
        self._limits = limits
        self._free = free
        self._holds = False
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The process and its group; ``None`` while there is none."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the process when there is room for it."""
        await self._free.acquire()
        self._holds = True
        # -I: neither the environment nor the current folder affects imports. That folder may hold secrets.
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-IB",
            str(self._program),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,
            limit=_MOST_LINE,
        )

    async def step(self, message: Mapping[str, Any]) -> Step:
        """Send a message that lets the program go on, and return how far it comes."""
        answer = await self.ask(message)
        calls = [ProgramCall(call["id"], call["name"], call["arguments"]) for call in answer.get("calls", ())]
        return Step(calls, answer.get("result"), answer["printed"], tuple(answer.get("images", ())))

    async def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a message and return the answer; raise :class:`.ProgramFailed` if none comes in time."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise ProgramFailed("the program has ended")
        try:
            async with asyncio.timeout(self._limits.seconds + _GRACE_S):
                process.stdin.write(orjson.dumps(message) + b"\n")
                await process.stdin.drain()
                line = await process.stdout.readline()
            answer: dict[str, Any] = orjson.loads(line)
        except (TimeoutError, ValueError, ConnectionError):
            raise ProgramFailed(_KILLED) from None
        if "error" in answer:
            raise ProgramFailed(str(answer["error"]), str(answer["printed"]))
        return answer

    async def close(self) -> None:
        """Kill the process with all that it started."""
        process, self._process = self._process, None
        try:
            if process is not None:
                # Also if it has ended itself: its worker may be left.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        finally:
            if self._holds:
                self._holds = False
                self._free.release()
