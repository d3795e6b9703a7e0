"""The access log: a cached form makes the line of a request that is like an earlier one."""

import io
import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from logged import logged_to, logging_put_back

from proxy.telemetry.hooks import RequestFacts
from proxy.telemetry.log.access_log import AccessLog, EventWriter
from proxy.telemetry.log.json_lines import MASK
from proxy.telemetry.log.setup import LogFormat, configure_logging

CHAT = "/v1/chat/completions"


class Sent:
    """A response that has been sent."""

    first_byte_at = 1.0
    sent = 421


def facts(**more: Any) -> RequestFacts:
    """Return the facts of a successful request, with the values of ``more`` in place of the usual ones."""
    made = RequestFacts(more.pop("request_id", "req_" + "0f" * 16), "POST", CHAT, 1.0)
    usual = {
        "endpoint": CHAT, "caller": "config:bench", "model": "m", "status": 200, "seconds": 0.01234,
        "first_byte_s": 0.01, "sent": 421, "upstream": "u", "upstream_status": 200, "upstream_s": 0.0091,
    }  # fmt: skip
    for name, value in {**usual, **more}.items():
        setattr(made, name, value)
    return made


def lines(out: io.StringIO) -> list[str]:
    """Return the lines without their timestamps."""
    found = out.getvalue().splitlines()
    assert all(re.search(r',"timestamp":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"}$', line) for line in found)
    return [line.rpartition(',"timestamp"')[0] for line in found]


seconds = st.floats(0, 100_000)
names = st.sampled_from(["", "config:a%d", 'quo"ted', "ümlaut", "100%", "a\\b", "Bearer abcdefgh", "sk-1234"])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    whole=seconds, first=st.none() | seconds, head=st.none() | seconds, sent=st.integers(0, 1 << 40),
    caller=names, model=names, upstream=names, status=st.sampled_from([200, 404, 499]),
    run_id=st.sampled_from(["", "run_" + "ab" * 16]), prompt_hash=st.sampled_from(["", "cd" * 16]),
    path=st.sampled_from([CHAT, "/v1/files/x"]),
)  # fmt: skip
def test_a_form_makes_the_line_that_the_long_way_makes(
    whole: float, first: float | None, head: float | None, path: str, **more: Any
) -> None:
    """The line of a cached form is byte for byte the line that is made value by value."""
    out = io.StringIO()
    one = facts(seconds=whole, first_byte_s=first, upstream_s=head, path=path, **more)
    with logged_to(out, secrets=["sk-1234"]):
        log = AccessLog([one.model])
        log.write(one)
        log.write(one)
        one.id_given = True  # With an id of the client the log uses no form.
        log.write(one)
    first_line, second, long = lines(out)
    assert first_line == second == long
    assert "sk-1234" not in out.getvalue()
    assert "abcdefgh" not in out.getvalue()


def test_numbers_and_ids_are_each_requests_own() -> None:
    """Lines of the same form have each request's own id and numbers."""
    out = io.StringIO()
    with logged_to(out):
        log = AccessLog(["m"])
        for number in range(3):
            log.write(facts(request_id=f"req_{number}", seconds=number / 1000, sent=number + 1))
    told = [
        (line["request_id"], line["ms"], line["bytes"]) for line in map(json.loads, out.getvalue().split())
    ]
    assert told == [("req_0", 0.0, 1), ("req_1", 1.0, 2), ("req_2", 2.0, 3)]


@pytest.mark.parametrize("secret", ["0f0f0f0f", "req_"])
def test_a_secret_like_a_piece_of_an_id_is_looked_for(secret: str) -> None:
    """If a secret could occur in a generated id by chance, the log masks it in each line."""
    out = io.StringIO()
    with logged_to(out, secrets=[secret]):
        log = AccessLog(["m"])
        for _ in range(2):
            log.write(facts())
    assert secret not in out.getvalue()
    assert out.getvalue().count(MASK) >= 2


