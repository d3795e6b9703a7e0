"""Reads which model a form names, while its files pass through unread.

Fields before the first file are read as they come, and nothing of the file is held. If a file comes first,
the form is held up to the bound of a JSON body, until the model is known. Some clients send it so: the
fields have the order in which their caller wrote them.
"""

from collections.abc import AsyncIterator
from typing import Final

from msgspec import Struct
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from proxy.base.errors import RequestError
from proxy.wires.registry.requests import CHOOSING, FURTHER_MODELS

_MODEL: Final = "model"
_CHOOSING: Final = frozenset({_MODEL, *FURTHER_MODELS, *CHOOSING})
"""Fields by which a provider chooses a model."""
_MOST_NAME: Final = 512
"""The most bytes of a model's name."""


class Upload(Struct, frozen=True):
    """A body that is streamed on; ``added`` is by how many bytes it is longer than the client's."""

    chunks: AsyncIterator[bytes]
    added: int = 0


class Form:
    """One multipart form as it arrives.

    With ``strict`` it may name one model, before its first file, and choose none in another way: the caller
    may use some models only, and servers differ in which of two fields they read.
    """

    def __init__(self, content_type: str, chunks: AsyncIterator[bytes], *, strict: bool) -> None:
        """Raises RequestError (400) for a form without a boundary."""
        boundary = parse_options_header(content_type)[1].get(b"boundary")
        if not boundary:
            raise _malformed()
        self._chunks = chunks
        self._strict = strict
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._on_part_begin,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_part_data,
                "on_part_end": self._on_part_end,
            },
        )
        self._held: list[bytes] = []
        self._at = 0
        self._header = [b"", b""]
        self._disposition = b""
        self._reads = False
        self._value = b""
        self._chunk = b""
        self._model_end = 0
        """Where the bytes of the model's name end in the body."""
        self._has_file = False
        self._ended = False
        self.model: str | None = None

    async def read_model(self, most: int) -> str | None:
        """Read up to the form's model; hold at most ``most`` bytes. Return ``None`` if it names none.

        Raises RequestError: 400 for a malformed form, and for one whose model does not come early enough.
        """
        async for chunk in self._chunks:
            self._take(chunk)
            self._held.append(chunk)
            if self.model is not None:
                return self.model
            if self._strict and self._has_file:
                raise _file_first()
            if self._at > most:
                raise RequestError(
                    400,
                    f"The form does not name its model within {most} bytes. Send the field model before the "
                    "file.",
                    param=_MODEL,
                    code="model_not_readable",
                )
        self._ended = True
        if self._strict:
            raise _file_first()
        return None

    def upload(self, model: str | None = None) -> Upload:
        """Return the whole body, with ``model`` in place of the model that the form names."""
        head = b"".join(self._held)
        self._held.clear()
        if model is None or self.model is None:
            return Upload(self._going(head))
        named, end = model.encode(), self._model_end
        head = head[: end - len(self._value)] + named + head[end:]
        return Upload(self._going(head), len(named) - len(self._value))

    async def _going(self, head: bytes) -> AsyncIterator[bytes]:
        if head:
            yield head
        if self._ended:
            return
        async for chunk in self._chunks:
            if self._strict:
                # A second model behind the file breaks the upload off before it is complete.
                self._take(chunk)
            yield chunk

    def _take(self, chunk: bytes) -> None:
        self._chunk = chunk
        try:
            self._parser.write(chunk)
        except MultipartParseError:
            raise _malformed() from None
        self._at += len(chunk)

    # What the parser tells.

    def _on_part_begin(self) -> None:
        self._disposition, self._reads = b"", False

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header[0] += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1] += data[start:end]

    def _on_header_end(self) -> None:
        name, value = self._header
        if name.strip().lower() == b"content-disposition":
            if self._disposition:
                raise _malformed()
            self._disposition = value
        self._header = [b"", b""]

    def _on_headers_finished(self) -> None:
        options = parse_options_header(self._disposition)[1]
        if b"filename" in options or b"*" in self._disposition:
            self._has_file = True
            if not self._strict:
                return
        name = options.get(b"name", b"").decode("utf-8", "replace")
        plain = name.strip().casefold().partition("[")[0]
        if plain not in _CHOOSING:
            return
        if self._strict and self._has_file and self.model is None:
            raise _file_first()
        if name == _MODEL and self.model is None and b"filename" not in options:
            self._reads, self._value = True, b""
        elif self._strict:
            raise RequestError(
                403,
                "With this key a form may name one model, in one field model. Leave the field "
                f"{name[:40]!r} out.",
                param=name[:40],
                code="model_not_readable",
            )

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if not self._reads:
            return
        self._value += data[start:end]
        # Else it is the end of the chunk before, which might have been the begin of a delimiter.
        self._model_end = self._at + (end if data is self._chunk else 0)
        if len(self._value) > _MOST_NAME:
            raise RequestError(400, f"model must have at most {_MOST_NAME} bytes.", param=_MODEL)

    def _on_part_end(self) -> None:
        if not self._reads:
            return
        self._reads = False
        try:
            self.model = self._value.decode()
        except UnicodeDecodeError:
            raise RequestError(400, "model must be UTF-8.", param=_MODEL) from None


def _file_first() -> RequestError:
    return RequestError(
        403,
        "With this key a form must name its model before its first file. Send the field model first.",
        param=_MODEL,
        code="model_not_readable",
    )


def _malformed() -> RequestError:
    return RequestError(
        400,
        "The form is not valid multipart/form-data (RFC 7578). Send a boundary in Content-Type, and one "
        "Content-Disposition for each part.",
    )
