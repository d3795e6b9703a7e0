"""The side of a dialect that faces upstreams: it edits their requests and reads their responses.

An :class:`UpstreamPort` makes a :class:`BodyEditor`, which holds the request body over all turns, and a
:class:`TurnReader`, which reads a response. The relay knows no dialect by name.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from proxy.base.errors import WireError
from proxy.base.events import Frame, ResultImage, ToolCall, ToolDefinition
from proxy.records.result_for_model import ResultForModel
from proxy.records.rows import MessageRecord
from proxy.wires.client_port import ClientRequest
from proxy.wires.dialect import Dialect

__all__ = [
    "NO_TURN",
    "BodyEditor",
    "CachingEditor",
    "ChainedEditor",
    "LossyClientEditor",
    "Mask",
    "StateHabit",
    "SuspendedCall",
    "TranslatedEditor",
    "TurnReader",
    "UpstreamPort",
]

NO_TURN: Final = b'{"messages":[],"calls":[],"items":[]}'
"""An empty turn for :meth:`BodyEditor.restore` of any dialect: it only removes the client's message."""


Mask = Callable[[str, str], str]
"""Masks the private fields of a call, for storage (rule R3): takes the tool's name on the wire and the JSON
text of its arguments, and returns the masked JSON text."""

StateHabit = Literal["auto", "chained", "stateless"]
"""Whether an upstream stores responses that later requests can continue; ``auto``: its responses decide."""


@dataclass(frozen=True, slots=True)
class SuspendedCall:
    """A call of a suspended turn.

    ``call_id`` is its id at the upstream and ``client_id`` its id at the client, ``None`` if the client does
    not have the call. ``result`` is the proxy's own result, as the upstream gets it or with holes; ``None``
    if the client has to bring it.
    """

    call_id: str
    client_id: str | None
    result: bytes | ResultForModel | None


class BodyEditor(Protocol):
    """The request body for the upstream, over all turns. Everything that is not edited keeps its bytes."""

    def offer(self, added: Sequence[ToolDefinition], replaced: Sequence[ToolDefinition]) -> None:
        """Add tools after the client's own, and use our schema of tools that the client declared."""
        ...

    def withdraw(self) -> None:
        """Undo :meth:`offer` and :meth:`withhold`, so that the body is as the client sent it."""
        ...

    def withhold(self, names: Collection[str]) -> None:
        """Leave these of the offered tools out of every request from now on, and out of the tool choice.

        A choice that forces one of them becomes ``auto``. All other offered tools keep their bytes.
        """
        ...

    def rename_model(self, model: str) -> None: ...

    def ask_usage(self) -> None:
        """Ask for a usage report in the stream, even if the client did not."""
        ...

    def restore(self, position: int, payload: bytes, *, needed: bool = True) -> None:
        """Replace the assistant message at ``position`` of the request by a held turn.

        :meth:`suspend` made the ``payload``. :meth:`recover` may remove a turn that is not ``needed``.
        """
        ...

    @property
    def restored(self) -> tuple[int, int]:
        """The number of turns in the next request that the client does not have, and the bytes they add."""
        ...

    def append_turn(self, message: bytes, results: Sequence[bytes]) -> None:
        """Add an assistant message and the results of all its calls to the conversation."""
        ...

    def suspend(self, message: bytes, calls: Sequence[SuspendedCall], mask: Mask) -> bytes:
        """Return the part of the conversation that the client does not have, ready to be stored."""
        ...

    def result_message(self, call: ToolCall, content: str, images: Sequence[ResultImage] = ()) -> bytes:
        """Encode one result for the upstream.

        If the wire or this upstream takes no images, words describe them.
        """
        ...

    def leave_out_images(self) -> None:
        """Describe images in words: this upstream refused images before."""
        ...

    @property
    def images_refused(self) -> bool:
        """Whether :meth:`recover` left images out because the upstream takes none, not because one is bad."""
        ...

    def leave_out_fields(self, names: Collection[str]) -> None:
        """Leave these fields out of the model's messages: this upstream refused them there before."""
        ...

    @property
    def fields_refused(self) -> frozenset[str]:
        """The fields that :meth:`recover` left out of the model's messages."""
        ...

    def tools_named(self, message: str) -> frozenset[str]:
        """Return the names of offered tools whose definitions an upstream's error is about."""
        ...

    def relax_tool_choice(self, called: Collection[str]) -> None:
        """Stop forcing a call if these calls of server tools fulfil the tool choice (rule W9)."""
        ...

    def forbid_tools(self) -> bool:
        """Ask for an answer without calls. If the client forces a call of its own tool, keep asking for that
        call, but leave the server tools out. Returns whether they are left out.
        """
        ...

    def lower_token_limit(self, used: int) -> None:
        """Lower the client's own limit on output tokens by the tokens that earlier turns used."""
        ...

    def render(self) -> bytes:
        """Return the body of the next upstream request."""
        ...

    def recover(self, message: str, code: str | None) -> bool:
        """Change what the upstream refused with this error. Returns whether a retry may succeed."""
        ...

    def records(self, run_id: str, mask: Mask) -> Sequence[MessageRecord]:
        """Return the hidden messages so far as rows of the record (rule R2)."""
        ...


