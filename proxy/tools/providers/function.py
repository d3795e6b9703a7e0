"""Bind tools that are Python functions or classes, and run them.

A tool is declared in its source (``declaration.py``) and bound when it is loaded. Only then are its schema
derived, its capabilities provided and its faults reported.
"""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar, cast

from msgspec import Struct
from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from proxy.base.errors import ConfigError, Guard, ToolFailure
from proxy.tools.contract.capabilities import (
    AdjustableClient,
    CacheControl,
    Capabilities,
    HttpClient,
    IdempotencyKey,
    Unconnected,
)
from proxy.tools.contract.declaration import ToolDeclaration, declared, tool
from proxy.tools.contract.identifiers import tool_id
from proxy.tools.contract.provider import CallContext
from proxy.tools.contract.schemas.schema import (
    check_output_paths,
    check_private_paths,
    property_names,
    secret_paths,
    spec_digest,
)
from proxy.tools.contract.signature import Signature, description_of, make_contract, own_name, read_signature
from proxy.tools.contract.spec import ToolEffect, ToolSpec
from proxy.tools.contract.validation import words_of_refusal
from proxy.tools.running.tasks.threads import ThreadBound

__all__ = ["FunctionProvider", "ToolDeclaration", "declared", "tool"]

_MAX_RETRIES = 5

_PER_CALL: Mapping[type, Callable[[CallContext], Any]] = MappingProxyType(
    {
        CallContext: lambda context: context,
        CacheControl: lambda context: context.signals.cache,
        IdempotencyKey: lambda context: context.idempotency_key,
    }
)
"""The parameter types whose value is created for each call."""


class _Bound(Struct, frozen=True):
    """One tool, ready to run: its contract, its function, and the source of each parameter.

    ``function`` of a class makes an instance of it and calls its method ``run``.
    """

    spec: ToolSpec
    function: Callable[..., Any]
    is_async: bool
    unpack: Callable[[Any], dict[str, Any]]
    constants: Mapping[str, Any]
    per_call: Mapping[str, Callable[[CallContext], Any]]


class FunctionProvider:
    """Tools that are Python functions or classes. Each is loaded inside ``guard()``.

    Raises ConfigError for the first one that cannot load, unless ``guard`` catches the error.
    """

    def __init__(
        self,
        name: str,
        functions: Sequence[Any],
        capabilities: Capabilities | None = None,
        *,
        max_threads: int = 8,
        guard: Guard = nullcontext,
    ) -> None:
        self._name = name
        self._threads = ThreadBound(max_threads)
        self._tools: dict[str, _Bound] = {}
        for function in functions:
            with guard():
                bound = _load(name, function, capabilities or Capabilities())
                if bound.spec.name in self._tools:
                    raise ConfigError(f"tool {bound.spec.name}", "is defined twice in one module")
                self._tools[bound.spec.name] = bound

    @property
    def name(self) -> str:
        return self._name

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """The contracts of all tools."""
        return [bound.spec for bound in self._tools.values()]

    async def list_tools(self) -> Sequence[ToolSpec]:
        return self.specs

    async def call_tool(self, spec: ToolSpec, arguments: Any, context: CallContext) -> Any:
        """Run one tool; a ``def`` runs in a thread, which a cancellation does not stop."""
        bound = self._tools[spec.name]
        values = {**bound.unpack(arguments), **bound.constants}
        if context.fetches is not None:
            for name, value in bound.constants.items():
                if isinstance(value, AdjustableClient):
                    values[name] = value.within(context.fetches)
        values.update((name, make(context)) for name, make in bound.per_call.items())
        if not bound.is_async:
            return await self._threads.run(lambda: bound.function(**values))
        # No new task is needed: the runner has already created one for the call.
        result: Awaitable[Any] = bound.function(**values)
        return await result

    async def aclose(self) -> None:
        """Do nothing: the owner of the capabilities closes them."""
        await asyncio.sleep(0)


