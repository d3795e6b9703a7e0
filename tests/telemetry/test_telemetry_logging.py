"""The log: one line for each event, without secrets and control characters."""

import asyncio
import io
import json
import logging
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Literal

import orjson
import pytest
import structlog
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from logged import logged_to
from pytest_aiohttp import AiohttpServer

from proxy.base.plain_text import HIDDEN
from proxy.telemetry.log.access_log import EventWriter
from proxy.telemetry.log.json_lines import JsonLines, LineCleaner
from proxy.telemetry.log.setup import configure_logging

SECRET = "sk-known-secret-value"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """Capture a JSON log of all levels, and restore the logging afterwards."""
    out = io.StringIO()
    with logged_to(out, level="debug", secrets=[SECRET]):
        yield out


def lines(out: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_our_events_and_stdlib_records_read_alike(log: io.StringIO) -> None:
    """structlog and logging write the same JSON, with time, level, logger and correlation ids."""
    structlog.contextvars.bind_contextvars(request_id="req-1")
    structlog.get_logger("proxy.test").info("run_started", model="m", turns=2)
    logging.getLogger("asyncio").warning("plain %s", "record")
    first, second = lines(log)
    assert first["event"] == "run_started"
    assert (first["logger"], first["level"], first["model"], first["turns"]) == ("proxy.test", "info", "m", 2)
    assert (second["event"], second["logger"], second["level"]) == ("plain record", "asyncio", "warning")
    assert first["request_id"] == second["request_id"] == "req-1"
    assert all("timestamp" in line for line in (first, second))


@pytest.mark.parametrize("format", ["json", "console"])
def test_the_short_way_of_an_event_makes_the_same_line(
    log: io.StringIO, format: Literal["json", "console"]
) -> None:
    """An event writer writes the same line as structlog's loggers do, in both formats."""
    out = io.StringIO()
    configure_logging(format=format, level="info", secrets=[SECRET], stream=out, worker=2)
    structlog.get_logger("proxy.test").info("said", path=f"/{SECRET}\x1b", status=200)
    EventWriter("proxy.test").write({"event": "said", "path": f"/{SECRET}\x1b", "status": 200})
    first, second = (re.sub(r"\d+:\d+:[\d.]+Z", "", line) for line in out.getvalue().splitlines())
    if format == "json":
        first, second = json.loads(first), json.loads(second)
    assert first == second
    assert "[redacted]" in out.getvalue()


def test_an_event_writer_keeps_to_the_level(log: io.StringIO) -> None:
    """If the level is above info, an event writer says that it is not enabled."""
    assert EventWriter("proxy.test").enabled
    configure_logging(format="json", level="warning", stream=io.StringIO())
    assert not EventWriter("proxy.test").enabled


def test_the_time_of_a_line_is_now_in_utc(log: io.StringIO) -> None:
    """A line has the current time in UTC with microseconds, and times never go back."""
    before = datetime.now(UTC)
    for _ in range(3):
        structlog.get_logger("proxy.test").info("said")
    times = [str(line["timestamp"]) for line in lines(log)]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", text) for text in times)
    moments = [datetime.fromisoformat(text) for text in times]
    assert moments == sorted(moments)
    assert abs((moments[0] - before).total_seconds()) < 60


def test_what_is_remembered_of_texts_has_a_bound() -> None:
    """The cache of texts without a secret is bounded, and a secret is masked after any number of texts."""
    to_json = JsonLines([SECRET])
    for number in range(5000):
        to_json(None, "info", {"event": "x", "path": f"/{number}"})
    assert len(to_json._fine) <= 1024
    assert SECRET not in to_json(None, "info", {"event": "x", "path": f"/{SECRET}"})


def test_ids_push_nothing_out_of_what_is_remembered() -> None:
    """The ids of a tool call do not enter the cache of texts, since they never come again."""
    to_json = JsonLines([SECRET])
    ids = ("correlation_id", "operation_id", "request_id", "run_id", "tool_invocation_id")
    to_json(None, "info", {"event": "tool_invocation_success", **{name: f"{name}-1" for name in ids}})
    assert to_json._fine == {"event", "tool_invocation_success", *ids}


def test_a_second_set_up_replaces_the_first(log: io.StringIO) -> None:
    """A second configuration of the logging replaces the first, so that no line is written twice."""
    again = io.StringIO()
    configure_logging(format="json", level="info", stream=again)
    structlog.get_logger("proxy.test").info("once")
    assert log.getvalue() == ""
    assert len(lines(again)) == 1


def test_the_level_holds_for_all_loggers(log: io.StringIO) -> None:
    """Lines below the level are not written, whichever logger makes them."""
    out = io.StringIO()
    configure_logging(format="json", level="warning", stream=out)
    structlog.get_logger("proxy.test").info("no")
    logging.getLogger("anything").info("no")
    structlog.get_logger("proxy.test").warning("yes")
    assert [line["event"] for line in lines(out)] == ["yes"]


@pytest.mark.parametrize(("level", "heard"), [("debug", True), ("error", False)])
def test_libraries_are_heard_from_warnings_on(log: io.StringIO, level: str, heard: bool) -> None:
    """Lines of libraries below a warning are never written; a warning is written if the level allows it."""
    out = io.StringIO()
    configure_logging(format="json", level=level, stream=out)
    for name in ("aiosqlite", "asyncpg", "asyncio", "aiohttp.web", "redis"):
        logging.getLogger(name).debug("executing 'INSERT' with %s", ["content"])
        logging.getLogger(name).info("content")
    logging.getLogger("aiohttp.access").error("GET /?key=content")
    logging.getLogger("aiohttp.web").warning("said")
    assert [line["event"] for line in lines(out)] == ["said"] * heard


def test_console_on_a_terminal_json_elsewhere(log: io.StringIO) -> None:
    """With no format chosen, a terminal gets columns and a pipe gets JSON."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, pipe = Terminal(), io.StringIO()
    configure_logging(stream=terminal)
    structlog.get_logger("proxy.test").info("hello\x1b]0;evil\x07", name="a\nb")
    assert "hello" in terminal.getvalue()
    assert "\x1b]0;" not in terminal.getvalue()
    assert "\x07" not in terminal.getvalue()
    assert terminal.getvalue().count("\n") == 1
    configure_logging(stream=pipe)
    structlog.get_logger("proxy.test").info("hello")
    assert lines(pipe)[0]["event"] == "hello"


@pytest.mark.parametrize(
    "values",
    [
        {"event": f"upstream said {SECRET}"},
        {"event": "x", "detail": {"deep": [{"deeper": f"a{SECRET}b"}]}},
        {"event": "x", SECRET: 1},
        {"event": "x", "raw": SECRET.encode()},
        {"event": "x", "error": ValueError(SECRET)},
        {"event": "x", "Authorization": "Token unknownclientkey"},
        {"event": "x", "headers": {"Cookie": "unknownclientkey", "X-Api-Key": "unknownclientkey"}},
        {"event": "x", "headers": [("Authorization", "unknownclientkey"), ("api-key", "unknownclientkey")]},
        {"event": "x", "headers": [(b"authorization", b"unknownclientkey")]},
        {"event": "authorization: Bearer unknownclientkey"},
        {"event": "b'Authorization: unknownclientkey'"},
        {"event": "{'x-api-key': 'unknownclientkey'}"},
        {"event": "got Bearer unknownclientkey from somewhere"},
    ],
)
def test_no_credential_gets_into_a_line(log: io.StringIO, values: dict[str, Any]) -> None:
    """The log masks known secrets anywhere, and values under credential names or in credential phrases."""
    event = values.pop("event")
    structlog.get_logger("proxy.test").warning(event, **values)
    assert len(lines(log)) == 1
    assert SECRET not in log.getvalue()
    assert "unknownclientkey" not in log.getvalue()
    assert "[redacted]" in log.getvalue()


def test_an_exception_is_masked_too(log: io.StringIO) -> None:
    """A logged traceback keeps its line breaks, but not the exception's message, which may be anything."""
    try:
        raise RuntimeError(f"refused {SECRET}")
    except RuntimeError:
        structlog.get_logger("proxy.test").exception("failed")
    (line,) = lines(log)
    assert str(line["exception"]).endswith("RuntimeError")
    assert "test_telemetry_logging.py" in str(line["exception"])
    assert str(line["exception"]).count("\n") >= 3
    assert SECRET not in log.getvalue()


async def test_a_malformed_header_line_stays_out_of_the_log(
    log: io.StringIO, aiohttp_server: AiohttpServer
) -> None:
    """aiohttp's parser quotes a malformed line, which may have a client's key; the log does not."""
    server = await aiohttp_server(web.Application())
    for line in (b"Authoriz\x01ation: Bearer clientkey123", b"X-Key\x00 clientkey123", b"clientkey123"):
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n" + line + b"\r\n\r\n")
        assert b"400" in await reader.read()
        writer.close()
        await writer.wait_closed()
    errors = [line for line in lines(log) if line["logger"] == "aiohttp.server"]
    assert len(errors) == 3
    assert all(error["status"] == 400 and str(error["error"]).startswith("Bad") for error in errors)
    assert "clientkey123" not in log.getvalue()


def test_what_json_cannot_say_is_said_all_the_same(log: io.StringIO) -> None:
    """Values that JSON cannot express become text, and no log call fails because of them."""
    cycle: list[object] = []
    cycle.append(cycle)
    structlog.get_logger("proxy.test").info(
        "odd",
        big=2**80,
        small=-(2**80),
        nan=float("nan"),
        cycle=cycle,
        thing=object,
        lone="\ud800",
        keys={1: {2}},
    )
    (line,) = lines(log)
    assert line["event"] == "odd"
    assert line["nan"] is None
    assert "\\ud800" in str(line["lone"])


def test_a_command_to_run_is_shown_whole() -> None:
    """A scope may end in "basic"; the word behind it is masked only if it can be a credential."""
    clean = LineCleaner()
    hint = "run: toolrelay credentials login x --scope mcp:basic --scope mcp:write"
    assert clean(None, "info", {"event": "x", "hint": hint})["hint"] == hint
    assert "dXNlcjpwYXNz" not in str(clean(None, "info", {"event": "x", "hint": "basic dXNlcjpwYXNz"}))


def test_a_long_text_is_cut() -> None:
    """Long texts and long lists are cut, so that a line has a bounded length."""
    event = LineCleaner()(None, "info", {"event": "x" * 100_000, "list": list(range(10_000))})
    assert len(event["event"]) < 9000
    assert len(event["list"]) == 200


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=30),
    st.sampled_from([SECRET, "Bearer abcdefgh", "x-api-key: abcdefgh", "b\x1b[31m", 'sec"ret-1', "\x7f"]),
    st.binary(max_size=5),
    st.lists(st.text(max_size=5), max_size=2),
)
names = st.sampled_from(["a", "model", "api_key", "X-Api-Key", "cookie", "Authorization", SECRET]) | st.text(
    max_size=8
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    event=st.dictionaries(
        names, values | st.dictionaries(names | st.just("timestamp"), values, max_size=3), max_size=5
    )
)
def test_the_short_way_says_what_the_long_way_says(event: dict[str, Any]) -> None:
    """A line that is rendered directly is the same as one that is cleaned first."""
    secrets = [SECRET, 'sec"ret-1']
    cleaned = LineCleaner(secrets)(None, "info", dict(event))
    assert json.loads(JsonLines(secrets)(None, "info", dict(event))) == json.loads(
        orjson.dumps(cleaned, default=str, option=orjson.OPT_NON_STR_KEYS)
    )


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=st.text(max_size=60))
def test_no_control_character_survives(text: str) -> None:
    """Whatever the text, the cleaned one is a single printable line."""
    cleaned = LineCleaner().text(text)
    assert not any(ord(character) < 32 or 0x7F <= ord(character) < 0xA0 for character in cleaned)
    assert len(cleaned.splitlines()) <= 1
    assert re.search(f"[{HIDDEN}]", cleaned) is None
    cleaned.encode("utf-8")
