"""The definitions of tools that servers list: how they are read, limited, cleaned and identified."""

from typing import Any

import pytest
from mcp_script import tool_definition

from proxy.tools.mcp import definitions
from proxy.tools.mcp.definitions import (
    Definition,
    LeftOutTool,
    UnusableDefinition,
    read_listing,
    visible_text,
)

OPEN = {"type": "object", "properties": {"path": {"type": "string", "description": "Which file."}}}


def with_field(schema: Any, name: str = "x") -> dict[str, Any]:
    """A schema of arguments with one field."""
    return {"type": "object", "properties": {name: schema}}


def nested(levels: int) -> dict[str, Any]:
    """A schema of lists, nested ``levels`` deep."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def wide(levels: int) -> dict[str, Any]:
    """A small schema whose size doubles with each level of references that is followed."""
    twice = [{"$ref": "#/$defs/d{}"}, {"$ref": "#/$defs/d{}"}]
    defs: dict[str, Any] = {
        f"d{level}": {"anyOf": [{"$ref": one["$ref"].format(level + 1)} for one in twice]}
        for level in range(levels)
    }
    defs[f"d{levels}"] = {"type": "string"}
    return {"type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": defs}


@pytest.mark.parametrize(
    ("tool", "reason"),
    [
        (None, "not a JSON object"),
        ({}, "no name"),
        ({"name": ""}, "no name"),
        ({"name": "x" * 201}, "200 characters"),
        ({"name": "a", "inputSchema": None}, "inputSchema"),
        ({"name": "a", "inputSchema": True}, "inputSchema"),
        ({"name": "a", "inputSchema": {"type": "string"}}, "inputSchema"),
        ({"name": "a", "inputSchema": {"type": "object", "$ref": "https://example.com/x"}}, "inputSchema"),
        ({"name": "a", "inputSchema": OPEN, "description": 3}, "description"),
        (tool_definition("a", inputSchema=with_field({"type": "string", "enum": ["x" * 66_000]})), "65536"),
        (tool_definition("a", inputSchema=with_field(nested(40))), "nested"),
        (tool_definition("a", inputSchema=with_field(nested(5000))), "nested"),
        (tool_definition("a", inputSchema=wide(17)), "inputSchema"),
        (tool_definition("a", inputSchema=with_field({}, "path\u200b")), "invisible characters"),
        (
            tool_definition("a", inputSchema=with_field({"enum": ["a", "b\U000e0041"]})),
            "inputSchema.properties.x",
        ),
        (tool_definition("a", inputSchema=with_field({"default": {"y": "\u202e"}})), "invisible characters"),
    ],
)
def test_one_bad_definition_leaves_out_one_tool(tool: Any, reason: str) -> None:
    """An invalid definition leaves out its own tool only, with the reason."""
    listing = read_listing("files", [tool_definition("good"), tool, tool_definition("fine")])
    assert [one.name for one in listing.definitions] == ["good", "fine"]
    (left_out,) = listing.left_out
    assert reason in left_out.reason


def test_a_surprise_in_a_definition_leaves_out_one_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the check of one definition raises, the other tools of the server are listed."""

    def check(schema: Any) -> dict[str, Any]:
        if "x" in schema["properties"]:
            raise ZeroDivisionError
        return {"type": "object"}

    monkeypatch.setattr(definitions, "check_input", check)
    listing = read_listing("files", [tool_definition("a", inputSchema=with_field({})), tool_definition("b")])
    assert [one.name for one in listing.definitions] == ["b"]
    assert listing.left_out == (LeftOutTool("a", "its definition cannot be read (ZeroDivisionError)"),)


def test_two_tools_of_one_name_are_both_left_out() -> None:
    """If two tools have one name, both are left out: it is not known which of them was allowed."""
    listing = read_listing(
        "files", [tool_definition("a"), tool_definition("b"), tool_definition("a", "Other.")]
    )
    assert [one.name for one in listing.definitions] == ["b"]
    assert [one.name for one in listing.left_out] == ["a"]


def test_a_server_has_no_more_tools_than_it_may() -> None:
    """The tools beyond a server's maximum are left out and named."""
    listing = read_listing("files", [tool_definition(f"t{number}") for number in range(5)], most=3)
    assert len(listing.definitions) == 3
    assert {one.name for one in listing.left_out} == {"t3", "t4"}


