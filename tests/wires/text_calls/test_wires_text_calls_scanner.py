"""Calls in the text of a turn: which ones the scanner finds, however the text is cut."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_call_samples import NAMES, SAMPLES, SCHEMAS

from proxy.wires.text_calls.call import Declared, TextCall
from proxy.wires.text_calls.rules import FORMS, form_for_model
from proxy.wires.text_calls.scanner import Scanner

MOST = 64 * 1024

Found = tuple[str, list[Any], list[str], list[str]]


def scan(
    form: str, *pieces: str, repair: bool = False, cut: bool = False, names: tuple[str, ...] = NAMES
) -> Found:
    """Return the text before any call, the parts after it, the notes, and the repairs."""
    declared = Declared(names, lambda: SCHEMAS, repair=repair)
    scanner = Scanner(FORMS[form], declared, MOST)
    settled = 0
    for piece in pieces:
        scanner.feed(piece)
        assert settled <= scanner.settled
        settled = scanner.settled
    scanner.close(cut=cut)
    parts = [
        (part.name, json.loads(part.arguments)) if isinstance(part, TextCall) else part
        for part in scanner.parts
    ]
    return "".join(pieces)[: scanner.settled], parts, scanner.notes, list(declared.repaired)


def is_text(form: str, text: str, **kinds: Any) -> bool:
    """Return whether the scanner finds no call and keeps the whole text."""
    before, parts, _, repaired = scan(form, text, **kinds)
    return before == text and not parts and not repaired


def everything(test: Any) -> Any:
    """Run a test with each sample of each form."""
    return pytest.mark.parametrize(
        ("form", "text", "found"),
        [
            pytest.param(form, text, found, id=f"{form}-{number}")
            for form, samples in SAMPLES.items()
            for number, (text, found) in enumerate(samples)
        ],
    )(test)


def test_every_form_has_samples() -> None:
    """Every form has samples."""
    assert set(SAMPLES) == set(FORMS)


@everything
def test_calls_are_found(form: str, text: str, found: list[Any]) -> None:
    """The scanner finds each call that is written in its form, with the text before and after it."""
    before, parts, notes, repaired = scan(form, text)
    assert [before, *parts] == found
    assert not notes
    assert not repaired


@everything
def test_every_cut_comes_to_the_same(form: str, text: str, found: list[Any]) -> None:
    """The result is the same for every cut into two pieces, and for single characters."""
    whole = scan(form, text)
    assert scan(form, *text) == whole
    for place in range(1, len(text)):
        assert scan(form, text[:place], text[place:]) == whole


@everything
def test_a_call_that_is_cut_off_is_not_shown(form: str, text: str, found: list[Any]) -> None:
    """If the token limit cuts a call off, no part of it appears in the text."""
    if form == "llama3":
        return  # This form has calls without a marker, which are plain JSON until they are complete.
    before, _, _, _ = scan(form, text)
    for place in range(len(before), len(text)):
        shown, parts, _, _ = scan(form, text[:place], cut=True)
        texts = [shown, *(part for part in parts if isinstance(part, str))]
        assert not any("get_" in one or "city" in one for one in texts), text[:place]


@everything
def test_undeclared_names_are_text(form: str, text: str, found: list[Any]) -> None:
    """A call of a function that nobody declared stays text."""
    assert is_text(form, text, names=("another",))
    assert is_text(form, text, names=("another",), repair=True)


@everything
def test_quotations_are_text(form: str, text: str, found: list[Any]) -> None:
    """A call in a code fence after other text, or in inline code, stays text."""
    if form == "llama3" or "```" in text:
        return
    assert is_text(form, f"It looks so:\n```\n{text}\n```\nThat is all.")
    if "\n" not in text:
        assert is_text(form, f"It looks so: `{text}` in code.")
    before, parts, _, _ = scan(form, f"```py\nx\n```\n{text}")
    assert any(isinstance(part, tuple) for part in parts)
    assert before.startswith("```py\nx\n```")


PIECES = st.sampled_from(
    [
        *(text for samples in SAMPLES.values() for text, _ in samples),
        *("\n", "\n\n", " ", "```", "`", "<", "[", "{", "}", "<tool_call>", "</tool_call>", "<function="),
        *('{"name": "get_weather", "arguments": {"city": "Paris"}}', '{"name": "get_', "Some words. ", ","),
        *("<｜tool▁", "[TOOL_CALLS]", "<|python_tag|>", "<tool_response>", '"', "\\", "é", "𝄞", "'"),
        *("<think>", "</think>", "<thi"),
    ]
)


@given(
    form=st.sampled_from(sorted(FORMS)),
    pieces=st.lists(PIECES, max_size=8),
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=40),
    repair=st.booleans(),
    cut=st.booleans(),
)
def test_any_cut_of_any_text(form: str, pieces: list[str], cuts: list[int], repair: bool, cut: bool) -> None:
    """The result depends on the text alone, not on its cuts; without a call the text stays complete."""
    text = "".join(pieces)
    cut_up, at = [], 0
    for number in range(len(text)):
        if at >= len(text):
            break
        size = cuts[number % len(cuts)]
        cut_up.append(text[at : at + size])
        at += size
    whole = scan(form, text, repair=repair, cut=cut)
    assert scan(form, *cut_up, repair=repair, cut=cut) == whole
    assert scan(form, *text, repair=repair, cut=cut) == whole
    before, parts, notes, _ = whole
    if not parts and not notes:
        assert before == text


@given(text=st.text(alphabet="ab<>|{}[]\"':,=/`\n _", max_size=60), form=st.sampled_from(sorted(FORMS)))
def test_text_without_a_name_is_never_a_call(text: str, form: str) -> None:
    """Without a declared name, no text is taken for a call, and nothing is lost."""
    assert is_text(form, text)
    assert is_text(form, text, repair=True)


REPAIRS = [
    ("hermes", "<tool_call>{'name': 'get_weather', 'arguments': {'city': 'Paris'}}</tool_call>"),
    ("hermes", '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris",},}</tool_call>'),
    ("hermes", '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}'),
    ("hermes", '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_'),
    ("hermes", '<tool_call>{"name": "get_weather", "parameters": {"city": "Paris"}}</tool_call>'),
    ("hermes", '```json\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n```'),
    ("hermes", '```xml\n<tool_call>{"name":"get_weather","arguments":{"city":"Paris"}}</tool_call>\n```\n'),
    ("hermes", '{"name": "get_weather", "arguments": {"city": "Paris"}}'),
    ("seed", "<tool_call name=\"get_weather\" args={'city': 'Paris',}></tool_call>"),
    ("mistral", '[TOOL_CALLS]{"name": "get_weather", "arguments": {"city": "Paris"}}'),
    ("qwen-xml", "<function=get_weather><parameter=city>Paris</parameter>"),
]


@pytest.mark.parametrize(("form", "text"), REPAIRS)
def test_mistakes_are_put_right_only_where_that_is_wanted(form: str, text: str) -> None:
    """A call with a mistake is text by default; with repairs on it is found, and the repair is reported."""
    assert is_text(form, text)
    before, parts, _, repaired = scan(form, text, repair=True)
    assert [before, *parts] == ["", ("get_weather", {"city": "Paris"})]
    assert repaired


def test_single_quotes_with_quotes_inside() -> None:
    """In a repair of single quotes, quotes inside a string do not end it."""
    call = """{'name': 'get_weather', "arguments": {'city': 'l\\'"Aquila', "x": "it's"}}"""
    text = f"<tool_call>{call}</tool_call>"
    _, parts, _, repaired = scan("hermes", text, repair=True)
    assert parts == [("get_weather", {"city": "l'\"Aquila", "x": "it's"})]
    assert repaired == ["single quotes"]


def test_a_bare_call_has_to_be_the_last_thing() -> None:
    """JSON without a marker is a call only if no text follows it."""
    call = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
    before, parts, _, _ = scan("hermes", f"I look.\n{call}\n", repair=True)
    assert (before, parts) == ("I look.", [("get_weather", {"city": "Paris"})])
    assert is_text("hermes", f"So:\n{call}\nis how it is written.", repair=True)
    assert is_text("llama3", f"{call}\nis how it is written.", repair=True)


def test_a_result_that_the_model_made_up_is_cut() -> None:
    """After a call, the scanner removes a made-up result and the text that follows it."""
    text = (
        "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n"
        "<tool_response>\n5 C, snow\n</tool_response>\nIt snows."
    )
    before, parts, notes, _ = scan("qwen-xml", text)
    assert (before, parts) == ("", [("get_weather", {"city": "Paris"})])
    assert notes == ["a result that the model made up behind its call is left out"]
    assert is_text("qwen-xml", "<tool_response>5 C</tool_response>")


@everything
def test_a_thought_in_the_text_is_not_read(form: str, text: str, found: list[Any]) -> None:
    """Calls inside a thought are not read; a call after it is found."""
    thought = f"<think>\nShall I?\n{text}\n</think>"
    assert is_text(form, thought)
    assert is_text(form, thought[:-3], repair=True)
    before, parts, _, _ = scan(form, f"{thought}\n\n{text}")
    assert before.startswith(thought)
    assert [part for part in parts if not isinstance(part, str)] == [
        part for part in found if not isinstance(part, str)
    ]


def test_a_doubled_key_is_not_decided_here() -> None:
    """The scanner keeps a repeated key, so that the validation of arguments sees both values."""
    declared = Declared(NAMES)
    scanner = Scanner(FORMS["hermes"], declared, MOST)
    arguments = '{"city": "Paris", "city": "Rome"}'
    scanner.feed(f'<tool_call>{{"name": "get_weather", "arguments": {arguments}}}</tool_call>')
    scanner.close(cut=False)
    assert scanner.parts == [TextCall("get_weather", arguments)]


def test_a_call_that_never_ends_is_text_and_said() -> None:
    """An unfinished call in a turn that ended by itself stays text, and a note says so."""
    text = "I add.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>"
    before, parts, notes, _ = scan("deepseek", text)
    assert (before, parts) == (text, [])
    assert "a call that does not end is left in the text" in notes


def test_two_forms_in_one_answer() -> None:
    """Only the markers of the configured form count."""
    hermes, mistral = SAMPLES["hermes"][0][0], SAMPLES["mistral"][0][0]
    before, parts, _, _ = scan("hermes", f"{mistral}\n{hermes}")
    assert (before, parts) == (mistral, [("get_weather", {"city": "Paris"})])
    before, parts, _, _ = scan("mistral", f"{hermes}\n{mistral}")
    assert (before, parts) == (hermes, [("get_weather", {"city": "Paris"})])


def test_text_goes_on_at_once() -> None:
    """The scanner holds back only what may begin a marker, and the line break before it."""
    scanner = Scanner(FORMS["hermes"], Declared(NAMES), MOST)
    fed = 0
    for text, held in (("Hello ", 0), ("you\n", 1), ("and <", 1), ("b>", 0), (" <tool", 5), ("s>", 0)):
        scanner.feed(text)
        fed += len(text)
        assert fed - scanner.settled == held, text


def test_a_call_without_measure_is_text() -> None:
    """A call beyond the size limit is released as text, and a later call is still found."""
    long = '<tool_call>{"name": "get_weather", "arguments": {"city": "' + "x" * 10_000_000
    call = SAMPLES["hermes"][0][0]
    pieces = [long[at : at + 4096] for at in range(0, len(long), 4096)]
    scanner = Scanner(FORMS["hermes"], Declared(NAMES), MOST)
    fed = 0
    for piece in pieces:
        scanner.feed(piece)
        fed += len(piece)
        assert fed - scanner.settled <= MOST + 8192
    scanner.feed('"\n' + call)
    scanner.close(cut=False)
    assert scanner.settled == len(long) + 1
    assert [part.name for part in scanner.parts if isinstance(part, TextCall)] == ["get_weather"]


def test_openings_without_end_cost_little() -> None:
    """Many openings of calls that never end stay text, without a search of the whole text for each."""
    text = '<tool_call>{"arguments": {"' * 20_000
    assert is_text("hermes", text)


@pytest.mark.parametrize(
    ("model", "form"),
    [
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "hermes"),
        ("qwen3:latest", "hermes"),
        ("Qwen3-Coder-30B-A3B-Instruct-Q4_K_M.gguf", "qwen-xml"),
        ("NousResearch/Hermes-4-70B", "hermes"),
        ("llama3.2:3b", "llama3"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama3"),
        ("mistralai/Devstral-Small-2507", "mistral"),
        ("deepseek/deepseek-v3.1-terminus", "deepseek"),
        ("deepseek-ai/DeepSeek-V3.2", "dsml"),
        ("moonshotai/Kimi-K2-Instruct", "kimi"),
        ("zai-org/GLM-4.6-FP8", "glm"),
        ("openai/gpt-oss-20b", "harmony"),
        ("MiniMaxAI/MiniMax-M2", "minimax"),
        ("command-r-plus", "cohere"),
        ("gpt-4o-mini", None),
        ("deepseek-r1-distill-llama-8b", None),
        ("llama-2-7b-chat", None),
        ("gemma-3-4b-it", None),
        ("", None),
    ],
)
def test_the_form_of_a_model(model: str, form: str | None) -> None:
    """The form is chosen by the model's name, whatever surrounds it; an unknown name has no form."""
    found = form_for_model(model)
    assert (found.name if found is not None else None) == form
