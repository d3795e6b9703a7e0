"""Bind tools that are Python functions, and run them.

A tool is declared in its source (``declaration.py``) and bound when it is loaded.  Only then are its schema
derived, its capabilities provided and its faults reported.
"""

import asyncio
import copy
import inspect
import json
import re
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, TypeAdapter, create_model
from pydantic.errors import PydanticUserError

from proxy.errors import ConfigError, Guard
from proxy.tools.contract.capabilities import (
    BoundedClient,
    CacheControl,
    Capabilities,
    Clock,
    HttpClient,
    IdempotencyKey,
    RepeatingClient,
    TimedClient,
    Unconnected,
)
from proxy.tools.contract.declaration import ToolDeclaration, declared, tool
from proxy.tools.contract.identifiers import tool_id
from proxy.tools.contract.provider import CallContext
from proxy.tools.contract.schema import (
    check_output_paths,
    check_private_paths,
    check_schema,
    derive_schema,
    secret_paths,
    spec_digest,
)
from proxy.tools.contract.spec import ToolEffect, ToolSpec
from proxy.tools.contract.strict import to_strict
from proxy.tools.contract.url_argument import takes_url
from proxy.tools.contract.validation import ModelValidator, SchemaValidator
from proxy.tools.running.threads import ThreadBound

__all__ = ["FunctionProvider", "ToolDeclaration", "declared", "tool"]

_FIELD_PREFIX = "arg_"
_MAX_DESCRIPTION = 1024  # OpenAI refuses a longer description with 400.
_MAX_RETRIES = 5

_PER_CALL: Mapping[type, Callable[[CallContext], Any]] = MappingProxyType(
    {
        CallContext: lambda context: context,
        CacheControl: lambda context: context.signals.cache,
        IdempotencyKey: lambda context: context.idempotency_key,
    }
)
"""The parameter types whose value is created for each call."""


@dataclass(frozen=True, slots=True)
class _Bound:
    """One tool, ready to run: its contract, its function, and the source of each parameter."""

    spec: ToolSpec
    function: Callable[..., Any]
    is_async: bool
    unpack: Callable[[Any], dict[str, Any]]
    constants: Mapping[str, Any]
    per_call: Mapping[str, Callable[[CallContext], Any]]


class FunctionProvider:
    """Tools that are Python functions.  Each is loaded inside ``guard()``.  Raises ConfigError for the first
    one that cannot load, unless ``guard`` catches the error."""

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
        """The part of the tools' ids before the double underscore."""
        return self._name

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """The contracts of all tools."""
        return [bound.spec for bound in self._tools.values()]

    async def list_tools(self) -> Sequence[ToolSpec]:
        """Return the contracts of all tools."""
        return self.specs

    async def call_tool(self, spec: ToolSpec, arguments: Any, context: CallContext) -> Any:
        """Run one tool; a ``def`` runs in a thread, which a cancellation does not stop."""
        bound = self._tools[spec.name]
        values = {**bound.unpack(arguments), **bound.constants}
        if context.fetches is not None:
            for name, value in bound.constants.items():
                if isinstance(value, BoundedClient):
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
    """Call :func:`_bind`; convert what the author's types, defaults or constructor raise to ConfigError."""
    try:
        return _bind(provider, target, capabilities)
    except ConfigError:
        raise
    # The boundary to the author's code: pydantic and the reading of annotations run it.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        said = " ".join(str(error).split())[:300]
        where = f"tool {provider}__{getattr(target, '__name__', '')}"
        raise ConfigError(where, f"it cannot be loaded ({type(error).__name__}: {said})") from None


