"""The ports of upstreams whose models write calls into their text, or need their tools in the prompt.

Where client and upstream speak one dialect, the upstream's bytes go out unchanged until a call is found in
their text. From there on an encoder of that dialect continues the response that the client already has in
part.

A prompted body is read from the client's, which keeps the conversation with its tools and calls and gets
every edit: the upstream gets tools in the prompt, and calls and results as text.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace as with_changes
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from proxy.base.conversation import Conversation
from proxy.base.events import Frame
from proxy.wires.client_port import ClientRequest, TurnEncoder
from proxy.wires.crossed import Crossing, TranslatedBody
from proxy.wires.crossed_links import LinkingPort, PassingLinks
from proxy.wires.crossed_reader import ContinuedReader, CrossedReader
from proxy.wires.crossing.codec import read_exactly
from proxy.wires.crossing.translation import Translation
from proxy.wires.dialect import Dialect
from proxy.wires.profile import Profile
from proxy.wires.stream.fast_path import FastReader
from proxy.wires.text_calls.channel_reader import ChannelReader
from proxy.wires.text_calls.prompting import prompted
from proxy.wires.text_calls.reader import CallReading, TextCallReader, TextTools
from proxy.wires.text_calls.rules import TextCallRules
from proxy.wires.turn.edits import Edits
from proxy.wires.upstream_port import (
    BodyEditor,
    RequestBody,
    StateHabit,
    TurnReader,
    UpstreamPort,
)
from proxy.wires.wire import Wire


class PromptedBody(TranslatedBody):
    """A body whose tools are in the prompt: ``change`` turns them into text."""

    def __init__(
        self,
        own: RequestBody,
        client: Wire,
        translation: Translation,
        change: Callable[[Conversation], Conversation],
    ) -> None:
        super().__init__(own, client, translation)
        self._change = change

    def left_out(self, edits: Edits) -> Sequence[str]:
        self._learn_fields(edits)
        if self._written is None:
            self._check_history(self._own.render(edits))
            self.render(edits)
        return self._left_out_fields()

    def conversation(self, edits: Edits) -> Conversation:
        """Return the current request with its tools."""
        return read_exactly(self._client.codec, self._own.render(replace(edits, asks_usage=False)))

    def render(self, edits: Edits) -> bytes:
        self._learn_fields(edits)
        asked = self.conversation(edits)
        if edits.asks_usage and asked.stream:
            asked = with_changes(asked, stream_usage=True)
        self._written = self._translation.write(self._change(asked))
        return self._written.body

    def history(self, edits: Edits) -> bytes:
        return self._own.render(edits)

    def tools_named(self, edits: Edits, message: str) -> frozenset[str]:
        """Return nothing: the upstream gets no definition of a tool."""
        return frozenset()

    def recover(self, edits: Edits, message: str, code: str | None) -> Edits | None:
        changed = self._own.recover(edits, message, code)
        if changed is None and self._translation.learn(message):
            changed = edits
        self._written = None
        return self._with_lessons(changed) if changed is not None else None


_IN_JSON: Final = {"[": rb"\[(?![{\]])"}
"""Patterns for characters that are also JSON syntax. In a text, such a character begins a marker only if it
is not followed by JSON syntax."""


class _FastContinuedReader(ContinuedReader, FastReader):
    """A :class:`ContinuedReader` whose events pass unread while nothing in them can begin a call."""

    _reader: TextCallReader

    def __init__(
        self,
        inner: FastReader,
        reader: TextCallReader,
        encoder: Callable[[], TurnEncoder],
        event_end: bytes,
    ) -> None:
        super().__init__(reader, encoder)
        self._inner = inner
        self._event_end = event_end
        # A line end counts too. An escape with a code may stand for any character.
        signs = (_IN_JSON.get(sign, re.escape(sign).encode()) for sign in sorted(reader.signs - {"\n"}))
        self._counts = re.compile(b"|".join((rb"\\[nu]", *signs))).search
        self._suspect = False
        self._between = False

    def feed(
        self, chunk: bytes, *, together: bool = False, most: int = 0, large: bool = False
    ) -> list[Frame]:
        """See :meth:`proxy.wires.stream.fast_path.FastReader.feed`.

        One frame may report several events only if nothing that is still unread can begin a call.
        """
        if chunk:
            self._suspect = self._suspect or self._counts(chunk) is not None
            self._between = chunk.endswith(self._event_end)
        together = together and not self._suspect and self._reader.idle
        frames = self._inner.feed(chunk, together=together, most=most, large=large)
        if self._between and not self._reader.has_unread:
            self._suspect = False
        return self._going_on(self._reader.take(frames))

    def take_unread(self, chunk: bytes) -> bool:
        return self._reader.idle and self._counts(chunk) is None and self._inner.take_unread(chunk)

    def catch_up(self) -> list[Frame]:
        return self._going_on(self._reader.take(self._inner.catch_up()))


def continued(
    inner: TurnReader,
    reader: TextCallReader,
    encoder: Callable[[], TurnEncoder],
    event_end: bytes,
) -> ContinuedReader:
    """Return the reader of a turn in one dialect. ``inner`` is the upstream's own, which ``reader`` wraps.

    ``event_end`` is the end of an event in the dialect's streams.
    """
    if isinstance(inner, FastReader):
        return _FastContinuedReader(inner, reader, encoder, event_end)
    return ContinuedReader(reader, encoder)


Note = Callable[[Mapping[str, Any]], None]
"""Called with the facts of what was found in the text of a turn, and what was done about it."""


def text_call_port(
    client: Wire,
    upstream: Wire,
    request: ClientRequest,
    rules: TextCallRules,
    note: Note,
    profile: Profile | None = None,
    *,
    strict: bool = False,
) -> UpstreamPort:
    """Return the port of an upstream for one request, whose model takes what ``profile`` says.

    With ``strict`` a request is refused if the upstream's dialect cannot express one of its fields.
    """
    reading = CallReading(rules.form, repair=rules.repair, note=note)
    if rules.prompt:
        return _PromptedPort(client, upstream, request, reading, profile, strict=strict)
    if client is upstream:
        return _ReadingPort(client, request, reading)
    return _ReadingCrossing(client, upstream, request, reading, profile, strict=strict)


class _ReadingPort(LinkingPort, UpstreamPort):
    """The port of an upstream of the client's dialect. Its bytes pass until a call or a citation is found in
    their text."""

    def __init__(self, wire: Wire, request: ClientRequest, reading: CallReading) -> None:
        super().__init__(request)
        self._wire = wire
        self._reading = reading
        self._editor: BodyEditor | None = None

    @property
    def dialect(self) -> Dialect:
        return self._wire.dialect

    def editor(
        self, raw: bytes, request: ClientRequest, state: StateHabit = "auto", *, caller: str = ""
    ) -> BodyEditor:
        self._editor = self._wire.editor(raw, request, state, caller=caller)
        return self._editor

    def reader(
        self, declared: Collection[str], is_hidden: Callable[[str], bool], max_argument_bytes: int
    ) -> TurnReader:
        inner = self._wire.reader(declared, is_hidden, max_argument_bytes)
        tools = TextTools(declared, partial(_sent, self._wire, self._editor))
        reads = not self._request.tools_forbidden
        reader = _reader_of(self._reading)(
            inner, self._reading, tools, self._wire, max_argument_bytes, reads=reads
        )
        encoder = partial(self._wire.encoder, self._request)
        if self._pages:
            return ContinuedReader(PassingLinks(reader, self._pages, self._numbers), encoder)
        return continued(inner, reader, encoder, self.dialect.framing.event_end)


class _ReadingCrossing(Crossing):
    """The port of an upstream whose dialect is not the client's."""

    def __init__(
        self,
        client: Wire,
        upstream: Wire,
        request: ClientRequest,
        reading: CallReading,
        profile: Profile | None,
        *,
        strict: bool = False,
    ) -> None:
        super().__init__(client, upstream, request, profile, strict=strict)
        self._reading = reading

    def turn_reader(
        self, declared: Collection[str], is_hidden: Callable[[str], bool], max_argument_bytes: int
    ) -> TurnReader:
        inner = super().turn_reader(declared, is_hidden, max_argument_bytes)
        tools = TextTools(declared, partial(_sent, self._upstream, self._editor))
        reads = not self._request.tools_forbidden
        return _reader_of(self._reading)(
            inner, self._reading, tools, self._upstream, max_argument_bytes, reads=reads
        )


