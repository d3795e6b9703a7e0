"""The tools of all MCP servers as those of one provider: offered as pinned, called where they are."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import structlog

from proxy.errors import ConfigError, ToolFailure, ToolRelayError
from proxy.records import ToolEffect
from proxy.tools.contract.provider import ArgumentsInvalid, CallContext
from proxy.tools.contract.results import RichResult
from proxy.tools.contract.schema import check_schema, spec_digest
from proxy.tools.contract.spec import ToolOrigin, ToolSpec
from proxy.tools.contract.validation import SchemaValidator
from proxy.tools.mcp.definitions import Definition, UnusableDefinition, check_input
from proxy.tools.mcp.differences import difference
from proxy.tools.mcp.host_client import HostClient
from proxy.tools.mcp.names import PROVIDER, pattern_of_server
from proxy.tools.mcp.overview import ServerOverview, ToolOverview, oversee
from proxy.tools.mcp.pins import MOST_PINNED, Pin, PinSource
from proxy.tools.mcp.results import read_result
from proxy.tools.mcp.servers import Server

__all__ = ["McpProvider", "spec_of"]

_LOOK_EVERY_S: Final = 5.0
"""Until a pin that another process made or removed is noticed."""

_MOST_NAMED: Final = 10

_MOST_CHANGED: Final = 20
"""Changed tools of a server whose definitions are shown."""

_MOST_LINES: Final = 200
_LOOK_S: Final = 2.0

_SHOWN_HINTS = ("destructiveHint", "openWorldHint", "readOnlyHint", "idempotentHint")


class McpProvider:
    """:class:`~proxy.tools.contract.provider.ToolProvider` of the configured servers.

    It is asked for its tools at the start and whenever pins or servers have changed; a server that is away
    changes nothing.
    """

    name: Final = PROVIDER

    def __init__(
        self,
        servers: Mapping[str, Server],
        pins: PinSource,
        host: HostClient | None,
        *,
        timeout_s: float = 30.0,
    ) -> None:
        """``host`` is ``None`` where nothing is called: its tools are listed then and fail.

        ``timeout_s`` are the seconds that a call may take at the server where nobody says otherwise.
        """
        self._servers = servers
        self._source = pins
        self._host = host
        self._timeout_s = timeout_s
        self._pins: Mapping[str, Pin] = {}
        self._known: Sequence[Pin] = ()
        self._new: dict[str, frozenset[str]] = {}
        self._drifted: frozenset[str] = frozenset()
        self._begun = False
        self._beyond = 0
        self._look = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.tools")
        if host is not None:
            host.watch(self._look.set)

    async def begin(self) -> bool:
        """Say that pins can be read now; whether there are any.  Raises :class:`~proxy.errors.StoreError`."""
        self._begun = True
        return bool(await self._source.pins())

    def follow(self, refresh: Callable[[], Awaitable[object]]) -> None:
        """Connect, and have ``refresh`` called whenever the tools have become others: somebody allowed one or
        took it back, or a server describes one in another way."""
        if self._host is not None:
            self._host.start()
            self._following = asyncio.create_task(self._follow(refresh))

    async def _follow(self, refresh: Callable[[], Awaitable[object]]) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await self._look.wait()
            self._look.clear()
            try:
                if await self._has_changed():
                    await refresh()
            except ToolRelayError as error:
                self._log.error("mcp_tools_not_refreshed", reason=str(error))

    async def _has_changed(self) -> bool:
        """Whether the tools to be listed are others than those that were listed last."""
        self._known = await self._source.pins()
        pins = self._usable(self._known)
        drifted = frozenset(self._drift(pins))
        for tool in sorted(drifted - self._drifted):
            self._log.warning("tool_drifted", tool=tool)
        self._tell_new()
        digests = {name: pin.digest for name, pin in pins.items()}
        listed = {name: pin.digest for name, pin in self._pins.items()}
        return drifted != self._drifted or digests != listed

    def _tell_new(self) -> None:
        """Log, once for each server, that it has tools which nobody has allowed yet."""
        for one in self._overview(self._known):
            new = frozenset(
                tool.id for tool in one.tools if tool.state == "new" and one.server.may_have(tool.name)
            )
            name = one.server.name
            if more := new - self._new.get(name, frozenset()):
                named = sorted(more)[:_MOST_NAMED]
                self._log.info(
                    "tool_new",
                    server=name,
                    tools=len(more),
                    named=named,
                    hint=f"to allow them: toolrelay tools allow '{pattern_of_server(name)}'",
                )
            self._new[name] = new

    async def overview(self) -> Sequence[ServerOverview]:
        """How each server is, and what of its tools is allowed; of tools that have changed, what was allowed
        and what their servers say now.  Raises :class:`~proxy.errors.StoreError`."""
        pins = await self._source.pins()
        pinned = {pin.id: pin.definition for pin in pins}
        return await asyncio.gather(*(self._with_changes(one, pinned) for one in self._overview(pins)))

    async def _with_changes(self, one: ServerOverview, pinned: Mapping[str, Definition]) -> ServerOverview:
        """The same with the definitions of the first tools that have changed.

        The process that talks to servers has the present ones; where it does not say them in time, there
        are none.
        """
        changed = [tool for tool in one.tools if tool.state == "changed"][:_MOST_CHANGED]
        if not changed or self._host is None:
            return one
        try:
            async with asyncio.timeout(_LOOK_S):
                listing = await self._host.listing(one.server.name, _LOOK_S, [tool.name for tool in changed])
        except (ToolFailure, TimeoutError):
            return one
        live = {definition.id: definition for definition in listing.definitions}
        # A stranger's definitions may be long, and alike in many lines.
        shown = await asyncio.to_thread(_compared, changed, pinned, live)
        return replace(one, tools=[shown.get(tool.id, tool) for tool in one.tools])

    @property
    def counted(self) -> Sequence[ServerOverview]:
        """The same by the pins that were read last, at once."""
        return self._overview(self._known)

    def _overview(self, pins: Sequence[Pin]) -> Sequence[ServerOverview]:
        host = self._host
        if host is None:
            return oversee(self._servers, pins, {}, {})
        return oversee(self._servers, pins, host.statuses, host.reconnects)

    async def list_tools(self) -> Sequence[ToolSpec]:
        """The pinned tools of the configured servers, if their definitions have not changed.  Empty before
        :meth:`begin`."""
        if not self._begun:
            return ()
        self._known = await self._source.pins()
        self._pins = self._usable(self._known)
        self._drifted = frozenset(self._drift(self._pins))
        offered = [pin for pin in self._pins.values() if pin.id not in self._drifted]
        specs = (self._spec(pin) for pin in offered)
        return [spec for spec in specs if spec is not None]

    def _spec(self, pin: Pin) -> ToolSpec | None:
        """The contract of a pinned tool; one that cannot be used takes no other with it."""
        try:
            check_input(pin.definition.input_schema)
        except UnusableDefinition as fault:
            self._log.warning("mcp_pin_unusable", tool=pin.id, reason=str(fault))
            return None
        return spec_of(pin, self._servers[pin.definition.server])

    def _usable(self, pins: Sequence[Pin]) -> Mapping[str, Pin]:
        """The pins that can be offered, by id: of more than there may be, the first ones by their ids."""
        usable = sorted((pin for pin in pins if self._is_usable(pin)), key=lambda pin: pin.id)
        if (beyond := max(0, len(usable) - MOST_PINNED)) != self._beyond:
            self._beyond = beyond
            if beyond > 0:
                named = [pin.id for pin in usable[MOST_PINNED:][:_MOST_NAMED]]
                self._log.warning("mcp_too_many_pins", most=MOST_PINNED, left_out=beyond, named=named)
        return {pin.id: pin for pin in usable[:MOST_PINNED]}

    def _is_usable(self, pin: Pin) -> bool:
        """Whether the server of a pin is configured as it was when the tool was allowed."""
        server = self._servers.get(pin.definition.server)
        return (
            server is not None and server.identity == pin.transport and server.may_have(pin.definition.name)
        )

    async def call_tool(self, spec: ToolSpec, arguments: Any, context: CallContext) -> Any:
        """See :meth:`proxy.tools.contract.provider.ToolProvider.call_tool`."""
        origin = spec.origin
        if origin is None or self._host is None:
            raise RuntimeError("nothing was started that talks to MCP servers")
        # A run goes on with the tools that it was planned with; what is allowed may have changed since.
        pin = self._pins.get(spec.name)
        if pin is None:
            raise ToolFailure("an operator does not allow this tool any more", code="policy_denied")
        if pin.digest != origin.digest:
            raise ToolFailure("its definition has changed since it was offered", code="policy_denied")
        within_s = self._servers[origin.server].timeout_s or self._timeout_s
        result = await self._host.call(
            origin.server, origin.name, origin.digest, arguments, within_s, context.on_progress
        )
        return read_result(result)

    async def aclose(self) -> None:
        """Let go of the host process."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait({self._following})
        if self._host is not None:
            await self._host.aclose()

    def _drift(self, pins: Mapping[str, Pin]) -> Sequence[str]:
        """The pinned tools that their servers describe otherwise now."""
        statuses = self._host.statuses if self._host is not None else {}
        drifted = []
        for pin in pins.values():
            status = statuses.get(pin.definition.server)
            if status is None or status.digests is None:
                continue
            live = status.digests.get(pin.definition.name)
            if live != pin.digest:
                drifted.append(pin.id)
        return drifted


