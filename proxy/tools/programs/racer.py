"""The engine for JavaScript: V8 by the library ``mini-racer``, with one process for each program.

V8 cannot write down where a program is. So the state of a program is its code and the results that it has
got: whoever goes on runs it again from the beginning and gives it these. That leads to the same place because
a program sees no clock and no chance: ``Date`` stands still and ``Math.random`` begins with a number, and the
state has both. If a program makes other calls than before all the same, it ends with an error, and no call
is made twice.

Source: ``mini-racer`` 0.14.1.
"""

import asyncio
import importlib.util
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from proxy.tools.programs.child import AT_ONCE, Child
from proxy.tools.programs.engine import Binding, ProgramCall, ProgramFailed, ProgramLimits, Step

_LIBRARY: Final = "py_mini_racer"
_PROGRAM: Final = Path(__file__).with_name("racer_child.py")
_OTHER_WAY: Final = (
    "the program had to be run again from its beginning, and it then made other calls than before, so it was "
    "stopped; what it did before has happened"
)


def is_installed() -> bool:
    """Return whether the engine is installed."""
    return importlib.util.find_spec(_LIBRARY) is not None


class _Past(Struct, frozen=True):
    """The state of a program. ``results`` are those of each step that has ended, and ``calls`` those of all
    steps, the last of which waits. ``now`` is its clock in milliseconds, ``seed`` the number with which its
    chance begins, and ``tools`` are names, each with the id of a tool."""

    code: str
    tools: Mapping[str, str]
    now: int
    seed: int
    calls: tuple[tuple[ProgramCall, ...], ...] = ()
    results: tuple[Mapping[int, str], ...] = field(default_factory=tuple)


class RacerEngine:
    """Opens sessions; each has a process of its own. The proxy's process has one engine."""

    def __init__(self, limits: ProgramLimits, *, at_once: int = AT_ONCE) -> None:
        self._limits = limits
        self._free = asyncio.Semaphore(at_once)

    def session(self) -> "RacerSession":
        """Return a session for one program."""
        return RacerSession(self._limits, self._free)


class RacerSession:
    """One program in its process; see :class:`~proxy.tools.programs.engine.Session`."""

    def __init__(self, limits: ProgramLimits, free: asyncio.Semaphore) -> None:
        self._limits = limits
        self._child = Child(_PROGRAM, limits, free)
        self._past = _Past("", {}, 0, 0)

    @property
    def pid(self) -> int | None:
        """The process and its group; ``None`` while there is none."""
        return self._child.pid

    async def start(self, code: str, tools: Mapping[str, Binding], state: bytes = b"") -> Step:
        """Start the process and run the program in it, up to where the state was made if there is one."""
        await self._child.start()
        if not state:
            named = {name: bound.tool for name, bound in tools.items()}
            self._past = _Past(code, named, int(time.time() * 1000), secrets.randbits(32))
            return await self._begin()
        before = msgspec.json.decode(state, type=_Past)
        self._past = replace(before, calls=(), results=())
        step = await self._begin()
        for results in before.results:
            step = await self.resume(results)
        if self._past.calls != before.calls or step.result is not None:
            raise ProgramFailed(_OTHER_WAY)
        return Step()

    async def _begin(self) -> Step:
        past = self._past
        limits = {"memory": self._limits.memory, "seconds": self._limits.seconds}
        begun: dict[str, Any] = {"code": past.code, "tools": past.tools, "now": past.now, "seed": past.seed}
        return self._noted(await self._child.step({"do": "start", **begun, "limits": limits}))

    async def resume(self, results: Mapping[int, str]) -> Step:
        """Go on with the results of calls."""
        self._past = replace(self._past, results=(*self._past.results, dict(results)))
        made = {str(call): text for call, text in sorted(results.items())}
        return self._noted(await self._child.step({"do": "resume", "results": made}))

    def _noted(self, step: Step) -> Step:
        if step.result is None:
            self._past = replace(self._past, calls=(*self._past.calls, tuple(step.calls)))
        return step

    async def dump(self) -> bytes:
        """Return the code and the results so far."""
        return msgspec.json.encode(self._past)

    async def close(self) -> None:
        """Kill the process with all that it started."""
        await self._child.close()
