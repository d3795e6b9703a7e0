"""Functions that the tools share which call a service: they check its answers and name its host."""

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from yarl import URL

from proxy.base.errors import ToolFailure

_Model = TypeVar("_Model", bound=BaseModel)


def checked(model: type[_Model], body: Any, service: str) -> _Model:
    """Parse an answer from outside as ``model``; raise a failure that quotes none of it.

    ``service`` is the name in the failure: "the weather service".
    """
    try:
        return model.model_validate(body)
    except ValidationError:
        raise ToolFailure(f"{service} answered in an unexpected form") from None


def host_of(url: str) -> str:
    """Return the entry in a tool's list of hosts that fits a URL."""
    parsed = URL(url)
    host = parsed.host or ""
    return host if parsed.is_default_port() else f"{host}:{parsed.port}"