def test_forms_have_a_bound_and_end_with_their_configuration() -> None:
    """The log keeps a bounded number of forms, and drops them when its configuration changes."""
    with logged_to(io.StringIO()):
        log = EventWriter("proxy.test")
        log.write({"event": "x"})
        for number in range(1000):
            assert log.make_form(number, {"event": "x", "number": number})
        assert len(log._forms) <= 256
        assert log.form(999)
        log._configured.append(lambda logger, method, event: event)
        assert log.form(999) is None


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        ("gpt-4o-mini", "gpt-4o-mini"),
        ("org/name:7b@q4", "org/name:7b@q4"),
        ("What is my password?", "other"),
        ("two\nlines", "other"),
        ("x" * 101, "other"),
        ("sk-proj-0123456789", "other"),
        ("tr_0123456789abcdef0123", "other"),
        ("ümlaut", "other"),
    ],
)
def test_a_model_is_named_where_it_looks_like_a_name(model: str, shown: str) -> None:
    """If no models are configured, the line has the requested model if it looks like a name; other text,
    which may be content or a key, is not written."""
    out = io.StringIO()
    with logged_to(out):
        log = AccessLog([])
        log.write(facts(model=model))
        log.write(facts(model=model, first_byte_s=None))
    assert [line["model"] for line in map(json.loads, out.getvalue().splitlines())] == [shown] * 2


def test_a_client_cannot_make_names_without_end() -> None:
    """The log writes a bounded number of names that are not configured, and every configured one."""
    out = io.StringIO()
    with logged_to(out):
        log = AccessLog(["mine"])
        for number in range(600):
            log.write(facts(model=f"m{number}"))
        log.write(facts(model="mine"))
        log.write(facts(model="m0"))
    named = [line["model"] for line in map(json.loads, out.getvalue().splitlines())]
    assert len(set(named)) == 502
    assert named[-2:] == ["mine", "m0"]


def test_a_line_on_a_terminal_begins_with_what_people_look_for() -> None:
    """A line on a terminal begins with status, method, path and time, and is short; JSON has every field."""
    streams: dict[LogFormat, io.StringIO] = {"console": io.StringIO(), "json": io.StringIO()}
    for kind, stream in streams.items():
        with logging_put_back():
            configure_logging(format=kind, stream=stream)
            log = AccessLog(["m"])
            log.write(facts(run_id="run_" + "ab" * 16))
            log.write(facts(status=404, error_code="model_not_found", path="/v1/" + "x" * 300))
            log.write(facts(status=502, error_code="upstream_timeout", upstream_status=0))
    good, missing, failed = streams["console"].getvalue().splitlines()
    assert re.match(r"\d\d:\d\d:\d\d 200 POST /v1/chat/completions 12 ms model=m ", good)
    assert "req_" not in good
    assert "run=run_abababababab" in good
    assert re.match(r"\d\d:\d\d:\d\d 404 POST /v1/x+… 12 ms error_code=model_not_found ", missing)
    assert "upstream_status=200" in missing
    assert "request_id=req_" in failed
    assert max(map(len, (good, missing, failed))) < 180
    assert len(good) < 110
    told = [json.loads(line) for line in streams["json"].getvalue().splitlines()]
    usual = {
        "event": "request", "logger": "proxy.access", "level": "info", "method": "POST", "path": CHAT,
        "ms": 12.3, "caller": "config:bench", "model": "m", "ttfb_ms": 10.0, "bytes": 421, "upstream": "u",
        "upstream_ms": 9.1, "request_id": "req_" + "0f" * 16,
    }  # fmt: skip
    assert [{**line, "timestamp": None} for line in told] == [
        {**usual, "status": 200, "upstream_status": 200, "run_id": "run_" + "ab" * 16, "timestamp": None},
        {
            **usual,
            "status": 404,
            "upstream_status": 200,
            "error_code": "model_not_found",
            "path": "/v1/" + "x" * 300,
            "timestamp": None,
        },
        {**usual, "status": 502, "error_code": "upstream_timeout", "timestamp": None},
    ]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", told[0]["timestamp"])
