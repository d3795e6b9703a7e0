"""The structure of the code: who may import whom, no state at module level, public names, sizes.

Most tests read the syntax tree. The test of ``__all__`` imports the modules, and two tests import
the server in a process of its own.
"""

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "proxy"
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in FILES}

WORDS = {"base", "records", "json"}
LOWER = {"wires", "tools", "upstreams", "store"}
HELPERS = {*WORDS, "http", "net", "schemas", "hooks"}
SERVING = {"rights", "config", "telemetry", "server", "api", "ui", "app"}
"""The packages that face clients, each of which may import those before it (``ORDER``)."""

ALLOWED = {
    "base": {"base"},
    "records": {"records", "base"},
    "json": {"json", "base"},
    "http": {"http", "base"},
    "net": {"net", "base"},
    "schemas": {"schemas", "base"},
    "hooks": {"hooks", "base"},
    **{package: {package, *HELPERS} for package in LOWER},
    "upstreams": {"upstreams", "wires", *HELPERS},
    "toolbox": {"toolbox", "tools", *HELPERS},
    "relay": {"relay", *LOWER, *HELPERS},
    "rights": {"rights", "relay", *LOWER, *HELPERS},
    "config": {"config", "rights", "relay", *LOWER, *HELPERS},
    "telemetry": {"telemetry", "rights", "relay", *LOWER, *HELPERS},
    "server": {"server", "telemetry", "config", "rights", "relay", *LOWER, *HELPERS},
    "api": {"api", "server", "telemetry", "config", "rights", "relay", *LOWER, *HELPERS},
    "ui": {"ui", "api", "server", "telemetry", "config", "rights", "relay", *LOWER, *HELPERS},
    "app": {*SERVING, "relay", "toolbox", *LOWER, *HELPERS},
    "testing": {"testing", "upstreams", "wires", *HELPERS},
    "commands": {"commands", "testing", *SERVING, "relay", "toolbox", *LOWER, *HELPERS},
}
"""Which packages a package may import from."""

DIALECTS = {
    "proxy.wires.dialect",
    *(
        f"proxy.wires.{name}.dialect"
        for name in ("anthropic", "chat", "mcp", "ollama", "openai", "responses")
    ),
    "proxy.wires.registry.table",
    "proxy.wires.registry.comparing",
}
"""Dialects as data, which every module may read that speaks to a client or to an upstream."""

RELAY_MAY_IMPORT = {
    "proxy.wires.approving.shown",
    "proxy.wires.chosen",
    "proxy.wires.dialect",
    "proxy.wires.hosted.forms",
    "proxy.wires.hosted.markers",
    "proxy.wires.hosted.tools",
    "proxy.wires.openai.dialect",
    "proxy.wires.openai.images",
    "proxy.wires.responses.dialect",
    "proxy.wires.registry.hosted_tools",
    "proxy.wires.registry.requests",
    "proxy.wires.registry.variants",
    "proxy.wires.openai.parallel_tool_use",
    "proxy.wires.client_port",
    "proxy.wires.upstream_port",
    "proxy.wires.typed_tools.functions",
    "proxy.wires.typed_tools.searching",
    "proxy.wires.wire",
    "proxy.wires.repairing",
    "proxy.wires.crossed",
    "proxy.wires.crossed_links",
    "proxy.wires.profile",
    "proxy.wires.providers",
    "proxy.wires.text_calls.port",
    "proxy.wires.text_calls.rules",
    "proxy.wires.stream.fast_path",
    "proxy.wires.stream.plain",
    "proxy.wires.stream.sse",
    "proxy.json.splice",
    "proxy.wires.past.clock",
    "proxy.wires.past.evidence",
    "proxy.wires.turn.conversation_texts",
    "proxy.wires.turn.digest",
    "proxy.wires.stream.usage_tap",
    "proxy.upstreams.base",
    "proxy.store.base",
    "proxy.tools.contract.schemas.url_argument",
    "proxy.tools.contract.spec",
    "proxy.tools.images.maker",
    "proxy.tools.running.granted",
    "proxy.tools.running.plan",
    "proxy.tools.running.runner",
    "proxy.tools.running.tasks.concurrency",
    "proxy.tools.access.policy",
    "proxy.tools.access.hosts",
    "proxy.tools.access.prior_addresses",
    "proxy.tools.access.catalog",
    "proxy.tools.running.ledger",
    "proxy.tools.contract.redaction",
    "proxy.tools.contract.provider",
    "proxy.tools.agents.agent",
    "proxy.tools.agents.report",
    "proxy.tools.programs.engine",
    "proxy.tools.programs.stubs",
    "proxy.tools.searching.index",
    "proxy.tools.searching.listing",
    "proxy.tools.searching.patterns",
}
"""Ports and helpers; never a concrete wire, store, upstream or tool."""

