"""An upstream that answers from recorded exchanges, without a key or a network.

Nothing else knows that it exists: it takes and returns what any upstream does.
"""

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson

from proxy.base.errors import ConfigError, UpstreamBroken
from proxy.http.headers import Headers
from proxy.http.rules import HOP_BY_HOP, HeaderRules, media_type, without
from proxy.upstreams.base import PulledResponse, UpstreamRequest, UpstreamResponse
from proxy.upstreams.recorded.fixtures import RecordedTurn, load_turns
from proxy.wires.openai.dialect import OPENAI
from proxy.wires.registry.comparing import comparable_conversation, results_of
from proxy.wires.registry.table import SERVED

_MAX_REQUEST_BYTES = 64 * 1024 * 1024
_MAX_SHOWN_CHARS = 120
_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_ID_CHARS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_SHORTEST_ID = 8
"""Characters. A shorter id could occur in a body by chance, so it is not replaced there."""


def packaged_fixtures() -> Path:
    """Return the folder of the demo's exchanges: in the installed package, else next to it in a checkout.

    Raises :class:`~proxy.base.errors.ConfigError` if there is none.
    """
    package = Path(__file__).resolve().parents[2]
    for folder in (package / "_data" / "fixtures", package.parent / "fixtures" / "demo"):
        if folder.is_dir():
            return folder
    raise ConfigError("fixtures", "are missing from this installation", "Install the package again")


