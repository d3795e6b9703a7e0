"""Functions that the tools share which call a service: they check its answers and name its host."""

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

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
