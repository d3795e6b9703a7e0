"""Whatever the proxy keeps from one request to the next has a bound in bytes, and reports its size.

The syntax tree shows every container that an object fills for as long as it lives, and every memoized
function. Each of them is declared (:mod:`proxy.base.caches`), or is listed here with the reason why not.
"""

import ast
import gc
import socket
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from proxy.base.caches import (
    CacheSize,
    Derived,
    Memo,
    Snapshot,
    cache_sizes,
    declare,
    text_bytes,
    value_bytes,
)
from proxy.net.resolver import AddressInfo, Resolver
from proxy.rights.limit_rules import Limit
from proxy.server.limits import memory as limits_memory
from proxy.server.limits.counters import Counters
from proxy.store.seal import HIDDEN
from proxy.store.sql.retention import CallerCap
from proxy.telemetry.metrics import Metrics, render

PACKAGE = Path(__file__).resolve().parents[2] / "proxy"
CONTAINERS = frozenset({"dict", "set", "list", "deque", "OrderedDict", "defaultdict", "Counter"})

OF_ONE_REQUEST = (
    "proxy.commands",
    "proxy.base.events",
    "proxy.records.rows",
    "proxy.toolbox",
    "proxy.tools.testing",
    "proxy.upstreams.recorded.recorder",
    "proxy.wires",
)
"""Modules whose objects live as long as one command, test, recording or request: for example readers,
writers and bodies of a wire, and what a tool reads of an answer."""