def _bind(provider: str, target: Any, capabilities: Capabilities) -> _Bound:
    """Turn a declaration into a tool; raise ConfigError with the reason if that is not possible."""
    declaration = declared(target)
    if declaration is None:
        raise ConfigError(
            f"tools of {provider}", f"{getattr(target, '__name__', target)!r} is not a tool", "@tool"
        )
    identifier = tool_id(provider, declaration.name or _own_name(target))
    where = f"tool {identifier}"
    if declaration.redaction is None:
        raise ConfigError(
            where,
            "redaction_missing: it does not say which fields of its output may be logged",
            "Add redaction=Redaction(output=(...)) to @tool; Redaction() shows none",
        )
    function = _function_of(target, where)
    inputs = _inputs(function, declaration, capabilities, where)
    schema, validate, unpack, defaults = _contract(identifier, inputs.arguments, declaration, where)
    check_schema(schema, where)
    # An argument with a secret type is private without a second declaration.
    private = dict.fromkeys((*declaration.redaction.private_arguments, *secret_paths(schema)))
    loose = schema
    if declaration.strict:
        strict = to_strict(schema, where)
        if declaration.parameters is not None and strict != schema:
            raise ConfigError(where, "strict=True would change the schema of parameters=", "Use only one")
        schema = strict
        check_schema(schema, where)
    check_private_paths(schema, declaration.redaction.private_arguments, where)
    validate_output = _output_validator(declaration, where)
    description = _description(target, declaration, where)
    spec = ToolSpec(
        name=identifier,
        description=description,
        parameters=schema,
        effect=declaration.effect,
        provider=provider,
        validate=validate,
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
        validate_output=validate_output,
        defaults=defaults,
        loose_parameters=loose if declaration.strict else None,
        url_arguments=_url_arguments(inputs.arguments),
        cache_ttl_s=_within(declaration.cache_ttl_s, 0, 30 * 86400, "cache_ttl_s", where),
        retries=_within(declaration.retries, 0, _MAX_RETRIES, "retries", where),
    )
    if spec.connection and HttpClient.__name__ not in spec.capabilities:
        raise ConfigError(where, "names a connection but takes no HttpClient to use it with")
    asynchronous = inspect.iscoroutinefunction(function)
    return _Bound(spec, function, asynchronous, unpack, inputs.constants, inputs.per_call)


@dataclass(frozen=True, slots=True)
class _Inputs:
    """A function's parameters, grouped by the source of their values."""

    arguments: Mapping[str, tuple[Any, Any]]
    constants: Mapping[str, Any]
    per_call: Mapping[str, Callable[[CallContext], Any]]
    capability_names: tuple[str, ...]