COMPOSING = {
    "proxy.app.app",
    "proxy.app.open_authentication",
    "proxy.app.open_login",
    "proxy.app.open_record",
    "proxy.app.plugins",
    *(module for module in MODULES if module.startswith("proxy.app.compose.")),
    # A replay composes a server of its own.
    *(module for module in MODULES if module.startswith("proxy.app.replaying.")),
}
"""The composition root, which alone in the server names concrete classes, and the part of it that a
supervisor needs without the rest."""

ABSTRACT = (
    RELAY_MAY_IMPORT
    | DIALECTS
    | {
        "proxy.tools.access.call_prices",
        "proxy.tools.contract.bounds",
        "proxy.tools.contract.capabilities",
        "proxy.tools.contract.error_codes",
        "proxy.tools.access.egress",
        "proxy.tools.agents.agent",
        "proxy.tools.oauth.parameters",
        "proxy.tools.oauth.port",
        "proxy.tools.oauth.user_logins",
        "proxy.tools.providers.function",
        "proxy.tools.providers.modules",
        "proxy.tools.contract.provider",
        "proxy.tools.contract.schemas.schema",
        "proxy.tools.mcp.masking",
        "proxy.tools.contract.schemas.schema_library",
        "proxy.tools.mcp.definitions",
        "proxy.tools.mcp.overview",
        "proxy.tools.mcp.servers",
        "proxy.tools.openapi.api",
        "proxy.tools.openapi.document",
        "proxy.http.rules",
        "proxy.upstreams.recorded.format",
        "proxy.upstreams.recorded.scrubbing",
        "proxy.wires.stream.restoring",
        "proxy.wires.turn.digest",
        "proxy.wires.mcp.messages",
        "proxy.wires.registry.named_models",
        "proxy.wires.responses.resource",
        "proxy.wires.responses.websocket",
        "proxy.wires.mcp.results",
        "proxy.wires.crossing.codec",
        "proxy.wires.crossing.tables",
    }
)
"""What the rest of the server may import from the lower packages."""

KNOWS_REPLAY = {"proxy.upstreams.recorded.replay", "proxy.app.compose.upstreams"}
"""Replay, and the module that chooses it; the settings, too, may name ``replay:`` as a ``base_url``."""

SETTINGS = {
    "proxy.config.sections.upstreams",
    "proxy.config.addresses",
    "proxy.config.checks.rules",
}
READS_CONFIG = COMPOSING

LONG_FILES: dict[str, str] = {
    "proxy.base.error_codes": "every error code as data, with what it means",
}
"""Files that may be longer than 500 lines, and why."""

LONG_FUNCTIONS: dict[str, str] = {
    "proxy.tools.contract.declaration.tool": "one line for each thing a tool can declare, and its meaning",
}
"""Functions that may be longer than 60 lines, and why."""


def package_of(module: str) -> str:
    """The package of a module: the name below ``proxy``."""
    return module.partition(".")[2].partition(".")[0]


@cache
def tree_of(module: str) -> ast.Module:
    """A module's syntax tree."""
    return ast.parse(MODULES[module].read_text("utf-8"))


@cache
def nodes_of(module: str) -> tuple[ast.AST, ...]:
    """The nodes of a module's syntax tree, kept because a walk through it takes as long as parsing."""
    return tuple(ast.walk(tree_of(module)))


@cache
def imports_of(module: str) -> frozenset[str]:
    """Every module of this package that a module imports, at any place in its code."""
    found = set()
    for node in nodes_of(module):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "proxy"}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "proxy":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in MODULES or f"{inner}.__init__" in MODULES else node.module)
    return frozenset(found)


