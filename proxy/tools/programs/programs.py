"""Connects the tool that runs programs to what runs their calls."""

from collections.abc import Callable, Coroutine
from typing import Any

from proxy.base.errors import ToolFailure
from proxy.tools.contract.provider import CallContext

RunProgram = Callable[[str, CallContext], Coroutine[Any, Any, Any]]
"""Runs the code of a program for one call. Returns what the model gets; raises
:class:`~proxy.base.errors.ToolFailure` for a program that failed."""


class Programs:
    """The programs of a process. Every program fails until :meth:`bind` is called: commands that only list
    tools do not need it."""

    def __init__(self) -> None:
        self._run: RunProgram | None = None

    def bind(self, run: RunProgram) -> None:
        """Run programs with ``run`` from now on."""
        self._run = run

    async def run(self, code: str, context: CallContext) -> Any:
        """Run a program; see :data:`RunProgram`."""
        if self._run is None:
            raise ToolFailure("a program runs only inside of a request that asks a model")
        return await self._run(code, context)
