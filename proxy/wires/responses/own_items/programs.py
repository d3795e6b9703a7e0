"""Programmatic tool calling of OpenAI, run by the tool that runs programs: its declaration and its items.

An answer has a ``program`` item with the code, and once the program has ended a ``program_output`` item. A
program may call functions of the client, those whose ``allowed_callers`` name it. Such a call is a
``function_call`` whose ``caller`` is the program. The answer then ends, and the next request brings the
outputs. For the model all of that is one call. So the calls and outputs in between are taken out of a request
before it is read, and what they bring goes to the program; only the calls of the answer that has the program
stay, as the sign of a turn that waited for the client.

Sources: OpenAI's guide "Programmatic Tool Calling"; the types of openai 3.57.0 (``Program``,
``ProgramOutput``, ``CallerProgram``, ``ProgrammaticToolCallingParam``); the recorded streams
``programmatic-tool-calling.1`` to ``.3`` of vercel/ai.
"""

import hashlib
import hmac
import secrets
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import orjson
from msgspec import Struct, field

from proxy.base.chance import replayable
from proxy.base.errors import RequestError
from proxy.base.events import ToolCall, ToolDefinition, ToolResult
from proxy.json.splice import elements, join_array, join_object, members
from proxy.wires.client_port import ClientCall, EndedProgram, ProgramResults
from proxy.wires.hosted.forms import CallForm
from proxy.wires.hosted.programs import code_of, for_program, is_paused, programs_digest
from proxy.wires.hosted.tools import ClientPrograms, HostedTool
from proxy.wires.responses.items import SERVER_LABEL, answer_spans, is_model_item, mint_item_id, own_mark

Item = dict[str, Any]

KIND: Final = "programmatic_tool_calling"
_DIRECT, _PROGRAMMATIC = "direct", "programmatic"
_PROGRAM: Final = f"call_{SERVER_LABEL}"
"""The beginning of the ``call_id`` of each program."""
_CALLED: Final = f"call_{SERVER_LABEL}_p"
"""The beginning of the ``call_id`` of each call that a program makes of the client."""
NO_TOKENS: Final[Mapping[str, Any]] = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}
"""The usage of an answer for which no model was asked."""
_FORGED: Final = (
    "the fingerprint is missing or not that of this program. Send the items of the answer as they came."
)
_NOTHING_ELSE: Final = "while a program waits, send the outputs of its calls and nothing after them"
_NO_CHAIN: Final = (
    "previous_response_id: a program of this server goes on only in a request that has the items of the "
    "conversation. Send the items of all answers, without previous_response_id."
)


class Fingerprints:
    """The fingerprints of one caller's programs; ``keys`` are 32 bytes each, and the first one makes them."""

    def __init__(self, keys: Sequence[bytes], caller: str) -> None:
        self._keys = keys
        self._caller = caller

    def of(self, call_id: str, code: str) -> str:
        """Return the fingerprint of a program."""
        return replayable("fingerprint", lambda: self._mac(self._keys[0], call_id, code))

    def check(self, payload: Mapping[str, Any]) -> None:
        """Raise :class:`RequestError` for a program in a request that is not this caller's, or was changed,
        and for a request without any."""
        found = False
        given = payload.get("input")
        for at, item in enumerate(given if isinstance(given, list) else ()):
            if not is_program(item):
                continue
            found = True
            written, told = (item.get("call_id"), item.get("code")), item.get("fingerprint")
            texts = [one if isinstance(one, str) else "" for one in (*written, told)]
            if not any(_equal(texts[2], self._mac(key, *texts[:2])) for key in self._keys):
                name = f"input[{at}].fingerprint"
                raise RequestError(400, f"{name}: {_FORGED}", param=name)
        if not found:
            raise RequestError(400, f"input: {_FORGED}", param="input")

    def _mac(self, key: bytes, call_id: str, code: str) -> str:
        made = hashlib.blake2b(key=key, digest_size=32, person=b"program print")
        for word in (self._caller, call_id, code):
            part = word.encode("utf-8", "surrogatepass")
            made.update(b"%d:%b" % (len(part), part))
        return made.hexdigest()


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "surrogatepass"), other.encode())


def is_program(item: Any) -> bool:
    """Return whether an item shows a program of the proxy, or claims to."""
    return (
        isinstance(item, dict)
        and item.get("type") == "program"
        and str(item.get("call_id")).startswith(_PROGRAM)
    )


