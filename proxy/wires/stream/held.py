"""Frames that wait until their owner is known: the client or the proxy."""

from collections.abc import Callable, Iterator

from proxy.base.errors import FrameTooLarge
from proxy.base.events import Frame

_MAX_BYTES = 16 * 1024 * 1024

identity: Callable[[bytes], bytes] = bytes
"""Returns its argument: ``bytes`` returns the same object, and costs less than a Python function."""


class HeldFrames:
    """The frames of a turn that a writer holds back, in order and bounded in size."""

    def __init__(self) -> None:
        self._frames: list[Frame] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._frames)

    def __iter__(self) -> Iterator[Frame]:
        return iter(self._frames)

    def put(self, frame: Frame) -> bytes:
        """Hold a frame, and return no bytes. Raises :class:`FrameTooLarge` if too many bytes are held."""
        self._frames.append(frame)
        self._bytes += len(frame.raw)
        if self._bytes > _MAX_BYTES:
            raise FrameTooLarge(f"more than {_MAX_BYTES} bytes had to be held back")
        return b""

    def take(self) -> list[Frame]:
        """Return all held frames, and hold none of them any longer."""
        frames, self._frames, self._bytes = self._frames, [], 0
        return frames