class ChainedEditor(ABC):
    """The editor of a wire whose responses have ids, so that later requests can continue them."""

    __slots__ = ()

    @abstractmethod
    def resume(self, continuation: bytes) -> None:
        """Continue a response that the proxy made; the upstream does not know its id."""

    @abstractmethod
    def continuation(self, message: bytes, calls: Sequence[SuspendedCall], mask: Mask) -> bytes:
        """Return what a request that continues this run needs; :meth:`resume` takes it."""

    @abstractmethod
    def input_items(self) -> bytes:
        """Return the client's own input as a JSON array of items."""


class CachingEditor(ABC):
    """The editor of a dialect whose requests mark the parts to keep in the provider's prompt cache."""

    __slots__ = ()

    @abstractmethod
    def mark_cache(self) -> None:
        """Set cache marks in every request from now on, unless the body has its own."""


class TranslatedEditor(ABC):
    """The editor of a dialect whose request may be a translation from another dialect."""

    __slots__ = ()

    @abstractmethod
    def mark_translated(self) -> None:
        """Leave out of all the model's messages the fields that the upstream refuses there.

        None of these messages has the client's own bytes.
        """


class LossyClientEditor(ABC):
    """The editor of a request whose client cannot send back everything that its upstream sent."""

    __slots__ = ()

    @abstractmethod
    def has_unreturnable_content(self, message: bytes) -> bool:
        """Return whether a turn with calls has content that its client cannot send back with the results.

        :meth:`TurnReader.message` returned ``message``.
        """


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
        ...

    @property
    def large_next(self) -> bool:
        """Whether the next of these events is so large that it should be read in a thread."""
        ...

    def feed(self, chunk: bytes, *, most: int = 0, large: bool = False) -> list[Frame]:
        """Return the frames that ``chunk`` completes, up to a :attr:`fault`.

        ``most`` limits the work: no more is read than takes as long as this many ordinary events. Unless
        ``large`` is true, reading then also stops before a large event. If something is left,
        :attr:`has_unread` is true, and the next ``chunk`` may be ``b""``.
        """
        ...

    def close(self) -> list[Frame]:
        """Return the frames of the end of a stream that ended properly: the rest, and the calls now complete.

        The last frame has a :class:`~proxy.base.events.ToolCallFinished` for each named call.
        """
        ...

    def read_reply(self, body: bytes) -> Frame:
        """Read a response that was not streamed.

        Raises :class:`~proxy.base.errors.Unreadable` if it is not valid but may hold a call, and
        :class:`~proxy.base.errors.WireError` if it is not valid otherwise.
        """
        ...

    def message(self) -> bytes:
        """Return the turn's assistant message in the form that the upstream takes back."""
        ...

    def native(self, call: ToolCall, mask: Mask) -> str:
        """Return a call of this turn as the upstream sent it, as JSON with its unknown fields.

        Only its private arguments are masked.
        """
        ...

    @property
    def left_out(self) -> Collection[str]:
        """The names of the parts of the answer so far that the client's dialect cannot express."""
        ...

    @property
    def rewritten(self) -> bool:
        """Whether the turn was changed, so that the upstream's own stored copy differs."""
        ...

    @property
    def text(self) -> str:
        """The turn's text so far."""
        ...


class UpstreamPort(Protocol):
    """The side of a dialect that faces upstreams."""

    @property
    def dialect(self) -> Dialect:
        """The data of the dialect: path, framing, text of refusals."""
        ...

    def editor(
        self, raw: bytes, request: ClientRequest, state: StateHabit = "auto", *, caller: str = ""
    ) -> BodyEditor:
        """Return an editor; ``state`` is how the upstream continues from one turn to the next.

        Items in the request that the proxy made are recognized only if they were made for this ``caller``.
        """
        ...

    def reader(
        self, declared: Collection[str], is_hidden: Callable[[str], bool], max_argument_bytes: int
    ) -> TurnReader: ...