class _PromptedPort(LinkingPort, UpstreamPort):
    """The port of an upstream whose models find their tools in the prompt."""

    def __init__(
        self,
        client: Wire,
        upstream: Wire,
        request: ClientRequest,
        reading: CallReading,
        profile: Profile | None,
        *,
        strict: bool = False,
    ) -> None:
        super().__init__(request)
        self._client = client
        self._upstream = upstream
        self._reading = reading
        self._profile = profile
        self._strict = strict
        self._body: PromptedBody | None = None
        self._editor: BodyEditor | None = None

    @property
    def dialect(self) -> Dialect:
        """The upstream's dialect."""
        return self._upstream.dialect

    def editor(
        self, raw: bytes, request: ClientRequest, state: StateHabit = "auto", *, caller: str = ""
    ) -> BodyEditor:
        own = self._client.body(raw, request, "stateless", caller=caller)
        written = self._upstream.codec.fields.written["output.stops"]
        takes_stops = written.handling == "translated"
        change = partial(prompted, form=self._reading.form, takes_stops=takes_stops)
        translation = Translation(self._upstream.codec, self._profile, strict=self._strict)
        self._body = PromptedBody(own, self._client, translation, change)
        self._editor = editor = BodyEditor(self._body)
        return editor

    def reader(
        self, declared: Collection[str], is_hidden: Callable[[str], bool], max_argument_bytes: int
    ) -> TurnReader:
        inner = self._upstream.reader(declared, is_hidden, max_argument_bytes)
        reader = _reader_of(self._reading)(
            inner,
            self._reading,
            TextTools(declared, self._asked),
            self._upstream,
            max_argument_bytes,
            self._client,
            reads=not self._request.tools_forbidden,
        )
        return CrossedReader(self.linking(reader), self._client.encoder(self._request), {})

    def _asked(self) -> Conversation | None:
        if self._body is None or self._editor is None:
            return None
        return self._body.conversation(self._editor.edits)


def _reader_of(reading: CallReading) -> type[TextCallReader]:
    return ChannelReader if reading.form.channels else TextCallReader


def _sent(wire: Wire, editor: BodyEditor | None) -> Conversation | None:
    """Return the last request to the upstream as a conversation; ``None`` if there was none."""
    return read_exactly(wire.codec, editor.render()) if editor is not None else None
