"""``toolrelay runs save``: makes a fixture of a recorded run."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from proxy.api.taping.fixture_files import fixture_files
from proxy.api.taping.tape import MAX_BYTES, read_tape
from proxy.base.errors import ConfigError
from proxy.commands.common import say
from proxy.commands.runs.runs import find_run, log_content_read, opened_runs
from proxy.config.load import Config
from proxy.upstreams.recorded.scrubbing import Scrubbing
from proxy.wires.registry.table import BY_WIRE


async def save_run(config: Config, run_id: str, out: Path, scrub: Sequence[str]) -> None:
    """Write the bytes of a run into a folder of its own below ``out``, without secrets.

    Raises :class:`~proxy.base.errors.ConfigError` if the record lacks bytes, or the folder exists already.
    """
    clean = Scrubbing(config.secrets(), (*config.record.scrub, *scrub)).clean
    async with opened_runs(config) as store:
        detail = await find_run(store, run_id)
        kept = await store.find_wire(detail.run.id)
    log_content_read("runs save", run_id=detail.run.id, out=str(out))
    if kept is None:
        raise ConfigError(
            "ID",
            "the bytes of this run were not kept",
            'store.content = "all" keeps those of later runs, in an encrypted record',
        )
    taped = read_tape(kept.payload)
    if taped.cut:
        raise ConfigError("ID", f"this run had more than the {MAX_BYTES >> 20} MiB that are kept of a run")
    wire = next((dialect.wire for dialect in BY_WIRE.values() if dialect.path == taped.path), "")
    if not wire:
        raise ConfigError("ID", "no model was asked in this run, so there is nothing to replay")
    folder = out / detail.run.id
    await asyncio.to_thread(_write, folder, fixture_files(detail.run, wire, taped, clean))
    say(f"wrote {folder}; it contains what the user asked and the model answered")


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write new files that only their owner can read."""
    try:
        folder.mkdir(mode=0o700, parents=True)
        for name, data in files.items():
            (folder / name).parent.mkdir(mode=0o700, exist_ok=True)
            (folder / name).touch(mode=0o600)
            (folder / name).write_bytes(data)
    except OSError as error:
        raise ConfigError(
            "DIR", f"{folder} cannot be written: {error.strerror}", "Name another folder"
        ) from None