def in_package(package: str) -> list[str]:
    """The modules of a package."""
    return [module for module in MODULES if package_of(module) == package]


def test_the_packages_are_there() -> None:
    """Every module is in a package of ``ALLOWED``."""
    assert {package_of(module) for module in MODULES} == {*ALLOWED, "__main__", "__init__"}


def test_imports_are_absolute() -> None:
    """Imports are absolute, so that a reader sees from any line where a name comes from."""
    for module in MODULES:
        for node in nodes_of(module):
            assert not (isinstance(node, ast.ImportFrom) and node.level), f"{module}:{node.lineno}"


def test_imports_point_down() -> None:
    """Imports point down; the lower packages do not import each other, and none imports a higher one."""
    for module in MODULES:
        package = package_of(module)
        for imported in imports_of(module):
            if imported == "proxy":
                continue  # Its version.
            target = package_of(imported)
            assert package in ALLOWED or package == "__main__", f"{module} imports {imported}"
            assert package == "__main__" or target in ALLOWED[package], f"{module} imports {imported}"


def part_of(module: str, folder: str) -> str:
    """The folder or file directly in ``folder`` to which a module belongs."""
    return module.removeprefix(folder + ".").split(".")[0]


FOLDERS = sorted({module.rpartition(".")[0] for module in MODULES} - {"proxy"})


@pytest.mark.parametrize("folder", ["proxy", *FOLDERS])
def test_the_parts_of_a_folder_import_in_one_direction(folder: str) -> None:
    """The files and folders directly in a folder import each other without a circle, types included."""
    graph: dict[str, set[str]] = {}
    for module in MODULES:
        if module.startswith(folder + ".") and not module.endswith(".__init__"):
            inside = {name for name in imports_of(module) if name.startswith(folder + ".")}
            own = part_of(module, folder)
            graph.setdefault(own, set()).update({part_of(name, folder) for name in inside} - {own})
    TopologicalSorter(graph).prepare()  # Raises CycleError, which names the circle.


def test_files_import_without_a_circle() -> None:
    """No file imports itself by way of others, also for types alone."""
    files = {module: imports_of(module) & MODULES.keys() - {module} for module in MODULES}
    TopologicalSorter(files).prepare()


FULL_FOLDERS: dict[str, int] = {
    "relay/run": 15,
    "wires/text_calls": 14,
    "wires/turn": 17,
}
"""Folders that still have more files than twelve, and how many; these numbers may only fall."""


@pytest.mark.parametrize("folder", FOLDERS)
def test_folders_stay_readable(folder: str) -> None:
    """A folder has at most twelve files; more belong in folders of their own."""
    path = PACKAGE.parent / folder.replace(".", "/")
    count = len([file for file in path.glob("*.py") if file.name != "__init__.py"])
    assert count <= FULL_FOLDERS.get(path.relative_to(PACKAGE).as_posix(), 12)


def test_the_relay_knows_only_ports() -> None:
    """The relay imports no concrete wire, store, upstream or tool."""
    for module in in_package("relay"):
        outside = {name for name in imports_of(module) if package_of(name) not in ("relay", *HELPERS)}
        assert outside <= RELAY_MAY_IMPORT, f"{module} imports {outside - RELAY_MAY_IMPORT}"


def test_upstreams_know_dialects_as_data_alone() -> None:
    """An upstream knows dialects as data, and does not know how a wire is read or written."""
    for module in in_package("upstreams"):
        wires = {name for name in imports_of(module) if package_of(name) == "wires"}
        assert wires <= DIALECTS, f"{module} imports {wires - DIALECTS}"


def test_only_the_composition_root_names_concrete_classes() -> None:
    """All modules that face clients, except the composition root, use ports only."""
    for module in {module for package in SERVING for module in in_package(package)} - COMPOSING:
        outside = {name for name in imports_of(module) if package_of(name) in (*LOWER, "toolbox")}
        assert outside <= ABSTRACT, f"{module} imports {outside - ABSTRACT}"


