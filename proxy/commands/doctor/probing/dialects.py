"""Finds out which dialects an upstream speaks, by asking for one word in each of them.

This module does not depend on a dialect: the dialect's codec writes the question, its reader reads the
answer.
"""

import asyncio
from collections.abc import Mapping

from msgspec import Struct

from proxy.base.conversation import Conversation, Message, Output, Text
from proxy.base.errors import RequestError, UpstreamError, WireError
from proxy.base.events import (
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallStarted,
    TurnFailed,
    UsageReported,
)
from proxy.base.plain_text import plain_text
from proxy.upstreams.base import Upstream, UpstreamRequest
from proxy.wires.dialect import Dialect
from proxy.wires.wire import Wire

MAX_ANSWER_BYTES = 4 * 1024 * 1024
"""The most bytes of an answer to one word."""

_TIMEOUT_S = 60.0
_MAX_TOKENS = 16
"""The smallest limit that every provider accepts."""

_ABSENT = (404, 405, 501)
_MAX_WORDS = 200
_NO_ANSWER = "the response is not valid in this dialect"
_SAID = (TextDelta, ReasoningDelta, RefusalDelta, ToolCallStarted, UsageReported)


class SpokenDialect(Struct, frozen=True):
    """Whether an upstream speaks a dialect; ``name`` is the one that ``upstreams.*.wires`` uses.

    ``spoken`` is ``None`` if the answer is inconclusive, for example because the key was refused. ``status``
    is the status of the answer, ``None`` if there was none. ``problem`` is one line, empty if there is none.
    """

    name: str
    spoken: bool | None
    status: int | None = None
    problem: str = ""


async def find_dialects(upstream: Upstream, wires: Mapping[str, Wire], model: str) -> list[SpokenDialect]:
    """Ask ``model`` for one word in each of the ``wires``, one after the other, in their order.

    Costs a completion of at most 16 tokens for each dialect that is spoken. Never raises for failures of the
    upstream.
    """
    return [await speaks(upstream, wire, model) for wire in wires.values()]


async def speaks(
    upstream: Upstream, wire: Wire, model: str, *, timeout_s: float = _TIMEOUT_S
) -> SpokenDialect:
    """Find out whether an upstream speaks one dialect; see :func:`find_dialects`."""
    name = wire.dialect.wire
    try:
        async with asyncio.timeout(timeout_s):
            return await _ask(upstream, wire, model)
    except TimeoutError:
        return SpokenDialect(name, None, problem=f"no complete response within {timeout_s:.0f} s")
    except UpstreamError as error:
        return SpokenDialect(name, None, problem=error.message)


async def _ask(upstream: Upstream, wire: Wire, model: str) -> SpokenDialect:
    dialect = wire.dialect
    question = Message("user", (Text("Say ok."),))
    try:
        body = wire.codec.write(Conversation(model, (question,), output=Output(max_tokens=_MAX_TOKENS))).body
    except RequestError as error:
        return SpokenDialect(dialect.wire, None, problem=error.message)
    headers = (("Content-Type", "application/json"), *dialect.headers)
    response = await upstream.open(
        UpstreamRequest(
            "POST", dialect.path, headers=headers, body=body, expect_stream=True, rooted=dialect.rooted
        )
    )
    try:
        status, answer = response.status, await response.read(MAX_ANSWER_BYTES)
    finally:
        await response.aclose()
    return _answered(wire, status, answer) if status < 300 else _refused(dialect, status, answer)


def _answered(wire: Wire, status: int, answer: bytes) -> SpokenDialect:
    """Judge whether a response is valid in this dialect: it must contain output, or at least its usage."""
    name = wire.dialect.wire
    try:
        events = wire.reader((), lambda tool: False, MAX_ANSWER_BYTES).read_reply(answer).events
    except WireError:
        return SpokenDialect(name, False, status, _NO_ANSWER)
    if any(isinstance(event, TurnFailed) for event in events):
        return SpokenDialect(name, None, status, "the response reports an error")
    if any(isinstance(event, _SAID) for event in events):
        return SpokenDialect(name, True, status)
    return SpokenDialect(name, False, status, _NO_ANSWER)


def _refused(dialect: Dialect, status: int, answer: bytes) -> SpokenDialect:
    """Judge an error response: it shows whether the path is missing, or only the model."""
    message, code, _ = dialect.errors.read(answer)
    text = plain_text(message, _MAX_WORDS)
    if status in _ABSENT and "model" not in f"{message} {code}".lower():
        return SpokenDialect(dialect.wire, False, status, f"no endpoint at {dialect.path} (status {status})")
    return SpokenDialect(
        dialect.wire,
        None,
        status,
        f"the upstream answered with status {status}" + (f": {text}" if text else ""),
    )
