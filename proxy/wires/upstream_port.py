"""The side of a dialect that faces upstreams: it edits their requests and reads their responses.

An :class:`UpstreamPort` makes a :class:`BodyEditor`, which holds the :class:`Edits` of the request body over
all turns, and a :class:`TurnReader`, which reads a response. The relay knows no dialect by name.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from proxy.base.errors import WireError
from proxy.base.events import Frame, ResultImage, ToolCall, ToolDefinition, ToolDefinitions
from proxy.records.result_for_model import ResultForModel
from proxy.records.rows import MessageRecord
from proxy.wires.client_port import ClientRequest
from proxy.wires.dialect import Dialect
from proxy.wires.hosted.tools import FoundPage
from proxy.wires.turn.edits import AppendedTurn, Edits, RestoredMessages

NO_TURN: Final = b'{"messages":[],"calls":[],"items":[]}'
"""An empty turn for :meth:`BodyEditor.restore` of any dialect: it only removes the client's message."""


Mask = Callable[[str, str], str]
"""Masks the private fields of a call, for storage (rule R3): takes the tool's name on the wire and the JSON
text of its arguments, and returns the masked JSON text."""

StateHabit = Literal["auto", "chained", "stateless"]
"""Whether an upstream stores responses that later requests can continue; ``auto``: its responses decide."""


class SuspendedCall(Struct, frozen=True):
    """A call of a suspended turn.

    ``call_id`` is its id at the upstream and ``client_id`` its id at the client, ``None`` if the client does
    not have the call. ``result`` is the proxy's own result, as the upstream gets it or with holes; ``None``
    if the client has to bring it. ``made_by_program`` is a call that a program makes of the client; the
    upstream does not know it.
    """

    call_id: str
    client_id: str | None
    result: bytes | ResultForModel | None
    made_by_program: ToolCall | None = None


class ResponseChain(ABC):
    """What the proxy keeps of a run whose response has an id, so that later requests can continue it."""

    @abstractmethod
    def continuation(self, edits: Edits, message: bytes, calls: Sequence[SuspendedCall], mask: Mask) -> bytes:
        """Return what a request that continues this run needs; it is the ``resumed`` of that run's edits."""

    @abstractmethod
    def input_items(self) -> bytes:
        """Return the client's own input as a JSON array of items."""


class RequestBody(ABC):
    """A client's request body, and how a dialect renders it with :class:`Edits`.

    Everything that is not edited keeps its bytes. A body serves one run: it counts the images of results.
    """

    translates: bool = False
    """Whether the upstream gets a translation, so that no byte of the client's passes unchanged."""

    @property
    def chain(self) -> ResponseChain | None:
        """How later requests continue the response by its id; ``None`` if responses have none."""
        return None

    @abstractmethod
    def render(self, edits: Edits) -> bytes:
        """Return the body of the next upstream request."""

    def history(self, edits: Edits) -> bytes:
        """Return a request in the client's dialect with the whole conversation so far."""
        return self.render(edits)

    @abstractmethod
    def recover(self, edits: Edits, message: str, code: str | None) -> Edits | None:
        """Return the edits after an upstream's error; ``None`` if no retry may succeed."""

    @abstractmethod
    def turn(self, edits: Edits, message: bytes, results: Sequence[bytes]) -> AppendedTurn:
        """Return an assistant message and the results of all its calls as a turn to append."""

    @abstractmethod
    def restore(self, position: int, payload: bytes, *, needed: bool) -> RestoredMessages:
        """Read a held turn that :meth:`suspend` made, for the client's message at ``position``."""

    @abstractmethod
    def suspend(self, edits: Edits, message: bytes, calls: Sequence[SuspendedCall], mask: Mask) -> bytes:
        """Return the part of the conversation that the client does not have, ready to be stored."""

    @abstractmethod
    def records(self, edits: Edits, run_id: str, mask: Mask) -> Sequence[MessageRecord]:
        """Return the hidden messages so far as rows of the record (rule R2)."""

    @abstractmethod
    def result_message(
        self, edits: Edits, call: ToolCall, content: str, images: Sequence[ResultImage]
    ) -> bytes:
        """Encode one result for the upstream; words describe images that it does not take."""

    @abstractmethod
    def tools_named(self, edits: Edits, message: str) -> frozenset[str]:
        """Return the names of offered tools whose definitions an upstream's error is about."""

    @abstractmethod
    def forces_own_call(self, edits: Edits) -> bool:
        """Return whether only a call of one of the client's own tools can satisfy its tool choice."""

    def left_out(self, edits: Edits) -> Sequence[str]:
        """Return the client's fields that the upstream gets with another value, or not at all.

        Raise :class:`~proxy.base.errors.RequestError` for what its dialect cannot express.
        """
        return ()

    def has_unreturnable_content(self, message: bytes) -> bool:
        """Return whether a turn with calls has content that its client cannot send back with the results.

        :meth:`TurnReader.message` returned ``message``.
        """
        return False