def _load(provider: str, target: Any, capabilities: Capabilities) -> _Bound:
    """Call :func:`_bind`; convert what the author's types or defaults raise to ConfigError."""
    try:
        return _bind(provider, target, capabilities)
    except ConfigError:
        raise
    # The boundary to the author's code: pydantic and the reading of annotations run it.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        text = " ".join(str(error).split())[:300]
        where = f"tool {provider}__{getattr(target, '__name__', '')}"
        raise ConfigError(where, f"it cannot be loaded ({type(error).__name__}: {text})") from None


def _bind(provider: str, target: Any, capabilities: Capabilities) -> _Bound:
    """Turn a declaration into a tool; raise ConfigError with the reason if that is not possible."""
    declaration = declared(target)
    if declaration is None:
        raise ConfigError(
            f"tools of {provider}", f"{getattr(target, '__name__', target)!r} is not a tool", "@tool"
        )
    identifier = tool_id(provider, declaration.name or own_name(target))
    where = f"tool {identifier}"
    if declaration.redaction is None:
        raise ConfigError(
            where,
            "redaction_missing: it does not say which fields of its output may be logged",
            "Add redaction=Redaction(output=(...)) to @tool; Redaction() shows none",
        )
    signature = read_signature(
        target, where, verbatim=declaration.parameters is not None, extra=capabilities.extra.keys()
    )
    inputs = _inputs(signature, declaration, capabilities, where)
    contract = make_contract(
        identifier,
        signature.arguments,
        parameters=declaration.parameters,
        strict=declaration.strict,
        private=declaration.redaction.private_arguments,
        where=where,
    )
    schema = contract.schema
    function, is_async = _function_of(target, signature, schema, where)
    check_private_paths(schema, declaration.redaction.private_arguments, where)
    # An argument with a secret type is private without a second declaration.
    private = dict.fromkeys((*declaration.redaction.private_arguments, *secret_paths(schema)))
    description = description_of(target, declaration.description, where)
    spec = ToolSpec(
        name=identifier,
        description=description,
        parameters=schema,
        effect=declaration.effect,
        provider=provider,
        validate=contract.validate,
        digest=spec_digest(identifier, description, schema, declaration.effect),
        redaction=replace(declaration.redaction, private_arguments=tuple(private)),
        strict=declaration.strict,
        timeout_s=_positive(declaration.timeout_s, "timeout_s", where),
        max_result_bytes=_positive(declaration.max_result_bytes, "max_result_bytes", where),
        repeatable=declaration.repeatable,
        untrusted_output=declaration.untrusted_output,
        egress="*" in declaration.hosts if declaration.egress is None else declaration.egress,
        safety=declaration.safety,
        capabilities=inputs.capability_names,
        connection=declaration.connection,
        describe=declaration.describe,
        validate_output=_output_validator(declaration, where),
        defaults=contract.defaults,
        loose_parameters=contract.loose,
        url_arguments=signature.urls,
        cache_ttl_s=_within(declaration.cache_ttl_s, 0, 30 * 86400, "cache_ttl_s", where),
        retries=_within(declaration.retries, 0, _MAX_RETRIES, "retries", where),
    )
    return _Bound(spec, function, is_async, contract.unpack, inputs.constants, inputs.per_call)


class _Inputs(Struct, frozen=True):
    """The parameters that the proxy fills, grouped by the source of their values."""

    constants: Mapping[str, Any]
    per_call: Mapping[str, Callable[[CallContext], Any]]
    capability_names: tuple[str, ...]


def _inputs(
    signature: Signature, declaration: ToolDeclaration, capabilities: Capabilities, where: str
) -> _Inputs:
    """Return the source of each parameter with a capability type."""
    if declaration.connection and HttpClient not in signature.capabilities.values():
        raise ConfigError(where, "names a connection but takes no HttpClient to use it with")
    constants: dict[str, Any] = {}
    per_call: dict[str, Callable[[CallContext], Any]] = {}
    for name, kind in signature.capabilities.items():
        if kind in _PER_CALL:
            per_call[name] = _PER_CALL[kind]
        else:
            constants[name] = _capability(kind, declaration, capabilities, where)
    kinds = (kind for kind in signature.capabilities.values() if kind is not CallContext)
    return _Inputs(constants, per_call, tuple(kind.__name__ for kind in kinds))


