"""The bench: what it reads and what it shows. No test checks its figures."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from child_server import reserved_port
from closed_port import closed_port

from bench import hosted_search, kept_bytes, mcp_servers, soak, stages, ui_open
from bench.capacity import DELAY_MS, FULL, PAUSE_MS, Step, Window, climb, hold, load_of
from bench.contestants import toolrelay_config
from bench.load import Load, request_bytes
from bench.measure import DELAY_STREAMS, Table, run_load
from bench.processes import Process, python, started
from bench.prompt_cache import BACK, CachingUpstream
from bench.record import prepare
from bench.report import plot_delays, ratios, show_table
from bench.staged_worker import MARKS, REST, STAGES, THREADS, Meter, meter_stages
from bench.tool_search import cached, offer_of, requests_of
from bench.wire import KEY, Plan, plan_of, stamps
from proxy.config.load import load_config
from proxy.relay.offering.deferred import SearchRules
from proxy.store.base import RunFilter, UsageFilter
from proxy.store.factory import open_store

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("plan", [Plan("json"), Plan("burst", 500), Plan("paced", 40, 20), Plan("act", 7)])
def test_a_plan_is_read_as_it_was_written(plan: Plan) -> None:
    """The upstream reads from a model's name the plan that the clients wrote into it."""
    assert plan_of(f'{{"stream": true, "model": "{plan.model}"}}'.encode()) == plan


def test_stamps_are_found() -> None:
    """The bench reads every time stamp in a piece of a stream, except an incomplete one."""
    assert stamps(b'data: "@12@ x"\n\ndata: "@345@ y" @67') == [12, 345]


def test_a_request_has_the_conversation_it_is_to_have() -> None:
    """A request has the configured number and length of messages, and the last one is the user's."""
    load = Load(1, messages=5, message_bytes=100)
    head, _, body = request_bytes(load).partition(b"\r\n\r\n")
    asked = json.loads(body)
    assert f"Content-Length: {len(body)}".encode() in head
    assert [len(message["content"]) for message in asked["messages"][:-1]] == [100] * 4
    assert asked["messages"][-1]["role"] == "user"


def test_a_prompt_cache_is_counted_as_documented() -> None:
    """The cache reads a prefix that an earlier request marked, at most twenty blocks before a mark."""
    upstream = CachingUpstream()

    def count(texts: int, *marked: int) -> tuple[int, ...]:
        content = [
            {
                "type": "text",
                "text": "x" * 100_000,
                **({"cache_control": {"type": "ephemeral"}} if at in marked else {}),
            }
            for at in range(texts)
        ]
        counts = upstream.count({"messages": [{"role": "user", "content": content}]})
        return tuple(
            counts[f"{kind}input_tokens"] // 25_000 for kind in ("cache_read_", "cache_creation_", "")
        )

    assert count(2) == (0, 0, 2)
    assert count(2, 1) == (0, 2, 0)
    assert count(3, 2) == (2, 1, 0)
    assert count(3) == (0, 0, 3)
    assert count(3 + BACK, 2 + BACK) == (3, BACK, 0)
    assert count(4 + 2 * BACK, 3 + 2 * BACK) == (0, 4 + 2 * BACK, 0)


@pytest.fixture
def mock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    """The upstream, in a process of its own."""
    monkeypatch.chdir(ROOT)
    with reserved_port() as port:
        command = python("-m", "bench.mock", str(port))
        with started("mock", port, command, tmp_path / "mock.log", core=None) as mock:
            yield mock


@pytest.mark.parametrize(
    "load",
    [
        Load(0, "json", requests=20, connections=4),
        Load(0, "burst", 50, requests=6, connections=3),
        Load(0, "paced", 4, 5, requests=3, connections=3, hold=True),
        Load(0, "tool", 5000, requests=2, connections=1),
    ],
    ids=lambda load: load.kind,
)
def test_the_clients_read_what_the_upstream_says(mock: Process, load: Load) -> None:
    """The clients read and count every kind of answer to its end, and none fails."""
    opened: list[bool] = []
    load = Load(**{**vars(load), "port": mock.port})
    result = run_load(load, None, lambda: opened.append(True))
    assert (result.done, result.failed) == (load.requests, 0)
    assert opened == [True] * load.hold
    assert result.latency[0] > 0
    assert bool(result.delay[0]) == (load.kind == "paced")
    assert mock.cpu_s() > 0
    assert mock.memory_kib() > 1000


