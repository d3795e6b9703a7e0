"""An upstream that wraps another one and saves its exchanges as fixtures.

It never writes request headers, and only those response headers that tell nothing about an account. It
removes secrets from both bodies, among them the keys in the headers of the request.
"""

import asyncio
import hashlib
import itertools
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import structlog
from msgspec import Struct

from proxy.base.errors import UpstreamError
from proxy.http.headers import Headers
from proxy.http.rules import media_type
from proxy.upstreams.base import PulledResponse, Upstream, UpstreamRequest, UpstreamResponse, read_whole
from proxy.upstreams.recorded.format import (
    CLIENT,
    EVENTS,
    JSON,
    META,
    REQUEST,
    RESPONSE,
    TURN,
    meta_text,
    numbered,
    response_text,
)
from proxy.upstreams.recorded.matching import TOO_DEEP
from proxy.upstreams.recorded.scrubbing import Scrubbing
from proxy.wires.registry.comparing import ComparableConversation, comparable_conversation
from proxy.wires.registry.table import BY_WIRE, STREAM_TYPES

_MAX_BODY_BYTES = 32 * 1024 * 1024
_MAX_CONVERSATIONS = 1000
_MOST_WAITING = 64
"""At most so many turns and answers wait for the disk."""
_KEPT_HEADERS = frozenset({"content-type", "openai-processing-ms", "openai-version", "retry-after", "server"})
_DIALECTS = {dialect.path: dialect for dialect in BY_WIRE.values()}
_Clean = Callable[[bytes], bytes]
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Recorded:
    """A conversation that may continue: what was sent so far, and where it was saved."""

    path: str
    model: Any
    sent: ComparableConversation
    folder: Path
    turns: int
    requests: int = 0


class ClientExchange:
    """One client's request, and its answer.

    The requests to upstreams made for it belong to it. Its files go into the folder of the first turn that
    was not refused.
    """

    def __init__(self, path: str, asked: bytes) -> None:
        """``path`` is that of the request, below the prefix of its dialect; ``asked`` is its body."""
        self.path = path
        self.asked = asked
        self.status = 0
        self.streamed = False
        self.pieces: list[bytes] = []
        self.number = 0
        self._began = time.monotonic()
        self._headers: Headers = []
        self._chunks: list[tuple[float, int]] = []
        self._size = 0
        self._ended = False
        self._saved = False
        self._recorder: RecordingUpstream | None = None
        self._folder: Path | None = None
        self._refused = False
        self._written = False
        self._clean: _Clean = bytes

    def started(self, status: int, headers: Headers) -> None:
        """Note the head of the answer."""
        self.status, self._headers = status, headers
        self.streamed = media_type(headers) in STREAM_TYPES

    def data_sent(self, data: bytes) -> None:
        """Note a piece of the answer's body."""
        self._size += len(data)
        if self._size <= _MAX_BODY_BYTES:
            self.pieces.append(data)
            self._chunks.append(((time.monotonic() - self._began) * 1000, len(data)))

    def answer(self) -> "_Answer":
        """Return the whole answer, as the client got it."""
        body = b"".join(self.pieces)
        return _Answer(self.status, self._headers, self.streamed, body, self._chunks, broken=False)

    def ended(self) -> None:
        """Note that the answer is complete."""
        self._ended = True
        self._save()

    def place(self, recorder: "RecordingUpstream", known: _Recorded, status: int) -> int:
        """Choose this turn's folder for the client's files, and return the number of the request in it.

        Return 0 if they already have the folder of a turn that was not refused. ``status`` is that of this
        turn.
        """
        if self._folder is not None and not self._refused:
            return 0
        known.requests += 1
        self.number = known.requests
        self._recorder, self._folder, self._refused = recorder, known.folder, status >= 400
        self._written = False
        return self.number

    def placed(self, clean: _Clean) -> None:
        """Note that the turn, and with it the folder, is written. ``clean`` removes what its request may not
        leave there."""
        self._written, self._clean = True, clean
        self._save()

    def _save(self) -> None:
        """Write the answer once it is complete and its folder exists."""
        if self._saved or not (self._ended and self._written) or self._size > _MAX_BODY_BYTES:
            return
        if self._refused and self.status < 400:
            return  # The turn with the answer is still to come.
        if self._recorder is not None and self._folder is not None:
            self._saved = True
            self._recorder.save_answer(self._folder, self, self._clean)