class BodyEditor:
    """A client's request body for an upstream, and the :class:`Edits` of the run so far."""

    __slots__ = ("body", "edits")

    def __init__(self, body: RequestBody) -> None:
        self.body = body
        self.edits = Edits()

    def edit(self, **changes: Any) -> None:
        """Set fields of the edits."""
        self.edits = replace(self.edits, **changes)

    def offer(
        self, added: Sequence[ToolDefinition], replaced: Sequence[ToolDefinition], **changes: Any
    ) -> None:
        """Add tools after the client's own, and use our schema of tools that the client declared.

        ``changes`` are further fields of the edits.
        """
        self.edits = replace(self.edits, added=ToolDefinitions(added), replaced=replaced, **changes)

    def withdraw(self) -> None:
        """Undo :meth:`offer`, so that the tools are as the client sent them."""
        self.edits = replace(self.edits, added=ToolDefinitions(), replaced=(), withheld=())

    def relax_tool_choice(self, called: Collection[str]) -> None:
        """Stop forcing a call if these calls of server tools fulfil the tool choice (rule W9)."""
        if called and not self.body.forces_own_call(self.edits):
            self.edits = replace(self.edits, called=self.edits.called.union(called))

    def forbid_tools(self) -> bool:
        """Ask for an answer without calls. If the client forces a call of its own tool, keep asking for that
        call, but leave the server tools out. Returns whether they are left out.
        """
        forces = self.body.forces_own_call(self.edits)
        withheld = self.edits.offered.union(self.edits.withheld) if forces else self.edits.withheld
        self.edits = replace(
            self.edits, withheld=withheld, forbids_calls=self.edits.forbids_calls or not forces
        )
        return forces

    def restore(self, position: int, payload: bytes, *, needed: bool = True) -> None:
        """Replace the assistant message at ``position`` of the request by a held turn.

        :meth:`suspend` made the ``payload``. :meth:`recover` may remove a turn that is not ``needed``.
        """
        turn = self.body.restore(position, payload, needed=needed)
        self.edits = replace(self.edits, restored={**self.edits.restored, position: turn})

    @property
    def restored(self) -> tuple[int, int]:
        """The number of turns in the next request that the client does not have, and the bytes they add."""
        turns = self.edits.restored
        return len(turns) + bool(self.edits.resumed), sum(turn.size for turn in turns.values())

    def append_turn(self, message: bytes, results: Sequence[bytes]) -> None:
        """Add an assistant message and the results of all its calls to the conversation."""
        self.edits = replace(
            self.edits, turns=(*self.edits.turns, self.body.turn(self.edits, message, results))
        )

    def suspend(self, message: bytes, calls: Sequence[SuspendedCall], mask: Mask) -> bytes:
        """See :meth:`RequestBody.suspend`."""
        return self.body.suspend(self.edits, message, calls, mask)

    def result_message(self, call: ToolCall, content: str, images: Sequence[ResultImage] = ()) -> bytes:
        """See :meth:`RequestBody.result_message`."""
        return self.body.result_message(self.edits, call, content, images)

    def leave_out_fields(self, names: Collection[str]) -> None:
        """Leave these fields out of the model's messages: this upstream refused them there before."""
        self.edits = replace(self.edits, fields_left_out=self.edits.fields_left_out.union(names))

    def render(self) -> bytes:
        """See :meth:`RequestBody.render`."""
        return self.body.render(self.edits)

    def history(self) -> bytes:
        """See :meth:`RequestBody.history`."""
        return self.body.history(self.edits)

    def recover(self, message: str, code: str | None) -> bool:
        """Change what the upstream refused with this error. Returns whether a retry may succeed."""
        changed = self.body.recover(self.edits, message, code)
        self.edits = changed or self.edits
        return changed is not None

    def records(self, run_id: str, mask: Mask) -> Sequence[MessageRecord]:
        """See :meth:`RequestBody.records`."""
        return self.body.records(self.edits, run_id, mask)


