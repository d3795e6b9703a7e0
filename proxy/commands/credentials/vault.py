"""Access to the stored logins: they are in the record, if it exists and is encrypted."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from proxy.app.open_record import opened_record
from proxy.base.errors import ConfigError, NoRecord
from proxy.config.load import Config
from proxy.records.rows import TokenVault


@asynccontextmanager
async def open_vault(config: Config) -> AsyncIterator[TokenVault | None]:
    """Open the vault of the record; ``None`` if there is no record yet, or if it is not encrypted."""
    async with AsyncExitStack() as stack:
        try:
            vault = (await stack.enter_async_context(opened_record(config, must_exist=True))).vault
        except NoRecord:
            vault = None
        yield vault


@asynccontextmanager
async def make_vault(config: Config) -> AsyncIterator[TokenVault]:
    """Open the vault of the record, which is created if necessary; raises ConfigError if unencrypted."""
    async with opened_record(config) as store:
        if store.vault is None:
            raise ConfigError(
                "store.seal_key",
                "the record is not encrypted, so it cannot keep a login",
                "Set store.seal_key, or use a SQLite file without store.seal = false",
            )
        yield store.vault
