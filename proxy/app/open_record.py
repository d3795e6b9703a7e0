"""Opens the record that the configuration names: the part of ``app.py`` that supervisors need, too."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proxy.config.load import Config
from proxy.store.base import Store
from proxy.store.factory import open_store, sealing
from proxy.store.options import StoreOptions


def open_record(config: Config, *, reap: bool = False, must_exist: bool = False) -> Store:
    """Return the record, not started yet. With ``must_exist`` raise NoRecord instead of creating one."""
    settings = config.store
    options = StoreOptions(
        content=settings.content,
        keep_days=settings.keep_days,
        synchronous=settings.synchronous,
        reap=reap,
        max_clock_skew_s=settings.max_clock_skew_s if reap else 0,
        max_bytes=settings.max_bytes,
        max_per_caller=settings.max_per_caller,
        max_bytes_per_caller=settings.max_bytes_per_caller,
        max_requests=settings.max_requests,
    )
    kind, _, name = settings.url.partition(":")
    if kind == "plugin":
        # Imported here: a supervisor opens no record of a plugin.
        from proxy.app.plugins import plugin_store

        keys = settings.seal_keys()
        return plugin_store(name, sealing(options, keys["seal_key"], keys["old_seal_keys"]))
    return open_store(settings.url, options, must_exist=must_exist, **settings.seal_keys())


@asynccontextmanager
async def opened_record(config: Config, *, must_exist: bool = False) -> AsyncIterator[Store]:
    """Start the record for the block, and close it at the end; raises the errors of both."""
    store = open_record(config, must_exist=must_exist)
    await store.start()
    try:
        yield store
    finally:
        await store.aclose()
