"""The contract of a tool: its name, schema, effect, redaction and limits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import Struct

from proxy.base.events import ToolDefinition
from proxy.records.rows import ToolEffect
from proxy.schemas.portable import repaired, unportable

__all__ = ["Redaction", "ToolEffect", "ToolOrigin", "ToolSpec", "texts"]


def texts(value: Sequence[str], name: str) -> tuple[str, ...]:
    """Return ``value`` as a tuple of strings; raise ``TypeError`` that says what to write instead.

    In Python a ``str`` is itself a sequence of strings, its characters. A ``*`` among them would allow
    everything, so ``("a.*.b")``, where the comma is missing, is refused.
    """
    if isinstance(value, str):
        raise TypeError(f'{name} takes several texts and got one: write ("{value[:100]}",)')
    if not isinstance(value, list | tuple) or not all(isinstance(text, str) and text for text in value):
        raise TypeError(f"{name} takes a tuple of texts")
    return tuple(value)


Describe = str | Callable[[dict[str, Any]], str]
"""How a call is described to people: a text with the names of arguments in braces, or a function of them."""


@dataclass(frozen=True, slots=True)
class Redaction:
    """The fields of a call that may be shown to others than the model (rule T4).

    ``output`` lists the dotted paths of the output that traces, logs and rows may show; ``*`` stands for
    every element of a list or every key of an object, and ``("*",)`` alone shows all of it.
    ``private_arguments`` lists the dotted argument paths that they must not show. Raises ``TypeError`` for
    a string in place of a tuple.
    """

    output: tuple[str, ...] = ()
    private_arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "output", texts(self.output, "Redaction.output"))
        private = texts(self.private_arguments, "Redaction.private_arguments")
        object.__setattr__(self, "private_arguments", private)


class ToolOrigin(Struct, frozen=True):
    """The origin of a tool of an MCP server.

    ``server`` is the server's name in the configuration, ``name`` is that server's name for the tool, and
    ``digest`` is the digest of the definition that an operator allowed. ``stays_there`` says that a call
    reaches nothing but the server's own data, by that definition and the operator's configuration.
    """

    server: str
    name: str
    digest: str
    stays_there: bool = False


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """The whole contract of one tool.

    ``name`` is ``<provider>__<tool>`` (rule T5). ``parameters`` is the JSON Schema that goes on
    the wire. ``validate`` turns a decoded JSON object into the arguments of ``call_tool``, or raises
    :class:`~proxy.tools.contract.provider.ArgumentsInvalid`. ``timeout_s`` and ``max_result_bytes`` of
    ``None`` mean the configured default. ``digest`` identifies name, description, schema and
    effect: a tool whose digest changed is another tool.

    ``validate_output`` converts a result to the declared output model, or raises any exception.
    ``cache_ttl_s`` is the number of seconds for which an equal call of the same caller gets the same result;
    ``retries`` is the number of retries after a transient failure. ``connection`` names the credentials
    that the tool uses. ``safety`` is free metadata that policy patterns can match.
    ``defaults`` has the JSON defaults of optional arguments, if the tool cannot tell the default from an
    absent value. Calls that differ only in this are the same call. ``loose_parameters`` is the schema
    before strict mode removed its defaults; ``None`` if the tool is not strict. ``url_arguments`` names the
    arguments that are URLs (:data:`Url`). ``origin`` is set for a tool of
    an MCP server. ``together`` lets adjacent calls of one turn run at the same time although the tool has
    effects. Only agents set it, because each agent orders its own effects. ``describe`` makes
    :func:`~proxy.tools.contract.redaction.described`. ``unportable`` is what some
    providers refuse in the schema (:func:`~proxy.schemas.portable.unportable`).
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    effect: ToolEffect
    provider: str
    validate: Callable[[dict[str, Any]], Any]
    digest: str
    redaction: Redaction | None = None
    strict: bool = False
    timeout_s: float | None = None
    max_result_bytes: int | None = None
    cache_ttl_s: float = 0.0
    retries: int = 0
    repeatable: bool = False
    untrusted_output: bool = False
    egress: bool = False
    safety: Mapping[str, Any] = field(default_factory=dict)
    capabilities: tuple[str, ...] = ()
    connection: str = ""
    validate_output: Callable[[Any], Any] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    loose_parameters: Mapping[str, Any] | None = None
    url_arguments: tuple[str, ...] = ()
    origin: ToolOrigin | None = None
    together: bool = False
    describe: Describe | None = None
    unportable: Mapping[str, str] = field(init=False, repr=False, compare=False)
    _definition: ToolDefinition = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        seen = ToolDefinition(self.name, self.description, repaired(self.parameters), self.strict)
        object.__setattr__(self, "_definition", seen)
        object.__setattr__(self, "unportable", unportable(seen.parameters))

    @property
    def schema_with_defaults(self) -> Mapping[str, Any]:
        """The schema that contains the defaults of optional arguments."""
        return self.parameters if self.loose_parameters is None else self.loose_parameters

    @property
    def source(self) -> str:
        """The source of the tool's results, as in :func:`proxy.records.rows.join_sources`."""
        return self.name if self.origin is None else f"{self.provider}__{self.origin.server}__*"

    def definition(self, name: str | None = None) -> ToolDefinition:
        """Return the tool as a model sees it, under the alias ``name`` if one is given.

        Its schema is ``parameters`` as more providers accept it (:func:`~proxy.schemas.portable.repaired`).
        """
        if name is None or name == self.name:
            return self._definition
        return replace(self._definition, name=name)
