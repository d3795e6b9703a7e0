"""What the connection to SQLite relies on in aiosqlite."""

import threading
from pathlib import Path

from proxy.store.sqlite.db import connect


async def test_the_thread_of_a_connection_does_not_keep_the_process(tmp_path: Path) -> None:
    """A disk that never answers must not keep the process from ending, so the thread is a daemon.

    ``connect`` makes it one by ``_thread``, a private name of aiosqlite. If this fails, check how a newer
    aiosqlite starts its thread.
    """
    before = set(threading.enumerate())
    db = await connect(tmp_path / "r.db")
    try:
        started = set(threading.enumerate()) - before
        assert [thread.daemon for thread in started] == [True]
    finally:
        await db.close()