NO_CACHE: dict[str, str] = {
    "proxy.base.caches.Snapshot": "memos, each of which is declared",
    "proxy.base.caches._Declared": "the list of caches itself: weak references",
    "proxy.base.conversation.Conversation": "one request",
    "proxy.json.lenient.HalfPairs": "the texts of one stream that end in half a character",
    "proxy.api.generate.restored_stream.RestoredStream": "the body of one answer that is no stream",
    "proxy.hooks.placeholders.Placeholders": "the placeholders of one request, bounded in number and size",
    "proxy.base.hard_timeout.HardTimeout": "work that nobody waits for any more, until it ends",
    "proxy.relay.passing.sniffing.SniffedResponse": "the first bytes of one response",
    "proxy.relay.routing.deadlines.Deadlines": "requests that are open",
    "proxy.relay.routing.router.Router": "part of permissions, which count it: 64 names of 100 characters",
    "proxy.relay.run.run.Run": "lives as long as its run",
    "proxy.relay.run.tool_calls._ShownCalls": "lives as long as the calls of one turn",
    "proxy.config.sections.network.ProxySettings": "the faults of one configuration",
    "proxy.tools.mcp.host.http.CheckedTransport": "one transport for each proxy of the settings, two at most",
    "proxy.schemas.portable._Repair": "lives as long as a schema is repaired, and bounded by it",
    "proxy.app.replaying.frozen.FrozenResults": "the calls of the one run that is replayed",
    "proxy.testing.providers.Providers": "sixteen addresses with a key at most",
    "proxy.testing.running.Replay": "the requests of one test that no fixture answered",
    "proxy.tools.programs.monty_child.Printed": "what one program printed, up to a limit",
    "proxy.upstreams.recorded.matching.Asked": "lives as long as its request",
    "proxy.upstreams.recorded.matching.Matcher": "the turns of a folder of fixtures, which is bounded",
    "proxy.server.connections.draining.Draining": "requests that are open",
    "proxy.server.messages.forms.Form": "lives as long as its request; its parts are bounded",
    "proxy.server.messages.json_bodies.JsonBodies": "callers one of whose large bodies is being parsed",
    "proxy.server.websockets.session.WebSockets": "connections that are open, which limits.websockets bounds",
    "proxy.server.transport.websocket.WebSocket": "messages that wait, bounded in number and bytes",
    "proxy.store.look_ups.LookUps": "tasks that run, at most one for each lane",
    "proxy.store.look_ups._Waiting": "look-ups of requests that are open",
    "proxy.store.postgres.db.PostgresConnections": "connections, at most one for each look-up and report",
    "proxy.server.auth.key_ring.KeyRing": "keys that administrators made",
    "proxy.server.connections.connection.EdgeConnection": "a connection's own; its bodies are bounded",
    "proxy.telemetry.request_log.RequestLog": "requests of a second, 10,000 at most",
    "proxy.telemetry.metrics._Counter": "figures themselves; labels come from closed lists",
    "proxy.telemetry.metrics._Histogram": "figures themselves; labels come from closed lists",
    "proxy.telemetry.metrics._Tally": "one of figures",
    "proxy.server.auth.minting._Narrowed": "a part of a token",
    "proxy.telemetry.log.output_queue.QueuedStream": "the beginning of a line",
    "proxy.server.peers.Peers": "the questions that workers answer: written in the code",
    "proxy.server.messages.heads.pending_heads.PendingHeads": "addresses of pending heads, which are bounded",
    "proxy.telemetry.refused_keys.RefusedKeys": "upstreams of the configuration",
    "proxy.server.limits.redis.RedisCounters": "leases of requests that are open; the rest is limits_owed",
    "proxy.server.limits.redis._Line": "commands of requests that are open, and of limits_owed",
    "proxy.server.middleware.page_guard.RefusedOrigins": "sixteen origins of 200 characters",
    "proxy.server.connections.fairness.FairScheduler": "requests that are open",
    "proxy.api.mcp.sessions.McpSessions": "requests that are open",
    "proxy.api.detached.background.BackgroundRuns": "responses that run, bounded in number",
    "proxy.api.detached.background_stream.BackgroundStream": "lives as long as its response runs",
    "proxy.api.detached.logs.event_log.EventLog": "16 MiB at most, 128 MiB of all; kept for ten minutes",
    "proxy.api.detached.logs.event_log.LocalLogs": "logs that go on, or ended within ten minutes",
    "proxy.api.detached.logs.redis_logs.RedisLogs": "logs of this process that Redis does not have yet",
    "proxy.api.detached.resumable.KeptStream": "the proxy's own headers of one response",
    "proxy.api.detached.resumable.ResumableRuns": "runs that go on",
    "proxy.relay.nested.RunWatch": "lives as long as its run",
    "proxy.relay.run.parents.Parents": "runs that wait for their tools",
    "proxy.base.chance.Draws": "ids and times of one run, 20,000 at most",
    "proxy.api.taping.tape.Leg": "one body of a run; the cache tapes counts its bytes",
    "proxy.api.taping.tape.RunTape": "the bodies of one run; the cache tapes counts their bytes",
    "proxy.ui.feed.Feed": "six hundred rows that were seen, three hundred events of 8 KiB",
    "proxy.ui.live.Live": "twenty pages that listen",
    "proxy.ui.runs.run_rows.RunRows": "names of client keys, which an operator makes",
    "proxy.ui.sign_in._Failures": "a hundred addresses at most, of one minute",
    "proxy.api.mcp.endpoint._ProgressEvents": "progress of one call that is about to be sent",
    "proxy.store.postgres.writing.PostgresWriting": "column types of the statements in the code",
    "proxy.store.sql.writing.back_pressure.BackPressure": "runs that wait",
    "proxy.store.sql.writing.write_behind.WriteBehind": "rows that record_queue counts",
    "proxy.store.sql.writing.write_queue.WriteQueue": "rows that record_queue counts",
    "proxy.tools.access.catalog.Registry": "tools that do not fit, of the newest catalog",
    "proxy.tools.mcp.host.left_behind.LeftBehind": "servers that end just now",
    "proxy.tools.mcp.host.service.Service": "workers of this machine",
    "proxy.tools.mcp.host.service._Worker": "bytes that wait, counted for each configured server",
    "proxy.tools.mcp.host.stdio.StdioServer": "calls that are open at one server, bounded in number",
    "proxy.tools.mcp.pins.RecordedPins": "pins, of which there are a thousand at most",
    "proxy.tools.mcp.process.HostProcess": "servers of the configuration",
    "proxy.tools.mcp.authorization.ServerAuthorizer": "the configured servers",
    "proxy.tools.mcp.host.authorization.Authorizations": "workers, and what they are asked now",
    "proxy.tools.access.credentials.CredentialBroker": "logins of end users, a thousand at most",
    "proxy.tools.mcp.pinned.PinnedProvider": "tools that an operator has allowed",
    "proxy.tools.mcp.provider.McpProvider": "tools that an operator has allowed",
    "proxy.tools.openapi.document.Loader": "forms of YAML's values, four in all",
    "proxy.tools.openapi.operations._Operation": "parameters of one operation, while a command reads it",
    "proxy.tools.openapi.schemas.Schemas": "schemas of one operation, while a command reads it",
    "proxy.tools.mcp.results._Content": "lives as long as its result, which is bounded",
    "proxy.relay.offering.deferred.Deferred": "the tools of one offer, which the cache of offers counts",
    "proxy.tools.searching.index.ToolIndex": "the tools of one offer, which that cache counts, too",
    "proxy.tools.searching.listing.Searches": "runs whose search is under way",
    "proxy.tools.running.tasks.concurrency.Slots": "callers whose tools run",
    "proxy.tools.access.single_flight.SingleFlight": "work that is under way",
    "proxy.tools.providers.function.FunctionProvider": "the tools of a module",
    "proxy.tools.running.ledger.RunLedger": "lives as long as its run, and then is one of repeats",
    "proxy.tools.running.runner.Runner": "calls that run",
    "proxy.tools.contract.schemas.strict._Converter": "lives as long as a schema is made strict",
    "proxy.tools.running.tasks.tool_tasks.ToolTasks": "calls that run, or do not end",
    "proxy.upstreams.http1.connection.Http1Pool": "open connections, bounded in number",
    "proxy.upstreams.http1.exchange.Exchange": "lives as long as its request",
    "proxy.upstreams.http1.reader.LengthReader": "lives as long as its response",
    "proxy.upstreams.http1.reader.ResponseReader": "lives as long as its response",
    "proxy.upstreams.http1.response_heads.ResponseHeads": "four templates, each of them one of header_names",
}