@pytest.mark.parametrize(
    ("step", "passed"),
    [
        (Step(10, DELAY_MS, FULL - 0.01, PAUSE_MS), ""),
        (Step(10, DELAY_MS + 1, 0.5, PAUSE_MS), "delay"),
        # A full core causes both delays, so it is the bound that counts.
        (Step(10, DELAY_MS + 1, FULL, 2 * PAUSE_MS), "core"),
        (Step(10, DELAY_MS + 1, 0.5, 2 * PAUSE_MS), "instruments"),
    ],
)
def test_a_step_says_which_bound_it_passed(step: Step, passed: str) -> None:
    """A step names the proxy's full core first, then an upstream that was late itself, then the delay."""
    assert step.passed == passed


def test_what_the_cpu_would_do_for_is_of_the_chunks_that_came() -> None:
    """The estimate of streams scales with the share of the core used, and with the chunks that came."""
    assert Step(100, 1.0, FULL / 4, PAUSE_MS).by_cpu == pytest.approx(400)
    assert Step(100, 1.0, FULL / 4, 2 * PAUSE_MS).by_cpu == pytest.approx(200)
    assert Step(100, 1.0, 0.0, PAUSE_MS).by_cpu == 0


def test_streams_are_raised_until_a_bound_is_passed_twice() -> None:
    """The search tries a step above the bound once more; the result is the last step below the bound."""
    asked: list[int] = []

    def measure(streams: int) -> Step:
        asked.append(streams)
        spoiled = streams == 600 and asked.count(600) == 1
        return Step(streams, 80.0 if streams > 700 or spoiled else 5.0, streams / 1000, PAUSE_MS)

    found = climb(Step(50, 5.0, FULL / 20, PAUSE_MS), measure)
    assert asked == [500, 600, 600, 700, 800, 800]
    assert (found.streams, found.bound) == (700, "delay")
    assert found.by_cpu == pytest.approx(1000 * FULL)


def test_streams_that_no_bound_stops_are_raised_to_an_end() -> None:
    """If no bound is ever passed, the search ends by itself, and never goes back."""
    asked: list[int] = []

    def measure(streams: int) -> Step:
        asked.append(streams)
        return Step(streams, 1.0, 0.1, PAUSE_MS)

    found = climb(Step(50, 1.0, FULL / 2, PAUSE_MS), measure)
    assert asked == sorted(set(asked))
    assert (asked[0], found.streams, found.bound) == (60, max(asked), "")


def test_streams_are_open_for_as_long_as_they_are_measured() -> None:
    """The first stream has not ended when the last one has been opened and measured."""
    window = Window(0.4, 1.5)
    load = load_of(1, 300, window)
    assert load.count * load.pause_ms >= load.opening_ms + 1900
    assert (load.connections, load.requests, load.hold) == (300, 300, True)


def test_held_streams_are_measured_while_all_are_open(mock: Process) -> None:
    """While streams are held open, the bench measures the upstream's share of a core and the delays."""
    # Long enough that the first stream is still open when another begins late.
    window = Window(0.05, 0.2)
    step = hold(mock, 4, window, lambda load, on_open: run_load(load, None, on_open))
    assert 0 < step.core < 2
    assert step.pause_ms >= 0.9 * PAUSE_MS
    assert step.delay_ms > 0


def test_a_bare_proxy_passes_everything_on(mock: Process, tmp_path: Path) -> None:
    """The proxy that does nothing passes on every answer."""
    with reserved_port() as port:
        command = python("-m", "bench.passthrough", str(port), f"http://127.0.0.1:{mock.port}")
        with started("aiohttp", port, command, tmp_path / "aiohttp.log", core=None):
            loads = Load(port, "json", requests=4), Load(port, "paced", 3, 5, connections=2, requests=2)
            assert [run_load(load, None).failed for load in loads] == [0, 0]


def test_a_process_that_does_not_come_up_says_why(tmp_path: Path) -> None:
    """The error of a process that does not start contains the end of its output."""
    command = python("-c", "raise SystemExit('no such luck')")
    with (
        pytest.raises(RuntimeError, match="no such luck"),
        closed_port() as port,
        started("x", port, command, tmp_path / "log", core=None),
    ):
        pass
    assert os.sched_getaffinity(0)


