"""Where logins are kept: the record, as far as it is there and seals."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proxy.errors import ConfigError, NoRecord
from proxy.records import TokenVault
from proxy.server.config.load import Config
from proxy.server.open_record import open_record

__all__ = ["make_vault", "open_vault"]


@asynccontextmanager
async def open_vault(config: Config) -> AsyncIterator[TokenVault | None]:
    """The vault of the record; ``None`` where there is no record yet, or none that seals."""
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
    """The vault of the record, which is made if it is not there.  Raises ConfigError for one that does not
    seal."""
    store = open_record(config)
    await store.start()
    try:
        if store.vault is None:
            raise ConfigError(
                "store.seal_key", "nothing is encrypted in the record, and a login is kept there, sealed"
            )
        yield store.vault
    finally:
        await store.aclose()
