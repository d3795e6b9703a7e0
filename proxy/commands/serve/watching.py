"""``--reload``: finds the files that a running configuration depends on, and notices their changes."""

import asyncio
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # A supervisor watches without loading the configuration.
    from proxy.config.load import Config

POLL_S = 0.5

Stamps = Mapping[Path, tuple[int, int]]


def watched_places(path: Path | None, config: "Config") -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Return the files to watch, and the folders of packages, in which every Python file is watched.

    The files are the configuration, the ``.env`` beside it, the files that it names, and the modules of the
    operator's own tools and hooks.
    """
    # A .env that does not exist yet is watched, too: its variables count as soon as it is written.
    files = {Path(".env") if path is None else path.parent / ".env"}
    files |= {path} if path is not None else set()
    files.update(Path(name) for name in (config.mcp.pins, *config.mcp.imports) if name)
    folders: set[Path] = set()
    for entry in (*config.tools.modules, *config.hooks.modules):
        if entry.endswith(".py") or "/" in entry:
            files.add(Path(entry))
            continue
        try:
            spec = importlib.util.find_spec(entry)
        # Finding a module imports its parents, and a foreign package may raise anything.
        except Exception:  # noqa: BLE001
            continue
        if spec is not None and spec.submodule_search_locations:
            folders.update(Path(folder) for folder in spec.submodule_search_locations)
        elif spec is not None and spec.origin is not None:
            files.add(Path(spec.origin))
    return (
        tuple(sorted(file.absolute() for file in files)),
        tuple(sorted(folder.absolute() for folder in folders)),
    )


def watched_files(files: Iterable[Path], folders: Iterable[Path]) -> set[Path]:
    """Return the files themselves, and the Python files that are now below the folders."""
    return {*files, *(file for folder in folders for file in folder.rglob("*.py"))}


def stamps(files: Iterable[Path]) -> Stamps:
    """Return each file's modification time (ns) and size, which reveal a change; both 0 if missing."""
    seen = {}
    for file in files:
        try:
            status = file.stat()
        except OSError:
            seen[file] = (0, 0)
        else:
            seen[file] = (status.st_mtime_ns, status.st_size)
    return seen


async def watch(
    files: Callable[[], Iterable[Path]], before: Stamps, changed: Callable[[list[Path]], None]
) -> None:
    """Call ``changed`` with files that differ from ``before``, once they stayed the same for an interval.

    ``files`` returns the files to watch at each interval. A file that is new in it counts as unchanged.
    """
    known = dict(before)
    seen: Stamps = {}
    while True:
        await asyncio.sleep(POLL_S)
        now = await asyncio.to_thread(stamps, files())
        differ = sorted(file for file in now if now[file] != known.setdefault(file, now[file]))
        if differ and now == seen:
            known.update(now)
            changed(differ)
        seen = now