def test_only_the_composition_root_and_the_commands_read_the_configuration() -> None:
    """Only the composition root and the commands read settings; other modules get values as arguments."""
    sections = {module for module in MODULES if module.startswith("proxy.config.sections.")}
    settings = {"proxy.config.load", "proxy.config.settings", *sections}
    for module in MODULES:
        if settings & set(imports_of(module)) and module not in READS_CONFIG:
            own = module.startswith("proxy.config.")
            assert own or package_of(module) == "commands", module


def test_nobody_knows_that_replay_exists() -> None:
    """Only replay itself, and the modules that compose it by its URL, name it."""
    for module, path in MODULES.items():
        if module in KNOWS_REPLAY | SETTINGS or package_of(module) in ("commands", "testing"):
            continue
        assert "proxy.upstreams.recorded.replay" not in imports_of(module), path
        for node in nodes_of(module):
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            assert "replay:" not in text, f"{path}:{getattr(node, 'lineno', 0)}"


MOST_COLLABORATORS = 8
MADE_OF_DATA: dict[str, str] = {
    "proxy.relay.base.RunSettings": "one field for each setting of runs",
    "proxy.relay.offering.offer.Offer": "one decision about names, as data",
    "proxy.relay.routing.router.ServedUpstream": "one field for each setting of an upstream",
    "proxy.relay.memory.hidden.agent_turns.AgentTurn": "what is kept of one turn of an agent",
    "proxy.relay.memory.hidden.turns.LastTurn": "what is kept of one turn",
    "proxy.relay.memory.hidden.turns.Restored": "what was put back into one request",
    "proxy.relay.memory.programs.ProgramState": "what is kept of one program that waits",
    "proxy.relay.nested.RunEnd": "what one run came to",
    "proxy.relay.run.parents.Parent": "what a call with a run of its own gets from the run that made it",
    "proxy.relay.run.run._Turn": "what is counted of one turn",
    "proxy.relay.run.state.TurnProgress": "how far one turn is, as data",
}
"""Values that have more fields than that and no collaborators, and why."""


def _fields(kind: ast.ClassDef) -> list[str]:
    """The fields that the constructor of a struct, a dataclass or a named tuple takes; none for any other
    class."""
    named = any(ast.unparse(base) in ("Struct", "NamedTuple", "typing.NamedTuple") for base in kind.bases)
    made = {ast.unparse(how.func if isinstance(how, ast.Call) else how) for how in kind.decorator_list}
    if not (named or made & {"dataclass", "value_class"}):
        return []
    fields = [node for node in kind.body if isinstance(node, ast.AnnAssign)]
    given = [node for node in fields if "init=False" not in ast.unparse(node.value or node.target)]
    return [ast.unparse(node.target) for node in given if "ClassVar" not in ast.unparse(node.annotation)]


def test_nothing_has_more_collaborators_than_one_can_keep_in_mind() -> None:
    """A constructor in the relay or the server takes at most eight arguments."""
    for module in (module for package in ("relay", *SERVING) for module in in_package(package)):
        for kind in (node for node in nodes_of(module) if isinstance(node, ast.ClassDef)):
            for made in kind.body:
                if isinstance(made, ast.FunctionDef) and made.name == "__init__":
                    arguments = [*made.args.posonlyargs, *made.args.args, *made.args.kwonlyargs][1:]
                    assert len(arguments) <= MOST_COLLABORATORS, (
                        f"{module}.{kind.name} takes {len(arguments)}"
                    )


def test_values_of_the_relay_are_made_of_few_parts() -> None:
    """A value of the relay has at most eight fields, or is listed here as data only."""
    for module in in_package("relay"):
        for kind in (node for node in nodes_of(module) if isinstance(node, ast.ClassDef)):
            fields = _fields(kind)
            name = f"{module}.{kind.name}"
            assert len(fields) <= MOST_COLLABORATORS or name in MADE_OF_DATA, f"{name} has {fields}"


# ---------------------------------------------------------------- broad handlers

