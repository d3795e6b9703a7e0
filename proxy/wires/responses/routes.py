"""The paths of stored responses: which response they name, and what is to be done with it."""

from typing import Final

__all__ = ["OPERATIONS", "is_own_operation", "response_path"]

OPERATIONS: Final = (("GET", ""), ("DELETE", ""), ("POST", "cancel"), ("GET", "input_items"))
"""What can be done with a response: method, and the rest of the path behind its id."""


def response_path(below: str) -> tuple[str, str] | None:
    """(id, rest) of a path below ``/responses/``; ``None`` for any other path."""
    parts = below.split("/")
    if len(parts) not in (3, 4) or parts[1] != "responses" or not parts[2]:
        return None
    return parts[2], parts[3] if len(parts) == 4 else ""


def is_own_operation(method: str, below: str) -> bool:
    """Whether a request is about one response by its id, and says what is to be done with it."""
    named = response_path(below)
    return named is not None and (method, named[1]) in OPERATIONS
