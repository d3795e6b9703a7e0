"""The port of engines that run programs. An engine knows no tool: it says which calls a program waits for.

A program is untrusted. An engine keeps it in a process that it can kill, within limits of memory and time.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from proxy.base.errors import ToolFailure

Language = Literal["python", "javascript"]
"""What programs are written in. Each language has an engine of its own."""


class ProgramLimits(Struct, frozen=True):
    """What one program may use: ``memory`` in bytes, and ``seconds`` of computing, without its calls."""

    memory: int = 64 << 20
    seconds: float = 5.0


class ProgramFailed(ToolFailure):
    """The program raised an exception, or exceeded a limit. The message is for the model that wrote it."""

    def __init__(self, message: str, printed: str = "") -> None:
        super().__init__(message)
        self.printed = printed


class Binding(Struct, frozen=True):
    """A tool as a program calls it: its id, and the names of its arguments in order."""

    tool: str
    parameters: tuple[str, ...]


class ProgramCall(Struct, frozen=True):
    """A call that a program waits for. ``id`` is unique in the program; ``arguments`` is JSON text."""

    id: int
    tool: str
    arguments: str


class Step(Struct, frozen=True):
    """How far a program has come: it waits for ``calls``, or it has ended with ``result``, JSON text.

    ``printed`` is what it has printed since the step before. ``images`` are those that it puts out at its
    end, as data URLs.
    """

    calls: Sequence[ProgramCall] = ()
    result: str | None = None
    printed: str = ""
    images: Sequence[str] = ()


class ValueWithImages(Struct, frozen=True):
    """What a program puts out if it puts out ``images``, as data URLs, beside ``text``."""

    text: str
    images: tuple[str, ...]


class Session(Protocol):
    """One program. Belongs to one task. Every method but ``close`` raises :class:`ProgramFailed`."""

    async def start(self, code: str, tools: Mapping[str, Binding], state: bytes = b"") -> Step:
        """Run a program, with tools by the names that it calls them, until it waits for calls or ends.

        With a ``state`` it is at once where :meth:`dump` found it; the step then names no calls.
        """

    async def resume(self, results: Mapping[int, str]) -> Step:
        """Go on with the results of all calls that the program waits for, by id.

        Each is JSON text: ``{"ok": true, "value": …}``, or ``{"ok": false, "message": …}``, which raises an
        exception in the program.
        """

    async def dump(self) -> bytes:
        """Return the state of a program that waits, from which another process can go on."""

    async def close(self) -> None:
        """End the program; nothing of it is left."""


class Engine(Protocol):
    """Opens sessions."""

    def session(self) -> Session:
        """Return a session for one program."""
