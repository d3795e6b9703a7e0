"""The record at the command line, over real SQLite files: list, show, export, purge, usage."""

import asyncio
import json
import sqlite3
import stat
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from recorded_runs import NOW, WORDS, fill, run

from proxy.api.admin.run_filters import parse_moment
from proxy.base.errors import ConfigError
from proxy.records.requests import RequestRecord
from proxy.records.rows import ClientKey
from proxy.rights.callers import end_user_name
from proxy.store.sqlite.store import SqliteStore

DAY = 86400.0


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """A record of six runs, each of which differs from the others in one thing."""
    fill(
        tmp_path / "toolrelay.db",
        [
            run("run_plain"),
            run("run_model", model="other", started_at=NOW + 1),
            run("run_caller", caller="webui", started_at=NOW + 2),
            run("run_failed", status="failed", error_code="upstream_error", started_at=NOW + 3),
            run("run_later", started_at=NOW + DAY),
            run("run_open", status="running", ended_at=None, started_at=NOW + 2 * DAY),
        ],
        tools=["core__f", "core__f", "core__f", "core__f", "core__g", "core__f"],
    )
    with closing(sqlite3.connect(tmp_path / "toolrelay.db")) as connection, connection:
        # A process that still runs leaves its record like this.
        connection.execute("UPDATE owners SET ended_at = NULL")
        connection.execute("UPDATE runs SET status = 'running', ended_at = NULL WHERE id = 'run_open'")
    return tmp_path / "toolrelay.db"


def ids(text: str) -> list[str]:
    """The ids in JSON Lines of runs."""
    return [json.loads(line)["id"] for line in text.splitlines()]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ([], ["run_open", "run_later", "run_failed", "run_caller", "run_model", "run_plain"]),
        (["--limit", "2"], ["run_open", "run_later"]),
        (["--since", str(NOW + 3)], None),
        (["--since", "2025-10-10"], ["run_open", "run_later"]),
        (["--until", "2025-10-09T10:53:21+02:00"], ["run_plain"]),
        (["--since", "2025-10-09T08:53:21Z", "--until", "2025-10-09T08:53:22"], ["run_model"]),
        (["--status", "failed"], ["run_failed"]),
        (["--model", "other"], ["run_model"]),
        (["--tool", "core__g"], ["run_later"]),
        (["--key", "webui"], ["run_caller"]),
        (["--errors"], ["run_failed"]),
        (["--errors", "--model", "other"], []),
    ],
)
def test_runs_are_filtered(record: Path, here: Any, options: list[str], found: list[str] | None) -> None:
    """``runs list`` filters by time, status, model, tool, key and errors; a bad time is an error."""
    done = here("runs", "list", "--json", *options)
    if found is None:
        assert done.returncode == 1
        assert "--since" in done.stderr
        assert len(done.stderr.splitlines()) == 1
    else:
        assert ids(done.stdout) == found


def test_the_word_list_may_be_left_out(record: Path, here: Any) -> None:
    """``runs`` and ``tools`` list without the word ``list``, with its options."""
    assert ids(here("runs", "--json", "--status", "failed").stdout) == ["run_failed"]
    assert here("runs", "--errors").stdout == here("runs", "list", "--errors").stdout
    names = [json.loads(line)["name"] for line in here("tools", "--json").stdout.splitlines()]
    assert "core__get_weather" in names
    shown = here("runs", "--help").stdout
    for command in ("list", "show", "export", "replay", "purge"):
        assert f" {command} " in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["runs", "--status", "done"], ["--status", "completed"]),
        (["runs", "--until", "soon"], ["--until", "2026-01-31"]),
        (["runs", "show", "run_"], ["several runs begin with", "run_plain"]),
        (["runs", "purge"], ["--older-than", "--run", "--all"]),
        (["runs", "purge", "--all", "--run", "run_plain"], ["Give one of"]),
        (["runs", "purge", "--all"], ["--yes"]),
        (["runs", "purge", "--run", "run_x"], ["no run has the id"]),
        (["runs", "replay", "run_plain", "--model", "n"], ["--upstream"]),
        (["usage", "--by", "cost"], ["key, caller, model, tool, day"]),
        (["usage", "--by", "day,day"], ["twice"]),
    ],
)
def test_what_makes_no_sense_is_one_line(
    record: Path, here: Any, arguments: list[str], words: list[str]
) -> None:
    """A mistake is reported in one line with the option and what it takes, and changes nothing."""
    done = here(*arguments)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    for word in words:
        assert word in done.stderr
    assert len(ids(here("runs", "--json").stdout)) == 6