class ProgramForm(CallForm):
    """Shows a program as an item and, once it has ended, as another item with its output.

    It belongs to one request. Whoever writes the answer sets ``fingerprints``.
    """

    begun_is_whole = True

    def __init__(self) -> None:
        self.fingerprints = Fingerprints([bytes(32)], "")
        self._key = ""

    def part_id(self, call_id: str) -> str:
        # Upstreams use ids of calls again, but no two items of a conversation may have the same id.
        self._key = self._key or replayable("own_call_id", lambda: secrets.token_hex(12))
        made = hashlib.blake2b(call_id.encode("utf-8", "replace"), key=self._key.encode(), digest_size=12)
        return _PROGRAM + made.hexdigest()

    def call_id(self) -> str:
        return replayable("client_call_id", lambda: _CALLED + secrets.token_hex(12))

    def begun(self, call: ToolCall, arguments: Any) -> Item:
        # The client gets the code as the model wrote it: it is the author's side of the conversation.
        call_id, code = self.part_id(call.call_id), code_of(call.arguments)
        return {
            "id": own_mark("cm") + call_id.removeprefix(_PROGRAM),
            "type": "program",
            "call_id": call_id,
            "code": code,
            "fingerprint": self.fingerprints.of(call_id, code),
        }

    def ended(self, begun: Item | None, call: ToolCall, result: ToolResult) -> Sequence[Item]:
        return () if is_paused(result) else [output_of(EndedProgram(self.part_id(call.call_id), result))]


def output_of(program: EndedProgram) -> Item:
    """Return the item with the output of a program that has ended."""
    result = program.result
    said = result.content if result.ok else f"{result.error_code}: {result.safe_message}"
    return {
        "id": own_mark("cmo") + program.part_id.removeprefix(_PROGRAM),
        "type": "program_output",
        "call_id": program.part_id,
        "result": said,
        "status": "completed" if result.ok else "incomplete",
    }


def call_item(made: ClientCall) -> Item:
    """Return the item of a call that a program makes."""
    return {
        "id": mint_item_id("function_call"),
        "type": "function_call",
        "status": "in_progress",
        "arguments": made.call.arguments,
        "call_id": made.call.call_id,
        "caller": {"type": "program", "caller_id": made.part_id},
        "name": made.call.name,
    }


# ---------------------------------------------------------------- declarations


def programmatic(place: int, payload: Mapping[str, Any]) -> HostedTool:
    """Read a declaration at a place in ``tools``, with what its programs may call.

    Raise :class:`RequestError` for ``allowed_callers`` that are wrong, and for a choice of a tool that only
    programs may call.
    """
    tools: Sequence[Any] = payload["tools"]
    found, places = [], []
    for at, tool in enumerate(tools):
        callers = _callers(tool, f"tools[{at}]")
        if at == place or _PROGRAMMATIC not in callers:
            continue
        found.append(_definition(tool, f"tools[{at}]"))
        if _DIRECT not in callers:
            places.append(at)
    only = frozenset([str(tools[at]["name"]) for at in places])
    _check_choice(payload.get("tool_choice"), only)
    programs = ClientPrograms(
        tuple(found), only, frozenset(places), programs_digest(found, only), "javascript"
    )
    return HostedTool(KIND, f"tools[{place}]", tools[place], ProgramForm(), programs=programs)


def _callers(tool: Any, at: str) -> Sequence[str]:
    """Return who may call a tool."""
    callers = tool.get("allowed_callers") if isinstance(tool, dict) else None
    if callers is None:
        return [_DIRECT]
    if not isinstance(callers, list) or not callers or not set(map(str, callers)) <= {_DIRECT, _PROGRAMMATIC}:
        name = f"{at}.allowed_callers"
        words = f'{name} must be a list of at least one of "{_DIRECT}" and "{_PROGRAMMATIC}".'
        raise RequestError(400, words, param=name)
    return callers


def _definition(tool: Mapping[str, Any], at: str) -> ToolDefinition:
    name, schema = tool.get("name"), tool.get("parameters")
    if tool.get("type") != "function" or not isinstance(name, str) or not isinstance(schema, dict | None):
        field_ = f"{at}.allowed_callers"
        raise RequestError(
            400, f'{field_}: programs call only functions here. Write ["{_DIRECT}"].', param=field_
        )
    about, output = tool.get("description"), tool.get("output_schema")
    said = about if isinstance(about, str) else ""
    if isinstance(output, dict):
        said = f"{said} Returns: {orjson.dumps(output.get('properties', output)).decode()}"
    return ToolDefinition(name, said, schema or {})


def _check_choice(choice: Any, only: frozenset[str]) -> None:
    name = choice.get("name") if isinstance(choice, dict) else None
    if isinstance(name, str) and name in only:  # Nobody has checked the choice yet.
        words = (
            f"tool_choice names a tool that only programs may call (allowed_callers). Choose {KIND}, or add "
            f'"{_DIRECT}" to its callers.'
        )
        raise RequestError(400, words, param="tool_choice")


