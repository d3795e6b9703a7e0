"""Frames that wait until it is known whose they are."""

from collections.abc import Callable, Iterator

from proxy.errors import FrameTooLarge
from proxy.events import Frame

__all__ = ["HeldFrames", "unchanged"]

_MAX_BYTES = 16 * 1024 * 1024

unchanged: Callable[[bytes], bytes] = bytes
"""Bytes as they are: the type gives back the very object, and is no function that has to be entered."""


class HeldFrames:
    """What a writer holds back of a turn, in order and bounded."""

    def __init__(self) -> None:
        self._frames: list[Frame] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._frames)

    def __iter__(self) -> Iterator[Frame]:
        return iter(self._frames)

    def put(self, frame: Frame) -> bytes:
        """Hold a frame; nothing leaves.  Raises :class:`FrameTooLarge`."""
        self._frames.append(frame)
        self._bytes += len(frame.raw)
        if self._bytes > _MAX_BYTES:
            raise FrameTooLarge(f"more than {_MAX_BYTES} bytes had to be held back")
        return b""

    def take(self) -> list[Frame]:
        """All that is held, which is then no longer."""
        frames, self._frames, self._bytes = self._frames, [], 0
        return frames
