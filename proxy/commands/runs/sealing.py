"""``toolrelay migrate``: the record brought up to date, its content sealed anew, a lost key given up."""

from collections.abc import Awaitable, Callable

from proxy.commands.common import confirmed, run_async, say
from proxy.errors import ConfigError
from proxy.plain_text import counted
from proxy.server.config.load import Config
from proxy.store.factory import migrate_store, open_sealed
from proxy.store.seal import Seal, parse_seal_key
from proxy.store.sql.store import SqlStore

__all__ = ["forget_sealed", "migrate", "reseal"]


def migrate(config: Config) -> None:
    """Bring the record's file up to date; a file that holds something is copied first."""
    report = run_async(migrate_store(config.store.url))
    if report.copy is not None:
        say(f"kept a copy of the old file: {report.copy}")
    for name in report.applied:
        say(f"applied {name}")
    state = "" if report.applied else ", already up to date"
    say(f"{config.store.shown_url}: schema {report.after}{state}")


def reseal(config: Config) -> None:
    """Seal all content with ``store.seal_key``; without one, open it all.

    Raises :class:`~proxy.errors.ConfigError` where no key is configured at all.
    """
    if config.store.seal_key is None and not config.store.old_seal_keys:
        raise ConfigError(
            "store.seal_key",
            "no key is configured, so nothing can be encrypted or decrypted",
            "Set store.seal_key or store.old_seal_keys",
        )
    changed = run_async(_with_store(config, lambda store: store.reseal()))
    state = "encrypted again" if config.store.seal_key is not None else "decrypted"
    say(f"{counted(changed, 'row')} {state}")
    if config.store.old_seal_keys:
        say("you can remove store.old_seal_keys once no running process encrypts with these keys")


def forget_sealed(config: Config, key: str, *, ask: bool) -> None:
    """Delete what a lost key has sealed.

    Raises :class:`~proxy.errors.ConfigError` for a key that is configured, and so not lost, and
    where nobody says yes.
    """
    keys = [*config.store.old_seal_keys, *([config.store.seal_key] if config.store.seal_key else [])]
    if key in [Seal(parse_seal_key(secret.reveal())).id for secret in keys]:
        raise ConfigError(
            "--forget-sealed",
            f"the key {key} is configured, so it is not lost; remove it from the configuration first",
        )
    if ask and not confirmed(
        f"Delete all content of {config.store.shown_url} that was encrypted with {key[:40]!r}?"
    ):
        raise ConfigError(
            "--forget-sealed", "deletes content for good", "To delete without a question, add --yes"
        )
    gone = run_async(_with_store(config, lambda store: store.forget_sealed(key)))
    say(f"deleted {counted(gone, 'row')}; all runs stay")


async def _with_store(config: Config, work: Callable[[SqlStore], Awaitable[int]]) -> int:
    store = open_sealed(config.store.url, **config.store.seal_keys())
    await store.start()
    try:
        return await work(store)
    finally:
        await store.aclose()