class ReplayUpstream:
    """An :class:`~proxy.upstreams.base.Upstream` that answers from folders of recorded exchanges.

    A recorded turn answers a request with the same path, model and conversation (tool results and ids do not
    count), and the same values of what its ``[match]`` table names. It must have a body of the requested
    kind. If several fit, the turn whose table names most answers, then the one whose other fields are most
    alike.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        name: str = "replay",
        *,
        fresh_ids: bool = True,
        pace: float = 0.0,
    ) -> None:
        """``folders`` are searched for exchanges at any depth.

        With ``fresh_ids`` every response gets new ids in place of the recorded ones, as from a real provider.
        ``pace`` scales the recorded waits between pieces: 0 leaves them out, 1 keeps them. Raises
        :class:`~proxy.base.errors.ConfigError` for a folder that is missing or a fixture that cannot be read.
        """
        for folder in folders:
            if not folder.is_dir():
                raise ConfigError(
                    f"upstreams.{name}.base_url",
                    f"{folder} is no folder",
                    "Name one of fixtures, as toolrelay record writes them",
                )
        self._name = name
        self._rules = HeaderRules()
        self._turns = load_turns(folders)
        self._fresh_ids = fresh_ids
        self._pace = pace

    @property
    def name(self) -> str:
        """The name in the configuration."""
        return self._name

    @property
    def models(self) -> list[str]:
        """The models of the recorded requests, sorted."""
        return sorted(
            {turn.request["model"] for turn in self._turns if isinstance(turn.request.get("model"), str)}
        )

    async def open(self, request: UpstreamRequest) -> UpstreamResponse:
        """Answer from a fixture, or with a 404 that names the nearest one and the first difference."""
        endpoint = SERVED.find(request.method, request.path)
        if endpoint.kind == "models" and self.models:
            return self._answer_models(endpoint.stored_id(request.path))
        asked = _parsed(await _whole(request.body))
        if asked is None:
            return _error(400, "the request body is not a JSON object", code=None)
        stream = asked.get("stream") is True
        turn = self._find(request, asked, stream=stream)
        body = turn.body(stream=stream) if turn is not None else None
        if turn is None or body is None:
            return _error(404, self._explain(request, asked), code="no_fixture")
        as_events = body is turn.sse
        if self._fresh_ids:
            body = _with_fresh_ids(body, endpoint.dialect.answer_ids)
        pieces = _timed_pieces(turn, body, self._pace) if as_events else [(0.0, body)]
        headers = _listed(
            self._rules, _headers(turn, endpoint.dialect.framing.content_type, as_events=as_events)
        )
        return _ReplayResponse(turn.status, headers, pieces, self._name if turn.broken else "")

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""

    def _find(
        self, request: UpstreamRequest, asked: Mapping[str, Any], *, stream: bool
    ) -> RecordedTurn | None:
        conversation, results = comparable_conversation(asked), results_of(asked)
        fitting = [
            turn
            for turn in self._turns
            if (turn.method, turn.path) == (request.method, request.path)
            and turn.request.get("model") == asked.get("model")
            and comparable_conversation(turn.request) == conversation
            and all(turn.request.get(field) == asked.get(field) for field in turn.match)
            and turn.fits_results(results)
            and turn.body(stream=stream) is not None
        ]

        def order(turn: RecordedTurn) -> tuple[int, int]:
            return len(turn.match) + len(turn.results), _likeness(turn.request, asked)

        return max(fitting, key=order, default=None)

    def _explain(self, request: UpstreamRequest, asked: Mapping[str, Any]) -> str:
        there = [t for t in self._turns if (t.method, t.path) == (request.method, request.path)]
        if not there:
            return f"no fixture answers {_shown(request.method)} {_shown(request.path)}"
        nearest = max(there, key=lambda turn: _nearness(turn.request, asked))
        path, recorded, given = _difference(nearest, asked)
        return (
            f"no fixture answers this request; the nearest is {nearest.label}, which differs at {path}: "
            f"recorded {_shown(recorded)}, asked {_shown(given)}"
        )

    def _answer_models(self, wanted: str) -> "_ReplayResponse":
        """Answer with all models, or with the ``wanted`` one."""
        known = [
            {"id": model, "object": "model", "created": 0, "owned_by": self._name} for model in self.models
        ]
        if not wanted:
            return _json(200, {"object": "list", "data": known})
        entry = next((model for model in known if model["id"] == wanted), None)
        if entry is None:
            message = f"The model {_shown(wanted)} does not exist"
            return _error(404, message, code="model_not_found")
        return _json(200, entry)


class _ReplayResponse(PulledResponse):
    """A recorded body, sent piece by piece as (seconds to wait before, bytes).

    ``broken_by`` is the upstream's name if the recorded connection ended before the message did, else empty.
    """

    def __init__(
        self, status: int, headers: Headers, pieces: list[tuple[float, bytes]], broken_by: str = ""
    ) -> None:
        self._status = status
        self._headers = headers
        self._pieces = pieces
        self._broken_by = broken_by
        self._closed = False

    @property
    def status(self) -> int:
        return self._status

    @property
    def headers(self) -> Headers:
        return self._headers

    @property
    def content_type(self) -> str:
        return media_type(self._headers)

    async def chunks(self) -> AsyncIterator[bytes]:
        for wait_s, piece in self._pieces:
            await asyncio.sleep(wait_s)
            if self._closed:
                raise UpstreamBroken("the response was closed")
            yield piece
        if self._broken_by:
            # These are the words of an upstream over HTTP, so the client gets the same message.
            raise UpstreamBroken(f"upstream {self._broken_by!r} broke off its response")

    async def read(self, limit: int) -> bytes:
        body = b"".join([piece async for piece in self.chunks()])
        if len(body) > limit:
            raise UpstreamBroken(f"the recorded body is over {limit} bytes")
        return body

    async def aclose(self) -> None:
        self._closed = True


async def _whole(body: bytes | AsyncIterator[bytes] | None) -> bytes:
    if body is None or isinstance(body, bytes):
        return body or b""
    pieces: list[bytes] = []
    size = 0
    async for piece in body:
        size += len(piece)
        if size > _MAX_REQUEST_BYTES:
            raise UpstreamBroken(f"the request body is over {_MAX_REQUEST_BYTES} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _parsed(body: bytes) -> dict[str, Any] | None:
    try:
        parsed = orjson.loads(body or b"{}")
    except orjson.JSONDecodeError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _likeness(recorded: Mapping[str, Any], asked: Mapping[str, Any]) -> int:
    """Return the number of fields that two requests agree on, minus the number that they do not."""
    return sum(1 if recorded.get(f) == asked.get(f) else -1 for f in {*recorded, *asked})


def _nearness(recorded: Mapping[str, Any], asked: Mapping[str, Any]) -> tuple[bool, int, float]:
    """Rank a recorded request: same model, then longest common beginning, then most similar next message."""
    _, theirs = comparable_conversation(recorded)
    _, ours = comparable_conversation(asked)
    common = 0
    for left, other in zip(theirs, ours, strict=False):
        if left != other:
            break
        common += 1
    rest_a, rest_b = (repr(messages[common : common + 1])[:1000] for messages in (theirs, ours))
    ratio = SequenceMatcher(None, rest_a, rest_b, autojunk=False).ratio()
    return recorded.get("model") == asked.get("model"), common, ratio


def _difference(turn: RecordedTurn, asked: Mapping[str, Any]) -> tuple[str, Any, Any]:
    """Find the first difference of a request to a recorded turn: path, recorded value, given value."""
    field, theirs = comparable_conversation(turn.request)
    _, ours = comparable_conversation(asked)
    pairs = [("model", turn.request.get("model"), asked.get("model")), (field, theirs, ours)]
    pairs += [(name, turn.request.get(name), asked.get(name)) for name in turn.match]
    for path, recorded, given in pairs:
        if (difference := _first_difference(path, recorded, given)) is not None:
            return difference
    if not turn.fits_results(results := results_of(asked)):
        return "the results of tools", list(turn.results), results
    return "stream", turn.request.get("stream"), asked.get("stream")


def _first_difference(path: str, recorded: Any, given: Any) -> tuple[str, Any, Any] | None:
    if recorded == given:
        return None
    steps: Iterable[tuple[str, Any, Any]] = ()
    if isinstance(recorded, dict) and isinstance(given, dict):
        steps = [(f"{path}.{k}", recorded.get(k), given.get(k)) for k in [*recorded, *given]]
    elif isinstance(recorded, list) and isinstance(given, list):
        steps = [(f"{path}[{i}]", a, b) for i, (a, b) in enumerate(zip(recorded, given, strict=False))]
    for step in steps:
        if (difference := _first_difference(*step)) is not None:
            return difference
    if isinstance(recorded, list) and isinstance(given, list):
        return path, f"{len(recorded)} entries", f"{len(given)} entries"
    return path[:200], recorded, given


def _shown(value: Any) -> str:
    """Return a value for a message: as JSON, shortened."""
    text = orjson.dumps(value, default=repr).decode()
    return text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "…"


def _with_fresh_ids(body: bytes, prefix: str) -> bytes:
    for old in _response_ids(body):
        size = max(len(old) - len(prefix), 24)
        fresh = prefix + "".join(secrets.choice(_ID_CHARS) for _ in range(size))
        body = body.replace(old.encode(), fresh.encode())
    return body


def _response_ids(body: bytes) -> list[str]:
    """Find the ids of the response in a body: Chat has one in each chunk, others in a nested object."""
    data_lines = [line[5:] for line in body.splitlines() if line.startswith(b"data:")]
    ids: dict[str, None] = {}
    for text in data_lines or [body]:
        payload = _parsed(text)
        if payload is None:
            continue
        holders = (payload.get("response"), payload.get("message"), payload)
        id_ = next((h["id"] for h in holders if isinstance(h, dict) and isinstance(h.get("id"), str)), "")
        if len(id_) >= _SHORTEST_ID:
            ids[id_] = None
    return list(ids)


def _timed_pieces(turn: RecordedTurn, body: bytes, pace: float) -> list[tuple[float, bytes]]:
    """Cut the body into its recorded network pieces, else into events, each with its wait in seconds."""
    if turn.chunks:
        ends = [0]
        for _, size in turn.chunks:
            ends.append(ends[-1] + size)
        ends[-1] = max(ends[-1], len(body))
        offsets = [0.0, *(ms for ms, _ in turn.chunks)]
        waits = [max(0.0, later - earlier) * pace / 1000 for earlier, later in pairwise(offsets)]
    else:
        ends = [0, *(m.end() for m in _EVENT_END.finditer(body)), len(body)]
        waits = [turn.delay_ms / 1000] * (len(ends) - 1)
    pieces = [body[a:b] for a, b in pairwise(ends)]
    return [(wait, piece) for wait, piece in zip(waits, pieces, strict=True) if piece]


def _headers(turn: RecordedTurn, stream_type: str, *, as_events: bool) -> Headers:
    """Return the recorded headers, plus those that a provider always sends; streams have ``stream_type``."""
    headers = without(turn.headers, *HOP_BY_HOP, "content-length")
    recorded = media_type(headers)
    if not recorded or (recorded == stream_type) != as_events:
        kind = stream_type if as_events else "application/json"
        headers = [("Content-Type", kind), *without(headers, "content-type")]
    names = {name.lower() for name, _ in headers}
    return [*headers, *[pair for pair in _provider_headers() if pair[0] not in names]]


def _listed(rules: HeaderRules, headers: Headers) -> Headers:
    """Return those headers that the response of a real upstream would pass on."""
    names, values = zip(*headers, strict=True)
    return rules.response_headers([n.encode() for n in names], [v.encode() for v in values], ())


def _provider_headers() -> list[tuple[str, str]]:
    return [("x-request-id", f"req_{secrets.token_hex(16)}"), ("openai-processing-ms", "1")]


def _json(status: int, body: object) -> _ReplayResponse:
    raw = orjson.dumps(body)
    headers = [("Content-Type", "application/json"), *_provider_headers()]
    return _ReplayResponse(status, headers, [(0.0, raw)])


def _error(status: int, message: str, *, code: str | None) -> _ReplayResponse:
    return _json(status, OPENAI.errors.body(message, type="invalid_request_error", code=code))