class ClientExchanges:
    """Knows, for each request to an upstream, the exchange with the client for which it is made."""

    def __init__(self) -> None:
        self._current: ContextVar[ClientExchange | None] = ContextVar("recorded_client", default=None)

    def listen(self, path: str, asked: bytes) -> ClientExchange:
        """Begin and return the exchange of a client whose request is served from here on."""
        client = ClientExchange(path, asked)
        self._current.set(client)
        return client

    def current(self) -> ClientExchange | None:
        """Return the exchange with the client whose request is being served."""
        return self._current.get()


class RecordingUpstream:
    """Passes every request to ``inner`` and saves Chat, Responses and Messages calls below ``out``.

    Each conversation has one folder. If the messages of a request begin with all those of an earlier one, it
    becomes the next turn in that folder.
    """

    def __init__(
        self,
        inner: Upstream,
        out: Path,
        *,
        scrubbing: Scrubbing | None = None,
        clients: ClientExchanges | None = None,
        saved: Callable[[Path, int], None] = lambda folder, turn: None,
        keeps: Callable[[int], bool] = lambda status: True,
    ) -> None:
        """``scrubbing`` removes secrets from bodies; ``clients`` knows which client is served.

        ``saved`` is told the folder of each exchange, and the number of the turn that was written there.
        ``keeps`` says of the status of an answer whether the exchange is saved.
        """
        self._inner = inner
        self._clients = clients or ClientExchanges()
        self._out = out
        self._scrubbing = scrubbing or Scrubbing()
        self._saved = saved
        self._keeps = keeps
        self._conversations: list[_Recorded] = []
        self._saving: set[asyncio.Task[object]] = set()
        self._writing = asyncio.Lock()
        self._numbers = itertools.count(1)
        # Several processes may record the same request in the same second.
        self._salt = secrets.token_bytes(8)

    @property
    def name(self) -> str:
        """The name of the wrapped upstream."""
        return self._inner.name

    async def open(self, request: UpstreamRequest) -> UpstreamResponse:
        """Pass the request on, and record the exchange if it can be a fixture."""
        started = time.monotonic()
        asked = _recordable(request)
        response = await self._inner.open(request)
        if asked is None or not self._keeps(response.status):
            return response
        return _TeeResponse(self, response, request, asked, started, self._clients.current())

    async def written(self) -> None:
        """Wait until all exchanges that have ended are written."""
        while self._saving:  # When a turn is written, the answer of its client can be written.
            await asyncio.gather(*self._saving, return_exceptions=True)

    async def aclose(self) -> None:
        """Close the wrapped upstream after all exchanges are written."""
        await self.written()
        await self._inner.aclose()

    def save(self, request: UpstreamRequest, asked: dict[str, Any], answer: "_Answer") -> None:
        """Write one turn in the background; its client has the answer and may be gone already.

        A failure of the disk is logged and does not affect the client. If the disk is too slow, turns are
        lost.
        """
        if len(self._saving) >= _MOST_WAITING:
            _log.warning("exchange_not_saved", reason="the disk is too slow")
            return
        self._later(self._save(request, asked, answer))

    def save_answer(self, folder: Path, client: ClientExchange, clean: _Clean) -> None:
        """Write the client's answer in the background."""

        def write() -> None:
            self._write_answer(folder / CLIENT, client.number, client.answer(), clean)

        self._later(self._attempt(folder, write))

    def _later(self, work: Coroutine[Any, Any, object]) -> "asyncio.Task[object]":
        task = asyncio.ensure_future(work)
        self._saving.add(task)
        task.add_done_callback(self._saving.discard)
        return task

    async def _save(self, request: UpstreamRequest, asked: dict[str, Any], answer: "_Answer") -> None:
        try:
            known = self._place(request.path, asked)
        except TOO_DEEP:
            _log.warning("exchange_not_saved", reason="its request is nested too deeply")
            return
        folder, number, client = known.folder, known.turns, answer.client
        position = client.place(self, known, answer.status) if client is not None else int(number == 1)
        body = asked if client is None else _object(client.asked) or asked
        clean = partial(self._scrubbing.clean_of, request.headers)

        def write() -> None:
            self._write(folder, number, request.path, asked, answer, clean)
            if position:
                _save(folder / CLIENT / numbered(REQUEST, position), clean(_pretty(body)))

        if await self._attempt(folder, write):
            _log.info("exchange_saved", folder=str(folder), turn=number)
            self._saved(folder, number)
        if client is not None:
            client.placed(clean)

    async def _attempt(self, folder: Path, write: Callable[[], None]) -> bool:
        try:
            async with self._writing:  # In order: a later turn needs the folder of the first.
                await asyncio.to_thread(write)
        except OSError as exc:
            _log.warning("exchange_not_saved", folder=str(folder), reason=exc.strerror)
            return False
        except TOO_DEEP:
            _log.warning("exchange_not_saved", folder=str(folder), reason="it is nested too deeply")
            return False
        return True

    def _place(self, path: str, asked: Mapping[str, Any]) -> _Recorded:
        """Return the longest conversation that a request continues, or a new one."""
        _, sent = comparable_conversation(asked)
        continued = [
            known
            for known in self._conversations
            if (known.path, known.model) == (path, asked.get("model"))
            and len(known.sent) < len(sent)
            and sent[: len(known.sent)] == known.sent
        ]
        if continued:
            last = max(continued, key=lambda known: len(known.sent))
            last.sent = sent
            last.turns += 1
            return last
        stamp = time.strftime("%Y%m%d-%H%M%S")
        # A folder's name contains nothing of what people ask, because names are shown where content is not.
        model = _slug([self._scrubbing.clean(str(asked.get("model", "")).encode()).decode()])
        digest = hashlib.sha256(self._salt + self._scrubbing.clean(orjson.dumps(asked))).hexdigest()[:6]
        name = f"{stamp}-{next(self._numbers):03d}-{model or 'model'}-{digest}"
        folder = self._out / f"{_slug([self.name]) or 'upstream'}.{_DIALECTS[path].wire}" / name
        known = _Recorded(path, asked.get("model"), sent, folder, 1)
        self._conversations.append(known)
        del self._conversations[:-_MAX_CONVERSATIONS]
        return known

    def _write(
        self, folder: Path, number: int, path: str, asked: dict[str, Any], answer: "_Answer", clean: _Clean
    ) -> None:
        # Another process may read the folder meanwhile. It sees whole turns, and meta.toml
        # only after the first one.
        unfinished = folder / f".{TURN}{number}"
        unfinished.mkdir(parents=True, mode=0o700)
        _save(unfinished / REQUEST, clean(_pretty(asked)))
        self._write_answer(unfinished, 1, answer, clean)
        unfinished.rename(folder / f"{TURN}{number}")
        if number == 1:
            recorded = f"{time.strftime('%Y-%m-%d')}, {self.name}"
            client_path = answer.client.path if answer.client is not None else path
            (folder / CLIENT).mkdir(mode=0o700)
            meta = meta_text(folder.name, recorded, _DIALECTS[path].wire, path=path, client_path=client_path)
            _save(folder / META, meta.encode())

    def _write_answer(self, folder: Path, number: int, answer: "_Answer", clean: _Clean) -> None:
        body = clean(answer.body)
        _save(folder / numbered(EVENTS if answer.streamed else JSON, number), body)
        head = answer.as_toml(exact=body == answer.body)
        _save(folder / numbered(RESPONSE, number), clean(head.encode()))


