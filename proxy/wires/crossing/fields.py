"""Reads a request field by field, so that none is overlooked."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from proxy.base.conversation import Native, OutputFormat, Part, Sampling, Service, Text
from proxy.base.errors import ModelMissing, RequestError
from proxy.wires.crossing.tables import FieldTable, general_path

_T = TypeVar("_T")


class Fields:
    """An object of a request, read field by field.

    :meth:`rest` returns the fields that were not taken, which have no neutral form. A field that is ``null``
    counts as missing. Each method raises :class:`RequestError`, which names the field, for a value of
    another type.
    """

    __slots__ = ("_inner", "_keys", "_left", "_table", "_value", "names", "path")

    def __init__(
        self, value: Mapping[str, Any], table: FieldTable, path: str = "", keys: tuple[str, ...] = ()
    ) -> None:
        self._value = value
        self._table = table
        self._keys = keys
        self._left = {name for name, inner in value.items() if inner is not None}
        self._inner: list[Fields] = []
        self.path = path
        self.names: dict[str, str] = {}
        """Aspect → the field of this object that it was read from."""

    def at(self, name: str) -> str:
        """Return the path of a field of this object in the request."""
        return f"{self.path}.{name}" if self.path else name

    def take(self, name: str) -> Any:
        """Take a field of any type; ``None`` if it is missing."""
        if name not in self._left:
            return None
        self._left.discard(name)
        if not self.path.endswith("]") and (rule := self._table.read.get(self.at(name))) is not None:
            self.names.update(dict.fromkeys(rule.to, self.at(name)))
        return self._value[name]

    def skip(self, name: str, *values: object) -> None:
        """Count a field as taken if it has one of these values, which mean the same as no value."""
        if self._value.get(name) in values:
            self._left.discard(name)

    def peek(self, name: str) -> Any:
        """Return a field without taking it."""
        return self._value.get(name)

    def leave(self, name: str) -> None:
        """Count a field as not taken after all."""
        self._left.add(name)

    def _typed(self, name: str, kind: type[_T], words: str) -> _T | None:
        value = self.take(name)
        if value is not None and type(value) is not kind:
            raise self.fault(name, f"must be {words}")
        return value

    def fault(self, name: str, words: str) -> RequestError:
        """Return the error for a wrong field."""
        return RequestError(400, f"{self.at(name)} {words}.", param=self.at(name))

    def model(self) -> str:
        """Take the name of the model. Raises :class:`ModelMissing` if there is none."""
        if not (name := self.text("model")):
            raise ModelMissing()
        return name

    def text(self, name: str) -> str | None:
        return self._typed(name, str, "a string")

    def flag(self, name: str) -> bool | None:
        return self._typed(name, bool, "true or false")

    def whole(self, name: str) -> int | None:
        return self._typed(name, int, "a whole number")

    def number(self, name: str) -> float | None:
        value = self.take(name)
        if value is not None and type(value) not in (int, float):
            raise self.fault(name, "must be a number")
        return value  # type: ignore[no-any-return]

    def mapping(self, name: str) -> dict[str, Any] | None:
        """Take an object as it is."""
        return self._typed(name, dict, "an object")

    def listed(self, name: str) -> list[Any]:
        """Take a list; empty if it is missing."""
        return self._typed(name, list, "a list") or []

    def texts(self, name: str) -> tuple[str, ...]:
        """Take one text, or a list of texts."""
        value = self.take(name)
        found = [value] if isinstance(value, str) else [] if value is None else value
        if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
            raise self.fault(name, "must be a string or a list of strings")
        return tuple(found)

    def contents(
        self, name: str, read: "Callable[[Fields], Part | None]", *, each: str = "parts", needed: bool = False
    ) -> Iterator[Any]:
        """Take a message's content: a text, unless it is empty, or the parts of a list.

        ``read`` reads a part, and returns ``None`` for one that is empty. ``each`` is the dialect's word for
        parts. A missing field is an error only if it is ``needed``.
        """
        content = self.take(name)
        if isinstance(content, str):
            if content:
                yield Text(content, at=self.at(name))
        elif isinstance(content, list):
            self.leave(name)
            for element in self.elements(name):
                if (part := read(element)) is not None:
                    yield part
        elif content is not None or needed:
            raise self.fault(name, f"must be a string or a list of {each}")

    def inner(self, name: str) -> "Fields | None":
        """Take an object that is also read field by field; :meth:`rest` then includes its rest."""
        value = self.mapping(name)
        if value is None:
            return None
        found = Fields(value, self._table, self.at(name), (*self._keys, name))
        self._inner.append(found)
        return found

    def elements(self, name: str) -> "Iterator[Fields]":
        """Take the objects of a list, each of which is read by itself."""
        for place, value in enumerate(self.listed(name)):
            if type(value) is not dict:
                raise self.fault(f"{name}[{place}]", "must be an object")
            yield Fields(value, self._table, f"{self.at(name)}[{place}]")

    def rest(self) -> tuple[Native, ...]:
        """Return the fields that were not taken, of this object and of its inner objects."""
        own = [self._native(name) for name in self._value if name in self._left]
        self._left = set()
        for inner in self._inner:
            own += inner.rest()
            self.names.update(inner.names)
        return tuple(own)

    def _native(self, name: str) -> Native:
        """Return a field that was not taken; the table may have a rule for its type."""
        value, path = self._value[name], self.at(name)
        kind = value.get("type") if isinstance(value, dict) else None
        typed = f"{general_path(path)}[type={kind}]" in self._table.read
        return self._table.native(value, path, (*self._keys, name), kind if typed and kind else "")

    def whole_native(self, kind: str) -> Native:
        """Return the whole object as something without a neutral form."""
        self._left = set()
        return self._table.native(self._value, self.path, kind=kind)


def read_sampling(settings: Fields) -> Sampling:
    """Read sampling."""
    return Sampling(
        temperature=settings.number("temperature"),
        top_p=settings.number("top_p"),
        top_k=settings.whole("top_k"),
        min_p=settings.number("min_p"),
        seed=settings.whole("seed"),
        presence_penalty=settings.number("presence_penalty"),
        frequency_penalty=settings.number("frequency_penalty"),
    )


def read_format(form: Fields | None, described_in: str = "") -> OutputFormat | None:
    """Read OpenAI's form of an output format; one of an unknown type is left to its dialect.

    ``described_in`` is the member that describes a JSON Schema, if it is not the form itself.
    """
    kind = form.take("type") if form is not None else None
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        return OutputFormat("json_object")
    if kind == "json_schema":
        described = form.inner(described_in) if described_in else form
        if described is not None:
            return OutputFormat(
                "json_schema",
                described.mapping("schema"),
                described.text("name") or "",
                described.text("description") or "",
                described.flag("strict"),
            )
    form.leave("type")
    return None


def read_service(asked: Fields, *, stores: bool | None = None) -> Service:
    """Read what OpenAI's requests say of the service; ``stores`` is the default of ``store``."""
    return Service(
        user=asked.text("user"),
        safety_identifier=asked.text("safety_identifier"),
        metadata=asked.mapping("metadata"),
        store=stores if (store := asked.flag("store")) is None else store,
        tier=asked.text("service_tier"),
        cache_key=asked.text("prompt_cache_key"),
        cache_retention=asked.text("prompt_cache_retention"),
        moderation=asked.mapping("moderation"),
    )
