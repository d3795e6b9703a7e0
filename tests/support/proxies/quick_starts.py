"""Builds parts that are equal in each application of a test once, and copies them.

Thousands of tests start a proxy.  Most of the time of such a start goes into the schemas of the same built-in
tools, the same tables in an empty database, and the files of the pages.  The real code builds each of these
once, and later starts get copies.  Proxies that tests start as processes build all of it themselves
(``forked_starts.py`` makes them start quickly).  So do the tests of schemas, migrations and files, because
they call the code directly.
"""

import copy
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from functools import cache
from typing import Any, get_args

import pytest
from forked_starts import forked_starts
from msgspec.structs import replace

from proxy.store.sql.migrate import make_schema
from proxy.tools.contract.signature import Contract, make_contract
from proxy.ui.static_files import StaticFiles

_KEPT_OF_ONE_NAME = 8


class _Contracts:
    """Replaces ``make_contract`` of the provider: it makes the contract of equal signatures only once.

    Two signatures are equal if they have the same text and name the same classes, because fields of pydantic
    cannot be compared.  The text of a validator has its address, and a class is identified by its address:
    two tests may each have a class of the same name.  Both are kept with the contract, so that no other
    object gets their addresses.
    """

    def __init__(self) -> None:
        self._made: dict[str, dict[str, tuple[Mapping[str, Any], Contract]]] = {}

    def __call__(
        self,
        identifier: str,
        arguments: Mapping[str, tuple[Any, Any]],
        *,
        parameters: Mapping[str, Any] | None,
        strict: bool,
        private: Collection[str],
        where: str,
    ) -> Contract:
        """Return the contract; errors of the real function are raised and not kept."""

        def make() -> Contract:
            return make_contract(
                identifier, arguments, parameters=parameters, strict=strict, private=private, where=where
            )

        if parameters is not None:
            return make()
        classes = [id(one) for annotation, _ in arguments.values() for one in _classes(annotation)]
        signature = f"{strict} {private} {list(arguments.items())} {classes}"
        made = self._made.setdefault(identifier, {})
        if signature not in made:
            contract = make()
            if len(made) == _KEPT_OF_ONE_NAME:
                made.pop(next(iter(made)))
            made[signature] = dict(arguments), contract
        found = made[signature][1]
        return replace(
            found,
            schema=copy.deepcopy(found.schema),
            loose=copy.deepcopy(found.loose),
            defaults=copy.deepcopy(found.defaults),
        )


def _classes(annotation: Any) -> Iterator[type]:
    """Yield the classes that an annotation names."""
    if isinstance(annotation, type):
        yield annotation
    for part in get_args(annotation):
        yield from _classes(part)


class _Schemas:
    """Replaces ``make_schema``: it runs the migrations once and copies their tables."""

    def __init__(self) -> None:
        self._empty: sqlite3.Connection | None = None

    def __call__(self, connection: sqlite3.Connection) -> None:
        """Fill an empty database in memory."""
        if self._empty is None:
            self._empty = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            make_schema(self._empty)
        self._empty.backup(connection)

    def close(self) -> None:
        """Close the database that has the tables."""
        if self._empty is not None:
            self._empty.close()


@pytest.fixture(autouse=True, scope="session")
def quick_starts() -> Iterator[None]:
    """Put these in the place of the real functions."""
    with pytest.MonkeyPatch.context() as patch, closing(_Schemas()) as schemas, forked_starts():
        patch.setattr("proxy.tools.providers.function.make_contract", _Contracts())
        patch.setattr("proxy.store.sqlite.memory.make_schema", schemas)
        patch.setattr("proxy.app.compose.ui.StaticFiles", cache(StaticFiles))
        yield