def test_the_configuration_is_one_that_serve_takes(tmp_path: Path) -> None:
    """``serve`` accepts the bench's configuration, which has every check on and the bench's own tools."""
    path = toolrelay_config(tmp_path, 8080, 9000, tools=True, store=tmp_path / "r.db")
    config = load_config(path, {"BENCH_KEY": KEY})
    assert list(config.keys) == ["bench"]
    assert config.policy.allow == ("bench_tools__*",)
    assert config.telemetry.metrics
    assert Path(config.tools.modules[0]).exists()


async def test_a_prepared_record_is_read_as_any_other(tmp_path: Path) -> None:
    """A prepared record has as many runs and calls as asked for, over thirty days."""
    assert await prepare(tmp_path / "r.db", 30) == 100
    store = open_store(f"sqlite:///{tmp_path}/r.db")
    await store.start()
    runs = await store.list_runs(RunFilter(limit=100))
    (total,) = await store.usage(UsageFilter())
    await store.aclose()
    assert len(runs) == 30
    assert runs[0].started_at - runs[-1].started_at > 28 * 86400
    assert total.tool_calls == 100


def table() -> Table:
    made = Table()
    for base, proxy in ((10.0, 20.0), (20.0, 60.0), (100.0, 250.0)):
        made.add("request, CPU", "µs", "nginx", base)
        made.add("request, CPU", "µs", "toolrelay", proxy)
    made.add("tool turn", "µs", "toolrelay", 1234.5)
    for streams in DELAY_STREAMS:
        for part, value in (("p50", 0.2), ("p99", 3.0 + streams)):
            made.add(f"chunk's delay, {streams} streams, {part}", "ms", "nginx & co", value)
            made.add(f"chunk's delay, {streams} streams, {part}", "ms", "toolrelay", 2 * value)
    return made


def test_a_cell_has_median_spread_and_ratio_of_its_rounds() -> None:
    """A ratio is the median of the ratios of the rounds, so that a slow round does not spoil it."""
    made = table()
    assert ratios(made.rows["request, CPU"], "toolrelay", "nginx") == [2.0, 3.0, 2.5]
    lines = show_table(made, "Title", ("nginx", "missing")).splitlines()
    assert "| request, CPU (µs) | **20.0** [10.0–100] | **60.0** [20.0–250] ×2.50 |  |" in lines
    assert "| tool turn (µs) |  | **1,234** |  |" in lines


def test_the_plot_is_a_picture() -> None:
    """The plot is well-formed SVG, with both lines of every contestant inside its frame."""
    root = ElementTree.fromstring(plot_delays(table()))
    width, height = (float(size) for size in root.attrib["viewBox"].split()[2:])
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 4
    for line in lines:
        points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
        assert len(points) == len(DELAY_STREAMS)
        assert all(0 < x < width and 0 < y < height for x, y in points)
    assert plot_delays(Table()).startswith("<svg")


