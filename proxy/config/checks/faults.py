"""Explains faults of the configuration in words: the setting, the given value, the expected one."""

import difflib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from proxy.base.errors import ConfigError
from proxy.config.settings import Config

_EXPECTED: Mapping[str, str] = {
    "bool_type": "true or false",
    "dict_type": "a table",
    "finite_number": "a finite number",
    "float_type": "a number",
    "int_type": "a whole number",
    "mapping_type": "a table",
    "model_type": "a table",
    "string_type": "a string",
    "tuple_type": "a list of strings",
}


def explain(detail: ErrorDetails, source_of: Callable[[str], str]) -> ConfigError:
    """Turn one pydantic error into a line that an operator can act on."""
    dotted = ".".join(str(part) for part in detail["loc"] if part != "[key]") or "configuration"
    source = source_of(dotted)
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        parent = _model_at(tuple(str(part) for part in detail["loc"][:-1]))
        return unknown_setting(dotted, parent, source.strip(" ()"))
    if kind == "missing":
        return ConfigError(dotted, f"is missing{source}", "Add it")
    if kind == "setting":
        return ConfigError(dotted, f"{context['message']}{source}", "Correct it")
    if kind.startswith("secret_"):
        problem, _, remedy = detail["msg"].partition(". ")
        return ConfigError(dotted, f"{problem}{source}", remedy or "Write env:NAME or file:/path")
    expected = _EXPECTED.get(kind)
    if kind == "literal_error":
        expected = f"one of {context['expected']}".replace("'", '"').replace(" or ", ", ")
    if expected is None:
        expected = detail["msg"].removeprefix("Input should be ").removeprefix("String should ").lower()
    given = _given(detail["input"], dotted)
    remedy = "Correct it"
    if kind == "tuple_type" and isinstance(detail["input"], str) and not _is_hidden(dotted):
        remedy = f"Write {_as_list(detail['input'])}"
    return ConfigError(dotted, f"got {given}{source}, expected {expected}", remedy)


def _as_list(text: str) -> str:
    """Return the list that a user meant who left out its brackets or quotes."""
    items = [item.strip().strip("\"'") for item in text.strip("[] ").split(",")]
    return json.dumps([item for item in items if item], ensure_ascii=False)[:200]


def _is_hidden(dotted: str) -> bool:
    """Return whether the value of this setting may be a secret."""
    return any(word in dotted.lower() for word in ("key", "secret", "token", "header", "url", "credential"))


def _given(value: object, dotted: str) -> str:
    """Describe the given value in short; show nothing of a value that may be a secret."""
    kinds = {bool: "a switch", str: "a string", int: "a whole number", float: "a number"}
    kind = kinds.get(type(value), "a list" if isinstance(value, list) else "a table")
    if _is_hidden(dotted) or isinstance(value, list | dict):
        return kind
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return f"{kind} {text[:60]}"


def unknown_setting(dotted: str, model: type[BaseModel] | None, source: str) -> ConfigError:
    """Report an unknown key with a similar known one (a sibling, else any setting), or with all its siblings,
    because a distant guess would mislead."""
    parent, _, key = dotted.rpartition(".")
    siblings = list(fields_of(model)) if model is not None else []
    prefix = f"{parent}." if parent else ""
    where = f" ({source})" if source else ""
    near = difflib.get_close_matches(key, siblings, n=1, cutoff=0.6)
    if parent and key in Config.model_fields:
        remedy = f"Write it below its own heading [{key}], or above the first heading of the file"
    elif near:
        remedy = f"Did you mean {prefix}{near[0]}?"
    else:
        everywhere = {name.rpartition(".")[2]: name for name in _all_settings()}
        far = difflib.get_close_matches(key, everywhere, n=1, cutoff=0.75)
        remedy = f"Did you mean {everywhere[far[0]]}?" if far else _choice(parent, siblings)
    return ConfigError(dotted, f"there is no such setting{where}", remedy)


def _choice(parent: str, siblings: list[str]) -> str:
    """Return which keys the table ``parent`` may contain (empty: the top of the file)."""
    if not siblings:
        return "Remove it"
    return f"{f'[{parent}] may contain' if parent else 'The file may contain'}: {', '.join(siblings)}"


def _all_settings() -> Iterator[str]:
    for section, model, _ in tables_of(Config):
        for key in fields_of(model):
            yield f"{section}.{key}"


def tables_of(model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel], FieldInfo]]:
    """Yield every table below ``model`` as (dotted name, its model, its field); ``*`` is a name that the user
    chooses."""
    for name, info in fields_of(model).items():
        annotation = info.annotation
        inner = model_of(annotation)
        if inner is not None:
            yield name, inner, info
            for below, table, about in tables_of(inner):
                if below.endswith(".*") or "*" not in below:
                    yield f"{name}.{below}", table, about
        elif get_origin(annotation) is dict:
            inner = model_of(get_args(annotation)[1])
            if inner is not None:
                yield f"{name}.*", inner, info
                for below, table, about in tables_of(inner):
                    if "*" not in below:
                        yield f"{name}.*.{below}", table, about


def fields_of(model: type[BaseModel]) -> Mapping[str, FieldInfo]:
    """Return the settings of a table by their names in the file, some of which are Python keywords
    (``import``)."""
    return {info.alias or name: info for name, info in model.model_fields.items()}


def model_of(annotation: Any) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _model_at(parts: tuple[str, ...]) -> type[BaseModel] | None:
    annotation: Any = Config
    for part in parts:
        model = model_of(annotation)
        if model is not None:
            annotation = fields_of(model)[part].annotation
        elif get_origin(annotation) is dict:
            annotation = get_args(annotation)[1]
    return model_of(annotation)
