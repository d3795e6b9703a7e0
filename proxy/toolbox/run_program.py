"""``core__run_program``: runs code that the model wrote, which calls the other tools."""

from collections.abc import Callable
from typing import Annotated, Any, Final

from pydantic import Field

from proxy.tools.contract.declaration import tool
from proxy.tools.contract.provider import CallContext
from proxy.tools.contract.results.images import Image
from proxy.tools.contract.results.results import RichResult
from proxy.tools.contract.spec import Redaction
from proxy.tools.programs.engine import ValueWithImages
from proxy.tools.programs.monty import check_installed
from proxy.tools.programs.programs import Programs

MOST_CODE: Final = 20_000
"""The most characters of a program."""


def run_program_tool(programs: Programs, timeout_s: float) -> Callable[..., Any]:
    """Build the tool; raise :class:`~proxy.base.errors.ConfigError` if the engine is not installed.

    The tool itself only computes. Each call that a program makes is a call of its own, with its own effect.
    """
    check_installed()

    @tool(
        name="run_program",
        description="Run a Python program that calls tools, several at once if you like. Only what it prints "
        "and the value of its last expression come back, so filter and count in the program instead of "
        "reading long results. Use it for anything that takes more than one call.",
        effect="read_only",
        # A program may contain arguments that are private to the tools that it calls.
        redaction=Redaction(private_arguments=("code",)),
        timeout_s=timeout_s,
    )
    async def run_program(
        code: Annotated[
            str,
            Field(
                description="The program. Call a tool as await NAME(argument=value); several at once with "
                "await asyncio.gather(...). A result is the tool's JSON as Python values, or a str. A call "
                "that fails raises RuntimeError. There are json, re, math, datetime and asyncio; no files, "
                "no network, no other modules, no inheritance of classes",
                min_length=1,
                max_length=MOST_CODE,
            ),
        ],
        call: CallContext,
    ) -> Any:
        """Return the program's value, or ``{"printed", "value"}`` if it printed something."""
        value = await programs.run(code, call)
        if not isinstance(value, ValueWithImages):
            return value
        return RichResult(value.text, images=[Image(url=url) for url in value.images])

    return run_program
