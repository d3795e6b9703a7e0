"""``toolrelay runs``: lists, shows, exports and deletes runs of the record."""

import asyncio
import contextlib
import getpass
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, TextIO

import structlog
from msgspec.structs import asdict, replace

from proxy.api.admin.json_output import detail_to_json, run_to_json, to_line
from proxy.base.errors import ConfigError
from proxy.base.plain_text import counted
from proxy.commands.common import console, say, say_json
from proxy.commands.runs.text_output import moment, render_detail, render_list
from proxy.config.load import Config
from proxy.records.rows import RunRecord
from proxy.server.auth.key_names import named_callers, recorded_caller
from proxy.store.base import PurgeFilter, RunDetail, RunFilter, Store
from proxy.store.factory import sqlite_path
from proxy.store.sql.migrate import migration_copies

_PAGE = 200
_RUN = "run_"
_MOST_CANDIDATES = 8


async def list_runs(config: Config, wanted: RunFilter, limit: int, *, as_json: bool) -> None:
    """Print the newest matching runs, one line each."""
    async with opened_runs(config) as store:
        wanted = await _whose(config, store, wanted)
        runs = [run async for run in _each(store, wanted, limit)]
        names = named_callers((await store.read_keys()).keys)
    if as_json:
        say_json(*map(run_to_json, runs))
    else:
        render_list(console(), runs, names)


async def show_run(config: Config, run_id: str, *, as_json: bool, content: bool) -> None:
    """Print one run with its turns and tool calls; raises ConfigError if there is none."""
    async with opened_runs(config) as store:
        detail = await find_run(store, run_id)
    if content:
        log_content_read("runs show", run_id=detail.run.id, messages=len(detail.messages))
    if as_json:
        say_json(detail_to_json(detail, content=content))
    else:
        render_detail(console(), detail, content=content)


async def export_runs(
    config: Config, wanted: RunFilter, limit: int | None, out: Path | None, *, content: bool
) -> None:
    """Write whole runs as JSON Lines. Content is included only on request, which is logged first.

    Raises ConfigError if ``out`` exists already or cannot be written.
    """
    async with opened_runs(config) as store:
        wanted = await _whose(config, store, wanted)
        if content:
            chosen = {name: value for name, value in asdict(replace(wanted, limit=0)).items() if value}
            log_content_read("runs export", out=str(out or "-"), filter=chosen)
        with _opened(out) as file:
            written = 0
            async for run in _each(store, wanted, limit):
                detail = await store.get_run(run.id)
                if detail is not None:  # Else it was purged meanwhile.
                    await asyncio.to_thread(
                        print, to_line(detail_to_json(detail, content=content)), file=file
                    )
                    written += 1
    if out is not None:
        say(f"wrote {counted(written, 'run')} to {out}")


async def purge_runs(config: Config, wanted: PurgeFilter) -> None:
    """Delete the matching runs, batch by batch, and print how many."""
    async with opened_runs(config) as store:
        if wanted.run_id is not None:
            wanted = replace(wanted, run_id=(await find_run(store, wanted.run_id)).run.id)
        deleted = 0
        while batch := await store.purge(wanted):
            deleted += batch
        if wanted.run_id is None:
            left = len(await store.list_runs(RunFilter(until=wanted.before, limit=_PAGE)))
        else:
            left = int(await store.get_run(wanted.run_id) is not None)
        remains = await store.scrub()
    say(f"deleted {counted(deleted, 'run')}")
    if left:
        say(f"{counted(left, 'run')} {'stays' if left == 1 else 'stay'}: not ended yet")
    if remains and deleted:
        say(remains)
    path = sqlite_path(config.store.url)
    for copy in migration_copies(path) if path is not None and deleted else ():
        say(f"not deleted: {copy}, a copy from before a migration; delete it if you do not need it")


def opened_runs(config: Config) -> contextlib.AbstractAsyncContextManager[Store]:
    """Open the record of a configuration for the block; raises ConfigError for one in memory."""
    if config.store.url == "memory:":
        raise ConfigError("store.url", "a store in memory has no runs to read", "Name a file: sqlite:///FILE")
    # Imported here, since reading the record needs nothing else of the composition root.
    from proxy.app.open_record import opened_record

    return opened_record(config, must_exist=True)


async def find_run(store: Store, run_id: str) -> RunDetail:
    """Return the run with that id or unique prefix of an id, with or without ``run_``.

    Raises ConfigError if no run matches, or if several do; the message then lists the newest.
    """
    wanted = run_id.strip()
    names = (wanted, f"{_RUN}{wanted}") if wanted else ()
    for name in names:
        if (detail := await store.get_run(name)) is not None:
            return detail
    for name in names:
        if fitting := await store.list_runs(RunFilter(id_prefix=name, limit=_MOST_CANDIDATES + 1)):
            shown = [f"{run.id} ({moment(run.started_at)})" for run in fitting[:_MOST_CANDIDATES]]
            more = " and more" if len(fitting) > _MOST_CANDIDATES else ""
            raise ConfigError(
                "ID",
                f"several runs begin with {run_id[:80]!r}: {', '.join(shown)}{more}",
                "Write more characters of the id",
            )
    raise ConfigError("ID", f"no run has the id {run_id[:80]!r}", "List the runs with: toolrelay runs list")


def log_content_read(command: str, **facts: Any) -> None:
    """Log that a user reads content. It is a warning, so that every log level includes it."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # A user without a name, as in containers.
        user = f"uid {os.getuid()}"
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.commands")
    log.warning("content_read", command=command, user=user, **facts)


async def _whose(config: Config, store: Store, wanted: RunFilter) -> RunFilter:
    """Replace the name of a key in the filter with the caller as recorded."""
    if wanted.caller is None:
        return wanted
    return replace(wanted, caller=await recorded_caller(store, config.keys, wanted.caller))


async def _each(store: Store, wanted: RunFilter, limit: int | None) -> AsyncIterator[RunRecord]:
    """Yield every matching run, the newest first, read page by page."""
    left = limit
    while left is None or left > 0:
        page = await store.list_runs(replace(wanted, limit=_PAGE if left is None else min(left, _PAGE)))
        for run in page:
            yield run
        if len(page) < _PAGE:
            return
        left = None if left is None else left - len(page)
        wanted = replace(wanted, before=page[-1].id)


@contextlib.contextmanager
def _opened(out: Path | None) -> Iterator[TextIO | None]:
    """Create a new file of mode 0600, and delete it if it is not completed; ``None`` is standard output."""
    if out is None:
        yield None
        return
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise ConfigError("--out", f"the file {out} exists already", "Choose another file name") from None
    except OSError as error:
        raise _unwritable(out, error) from None
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            yield file
    except OSError as error:
        out.unlink(missing_ok=True)
        raise _unwritable(out, error) from None
    except BaseException:  # An interrupted command must not leave a partial file.
        out.unlink(missing_ok=True)
        raise


def _unwritable(out: Path, error: OSError) -> ConfigError:
    return ConfigError(
        "--out", f"the file {out} cannot be written: {error.strerror}", "Choose another file name"
    )
