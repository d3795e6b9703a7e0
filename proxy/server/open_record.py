"""The record, as the configuration says: a part of what ``app.py`` composes that supervisors need, too."""

from proxy.server.config.load import Config
from proxy.store.base import Store
from proxy.store.factory import open_store

__all__ = ["open_record"]


def open_record(config: Config, *, reap: bool = False) -> Store:
    """The record, not started yet."""
    settings = config.store
    return open_store(
        settings.url,
        content=settings.content,
        keep_days=settings.keep_days,
        synchronous=settings.synchronous,
        reap=reap,
        **settings.seal_keys(),
        max_bytes=settings.max_bytes,
        max_per_caller=settings.max_per_caller,
        max_bytes_per_caller=settings.max_bytes_per_caller,
    )
