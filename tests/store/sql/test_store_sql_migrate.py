"""Migrations of the SQLite schema: from an empty file, from each earlier schema, and by many processes."""

import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import get_args

import pytest
from store_records import ROWS, files_below, hidden, hidden_of, native_call, query, response, spawn
from waiting import LATE_S

from proxy.base.errors import StoreError, StoreTooNew, StoreUnavailable
from proxy.records.rows import InvocationStatus, RunStatus, ToolEffect
from proxy.store.base import RunFilter
from proxy.store.options import StoreOptions
from proxy.store.sql.migrate import APPLICATION_ID, Migration, load_migrations, migrate_sqlite
from proxy.store.sqlite.store import SqliteStore

LATEST = len(load_migrations())


_KEYS = next(step.number for step in load_migrations() if step.name.endswith("_client_keys"))
"""The number of the migration that added client keys."""


def _mode(path: Path | str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def _since(table: str) -> int:
    """The number of the migration that is named after a table."""
    return next(each.number for each in load_migrations() if each.name.endswith(f"_{table}"))


@pytest.mark.parametrize("upto", range(1, LATEST + 1))
def test_each_migration_applies_from_blank(tmp_path: Path, upto: int) -> None:
    """The first N migrations give an empty file a valid, strict schema with version N, without a copy."""
    path = tmp_path / "r.db"
    report = migrate_sqlite(path, migrations=load_migrations()[:upto])
    assert (report.before, report.after, len(report.applied), report.copy) == (0, upto, upto, None)
    assert query(path, "PRAGMA user_version") == [(upto,)]
    assert query(path, "PRAGMA application_id") == [(APPLICATION_ID,)]
    assert query(path, "PRAGMA integrity_check") == [("ok",)]
    assert query(path, "PRAGMA journal_mode") == [("wal",)]
    listed = "SELECT name, strict FROM pragma_table_list WHERE name NOT LIKE 'sqlite_%' AND type = 'table'"
    tables = query(path, listed)
    assert {name for name, _ in tables} == {
        "owners", "runs", "turns", "messages", "tool_invocations", "suspended_turns",
        *(["responses"] if upto >= 2 else []),
        *(["hidden_turns"] if upto >= 3 else []),
        *(["mcp_pins"] if upto >= 19 else []),
        *(["client_keys", "key_state", "response_owners"] if upto >= _KEYS else []),
        *(["effect_claims", "kept_results"] if "effect_claims" in {name for name, _ in tables} else []),
        *(["run_tools"] if "run_tools" in {name for name, _ in tables} else []),
        *(["seal_keys"] if upto >= _since("leases") else []),
        *(["run_texts", "runs_to_index", "words_gone"] if upto >= _since("run_texts") else []),
        *(["ui_marks"] if upto >= _since("web_ui") else []),
        *[
            name
            for name in (
                *("native_calls", "connection_tokens", "threads", "approvals", "diagnoses"),
                *("background_runs", "wire_bytes", "approval_grants", "requests"),
            )
            if upto >= _since(name)
        ],
    }  # fmt: skip
    assert all(strict for _, strict in tables)


def test_a_second_migration_keeps_rows_and_a_copy(tmp_path: Path) -> None:
    """Before a migration changes a file with rows, the store copies it with mode 0600; the rows stay."""
    path = tmp_path / "r.db"
    migrate_sqlite(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO owners VALUES ('o', 1, 'h', NULL, 1.0, 1.0, NULL, 1)")
    later = Migration(
        LATEST + 1,
        f"{LATEST + 1:04d}_more",
        "-- a comment; with a semicolon\nALTER TABLE owners ADD COLUMN more TEXT;\n"
        "CREATE TRIGGER t AFTER DELETE ON owners BEGIN\n SELECT 1;\n SELECT 2;\nEND;\n",
    )
    report = migrate_sqlite(path, migrations=[*load_migrations(), later], clock=lambda: 0.0)
    assert (report.before, report.after, report.applied) == (LATEST, LATEST + 1, (later.name,))
    assert query(path, "SELECT id, more FROM owners") == [("o", None)]
    assert report.copy is not None
    assert report.copy.name == f"r.db.before-{LATEST + 1:04d}-19700101T000000Z"
    assert _mode(report.copy) == 0o600
    assert query(report.copy, "PRAGMA user_version") == [(LATEST,)]
    assert query(report.copy, "SELECT id FROM owners") == [("o",)]


def _rows_of(path: Path) -> dict[str, tuple[object, ...]]:
    """One sample row for each table that the file has."""
    tables = {name for (name,) in query(path, "SELECT name FROM sqlite_schema WHERE type = 'table'")}
    return {table: row for table, row in ROWS.items() if table in tables}


@pytest.mark.parametrize("before", range(1, LATEST))
async def test_a_record_of_an_earlier_schema_keeps_every_row(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, before: int
) -> None:
    """A start with a file of an earlier schema copies it, migrates it, and keeps the row of each table."""
    path = tmp_path / "r.db"
    migrate_sqlite(path, migrations=load_migrations()[:before])
    held = _rows_of(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        for table, row in held.items():
            # Columns that a later ALTER TABLE added are the last ones, and have defaults.
            found = connection.execute("SELECT name FROM pragma_table_info(?) ORDER BY cid", (table,))
            names = ", ".join(name for (name,) in found.fetchmany(len(row)))
            marks = ", ".join("?" * len(row))
            connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", row)
    store = SqliteStore(path, StoreOptions(keep_days=0, needs_all_keys=False))
    await store.start()
    try:
        (copy,) = [path for path in files_below(tmp_path) if path.name.startswith("r.db.before-")]
        assert copy.name.startswith(f"r.db.before-{before + 1:04d}-")
        assert str(copy) in caplog.text
        assert _mode(copy) == 0o600
        assert query(path, "PRAGMA user_version") == [(LATEST,)]
        assert query(copy, "PRAGMA user_version") == [(before,)]
        for table, row in held.items():
            assert [found[: len(row)] for found in query(copy, f"SELECT * FROM {table}")] == [row]
            assert [found[: len(row)] for found in query(path, f"SELECT * FROM {table}")] == [row]
        assert await store.find_response("resp_1", "open") is None
        assert list(await hidden_of(store, "key-1")) == []
        store.put_response(response())
        store.put_hidden(hidden())
        detail = await store.get_run("run_1")
        assert detail is not None
        assert len(detail.turns) == len(detail.messages) == len(detail.invocations) == 1
        assert await store.find_response("resp_1", "open") == response()
        assert list(await hidden_of(store, "key-1")) == [hidden()]
        store.put_native_call(native_call())
        detail = await store.get_run("run_1")
        assert detail is not None
        assert list(detail.native_calls) == [native_call()]
        held_turn = await store.find_suspended("key-1")
        assert held_turn is not None
        assert (held_turn.payload, held_turn.ephemeral) == (b"{\xff}", False)
        assert [listed.id for listed in await store.list_runs(RunFilter(tool="core__f"))] == ["run_1"]
        if "hidden_turns" in held:
            assert [turns.payload for turns in await hidden_of(store, "key-0")] == [b"\xff"]
    finally:
        await store.aclose()


@pytest.mark.parametrize("before", [0, 1, LATEST - 1])
def test_only_the_words_of_a_state_are_taken(tmp_path: Path, before: int) -> None:
    """The migrated schema takes every known status and effect, and rejects any other value."""
    path = tmp_path / "r.db"
    if before:
        migrate_sqlite(path, migrations=load_migrations()[:before])
    migrate_sqlite(path)
    words = {
        ("runs", "status"): get_args(RunStatus),
        ("tool_invocations", "status"): get_args(InvocationStatus),
        ("tool_invocations", "effect"): tuple(ToolEffect),
    }
    with closing(sqlite3.connect(path)) as connection, connection:
        for table, row in ROWS.items():
            if table in ("owners", "runs", "tool_invocations"):
                found = connection.execute("SELECT name FROM pragma_table_info(?) ORDER BY cid", (table,))
                names = ", ".join(name for (name,) in found.fetchmany(len(row)))
                connection.execute(f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(row))})", row)
        for (table, column), known in words.items():
            for word in known:
                connection.execute(f"UPDATE {table} SET {column} = ?", (str(word),))
            for word in ("", "other", known[0].upper(), 1):
                with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
                    connection.execute(f"UPDATE {table} SET {column} = ?", (word,))
    assert query(path, "PRAGMA integrity_check") == [("ok",)]


def test_a_schema_without_rows_is_not_copied(tmp_path: Path) -> None:
    """A database without rows, as a crash between two migrations leaves it, is migrated without a copy."""
    path = tmp_path / "r.db"
    migrate_sqlite(path, migrations=load_migrations()[:1])
    report = migrate_sqlite(path)
    assert (report.before, report.after, report.copy) == (1, LATEST, None)


def test_a_failed_migration_changes_nothing(tmp_path: Path) -> None:
    """A failed migration does not raise the schema version, and is rolled back unless it commits itself."""
    path = tmp_path / "r.db"
    migrate_sqlite(path)
    for sql in (
        "CREATE TABLE half (a); CREATE TABLE half (a);",
        "CREATE TABLE half (a);\nCREATE TABLE runs (a);",
        "CREATE TABLE half (a);\nCOMMIT;\nCREATE TABLE rest (a);",
        "CREATE TABLE half (a);\nCREATE TABLE rest (a",
    ):
        broken = Migration(LATEST + 1, "broken", sql)
        with pytest.raises(StoreError):
            migrate_sqlite(path, migrations=[*load_migrations(), broken])
        assert query(path, "PRAGMA user_version") == [(LATEST,)]
        if "COMMIT" not in sql:
            assert query(path, "SELECT 1 FROM sqlite_schema WHERE name = 'half'") == []
        else:
            with closing(sqlite3.connect(path)) as connection:
                connection.execute("DROP TABLE half")


def test_a_migration_may_not_orphan_rows(tmp_path: Path) -> None:
    """A migration that leaves a row with a broken foreign key fails and is rolled back."""
    path = tmp_path / "r.db"
    migrate_sqlite(path)
    bad = Migration(
        LATEST + 1,
        "orphans",
        "INSERT INTO turns (run_id, number, upstream_id, started_at, ended_at) VALUES ('none', 1, '', 0, 0);",
    )
    with pytest.raises(StoreError, match="turns"):
        migrate_sqlite(path, migrations=[*load_migrations(), bad])
    assert query(path, "SELECT count(*) FROM turns") == [(0,)]


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    """A database with a later schema raises StoreTooNew with a message of one line, and is not changed."""
    path = tmp_path / "r.db"
    migrate_sqlite(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 999")
    with pytest.raises(StoreTooNew, match=r"r\.db has schema 999, this version of toolrelay knows") as caught:
        migrate_sqlite(path)
    assert "\n" not in str(caught.value)
    assert query(path, "PRAGMA user_version") == [(999,)]
    assert [entry.name for entry in tmp_path.glob("*before*")] == []


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    """A file with the application id of another program raises StoreError and is not changed."""
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA application_id = 252006675")
        connection.execute("CREATE TABLE theirs (a)")
    with pytest.raises(StoreError, match="another program"):
        migrate_sqlite(path)
    assert query(path, "SELECT name FROM sqlite_schema") == [("theirs",)]


@pytest.mark.parametrize("kind", ["text", "cut", "cut in its first page"])
def test_a_file_that_is_no_database_is_named(tmp_path: Path, kind: str) -> None:
    """A text file or a cut database raises StoreError with the name of the file, and is not changed."""
    path = tmp_path / "notes.db"
    if kind == "text":
        path.write_bytes(b"Dear diary, " * 1000)
    else:
        migrate_sqlite(path, migrations=load_migrations()[:-1])
        os.truncate(path, path.stat().st_size // 2 if kind == "cut" else 100)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"notes\.db is damaged or not a SQLite database; move it away"):
        migrate_sqlite(path)
    assert path.read_bytes() == before


def test_a_lock_that_does_not_end_is_named(tmp_path: Path) -> None:
    """An empty file that another connection locks raises StoreUnavailable after the lock timeout."""
    path = tmp_path / "r.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreUnavailable, match="locked by another process"):
            migrate_sqlite(path, lock_timeout_s=0.05)
        holder.execute("ROLLBACK")
    assert migrate_sqlite(path).after == LATEST


def test_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    """Rule R3: the database, its log files and its copy get mode 0600, even if others could read them."""
    path = tmp_path / "r.db"
    extra = Migration(LATEST + 1, "extra", "CREATE TABLE extra (a);")
    previous = os.umask(0)
    try:
        migrate_sqlite(path)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("CREATE TABLE t (a)")
            connection.execute("INSERT INTO t VALUES (1)")
            assert [_mode(f"{path}{suffix}") for suffix in ("", "-wal", "-shm")] == [0o600] * 3
            connection.commit()
            for suffix in ("", "-wal", "-shm"):
                os.chmod(f"{path}{suffix}", 0o666)
            report = migrate_sqlite(path, migrations=[*load_migrations(), extra])
            assert [_mode(f"{path}{suffix}") for suffix in ("", "-wal", "-shm")] == [0o600] * 3
            assert report.copy is not None
            assert _mode(report.copy) == 0o600
    finally:
        os.umask(previous)


def test_a_folder_that_is_missing_or_closed_is_an_error_of_the_store(closed_folder: Path) -> None:
    """If the folder of the file is missing, or this user may not write to it: StoreUnavailable."""
    for folder, why in ((closed_folder / "none", "No such file"), (closed_folder, "Permission denied")):
        with pytest.raises(StoreUnavailable, match=rf"new\.db cannot be created or made private: {why}"):
            migrate_sqlite(folder / "new.db")
    assert [path.name for path in closed_folder.iterdir()] == ["r.db"]


@pytest.mark.parametrize("names", [["0002_a.sql"], ["0001_a.sql", "0001_b.sql"], ["one.sql"], []])
def test_files_that_are_misnumbered_are_refused(tmp_path: Path, names: list[str]) -> None:
    """A gap, a duplicate, a name without a number, and a folder without migrations raise StoreError."""
    for name in names:
        (tmp_path / name).write_text("SELECT 1;")
    with pytest.raises(StoreError):
        load_migrations(tmp_path)


_STARTER = """
import sys
from pathlib import Path
from proxy.store.sql.migrate import Migration, load_migrations, migrate_sqlite
extra = Migration(len(load_migrations()) + 1, "extra", "CREATE TABLE extra (a);")
sys.stdin.readline()
report = migrate_sqlite(Path(sys.argv[1]), migrations=[*load_migrations(), extra])
print(len(report.applied), report.after, report.copy is not None)
"""


@pytest.mark.parametrize("blank", [True, False])
def test_processes_that_start_at_once_do_not_fight(tmp_path: Path, blank: bool) -> None:
    """If four processes migrate one file at once, each migration is applied once and all four succeed."""
    path = tmp_path / "r.db"
    if not blank:
        migrate_sqlite(path)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("INSERT INTO owners VALUES ('o', 1, 'h', NULL, 1.0, 1.0, NULL, 1)")
    children = [spawn(_STARTER, path) for _ in range(4)]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = [child.communicate(timeout=LATE_S)[0].split() for child in children]
    assert [child.returncode for child in children] == [0] * 4
    assert sum(int(applied) for applied, _, _ in answers) == (LATEST + 1 if blank else 1)
    assert {int(after) for _, after, _ in answers} == {LATEST + 1}
    copies = 0 if blank else 1
    assert sum(copied == "True" for _, _, copied in answers) == copies
    assert len(list(tmp_path.glob("r.db.before-*"))) == copies
    assert query(path, "PRAGMA integrity_check") == [("ok",)]
