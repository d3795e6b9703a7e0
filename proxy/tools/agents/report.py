"""Reports of agents that must fit a schema: how a model is told of it, and how what it wrote is read."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from proxy.tools.contract.provider import ArgumentsInvalid
from proxy.tools.contract.validation import SchemaValidator

__all__ = ["read_report", "schema_words"]

_FENCED: Final = re.compile(r"\A```[a-zA-Z]*\n(.*)\n```\Z", re.DOTALL)


def schema_words(schema: Mapping[str, Any]) -> str:
    """What is added to the instructions of an agent: not every upstream takes a schema as a field."""
    return (
        "\n\nAnswer with one JSON object that fits this JSON Schema, and with nothing else:\n"
        f"{json.dumps(schema, ensure_ascii=False)}"
    )


def read_report(schema: Mapping[str, Any], text: str) -> Any:
    """The JSON of a report, also inside a code fence.

    Raises ``ValueError`` with what is wrong, in words that repeat nothing of the report.
    """
    fenced = _FENCED.match(text)
    try:
        report = orjson.loads(fenced[1] if fenced else text)
    except orjson.JSONDecodeError:
        raise ValueError("is not JSON") from None
    try:
        # The schema says that it is an object.
        return SchemaValidator(schema)(report)
    except ArgumentsInvalid as fault:
        raise ValueError(f"does not fit its schema: {'; '.join(fault.problems)}") from None
