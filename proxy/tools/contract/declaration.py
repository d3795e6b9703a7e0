"""How an author declares a tool: the ``@tool`` decorator, which marks and does nothing else."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType, UnionType
from typing import Any, Literal, TypeVar, overload

from pydantic import BaseModel

from proxy.tools.contract.spec import Redaction, ToolEffect, texts

__all__ = ["ToolDeclaration", "declared", "tool"]

EffectName = ToolEffect | Literal["read_only", "state_change", "external_side_effect"]
_Target = TypeVar("_Target", bound=Callable[..., Any])

_MARK = "__toolrelay_tool__"


@dataclass(frozen=True, slots=True)
class ToolDeclaration:
    """What an author said about a tool.  See :func:`tool` for the meaning of each field."""

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


@overload
def tool(target: _Target, /) -> _Target: ...


@overload
def tool(
    *,
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
) -> Callable[[_Target], _Target]: ...


def tool(
    target: _Target | None = None,
    /,
    *,
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
) -> _Target | Callable[[_Target], _Target]:
    """Declare a function, or a class with a ``run`` method, to be a tool.

    The function itself stays as it was and can be called and tested directly.  An ``async def``
    runs on the event loop and must not block it; a ``def`` runs in a thread of its own.

    Args:
        name: the tool's name; the function's own (a class name in snake case) unless given.
        description: what the model reads; the first paragraph of the docstring unless given.
        effect: what running it can change.  Unless said otherwise the worst is assumed.
        redaction: what may be seen of it.  A tool without one does not load (rule T4).
        timeout_s: seconds for one call, in place of the configured time; less or more, as far as the
            run has time left.
        max_result_bytes: bytes of result, where that is less than the configured number.
        strict: offer the schema in the providers' strict mode.  One that strict mode cannot say stops
            the start with the path of the fault.
        repeatable: an identical call within one run really runs again (rule R5).
        untrusted_output: the result is a stranger's text (a page, a mail).
        egress: arguments can reach a place of the model's choosing; assumed where ``hosts`` has ``*``.
        hosts: what an ``HttpClient`` parameter may reach: ``api.example.com``, ``*.example.com``.
        safety: free metadata such as ``{"threat_level": "high"}``; ``policy.approve_safety`` reads it.
        parameters: a JSON Schema to be used verbatim; the function then takes one ``dict``.
        output: a pydantic model that the result has to fit; fields it does not know are dropped.
        cache_ttl_s: seconds for which an equal call of the same caller gets the same result.  Only
            for ``read_only``; equal calls at the same moment run once.
        retries: further tries after a failure that may pass (no connection, 429, 5xx, a
            ``ToolFailure(..., transient=True)``), within the time of the one call.  A tool with an
            effect needs an ``IdempotencyKey`` parameter for it.
        connection: the name of the ``[credentials.NAME]`` that its ``HttpClient`` works with.

    Raises ``TypeError`` for a value of another kind than its parameter takes, and ``ValueError`` for
    an effect that there is not.
    """
    _check_kinds(locals())
    declaration = ToolDeclaration(
        name=name,
        description=description,
        effect=_effect(effect),
        redaction=redaction,
        timeout_s=timeout_s,
        max_result_bytes=max_result_bytes,
        strict=strict,
        repeatable=repeatable,
        untrusted_output=untrusted_output,
        egress=egress,
        hosts=texts(hosts, "hosts"),
        safety=dict(safety or {}),
        parameters=parameters,
        output=output,
        cache_ttl_s=cache_ttl_s,
        retries=retries,
        connection=connection,
    )

    def mark(function: _Target) -> _Target:
        setattr(function, _MARK, declaration)
        return function

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
    }
)
"""Parameters of ``tool``, the type of each, and that in words."""


def _check_kinds(given: Mapping[str, Any]) -> None:
    """Refuse what is of another kind than its parameter takes: authors need not use a type checker."""
    for name, (kind, words) in _KINDS.items():
        value = given[name]
        # To Python True is a number.
        fits = isinstance(value, kind) and (not isinstance(value, bool) or "True" in words)
        if not fits:
            raise TypeError(f"{name} takes {words}")


def _effect(effect: EffectName) -> ToolEffect:
    """The effect of a name; ``ValueError`` with the names that there are."""
    try:
        return ToolEffect(effect)
    except ValueError:
        raise ValueError(f"effect is one of {', '.join(ToolEffect)}") from None


def declared(value: Any) -> ToolDeclaration | None:
    """What was declared about a function or class; ``None`` if it is no tool.

    A subclass of a tool class is no tool until it is declared one itself.
    """
    own = vars(value) if inspect.isclass(value) else getattr(value, "__dict__", {})
    declaration = own.get(_MARK) if isinstance(own, Mapping) else None
    return declaration if isinstance(declaration, ToolDeclaration) else None
