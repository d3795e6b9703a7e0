"""The proxy's own compaction items: summaries of conversations that only the proxy can read.

The client keeps the item and sends it back in place of the messages that it summarizes. The summary is
encrypted with AES-256-GCM and bound to its caller, because it may repeat results of server tools that the
client never saw.

Source: OpenAI's API reference, "Compact a response".
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from proxy.base.errors import RequestError
from proxy.base.sealed_text import TextSeal
from proxy.wires.responses.items import is_ours, own_item_id

_KIND: Final = "compaction"
_MOST_BYTES: Final = 1 << 20
"""The largest summary in bytes; no model writes as much in one answer."""
_INTRODUCTION: Final = "A summary of the conversation up to here:"


def is_own_compaction(item: Mapping[str, Any]) -> bool:
    """Return whether an item claims to be one of the proxy's own compactions."""
    return item.get("type") == _KIND and is_ours(item)


class SealedSummaries:
    """Writes and reads the compaction items of one caller.

    ``keys`` are those of :class:`~proxy.base.sealed_text.TextSeal`, the same in all processes that share the
    record and after a restart.
    """

    def __init__(self, keys: Sequence[bytes], caller: str) -> None:
        self._seal = TextSeal(keys, b"summaries")
        self._caller = caller.encode("utf-8", "surrogatepass")

    def item(self, summary: str) -> dict[str, Any]:
        """Return a compaction item that holds a summary."""
        item_id = own_item_id("cmp")
        content = self._seal.close(summary.encode("utf-8", "replace"), self._place(item_id))
        return {"id": item_id, "type": _KIND, "encrypted_content": content}

    def message(self, item: Mapping[str, Any], param: str) -> dict[str, Any]:
        """Return the message that upstreams get in place of one of the proxy's own compaction items.

        Raises :class:`~proxy.base.errors.RequestError` (400) that names ``param`` if the item was changed, or
        was made for another caller or by another proxy.
        """
        summary = self._open(item)
        if summary is None:
            raise RequestError(
                400,
                f"{param}.encrypted_content cannot be read: it was changed, or it was made for another "
                "caller or by another proxy. Send the messages that it summarizes, or compact them again.",
                param=f"{param}.encrypted_content",
                code="invalid_encrypted_content",
            )
        content = [{"type": "input_text", "text": f"{_INTRODUCTION}\n\n{summary}"}]
        return {"type": "message", "role": "user", "content": content}

    def _open(self, item: Mapping[str, Any]) -> str | None:
        """Return the summary in an item; ``None`` if it was not made for this caller."""
        content, item_id = item.get("encrypted_content"), item.get("id")
        if not isinstance(content, str) or not isinstance(item_id, str) or len(content) > 2 * _MOST_BYTES:
            return None
        opened = self._seal.open(content, self._place(item_id))
        return opened.decode() if opened is not None else None

    def _place(self, item_id: str) -> bytes:
        """Return what a summary is bound to: its item and the caller."""
        return b"%d:%b%b" % (len(item_id), item_id.encode("utf-8", "surrogatepass"), self._caller)