SWALLOWS_ANYTHING: dict[str, str] = {
    "proxy.hooks.chain": "the code of an operator's hook",
    "proxy.tools.contract.validation": "the code of a tool's author",
    "proxy.tools.running.tasks.loop_watch": "thrown into the work that it watches",
    "proxy.tools.running.plan": "the code of a tool's author",
    "proxy.tools.running.tasks.threads": "the result of a thread",
    "proxy.tools.running.tasks.tool_tasks": "the code of a tool's author",
}
"""Modules that catch what ends a process or a task and do not raise it again; and what raises it there."""


def _broad(module: str) -> Iterator[ast.ExceptHandler]:
    """The handlers of a module that catch every exception."""
    for node in nodes_of(module):
        if isinstance(node, ast.ExceptHandler):
            caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            if any(one is None or ast.unparse(one) in ("Exception", "BaseException") for one in caught):
                yield node


def test_a_broad_handler_has_its_reason() -> None:
    """Each broad handler has a comment that says why, on its line, above it or below it."""
    for module in MODULES:
        lines = MODULES[module].read_text("utf-8").splitlines()
        for handler in _broad(module):
            above, own, below = lines[handler.lineno - 2], lines[handler.lineno - 1], lines[handler.lineno]
            reason = own.partition("#")[2].replace("noqa: BLE001", "").strip(" -")
            commented = any(line.strip().startswith("#") for line in (above, below))
            assert reason or commented, f"{module}:{handler.lineno} does not say why"


def test_nobody_swallows_a_cancellation() -> None:
    """A handler of ``BaseException`` raises again, except in the modules that are listed."""
    for module in MODULES:
        for handler in _broad(module):
            if handler.type is None or ast.unparse(handler.type) != "Exception":
                raises = any(isinstance(node, ast.Raise) for node in ast.walk(handler))
                assert raises or module in SWALLOWS_ANYTHING, (
                    f"{module}:{handler.lineno} swallows cancellations"
                )


# ---------------------------------------------------------------- state

STATEFUL = frozenset(
    {"dict", "list", "set", "bytearray", "defaultdict", "deque", "Counter", "OrderedDict", "ContextVar"}
)
PER_CONTEXT = {
    "proxy.base.chance": "what a run takes again is asked for by wires and tools, which know no run"
}
"""Modules that bind a context variable, whose values belong to the contexts of runs, and why."""
DISPLAYS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
MUTATORS = frozenset(
    {"add", "append", "appendleft", "clear", "discard", "extend", "insert"}
    | {"pop", "popitem", "remove", "setdefault", "sort", "reverse", "update"}
)


def bound(module: str) -> Iterator[tuple[str, ast.expr]]:
    """The names that a module binds at its top level, and their values."""
    for node in tree_of(module).body:
        if isinstance(node, ast.Assign):
            yield from ((ast.unparse(target), node.value) for target in node.targets)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield ast.unparse(node.target), node.value


def changed(module: str) -> Iterator[str]:
    """The names whose value a module changes in place: item set or deleted, mutator called, rebound."""
    for node in nodes_of(module):
        if isinstance(node, ast.Global):
            yield from node.names
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            yield ast.unparse(node.value)
        elif isinstance(node, ast.AugAssign):
            yield ast.unparse(node.target)
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS
        ):
            yield ast.unparse(node.func.value)


def test_no_state_at_module_level() -> None:
    """Two applications in one process share nothing: a module binds only constants, and none is changed."""
    for module in MODULES:
        touched = set(changed(module))
        for name, value in bound(module):
            called = value.func if isinstance(value, ast.Call) else None
            maker = ast.unparse(called).rpartition(".")[2] if called is not None else ""
            is_allowed = maker == "ContextVar" and module in PER_CONTEXT
            assert maker not in STATEFUL or is_allowed, f"{module}: {name} begins as something to be filled"
            if isinstance(value, DISPLAYS):
                assert getattr(value, "elts", getattr(value, "keys", None)) != [], (
                    f"{module}: {name} is empty"
                )
                assert name == "__all__" or name.isupper(), f"{module}: {name} is not written as a constant"
            assert name not in touched, f"{module}: {name} is changed"


# ---------------------------------------------------------------- exports and sizes


