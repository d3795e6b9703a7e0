"""Invented conversations of runs, in the format of the real answers."""

from typing import Any

MARKDOWN = """## Result

It is **7 °C** in *Berlin*, with `light rain`.

- first
- second
  1. inner

| place | degrees |
|---|--:|
| Berlin | 7 |

> quoted

```python
print("<b>hello</b>")
```

See [the river](https://en.example.org/wiki/Spree_(river)), [evil](javascript:alert(1)) and https://bare.example/x.
![a picture](https://img.example/p.png)"""
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
"""A PNG of one transparent pixel."""


def text(value: str, **more: Any) -> dict[str, Any]:
    """Return a text part."""
    return {"kind": "text", "text": value, **more}


def call_part(call_id: str, name: str, arguments: str | None = None, **more: Any) -> dict[str, Any]:
    """Return the part of a call; ``result`` and ``invocation`` are null unless given."""
    return {
        "kind": "call",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "result": None,
        "invocation": None,
        **more,
    }


def result(value: str, *, is_error: bool = False, images: int = 0) -> dict[str, Any]:
    """Return the result of a call with a text and images."""
    picture = {"kind": "image", "media_type": "image/png", "data": PIXEL, "bytes": 68}
    return {"parts": [text(value), *[picture] * images], "is_error": is_error}


def conversation(run_id: str, **changes: Any) -> dict[str, Any]:
    """Return the conversation that belongs to the detail of the fake server's runs."""
    weather = call_part(
        "call_1",
        "core__get_weather",
        '{"city":"Berlin","unit":"celsius"}',
        result=result(
            '{"temperature_c":7.4,"conditions":"light rain","wind_kmh":14,"station":"10384"}', images=1
        ),
        invocation="inv_1",
    )
    failed = call_part(
        "call_2",
        "mcp__files__read_text",
        '{"path":"/srv/notes.txt"}',
        result=result('{"ok":false,"error_code":"timeout","message":"no answer within 160 ms"}'),
        invocation="inv_2",
    )
    return {
        "object": "ui.conversation",
        "run_id": run_id,
        "system": [{"role": "system", "turn": 0, "parts": [text("Answer in one sentence.")]}],
        "messages": [
            {"role": "user", "turn": 0, "parts": [text("Hello")]},
            {"role": "assistant", "turn": 0, "parts": [text("Hello, how can I help?")]},
            {"role": "user", "turn": 0, "parts": [text("What is the weather in Berlin?")]},
            {
                "role": "assistant",
                "turn": 1,
                "parts": [
                    {"kind": "reasoning", "text": "I need the weather.", "hidden": False},
                    weather,
                    failed,
                ],
            },
            {"role": "assistant", "turn": 2, "parts": [text(MARKDOWN)]},
        ],
        "failure": None,
        "notes": [],
        **changes,
    }