def spec_of(pin: Pin, server: Server) -> ToolSpec:
    """The contract of a pinned tool.

    Its effect is the operator's word, its text is a stranger's, and it may reach anything: so a result that a
    run has read withholds it where ``policy.after_untrusted`` says so.
    """
    definition = pin.definition
    effect = server.effect_of(definition.name)
    schema = definition.model_schema
    reads = effect is ToolEffect.READ_ONLY
    return ToolSpec(
        name=definition.id,
        description=definition.model_text,
        parameters=schema,
        effect=effect,
        provider=PROVIDER,
        validate=SchemaValidator(schema),
        validate_output=_output_check(definition),
        digest=spec_digest(definition.id, pin.digest, schema, effect),
        connection=server.connection,
        redaction=server.redaction,
        timeout_s=server.timeout_s,
        retries=1 if reads else 0,
        untrusted_output=True,
        egress=True,
        origin=ToolOrigin(definition.server, definition.name, pin.digest),
        safety={f"mcp.{hint}": definition.annotations[hint] for hint in _hints(definition.annotations)},
    )


def _hints(annotations: Mapping[str, bool]) -> Sequence[str]:
    return [hint for hint in _SHOWN_HINTS if hint in annotations]


def _compared(
    tools: Sequence[ToolOverview], pinned: Mapping[str, Definition], live: Mapping[str, Definition]
) -> Mapping[str, ToolOverview]:
    """Tools with what was allowed, what there is now, and the difference, by their ids."""
    return {
        tool.id: replace(tool, pinned=before, current=now, difference=difference(before, now, _MOST_LINES))
        for tool in tools
        if (before := pinned.get(tool.id)) is not None and (now := live.get(tool.id)) is not None
    }


def _output_check(definition: Definition) -> Callable[[RichResult], RichResult] | None:
    """What holds the structured content of results to the schema that was pinned for it.

    ``None`` where there is no such schema, or none that can be used: the content is untrusted in any case.
    The fault is told in words that hold nothing of the content.
    """
    schema = definition.output_schema
    if schema is None:
        return None
    try:
        check_schema(schema, "")
        validate = SchemaValidator(schema)
    except (ConfigError, ValueError, RecursionError):
        return None

    def check(result: RichResult) -> RichResult:
        try:
            if result.data is not None:
                validate(result.data)
        except ArgumentsInvalid:
            raise ToolFailure(
                "the tool ran, but its structured content does not fit the outputSchema that it declares"
            ) from None
        return result

    return check
