"""Reports of agents with an output schema: the instruction for the model, and the parser of its answer."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from proxy.tools.contract.provider import ArgumentsInvalid
from proxy.tools.contract.validation import SchemaValidator

_FENCED: Final = re.compile(r"\A```[a-zA-Z]*\n(.*)\n```\Z", re.DOTALL)


def schema_words(schema: Mapping[str, Any]) -> str:
    """Return text to append to an agent's instructions: not every upstream accepts a schema as a field."""
    return (
        "\n\nAnswer only with one JSON object that is valid under this JSON Schema:\n"
        f"{json.dumps(schema, ensure_ascii=False)}"
    )


def read_report(schema: Mapping[str, Any], text: str) -> Any:
    """Parse a report that is JSON, with or without a code fence.

    Raises ``ValueError`` with a message that names the fault without quoting the report.
    """
    fenced = _FENCED.match(text)
    try:
        report = orjson.loads(fenced[1] if fenced else text)
    except orjson.JSONDecodeError:
        raise ValueError("is not JSON") from None
    try:
        # The schema itself requires an object.
        return SchemaValidator(schema)(report)
    except ArgumentsInvalid as fault:
        raise ValueError(f"does not fit its schema: {'; '.join(fault.problems)}") from None
