"""Put this folder on the import path, so that every test finds the shared helpers beside this file.

Property tests have no deadline, because a machine can be slow. Proxies start quickly (``quick_starts.py``).

A test ends the threads that it started. A thread that goes on uses the time of the next test, and can use
random numbers that Hypothesis counts on.

The product runs on uvloop where that is available. A module whose tests depend on how a loop treats
sockets says ``pytestmark = pytest.mark.both_loops`` and runs on asyncio's loop and on uvloop.
"""

import asyncio
import gc
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings
from in_process import Starters
from provider_rules.judge import strict_providers
from quick_starts import quick_starts
from waiting import PATIENCE_S

__all__ = ["quick_starts", "strict_providers"]

# Modules and tests live to the end, so while they are read a collection finds nothing. This takes a fifth of
# that time in each of pytest's processes.
gc.disable()

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
# CI tries the same examples in every run, so more of them would hardly find more.
settings.register_profile("ci", settings.get_profile("ci"), max_examples=50)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell makes programs in the background ignore SIGINT, and processes of tests would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

if sys.platform != "win32" and sys.implementation.name == "cpython":
    import uvloop

    LOOPS: Mapping[str, Callable[[], asyncio.AbstractEventLoop]] = {
        "asyncio": asyncio.new_event_loop,
        "uvloop": uvloop.new_event_loop,
    }
else:
    LOOPS = {"asyncio": asyncio.new_event_loop}


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run most tests on one event loop, and those that are marked on each of them."""
    if item.get_closest_marker("both_loops") is None:
        return {"asyncio": asyncio.new_event_loop}
    return LOOPS


MEASURED_CASES = 2
"""How many cases of one test count for coverage: measuring doubles the time of a test."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Measure the coverage of the first cases of each test only.

    Tests that try many examples, or run whole programs, take long and cover the same lines as others.
    """
    seen: Counter[str] = Counter()
    for item in sorted(items, key=lambda item: item.nodeid):
        name = item.nodeid.partition("[")[0]
        seen[name] += 1
        examples = is_hypothesis_test(getattr(item, "obj", None))
        is_whole = name.startswith(("tests/e2e/", "tests/faults/"))
        slow = item.get_closest_marker("slow") is not None
        if seen[name] > MEASURED_CASES or examples or is_whole or slow:
            item.add_marker("no_cover")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Measure the imports in the first of pytest's processes only: coverage doubles their time."""
    worker = getattr(session.config, "workerinput", {}).get("workerid", "gw0")
    coverage = session.config.pluginmanager.get_plugin("_cov")
    if worker == "gw0" or coverage is None or coverage.cov_controller is None:
        return (yield)
    coverage.cov_controller.pause()
    try:
        return (yield)
    finally:
        coverage.cov_controller.resume()


def pytest_collection_finish() -> None:
    """Exclude what lives until the end of all tests from garbage collection, which tests often start."""
    gc.collect()
    gc.freeze()
    gc.enable()


LOOK_UPS = [f"proxy.{module}.LOOK_UP_S" for module in ("server.auth.key_ring", "store.look_ups")]
"""Deadlines of look-ups in the record, so short that a busy machine looks like a record that fails."""


@pytest.fixture(autouse=True)
def patient_look_ups(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep these deadlines from ending a look-up on a busy machine, except in tests of them (``hurried``)."""
    if request.node.get_closest_marker("hurried") is None:
        for deadline in LOOK_UPS:
            monkeypatch.setattr(deadline, PATIENCE_S)


@pytest.fixture(autouse=True)
def servers_of_the_test(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pytest-aiohttp start the servers of a test in the test's own loop, and end what is left of them."""
    if has_own_loop(request):
        for name in ("aiohttp_client", "aiohttp_server"):
            monkeypatch.setattr(Starters, name, request.getfixturevalue(name))


def has_own_loop(request: pytest.FixtureRequest) -> bool:
    """Return whether the test runs in an event loop that ends with it."""
    marked = request.node.get_closest_marker("asyncio")
    return marked is not None and marked.kwargs.get("loop_scope", "function") == "function"


@pytest.fixture(autouse=True)
def no_thread_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test whose threads still run a while after its end.

    An event loop that the tests of a module share keeps its threads for the next of them.
    """
    before = set(threading.enumerate())
    yield
    if request.node.get_closest_marker("asyncio") is not None and not has_own_loop(request):
        return
    end = time.monotonic() + PATIENCE_S
    for thread in set(threading.enumerate()) - before:
        thread.join(max(0.0, end - time.monotonic()))
        assert not thread.is_alive(), f"{thread.name} goes on after the test"
