"""A dialect that clients speak to the proxy and the proxy speaks to upstreams."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import orjson

from proxy.base.conversation import Message, Spoken
from proxy.wires.approving.shown import ApprovalForm
from proxy.wires.chosen import ShownTools
from proxy.wires.client_port import ClientRequest, ClientView, ProgramResults, StreamWriter, TurnEncoder
from proxy.wires.crossing.codec import ConversationCodec, read_exactly
from proxy.wires.hosted.tools import HostedTool
from proxy.wires.stream.plain import PlainTurn
from proxy.wires.turn.chosen import without_elements
from proxy.wires.typed_tools.functions import AsFunctions, UpstreamTypes
from proxy.wires.upstream_port import BodyEditor, Mask, RequestBody, StateHabit, UpstreamPort


class Wire(UpstreamPort):
    """Both ports of a dialect, in one object.

    If client and upstream speak the same dialect, everything that is not edited keeps its bytes. For
    upstreams and clients of other dialects, ``codec`` translates requests, and the methods translate turns.
    """

    __slots__ = ()

    approvals: ApprovalForm | None = None
    """How its conversations hold questions about approvals; ``None`` if they do not."""
    body_class: ClassVar[Callable[..., RequestBody]]
    """Makes a body of the client's bytes, the request, and ``translated``; see :meth:`body`."""
    only_with_tools: ClassVar[Sequence[str]] = ()
    """The members that go with the last tool, if a request forbids all calls."""

    @abstractmethod
    def parse(self, payload: Mapping[str, Any]) -> ClientRequest:
        """Read a request. Raises :class:`~proxy.base.errors.RequestError`, which names the field."""

    @abstractmethod
    def writer(self, request: ClientRequest, view: ClientView) -> StreamWriter:
        """Return the writer of what the client sees of a run."""

    def plain_turn(self, request: ClientRequest, *, usage_was_added: bool) -> PlainTurn | None:
        """Return what can read the first turn, a stream or a reply, as long as it is plain text.

        Return ``None`` if only a turn reader can, or if the client's :meth:`writer` would change or hold back
        anything of such a turn. ``usage_was_added`` is as in :class:`~proxy.wires.client_port.ClientView`.
        """
        return None

    @property
    @abstractmethod
    def codec(self) -> ConversationCodec: ...

    def body(
        self,
        raw: bytes,
        request: ClientRequest,
        state: StateHabit = "auto",
        *,
        caller: str = "",
        translated: bool = False,
    ) -> RequestBody:
        """Return a body for an upstream of this dialect; see :meth:`editor`.

        ``translated``: the proxy has translated it, so the client wrote none of its messages.
        """
        return self.body_class(raw, request, translated=translated)

    def editor(
        self, raw: bytes, request: ClientRequest, state: StateHabit = "auto", *, caller: str = ""
    ) -> BodyEditor:
        return BodyEditor(self.body(raw, request, state, caller=caller))

    def without_chosen(
        self, raw: bytes, request: ClientRequest, shown: ShownTools
    ) -> tuple[bytes, ClientRequest]:
        """Return the body without the elements that choose server tools, and the request that it then is.

        ``shown`` are the tools that the client gets; a ``tool_choice`` may name them by their server. Raises
        :class:`~proxy.base.errors.RequestError` for a ``tool_choice`` that names another.
        """
        less = without_elements(
            raw,
            request.chosen,
            lambda parts: self._rewrite_choice(parts, request, shown),
            only_with_tools=self.only_with_tools if request.tools_forbidden else (),
        )
        return less, self.parse(orjson.loads(less))

    def _rewrite_choice(self, parts: dict[str, bytes], request: ClientRequest, shown: ShownTools) -> None:
        """Replace server tools in the choice of a tool, in a dialect whose choice can name them."""
        return

    @abstractmethod
    def encoder(self, request: ClientRequest) -> TurnEncoder:
        """Return an encoder of frames in this dialect, for one turn of an upstream of another dialect."""

    def as_functions(self, payload: Mapping[str, Any], upstream: UpstreamTypes) -> AsFunctions | None:
        """Return a request with functions in place of tools of special types that the client runs.

        ``upstream.earlier`` is what :meth:`items_with_tools` has returned. Returns ``None`` if nothing has to
        change. Raises :class:`~proxy.base.errors.RequestError`, which names the field.
        """
        return None

    def hosted_tools(self, payload: Mapping[str, Any]) -> Mapping[int, HostedTool]:
        """Return the provider's tools in a request that server tools can run, by their places in ``tools``.

        Raises :class:`~proxy.base.errors.RequestError` for a declaration that cannot be read.
        """
        return {}

    def joined_programs(self, raw: bytes) -> tuple[bytes, ProgramResults] | None:
        """Return a body without what passed between client and programs, and what that brings the programs.

        Return ``None`` if there is nothing of it. Raises :class:`~proxy.base.errors.RequestError` for results
        that do not belong to the calls before them.
        """
        return None

    def check_container(self, payload: Mapping[str, Any], caller: str, *, needed: bool) -> None:
        """Raise :class:`~proxy.base.errors.RequestError` for the container of a request that is not the
        caller's, or has expired, or is missing and ``needed``."""
        return

    def sealed_turns(self, request: ClientRequest, caller: str) -> Iterator[tuple[int, bytes]]:
        """Yield the turns that this caller carries in what it was shown of them, by their positions.

        See :meth:`~proxy.wires.upstream_port.RequestBody.restore`.
        """
        return iter(())

    def spoken(self, payload: Mapping[str, Any]) -> Iterator[Spoken]:
        """Yield the texts of a request's conversation in their order, by who brought them.

        In a dialect whose clients cannot declare a fetch of pages there are none.
        """
        return iter(())

    def shown_images(self, payload: Mapping[str, Any]) -> Sequence[Sequence[str]]:
        """Return the images in a request's conversation as URLs, those of one item together, in its order.

        In a dialect whose clients cannot declare the provider's image generation there are none.
        """
        return ()

    def with_search(self, payload: Mapping[str, Any], upstream: UpstreamTypes) -> AsFunctions | None:
        """Return a request whose deferred tools the model finds by the proxy's search.

        Return ``None`` if it declares no search, or one that the upstream runs itself. See
        :meth:`as_functions`, which it takes the place of.
        """
        return None

    def items_with_tools(self, payload: Mapping[str, Any], earlier: str) -> str:
        """Return what later requests that continue this one need of the tools that its items bring.

        ``earlier`` is the same of the response that this request continues. Empty if there are none.
        """
        return earlier

    def without_carried(self, raw: bytes) -> bytes:
        """Return the body of a request without the encrypted turns that the client sends back.

        No upstream can read them. Returns the same bytes if there are none.
        """
        return raw

    def load_answer(self, payload: Mapping[str, Any]) -> bytes | None:
        """Return the answer to a request that asks only to load a model, as JSON; ``None`` for any other.

        The answer assumes that models are always loaded. Raises :class:`RequestError` for a field that is
        wrong.
        """
        return None

    def may_refer(self, raw: bytes, *, only_ours: bool = False) -> bool:
        """Return whether a request body could refer to items, with ``only_ours`` to items that no upstream of
        this dialect knows. It is asked about each request."""
        return False

    def referred(self, request: ClientRequest) -> Mapping[str, str]:
        """Return the ids of the items to which a request refers, each with the id of the proxy's response
        that has the item; empty if the id does not say it."""
        return {}

    def verified(self, ids: Sequence[str], caller: str) -> Sequence[str]:
        """Return those of some ids that parts of answers to this caller have, which show calls of the
        provider's tools."""
        return ()

    def with_items(self, raw: bytes, request: ClientRequest, responses: Sequence[bytes]) -> bytes:
        """Return the body with the items of these responses in place of the references to them.

        ``responses`` are JSON, as the clients got them.
        """
        return raw

    def read_turn(self, message: bytes) -> Message:
        """Read a turn that this dialect's :meth:`~proxy.wires.upstream_port.TurnReader.message` returned."""
        turns = b'{"model":"-","%b":[%b]}' % (self.dialect.fields.turns.encode(), message)
        messages = read_exactly(self.codec, turns).messages
        return messages[0] if messages else Message("assistant")

    @abstractmethod
    def masked_turn(self, message: bytes, mask: Mask) -> bytes:
        """Return such a turn with the private arguments of its calls masked (rule R3)."""

    @abstractmethod
    def write_turn(self, message: Message) -> bytes:
        """Write a turn as this dialect's :meth:`~proxy.wires.upstream_port.TurnReader.message` returns it."""
