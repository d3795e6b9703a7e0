"""Compare two runs, turn by turn and call by call."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from proxy.api.admin.json_output import to_line
from proxy.store.base import RunDetail

_FIELDS: Final = (
    *("status", "model", "upstream", "wire", "stream", "finish_reason", "error_code", "turns", "tool_calls"),
    *("input_tokens", "output_tokens", "total_tokens", "cost", "duration_s", "offered", "withheld", "trace"),
)


def comparison(
    a: RunDetail, b: RunDetail, shown_a: Mapping[str, Any], shown_b: Mapping[str, Any]
) -> dict[str, Any]:
    """Return both runs, the fields in which they differ, and their turns and calls in pairs."""
    return {
        "object": "ui.comparison",
        "a": shown_a,
        "b": shown_b,
        "same_prompt": bool(a.run.prompt_hash) and a.run.prompt_hash == b.run.prompt_hash,
        "fields": [
            {"name": name, "a": shown_a["run"][name], "b": shown_b["run"][name]}
            for name in _FIELDS
            if shown_a["run"][name] != shown_b["run"][name]
        ],
        "turns": _pairs(shown_a["turns"], shown_b["turns"], ("number",)),
        "calls": [
            pair | _sameness(pair)
            for pair in _pairs(shown_a["invocations"], shown_b["invocations"], ("turn", "seq"))
        ],
    }


def _pairs(
    of_a: Sequence[Mapping[str, Any]], of_b: Sequence[Mapping[str, Any]], place: Sequence[str]
) -> list[dict[str, Any]]:
    """Pair the rows with the same ``place`` fields in both runs, in order; ``None`` where a run has none."""
    placed = [{tuple(row[name] for name in place): row for row in rows} for rows in (of_a, of_b)]
    return [
        dict(zip(place, key, strict=True)) | {"a": placed[0].get(key), "b": placed[1].get(key)}
        for key in sorted(placed[0].keys() | placed[1].keys())
    ]


def _sameness(pair: Mapping[str, Any]) -> dict[str, bool | None]:
    a, b = pair["a"], pair["b"]
    if a is None or b is None:
        return {"same_tool": None, "same_arguments": None, "same_result": None}
    return {
        "same_tool": a["tool"] == b["tool"],
        "same_arguments": to_line(a["arguments_redacted"]) == to_line(b["arguments_redacted"]),
        "same_result": to_line(a["result_redacted"]) == to_line(b["result_redacted"]),
    }