class _Answer(Struct, frozen=True):
    """A response as it came over the network."""

    status: int
    headers: Headers
    streamed: bool
    body: bytes
    chunks: list[tuple[float, int]]
    broken: bool
    client: ClientExchange | None = None

    def as_toml(self, *, exact: bool) -> str:
        """Build the text of response.toml; leave out the pieces if the body had to be changed."""
        kept = [(name, value) for name, value in self.headers if name.lower() in _KEPT_HEADERS]
        pieces = self.chunks if exact and self.streamed else ()
        return response_text(self.status, kept, pieces, broken=self.broken)


def _pretty(asked: dict[str, Any]) -> bytes:
    return orjson.dumps(asked, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


class _TeeResponse(PulledResponse):
    """A response that is copied while it is read, and saved at its end."""

    def __init__(
        self,
        recorder: RecordingUpstream,
        inner: UpstreamResponse,
        request: UpstreamRequest,
        asked: dict[str, Any],
        started: float,
        client: ClientExchange | None,
    ) -> None:
        self._client = client
        self._recorder = recorder
        self._inner = inner
        self._request = request
        self._asked = asked
        self._started = started
        self._pieces: list[bytes] = []
        self._sizes: list[tuple[float, int]] = []
        self._size = 0
        self._settled = False

    @property
    def status(self) -> int:
        return self._inner.status

    @property
    def headers(self) -> Headers:
        return self._inner.headers

    @property
    def content_type(self) -> str:
        return self._inner.content_type

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._inner.chunks():
                self._size += len(piece)
                if self._size <= _MAX_BODY_BYTES:
                    self._pieces.append(piece)
                    self._sizes.append(((time.monotonic() - self._started) * 1000, len(piece)))
                yield piece
        except UpstreamError:
            self._save(broken=True)
            raise
        self._save(broken=False)

    async def read(self, limit: int) -> bytes:
        return await read_whole(self, self._recorder.name, limit)

    async def aclose(self) -> None:
        """Release the response; save it if its body was complete and only the end of the message was not
        read.

        A client may leave as soon as it has read the last event of a stream.
        """
        await self._inner.aclose()
        if not self._settled and self._size:
            if self._streamed and _DIALECTS[self._request.path].is_whole(b"".join(self._pieces)):
                self._save(broken=False)
            else:
                self._settled = True
                _log.warning("exchange_not_saved", reason="it was given up before its end")

    @property
    def _streamed(self) -> bool:
        return self.content_type in STREAM_TYPES

    def _save(self, *, broken: bool) -> None:
        self._settled = True
        if self._size > _MAX_BODY_BYTES:
            _log.warning("exchange_not_saved", reason=f"the body is over {_MAX_BODY_BYTES} bytes")
            return
        body = b"".join(self._pieces)
        answer = _Answer(self.status, self.headers, self._streamed, body, self._sizes, broken, self._client)
        self._recorder.save(self._request, self._asked, answer)


def _recordable(request: UpstreamRequest) -> dict[str, Any] | None:
    """Return the request's JSON object; ``None`` if its path has no dialect that fixtures know."""
    if request.method != "POST" or request.path not in _DIALECTS or not isinstance(request.body, bytes):
        return None
    if len(request.body) > _MAX_BODY_BYTES:
        return None
    return _object(request.body)


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        asked = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return asked if isinstance(asked, dict) else None


def _slug(texts: Iterable[str]) -> str:
    """Build a part of a folder's name from the first text with letters or digits: ``gpt-4o-mini``."""
    for text in texts:
        if parts := re.findall(r"[a-z0-9]+", text[:200].lower()):
            return "-".join(parts)[:40].rstrip("-")
    return ""


def _save(file: Path, data: bytes) -> None:
    """Write a new file, whole or not at all, that only its owner can read."""
    unfinished = file.with_name(f".{file.name}")
    unfinished.touch(mode=0o600, exist_ok=False)
    unfinished.write_bytes(data)
    unfinished.rename(file)