def test_only_public_names_are_imported() -> None:
    """A module imports no name with an underscore from another: the underscore is what makes it private."""
    for module in MODULES:
        for node in nodes_of(module):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("proxy."):
                private = [alias.name for alias in node.names if alias.name.startswith("_")]
                assert not private, f"{module} imports {private} of {node.module}"


def test_exports_are_truthful() -> None:
    """``__all__`` stands only where a module offers names of others, or is for authors of tools.

    It lists names that exist, each once.
    """
    for module in MODULES:
        loaded = importlib.import_module(module.removesuffix(".__init__"))
        exported = getattr(loaded, "__all__", None)
        if exported is None:
            continue
        assert len(exported) == len(set(exported))
        for name in exported:
            assert hasattr(loaded, name), f"{module}.{name}"
            assert not name.startswith("_")


def test_sizes_stay_readable() -> None:
    """A file has at most 500 lines and a function at most 60, unless it is listed with a reason."""
    for module in MODULES:
        lines = len(MODULES[module].read_text("utf-8").splitlines())
        assert lines <= 500 or module in LONG_FILES, f"{module} has {lines} lines"
        for node in nodes_of(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                length = node.end_lineno - node.lineno + 1
                name = f"{module}.{node.name}"
                assert length <= 60 or name in LONG_FUNCTIONS, f"{name} has {length} lines"


def test_exceptions_are_still_needed() -> None:
    """Each file or function that is listed as too long still is."""
    for module in LONG_FILES:
        assert len(MODULES[module].read_text("utf-8").splitlines()) > 500
    for name in LONG_FUNCTIONS:
        module, _, function = name.rpartition(".")
        lengths = [
            (node.end_lineno or 0) - node.lineno + 1
            for node in nodes_of(module)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function
        ]
        assert max(lengths, default=0) > 60, name


def test_only_one_module_uses_the_library_of_schemas() -> None:
    """No other module imports jsonschema_rs, which by itself loads the addresses that a schema names."""
    users = [
        module
        for module in MODULES
        for node in nodes_of(module)
        if (isinstance(node, ast.Import) and any(one.name.startswith("jsonschema_rs") for one in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jsonschema_rs"))
    ]
    assert set(users) == {"proxy.tools.contract.schemas.schema_library"}


def test_no_request_looks_for_a_protocol_at_run_time() -> None:
    """Such an ``isinstance`` looks up each member of the protocol: the ports have base classes instead."""
    outside = {"proxy.records.approvals", "proxy.records.grants"}
    assert {one for one in MODULES if b"runtime_checkable" in MODULES[one].read_bytes()} == outside


QUICK = "import sys; from proxy.base.light_imports import import_structlog; import_structlog(); "
STARTS = {
    "--help": (
        "import sys; from proxy.commands.cli import run; run(['--help'])",
        {"asyncio", "markdown_it", "msgspec", "proxy.config", "pydantic", "structlog"},
    ),
    "runs": (
        QUICK + "import proxy.commands.runs.runs",
        {"aiohttp", "cryptography", "httptools", "jsonschema_rs", "proxy.app", "proxy.tools.access", "yarl"}
        | {"proxy.tools.mcp.overview", "proxy.wires.client_port"},
    ),
    "server": (
        QUICK + "import proxy.commands.serve.serve, proxy.commands.serve.supervisor.worker",
        {"asyncpg", "cryptography", "lxml", "opentelemetry", "redis", "trafilatura"}
        | {"markdown_it", "rich", "typer"},
    ),
    "supervisor": (
        QUICK + "import proxy.commands.serve.supervisor.supervisor_main",
        {"aiohttp", "httptools", "jsonschema_rs", "msgspec", "prometheus_client", "proxy.app.app"}
        | {"proxy.config", "proxy.tools.contract", "pydantic", "rich", "typer"},
    ),
}
"""For each process: the code that starts it, and what it does not load, to save time and memory."""


@pytest.mark.parametrize("process", STARTS)
def test_a_process_loads_nothing_that_it_does_not_need(process: str) -> None:
    """``--help`` needs no configuration, ``runs`` no tools, a server nothing optional, a supervisor less."""
    starting, unneeded = STARTS[process]
    code = f"{starting}; print('loaded:', *({unneeded} & sys.modules.keys()))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "loaded:"
