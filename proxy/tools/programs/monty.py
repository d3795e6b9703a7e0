"""The engine Monty: an interpreter of a part of Python, with one process for each program.

Source: ``pydantic-monty`` 1.4.0. Its own worker process confines a program; why there is a process of ours
around it stands in ``monty_child.py``.
"""

import asyncio
import base64
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from proxy.base.errors import ConfigError, how_to_install
from proxy.tools.programs.child import AT_ONCE, Child
from proxy.tools.programs.engine import Binding, ProgramLimits, Step

_LIBRARY: Final = "pydantic_monty"
_PROGRAM: Final = Path(__file__).with_name("monty_child.py")


def is_installed() -> bool:
    """Return whether the engine is installed."""
    return importlib.util.find_spec(_LIBRARY) is not None


def check_installed() -> None:
    """Raise :class:`~proxy.base.errors.ConfigError` if the engine is not installed."""
    if not is_installed():
        raise ConfigError(
            "tools.programs", "needs pydantic-monty, which is not installed", how_to_install("programs")
        )


class MontyEngine:
    """Opens sessions; each has a process of its own. The proxy's process has one engine."""

    def __init__(self, limits: ProgramLimits, *, at_once: int = AT_ONCE) -> None:
        self._limits = limits
        self._free = asyncio.Semaphore(at_once)

    def session(self) -> "MontySession":
        """Return a session for one program."""
        return MontySession(self._limits, self._free)


class MontySession:
    """One program in its process; see :class:`~proxy.tools.programs.engine.Session`."""

    def __init__(self, limits: ProgramLimits, free: asyncio.Semaphore) -> None:
        self._limits = limits
        self._child = Child(_PROGRAM, limits, free)

    @property
    def pid(self) -> int | None:
        """The process and its group; ``None`` while there is none."""
        return self._child.pid

    async def start(self, code: str, tools: Mapping[str, Binding], state: bytes = b"") -> Step:
        """Start the process, and run the program in it."""
        await self._child.start()
        limits = {"memory": self._limits.memory, "seconds": self._limits.seconds}
        if state:
            written = base64.b64encode(state).decode()
            return await self._child.step({"do": "restore", "state": written, "limits": limits})
        named = {name: [bound.tool, bound.parameters] for name, bound in tools.items()}
        return await self._child.step({"do": "start", "code": code, "tools": named, "limits": limits})

    async def resume(self, results: Mapping[int, str]) -> Step:
        """Go on with the results of calls."""
        made = {str(call): text for call, text in results.items()}
        return await self._child.step({"do": "resume", "results": made})

    async def dump(self) -> bytes:
        """Return the state of the program."""
        return base64.b64decode((await self._child.ask({"do": "dump"}))["state"])

    async def close(self) -> None:
        """Kill the process with all that it started."""
        await self._child.close()
