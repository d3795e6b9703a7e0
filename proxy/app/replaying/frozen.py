"""Parse a recorded run into the model's messages, turn by turn, and the result of each tool call.

A replay uses both in place of the real thing: an upstream that repeats the model's messages, and tools that
repeat their results. The proxy asks no model and runs no tool.
"""

from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from msgspec import Struct

from proxy.base.errors import ToolFailure, UpstreamError
from proxy.base.events import FinishReason, ToolCall
from proxy.http.headers import Headers
from proxy.records.rows import MessageRecord, TurnRecord, recorded_call_id
from proxy.store.base import RunDetail
from proxy.tools.access.catalog import Catalog
from proxy.tools.contract.provider import CallContext, ToolProvider
from proxy.tools.contract.redaction import MASK, redact_arguments
from proxy.tools.contract.spec import Redaction, ToolSpec
from proxy.upstreams.base import PulledResponse, Upstream, UpstreamRequest, UpstreamResponse
from proxy.wires.chat.dialect import CHAT
from proxy.wires.openai.parallel_tool_use import expand, is_wrapper

_STATUSES = frozenset(str(status) for status in range(300, 600))


class RecordedCall(Struct, frozen=True):
    """A server call, and the text of its result as the model got it."""

    tool: str
    arguments: str
    content: str


class RecordedRun(Struct, frozen=True):
    """The conversation of a run, as far as it is on record.

    ``request`` is the client's body, or ``None`` if it was not kept. ``replies`` are the model's messages in
    Chat's form, by turn. ``failed`` maps each turn that ended in an error to the error code. ``unknown``
    maps each turn whose message is not on record to the reason. ``text`` is the text of the last turn.
    ``masked`` is true if private arguments are masked. ``client_tools`` are the names of the client's own
    tools that the model called.
    """

    request: bytes | None
    replies: Mapping[int, Mapping[str, Any]]
    calls: Sequence[RecordedCall]
    failed: Mapping[int, str]
    unknown: Mapping[int, str]
    text: str | None
    masked: bool
    client_tools: Sequence[str] = ()


def parse_run(detail: RunDetail) -> RecordedRun:
    """Return the conversation of a run, as far as it is on record."""
    request = next((row.content_json for row in detail.messages if row.role == "request"), None)
    replies: dict[int, Mapping[str, Any]] = {}
    failed: dict[int, str] = {}
    unknown: dict[int, str] = {}
    for turn in detail.turns:
        answers = [row for row in detail.messages if row.turn == turn.number and row.role == "assistant"]
        message = _message(answers, _tool_ids(detail, turn.number))
        last = turn is detail.turns[-1]
        lacking = len(message.get("tool_calls", ())) < turn.tool_calls
        # If an upstream refused a later turn or broke off, the error is on the run, not on the turn.
        error = turn.error_code or (detail.run.error_code if last and turn.finish_reason is None else None)
        if error == "client_gone":
            unknown[turn.number] = "the client left before the turn ended"
        elif error is not None:
            failed[turn.number] = error
        elif lacking or not (answers or _keeps_answers(detail)):
            unknown[turn.number] = "store.content did not keep it, or store.keep_days has passed"
        else:
            replies[turn.number] = message
    calls = _calls(detail)
    final = replies.get(detail.turns[-1].number) if detail.turns else None
    return RecordedRun(
        request=request.encode() if request is not None else None,
        replies=replies,
        calls=calls,
        failed=failed,
        unknown=unknown,
        text=None if final is None else final["content"] or "",
        masked=any(MASK in call.arguments for call in calls),
        client_tools=_client_tools(detail, replies),
    )


def _client_tools(detail: RunDetail, replies: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Return the names of called functions that have no row of a server call: these calls went to the
    client."""
    ran = {(row.turn, recorded_call_id(row.call_id)) for row in detail.invocations}
    tools = [
        str(call["function"].get("name"))
        for turn, reply in replies.items()
        for call in reply.get("tool_calls", ())
        if (turn, recorded_call_id(str(call.get("id")))) not in ran
        and not is_wrapper(str(call["function"].get("name")))
    ]
    return list(dict.fromkeys(tools))


def _keeps_answers(detail: RunDetail) -> bool:
    """Return whether the record keeps this run's answers; if so, a missing message means an empty answer."""
    return any(row.role in ("request", "assistant") for row in detail.messages)


def _tool_ids(detail: RunDetail, turn: int) -> dict[str, str]:
    """Return the tool of each call of a turn, by call id, because a name on the wire may be an alias."""
    return {recorded_call_id(row.call_id): row.tool for row in detail.invocations if row.turn == turn}


def _message(rows: Sequence[MessageRecord], tools: Mapping[str, str]) -> dict[str, Any]:
    """Join the rows of one turn into one Chat message. With Responses, each item is a row of its own."""
    calls: list[dict[str, Any]] = []
    for row in rows:
        for call in orjson.loads(row.tool_calls) if row.tool_calls else ():
            function = dict(call.get("function") or {})
            function["name"] = tools.get(recorded_call_id(str(call.get("id"))), function.get("name"))
            calls.append({**call, "function": function})
        if row.function_call:
            # The older form has no ids; one call of the newer form is equivalent.
            named = orjson.loads(row.function_call)
            tool = next(iter(tools.values()), named.get("name"))
            function = {**named, "name": tool}
            calls.append({"id": "call_0", "type": "function", "function": function})
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(row.content for row in rows if row.content) or None,
    }
    return {**message, "tool_calls": calls} if calls else message


