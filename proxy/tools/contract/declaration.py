"""The ``@tool`` decorator, with which an author declares a tool. It only marks the function or class."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, UnionType
from typing import Any, Literal, TypedDict, TypeVar, overload

from msgspec import Struct, field
from pydantic import BaseModel

from proxy.tools.contract.signature import description_of, make_contract, own_name, read_signature
from proxy.tools.contract.spec import Describe, Redaction, ToolEffect, texts

EffectName = ToolEffect | Literal["read_only", "state_change", "external_side_effect"]
_Target = TypeVar("_Target", bound=Callable[..., Any])

_MARK = "__toolrelay_tool__"


class ToolDeclaration(Struct, frozen=True):
    """The declaration of a tool by its author. :func:`tool` explains each field."""

    name: str | None = None
    description: str | None = None
    effect: ToolEffect = ToolEffect.EXTERNAL_SIDE_EFFECT
    redaction: Redaction | None = None
    timeout_s: float | None = None
    max_result_bytes: int | None = None
    strict: bool = False
    repeatable: bool = False
    untrusted_output: bool = False
    egress: bool | None = None
    hosts: tuple[str, ...] = ()
    safety: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] | None = None
    output: type[BaseModel] | None = None
    cache_ttl_s: float = 0.0
    retries: int = 0
    connection: str = ""
    describe: Describe | None = None


class Definition(TypedDict):
    """A tool as a model sees it, in the shape of OpenAI's function tools.

    ``name`` is the author's own; a model sees the name of the module before it (rule T5).
    Source: ``FunctionTool`` of the ``openai`` package.
    """

    type: Literal["function"]
    name: str
    description: str
    parameters: dict[str, Any]
    strict: bool


class _DefinitionOf:
    """The attribute ``definition`` of a tool class, which is made when it is read."""

    def __init__(self, target: type, declaration: ToolDeclaration) -> None:
        self._target = target
        self._declaration = declaration

    def __get__(self, instance: object, owner: type) -> Definition:
        """Return a new definition; raise :class:`~proxy.base.errors.ConfigError` if the tool cannot load."""
        declaration = self._declaration
        name = declaration.name or own_name(self._target)
        where = f"tool {name}"
        verbatim = declaration.parameters
        signature = read_signature(self._target, where, verbatim=verbatim is not None)
        contract = make_contract(
            name, signature.arguments, parameters=verbatim, strict=declaration.strict, where=where
        )
        return Definition(
            type="function",
            name=name,
            description=description_of(self._target, declaration.description, where),
            parameters=contract.schema,
            strict=declaration.strict,
        )


@overload
def tool(target: _Target, /) -> _Target: ...


@overload
def tool(
    *,
    type: Literal["function"] = "function",
    name: str | None = None,
    description: str | None = None,
    effect: EffectName = ToolEffect.EXTERNAL_SIDE_EFFECT,
    redaction: Redaction | None = None,
    timeout_s: float | None = None,
    max_result_bytes: int | None = None,
    strict: bool = False,
    repeatable: bool = False,
    untrusted_output: bool = False,
    egress: bool | None = None,
    hosts: Sequence[str] = (),
    safety: Mapping[str, Any] | None = None,
    parameters: Mapping[str, Any] | None = None,
    output: type[BaseModel] | None = None,
    cache_ttl_s: float = 0.0,
    retries: int = 0,
    connection: str = "",
    describe: Describe | None = None,
) -> Callable[[_Target], _Target]: ...


def tool(
    target: _Target | None = None,
    /,
    *,
    type: Literal["function"] = "function",
    name: str | None = None,
    description: str | None = None,
    effect: EffectName = ToolEffect.EXTERNAL_SIDE_EFFECT,
    redaction: Redaction | None = None,
    timeout_s: float | None = None,
    max_result_bytes: int | None = None,
    strict: bool = False,
    repeatable: bool = False,
    untrusted_output: bool = False,
    egress: bool | None = None,
    hosts: Sequence[str] = (),
    safety: Mapping[str, Any] | None = None,
    parameters: Mapping[str, Any] | None = None,
    output: type[BaseModel] | None = None,
    cache_ttl_s: float = 0.0,
    retries: int = 0,
    connection: str = "",
    describe: Describe | None = None,
) -> _Target | Callable[[_Target], _Target]:
    """Declare that a function, or a class with a ``run`` method, is a tool.

    The function itself does not change; you can call and test it directly. An ``async def`` runs on the
    event loop and must not block it; a ``def`` runs in a thread of its own.

    Each call makes a new instance of a class: its constructor gets the validated arguments, and ``run`` takes
    none. A ``ValueError`` of the constructor tells the model that the arguments do not fit. The class
    attribute ``definition`` is the tool as a model sees it (:class:`Definition`).

    Args:
        type: what kind of tool it is; there is only one.
        name: the tool's name; by default the name of the function, or of the class in snake case.
        description: the text that the model reads; by default the first paragraph of the docstring.
        effect: what a call can change. The default is the worst case.
        redaction: what may be seen of a call. A tool without one does not load (rule T4).
        timeout_s: the time limit of one call in seconds. It replaces the configured one and may be longer,
            but a call never gets more time than its run has left.
        max_result_bytes: the size limit of a result in bytes, if it is below the configured limit.
        strict: offer the schema in the providers' strict mode. If strict mode cannot express the schema,
            the proxy does not start and names the path of the fault.
        repeatable: an identical call within one run runs again (rule R5).
        untrusted_output: the result is text from an untrusted source (a web page, a mail).
        egress: arguments can send data to a place that the model chooses; the default if ``hosts`` has ``*``.
        hosts: the hosts that an ``HttpClient`` parameter may reach: ``api.example.com``, ``*.example.com``.
        safety: free metadata such as ``{"threat_level": "high"}``; ``policy.approve_safety`` reads it.
        parameters: a JSON Schema that the proxy uses verbatim; the function or constructor then takes one
            ``dict``.
        output: a pydantic model that the result must fit; fields that it does not have are dropped.
        cache_ttl_s: seconds for which an equal call of the same caller gets the same result. Only
            for ``read_only``; equal calls at the same moment run once.
        retries: the number of retries after a transient failure (no connection, 429, 5xx, a
            ``ToolFailure(..., transient=True)``), within the time limit of the one call. A tool with an
            effect also needs an ``IdempotencyKey`` parameter.
        connection: the name of the ``[credentials.NAME]`` that its ``HttpClient`` uses.
        describe: what a call does, for people who approve it: a text such as ``"refund of {amount:.2f} for
            {order}"``, or a function of the arguments as a dict. Private arguments are masked in it.

    Raises ``TypeError`` if a value has the wrong type or a class has an attribute ``definition`` of its own,
    and ``ValueError`` for an unknown type or effect.
    """
    given = {name: value for name, value in locals().items() if name not in ("target", "type")}
    _check_kinds(given)
    if type != "function":
        raise ValueError('type is "function"')
    changed = {"effect": _effect(effect), "hosts": texts(hosts, "hosts"), "safety": dict(safety or {})}
    declaration = ToolDeclaration(**given | changed)

    def mark(marked: _Target) -> _Target:
        setattr(marked, _MARK, declaration)
        if inspect.isclass(marked):
            if "definition" in vars(marked):
                raise TypeError("the tool class has an attribute definition, which @tool sets: rename yours")
            marked.definition = _DefinitionOf(marked, declaration)  # type: ignore[attr-defined]
        return marked

    return mark if target is None else mark(target)


_KINDS: Mapping[str, tuple[type | UnionType, str]] = MappingProxyType(
    {
        "name": (str | None, "a text"),
        "description": (str | None, "a text"),
        "redaction": (Redaction | None, 'a Redaction: Redaction(output=("total",))'),
        "timeout_s": (int | float | None, "a number of seconds"),
        "max_result_bytes": (int | None, "a whole number"),
        "strict": (bool, "True or False"),
        "repeatable": (bool, "True or False"),
        "untrusted_output": (bool, "True or False"),
        "egress": (bool | None, "True or False"),
        "safety": (Mapping | None, 'a dict: {"threat_level": "high"}'),
        "cache_ttl_s": (int | float, "a number of seconds"),
        "retries": (int, "a whole number"),
        "connection": (str, "a text"),
        "describe": (str | Callable | None, "a text with the names of arguments in braces, or a function"),
    }
)
"""The parameters of ``tool``: the type of each, and its description for the error message."""


def _check_kinds(given: Mapping[str, Any]) -> None:
    """Raise ``TypeError`` for a value of the wrong type, since authors may not use a type checker."""
    for name, (kind, description) in _KINDS.items():
        value = given[name]
        # In Python, True is an int.
        fits = isinstance(value, kind) and (not isinstance(value, bool) or "True" in description)
        if not fits:
            raise TypeError(f"{name} takes {description}")


def _effect(effect: EffectName) -> ToolEffect:
    """Return the effect with this name; raise ``ValueError`` that lists the names if there is none."""
    try:
        return ToolEffect(effect)
    except ValueError:
        raise ValueError(f"effect is one of {', '.join(ToolEffect)}") from None


def declared(value: Any) -> ToolDeclaration | None:
    """Return the declaration of a function or class; ``None`` if it is not a tool.

    A subclass of a tool class is not a tool unless it is declared as one itself.
    """
    own = vars(value) if inspect.isclass(value) else getattr(value, "__dict__", {})
    declaration = own.get(_MARK) if isinstance(own, Mapping) else None
    return declaration if isinstance(declaration, ToolDeclaration) else None
