"""Secrets: written as a reference, resolved once at start, never shown."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from proxy.base.errors import ConfigError

MAX_SECRET_BYTES = 65536
"""The most bytes of a secret's file; a key is a line, not a document."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class Secret:
    """A value that is written as ``env:NAME`` or ``file:/path`` and never shown.

    Until :meth:`resolve` it is only a reference. ``str`` and ``repr`` show the reference. Two secrets are
    equal if both reference and value are equal.
    """

    __slots__ = ("_value", "reference")

    def __init__(self, reference: str, value: str | None = None) -> None:
        self.reference = reference
        self._value = value

    def __repr__(self) -> str:
        return f"Secret({self.reference!r})"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return self.reference == other.reference and self._value == other._value

    def __hash__(self) -> int:
        return hash((self.reference, self._value))

    @property
    def resolved(self) -> bool:
        """Whether :meth:`reveal` returns a value."""
        return self._value is not None

    def reveal(self) -> str:
        """Return the value itself. Raises :class:`~proxy.base.errors.ConfigError` if it was not resolved."""
        if self._value is None:
            raise ConfigError(self.reference, "this secret was not resolved")
        return self._value

    def resolve(self, setting: str, env: Mapping[str, str], folder: Path) -> "Secret":
        """Return the secret with its value, read if it has none yet; a relative ``file:`` path starts at
        ``folder``.

        Raises :class:`~proxy.base.errors.ConfigError` with ``setting`` and a remedy, never with the value.
        """
        if self._value is not None:
            return self
        kind, _, rest = self.reference.partition(":")
        if kind == "env":
            value = env.get(rest, "").strip()
            if not value:
                raise ConfigError(
                    setting, f"the environment variable {rest} is not set", f"Set {rest}, or change {setting}"
                )
        else:
            value = _read(setting, (folder / Path(rest).expanduser()).absolute())
        if not value.isascii() or not value.isprintable():
            raise ConfigError(
                setting,
                f"{self.reference} contains characters that an HTTP header cannot carry",
                "Store one line of printable ASCII",
            )
        return Secret(self.reference, value)

    @classmethod
    def parse(cls, text: object) -> "Secret":
        """Return the secret for a reference in the configuration. Errors never contain the text itself."""
        if not isinstance(text, str):
            raise PydanticCustomError("secret_type", "expected a string like env:NAME or file:/path")
        kind, _, rest = text.partition(":")
        if kind == "env" and _NAME.match(rest):
            return cls(text)
        if kind == "env":
            raise PydanticCustomError("secret_env", "env: must be followed by a variable name")
        if kind == "file" and rest and "\0" not in rest:
            return cls(text)
        raise PydanticCustomError(
            "secret_literal",
            "a secret may not be written here as plain text. Put it into an environment variable or a file "
            "and write env:NAME or file:/path",
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "string", "pattern": "^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)$"}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, cls) else cls.parse(value),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda secret: secret.reference),
        )


def _read(setting: str, path: Path) -> str:
    """Return a secret's file, stripped; the read is bounded, because a wrong path may be anything, also a
    device."""
    try:
        if not path.is_file():
            raise ConfigError(setting, f"the file {path} does not exist", f"Create it, or change {setting}")
        with path.open("rb") as file:
            raw = file.read(MAX_SECRET_BYTES + 1)
        text = raw.decode("utf-8").strip()
    except OSError as error:
        raise ConfigError(
            setting, f"the file {path} cannot be read: {error.strerror}", "Make it readable for this user"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(
            setting, f"the file {path} is not text", "Store the secret as one line of text"
        ) from None
    if len(raw) > MAX_SECRET_BYTES:
        raise ConfigError(
            setting, f"the file {path} is larger than {MAX_SECRET_BYTES} bytes", "Store only the secret in it"
        )
    if not text:
        raise ConfigError(setting, f"the file {path} is empty", "Store the secret as one line of text")
    return text
