"""The ports of upstreams whose models write calls into their text, or need their tools in the prompt."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from proxy.base.conversation import Conversation
from proxy.wires.client_port import ClientRequest
from proxy.wires.crossed import Crossing
from proxy.wires.crossed_links import LinkingPort
from proxy.wires.crossed_reader import CrossedReader
from proxy.wires.crossing.exact import read_exactly
from proxy.wires.crossing.translation import Translation
from proxy.wires.dialect import Dialect
from proxy.wires.profile import Profile
from proxy.wires.text_calls.channel_reader import ChannelReader
from proxy.wires.text_calls.continued import continued
from proxy.wires.text_calls.editor import PromptedBody
from proxy.wires.text_calls.prompting import prompted
from proxy.wires.text_calls.reader import CallReading, TextCallReader, TextTools
from proxy.wires.text_calls.rules import TextCallRules
from proxy.wires.upstream_port import BodyEditor, StateHabit, TurnReader, UpstreamPort
from proxy.wires.wire import Wire

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


class _ReadingPort(UpstreamPort):
    """The port of an upstream of the client's dialect. Its bytes pass until a call is found in their text."""

    def __init__(self, wire: Wire, request: ClientRequest, reading: CallReading) -> None:
        self._wire = wire
        self._request = request
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
        return continued(
            inner, reader, partial(self._wire.encoder, self._request), self.dialect.framing.event_end
        )


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
