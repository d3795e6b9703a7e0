"""The decorator of immutable value classes."""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

__all__ = ["value_class"]

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value_class(cls: type[_T]) -> type[_T]:
    """A dataclass with slots that is equal and hashed by its fields, and frozen for the type checker.

    For what is made with each request or event: a dataclass that is frozen at run time calls a function
    for each field when it is made, which costs several times what making it does.  What code of
    strangers gets, or a decision hangs on, is frozen in fact.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
