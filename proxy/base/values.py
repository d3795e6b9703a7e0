"""The decorator of immutable value classes."""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value_class(cls: type[_T]) -> type[_T]:
    """Make a dataclass with slots that is compared and hashed by its fields, and frozen for the type
    checker.

    It is meant for objects that are made with each request or event. A dataclass that is frozen at run time
    calls a function for each field when it is made, which costs several times as much. Objects that outside
    code gets, or that a decision depends on, are really frozen instead.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
