"""The Responses wire: so far, how a stream that only passes through ends when it breaks."""

import orjson

from proxy.wires.sse import encode_event

__all__ = ["error_event"]


def error_event(message: str, *, type: str, code: str | None) -> bytes:
    """An error inside a stream, its fields nested under ``error`` as OpenAI's wire really has them.

    Source: wire notes, sections C.4 and G.2-7; the flat form of the specification is merely
    yielded by openai-python, the nested one is raised by all SDKs.
    """
    error = {"type": type, "code": code, "message": message, "param": None}
    return encode_event(orjson.dumps({"type": "error", "error": error}), b"error")
