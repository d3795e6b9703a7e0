"""aiohttp's private names: one module uses them, and the installed version has them as expected."""

import ast
import asyncio
import importlib
import inspect
import re
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

import aiohttp
import pytest
from aiohttp import web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser, RawRequestMessage
from aiohttp.web_protocol import RequestHandler
from edge_requests import Behind
from in_process import serving_proxy
from running_proxy import make_config, running

from proxy.base.errors import ConfigError
from proxy.server.connections.application import ConnectionBounds
from proxy.server.connections.connection import EdgeConnection
from proxy.server.messages.request import EdgeRequest
from proxy.server.transport import aiohttp_seam
from proxy.server.transport.aiohttp_seam import AiohttpConnection, AiohttpRequest, check_http_parser

PACKAGE = Path(aiohttp_seam.__file__).parents[2]
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

# ---------------------------------------------------------------- where private names are used


def is_private(name: str) -> bool:
    """Return whether a name begins with one underscore, but not with two."""
    return name.startswith("_") and not name.startswith("__")


@cache
def classes_of_aiohttp() -> dict[str, frozenset[str]]:
    """Return aiohttp's classes by module and name, each with its private members, slots and fields."""
    found = {}
    for path in sorted(Path(aiohttp.__path__[0]).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[f"aiohttp.{path.stem}.{node.name}"] = frozenset(filter(is_private, names_in(node)))
    return found


def names_in(kind: ast.ClassDef) -> Iterator[str]:
    """Yield what a class defines, binds, has as a slot, or stores in any attribute."""
    for node in ast.walk(kind):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            yield node.value


def inherited_names(kind: type) -> frozenset[str]:
    """Return the private names that a class inherits from aiohttp's classes."""
    none: frozenset[str] = frozenset()
    named = (f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__[1:])
    return none.union(*(classes_of_aiohttp().get(name, none) for name in named))


@cache
def names_of_aiohttp() -> frozenset[str]:
    """Return the private names of all classes of aiohttp."""
    none: frozenset[str] = frozenset()
    return none.union(*classes_of_aiohttp().values())


def classes_in(tree: ast.Module, module: ModuleType) -> Iterator[tuple[ast.ClassDef, type]]:
    """Yield the classes at a module's top level."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node, getattr(module, node.name)


def said_in(kind: ast.ClassDef, inherited: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield where a class uses a name that it inherits: on ``self``, on its base, or by defining it."""
    for node in ast.walk(kind):
        if isinstance(node, ast.Attribute) and node.attr in inherited:
            yield node.lineno, node.attr
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in inherited:
            yield node.lineno, node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in inherited:
            yield node.lineno, node.id
        elif isinstance(node, ast.Constant) and node.value in inherited:
            yield node.lineno, str(node.value)  # A slot, or the name in a ``getattr``.


def said_of_others(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield where a module reads a private name of aiohttp from an object that is not of its own class."""
    own = {"self", "cls", "super()"}  # What a class inherits from aiohttp, ``said_in`` finds.
    own |= {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    defined = {
        node.attr for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) in own
    }
    foreign = names_of_aiohttp() - defined
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in foreign:
            yield node.lineno, node.attr


def imported(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield where a module imports a private name of aiohttp, or imports from a private module of it."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "aiohttp" and any(map(is_private, parts)):
                yield node.lineno, name


def private_uses(tree: ast.Module, module: ModuleType) -> list[tuple[int, str]]:
    """Return the lines of a module that use a private name of aiohttp, with the names."""
    nodes = tuple(ast.walk(tree))
    found = [*imported(nodes), *said_of_others(nodes)]
    for node, kind in classes_in(tree, module):
        found += said_in(node, inherited_names(kind))
    return sorted(set(found))


def test_private_names_are_said_in_the_seam_alone() -> None:
    """Only one module uses, overrides or imports what aiohttp hides, so that an update concerns one place."""
    for name in sorted(set(MODULES) - {aiohttp_seam.__name__, "proxy.__main__"}):
        text = MODULES[name].read_text("utf-8")
        if "aiohttp" not in text and names_of_aiohttp().isdisjoint(re.findall(r"\b_\w+", text)):
            continue  # Most modules have none of these names, and a search of their syntax trees is slow.
        found = private_uses(ast.parse(text), importlib.import_module(name))
        assert found == [], f"{name}: give these a public name in {aiohttp_seam.__name__}"


SAMPLES = {
    "by self": "class A(AiohttpConnection):\n    def a(self): return self._waiter",
    "stored": "class A(AiohttpConnection):\n    def a(self): self._waiter = None",
    "by its base": "class A(AiohttpConnection):\n    def a(self): RequestHandler._process_keepalive(self)",
    "overridden": "class A(AiohttpConnection):\n    def _process_keepalive(self): return",
    "a slot": "class A(AiohttpConnection):\n    __slots__ = ('_waiter',)",
    "in the class": "class A(AiohttpConnection):\n    _waiter = None",
    "by its name": "class A(AiohttpConnection):\n    def a(self): return getattr(self, '_waiter')",
    "of another": "def a(connection): return connection._task_handler",
    "imported": "from aiohttp.streams import _T",
    "of a private module": "import aiohttp._websocket.models",
}


@pytest.mark.parametrize("name", SAMPLES)
def test_every_way_to_say_a_private_name_is_seen(name: str) -> None:
    """The search of the test above finds each way to use a private name."""
    module = ModuleType("sample")
    vars(module)["A"] = EdgeConnection  # Like the class of the samples, it inherits from aiohttp's.
    assert private_uses(ast.parse(SAMPLES[name]), module) != []


# ---------------------------------------------------------------- what the installed aiohttp has

SHAPES: dict[str, tuple[type, ...]] = {
    "_buffer_paused": (bool,),
    "_close": (bool,),
    "_current_request": (type(None),),
    "_force_close": (bool,),
    "_handler_waiter": (type(None),),
    "_keepalive_handle": (type(None),),
    "_loop": (asyncio.AbstractEventLoop,),
    "_messages": (deque,),
    "_msg_queue_resume_size": (int,),
    "_next_keepalive_close_time": (float,),
    "_parser": (HttpRequestParser,),
    "_request_in_progress": (bool,),
    "_task_handler": (type(None),),
    "_upgraded": (bool,),
    "_waiter": (type(None),),
}
"""The types of the values that a new connection of aiohttp has in each slot that the seam names."""

METHODS = {"_process_keepalive", "_resume_reading_if_drained"}
"""The private methods that the seam names: each takes only the connection."""


def renamed() -> dict[str, str]:
    """Return the private name behind each public name of the seam."""
    return {
        name: value.__name__
        for name, value in vars(AiohttpConnection).items()
        if not name.startswith("_") and hasattr(value, "__name__")
    }


def test_every_name_of_the_seam_is_known_here() -> None:
    """The tables above have exactly the private names that the seam uses."""
    assert sorted(renamed().values()) == sorted({*SHAPES, *METHODS})


async def test_the_installed_aiohttp_has_each_private_name() -> None:
    """The installed aiohttp has each private name as expected; the assertion says which one differs."""

    async def handle(request: web.BaseRequest) -> web.Response:
        return web.Response()

    new = RequestHandler(web.Server(handle), loop=asyncio.get_running_loop())
    for name, kinds in SHAPES.items():
        found = getattr(new, name, ...)
        assert isinstance(found, kinds), f"aiohttp {aiohttp.__version__}: {name} is {found!r}, not {kinds}"
    for name in METHODS:
        found = inspect.signature(getattr(RequestHandler, name)).parameters
        assert list(found) == ["self"], f"aiohttp {aiohttp.__version__}: {name} takes {list(found)}"
    assert list(inspect.signature(web.BaseRequest._cancel).parameters) == ["self", "exc"]


THEIRS = {*vars(RequestHandler), *vars(BaseProtocol)}
OVERRIDDEN = [name for name in vars(EdgeConnection) if name in THEIRS and not name.startswith("_")]


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_what_is_overridden_is_asked_as_before(name: str) -> None:
    """Each public method that the connection overrides takes the same arguments in aiohttp."""
    ours, theirs = getattr(EdgeConnection, name), getattr(RequestHandler, name)
    assert [*inspect.signature(ours).parameters] == [*inspect.signature(theirs).parameters]


def test_a_slot_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an aiohttp that lacks a slot the import fails, and the error has the version and the slot."""
    monkeypatch.delattr(RequestHandler, "_waiter")
    monkeypatch.setattr(aiohttp, "__version__", "3.99")
    with pytest.raises(ImportError, match=r"aiohttp 3\.99 has no attribute _waiter"):
        aiohttp_seam._slot("_waiter")


def test_a_request_that_aiohttp_cancels_is_told() -> None:
    """aiohttp's private ``_cancel`` calls the request's public ``client_gone``."""
    told: list[BaseException] = []

    class Request(AiohttpRequest):
        def client_gone(self, exc: BaseException) -> None:
            told.append(exc)

    gone = ConnectionResetError("gone")
    Request()._cancel(gone)
    assert told == [gone]


async def test_what_aiohttp_asks_of_a_connection_it_finds() -> None:
    """While a request is served, the public and the private name of each field have the same value."""

    async def hello(request: EdgeRequest) -> web.Response:
        handler = request.protocol
        assert isinstance(handler, EdgeConnection)
        for name, private in renamed().items():
            assert getattr(handler, name) == getattr(handler, private)
        assert handler.current_request is request
        assert handler.waiter is None
        assert handler.in_progress
        assert handler.serving_task is asyncio.current_task() is request.task
        assert handler.messages == []
        assert handler._bounds == ConnectionBounds(7, 8)
        assert request.content.exception() is None
        return web.Response(text="hello")

    served = Behind(hello, ConnectionBounds(7, 8))
    async with serving_proxy(served) as client:
        assert await (await client.get("/")).text() == "hello"
    assert served.closed


def test_the_parser_in_c_is_there() -> None:
    """The tests use aiohttp's parser in C, which the proxy requires."""
    check_http_parser()
    assert RawRequestMessage.__module__ == "aiohttp._http_parser"


@pytest.mark.parametrize(
    ("version", "good"),
    [
        ("3.14.3", True),
        ("3.15.0", True),
        ("4.0.0a1", True),
        ("3.14.2", False),
        ("3.9.5", False),
        ("3", False),
    ],
)
def test_an_old_aiohttp_is_refused(version: str, good: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy refuses an old aiohttp, and the error has its version and the remedy."""
    monkeypatch.setattr(aiohttp, "__version__", version)
    if good:
        check_http_parser()
        return
    with pytest.raises(
        ConfigError, match=f"aiohttp: is version {version}, but toolrelay needs 3.14.3 or later.*pip install"
    ):
        check_http_parser()


async def test_a_parser_in_python_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy does not start with the parser in Python; the error names the variable that selects it."""

    class Message:
        """It stands for the message class of aiohttp's parser in Python."""

    monkeypatch.setattr(aiohttp_seam, "RawRequestMessage", Message)
    with pytest.raises(ConfigError, match="AIOHTTP_NO_EXTENSIONS"):
        async with running(make_config("http://127.0.0.1:9/v1")):
            pass