def without_callers(raw: bytes) -> bytes:
    """Return a body without ``allowed_callers`` in its tools, which only OpenAI's models know."""
    parts = members(raw)
    if b'"allowed_callers"' not in parts.get("tools", b""):
        return raw
    tools = [
        join_object({key: value for key, value in members(tool).items() if key != "allowed_callers"})
        if b'"allowed_callers"' in tool
        else tool
        for tool in elements(parts["tools"])
    ]
    return join_object({**parts, "tools": join_array(tools)})


# ---------------------------------------------------------------- what the client sends back


class _Joining(Struct):
    """The items of a request while those between the answers of a program are taken out.

    ``calls`` maps the ids of calls of programs to their programs, and ``answered`` tells whether an output
    has come since the last item that shows a program. ``pending`` are the calls whose outputs come last.
    """

    kept: list[bytes] = field(default_factory=list)
    calls: dict[str, str] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    pending: list[str] = field(default_factory=list)
    answered: bool = False


def joined_programs(raw: bytes) -> tuple[bytes, ProgramResults] | None:
    """Return a body without what passed between client and programs, and what it brings for them.

    Return ``None`` if the body has no call of a program. Raise :class:`RequestError` for outputs that do not
    belong to the calls before them.
    """
    if b'"caller' not in raw or _CALLED.encode() not in raw:
        return None
    parts = members(raw)
    if parts.get("input", b"")[:1] != b"[":
        return None
    state = _Joining()
    for at, item in enumerate(elements(parts["input"])):
        _join(state, item, at)
    if not state.calls:
        if any(_is_output(orjson.loads(item)) for item in state.kept):
            raise RequestError(400, _NO_CHAIN, param="previous_response_id")
        return None
    if missing := [call for call in state.calls if call not in state.results]:
        words = f"input: no output for the calls {', '.join(missing)}. Send those of all calls of a program."
        raise RequestError(400, words, param="input")
    body = join_object({**parts, "input": join_array(state.kept)})
    pending = frozenset(state.pending)
    waits = {state.places.get(state.calls[call], -1) for call in pending}
    spans = list(answer_spans(map(orjson.loads, state.kept))) if pending else []
    return body, ProgramResults(state.results, pending, frozenset(_start(spans, at) for at in waits))


def _start(spans: Sequence[tuple[int, int]], at: int) -> int:
    """Return the start of the span, of several in order, that has a place; -1 if none has."""
    before = bisect_right(spans, at, key=itemgetter(0)) - 1
    return spans[before][0] if before >= 0 and at < spans[before][1] else -1


def _join(state: _Joining, raw: bytes, at: int) -> None:
    """Take over the item at a place."""
    item = orjson.loads(raw)
    if not isinstance(item, dict):
        state.kept.append(raw)
    elif _is_call(item):
        state.calls[item["call_id"]] = item["caller"]["caller_id"]
        state.pending.clear()
        if not state.answered:
            state.kept.append(join_object({key: one for key, one in members(raw).items() if key != "caller"}))
    elif _is_output(item) and item["call_id"] in state.calls:
        _answer(state, item, at)
    else:
        if state.pending and is_model_item(item):
            state.pending.clear()
        elif state.pending:
            raise RequestError(400, f"input[{at}]: {_NOTHING_ELSE}.", param=f"input[{at}]")
        if is_program(item):
            state.places[item["call_id"]] = len(state.kept)
            state.answered = False
        state.kept.append(raw)


def _answer(state: _Joining, item: Item, at: int) -> None:
    """Take the output of a program's call."""
    call, caller = item["call_id"], item.get("caller")
    name = f"input[{at}]"
    if call in state.results:
        raise RequestError(400, f"{name}: this call of a program has another output already.", param=name)
    if isinstance(caller, dict) and caller.get("caller_id") not in (None, state.calls[call]):
        words = f"{name}.caller is not the program that made the call: copy it from the function_call."
        raise RequestError(400, words, param=f"{name}.caller")
    state.results[call] = for_program(_text(item.get("output")))
    state.pending.append(call)
    state.answered = True


def _is_call(item: Item) -> bool:
    caller, call = item.get("caller"), item.get("call_id")
    program = caller.get("caller_id") if isinstance(caller, dict) else None
    ours = isinstance(program, str) and program.startswith(_PROGRAM)
    return item.get("type") == "function_call" and ours and is_of_program(call)


def _is_output(item: Any) -> bool:
    is_output = isinstance(item, dict) and item.get("type") == "function_call_output"
    return is_output and is_of_program(item.get("call_id"))


def is_of_program(call_id: Any) -> bool:
    """Return whether a call's id is that of a call that a program made, or claims to be."""
    return isinstance(call_id, str) and call_id.startswith(_CALLED)


def _text(output: Any) -> str:
    """Return the text of an output, which may be a list of parts."""
    if isinstance(output, str):
        return output
    parts = [part for part in output if isinstance(part, dict)] if isinstance(output, list) else []
    return "\n".join(str(part.get("text") or "") for part in parts if part.get("type") == "input_text")
