"""The provider of the tools of all MCP servers: it offers them as pinned and calls them at their servers."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

import structlog
from msgspec.structs import replace

from proxy.base.errors import ConfigError, ToolFailure, ToolRelayError
from proxy.json.in_thread import in_thread
from proxy.net.keep_running import keep_running
from proxy.records.rows import ToolEffect
from proxy.tools.contract.provider import ArgumentsInvalid, CallContext
from proxy.tools.contract.results.results import RichResult
from proxy.tools.contract.schemas.schema import check_schema, spec_digest
from proxy.tools.contract.spec import ToolOrigin, ToolSpec
from proxy.tools.contract.validation import SchemaValidator
from proxy.tools.mcp.definitions import (
    PROVIDER,
    Definition,
    UnusableDefinition,
    check_input,
    pattern_of_server,
)
from proxy.tools.mcp.differences import difference
from proxy.tools.mcp.host_client import HostClient
from proxy.tools.mcp.overview import ServerOverview, ToolOverview, build_overview, with_pinned
from proxy.tools.mcp.pins import MOST_PINNED, Pin, PinSource
from proxy.tools.mcp.results import read_result
from proxy.tools.mcp.servers import Server

_LOOK_EVERY_S: Final = 5.0
"""Seconds between checks for a pin that another process made or removed."""

_MOST_NAMED: Final = 10

_MOST_CHANGED: Final = 20
"""The most changed tools of a server whose definitions are shown."""

_MOST_SHOWN: Final = 2 << 20
"""The most bytes of allowed definitions, as JSON, that an overview has."""

_MOST_LINES: Final = 200
_LOOK_S: Final = 2.0

_SHOWN_HINTS = ("destructiveHint", "openWorldHint", "readOnlyHint", "idempotentHint")


_Specs = Mapping[str, tuple[str, ToolSpec | None]]
"""The contract of each pinned tool, with the digest of its pin, by id."""


class McpProvider:
    """The :class:`~proxy.tools.contract.provider.ToolProvider` of the configured servers.

    It lists its tools at the start and whenever pins or servers have changed. A server that is not reachable
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
        """``host`` is ``None`` if tools are only listed; calls then fail.

        ``timeout_s`` is the default time limit of a call at the server in seconds.
        """
        self._servers = servers
        self._source = pins
        self._host = host
        self._timeout_s = timeout_s
        self._pins: Mapping[str, Pin] = {}
        self._known: Sequence[Pin] = ()
        self._specs: _Specs = {}
        self._new: dict[str, frozenset[str]] = {}
        self._drifted: frozenset[str] = frozenset()
        self._begun = False
        self._beyond = 0
        self._look = asyncio.Event()
        self._following: asyncio.Task[NoReturn] | None = None
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.tools")
        if host is not None:
            host.watch(self._look.set)

    async def begin(self) -> bool:
        """Start to read pins; return whether there are any. Raises :class:`StoreError`."""
        self._begun = True
        return bool(await self._source.pins())

    def follow(self, refresh: Callable[[], Awaitable[object]]) -> None:
        """Connect to the host process, and call ``refresh`` whenever the tools have changed: a pin was added
        or removed, or a server's definition has changed."""
        if self._host is not None:
            self._host.start()
            following = keep_running("mcp-pins", lambda: self._follow(refresh))
            self._following = asyncio.create_task(following, name="mcp-pins")

    async def _follow(self, refresh: Callable[[], Awaitable[object]]) -> None:
        """Wait for a change or a few seconds, and list the tools again if they have changed."""
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
        """Return whether the tools to list differ from those that were listed last."""
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
        """Log the tools of each server that no operator has allowed yet, each tool once."""
        for server in self._overview(self._known):
            new = frozenset(
                tool.id for tool in server.tools if tool.state == "new" and server.server.may_have(tool.name)
            )
            name = server.server.name
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
        """Return the status of each server and the pin states of its tools, with the pinned definitions; for
        changed tools also the current ones. Raises :class:`~proxy.base.errors.StoreError`."""
        pins = await self._source.pins()
        pinned = {pin.id: pin.definition for pin in pins}
        shown = await asyncio.to_thread(_within, pinned, _MOST_SHOWN)
        servers = [with_pinned(server, shown) for server in self._overview(pins)]
        return await asyncio.gather(*(self._with_changes(server, pinned) for server in servers))

    async def _with_changes(self, server: ServerOverview, pinned: Mapping[str, Definition]) -> ServerOverview:
        """Return the overview with the definitions of the first changed tools.

        The host process has the current definitions; if it does not send them in time, they are left out.
        """
        changed = [tool for tool in server.tools if tool.state == "changed"][:_MOST_CHANGED]
        if not changed or self._host is None:
            return server
        try:
            async with asyncio.timeout(_LOOK_S):
                listing = await self._host.listing(server.server.name, _LOOK_S, [t.name for t in changed])
        except (ToolFailure, TimeoutError):
            return server
        live = {definition.id: definition for definition in listing.definitions}
        # Run in a thread: untrusted definitions may be long and have many equal lines, so that it is slow.
        shown = await asyncio.to_thread(_compared, changed, pinned, live)
        return replace(server, tools=[shown.get(tool.id, tool) for tool in server.tools])

    @property
    def latest_overview(self) -> Sequence[ServerOverview]:
        """The overview without definitions, by the pins that were read last; it does not wait."""
        return self._overview(self._known)

    def _overview(self, pins: Sequence[Pin]) -> Sequence[ServerOverview]:
        host = self._host
        if host is None:
            return build_overview(self._servers, pins, {}, {})
        return build_overview(self._servers, pins, host.statuses, host.reconnects)

    async def list_tools(self) -> Sequence[ToolSpec]:
        """Return the pinned tools of the configured servers whose definitions have not changed. Empty before
        :meth:`begin`."""
        if not self._begun:
            return ()
        self._known = await self._source.pins()
        self._pins = self._usable(self._known)
        self._drifted = frozenset(self._drift(self._pins))
        offered = [pin for pin in self._pins.values() if pin.id not in self._drifted]
        # Run in a thread: the schemas are untrusted, and to compile them may take a second.
        self._specs = await in_thread(self._specs_of, offered, self._specs)
        return [spec for _, spec in self._specs.values() if spec is not None]

    def _specs_of(self, pins: Sequence[Pin], before: _Specs) -> _Specs:
        """Return the contract of each pin with the pin's digest, by id; those that are in ``before`` are
        taken from there. It is ``None``, and the log says why, if the pin cannot be used."""
        specs: dict[str, tuple[str, ToolSpec | None]] = {}
        for pin in pins:
            digest = pin.digest
            known = before.get(pin.id)
            specs[pin.id] = known if known and known[0] == digest else (digest, self._spec(pin))
        return specs

    def _spec(self, pin: Pin) -> ToolSpec | None:
        try:
            return spec_of(pin, self._servers[pin.definition.server])
        except UnusableDefinition as fault:
            self._log.warning("mcp_pin_unusable", tool=pin.id, reason=str(fault))
        # A definition may break what nobody thought of; it must not take other tools along.
        except Exception:  # noqa: BLE001
            self._log.exception("mcp_pin_unusable", tool=pin.id)
        return None

    def _usable(self, pins: Sequence[Pin]) -> Mapping[str, Pin]:
        """Return the pins that can be offered, by id; if there are too many, the first ones by id."""
        usable = sorted((pin for pin in pins if self._is_usable(pin)), key=lambda pin: pin.id)
        if (beyond := max(0, len(usable) - MOST_PINNED)) != self._beyond:
            self._beyond = beyond
            if beyond > 0:
                named = [pin.id for pin in usable[MOST_PINNED:][:_MOST_NAMED]]
                self._log.warning("mcp_too_many_pins", most=MOST_PINNED, left_out=beyond, named=named)
        return {pin.id: pin for pin in usable[:MOST_PINNED]}

    def _is_usable(self, pin: Pin) -> bool:
        """Return whether the server of a pin is configured as it was when the tool was allowed."""
        server = self._servers.get(pin.definition.server)
        return (
            server is not None and server.identity == pin.transport and server.may_have(pin.definition.name)
        )

    async def call_tool(self, spec: ToolSpec, arguments: Any, context: CallContext) -> Any:
        origin = spec.origin
        if origin is None or self._host is None:
            raise RuntimeError("nothing was started that talks to MCP servers")
        # A run keeps the tools that it was planned with; the pins may have changed since.
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
        """Stop following changes and disconnect from the host process."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait({self._following})
        if self._host is not None:
            await self._host.aclose()

    def _drift(self, pins: Mapping[str, Pin]) -> Sequence[str]:
        """Return the ids of pinned tools whose current definitions differ from their pins."""
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
    """Return the contract of a pinned tool; raise :class:`UnusableDefinition` if the pin cannot be used.

    The operator's configuration decides its effect, and whether its output is trusted. It may reach
    anything. So after an untrusted result, ``policy.after_untrusted`` applies to it; but see
    :func:`stays_there`.
    """
    definition = pin.definition
    effect = server.effect_of(definition.name)
    check_input(definition.input_schema)
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
        untrusted_output=not server.trusted_results,
        egress=True,
        origin=ToolOrigin(definition.server, definition.name, pin.digest, stays_there(definition, server)),
        safety={
            f"mcp.{hint}": definition.annotations[hint]
            for hint in _SHOWN_HINTS
            if hint in definition.annotations
        },
    )


def stays_there(definition: Definition, server: Server) -> bool:
    """Return whether a call of a tool changes nothing and reaches only the server's own data.

    The operator must declare the tool ``read_only``, and the definition that was allowed must have the hint
    ``openWorldHint = false``. Source: the specification's ``ToolAnnotations``, revisions 2025-03-26 to
    2026-07-28; without the hint, a tool counts as open.
    """
    is_closed = definition.annotations.get("openWorldHint") is False
    return is_closed and server.effect_of(definition.name) is ToolEffect.READ_ONLY


def _within(definitions: Mapping[str, Definition], most: int) -> Mapping[str, Definition]:
    """Return the first definitions by id that together have at most ``most`` bytes as JSON."""
    chosen: dict[str, Definition] = {}
    for name in sorted(definitions):
        most -= len(json.dumps(definitions[name].written()))
        if most < 0:
            break
        chosen[name] = definitions[name]
    return chosen


def _compared(
    tools: Sequence[ToolOverview], pinned: Mapping[str, Definition], live: Mapping[str, Definition]
) -> Mapping[str, ToolOverview]:
    """Return tools with their pinned and current definitions and the difference, by id."""
    return {
        tool.id: replace(tool, pinned=before, current=now, difference=difference(before, now, _MOST_LINES))
        for tool in tools
        if (before := pinned.get(tool.id)) is not None and (now := live.get(tool.id)) is not None
    }


def _output_check(definition: Definition) -> Callable[[RichResult], RichResult] | None:
    """Return a check of results' structured content against the pinned output schema.

    Returns ``None`` if there is no usable schema; the content is untrusted in any case. The error message
    contains nothing of the content.
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
