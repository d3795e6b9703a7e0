"""Tools as an operator has allowed them: their contracts, and the provider that follows their pins.

They are tools of MCP servers (:mod:`.provider`) and operations of APIs
(:mod:`proxy.tools.openapi.provider`): whatever is described by a stranger.
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, Protocol

import structlog

from proxy.base.errors import ConfigError, ToolFailure, ToolRelayError
from proxy.json.in_thread import in_thread
from proxy.net.keep_running import keep_running
from proxy.records.rows import ToolEffect
from proxy.tools.contract.provider import ArgumentsInvalid, CallContext
from proxy.tools.contract.results.results import RichResult
from proxy.tools.contract.schemas.schema import check_schema, spec_digest
from proxy.tools.contract.spec import Redaction, ToolOrigin, ToolSpec
from proxy.tools.contract.validation import SchemaValidator
from proxy.tools.mcp.definitions import Definition, UnusableDefinition, check_input
from proxy.tools.mcp.pins import MOST_PINNED, Pin, PinSource

_LOOK_EVERY_S: Final = 5.0
"""Seconds between checks for a pin that another process made or removed."""

MOST_NAMED: Final = 10
"""The most tools that a line of the log names."""

_SHOWN_HINTS = ("destructiveHint", "openWorldHint", "readOnlyHint", "idempotentHint")


class Origin(Protocol):
    """What pinned tools are of, as the operator configured it: an MCP server or an API.

    ``identity`` changes if it may be another one. ``setting`` is its section of the configuration.
    """

    @property
    def name(self) -> str: ...

    @property
    def provider(self) -> str: ...

    @property
    def setting(self) -> str: ...

    @property
    def tools_setting(self) -> str:
        """The setting that names the tools which can be allowed."""

    @property
    def identity(self) -> str: ...

    @property
    def shown(self) -> str:
        """How it is reached, for a person, without what may be a secret."""

    @property
    def connection(self) -> str: ...

    @property
    def effects(self) -> Mapping[str, ToolEffect]: ...

    @property
    def redaction(self) -> Redaction: ...

    @property
    def timeout_s(self) -> float | None: ...

    @property
    def trusted_results(self) -> bool: ...

    def may_have(self, *names: str) -> bool:
        """Return whether a tool with one of these names can be allowed at all."""

    def effect_of(self, *names: str) -> ToolEffect:
        """Return the effect of a tool with these names."""


class PinnedProvider(ABC):
    """The :class:`~proxy.tools.contract.provider.ToolProvider` of pinned tools.

    It lists its tools at the start and whenever the pins have changed.
    """

    def __init__(self, name: str, origins: Mapping[str, Origin], pins: PinSource) -> None:
        """``name`` is the part of the ids before the first double underscore."""
        self.name = name
        self._origins = origins
        self._source = pins
        self._pins: Mapping[str, Pin] = {}
        self._known: Sequence[Pin] = ()
        self._specs: _Specs = {}
        self._drifted: frozenset[str] = frozenset()
        self._begun = False
        self._beyond = 0
        self._look = asyncio.Event()
        self._following: asyncio.Task[NoReturn] | None = None
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.tools")

    async def begin(self) -> bool:
        """Start to read pins; return whether there are any. Raises :class:`StoreError`."""
        self._begun = True
        return bool(await self._source.pins())

    def follow(self, refresh: Callable[[], Awaitable[object]]) -> None:
        """Call ``refresh`` whenever the tools have changed, such as by a pin that was added or removed."""
        following = keep_running(f"{self.name}-pins", lambda: self._follow(refresh))
        self._following = asyncio.create_task(following, name=f"{self.name}-pins")

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
            self._log.error(f"{self.name}_tools_not_refreshed", reason=str(error))

    async def _has_changed(self) -> bool:
        """Return whether the tools to list differ from those that were listed last."""
        self._known = await self._source.pins()
        pins = self._usable(self._known)
        drifted = frozenset(self._drift(pins))
        for tool in sorted(drifted - self._drifted):
            self._log.warning("tool_drifted", tool=tool)
        digests = {name: pin.digest for name, pin in pins.items()}
        listed = {name: pin.digest for name, pin in self._pins.items()}
        return drifted != self._drifted or digests != listed

    def _drift(self, pins: Mapping[str, Pin]) -> Sequence[str]:
        """Return the ids of pinned tools that are known to be different now."""
        return ()

    async def list_tools(self) -> Sequence[ToolSpec]:
        """Return the pinned tools of what is configured. Empty before :meth:`begin`."""
        if not self._begun:
            return ()
        self._known = await self._source.pins()
        self._pins = self._usable(self._known)
        self._drifted = frozenset(self._drift(self._pins))
        offered = [pin for pin in self._pins.values() if pin.id not in self._drifted]
        # Run in a thread: the schemas are untrusted, and to compile them may take a second.
        self._specs = await in_thread(self._specs_of, offered, self._specs)
        return [spec for _, spec in self._specs.values() if spec is not None]

    def _specs_of(self, pins: Sequence[Pin], before: "_Specs") -> "_Specs":
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
            return spec_of(pin, self._origins[pin.definition.server])
        except UnusableDefinition as fault:
            self._log.warning(f"{self.name}_pin_unusable", tool=pin.id, reason=str(fault))
        # A definition may break what nobody thought of; it must not take other tools along.
        except Exception:  # noqa: BLE001
            self._log.exception(f"{self.name}_pin_unusable", tool=pin.id)
        return None

    def _usable(self, pins: Sequence[Pin]) -> Mapping[str, Pin]:
        """Return the pins that can be offered, by id; if there are too many, the first ones by id."""
        usable = sorted((pin for pin in pins if self._is_usable(pin)), key=lambda pin: pin.id)
        if (beyond := max(0, len(usable) - MOST_PINNED)) != self._beyond:
            self._beyond = beyond
            if beyond > 0:
                named = [pin.id for pin in usable[MOST_PINNED:][:MOST_NAMED]]
                self._log.warning(
                    f"{self.name}_too_many_pins", most=MOST_PINNED, left_out=beyond, named=named
                )
        return {pin.id: pin for pin in usable[:MOST_PINNED]}

    def _is_usable(self, pin: Pin) -> bool:
        """Return whether a pin is of something that is configured as it was when the tool was allowed."""
        definition = pin.definition
        origin = self._origins.get(definition.server) if definition.provider == self.name else None
        return origin is not None and origin.identity == pin.transport and origin.may_have(*definition.names)

    def _pin_of(self, spec: ToolSpec, digest: str) -> Pin:
        """Return the pin of a tool that is called; raise :class:`ToolFailure` if it is not the one that was
        offered."""
        # A run keeps the tools that it was planned with; the pins may have changed since.
        pin = self._pins.get(spec.name)
        if pin is None:
            raise ToolFailure("an operator does not allow this tool any more", code="policy_denied")
        if pin.digest != digest:
            raise ToolFailure("its definition has changed since it was offered", code="policy_denied")
        return pin

    @abstractmethod
    async def call_tool(self, spec: ToolSpec, arguments: Any, context: CallContext) -> Any:
        """Run one tool, as :class:`~proxy.tools.contract.provider.ToolProvider` says."""

    async def aclose(self) -> None:
        """Stop following changes."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait({self._following})


