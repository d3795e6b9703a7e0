"""What a tool is: a name, a schema, an effect, and what may be seen of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.events import ToolDefinition
from proxy.records import ToolEffect

__all__ = ["Redaction", "ToolEffect", "ToolOrigin", "ToolSpec", "texts"]


def texts(value: Sequence[str], name: str) -> tuple[str, ...]:
    """``value`` as a tuple of texts; ``TypeError`` with what to write for anything else.

    One text alone is a sequence of texts to Python: its letters.  A ``*`` among them would stand for
    everything, so ``("a.*.b")``, where a comma is missing, must not pass.
    """
    if isinstance(value, str):
        raise TypeError(f'{name} takes several texts and got one: write ("{value[:100]}",)')
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) and one for one in value):
        raise TypeError(f"{name} takes a tuple of texts")
    return tuple(value)


@dataclass(frozen=True, slots=True)
class Redaction:
    """Which fields of a tool may leave the model's eyes (rule T4).

    ``output`` lists the dotted paths of the output that traces, logs and rows may show; ``*``
    stands for every element of a list or every key of an object, and ``("*",)`` alone shows all
    of it.  ``private_arguments`` lists the dotted argument paths that they must not show.  Raises
    ``TypeError`` for one text in place of a tuple.
    """

    output: tuple[str, ...] = ()
    private_arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "output", texts(self.output, "Redaction.output"))
        private = texts(self.private_arguments, "Redaction.private_arguments")
        object.__setattr__(self, "private_arguments", private)


@dataclass(frozen=True, slots=True)
class ToolOrigin:
    """Where a tool comes from that another server has.

    ``server`` is the server's name in the configuration, ``name`` what that server calls the tool, and
    ``digest`` that of the definition which an operator allowed.
    """

    server: str
    name: str
    digest: str


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """The whole contract of one tool.

    ``name`` is ``<provider>__<tool>`` (rule T5).  ``parameters`` is the JSON Schema that goes on
    the wire.  ``validate`` turns a decoded JSON object into what ``call_tool`` takes, or raises
    :class:`~proxy.tools.contract.provider.ArgumentsInvalid`.  ``timeout_s`` and ``max_result_bytes`` of
    ``None`` mean the configured default.  ``digest`` identifies name, description, schema and
    effect: a tool whose digest changed is another tool.

    ``validate_output`` turns what the tool returned into what it promised, or raises anything.
    ``cache_ttl_s`` are the seconds for which an equal call of the same caller gets the same result;
    ``retries`` the further tries after a failure that may pass.  ``connection`` names the
    credentials it works with.  ``safety`` is free metadata that policy patterns can match.
    ``defaults`` is in JSON what each argument stands for that may be left out, where the tool cannot
    tell the two apart: such calls are the same call.  ``loose_parameters`` is the schema as it was
    before strict mode took its defaults away, where that is another.  ``url_arguments`` names the
    arguments that are addresses (:data:`~proxy.tools.contract.url_argument.Url`).  ``origin`` says of a tool
    of an MCP server which one that is.  ``together`` says that calls of one turn that stand side by side may
    run at once though it has effects: only for agents, each of which causes its own in order.
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
    _definition: ToolDefinition = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        seen = ToolDefinition(self.name, self.description, self.parameters, self.strict)
        object.__setattr__(self, "_definition", seen)

    @property
    def schema_with_defaults(self) -> Mapping[str, Any]:
        """The schema that says what is left out stands for."""
        return self.parameters if self.loose_parameters is None else self.loose_parameters

    def definition(self, name: str | None = None) -> ToolDefinition:
        """How a model sees this tool, under an alias where ``name`` is given."""
        if name is None or name == self.name:
            return self._definition
        return ToolDefinition(name, self.description, self.parameters, self.strict)