@cache
def trees() -> dict[str, ast.Module]:
    """The syntax tree of every module."""
    return {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): ast.parse(path.read_text("utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def _begins_empty(value: ast.expr | None) -> bool:
    """Whether this expression makes an empty container, which is there to be filled."""
    if isinstance(value, ast.Dict):
        return not value.keys
    if isinstance(value, ast.List):
        return not value.elts
    if not isinstance(value, ast.Call):
        return False
    name = ast.unparse(value.func).rpartition(".")[2]
    return (name in CONTAINERS and not value.args) or (
        name == "field"
        and any(
            keyword.arg == "default_factory" and ast.unparse(keyword.value).rpartition(".")[2] in CONTAINERS
            for keyword in value.keywords
        )
    )


def filled_classes() -> Iterator[tuple[str, bool]]:
    """Each class whose objects have a container from the start, and whether the class declares a cache."""
    for module, tree in trees().items():
        if module.startswith(OF_ONE_REQUEST):
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef):
                continue
            made = [
                each.value
                for method in node.body
                if isinstance(method, ast.FunctionDef) and method.name in ("__init__", "_reset")
                for each in ast.walk(method)
                if isinstance(each, ast.Assign | ast.AnnAssign)
                and ast.unparse(each.targets[0] if isinstance(each, ast.Assign) else each.target).startswith(
                    "self."
                )
            ]
            how = "".join(map(ast.unparse, (*node.decorator_list, *node.bases)))
            if "slots=True" not in how and "Struct" not in how:
                made += [each.value for each in node.body if isinstance(each, ast.AnnAssign)]
            if any(map(_begins_empty, made)):
                declares = any(
                    isinstance(each, ast.Call) and ast.unparse(each.func) == "declare"
                    for each in ast.walk(node)
                )
                yield f"{module}.{node.name}", declares


def test_every_container_is_declared_or_no_cache() -> None:
    """A class that keeps something in a container declares a bound, or is listed with a reason."""
    found = dict(filled_classes())
    silent = {name for name, declares in found.items() if not declares}
    assert silent - set(NO_CACHE) == set(), (
        "declare a bound in bytes (proxy.base.caches), or say why it is no cache"
    )
    assert set(NO_CACHE) - set(found) == set(), "nothing is kept there any more"
    assert {name for name in NO_CACHE if found.get(name)} == set(), "declared now: take it off the list"


def test_every_remembered_function_is_declared() -> None:
    """Every memoized function declares a bound for the bytes of its entries."""
    for module, tree in trees().items():
        remembered = {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef)
            and any("cache" in ast.unparse(each) for each in node.decorator_list)
            and not any("property" in ast.unparse(each) for each in node.decorator_list)
        }
        declared = {
            ast.unparse(node.args[1])
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "declare_lru"
        }
        assert remembered == declared, module