def _function_of(
    target: Any, signature: Signature, schema: Mapping[str, Any], where: str
) -> tuple[Callable[..., Any], bool]:
    """Return what runs a call, and whether that is a coroutine function.

    It is the declared function itself. For a class it makes an instance with the arguments of the call, and
    calls its method ``run``.
    """
    if not inspect.isclass(target):
        return cast(Callable[..., Any], target), inspect.iscoroutinefunction(target)
    run = getattr(target, "run", None)
    if not inspect.isfunction(run):
        raise ConfigError(where, "the class has no run method", "add: async def run(self)")
    if len(inspect.signature(run).parameters) != 1:
        raise ConfigError(
            where, "run has parameters besides self", "move them to __init__, which gets the arguments"
        )

    names = property_names(schema)

    def instance(values: Mapping[str, Any]) -> Any:
        try:
            return target(**values)
        except ValueError as error:
            arguments = {name: values[name] for name in signature.arguments}
            raise ToolFailure(words_of_refusal(error, arguments, names), code="invalid_arguments") from None

    async def run_async(**values: Any) -> Any:
        return await instance(values).run()

    def run_in_thread(**values: Any) -> Any:
        return instance(values).run()

    is_async = inspect.iscoroutinefunction(run)
    return (run_async if is_async else run_in_thread), is_async


def _capability(kind: type, declaration: ToolDeclaration, capabilities: Capabilities, where: str) -> Any:
    """Return the value for a parameter of one capability type."""
    if kind in capabilities.extra:
        return capabilities.extra[kind]
    if kind is HttpClient:
        _check_hosts(declaration.hosts, where)
        if declaration.connection:
            # A tool that policy does not allow needs no connection, so it loads without one.
            if capabilities.connected is None:
                return Unconnected(declaration.connection)
            return _fitting(capabilities.connected(declaration.connection, declaration.hosts), declaration)
        if capabilities.http is not None:
            return _fitting(capabilities.http(declaration.hosts), declaration)
    elif capabilities.clock is not None:
        return capabilities.clock
    raise ConfigError(where, f"needs a {kind.__name__}, and there is none here")


def _check_hosts(hosts: Sequence[str], where: str) -> None:
    """Raise ConfigError for entries that fit no host, with which the tool would load but reach nothing."""
    if not hosts:
        raise ConfigError(
            where, "takes an HttpClient but names no hosts", 'add hosts=("api.example.com",) to @tool'
        )
    for host in hosts:
        if re.search(r"[/@\s]", host):
            raise ConfigError(
                where,
                f'hosts: "{host[:100]}" is not a host',
                "write api.example.com, *.example.com or api.example.com:8443, without scheme and path",
            )


def _fitting(client: HttpClient, declaration: ToolDeclaration) -> HttpClient:
    """Return the client for the tool's time limit and effect: requests of a read-only tool may be retried."""
    if declaration.timeout_s is not None and isinstance(client, AdjustableClient):
        client = client.with_time(declaration.timeout_s)
    reads = declaration.effect is ToolEffect.READ_ONLY
    return client.for_reading() if reads and isinstance(client, AdjustableClient) else client


def _output_validator(declaration: ToolDeclaration, where: str) -> Callable[[Any], Any] | None:
    """Return the validator of results against the declared output model; ``None`` if there is none."""
    if declaration.output is None:
        return None
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(declaration.output)
        shape = adapter.json_schema(by_alias=True, mode="serialization")
    except (PydanticUserError, NameError, TypeError) as error:
        raise ConfigError(
            where, f"its output cannot be written as a JSON Schema ({str(error).splitlines()[0]})"
        ) from None
    if declaration.redaction is not None:
        check_output_paths(shape, declaration.redaction.output, where)
    return adapter.validate_python


_Number = TypeVar("_Number", int, float)


def _within(value: _Number, least: int, most: int, name: str, where: str) -> _Number:
    """Return ``value``; raise ConfigError if it is out of its bounds or NaN."""
    if not least <= value <= most:
        raise ConfigError(where, f"{name} must be from {least} to {most}")
    return value


def _positive(value: _Number | None, name: str, where: str) -> _Number | None:
    """Return ``value``; raise ConfigError if it is a limit that would refuse everything."""
    if value is not None and not value > 0:
        raise ConfigError(where, f"{name} must be greater than 0")
    return value