def _inputs(
    function: Callable[..., Any], declaration: ToolDeclaration, capabilities: Capabilities, where: str
) -> _Inputs:
    """Read the signature: parameters with a capability type get that capability, the model fills the rest."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigError(where, f"a type in its signature cannot be read ({error})") from None
    arguments: dict[str, tuple[Any, Any]] = {}
    constants: dict[str, Any] = {}
    per_call: dict[str, Callable[[CallContext], Any]] = {}
    names: list[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(
                where, f'parameter "{name}": *args, **kwargs and positional-only parameters are not supported'
            )
        if name not in hints:
            raise ConfigError(where, f'parameter "{name}" has no type')
        hint = hints[name]
        kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        if inspect.isclass(kind) and kind in _PER_CALL:
            per_call[name] = _PER_CALL[kind]
            if kind is not CallContext:
                names.append(kind.__name__)
        elif kind in (Clock, HttpClient) or (inspect.isclass(kind) and kind in capabilities.extra):
            constants[name] = _capability(kind, declaration, capabilities, where)
            names.append(kind.__name__)
        else:
            arguments[name] = (hint, parameter.default)
    return _Inputs(arguments, constants, per_call, tuple(names))


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
    if declaration.timeout_s is not None and isinstance(client, TimedClient):
        client = client.with_time(declaration.timeout_s)
    reads = declaration.effect is ToolEffect.READ_ONLY
    return client.for_reading() if reads and isinstance(client, RepeatingClient) else client


_Contract = tuple[
    dict[str, Any], Callable[[dict[str, Any]], Any], Callable[[Any], dict[str, Any]], dict[str, Any]
]


def _contract(
    identifier: str, arguments: Mapping[str, tuple[Any, Any]], declaration: ToolDeclaration, where: str
) -> _Contract:
    """Return the schema, the validator, the function that unpacks a value to arguments, and the defaults."""
    if declaration.parameters is not None:
        check_schema(declaration.parameters, where)
        if len(arguments) != 1:
            raise ConfigError(where, "with parameters= it must take exactly one dict for its arguments")
        (name,) = arguments
        schema = copy.deepcopy(dict(declaration.parameters))
        return schema, SchemaValidator(schema, where), lambda value: {name: value}, {}
    private = declaration.redaction.private_arguments if declaration.redaction else ()
    validator = partial(ModelValidator, private=private)
    single = next(iter(arguments.items())) if len(arguments) == 1 else None
    try:
        if single and inspect.isclass(single[1][0]) and issubclass(single[1][0], BaseModel):
            name, (model, _) = single
            adapter: TypeAdapter[Any] = TypeAdapter(model)
            derived = derive_schema(adapter, where)
            return derived, validator(adapter, derived), lambda value: {name: value}, {}
        adapter = TypeAdapter(_signature_model(identifier, arguments))
        derived = derive_schema(adapter, where)
    except (PydanticUserError, NameError, TypeError) as error:
        raise ConfigError(
            where, f"its signature cannot be written as a JSON Schema ({str(error).splitlines()[0]})"
        ) from None
    parameters = tuple(arguments)
    return (
        derived,
        validator(adapter, derived),
        lambda value: {name: getattr(value, _FIELD_PREFIX + name) for name in parameters},
        _defaults(identifier, arguments),
    )


def _url_arguments(arguments: Mapping[str, tuple[Any, Any]]) -> tuple[str, ...]:
    """Return the arguments that are URLs, by the names that the model uses."""
    if len(arguments) == 1:
        ((hint, _),) = arguments.values()
        if inspect.isclass(hint) and issubclass(hint, BaseModel):
            fields = hint.model_fields.items()
            return tuple(field.alias or name for name, field in fields if takes_url(field.metadata))
    return tuple(
        name
        for name, (hint, _) in arguments.items()
        if get_origin(hint) is Annotated and takes_url(get_args(hint)[1:])
    )


def _signature_model(identifier: str, arguments: Mapping[str, tuple[Any, Any]]) -> type[BaseModel]:
    """Create a pydantic model with one field for each parameter.

    A field's name has a prefix, and the parameter's name is its alias.  So a parameter may be called ``json``
    or ``_x``, which pydantic does not accept as a field name.
    """
    fields: dict[str, Any] = {
        _FIELD_PREFIX + name: (hint, ... if default is inspect.Parameter.empty else default)
        for name, (hint, default) in arguments.items()
    }
    config = ConfigDict(alias_generator=lambda name: name.removeprefix(_FIELD_PREFIX))
    return create_model(identifier, __config__=config, **fields)


def _defaults(identifier: str, arguments: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    """Return the JSON default of each optional parameter for which a given default has the same effect.

    The function cannot tell the two apart, so they are the same call.  Defaults with a difference are left
    out:  a secret, a default factory, or a default that its own validator would change.
    """
    defaults: dict[str, Any] = {}
    for name, argument in arguments.items():
        model = _signature_model(identifier, {name: argument})
        field = _FIELD_PREFIX + name
        if model.model_fields[field].is_required() or model.model_fields[field].default_factory is not None:
            continue
        try:
            left_out = model()
            setattr(left_out, field, getattr(left_out, field))  # Pydantic now treats it as given.
            written = model.model_validate_json(
                json.dumps(_as_json(left_out)), strict=True, extra="forbid", by_alias=True, by_name=False
            )
            if _alike(getattr(written, field), getattr(left_out, field)):
                defaults.update(_as_json(written))
        # Validators and serializers are code of the tool's author and may raise anything.
        except Exception:  # noqa: BLE001
            continue
    return defaults


def _as_json(value: BaseModel) -> dict[str, Any]:
    """Return a model's fields in the form of canonical arguments."""
    return value.model_dump(mode="json", by_alias=True, exclude_unset=True, round_trip=True, warnings="none")


def _alike(one: Any, other: Any) -> bool:
    """Return whether two values are equal; a tuple equals a list, since JSON has only lists."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return list(one) == list(other)
    return bool(one == other)


def _function_of(target: Any, where: str) -> Callable[..., Any]:
    """Return a declared function itself, or ``run`` of an instance of a declared class."""
    function: Any = target
    if not inspect.isclass(target):
        return cast(Callable[..., Any], function)
    try:
        run = function().run
    except (TypeError, AttributeError) as error:
        raise ConfigError(where, f"the class needs a run method and no arguments ({error})") from None
    if not callable(run):
        raise ConfigError(where, "run is not a method")
    return cast(Callable[..., Any], run)


def _own_name(target: Any) -> str:
    """Return the name of a function, or of a class in snake case."""
    name = str(getattr(target, "__name__", "tool"))
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower() if inspect.isclass(target) else name


def _description(target: Any, declaration: ToolDeclaration, where: str) -> str:
    """Return the description for the model; raise ConfigError if it is missing or too long."""
    text = declaration.description
    if text is None:
        documentation = inspect.cleandoc(getattr(target, "__doc__", None) or "")
        text = " ".join(documentation.split("\n\n")[0].split())
    if not text.strip():
        raise ConfigError(where, "it has no description", "give it a docstring")
    if len(text) > _MAX_DESCRIPTION:
        raise ConfigError(where, f"its description is longer than {_MAX_DESCRIPTION} characters")
    return text


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