class TurnReader(Protocol):
    """A reader of one upstream response.

    ``fault`` is the reason why the rest is not read; ``None`` while reading goes on. Bytes after a fault may
    hold a call that the proxy would not see, so none of them may reach the client (rule W5).
    """

    @property
    def fault(self) -> WireError | None: ...

    @property
    def has_unread(self) -> bool:
        """Whether complete events are buffered that have not been read yet."""

    @property
    def large_next(self) -> bool:
        """Whether the next of these events is so large that it should be read in a thread."""

    def feed(self, chunk: bytes, *, most: int = 0, large: bool = False) -> list[Frame]:
        """Return the frames that ``chunk`` completes, up to a :attr:`fault`.

        ``most`` limits the work: no more is read than takes as long as this many ordinary events. Unless
        ``large`` is true, reading then also stops before a large event. If something is left,
        :attr:`has_unread` is true, and the next ``chunk`` may be ``b""``.
        """

    def close(self) -> list[Frame]:
        """Return the frames of the end of a stream that ended properly: the rest, and the calls now complete.

        The last frame has a :class:`~proxy.base.events.ToolCallFinished` for each named call.
        """

    def read_reply(self, body: bytes) -> Frame:
        """Read a response that was not streamed.

        Raises :class:`~proxy.base.errors.Unreadable` if it is not valid but may hold a call, and
        :class:`~proxy.base.errors.WireError` if it is not valid otherwise.
        """

    def message(self) -> bytes:
        """Return the turn's assistant message in the form that the upstream takes back."""

    def native(self, call: ToolCall, mask: Mask) -> str:
        """Return a call of this turn as the upstream sent it, as JSON with its unknown fields.

        Only its private arguments are masked.
        """

    @property
    def left_out(self) -> Collection[str]:
        """The names of the parts of the answer so far that the client's dialect cannot express."""

    @property
    def rewritten(self) -> bool:
        """Whether the turn was changed, so that the upstream's own stored copy differs."""

    @property
    def text(self) -> str:
        """The turn's text so far."""


class ForwardingReader(TurnReader):
    """A reader that does what the ``reader`` does which it wraps."""

    def __init__(self, reader: TurnReader) -> None:
        self._reader = reader

    @property
    def fault(self) -> WireError | None:
        return self._reader.fault

    @property
    def has_unread(self) -> bool:
        return self._reader.has_unread

    @property
    def large_next(self) -> bool:
        return self._reader.large_next

    @property
    def text(self) -> str:
        return self._reader.text

    def message(self) -> bytes:
        return self._reader.message()

    def native(self, call: ToolCall, mask: Mask) -> str:
        return self._reader.native(call, mask)


class CitingPort(ABC):
    """A port whose answers cite the pages that server tools have found, where the model links to them."""

    __slots__ = ()

    @abstractmethod
    def cite_earlier(self, pages: Iterable[tuple[FoundPage, int]]) -> None:
        """Cite these pages of earlier turns, too; each has the number that the model knows, 0 for none."""

    @abstractmethod
    def cite(self, pages: Sequence[FoundPage], conversation: Callable[[], bytes]) -> Mapping[str, int]:
        """Cite these pages, too, in the turns that come.

        Return the numbers by which the model may cite them, by their addresses; none if it may not.
        ``conversation`` returns what was said so far, as JSON: numbers continue those in it.
        """


class UpstreamPort(Protocol):
    """The side of a dialect that faces upstreams."""

    @property
    def dialect(self) -> Dialect:
        """The data of the dialect: path, framing, text of refusals."""

    def editor(
        self, raw: bytes, request: ClientRequest, state: StateHabit = "auto", *, caller: str = ""
    ) -> BodyEditor:
        """Return an editor; ``state`` is how the upstream continues from one turn to the next.

        Items in the request that the proxy made are recognized only if they were made for this ``caller``.
        """

    def reader(
        self, declared: Collection[str], is_hidden: Callable[[str], bool], max_argument_bytes: int
    ) -> TurnReader: ...
