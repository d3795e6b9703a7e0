"""An upstream that answers from recorded exchanges, without a key or a network.

Nothing else knows that it exists: it takes and returns what any upstream does.
"""

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson

from proxy.base.errors import ConfigError, UpstreamBroken
from proxy.http.headers import Headers
from proxy.http.rules import HOP_BY_HOP, HeaderRules, media_type, without
from proxy.upstreams.base import PulledResponse, UpstreamRequest, UpstreamResponse
from proxy.upstreams.recorded.fixtures import RecordedTurn, load_turns
from proxy.upstreams.recorded.format import LONGEST_WAIT_S
from proxy.upstreams.recorded.matching import (
    TOO_DEEP,
    Asked,
    Matcher,
    differences,
    first_difference,
    parsed,
)
from proxy.upstreams.recorded.readable import readable
from proxy.wires.dialect import Dialect, Endpoint
from proxy.wires.registry.table import SERVED, dialect_of

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
        untimed_ms: float = 0.0,
        as_provider: bool = False,
        clean: Callable[[bytes], bytes] = bytes,
        missed: Callable[[str], None] = lambda explained: None,
    ) -> None:
        """``folders`` are searched for exchanges at any depth.

        With ``fresh_ids`` every response gets new ids in place of the recorded ones, as from a real provider.
        ``pace`` scales the recorded waits between pieces: 0 leaves them out, 1 keeps them. ``untimed_ms`` is
        the wait before each event of a stream without recorded times, scaled alike.

        ``as_provider`` is for clients that know no proxy: what the clients of the recording sent and got
        answers, too, instructions and tools must be the same, and a miss shows all differences. ``clean``
        removes secrets from a request before it is compared; ``missed`` gets the explanation of each miss.

        Raises :class:`~proxy.base.errors.ConfigError` for a folder that is missing, or for a fixture that
        cannot be read.
        """
        for folder in folders:
            if not folder.is_dir():
                raise ConfigError(
                    f"upstreams.{name}.base_url",
                    f"{folder} is not a folder",
                    "Name a folder of fixtures, such as toolrelay record writes",
                )
        self._name = name
        self._rules = HeaderRules()
        self._turns = load_turns(folders, clients=as_provider)
        self._matcher = Matcher(self._turns, whole=as_provider)
        self._fresh_ids = fresh_ids
        self._pace = pace
        self._untimed_ms = untimed_ms * pace
        self._as_provider = as_provider
        self._clean = clean
        self._missed = missed

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

    @property
    def size(self) -> int:
        """The number of requests that it can answer."""
        return len(self._turns)

    def add(self, turn: RecordedTurn) -> None:
        """Let one more turn answer."""
        self._turns.append(turn)
        self._matcher.add(turn)

    async def open(self, request: UpstreamRequest) -> UpstreamResponse:
        """Answer from a fixture, or with a 404 that names the nearest one and the difference."""
        endpoint = SERVED.find(request.method, request.path)
        errors = endpoint.dialect
        body = await _whole(request.body)
        if endpoint.kind == "models" and self.models:
            return self._answer_models(endpoint, request, parsed(body) or {})
        try:
            asked = self._asked(endpoint, body)
            if asked is None:
                return _error(errors, 400, "the request body is not a JSON object", code=None)
            if (found := self._answer(endpoint, request, asked)) is not None:
                return found
            self._missed(explained := self._explain(request, asked))
            return _error(errors, 404, explained, code="no_fixture")
        except TOO_DEEP:
            return _error(errors, 400, "the request body is nested too deeply", code=None)

    async def find(self, request: UpstreamRequest) -> UpstreamResponse | None:
        """Return the answer of a fixture; ``None`` if none fits."""
        endpoint = SERVED.find(request.method, request.path)
        try:
            asked = self._asked(endpoint, await _whole(request.body))
            return None if asked is None else self._answer(endpoint, request, asked)
        except TOO_DEEP:
            return None

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""

    def _asked(self, endpoint: Endpoint, body: bytes) -> Asked | None:
        asked = parsed(body, self._clean)
        # WIRE: Ollama streams unless it is told not to.
        usual = endpoint.streams and endpoint.dialect.rooted
        return (
            None if asked is None else self._matcher.asked(asked, stream=asked.get("stream", usual) is True)
        )

    def _answer(self, endpoint: Endpoint, request: UpstreamRequest, asked: Asked) -> "_ReplayResponse | None":
        turn = self._matcher.find(request.method, request.path, asked)
        body = turn.body(stream=asked.stream) if turn is not None else None
        if turn is None or body is None:
            return None
        as_events = body is turn.sse
        if self._fresh_ids:
            body = _with_fresh_ids(body, endpoint.dialect.answer_ids)
        # A delay that somebody wrote into a fixture is part of what it shows, except to a test.
        delays = self._pace if self._as_provider else 1.0
        event_ms = turn.delay_ms * delays + self._untimed_ms
        pieces = _timed_pieces(turn, body, self._pace, event_ms) if as_events else [(0.0, body)]
        headers = _listed(
            self._rules, _headers(turn, endpoint.dialect.framing.content_type, as_events=as_events)
        )
        return _ReplayResponse(turn.status, headers, pieces, self._name if turn.broken else "")

    def _explain(self, request: UpstreamRequest, asked: Asked) -> str:
        nearest = self._matcher.nearest(request.method, request.path, asked)
        if nearest is None:
            return f"no fixture answers {_shown(request.method)} {_shown(request.path)}"
        found = differences(nearest, asked)
        path, recorded, given = first_difference(*found[0])
        summary = (
            f"no fixture answers this request; the nearest is {nearest.turn.label}, which differs at {path}: "
            f"recorded {_shown(recorded)}, asked {_shown(given)}"
        )
        return f"{summary}\n\n{readable(found)}" if self._as_provider else summary

    def _answer_models(
        self, endpoint: Endpoint, request: UpstreamRequest, body: Mapping[str, Any]
    ) -> "_ReplayResponse":
        """Answer with all models, with one of them, or with the version of the dialect."""
        dialect = dialect_of(endpoint, {name.lower() for name, _ in request.headers})
        lists = dialect.models
        known = {model: lists.entry(model, self._name) for model in self.models}
        if endpoint.action == "version":
            return _json(200, {"version": lists.version})
        wanted = endpoint.stored_id(request.path) or (
            str(body.get("model")) if endpoint.action == "show" else ""
        )
        if not wanted:
            return _json(200, lists.whole([*known.values()]))
        if wanted not in known:
            message = f"The model {_shown(wanted)} does not exist"
            return _error(dialect, 404, message, code="model_not_found")
        shown = lists.show(self._name, known[wanted], True) if endpoint.action == "show" else known[wanted]
        return _json(200, shown)


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
        payload = parsed(text)
        if payload is None:
            continue
        holders = (payload.get("response"), payload.get("message"), payload)
        id_ = next((h["id"] for h in holders if isinstance(h, dict) and isinstance(h.get("id"), str)), "")
        if len(id_) >= _SHORTEST_ID:
            ids[id_] = None
    return list(ids)


def _timed_pieces(turn: RecordedTurn, body: bytes, pace: float, event_ms: float) -> list[tuple[float, bytes]]:
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
        waits = [event_ms / 1000] * (len(ends) - 1)
    pieces = [body[a:b] for a, b in pairwise(ends)]
    return [(min(wait, LONGEST_WAIT_S), piece) for wait, piece in zip(waits, pieces, strict=True) if piece]


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


def _error(dialect: Dialect, status: int, message: str, *, code: str | None) -> _ReplayResponse:
    kind = dict(dialect.errors.types).get(status, "invalid_request_error")
    return _json(status, dialect.errors.body(message, type=kind, code=code))
