"""Answers requests that only make a server load a model, or release its memory.

Source: Ollama's API reference, "Load a model" and "Unload a model": a chat without messages, or a completion
without a prompt; ``keep_alive`` 0 unloads.  The answer to both is one object, even if the client asked for a
stream.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from proxy.base.errors import RequestError
from proxy.wires.ollama.lines import LineMaker

__all__ = ["load_answer"]

_DURATION: Final = re.compile(r"[+-]?(?:0|(?:(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|μs|ms|s|m|h))+)")
"""Matches a duration as Go writes it, such as ``1h30m``."""


def load_answer(payload: Mapping[str, Any], lines: LineMaker) -> bytes:
    """Return the answer to a request that loads a model, as JSON, as if models were always loaded.

    Raises :class:`RequestError` for a ``keep_alive`` that is no time.
    """
    reason = "unload" if _is_zero(payload.get("keep_alive")) else "load"
    return orjson.dumps({**lines.payload(), "done": True, "done_reason": reason})


def _is_zero(keep_alive: Any) -> bool:
    if keep_alive is None:
        return False
    if type(keep_alive) in (int, float):
        return bool(keep_alive == 0)
    if isinstance(keep_alive, str) and _DURATION.fullmatch(keep_alive):
        return re.search("[1-9]", keep_alive) is None
    message = 'keep_alive must be a number of seconds, or a duration such as "5m".'
    raise RequestError(400, message, param="keep_alive")
