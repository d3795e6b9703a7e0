"""``toolrelay migrate``: migrates the record, reseals its content, and deletes content of a lost key."""

from collections.abc import Awaitable, Callable

from proxy.base.errors import ConfigError
from proxy.base.plain_text import counted
from proxy.commands.common import confirmed, run_async, say
from proxy.config.load import Config
from proxy.store.factory import migrate_store, open_sealed, sqlite_path
from proxy.store.key_file import KeyFile
from proxy.store.seal import Seal, parse_seal_key
from proxy.store.sql.store import SqlStore


def migrate(config: Config) -> None:
    """Migrate the record to the current schema; a file with rows is copied first."""
    report = run_async(migrate_store(config.store.url))
    if report.copy is not None:
        say(f"kept a copy of the old file: {report.copy}")
    for name in report.applied:
        say(f"applied {name}")
    state = "" if report.applied else ", already up to date"
    say(f"{config.store.shown_url}: schema {report.after}{state}")


def reseal(config: Config) -> None:
    """Seal all content with the current key; with ``store.seal = false``, unseal all of it.

    Raises :class:`~proxy.base.errors.ConfigError` if there is no key at all.
    """
    store, file = config.store, _key_file(config)
    if not (store.seals or store.old_seal_keys or file is not None):
        raise ConfigError(
            "store.seal_key",
            "no key is configured, so nothing can be encrypted or decrypted",
            "Set store.seal_key or store.old_seal_keys",
        )
    changed = run_async(_with_store(config, lambda opened: opened.reseal()))
    say(f"{counted(changed, 'row')} {'encrypted again' if store.seals else 'decrypted'}")
    if store.old_seal_keys:
        say("you can remove store.old_seal_keys once no running process encrypts with these keys")
    if file is not None and (store.seal_key is not None or not store.seal):
        say(f"you can remove {file.path} once no running process encrypts with its key")


def forget_sealed(config: Config, key: str, *, ask: bool) -> None:
    """Delete the content that a lost key has sealed.

    Raises :class:`~proxy.base.errors.ConfigError` if the key is known, and so not lost, or the user does not
    confirm.
    """
    keys = [*config.store.old_seal_keys, *([config.store.seal_key] if config.store.seal_key else [])]
    if key in [Seal(parse_seal_key(secret.reveal())).id for secret in keys]:
        raise ConfigError(
            "--forget-sealed",
            f"the key {key} is configured, so it is not lost; remove it from the configuration first",
        )
    file = _key_file(config)
    held = file.read() if file is not None else None
    if file is not None and held is not None and Seal(held).id == key:
        raise ConfigError("--forget-sealed", f"the key {key} is in {file.path}, so it is not lost")
    if ask and not confirmed(
        f"Delete all content of {config.store.shown_url} that was encrypted with {key[:40]!r}?"
    ):
        raise ConfigError(
            "--forget-sealed", "deletes content for good", "To delete without a question, add --yes"
        )
    gone = run_async(_with_store(config, lambda store: store.forget_sealed(key)))
    say(f"deleted {counted(gone, 'row')}; all runs stay")


def _key_file(config: Config) -> KeyFile | None:
    """Return the key file beside the record, if there is one."""
    path = sqlite_path(config.store.url)
    file = KeyFile(path) if path is not None else None
    return file if file is not None and file.path.exists() else None


async def _with_store(config: Config, work: Callable[[SqlStore], Awaitable[int]]) -> int:
    store = open_sealed(config.store.url, **config.store.seal_keys())
    await store.start()
    try:
        return await work(store)
    finally:
        await store.aclose()
