"""Keys of requests from texts that a test chooses."""

from proxy.tools.running.ledger import RequestKey


def keyed(text: str) -> RequestKey:
    """Return the key of a request whose digest is ``text``."""
    return RequestKey(lambda: text)
