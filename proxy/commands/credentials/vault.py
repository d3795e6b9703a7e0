"""Access to the stored logins: they are in the record, if it exists and is encrypted."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proxy.app.open_record import open_record
from proxy.base.errors import ConfigError, NoRecord
from proxy.config.load import Config
from proxy.records.rows import TokenVault

__all__ = ["make_vault", "open_vault"]


@asynccontextmanager
async def open_vault(config: Config) -> AsyncIterator[TokenVault | None]:
    """Open the vault of the record; ``None`` if there is no record yet, or if it is not encrypted."""
    try:
        store = open_record(config, must_exist=True)
        await store.start()
    except NoRecord:
        yield None
        return
    try:
        yield store.vault
    finally:
        await store.aclose()


@asynccontextmanager
async def make_vault(config: Config) -> AsyncIterator[TokenVault]:
    """Open the vault of the record, which is created if necessary; raises ConfigError if unencrypted."""
    store = open_record(config)
    await store.start()
    try:
        if store.vault is None:
            raise ConfigError(
                "store.seal_key",
                "the record is not encrypted, so it cannot keep a login",
                "Set store.seal_key, or use a SQLite file without store.seal = false",
            )
        yield store.vault
    finally:
        await store.aclose()
