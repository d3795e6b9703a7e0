"""Divide the bytes of a WebSocket into parts of a few frames, so that one client's frames do not stop the
others."""

from typing import Final

_MASKED: Final = 0x80
_MASK_BYTES: Final = 4
_LENGTH_BYTES: Final = {126: 2, 127: 8}
"""How many bytes of an extended length follow, by the length in the second byte (RFC 6455, 5.2)."""


class FrameCutter:
    """Holds received bytes, and gives them out in parts of at most so many frames.

    It reads only the lengths of frames; whoever gets the parts checks everything else.
    """

    def __init__(self) -> None:
        self._held = bytearray()
        self._left = 0
        """How many bytes of the last frame that was begun are still to be given out."""

    def __bool__(self) -> bool:
        """Whether any bytes are held."""
        return bool(self._held)

    def take(self, data: bytes) -> None:
        """Add bytes that came."""
        self._held += data

    def next(self, most: int) -> bytes:
        """Return and remove the held bytes up to the end of the frame number ``most``.

        A frame whose payload is incomplete is begun, one whose head is incomplete stays.
        """
        held, size, frames = self._held, len(self._held), 0
        at = self._left
        while at < size and frames < most and (frame := _frame_bytes(held, at)):
            at += frame
            frames += 1
        end = min(at, size)
        self._left = at - end
        part = bytes(memoryview(held)[:end]) if end < size else bytes(held)
        del held[:end]
        return part


def _frame_bytes(held: bytearray, at: int) -> int:
    """Return the size of the frame that begins at ``at``; 0 if its head is incomplete."""
    if at + 2 > len(held):
        return 0
    second = held[at + 1]
    length = second & ~_MASKED
    extended = _LENGTH_BYTES.get(length, 0)
    head = 2 + extended + (_MASK_BYTES if second & _MASKED else 0)
    if at + head > len(held):
        return 0
    return head + (int.from_bytes(held[at + 2 : at + 2 + extended], "big") if extended else length)