@pytest.mark.parametrize(
    ("text", "ago"), [("90s", 90), ("30m ago", 1800), ("2h", 7200), ("3d", 3 * DAY), ("1w", 7 * DAY)]
)
def test_an_age_is_a_time(text: str, ago: float) -> None:
    """An age stands for the time that lies so far in the past."""
    assert parse_moment("--since", text, now=lambda: NOW) == NOW - ago


@pytest.mark.parametrize("text", ["", "yesterday", "1y", "-3d", "12", "2026-13-01", "9" * 12 + "d"])
def test_what_is_no_time_is_refused(text: str) -> None:
    """If a text is no time, the error names the option."""
    with pytest.raises(ConfigError, match="--since"):
        parse_moment("--since", text)


def test_a_run_is_shown_whole(record: Path, here: Any) -> None:
    """``runs show`` prints timeline, withheld tools, prompt hash and what is missing; no content."""
    done = here("runs", "show", "run_pl")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert 'withheld core__g policy.allow lacks "core__g"' in lines
    assert "prompt 0a1b2c3d4e5f60718293a4b5c6d7e8f9" in lines
    assert any(
        line.startswith("1 tool call, arguments and results the proxy ran these tools") for line in lines
    )
    assert any("turn 1" in line and "━" in line for line in lines)
    assert "The store keeps 1 message; show them with --content." in lines
    assert WORDS not in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_content_is_shown_where_asked_for_and_that_is_logged(
    record: Path, here: Any, as_json: list[str]
) -> None:
    """Rule R3: --content prints the content and logs who read which run, without the content."""
    done = here("runs", "show", "run_plain", "--content", *as_json)
    assert WORDS in done.stdout
    (line,) = done.stderr.splitlines()
    event = json.loads(line)
    assert (event["event"], event["command"], event["run_id"]) == ("content_read", "runs show", "run_plain")
    assert event["user"]
    assert WORDS not in line


def test_an_export_is_lines_of_whole_runs(record: Path, here: Any) -> None:
    """``runs export`` prints each matching run with turns and calls on a line, without content."""
    done = here("runs", "export", "--model", "m", "--limit", "3")
    exported = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["run"]["id"] for each in exported] == ["run_open", "run_later", "run_failed"]
    assert [len(each["turns"]) for each in exported] == [2, 2, 2]
    assert exported[1]["invocations"][0]["tool"] == "core__g"
    assert [each["message_count"] for each in exported] == [1, 1, 1]
    assert WORDS not in done.stdout
    assert done.stderr == ""


def test_an_export_with_content_is_logged_and_private(record: Path, here: Any, tmp_path: Path) -> None:
    """Rule R3: an export with content is logged; its file is private and never replaces another."""
    done = here("runs", "export", "--content", "--errors", "--out", "out.jsonl")
    assert done.stdout == "wrote 1 run to out.jsonl\n"
    event = json.loads(done.stderr)
    assert (event["event"], event["out"]) == ("content_read", "out.jsonl")
    assert event["filter"] == {"errors_only": True}
    file = tmp_path / "out.jsonl"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (exported,) = [json.loads(line) for line in file.read_text().splitlines()]
    assert exported["messages"][0]["content"] == WORDS
    before = file.read_bytes()
    again = here("runs", "export", "--out", "out.jsonl")
    assert again.returncode == 1
    assert "exists already" in again.stderr
    assert file.read_bytes() == before
    assert "cannot be written" in here("runs", "export", "--out", "no/such/file").stderr


