"""What the proxy does with each field, as the documentation page lists it."""

import re
from pathlib import Path

import pytest

from proxy.wires.anthropic.crossing.fields import ANTHROPIC_FIELDS
from proxy.wires.chat.crossing.fields import CHAT_FIELDS
from proxy.wires.crossing.tables import FieldTable, missing_rows_of, rows_of
from proxy.wires.ollama.crossing.fields import COMPLETION_FIELDS, OLLAMA_FIELDS
from proxy.wires.responses.crossing.fields import RESPONSES_FIELDS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "dialects.md").read_text("utf-8")


TABLES = [CHAT_FIELDS, RESPONSES_FIELDS, ANTHROPIC_FIELDS, OLLAMA_FIELDS, COMPLETION_FIELDS]


@pytest.mark.parametrize("table", TABLES, ids=lambda one: one.dialect)
def test_the_page_says_what_the_code_does(table: FieldTable) -> None:
    """The page has exactly the rows of the code, which ``python -m docgen`` writes."""
    for name, rows in (("read", rows_of(table)), ("written", missing_rows_of(table))):
        if name == "written" and not table.written:
            continue  # The proxy never sends a request in this form.
        mark = f"{name} {table.dialect}"
        found = re.search(rf"<!-- {mark} -->\n(.*?)<!-- /{mark} -->", PAGE, re.DOTALL)
        assert found is not None, mark
        assert found[1] == rows, mark
