"""What the tools that call a service share: reading its answers, naming its host."""

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from yarl import URL

from proxy.errors import ToolFailure

__all__ = ["checked", "host_of"]

_Model = TypeVar("_Model", bound=BaseModel)


def checked(model: type[_Model], body: Any, service: str) -> _Model:
    """An answer from outside as its model, or a failure that quotes none of it.

    ``service`` is what the failure calls it: "the weather service".
    """
    try:
        return model.model_validate(body)
    except ValidationError:
        raise ToolFailure(f"{service} answered in an unexpected form") from None


def host_of(url: str) -> str:
    """The entry of a tool's host list that fits a URL."""
    parsed = URL(url)
    host = parsed.host or ""
    return host if parsed.is_default_port() else f"{host}:{parsed.port}"