def _calls(detail: RunDetail) -> list[RecordedCall]:
    """Return every server call with its result, and the calls inside a wrapper separately."""
    tools = {(row.turn, recorded_call_id(row.call_id)): row.tool for row in detail.invocations}
    results = {
        (row.turn, row.tool_call_id): row.content
        for row in detail.messages
        if row.role in ("tool", "function") and row.content is not None
    }
    calls = []
    for row in detail.messages:
        for index, call in enumerate(orjson.loads(row.tool_calls) if row.tool_calls else ()):
            function = call.get("function") or {}
            made = ToolCall(
                str(call.get("id")), str(function.get("name")), str(function.get("arguments")), index
            )
            content = results.get((row.turn, made.call_id))
            if content is None:
                continue
            parts = expand(made) if is_wrapper(made.name) else ()
            for part, text in zip(parts, _outputs(content), strict=False):
                tool = tools.get((row.turn, recorded_call_id(part.call_id)), part.name)
                calls.append(RecordedCall(tool, part.arguments, text))
            if not parts:
                tool = tools.get((row.turn, recorded_call_id(made.call_id)), made.name)
                calls.append(RecordedCall(tool, made.arguments, content))
        if row.role == "assistant" and row.function_call:
            named = orjson.loads(row.function_call)
            content = next((text for (turn, _), text in results.items() if turn == row.turn), None)
            tool = next(
                (tool for (turn, _), tool in tools.items() if turn == row.turn), str(named.get("name"))
            )
            if content is not None:
                calls.append(RecordedCall(tool, str(named.get("arguments")), content))
    return calls


def _outputs(content: str) -> list[str]:
    """Return the results inside the one result of a wrapper."""
    decoded = _decoded(content)
    parts = decoded if isinstance(decoded, list) else ()
    return [str(part["output"]) for part in parts if isinstance(part, dict) and "output" in part]


class FrozenResults:
    """The recorded results, each given out once and in order; the last result of a call is given repeatedly.

    Two calls are equal if their tools and their non-private arguments are equal, because the record has only
    these. ``unmatched`` lists the tools of calls without a recorded result.
    """

    def __init__(self, calls: Iterable[RecordedCall]) -> None:
        self._calls = tuple(calls)
        self._waiting: dict[bytes, deque[str]] | None = None
        self._redactions: dict[str, Redaction] = {}
        self.unmatched: list[str] = []

    def register(self, spec: ToolSpec) -> None:
        """Register a tool, so that the private fields of its arguments are known."""
        self._redactions[spec.name] = spec.redaction or Redaction()
        self._waiting = None

    def take(self, tool: str, arguments: dict[str, Any]) -> str | None:
        """Return the text of the next result of this call, or ``None`` if no recorded call matches."""
        if self._waiting is None:
            self._waiting = {}
            for call in self._calls:
                decoded = _decoded(call.arguments)
                made = decoded if isinstance(decoded, dict) else {}
                self._waiting.setdefault(self._key(call.tool, made), deque()).append(call.content)
        waiting = self._waiting.get(self._key(tool, arguments))
        if waiting is None:
            self.unmatched.append(tool)
            return None
        return waiting.popleft() if len(waiting) > 1 else waiting[0]

    def _key(self, tool: str, arguments: dict[str, Any]) -> bytes:
        shown = redact_arguments(arguments, self._redactions.get(tool, Redaction()))
        return orjson.dumps([tool, shown], option=orjson.OPT_SORT_KEYS)


