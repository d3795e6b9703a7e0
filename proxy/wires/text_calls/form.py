"""The protocol of a form of text calls: it reads calls from a text, and shows a model how to write them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import orjson
from msgspec import Struct

from proxy.wires.text_calls.call import Declared, TextCall
from proxy.wires.text_calls.source import Incomplete, NotACall, Reading, Source

_KEYS: Final = frozenset({"name", "arguments", "parameters", "function", "type", "id"})
"""Possible first members of a call that is an object."""


class Result(Struct, frozen=True):
    """The result of a call, as text."""

    call_id: str
    name: str
    text: str
    is_error: bool = False


class Form(ABC):
    """One form. ``name`` is its name in settings.

    ``markers`` are the possible beginnings of a call. ``channels``: the whole text of a turn may consist of
    thoughts, calls and words for the user (:mod:`proxy.wires.text_calls.channels`). ``bare``: a text that
    consists only of JSON calls needs no marker. ``bare_if_repairing``: with repairs, such calls at the end of
    a text need none either. ``result_beginnings``: after a call, the model made up whatever follows one of
    them. ``around_results`` are the begin and end marks of a result, which no result's text may contain.
    """

    name: ClassVar[str]
    markers: ClassVar[tuple[str, ...]]
    channels: ClassVar[bool] = False
    bare: ClassVar[bool] = False
    bare_if_repairing: ClassVar[bool] = False
    result_beginnings: ClassVar[tuple[str, ...]] = ("<tool_response>",)
    around_results: ClassVar[tuple[str, ...]] = ("<tool_response", "</tool_response>")

    # Reading.

    @abstractmethod
    def read(self, source: Source, declared: Declared) -> Reading[list[TextCall]]:
        """Read the calls that begin with the marker at the source's position.

        Raises :class:`NotACall`.
        """

    def read_json(self, source: Source, declared: Declared) -> Reading[list[TextCall]]:
        """Read JSON calls without a marker. Only for forms with ``bare`` or ``bare_if_repairing``."""
        return (yield from json_calls(source, declared, sure=False))

    # Writing.

    @property
    def example(self) -> str:
        """A call with placeholders, as the model should write it."""
        return self.calls([self.call("FUNCTION_NAME", '{"ARGUMENT":"VALUE"}', "")])

    @abstractmethod
    def call(self, name: str, arguments: str, call_id: str) -> str:
        """Return a call as the model should have written it; ``arguments`` are JSON text."""

    def calls(self, written: Sequence[str]) -> str:
        """Return the calls of one turn as one text."""
        return "\n".join(written)

    def id_of(self, name: str, number: int, call_id: str) -> str:
        """Return the id of a call in this form; ``number`` counts the calls of the conversation from 0."""
        return call_id

    def definitions(self, tools: Sequence[dict[str, Any]]) -> str:
        """Return the definitions of the tools, each given as ``{"name", "description", "parameters"}``."""
        lines = [as_json({"type": "function", "function": tool}) for tool in tools]
        return "\n".join(("<tools>", *lines, "</tools>"))

    @abstractmethod
    def result(self, result: Result) -> str:
        """Return a result as the model expects it."""

    def escaped(self, text: str) -> str:
        """Return a result's text changed so that it cannot end its own frame: its author is not trusted."""
        for sign in self.around_results:
            text = text.replace(sign, f"{sign[0]}\\{sign[1:]}")
        return text

    def results(self, written: Sequence[str]) -> str:
        """Return the results of one turn as one text."""
        return "\n".join(written)


def as_json(value: Any) -> str:
    """Return JSON without line breaks, always the same text for the same value."""
    return orjson.dumps(value).decode()


def parsed(arguments: str) -> dict[str, Any]:
    """Return arguments as an object; an empty one if they are not an object."""
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def written_object(arguments: str) -> str:
    """Return arguments for a text: the JSON that the model wrote, or ``{}`` if that is not an object."""
    return arguments if parsed(arguments) or arguments.strip() == "{}" else "{}"


def closing(source: Source, declared: Declared, *literals: str) -> Reading[None]:
    """Read the end of a call's marker. With repairs, it may be missing at the end of the text."""
    yield from source.blanks()
    try:
        yield from source.literal(*literals)
    except Incomplete:
        if source.cut or not declared.repair:
            raise
        declared.note("the end of the marker is missing")
        source.at = len(source.text)


def json_call(source: Source, declared: Declared, *, sure: bool = True, **keys: Any) -> Reading[TextCall]:
    """Read a call that is an object with its name and arguments."""
    first = yield from source.peek()
    if first != "{":
        raise NotACall if first else Incomplete
    source.sure = source.sure or sure
    key, value = yield from source.head()
    if key not in _KEYS:
        raise NotACall
    if key == "name" and value:
        declared.name_of(value)
    text = yield from source.json()
    return declared.named(text, **keys)


def json_calls(
    source: Source, declared: Declared, *, sure: bool = True, **keys: Any
) -> Reading[list[TextCall]]:
    """Read calls that are such objects: one, or with repairs several, separated by nothing or a comma."""
    yield from source.blanks()
    calls = [(yield from json_call(source, declared, sure=sure, **keys))]
    while declared.repair:
        yield from source.blanks()
        comma = yield from source.maybe(",", ";")
        if comma:
            yield from source.blanks()
        if (yield from source.peek()) != "{":
            if comma:
                raise NotACall
            break
        calls.append((yield from json_call(source, declared, sure=sure, **keys)))
        declared.note("several calls stand where one belongs")
    return calls
