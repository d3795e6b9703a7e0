"""Lines for an operator about the encryption of the record."""

from proxy.config.load import Config
from proxy.store.factory import sqlite_path
from proxy.store.key_file import KeyFile


def seal_lines(config: Config) -> list[str]:
    """Return which key file encrypts the record, or what follows if the record is not encrypted."""
    store = config.store
    path = sqlite_path(store.url)
    if store.seals and store.seal_key is None and path is not None:
        name = KeyFile(path).path.name
        return [f"the record is encrypted with the key in {name}, beside it; back up both together"]
    if store.seals or store.content == "none" or store.url.startswith("memory:"):
        return []
    remedy = (
        "Remove store.seal = false"
        if not store.seal
        else "Set store.seal_key to a key that all servers of this database share (openssl rand -base64 32)"
    )
    return [
        f"{store.shown_url} is not encrypted: kept content is plain text, and private arguments of earlier "
        f"calls go back to the model as [private]. {remedy}"
    ]