_Specs = Mapping[str, tuple[str, ToolSpec | None]]
"""The contract of each pinned tool, with the digest of its pin, by id."""


def spec_of(pin: Pin, origin: Origin) -> ToolSpec:
    """Return the contract of a pinned tool; raise :class:`UnusableDefinition` if the pin cannot be used.

    The operator's configuration decides its effect, and whether its output is trusted. It may reach
    anything. So after an untrusted result, ``policy.after_untrusted`` applies to it; but see
    :func:`stays_there`.
    """
    definition = pin.definition
    effect = origin.effect_of(*definition.names)
    check_input(definition.input_schema)
    schema = definition.model_schema
    reads = effect is ToolEffect.READ_ONLY
    return ToolSpec(
        name=definition.id,
        description=definition.model_text,
        parameters=schema,
        effect=effect,
        provider=definition.provider,
        validate=SchemaValidator(schema),
        validate_output=_output_check(definition),
        digest=spec_digest(definition.id, pin.digest, schema, effect),
        connection=origin.connection,
        redaction=origin.redaction,
        timeout_s=origin.timeout_s,
        retries=1 if reads else 0,
        untrusted_output=not origin.trusted_results,
        egress=True,
        origin=ToolOrigin(definition.server, definition.name, pin.digest, stays_there(definition, origin)),
        safety={
            f"{definition.provider}.{hint}": definition.annotations[hint]
            for hint in _SHOWN_HINTS
            if hint in definition.annotations
        },
    )


def stays_there(definition: Definition, origin: Origin) -> bool:
    """Return whether a call of a tool changes nothing and reaches only the server's own data.

    The operator must declare the tool ``read_only``, and the definition that was allowed must have the hint
    ``openWorldHint = false``. Source: the specification's ``ToolAnnotations``, revisions 2025-03-26 to
    2026-07-28; without the hint, a tool counts as open.
    """
    is_closed = definition.annotations.get("openWorldHint") is False
    return is_closed and origin.effect_of(*definition.names) is ToolEffect.READ_ONLY


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
