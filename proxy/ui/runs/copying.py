"""Write a run's request as a shell command or a Python program, without the key."""

import shlex
from collections.abc import Mapping
from typing import Any, Final

import orjson

from proxy.http.own_headers import TRACE
from proxy.store.base import RunDetail

_ENV: Final = "TOOLRELAY_API_KEY"
_GONE: Final = (
    "The request was not kept, so the text has a placeholder instead. "
    'To keep the requests of later runs, set store.content = "all".'
)


def copied(detail: RunDetail, form: str, address: str, paths: Mapping[str, str]) -> dict[str, Any]:
    """Return the text, whether it is the whole request, and a note if not. ``form`` is curl or python."""
    kept = next((row.content_json for row in detail.messages if row.role == "request"), None)
    body = _body(kept)
    whole = body is not None
    if body is None:
        body = {"model": detail.run.model, "stream": detail.run.stream}
        body |= {"input": "…"} if detail.run.wire == "responses" else {"messages": [_placeholder()]}
    url = f"{address}{paths.get(detail.run.wire) or next(iter(paths.values()))}"
    headers = {TRACE: detail.run.trace} if detail.run.trace not in ("", "silent") else {}
    text = (_curl if form == "curl" else _python)(url, body, headers)
    note = None if whole else _GONE
    return {"object": "ui.text", "as": form, "text": text, "complete": whole, "note": note}


def _placeholder() -> dict[str, str]:
    return {"role": "user", "content": "…"}


def _body(kept: str | None) -> dict[str, Any] | None:
    try:
        body = None if kept is None else orjson.loads(kept)
    except orjson.JSONDecodeError:
        return None
    return body if isinstance(body, dict) else None


def _curl(url: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> str:
    # A shell expands nothing in single quotes; only the key is a variable that it must expand.
    lines = [
        f"curl -N {shlex.quote(url)}",
        f'-H "Authorization: Bearer ${_ENV}"',
        "-H 'Content-Type: application/json'",
        *(f"-H {shlex.quote(f'{name}: {value}')}" for name, value in headers.items()),
        f"-d {shlex.quote(orjson.dumps(body).decode())}",
    ]
    return " \\\n  ".join(lines)


def _python(url: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> str:
    # The body is JSON in a Python string, so that text in it cannot become code.
    return "\n".join(
        [
            "import json, os, urllib.request",
            "",
            f"body = json.loads({orjson.dumps(body).decode()!r})",
            "request = urllib.request.Request(",
            f"    {url!r},",
            "    json.dumps(body).encode(),",
            "    {",
            f'        "Authorization": "Bearer " + os.environ["{_ENV}"],',
            '        "Content-Type": "application/json",',
            *(f"        {name!r}: {value!r}," for name, value in headers.items()),
            "    },",
            ")",
            "with urllib.request.urlopen(request) as response:",
            "    for line in response:",
            '        print(line.decode(), end="")',
        ]
    )