class FrozenProvider:
    """A provider that lists the real tools, and returns their recorded results."""

    def __init__(self, origin: ToolProvider, results: FrozenResults) -> None:
        self._origin = origin
        self._results = results

    @property
    def name(self) -> str:
        """The name of the real provider."""
        return self._origin.name

    async def list_tools(self) -> Sequence[ToolSpec]:
        """Return the real tools; they validate arguments as always, but then return them unchanged."""
        specs = []
        for spec in await self._origin.list_tools():
            self._results.register(spec)
            specs.append(replace(spec, validate=_checking(spec)))
        return specs

    async def call_tool(self, spec: ToolSpec, arguments: Any, context: CallContext) -> Any:
        """Return the recorded result; raises :class:`ToolFailure` for a recorded failure or a missing
        result."""
        content = self._results.take(spec.name, arguments)
        if content is None:
            raise ToolFailure("the recording has no result for this call")
        value = _decoded(content)
        if isinstance(value, dict) and value.get("ok") is False and "error_code" in value:
            raise ToolFailure(str(value.get("message")), code=value["error_code"])
        # Return an object, so that redaction finds its fields, but only if its text stays the same.
        return value if value is not None and orjson.dumps(value).decode() == content else content

    async def aclose(self) -> None:
        """Close the real provider."""
        await self._origin.aclose()


class LoadedTools:
    """The tools of a provider as a running server has loaded them: models see them, but they never run."""

    def __init__(self, name: str, specs: Sequence[ToolSpec]) -> None:
        self.name = name
        self._specs = specs

    @classmethod
    def of(cls, catalog: Catalog) -> "list[ToolProvider]":
        """Return one provider of this kind for each provider of a catalog."""
        by_provider: dict[str, list[ToolSpec]] = {}
        for spec in catalog.tools():
            by_provider.setdefault(catalog.provider(spec.name).name, []).append(spec)
        return [cls(name, specs) for name, specs in by_provider.items()]

    async def list_tools(self) -> Sequence[ToolSpec]:
        """Return the tools."""
        return self._specs

    async def call_tool(self, spec: ToolSpec, arguments: Any, context: CallContext) -> Any:
        """Raise ToolFailure: these tools cannot run."""
        raise ToolFailure("this tool is only described here")

    async def aclose(self) -> None:
        """Do nothing: the server that loaded the tools closes them."""


def _checking(spec: ToolSpec) -> Any:
    def validate(arguments: dict[str, Any]) -> dict[str, Any]:
        spec.validate(arguments)
        return arguments

    return validate


def _decoded(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


@dataclass(slots=True)
class FrozenUpstream:
    """An upstream that answers each request with the model's message of the next turn of a recorded run."""

    origin: Upstream
    model: str
    turns: Sequence[TurnRecord]
    recorded: RecordedRun
    _asked: int = field(default=0, init=False)

    @property
    def name(self) -> str:
        """The upstream's name in the record of the run."""
        return self.origin.name

    async def open(self, request: UpstreamRequest) -> UpstreamResponse:
        """Return the next turn as one Chat object, or an error if the turn failed or is not on record."""
        self._asked += 1
        turn = next((turn for turn in self.turns if turn.number == self._asked), None)
        reply = self.recorded.replies.get(self._asked)
        error = self.recorded.failed.get(self._asked)
        if error is not None:
            return _error(error)
        if turn is None or reply is None:
            return _Answer(502, CHAT.errors.body("the recording has no further turn", type="upstream_error"))
        reason = FinishReason.TOOL_CALLS.value if reply.get("tool_calls") else turn.finish_reason or "stop"
        choice = {"index": 0, "message": reply, "finish_reason": reason}
        usage = {
            CHAT.usage.received: turn.input_tokens,
            CHAT.usage.sent: turn.output_tokens,
            CHAT.usage.total: turn.total_tokens,
        }
        return _Answer(
            200,
            {
                "id": turn.upstream_id,
                "object": "chat.completion",
                "created": int(turn.started_at),
                "model": self.model,
                "choices": [choice],
                **({} if turn.total_tokens is None else {"usage": usage}),
            },
        )

    async def aclose(self) -> None:
        """Close the upstream that this object replaces."""
        await self.origin.aclose()


def _error(code: str) -> UpstreamResponse:
    """Return the recorded error of a turn; raises UpstreamError if it was an error of the connection."""
    message = f"Recorded error: {code}."
    if code.startswith("upstream_"):
        raise UpstreamError(message, code=code)
    status = int(code[5:]) if code.startswith("http_") and code[5:] in _STATUSES else 502
    return _Answer(status, CHAT.errors.body(message, type="upstream_error", code=code))


class _Answer(PulledResponse):
    """A whole JSON response."""

    content_type = "application/json"

    def __init__(self, status: int, payload: Mapping[str, Any]) -> None:
        self.status = status
        self._body = orjson.dumps(payload)
        self.headers: Headers = [
            ("Content-Type", self.content_type),
            ("Content-Length", str(len(self._body))),
        ]

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self._body

    async def read(self, limit: int) -> bytes:
        return self._body[:limit]

    async def aclose(self) -> None:
        return
