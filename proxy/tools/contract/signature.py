"""Read the signature of a tool: its parameters, its JSON Schema, and how validated arguments fill them."""

import copy
import inspect
import json
import re
import typing
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Annotated, Any, get_args, get_origin

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, TypeAdapter, create_model
from pydantic.errors import PydanticUserError

from proxy.base.errors import ConfigError
from proxy.tools.contract.capabilities import CacheControl, Clock, HttpClient, IdempotencyKey
from proxy.tools.contract.provider import CallContext
from proxy.tools.contract.schemas.schema import check_schema, derive_schema
from proxy.tools.contract.schemas.strict import to_strict
from proxy.tools.contract.schemas.url_argument import takes_url
from proxy.tools.contract.validation import ModelValidator, SchemaValidator

_CAPABILITIES: frozenset[type] = frozenset({CacheControl, CallContext, Clock, HttpClient, IdempotencyKey})
_FIELD_PREFIX = "arg_"
_MAX_DESCRIPTION = 1024  # OpenAI refuses a longer description with 400.


class Signature(Struct, frozen=True):
    """The parameters of a function, or of a class's constructor.

    ``arguments`` are those that the model fills, each with its type and its default; ``capabilities`` are
    those that the proxy fills, each with its type.
    """

    arguments: Mapping[str, tuple[Any, Any]]
    capabilities: Mapping[str, type]

    @property
    def urls(self) -> tuple[str, ...]:
        """The arguments that are URLs, by the names that the model uses."""
        if len(self.arguments) == 1:
            ((hint, _),) = self.arguments.values()
            if inspect.isclass(hint) and issubclass(hint, BaseModel):
                fields = hint.model_fields.items()
                return tuple(field.alias or name for name, field in fields if takes_url(field.metadata))
        return tuple(
            name
            for name, (hint, _) in self.arguments.items()
            if get_origin(hint) is Annotated and takes_url(get_args(hint)[1:])
        )


def read_signature(target: Any, where: str, *, verbatim: bool, extra: Collection[type] = ()) -> Signature:
    """Return the parameters of a function, or of the constructor of a class.

    With ``verbatim`` the schema is the author's own, so the one argument needs no type. ``extra`` are
    further types of capabilities. Raises :class:`ConfigError` for a parameter that cannot be
    filled.
    """
    try:
        annotated = target.__init__ if inspect.isclass(target) else target
        hints = typing.get_type_hints(annotated, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigError(where, f"a type in its signature cannot be read ({error})") from None
    arguments: dict[str, tuple[Any, Any]] = {}
    capabilities: dict[str, type] = {}
    for name, parameter in inspect.signature(target).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(
                where, f'parameter "{name}": *args, **kwargs and positional-only parameters are not supported'
            )
        if name not in hints and not verbatim:
            raise ConfigError(where, f'parameter "{name}" has no type')
        hint = hints.get(name, dict[str, Any])
        kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        if inspect.isclass(kind) and (kind in _CAPABILITIES or kind in extra):
            capabilities[name] = kind
        else:
            arguments[name] = (hint, parameter.default)
    return Signature(arguments, capabilities)


class Contract(Struct, frozen=True):
    """What a tool's arguments must be.

    ``schema`` is the JSON Schema that goes on the wire, ``loose`` the same before strict mode, or ``None``
    if the tool is not strict. ``validate`` turns a decoded object into a value, ``unpack`` turns that value
    into arguments by name, and ``defaults`` are the JSON defaults of optional arguments.
    """

    schema: dict[str, Any]
    loose: dict[str, Any] | None
    validate: Callable[[dict[str, Any]], Any]
    unpack: Callable[[Any], dict[str, Any]]
    defaults: dict[str, Any]


def make_contract(
    identifier: str,
    arguments: Mapping[str, tuple[Any, Any]],
    *,
    parameters: Mapping[str, Any] | None,
    strict: bool,
    private: Collection[str] = (),
    where: str,
) -> Contract:
    """Return the contract of a tool by its arguments, or by the author's own schema ``parameters``.

    ``private`` are the paths of private arguments. Raises :class:`ConfigError` for arguments
    or a schema that cannot go on the wire.
    """
    if parameters is None:
        contract = _derived(identifier, arguments, tuple(private), where)
    else:
        check_schema(parameters, where)
        if len(arguments) != 1:
            raise ConfigError(where, "with parameters= it must take exactly one dict for its arguments")
        (name,) = arguments
        own = copy.deepcopy(dict(parameters))
        contract = Contract(own, None, SchemaValidator(own, where), lambda value: {name: value}, {})
    check_schema(contract.schema, where)
    if not strict:
        return contract
    offered = to_strict(contract.schema, where)
    if parameters is not None and offered != contract.schema:
        raise ConfigError(where, "strict=True would change the schema of parameters=", "Use only one")
    check_schema(offered, where)
    return Contract(offered, contract.schema, contract.validate, contract.unpack, contract.defaults)


def _derived(
    identifier: str, arguments: Mapping[str, tuple[Any, Any]], private: tuple[str, ...], where: str
) -> Contract:
    """Return the contract that follows from the types of the arguments."""
    validator = partial(ModelValidator, private=private)
    single = next(iter(arguments.items())) if len(arguments) == 1 else None
    try:
        if single and inspect.isclass(single[1][0]) and issubclass(single[1][0], BaseModel):
            name, (model, _) = single
            adapter: TypeAdapter[Any] = TypeAdapter(model)
            schema = derive_schema(adapter, where)
            return Contract(schema, None, validator(adapter, schema), lambda value: {name: value}, {})
        adapter = TypeAdapter(_signature_model(identifier, arguments))
        schema = derive_schema(adapter, where)
    except (PydanticUserError, NameError, TypeError) as error:
        raise ConfigError(
            where, f"its signature cannot be written as a JSON Schema ({str(error).splitlines()[0]})"
        ) from None
    names = tuple(arguments)
    return Contract(
        schema,
        None,
        validator(adapter, schema),
        lambda value: {name: getattr(value, _FIELD_PREFIX + name) for name in names},
        _defaults(identifier, arguments),
    )


def _signature_model(identifier: str, arguments: Mapping[str, tuple[Any, Any]]) -> type[BaseModel]:
    """Create a pydantic model with one field for each parameter.

    A field's name has a prefix, and the parameter's name is its alias. So a parameter may be called ``json``
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

    The function cannot tell the two apart, so they are the same call. Defaults with a difference are left
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


def _alike(first: Any, other: Any) -> bool:
    """Return whether two values are equal; a tuple equals a list, since JSON has only lists."""
    if isinstance(first, list | tuple) and isinstance(other, list | tuple):
        return list(first) == list(other)
    return bool(first == other)


def own_name(target: Any) -> str:
    """Return the name of a function, or of a class in snake case."""
    name = str(getattr(target, "__name__", "tool"))
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower() if inspect.isclass(target) else name


def description_of(target: Any, text: str | None, where: str) -> str:
    """Return ``text``, or the first paragraph of the docstring, as the description for the model.

    Raises :class:`~proxy.base.errors.ConfigError` if it is missing or too long.
    """
    if text is None:
        documentation = inspect.cleandoc(getattr(target, "__doc__", None) or "")
        text = " ".join(documentation.split("\n\n")[0].split())
    if not text.strip():
        raise ConfigError(where, "it has no description", "give it a docstring")
    if len(text) > _MAX_DESCRIPTION:
        raise ConfigError(where, f"its description is longer than {_MAX_DESCRIPTION} characters")
    return text
