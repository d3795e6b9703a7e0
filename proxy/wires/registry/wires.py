"""The wires of all dialects."""

from collections.abc import Sequence

from proxy.wires.anthropic.wire import AnthropicWire
from proxy.wires.chat.wire import ChatWire
from proxy.wires.ollama.completions.wire import OllamaCompletionWire
from proxy.wires.ollama.wire import OllamaWire
from proxy.wires.responses.compaction.wire import ResponsesCompactionWire
from proxy.wires.responses.wire import ResponsesWire
from proxy.wires.wire import Wire


def built_in_wires(item_keys: Sequence[bytes] = ()) -> dict[str, Wire]:
    """Return the built-in dialects by name.

    The first of ``item_keys`` signs and encrypts what clients carry for the proxy; the others only decrypt.
    """
    key, *others = item_keys or (None,)
    old = [one for one in others if one]
    return {
        "chat": ChatWire(),
        "responses": ResponsesWire(key, old_keys=old),
        "anthropic": AnthropicWire(key, old_keys=old),
        "ollama": OllamaWire(),
    }


def completion_wires(item_keys: Sequence[bytes]) -> dict[str, Wire]:
    """Return the wires for requests without server tools, by the ``reader`` names of their endpoints;
    ``item_keys`` are those of :func:`built_in_wires`."""
    compact = ResponsesCompactionWire(item_keys[0], old_keys=item_keys[1:])
    return {"ollama_generate": OllamaCompletionWire(), "responses_compact": compact}
