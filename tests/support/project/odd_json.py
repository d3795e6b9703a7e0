"""Random JSON that uses the member names of Chat with values of any type."""

import random
from typing import Any

_WORDS = [
    "id",
    "model",
    "choices",
    "error",
    "usage",
    "x_groq",
    "delta",
    "message",
    "index",
    "finish_reason",
    "content",
    "tool_calls",
    "function_call",
    "reasoning",
    "reasoning_details",
    "refusal",
    "role",
    "function",
    "custom",
    "type",
    "name",
    "arguments",
    "input",
    "extra",
    "text",
    "logprobs",
    "created",
    "object",
    "prompt_tokens",
    "native_finish_reason",
]
_LEAVES: list[Any] = [
    *(None, True, False, 0, 1, -1, 7, 2.5, 2**63, "", " ", "x", "0", "-1", "--1", "a", "time", "get", "text"),
    *(
        "{}",
        "{",
        '{"x":1}',
        '"{}"',
        "null",
        "stop",
        "tool_calls",
        "function",
        "custom",
        "\u2028",
        "\U0001f600",
    ),
    *([], {}),
]


def _odd(rng: random.Random, depth: int) -> Any:
    if depth == 0 or rng.random() < 0.4:
        return rng.choice(_LEAVES)
    if rng.random() < 0.4:
        return [_odd(rng, depth - 1) for _ in range(rng.randrange(3))]
    return {rng.choice(_WORDS): _odd(rng, depth - 1) for _ in range(rng.randrange(5))}


def _fields(rng: random.Random, names: list[str]) -> dict[str, Any]:
    return {name: _odd(rng, 3) for name in names if rng.random() < 0.3}


def odd_chunk(rng: random.Random) -> dict[str, Any]:
    """Return one chunk that is almost valid, half valid, or not valid at all."""
    kind = rng.random()
    if kind < 0.2:
        found = _odd(rng, 5)
        return found if isinstance(found, dict) else {"x": found}
    names = [
        "content",
        "refusal",
        "reasoning",
        "reasoning_content",
        "reasoning_details",
        "role",
        "x",
        "function_call",
    ]
    delta: Any = _fields(rng, names)
    calls = []
    for _ in range(rng.randrange(3)):
        call = _fields(rng, ["index", "id", "type", "extra"])
        call[rng.choice(["function", "custom"])] = _fields(rng, ["name", "arguments", "input", "x"])
        calls.append(call)
    if calls:
        delta["tool_calls"] = calls
    choice = {**_fields(rng, ["index", "finish_reason", "logprobs"]), rng.choice(["delta", "message"]): delta}
    top = _fields(rng, ["id", "model", "created", "object", "usage", "x_groq", "error", "x", "service_tier"])
    return {**top, "choices": [choice, *([_odd(rng, 3)] if rng.random() < 0.2 else [])]}
