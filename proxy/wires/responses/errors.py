"""Errors inside a Responses stream."""

import orjson

from proxy.wires.stream.sse import encode_event

__all__ = ["error_event"]


def error_event(message: str, *, type: str, code: str | None, sequence_number: int | None = None) -> bytes:
    """An error event, its fields nested under ``error`` as OpenAI's wire really has them.

    The flat form of the specification is merely yielded by openai-python, the nested one is raised by
    all SDKs.
    """
    payload: dict[str, object] = {"type": "error"}
    if sequence_number is not None:
        payload["sequence_number"] = sequence_number
    payload["error"] = {"type": type, "code": code, "message": message, "param": None}
    return encode_event(orjson.dumps(payload), b"error")
