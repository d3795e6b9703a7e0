"""Recorded exchanges: what one folder of fixtures holds, and when two conversations are the same.

One folder an exchange: ``meta.toml``, ``client/`` with the requests and the answers (``request.json``,
``response.sse`` or ``response.json``, then ``request-2.json`` …) and, for each request to the
upstream, ``turn-N/`` with ``request.json``, ``response.toml`` (status, headers, network pieces)
and the body as ``response.sse`` or ``response.json``, or both.  Text is UTF-8.

What a request must have in common with a recorded one, besides path, model and conversation, stands in the
table ``[match]`` of ``meta.toml``.  ``fields`` are members that must be the same.  ``results`` are texts by
the number of a turn: each must stand in a result of a tool, so that one conversation can go on in several
ways.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from proxy.errors import ConfigError
from proxy.http.headers import Headers
from proxy.wires.dialects.table import BY_WIRE

__all__ = ["Conversation", "RecordedTurn", "conversation_of", "load_exchanges", "results_of"]

_MAX_FILE_BYTES = 64 * 1024 * 1024
_RESULT_ROLES = ("tool", "function")
_TEXT_PARTS = ("text", "input_text", "output_text")

Conversation = list[Any]
"""The messages or input items of a request, less everything that may differ between two runs."""


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One request to an upstream and what came back.

    ``chunks`` are the network pieces as (milliseconds since the request, bytes); ``broken`` says
    that the connection ended before the message did.
    """

    exchange: str
    number: int
    method: str
    path: str
    request: Mapping[str, Any]
    match: tuple[str, ...]
    results: tuple[str, ...]
    status: int
    headers: Headers
    chunks: tuple[tuple[float, int], ...]
    delay_ms: float
    broken: bool
    sse: bytes | None
    other: bytes | None

    def fits_results(self, results: Sequence[str]) -> bool:
        """Whether each of the turn's texts stands in one of the results of tools in a request."""
        return all(any(text in result for result in results) for text in self.results)

    @property
    def label(self) -> str:
        """How messages name it."""
        return f"{self.exchange} turn-{self.number}"

    def body(self, *, stream: bool) -> bytes | None:
        """The body for a request that streams, or does not; an error is the same for both."""
        if self.status >= 400:
            return self.other if self.other is not None else self.sse
        return self.sse if stream else self.other


def load_exchanges(folders: Iterable[Path]) -> list[RecordedTurn]:
    """Every turn below these folders, by name; a folder without ``meta.toml`` is none of ours.

    Raises :class:`~proxy.errors.ConfigError` naming the file that cannot be used.
    """
    turns: list[RecordedTurn] = []
    for root in folders:
        for meta_file in sorted(root.rglob("meta.toml")):
            folder = meta_file.parent
            name = folder.relative_to(root).as_posix() if folder != root else folder.name
            meta = _toml(meta_file)
            numbered = sorted((_turn_number(turn), turn) for turn in folder.glob("turn-*") if turn.is_dir())
            turns.extend(_turn(name, number, turn, meta) for number, turn in numbered)
    return turns


def conversation_of(request: Mapping[str, Any]) -> tuple[str, Conversation]:
    """The field that holds a request's conversation, and the conversation in comparable form.

    Results of tools, ids of calls and items, and absent-or-empty fields do not count; arguments
    are compared as JSON, a list of text parts as its text.
    """
    if "messages" in request or "input" not in request:
        messages = request.get("messages")
        return "messages", [_message(m) for m in messages] if isinstance(messages, list) else []
    items = request["input"]
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    return "input", [_item(item) for item in items] if isinstance(items, list) else []


def results_of(request: Mapping[str, Any]) -> list[str]:
    """The results of tools in a request, each as text; of one that is no text, its JSON."""
    messages, items = request.get("messages"), request.get("input")
    found = [
        message.get("content")
        for message in (messages if isinstance(messages, list) else ())
        if isinstance(message, dict) and message.get("role") in _RESULT_ROLES
    ]
    found += [
        item.get("output")
        for item in (items if isinstance(items, list) else ())
        if isinstance(item, dict) and str(item.get("type", "")).endswith("_call_output")
    ]
    texts = [_content(one) for one in found]
    return [text if isinstance(text, str) else orjson.dumps(text).decode() for text in texts]