def test_the_long_soak_is_the_suites_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The soak runs as many streams as the command says, and returns the exit status of the tests."""
    ran: list[tuple[list[str], str]] = []

    def run(command: list[str], *, env: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
        ran.append((command, env["TOOLRELAY_TEST_SOAK"]))
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr("bench.soak.subprocess.run", run)
    assert (soak.main([]), soak.main(["12000"])) == (3, 3)
    assert [streams for _, streams in ran] == ["10000", "12000"]
    assert all((ROOT / command[-1]).exists() for command, _ in ran)


def compared(printed: str) -> list[str]:
    """Return the names of a table's rows, after a check of their ratios.

    A quick run has one round, so each row has two figures, and the ratio between them three times.
    """
    names = []
    for line in [line for line in printed.splitlines() if line.startswith("|")][2:]:
        name, without, beside, ratio = (cell.strip() for cell in line.strip("|").split("|"))
        found = re.fullmatch(r"(\S+) \((\S+)–(\S+)\)", ratio)
        assert found is not None
        assert found[1] == found[2] == found[3]
        base, times = float(without), float(found[1])
        # The table rounds figures to a tenth and ratios to a hundredth.
        assert abs(times * base - float(beside)) <= 0.051 * (1 + abs(times)) + 0.0051 * abs(base)
        names.append(name)
    return names


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_chats_beside_mcp_servers_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """The bench beside an MCP server that comes and goes succeeds; each figure has a row with its ratio."""
    assert mcp_servers.main(["--quick"]) == 0
    assert compared(capsys.readouterr().out) == ["request", "stream of one chunk", "chunk, paced"]


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_declared_search_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """The bench of a declared search that is not used succeeds; each figure has a row with its ratio."""
    assert hosted_search.main(["--quick"]) == 0
    assert compared(capsys.readouterr().out) == ["request", "stream of one chunk", "chunk, paced"]


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_streams_beside_an_open_ui_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """The bench beside two open pages of the UI succeeds, and each figure has a row with its ratio."""
    assert ui_open.main(["--quick"]) == 0
    assert compared(capsys.readouterr().out) == ["request", "stream of one chunk", "chunk, paced"]


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_runs_whose_bytes_are_kept_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """The bench of runs whose bytes are kept succeeds, and each figure has a row with its ratio."""
    assert kept_bytes.main(["--quick"]) == 0
    assert compared(capsys.readouterr().out) == ["request", "stream of one chunk", "chunk, paced"]


class _Clock(Meter):
    """A meter of the units that a test spends."""

    spent_so_far = 0

    def now(self) -> int:
        return self.spent_so_far


class _Work:
    """Two stages, of which one calls the other and waits."""

    def __init__(self, clock: _Clock) -> None:
        self._clock = clock

    async def outer(self) -> int:
        self._clock.spent_so_far += 3
        await asyncio.sleep(0)
        more = self.inner()
        self._clock.spent_so_far += more
        return self._clock.spent_so_far

    def inner(self) -> int:
        self._clock.spent_so_far += 10
        return 4


async def test_a_stage_has_what_it_spends_less_the_stages_that_it_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A meter notes each stage's own part in order, also if it waits; what comes between is the rest."""
    clock = _Clock()
    places = {"outer": ("work:Work.outer",), "inner": ("work:Work.inner",)}
    monkeypatch.setattr("bench.staged_worker.STAGES", places)
    monkeypatch.setitem(sys.modules, "proxy.work", SimpleNamespace(Work=_Work))
    for name in ("outer", "inner"):
        monkeypatch.setattr(_Work, name, getattr(_Work, name))  # So that it is put back.
    meter_stages(clock)
    clock.begin()
    task = asyncio.create_task(_Work(clock).outer())
    await asyncio.sleep(0)
    clock.spent_so_far += 100
    assert await task == 117
    clock.end()
    pieces = [(stage, spent) for stage, spent in clock.spent if spent]
    assert pieces == [("outer", 3), (REST, 100), ("inner", 10), ("outer", 4)]
    assert [stage for stage, _ in clock.spent].count(MARKS) > 50
    assert clock.spent[-1][0] == THREADS


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_stages_are_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without valgrind the bench counts calls and CPU; every stage of these requests takes some."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("bench.stages.shutil.which", lambda name: None)
    kinds = ["passed", "turn that reads"]
    assert stages.main(["--requests", "3", "--kinds", *kinds]) == 0
    said, *tables = capsys.readouterr().out.split("\n| ")
    assert "valgrind is not installed" in said
    rows = [line.splitlines()[0].strip("| ").split(" | ") for line in tables]
    assert [row for row in rows if row[1:] == kinds] == [[unit, *kinds] for unit in ("calls", "µs of CPU")]
    assert {row[0] for row in rows} >= {REST, *STAGES, THREADS}
    assert all(float(row[-1].strip("*").replace(",", "")) > 0 for row in rows if row[0] == "all")


def test_a_process_is_counted_without_another(tmp_path: Path) -> None:
    """``pids`` can leave out a process with a word in its command line, and whatever that one started."""
    program = tmp_path / "serving.py"
    with reserved_port() as port:
        program.write_text(
            "import subprocess\nfrom http.server import BaseHTTPRequestHandler, HTTPServer\n"
            "subprocess.Popen(['sh', '-c', 'sleep 60; true', 'odd-one-out'])\n"
            f"HTTPServer(('127.0.0.1', {port}), BaseHTTPRequestHandler).serve_forever()\n"
        )
        with started("p", port, python(str(program)), tmp_path / "log", core=None) as process:
            everybody = process.pids()
            assert len(process.pids("odd-one-out")) == 1 < len(everybody)
            assert process.pids("serving.py") == []
        for pid in everybody:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def test_tool_search_saves_bytes_and_keeps_the_cache() -> None:
    """With search, fewer bytes of tools are sent, and each request begins with those of the one before."""
    every = requests_of(await offer_of(100, SearchRules("off")))
    found = requests_of(await offer_of(100, SearchRules("auto")))
    assert sum(map(len, found)) < 0.3 * sum(map(len, every))
    assert cached(found) > 0.7
    assert all(after.startswith(before) for before, after in pairwise(found))
    assert len(found[0]) < len(found[1]) < len(found[3])
