"""The plugin for pytest: the fixture ``toolrelay_replay`` answers the clients of a test from recordings.

pytest imports this module in every project that has toolrelay installed. So it imports nothing but pytest;
the server comes with the first test that asks for it.
"""

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from proxy.testing.running import Replay, ReplayThread

_MARKER: Final = "toolrelay"
_RECORD: Final = "--toolrelay-record"
_FOLDER: Final = "toolrelay_dir"
_SCRUB: Final = "toolrelay_scrub"
_SPEED: Final = "toolrelay_speed"
_REPLAY: Final = pytest.StashKey["Replay"]()
_MOST_SPEED: Final = 1_000_000
_LOOPBACK: Final = "127.0.0.1"
_PROXIES: Final = ("http_proxy", "all_proxy")
_UNASKED: Final = (
    "No request reached toolrelay_replay. Make clients in the test: they read OPENAI_BASE_URL,\n"
    "ANTHROPIC_BASE_URL and OLLAMA_HOST when they are made. Or give them toolrelay_replay.openai,\n"
    "toolrelay_replay.anthropic or toolrelay_replay.ollama as their address."
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option and the settings."""
    parser.getgroup(_MARKER).addoption(
        _RECORD,
        action="store_true",
        help="Ask the real provider for what toolrelay's fixtures lack, with your key, and save it.",
    )
    parser.addini(_FOLDER, "The folder of toolrelay's fixtures, beside each test file.", default="recorded")
    parser.addini(_SCRUB, "Texts that toolrelay replaces in fixtures, one a line.", type="linelist")
    parser.addini(
        _SPEED, "How many times as fast as recorded streams come; 0 leaves pauses out.", default="0"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Add the marker."""
    config.addinivalue_line(
        "markers",
        f"{_MARKER}(name): the folder with the fixtures of toolrelay_replay; default: the test's name",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test of which a request was answered by no fixture, and show the difference."""
    try:
        result = yield
    except (Exception, pytest.fail.Exception, pytest.skip.Exception):
        # Whatever a test or a client makes of a miss, the difference explains it better.
        _fail_if_missed(item)
        _hint_if_unasked(item)
        raise
    _fail_if_missed(item)
    return result


def _fail_if_missed(item: pytest.Item) -> None:
    replay = item.stash.get(_REPLAY, None)
    if replay is not None and replay.missed:
        from proxy.base.plain_text import printable

        raise pytest.fail.Exception("\n\n".join(map(printable, replay.missed)), pytrace=False) from None


def _hint_if_unasked(item: pytest.Item) -> None:
    replay = item.stash.get(_REPLAY, None)
    if replay is not None and not replay.asked:
        item.add_report_section("call", _MARKER, _UNASKED)


@pytest.fixture(scope="session")
def _toolrelay_thread() -> "Iterator[ReplayThread]":
    from proxy.testing.running import ReplayThread

    with ReplayThread() as thread:
        yield thread


@pytest.fixture
def toolrelay_replay(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, _toolrelay_thread: "ReplayThread"
) -> "Iterator[Replay]":
    """A model provider that answers from fixtures; the environment leads clients to it.

    OPENAI_BASE_URL, ANTHROPIC_BASE_URL and OLLAMA_HOST are set, and keys that clients insist on, if there are
    none. Make clients in the test, since they read these variables when they are made.
    """
    from proxy.base.errors import ConfigError
    from proxy.testing.addresses import PROVIDERS
    from proxy.testing.running import Replay

    config = request.config
    records = config.getoption(_RECORD)
    try:
        replay = Replay(
            _folder(request),
            speed=_speed(str(config.getini(_SPEED))),
            scrub=config.getini(_SCRUB),
            record=dict(os.environ) if records else None,
        )
    except ConfigError as error:
        pytest.fail(str(error), pytrace=False)
    _toolrelay_thread.run(replay.start())
    for name, value in replay.environment.items():
        monkeypatch.setenv(name, value)
    for provider in PROVIDERS.values():
        if provider.key and not os.environ.get(provider.key):
            monkeypatch.setenv(provider.key, "unused")
    _leave_out_proxies(monkeypatch)
    request.node.stash[_REPLAY] = replay
    try:
        yield replay
    finally:
        _toolrelay_thread.run(replay.stop())


def _folder(request: pytest.FixtureRequest) -> Path:
    """Return the folder of a test: what its marker names, else its name, without what parameters add."""
    from proxy.base.errors import ConfigError

    marker = request.node.get_closest_marker(_MARKER)
    # A doctest has no other name than its own.
    name = str(getattr(request.node, "originalname", None) or request.node.name)
    if marker is not None:
        given = [*marker.args, *marker.kwargs.values()]
        if not given[1:] and marker.kwargs.keys() <= {"name"} and all(isinstance(one, str) for one in given):
            name = (given or [name])[0]
        else:
            raise ConfigError(
                f"@pytest.mark.{_MARKER}", "takes the name of one folder", f'Write {_MARKER}("name")'
            )
    return request.path.parent / str(request.config.getini(_FOLDER)) / name


def _speed(written: str) -> float:
    from proxy.base.errors import ConfigError

    try:
        speed = float(written)
    except ValueError:
        speed = -1.0
    if not 0 <= speed <= _MOST_SPEED:
        raise ConfigError(
            _SPEED,
            f"is {written[:40]!r}",
            f"Write a number from 0 (no pauses) to {_MOST_SPEED}; 1 keeps them",
        )
    return speed


def _leave_out_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients reach this machine directly if they go through a proxy."""
    if any(os.environ.get(name) or os.environ.get(name.upper()) for name in _PROXIES):
        for name in ("no_proxy", "NO_PROXY"):
            others = os.environ.get(name)
            monkeypatch.setenv(name, f"{others},{_LOOPBACK}" if others else _LOOPBACK)
