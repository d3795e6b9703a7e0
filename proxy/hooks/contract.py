"""What a hook is asked, and what it may answer: immutable values, and nothing else of the request.

A hook is an object with any of three async methods; a method that it does not have costs nothing. Each
returns what it changes, or ``None`` to leave the value as it is.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec
from msgspec import Struct

MOST_ORIGINALS: Final = 5000
"""The most placeholders of one request."""
MOST_PLACEHOLDER: Final = 64
"""The most characters of a placeholder."""


class RequestText(Struct, frozen=True):
    """One text of a conversation. ``role`` says who wrote it: the role of its message, or the name of the
    member of the request that holds it, such as ``instructions``."""

    role: str
    text: str


class Request(Struct, frozen=True):
    """A request for an answer of a model, before the proxy plans it.

    ``id`` is the id of the request, ``caller`` who asks, and ``key`` the client key. ``dialect`` is the name
    of the client's dialect. ``agent`` is the name of the agent whose request this is, empty for a client's.
    ``texts`` are the texts of the conversation in their order: messages, instructions, results of tools, and
    each text in the arguments of calls.
    """

    id: str
    caller: str
    key: str
    dialect: str
    model: str
    texts: tuple[RequestText, ...]
    agent: str = ""


class RequestChange(Struct, frozen=True):
    """What a hook changes of a request; ``None`` keeps what there is.

    ``texts`` are as many as those of the request, in the same order. ``originals`` are placeholders that the
    texts have now, each with the text that it stands for: the proxy puts the originals back into what the
    client gets. A placeholder has 3 to 64 printable ASCII characters, none of them a quote or a backslash,
    and none is the beginning of another.
    """

    texts: Sequence[str] | None = None
    model: str | None = None
    originals: Mapping[str, str] = msgspec.field(default_factory=dict)


class Refusal(Struct, frozen=True):
    """A refusal of a request or a call. ``message`` is for the client, or for the model."""

    message: str


class ToolUse(Struct, frozen=True):
    """A call of a server tool, before policy, validation and approvals.

    ``tool`` is the id of the tool. ``effect`` is ``read_only``, ``write`` or another effect of a tool, empty
    for a tool that does not exist. ``arguments`` is the JSON text that the model wrote.
    """

    run_id: str
    caller: str
    key: str
    tool: str
    effect: str
    arguments: str


class ToolChange(Struct, frozen=True):
    """The ``arguments`` with which a call is made instead, as JSON text."""

    arguments: str


class ToolOutcome(Struct, frozen=True):
    """The result of a call as the model would read it: ``text``, or for ``ok=False`` the message."""

    run_id: str
    caller: str
    key: str
    tool: str
    ok: bool
    text: str


class OutcomeChange(Struct, frozen=True):
    """The ``text`` that the model reads instead; ``originals`` are as in :class:`RequestChange`."""

    text: str
    originals: Mapping[str, str] = msgspec.field(default_factory=dict)


class BeforeRequest(Protocol):
    """A hook that sees requests."""

    async def before_request(self, request: Request) -> RequestChange | Refusal | None: ...


class BeforeTool(Protocol):
    """A hook that sees calls of server tools."""

    async def before_tool(self, call: ToolUse) -> ToolChange | Refusal | None: ...


class AfterTool(Protocol):
    """A hook that sees results of server tools."""

    async def after_tool(self, outcome: ToolOutcome) -> OutcomeChange | None: ...


Hook = BeforeRequest | BeforeTool | AfterTool
POINTS: Final = ("before_request", "before_tool", "after_tool")
