"""The results of searches that clients carry in ``encrypted_content``, as those of Anthropic's own search.

A turn with a search comes back from the record. Where the record does not have it, as on another host, what
the client sends back becomes the call and its result again. The text is encrypted with AES-256-GCM and bound
to its call and caller: what was changed, or made for somebody else, is left out.

Source: Anthropic's page "Web search tool", ``encrypted_content``.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from proxy.base.sealed_text import TextSeal
from proxy.wires.anthropic.blocks import Block, blocks_of, is_ours, without_ours
from proxy.wires.hosted.tools import FoundPage

_RESULT: Final = "web_search_tool_result"
_LONGEST_TEXT: Final = 2000
"""Characters of a page that a client carries: all of them come with each later request."""
_LONGEST_SEALED: Final = 32 << 10
_MOST_PAGES: Final = 1000
"""Pages of one request that are decrypted."""


class SealedResults:
    """Encrypts and decrypts the pages that were found for one caller.

    ``keys`` are those of a :class:`~proxy.base.sealed_text.TextSeal`.
    """

    def __init__(self, keys: Sequence[bytes], caller: str) -> None:
        self._seal = TextSeal(keys, b"found pages")
        self._caller = caller.encode("utf-8", "surrogatepass")
        self._left = _MOST_PAGES

    def close(self, call_id: str, page: FoundPage) -> str:
        """Return the ``encrypted_content`` of a page that the call has found."""
        told = {"url": page.url, "title": page.title, "text": page.text[:_LONGEST_TEXT]}
        return self._seal.close(
            orjson.dumps(told | ({"date": page.date} if page.date else {})), self._place(call_id)
        )

    def turns(self, messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, bytes]]:
        """Yield the held turns of messages that show searches, by their positions.

        See :meth:`proxy.wires.upstream_port.RequestBody.restore`.
        """
        for position, message in enumerate(messages):
            if message.get("role") == "assistant" and (unfolded := self._unfolded(message)):
                written = [without_ours(orjson.dumps(one)).decode() for one in unfolded]
                yield position, orjson.dumps({"messages": written, "calls": [], "items": []})

    def _unfolded(self, message: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the messages that a message with searches was; none if it shows no search that can be read.

        The calls of the client's tools stand at its end, and their results are in the next message: they
        become a turn of their own behind the searches.
        """
        blocks = blocks_of(message.get("content"))
        found = {
            str(one.get("tool_use_id")): one for one in blocks if one.get("type") == _RESULT and is_ours(one)
        }
        if not found or not blocks or is_ours(blocks[-1]):
            return []
        last = max(at for at, block in enumerate(blocks) if is_ours(block))
        if any(block.get("type") == "tool_use" for block in blocks[:last]):
            return []
        unfolded: list[dict[str, Any]] = []
        kept: list[Block] = []
        for block in blocks:
            if not is_ours(block):
                kept.append(block)
                continue
            result = self._result(found.pop(str(block.get("id")), {}))
            if block.get("type") == "server_tool_use" and result is not None:
                call_id = (
                    "toolu_"
                    + hashlib.blake2b(str(block["id"]).encode("utf-8", "replace"), digest_size=12).hexdigest()
                )
                call = {
                    "type": "tool_use",
                    "id": call_id,
                    "name": block.get("name"),
                    "input": block.get("input"),
                }
                answer = {"type": "tool_result", "tool_use_id": call_id, "content": result}
                unfolded += [
                    {"role": "assistant", "content": [*kept, call]},
                    {"role": "user", "content": [answer]},
                ]
                kept = []
        return [*unfolded, {"role": "assistant", "content": kept}] if unfolded else []

    def _result(self, block: Mapping[str, Any]) -> str | None:
        """Return the text of a result for the model; ``None`` if one of its pages cannot be read."""
        pages = []
        listed = block.get("content")
        for entry in listed if isinstance(listed, list) else ():
            sealed = entry.get("encrypted_content") if isinstance(entry, dict) else None
            if not isinstance(sealed, str) or len(sealed) > _LONGEST_SEALED or self._left == 0:
                return None
            self._left -= 1
            opened = self._seal.open(sealed, self._place(str(block.get("tool_use_id"))))
            if opened is None:
                return None
            pages.append(orjson.loads(opened))
        return orjson.dumps({"results": pages}).decode() if pages else None

    def _place(self, call_id: str) -> bytes:
        """Return what a page is bound to: the call that found it, and the caller."""
        return b"%d:%b%b" % (len(call_id), call_id.encode("utf-8", "surrogatepass"), self._caller)
