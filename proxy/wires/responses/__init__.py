"""OpenAI Responses."""

from proxy.wires.responses.errors import error_event

__all__ = ["error_event"]
