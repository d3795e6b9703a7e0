"""``toolrelay runs`` and ``toolrelay migrate``: the record, read and brought up to date."""

import json
from typing import Any

from proxy.commands.common import console, say
from proxy.errors import ConfigError
from proxy.server.config import Config
from proxy.server.runs_view import detail_to_json, render_detail, render_list, run_to_json
from proxy.store.base import RunFilter, Store
from proxy.store.factory import open_store, sqlite_path
from proxy.store.migrate import migrate_sqlite

__all__ = ["list_runs", "migrate", "show_run"]


async def list_runs(config: Config, wanted: RunFilter, *, as_json: bool) -> None:
    """Print the newest runs, one line each."""
    async with _Record(config) as store:
        runs = await store.list_runs(wanted)
    if as_json:
        for run in runs:
            say(_json(run_to_json(run)))
    else:
        render_list(console(), runs)


async def show_run(config: Config, run_id: str, *, as_json: bool) -> None:
    """Print one run with its turns and tool calls; raises ConfigError where there is none."""
    async with _Record(config) as store:
        detail = await store.get_run(run_id)
    if detail is None:
        raise ConfigError("ID", f"no run fits {run_id[:80]!r}, or several do", "See: toolrelay runs list")
    if as_json:
        say(_json(detail_to_json(detail)))
    else:
        render_detail(console(), detail)


def migrate(config: Config) -> None:
    """Bring the record's file up to date; a file that holds something is copied first."""
    path = sqlite_path(config.store.url)
    if path is None:
        raise ConfigError("store.url", "a store in memory has nothing to migrate", "Name a file")
    if not path.parent.is_dir():
        raise ConfigError("store.url", f"the folder {path.parent} does not exist", "Create it first")
    report = migrate_sqlite(path)
    if report.copy is not None:
        say(f"kept a copy of the file as it was: {report.copy}")
    for name in report.applied:
        say(f"applied {name}")
    say(f"{path}: schema {report.after}" + ("" if report.applied else ", already up to date"))


class _Record:
    """The store of a configuration, opened for reading and closed again."""

    def __init__(self, config: Config) -> None:
        if config.store.url == "memory:":
            raise ConfigError("store.url", "memory: keeps no record to read", "Name a file: sqlite:///FILE")
        seal_key = config.store.seal_key.reveal() if config.store.seal_key else ""
        self._store: Store = open_store(config.store.url, must_exist=True, seal_key=seal_key)

    async def __aenter__(self) -> Store:
        await self._store.start()
        return self._store

    async def __aexit__(self, *_: object) -> None:
        await self._store.aclose()


def _json(value: Any) -> str:
    """JSON on one line and in ASCII, so that a terminal shows it and obeys none of it."""
    return json.dumps(value, default=str)