BY_IDENTITY = {
    "proxy.tools.contract.schemas.schema": "parts of one schema, which lives longer than the walk through it",
    "proxy.tools.openapi.document": "parts of one document, which is held while they are counted",
    "proxy.wires.anthropic.body": "messages of one request, which holds them",
    "proxy.wires.anthropic.reader": "blocks of one event, which are held beside their ids",
    "proxy.wires.message_list.body": "messages of one request, which holds them",
    "proxy.wires.responses.reader": "items of one event, which are held beside their ids",
    "proxy.wires.turn.refused_fields": "messages of one request, which holds them",
}
"""Modules that use ``id``, while what has it is held."""


def test_nothing_is_kept_by_an_address() -> None:
    """Nothing is stored under an ``id()``, because the id of a deleted object can belong to a new one."""
    reading = {
        module
        for module, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id == "id" and isinstance(node.ctx, ast.Load)
    }
    assert reading == set(BY_IDENTITY)


def test_what_is_worked_out_from_a_version_goes_with_it() -> None:
    """Each version has its own memo with its own bound, and a retired version keeps nothing."""
    derived: Derived[str, bytes] = Derived("derived of a test", 100, lambda _, value: len(value))
    other: Derived[str, bytes] = Derived("derived of a test", 100, lambda _, value: len(value))
    old, new = Snapshot(1), Snapshot(2)
    assert derived.of(old).put("key", b"x" * 60) == b"x" * 60
    assert derived.of(old).get("key") == b"x" * 60
    assert derived.of(new).get("key") is None
    assert other.of(old).get("key") is None
    assert cache_sizes()["derived of a test"] == CacheSize(60, 300)
    old.retire()
    assert derived.of(old).get("key") is None
    assert derived.of(old).put("key", b"y") == b"y"
    assert derived.of(old).get("key") is None
    derived.of(new).put("key", b"z")
    assert derived.of(new).get("key") == b"z"
    assert cache_sizes()["derived of a test"] == CacheSize(1, 100)


class _Kept:
    """A cache for a test."""

    def __init__(self, held: int) -> None:
        self.held = held
        declare("of a test", self.size)

    def size(self) -> CacheSize:
        """The size and the limit of this cache."""
        return CacheSize(self.held, 100)


def test_caches_of_one_name_are_added_up_while_they_live() -> None:
    """The sizes of caches with the same name are added up, and the list keeps no cache alive."""
    first, second = _Kept(1), _Kept(20)
    assert cache_sizes()["of a test"] == CacheSize(21, 200)
    del first
    gc.collect()
    assert cache_sizes()["of a test"] == CacheSize(20, 100)
    assert second.held == 20
    del second
    gc.collect()
    assert "of a test" not in cache_sizes()