def test_what_nobody_sees_never_goes_to_a_model() -> None:
    """The model's text lacks invisible characters, and the definition is marked as having hidden text."""
    hidden = "Reads.\U000e0041\u202e\u200b\x1b[31m"
    (one,) = read_listing("files", [tool_definition("a", hidden)]).definitions
    assert one.model_text == "Reads.[31m"
    assert one.has_hidden_text
    (plain,) = read_listing("files", [tool_definition("a", "Reads.\n\tMore.")]).definitions
    assert not plain.has_hidden_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\u3164b\u115fc\u034fd", "abcd"),
        ("a\U000e0120\U000e0130b", "ab"),
        ("ok \u2714\ufe0f", "ok \u2714\ufe0f"),
        ("a\ufe00\ufe01\ufe02\ufe03b", "a\ufe00b"),
        ("\ufe0fa \ufe0f\ufe0e", "a"),
    ],
    ids=["fillers", "more variations", "emoji", "variations in a row", "variations of nothing"],
)
def test_letters_that_show_nothing_are_hidden_text(text: str, shown: str) -> None:
    """Fillers and stray variation selectors are hidden text, too; they could encode instructions."""
    assert visible_text(text) == shown
    (one,) = read_listing("files", [tool_definition("a", text)]).definitions
    assert one.has_hidden_text == (text != shown)


def test_line_breaks_of_windows_are_no_hidden_text() -> None:
    """A carriage return before a line break does not count as hidden text."""
    (one,) = read_listing("files", [tool_definition("a", "Reads.\r\nMore.\r\n")]).definitions
    assert not one.has_hidden_text
    assert one.model_text == "Reads.\nMore."


def test_hidden_text_in_a_schema_never_goes_to_a_model() -> None:
    """The model's schema lacks hidden text in descriptions at any depth; the pinned schema keeps it."""
    field = {"type": "string", "description": "Path.\u200b", "title": "P\U000e0041", "examples": ["a"]}
    schema = with_field({"type": "array", "items": {"anyOf": [field, {"$comment": "\u202e"}]}}, "description")
    (one,) = read_listing("files", [tool_definition("a", inputSchema=schema)]).definitions
    shown = {**field, "description": "Path.", "title": "P"}
    assert one.model_schema == with_field(
        {"type": "array", "items": {"anyOf": [shown, {"$comment": ""}]}}, "description"
    )
    assert one.input_schema == schema
    assert one.has_hidden_text


def test_a_pin_has_four_thousand_characters_of_a_description() -> None:
    """Description and title are cut after 4,096 characters, for people and for models."""
    (one,) = read_listing("files", [tool_definition("a", "x" * 100_000, title="y" * 100_000)]).definitions
    assert (len(one.description), len(one.title)) == (4096, 4096)


def test_a_description_is_cut_for_the_model() -> None:
    """The model gets 1,024 characters of a description, or the title of a tool without a description."""
    (long,) = read_listing("files", [tool_definition("a", "x" * 5000)]).definitions
    assert len(long.model_text) == 1024
    (named,) = read_listing("files", [tool_definition("a", "", title="Reads files")]).definitions
    assert named.model_text == "Reads files"


@pytest.mark.parametrize(
    "change",
    [
        {"description": "Reads, and sends it away."},
        {"title": "Other"},
        {"inputSchema": {**OPEN, "required": ["path"]}},
        {"outputSchema": {"type": "object"}},
        {"annotations": {"readOnlyHint": True}},
        {"name": "b"},
    ],
)
def test_the_digest_changes_with_everything_that_was_allowed(change: dict[str, Any]) -> None:
    """Rule T9: the digest depends on every part of a definition, but not on the order of its keys."""
    before = tool_definition("a", "Reads.", inputSchema=OPEN)
    one, other = (
        read_listing("files", [before]).definitions[0],
        read_listing("files", [{**before, **change}]).definitions[0],
    )
    assert one.digest != other.digest
    again = read_listing("files", [dict(reversed(before.items()))]).definitions[0]
    assert again.digest == one.digest


def test_a_definition_is_read_as_it_was_written() -> None:
    """A definition that was written is read back as the same one, and an invalid one is refused."""
    (one,) = read_listing(
        "files", [tool_definition("a", annotations={"readOnlyHint": True, "x": 1})]
    ).definitions
    assert Definition.read(one.written()) == one
    assert one.annotations == {"readOnlyHint": True}
    for wrong in ({}, {**one.written(), "name": 3}, {**one.written(), "inputSchema": None}):
        with pytest.raises(UnusableDefinition):
            Definition.read(wrong)


def test_visible_text_keeps_lines() -> None:
    """``visible_text`` keeps line breaks and tabs inside a text."""
    assert visible_text(" a\n\tb\x00\ufeff ") == "a\n\tb"
