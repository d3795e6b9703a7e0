"""Tests of many cases of one kind, such as all recordings, as one test that names the case at which it fails.

A parametrized case costs some milliseconds in each of pytest's processes, even if the test itself costs none.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")


@contextmanager
def case(name: str) -> Iterator[None]:
    """Add the name of a case to whatever the block raises."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case {name}")
        raise


def each(
    argument: str, values: Iterable[T], name_of: Callable[[T], str]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call a test once for each value of an argument, within one test; there is at least one value."""
    cases = [(name_of(value), value) for value in values]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def looped(**others: Any) -> None:
            assert cases
            for name, value in cases:
                with case(name):
                    test(**{argument: value}, **others)

        wanted = inspect.signature(test)
        others = [parameter for parameter in wanted.parameters.values() if parameter.name != argument]
        looped.__signature__ = wanted.replace(parameters=others)  # type: ignore[attr-defined]
        return looped

    return decorate