def test_a_memo_stays_within_its_bytes() -> None:
    """A value that would exceed the bound empties the memo; one that is too large by itself is not kept."""
    memo: Memo[int, bytes] = Memo("memo of a test", 100, lambda _, value: len(value))
    assert memo.put(1, b"x" * 60) == b"x" * 60
    assert memo.get(1) is not None
    memo.put(2, b"x" * 60)
    assert memo.get(1) is None
    assert memo.get(2) is not None
    memo.put(3, b"x" * 101)
    assert memo.get(3) is None
    assert cache_sizes()["memo of a test"] == CacheSize(60, 100)


@pytest.mark.parametrize(
    ("texts", "size"), [(("abc", None), 3), ((b"abc", "ä"), 7), (("\U0001f600",), 4), ((), 0)]
)
def test_texts_are_counted_as_they_may_lie_in_memory(
    texts: tuple[str | bytes | None, ...], size: int
) -> None:
    """A character counts as one byte, or as four bytes in a text that is not ASCII."""
    assert text_bytes(texts) == size


def test_values_are_counted_as_what_they_become() -> None:
    """The size of a value counts all its objects in memory, however empty or deeply nested they are."""
    wide: list[object] = [{} for _ in range(10_000)]
    assert value_bytes(wide) > 10_000 * 60
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert value_bytes(deep) > 100_000 * 50
    assert value_bytes({"text": "x" * 1000}) > 1000


def test_the_metrics_name_every_cache() -> None:
    """The metrics have the size and the limit of every cache, with the cache as a label."""
    kept = _Kept(7)
    text = render(Metrics(models=(), tools=(), version="1").snapshot())[0].decode()
    assert f'toolrelay_cache_bytes{{cache="of a test"}} {float(kept.held)}' in text
    assert 'toolrelay_cache_limit_bytes{cache="of a test"} 100.0' in text
    assert 'toolrelay_cache_limit_bytes{cache="figures"}' in text


async def test_hits_are_bounded_in_all_and_the_caller_who_asks_keeps_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Above the bound the least used counters are dropped, and a limit in use is never forgotten."""
    monkeypatch.setattr(limits_memory, "MOST_STAMPS", 1000)
    counters = Counters()
    limit = Limit("requests", 400, 60)
    for caller in ("a", "b", "c", "d"):
        for _ in range(300):
            assert (await counters.take(caller, (limit,), (), None, "")).refused is None
    memory = counters._windows.hits.storage
    assert isinstance(memory, limits_memory.BoundedMemory)
    size = memory._cache_size()
    assert 0 < size.held <= size.limit
    assert memory._counted() <= 1000
    for _ in range(100):
        assert (await counters.take("d", (limit,), (), None, "")).refused is None
    assert (await counters.take("d", (limit,), (), None, "")).refused is limit
    assert (await counters.take("a", (limit,), (), None, "")).limit_statuses[0].left == 399


async def test_answers_of_a_dns_server_are_bounded_in_bytes() -> None:
    """If a DNS server sends thousands of addresses for each name, only the last names stay known."""
    many = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"10.0.{n // 250}.{n % 250}", 0)) for n in range(4000)
    ]
    asked: list[str] = []

    def look_up(host: str) -> Sequence[AddressInfo]:
        asked.append(host)
        return many

    resolver = Resolver("tests", look_up=look_up)
    for number in range(10):
        await resolver.resolve(f"host{number}.test", 80)
    size = resolver._cache_size()
    assert 0 < size.held <= size.limit
    await resolver.resolve("host9.test", 80)
    await resolver.resolve("host0.test", 80)
    assert asked[10:] == ["host0.test"]


def test_callers_to_look_at_are_bounded_whoever_they_are() -> None:
    """Neither the number nor the length of callers' names makes the list exceed its bound."""
    cap = CallerCap(10)
    for number in range(50_000):
        cap.note(HIDDEN, f"{number}" + "x" * 3000, 1)
    size = cap._cache_size()
    assert 0 < size.held <= size.limit