def _message(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    left_out = {"tool_call_id"}
    if message.get("role") in _RESULT_ROLES:
        left_out.add("content")
    kept = {k: _content(v) if k == "content" else v for k, v in message.items() if k not in left_out}
    if isinstance(calls := kept.get("tool_calls"), list):
        kept["tool_calls"] = [_call(call) for call in calls]
    if isinstance(legacy := kept.get("function_call"), dict):
        kept["function_call"] = _with_arguments_read(legacy)
    return {k: v for k, v in kept.items() if v not in (None, "", [])}


def _call(call: Any) -> Any:
    if not isinstance(call, dict):
        return call
    kept = {k: v for k, v in call.items() if k not in ("id", "index")}
    if isinstance(function := kept.get("function"), dict):
        kept["function"] = _with_arguments_read(function)
    return kept


def _item(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    left_out = {"id", "status", "call_id"}
    if str(item.get("type", "")).endswith("_call_output"):
        left_out.add("output")
    if item.get("type") == "message":
        left_out.add("type")
    kept = {k: _content(v) if k == "content" else v for k, v in item.items() if k not in left_out}
    return {k: v for k, v in _with_arguments_read(kept).items() if v not in (None, "", [])}


def _content(content: Any) -> Any:
    """A list of nothing but text parts as its text."""
    if not isinstance(content, list) or not content:
        return content
    if all(
        isinstance(p, dict) and p.get("type") in _TEXT_PARTS and isinstance(p.get("text"), str)
        for p in content
    ):
        return "".join(part["text"] for part in content)
    return content


def _with_arguments_read(function: dict[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return function
    try:
        return {**function, "arguments": orjson.loads(arguments or "{}")}
    except orjson.JSONDecodeError:
        return function


def _turn(exchange: str, number: int, folder: Path, meta: dict[str, Any]) -> RecordedTurn:
    response_file = folder / "response.toml"
    response = _toml(response_file) if response_file.exists() else {}
    request_file = folder / "request.json"
    wire, matching = meta.get("wire", "chat"), meta.get("match", {})
    sse, other = _bytes(folder / "response.sse"), _bytes(folder / "response.json")
    if sse is None and other is None:
        raise ConfigError(str(folder), "has neither response.sse nor response.json")
    try:
        request = orjson.loads(request_file.read_bytes()) if request_file.exists() else {}
        if not isinstance(request, dict):
            raise TypeError("request.json is not a JSON object")
        return RecordedTurn(
            exchange=exchange,
            number=number,
            method=str(meta.get("method", "POST")),
            path=str(meta["path"]) if "path" in meta else BY_WIRE[wire].path,
            request=request,
            match=tuple(str(field) for field in matching.get("fields", ())),
            results=tuple(str(text) for text in matching.get("results", {}).get(str(number), ())),
            status=int(response.get("status", 200)),
            headers=tuple((str(k), str(v)) for k, v in response.get("headers", ())),
            chunks=tuple((float(ms), int(size)) for ms, size in response.get("chunks", ())),
            delay_ms=float(response.get("delay_ms", 0)),
            broken=bool(response.get("broken", False)),
            sse=sse,
            other=other,
        )
    except (TypeError, ValueError, KeyError, AttributeError) as exc:
        raise ConfigError(str(folder), f"is not a recorded turn: {exc!r}") from exc


def _turn_number(folder: Path) -> int:
    digits = folder.name.removeprefix("turn-")
    if not (digits.isascii() and digits.isdigit()):
        raise ConfigError(str(folder), "is not named turn-1, turn-2, …")
    return int(digits)


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads((_bytes(file) or b"").decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(str(file), f"is not TOML: {exc}") from exc


def _bytes(file: Path) -> bytes | None:
    if not file.exists():
        return None
    if file.stat().st_size > _MAX_FILE_BYTES:
        raise ConfigError(str(file), f"is over {_MAX_FILE_BYTES} bytes")
    return file.read_bytes()
