"""Makes requests that the types of an official SDK allow: one for each field and each union member."""

import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, NotRequired, Required, Union, get_args, get_origin

from pydantic import BaseModel
from typing_extensions import get_type_hints, is_typeddict

_UNIONS = (Union, types.UnionType)
_LISTS = (list, Iterable, Sequence, tuple)
_MAPPINGS = (dict, Mapping)
_FILES = (IO, PathLike, Path)
"""Types of files, which the SDK reads and sends as text; no sample has them."""
_PLAIN: Mapping[Any, Any] = {str: "a", int: 1, float: 0.5, bool: True, object: "a", Any: "a", bytes: "a"}


class Sample(NamedTuple):
    """A value that a type allows; ``path`` names its special part (``messages[].content[].title``)."""

    path: str
    value: Any


def requests_of(*roots: Any, always: Mapping[str, Any]) -> Iterator[Sample]:
    """Yield a request for each field and union member of types such as ``MessageCreateParams``.

    Each request has the fields that its types require and at most one optional field, and all members of
    ``always``.
    """
    seen: set[str] = set()
    for root in roots:
        for sample in _samples(root, ()):
            path = sample.path.lstrip(".")
            if path not in seen:
                seen.add(path)
                yield Sample(path, {**always, **sample.value})


def _samples(kind: Any, above: tuple[Any, ...]) -> Iterator[Sample]:
    origin, inner = get_origin(kind), get_args(kind)
    if is_typeddict(kind) or (isinstance(kind, type) and issubclass(kind, BaseModel)):
        yield from _objects(kind, above)
    elif origin in _UNIONS:
        for member in inner:
            yield from _samples(member, above)
    elif origin is Literal:
        yield from (Sample(f"={value}", value) for value in inner)
    elif origin in _LISTS:
        yield from (Sample(f"[]{path}", [value]) for path, value in _samples(inner[0], above))
    elif origin in _MAPPINGS:
        yield Sample("{}", {"a": next(_samples(inner[1], above)).value})
    elif kind in _PLAIN:
        yield Sample("", _PLAIN[kind])
    elif hasattr(kind, "__metadata__") or origin in (Required, NotRequired):
        yield from _samples(inner[0], above)
    elif kind is not type(None) and kind not in _FILES and origin not in _FILES:
        raise TypeError(f"{kind} is a form of type that this does not know")


def _objects(kind: Any, above: tuple[Any, ...]) -> Iterator[Sample]:
    """Yield objects of one type; a type that contains itself is followed once."""
    if above.count(kind) > 1:
        return
    if is_typeddict(kind):
        hints = get_type_hints(kind, include_extras=True)
    else:
        hints = {name: field.annotation for name, field in kind.model_fields.items()}
    within = (*above, kind)
    base = {name: next(_samples(hints[name], within)).value for name in sorted(_required(kind, hints))}
    mark = f"<{base['type']}>" if isinstance(base.get("type"), str) else ""
    yield Sample(mark, base)
    for name, inner in hints.items():
        for path, value in _samples(inner, within):
            yield Sample(f"{mark}.{name}{path}", {**base, name: value})


def _required(kind: Any, hints: Mapping[str, Any]) -> Iterable[str]:
    """Return the names of the fields that an object must have.

    The annotations of a ``TypedDict`` are text here, and ``__required_keys__`` cannot see ``Required`` in
    them.
    """
    if not is_typeddict(kind):
        return [name for name, field in kind.model_fields.items() if field.is_required()]
    marks = {name: get_origin(hint) for name, hint in hints.items()}
    return [
        name
        for name, mark in marks.items()
        if mark is Required or (name in kind.__required_keys__ and mark is not NotRequired)
    ]
