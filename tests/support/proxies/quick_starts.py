"""Builds parts that are equal in each application of a test once, and copies them.

Thousands of tests start a proxy. Most of the time of such a start goes into the schemas of the same built-in
tools, the same tables in an empty database, and the files of the pages. The real code builds each of these
once, and later starts get copies. Proxies that tests start as processes build all of it themselves
(``forked_starts.py`` makes them start quickly). So do the tests of schemas, migrations and files, because
they call the code directly.
"""

import copy
import itertools
import json
import operator
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from functools import cache
from types import CodeType, FunctionType
from typing import Any, NamedTuple, get_args

import pytest
from forked_starts import forked_starts
from msgspec.structs import replace

from proxy.store.sql.migrate import make_schema
from proxy.tools.contract.capabilities import Capabilities
from proxy.tools.contract.declaration import ToolDeclaration, declared
from proxy.tools.contract.schemas.schema import check_schema
from proxy.tools.contract.signature import Contract, make_contract, read_signature
from proxy.tools.providers import function
from proxy.ui.static_files import StaticFiles

_KEPT_OF_ONE_NAME = 8


class _Contracts:
    """Replaces ``make_contract`` of the provider: it makes the contract of equal signatures only once.

    Two signatures are equal if they have the same text and name the same classes, because fields of pydantic
    cannot be compared. The text of a validator has its address, and a class is identified by its address:
    two tests may each have a class of the same name. Both are kept with the contract, so that no other
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


class _BoundTools:
    """Replaces ``_load`` of the provider: it binds functions of the same source only once.

    A built-in tool is a new function in each application, since it holds what that application gives it. Its
    code, annotations, defaults and declaration are the same. Only the values of its capabilities are looked
    up each time. All of these tools share one contract; :meth:`check` finds out who has changed it.
    """

    def __init__(self) -> None:
        self._load = function._load
        self._kept: dict[tuple[str, CodeType], list[_Known]] = {}
        self._schemas: dict[int, Mapping[str, Any]] = {}

    def __call__(self, provider: str, target: Any, capabilities: Capabilities) -> Any:
        """Return the tool; errors of the real function are raised and not kept."""
        declaration = declared(target)
        if not isinstance(target, FunctionType) or declaration is None:
            return self._load(provider, target, capabilities)
        kept = self._kept.setdefault((provider, target.__code__), [])
        extra = frozenset(capabilities.extra)
        for known in kept:
            if known.fits(target, declaration, extra):
                where = f"tool {known.bound.spec.name}"
                constants = {
                    name: function._capability(kind, declaration, capabilities, where)
                    for name, kind in known.kinds.items()
                }
                return replace(known.bound, function=target, constants=constants)
        bound = self._load(provider, target, capabilities)
        if len(kept) < _KEPT_OF_ONE_NAME:
            spec = bound.spec
            verbatim = declaration.parameters is not None
            kinds = read_signature(target, spec.name, verbatim=verbatim, extra=extra).capabilities
            constant = {name: kinds[name] for name in bound.constants}
            shared = replace(bound, constants={})
            kept.append(_Known(target, declaration, extra, shared, constant, json.dumps(spec.parameters)))
            self._schemas[id(spec.parameters)] = spec.parameters
        return bound

    def check_schema(self, schema: Any, where: str) -> None:
        """Check a schema as the catalog does, except those that all applications share."""
        if self._schemas.get(id(schema)) is not schema:
            check_schema(schema, where)

    def check(self) -> None:
        """Fail if anything has changed a contract that all applications share."""
        for known in itertools.chain.from_iterable(self._kept.values()):
            assert json.dumps(known.bound.spec.parameters) == known.parameters, known.bound.spec.name


class _Known(NamedTuple):
    """One function that was bound, and with which types of capabilities."""

    target: Any  # A FunctionType, which as an attribute of a class would be a method.
    declaration: ToolDeclaration
    extra: frozenset[type]
    bound: Any
    kinds: Mapping[str, type]
    parameters: str

    def fits(self, target: FunctionType, declaration: ToolDeclaration, extra: frozenset[type]) -> bool:
        """Return whether another function of the same code is the same tool."""
        known = self.target
        return (
            known.__globals__ is target.__globals__
            and (known.__name__, known.__doc__) == (target.__name__, target.__doc__)
            and self.declaration == declaration
            and self.extra == extra
            and (known.__defaults__, known.__kwdefaults__) == (target.__defaults__, target.__kwdefaults__)
            and known.__annotations__.keys() == target.__annotations__.keys()
            and all(map(_alike, known.__annotations__.values(), target.__annotations__.values()))
        )


def _alike(known: Any, annotation: Any) -> bool:
    """Return whether two annotations mean the same.

    Fields of pydantic are compared by their text. The known annotation lives on, so that no other object
    gets the addresses in its text.
    """
    if known is annotation:
        return True
    ours, theirs = list(_classes(known)), list(_classes(annotation))
    return (
        len(ours) == len(theirs) and all(map(operator.is_, ours, theirs)) and repr(known) == repr(annotation)
    )


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
        tools = _BoundTools()
        patch.setattr("proxy.tools.providers.function.make_contract", _Contracts())
        patch.setattr("proxy.tools.providers.function._load", tools)
        patch.setattr("proxy.tools.access.catalog.check_schema", tools.check_schema)
        patch.setattr("proxy.store.sqlite.memory.make_schema", schemas)
        patch.setattr("proxy.app.compose.ui.StaticFiles", cache(StaticFiles))
        yield
        tools.check()
