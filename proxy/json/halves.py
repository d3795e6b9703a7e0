"""Joins characters that a server has cut in two, between two events of a stream.

A character beyond U+FFFF is two escapes in JSON, a surrogate pair (RFC 8259, section 7). Servers that cut
text by UTF-16 units write each half into an event of its own.
"""

from typing import Any, Final

_MOST_WAITING: Final = 64
"""The most texts of a stream of which a half waits."""

_Path = tuple[object, ...]


class HalfPairs:
    """The first halves at the end of texts in the events of one stream, by the places of the texts.

    A half waits for the next event with a text at its place. One that is not followed by the other half
    becomes U+FFFD there.
    """

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: dict[_Path, str] = {}

    def settle(self, payload: Any) -> Any:
        """Return an event's payload with whole characters; it may have half surrogate pairs before."""
        if not isinstance(payload, dict):
            return payload
        place = (payload.get("type"), payload.get("index"), payload.get("output_index"))
        return self._settle(payload, place)

    def _settle(self, value: Any, place: _Path) -> Any:
        if isinstance(value, str):
            return self._text(value, place)
        if isinstance(value, dict):
            return {self._whole(name): self._settle(item, (*place, name)) for name, item in value.items()}
        if isinstance(value, list):
            # The place of a call or a choice in its list says less than its index.
            return [
                self._settle(item, (*place, item.get("index", at) if isinstance(item, dict) else at))
                for at, item in enumerate(value)
            ]
        return value

    def _text(self, text: str, place: _Path) -> str:
        if not text:
            return text
        text = self.waiting.pop(place, "") + text
        if "\ud800" <= text[-1] <= "\udbff" and len(self.waiting) < _MOST_WAITING:
            self.waiting[place] = text[-1]
            text = text[:-1]
        return self._whole(text)

    @staticmethod
    def _whole(text: str) -> str:
        """Return the text with pairs joined, and U+FFFD for halves."""
        if text.isascii():
            return text
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