def test_a_long_list_is_read_in_pages(tmp_path: Path, here: Any) -> None:
    """A list of several pages has every run once, even if several started at the same time."""
    runs = [run(f"run_{number:04d}", started_at=NOW + number // 7) for number in range(450)]
    fill(tmp_path / "toolrelay.db", runs)
    expected = [record.id for record in reversed(runs)]
    assert ids(here("runs", "--json", "--limit", "100000").stdout) == expected
    assert ids(here("runs", "--json", "--limit", "401").stdout) == expected[:401]
    exported = here("runs", "export").stdout.splitlines()
    assert [json.loads(line)["run"]["id"] for line in exported] == expected


def test_runs_are_purged(record: Path, here: Any) -> None:
    """Runs are purged by id, by age or all at once; a run that has not ended stays and is reported."""
    assert here("runs", "purge", "--run", "run_fa").stdout == "deleted 1 run\n"
    assert ids(here("runs", "--json").stdout) == [
        "run_open", "run_later", "run_caller", "run_model", "run_plain"
    ]  # fmt: skip
    assert here("runs", "purge", "--older-than", "2025-10-09T08:53:22").stdout == "deleted 2 runs\n"
    assert ids(here("runs", "--json").stdout) == ["run_open", "run_later", "run_caller"]
    done = here("runs", "purge", "--all", "--yes").stdout.splitlines()
    assert done == ["deleted 2 runs", "1 run stays: not ended yet"]
    assert "no run has the id" in here("runs", "show", "run_later").stderr
    only = here("runs", "purge", "--run", "run_open").stdout.splitlines()
    assert only == ["deleted 0 runs", "1 run stays: not ended yet"]


def test_more_runs_than_a_batch_are_purged(tmp_path: Path, here: Any) -> None:
    """A purge deletes more runs than one batch, and their content is gone from the file."""
    fill(tmp_path / "toolrelay.db", [run(f"run_{number:04d}") for number in range(450)])
    assert here("runs", "purge", "--older-than", "1s").stdout == "deleted 450 runs\n"
    assert here("runs").stdout == "No runs.\n"
    assert WORDS.encode() not in (tmp_path / "toolrelay.db").read_bytes()


def test_a_purge_names_the_copies_that_it_does_not_reach(record: Path, here: Any) -> None:
    """A purge names the copies from before a migration, which it does not delete."""
    copy = record.parent / f"{record.name}.before-0002-20250101T000000Z"
    copy.write_bytes(b"")
    said = here("runs", "purge", "--run", "run_fa").stdout
    assert "deleted 1 run\n" in said
    assert f"not deleted: {copy}" in said.replace("\n", "") or f"not deleted: {copy}" in said


def test_usage_is_counted(record: Path, here: Any) -> None:
    """``usage`` counts by model, or by tool, day or key if asked, and within a time."""

    def counted(*options: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in here("usage", "--json", *options).stdout.splitlines()]

    by_model = counted()
    assert [(row["model"], row["runs"], row["total_tokens"]) for row in by_model] == [
        ("m", 5, 115), ("other", 1, 23)
    ]  # fmt: skip
    assert by_model[0] | {"errors": 1, "turns": 10, "tool_calls": 5} == by_model[0]
    by_tool = counted("--by", "tool")
    took = {"tool_p50_s": 0.5, "tool_p95_s": 0.5}
    assert by_tool == [
        {"tool": "core__f", "runs": 5, "tool_calls": 5, "errors": 0, "tool_seconds": 2.5} | took,
        {"tool": "core__g", "runs": 1, "tool_calls": 1, "errors": 0, "tool_seconds": 0.5} | took,
    ]
    by_day = counted("--by", "day,key", "--until", "2025-10-11")
    assert [(row["day"], row["key"], row["runs"]) for row in by_day] == [
        ("2025-10-09", "open", 3), ("2025-10-09", "webui", 1), ("2025-10-10", "open", 1)
    ]  # fmt: skip
    shown = here("usage", "--by", "key").stdout.splitlines()
    heading = "key requests runs turns tool calls errors input tokens output tokens total tokens cost USD"
    assert " ".join(shown[0].split()) == heading
    assert shown[1].split() == ["open", "5", "5", "10", "5", "1", "100", "15", "115", "-"]
    assert here("usage", "--since", "1s").stdout == "No requests.\n"
    assert here("usage", "--since", "1s", "--by", "key,tool").stdout == "No tool calls.\n"


def keep_keys(path: Path, *named: tuple[str, str]) -> None:
    """Store client keys by id and name; of several with one name, all but the last are revoked."""

    async def write() -> None:
        store = SqliteStore(path)
        await store.start()
        for at, (id_, name) in enumerate(named):
            gone = NOW if name in [later for _, later in named[at + 1 :]] else None
            await store.put_key(ClientKey(id_, name, bytes(32), "pepper", {}, NOW + at, revoked_at=gone))
        await store.aclose()

    asyncio.run(write())


def test_a_key_is_named_by_its_name(tmp_path: Path, here: Any) -> None:
    """``runs`` filters by a key's name, with or without an end user, and tables show that name."""
    path, alice = tmp_path / "toolrelay.db", end_user_name("alice")
    callers = ("key_1", f"key_1/{alice}", "config:app", "key_0", "open")
    fill(path, [run(f"run_{at}", caller=caller) for at, caller in enumerate(callers)])
    keep_keys(path, ("key_0", "old"), ("key_1", "web"), ("key_2", "old"))
    (tmp_path / "toolrelay.toml").write_text('[keys.app]\nsecret = "env:APP"\n')

    def found(key: str) -> list[str]:
        result = here("runs", "list", "--json", "--key", key)
        assert result.returncode == 0, result.stderr
        return [json.loads(line)["id"] for line in result.stdout.splitlines()]

    assert found("web") == found("key_1") == ["run_1", "run_0"]
    assert found("web/alice") == found(f"key_1/{alice}") == ["run_1"]
    assert found("web/bob") == []
    assert found("app") == found("config:app") == ["run_2"]
    assert found("old") == []  # the name means its last key, key_2
    assert found("key_0") == ["run_3"]
    assert found("open") == ["run_4"]
    exported = here("runs", "export", "--key", "web").stdout.splitlines()
    assert [json.loads(line)["run"]["id"] for line in exported] == ["run_1", "run_0"]
    table = here("runs").stdout
    assert f"web/{alice}" in table
    assert "key_1" not in table
    assert "key_0" in table  # two keys have its name
    usage = here("usage", "--by", "key").stdout.splitlines()
    assert [line.split()[:2] for line in usage[1:]] == [
        ["config:app", "1"],
        ["key_0", "1"],
        ["web", "2"],
        ["open", "1"],
    ]


def test_content_is_read_for_as_long_as_it_is_kept(tmp_path: Path, here: Any) -> None:
    """``runs show`` reads content only for as long as ``store.keep_days`` keeps it."""
    fill(tmp_path / "toolrelay.db", [run("run_1", started_at=time.time())])
    counts = {}
    for days in (10_000, 0.000000001):
        env = {"TOOLRELAY_STORE__KEEP_DAYS": str(days)}
        counts[days] = json.loads(here("runs", "show", "run_1", "--json", env=env).stdout)["message_count"]
    assert counts == {10_000: 1, 0.000000001: 0}


def test_hostile_names_reach_no_terminal(tmp_path: Path, here: Any) -> None:
    """Escape sequences in a model or caller are printed escaped, in tables and in JSON."""
    evil = "\x1b]0;owned\x07[bold]"
    fill(tmp_path / "toolrelay.db", [run("run_1", model=evil, caller=evil)])
    for arguments in (["runs"], ["usage", "--by", "model,key"], ["usage", "--json"], ["runs", "export"]):
        printed = here(*arguments).stdout
        assert "owned" in printed
        assert "\x1b" not in printed
        assert "\x07" not in printed


def test_cost_is_reported(tmp_path: Path, here: Any) -> None:
    """Cost is a number in JSON and in tables; for a model without a price, it is null or ``-``."""
    runs = [run("run_1", cost=1_500_000_001), run("run_2", cost=1), run("run_3", model="other")]
    fill(tmp_path / "toolrelay.db", runs)
    rows = [json.loads(line) for line in here("usage", "--json").stdout.splitlines()]
    assert {row["model"]: row["cost"] for row in rows} == {runs[0].model: 1.500000002, "other": None}
    shown = here("usage", "--by", "model,day").stdout.splitlines()
    assert sorted(line.split()[-1] for line in shown[1:]) == ["-", "1.500000002"]
    (row,) = [json.loads(line) for line in here("runs", "--json", "--model", "other").stdout.splitlines()]
    assert row["cost"] is None


def test_usage_that_was_not_reported_is_no_zero(tmp_path: Path, here: Any) -> None:
    """Tokens that were not reported are ``-`` or null; a sum that lacks some turns has a ``+``."""
    nothing = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
    fill(
        tmp_path / "toolrelay.db",
        [
            run("run_1", unreported=1, spent="tools.max_calls"),
            run("run_2", model="silent", unreported=2, **nothing),
            run("run_3", model="zero", **nothing),
        ],
    )
    rows = [line.split() for line in here("usage").stdout.splitlines()[1:]]
    assert [[row[0], *row[6:9]] for row in rows] == [
        ["m", "20+", "3+", "23+"], ["silent", "-", "-", "-"], ["zero", "0", "0", "0"]
    ]  # fmt: skip
    told = [json.loads(line) for line in here("usage", "--json").stdout.splitlines()]
    assert [(row["total_tokens"], row["unreported"]) for row in told] == [(23, 1), (None, 2), (0, 0)]
    shown = json.loads(here("runs", "show", "run_2", "--json").stdout)
    assert (shown["run"]["total_tokens"], shown["run"]["spent"]) == (None, None)
    assert "tools.max_calls is used up" in here("runs", "show", "run_1").stdout


def test_requests_without_a_run_are_listed(record: Path, here: Any) -> None:
    """``requests list`` shows requests that have no run, with filters, as a table and as JSON."""
    assert here("requests").stdout == "No requests without a run.\n"

    async def write() -> None:
        store = SqliteStore(record)
        await store.start()
        passed = RequestRecord(
            "rq_1", "req_1", "key_a", "chat", "chat", "/v1/chat/completions", "m", "default", 200, NOW, 0.5,
            None, 0.25, 20, 3, 23, 1_500_000,
        )  # fmt: skip
        refused = RequestRecord(
            "rq_2", "req_2", "", "chat", "chat", "/v1/x", "", "", 401, NOW + 1, 0.0, "bad"
        )
        await store.add_requests([passed, refused])
        await store.aclose()

    asyncio.run(write())
    keep_keys(record, ("key_a", "alice"))
    listed = [json.loads(line) for line in here("requests", "list", "--json").stdout.splitlines()]
    assert [(row["request_id"], row["status"], row["cost"]) for row in listed] == [
        ("req_2", 401, None), ("req_1", 200, 0.0015)
    ]  # fmt: skip
    lines = [line.split("\t") for line in here("requests", "list", "--key", "alice").stdout.splitlines()]
    assert lines[1][1:] == [
        "200", "/v1/chat/completions", "m", "alice", "23", "0.0015", "0.250 s", "0.500 s", "-", "req_1"
    ]  # fmt: skip
    only = here("requests", "list", "--errors", "--json").stdout
    assert json.loads(only)["request_id"] == "req_2"
    by_key = here("usage", "--json", "--by", "key").stdout.splitlines()
    (row,) = [json.loads(line) for line in by_key if "key_a" in line]
    assert (row["requests"], row["runs"], row["total_tokens"]) == (1, 0, 23)
    assert "--status" in here("requests", "list", "--status", "x").stderr
