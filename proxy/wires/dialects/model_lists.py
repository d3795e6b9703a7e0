"""Lists of models in the form of each dialect."""

from collections.abc import Mapping
from typing import Any, Final

from proxy.wires.dialect import ModelLists

__all__ = ["OLLAMA_LISTS", "OPENAI_LISTS"]

_VERSION: Final = "0.12.6"
"""The version of Ollama's API that clients get if no upstream reports its own."""

_NO_TIME: Final = "1970-01-01T00:00:00Z"
_NO_DIGEST: Final = "0" * 64
_LENGTHS: Final = ("context_length", "max_model_len", "max_input_tokens", "context_window")
"""The members in which providers give a model's context length in OpenAI's list form."""


def _listed(payload: Any, member: str, *names: str) -> dict[str, dict[str, Any]]:
    """Return the models of a list by name, each once."""
    listed = payload.get(member) if isinstance(payload, dict) else None
    found: dict[str, dict[str, Any]] = {}
    for model in listed if isinstance(listed, list) else ():
        if isinstance(model, dict):
            name = next((said for one in names if isinstance(said := model.get(one), str) and said), None)
            if name is not None:
                found.setdefault(name, model)
    return found


def _openai_entry(name: str, owner: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": owner}


def _details(owner: str) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "",
        "family": owner,
        "families": [owner],
        "parameter_size": "",
        "quantization_level": "",
    }


def _ollama_entry(name: str, owner: str) -> dict[str, Any]:
    """Make an entry. WIRE: clients in Python check the types of all these members."""
    return {
        "name": name,
        "model": name,
        "modified_at": _NO_TIME,
        "size": 0,
        "digest": _NO_DIGEST,
        "details": _details(owner),
    }


def _shown_model(owner: str, entry: Mapping[str, Any], tools: bool) -> dict[str, Any]:
    """Describe a model of another dialect's upstream as ``/api/show`` does; ``entry`` is from its list.

    Clients decide by the capabilities what they offer the model.
    """
    length = next((said for name in _LENGTHS if type(said := entry.get(name)) is int and said > 0), None)
    info: dict[str, Any] = {"general.architecture": owner, "general.basename": ""}
    if length is not None:
        info[f"{owner}.context_length"] = length
    return {
        "modelfile": "",
        "parameters": "",
        "template": "",
        "modified_at": _NO_TIME,
        "details": _details(owner),
        "model_info": info,
        "capabilities": ["completion", *(["tools"] if tools else []), "vision"],
    }


OPENAI_LISTS: Final = ModelLists(
    path="/models",
    rooted=False,
    read=lambda payload: _listed(payload, "data", "id"),
    entry=_openai_entry,
    names=("id",),
    whole=lambda models: {"object": "list", "data": models},
)

OLLAMA_LISTS: Final = ModelLists(
    path="/api/tags",
    rooted=True,
    read=lambda payload: _listed(payload, "models", "model", "name"),
    entry=_ollama_entry,
    names=("name", "model"),
    whole=lambda models: {"models": models},
    show=_shown_model,
    version=_VERSION,
)
