"""Forms in which a call is JSON after a marker: attributes, Hermes and Qwen, Llama 3, Mistral, Command."""

import re
from collections.abc import Sequence
from typing import Any, Final

from proxy.wires.text_calls.call import Declared, TextCall
from proxy.wires.text_calls.form import Form, Result, as_json, closing, json_call, json_calls, written_object
from proxy.wires.text_calls.source import NotACall, Reading, Source

_CALL_ID: Final = re.compile(r"[A-Za-z0-9]{9}")


class Seed(Form):
    """``<tool_call name="NAME" args={…}></tool_call>``, for models that were trained on no form.

    The closing tag may be missing at the end of the text, because models that only know this form from
    their prompt leave it out.
    """

    name = "seed"
    markers = ("<tool_call ", "<tool_call\n", "<tool_call\t")

    def read(self, source: Source, declared: Declared) -> Reading[list[TextCall]]:
        yield from source.literal("<tool_call")
        yield from source.blanks()
        quote = (yield from source.literal('name="', "name='"))[-1]
        source.sure = True
        name = yield from source.name()
        declared.name_of(name)
        yield from source.literal(quote)
        if not (yield from source.blanks()) and (yield from source.peek()):
            raise NotACall
        yield from source.literal("args=")
        arguments = yield from source.json()
        yield from source.blanks()
        if (yield from source.literal("/>", ">")) == ">":
            yield from source.blanks()
            if not (yield from source.maybe("</tool_call>")):
                yield from self._rest(source, declared)
        return [declared.call(name, arguments)]

    @staticmethod
    def _rest(source: Source, declared: Declared) -> Reading[None]:
        """Read nothing, or the beginning of a closing tag, at the end of the text."""
        rest = yield from source.peek()
        if rest and not "</tool_call>".startswith(source.text[source.at :]):
            raise NotACall
        source.at = len(source.text)

    @property
    def example(self) -> str:
        return '<tool_call name="FUNCTION_NAME" args={"ARGUMENT": "VALUE"}></tool_call>'

    def call(self, name: str, arguments: str, call_id: str) -> str:
        return f'<tool_call name="{name}" args={written_object(arguments)}></tool_call>'

    def result(self, result: Result) -> str:
        return f'<tool_response name="{result.name}">\n{result.text}\n</tool_response>'

    result_beginnings = ("<tool_response",)


class Hermes(Form):
    """``<tool_call>{"name": …, "arguments": …}</tool_call>``: Hermes, Qwen. Granite has its own marker."""

    name = "hermes"
    markers = ("<tool_call>", "<|tool_call|>")
    bare_if_repairing = True

    def read(self, source: Source, declared: Declared) -> Reading[list[TextCall]]:
        if (yield from source.literal(*self.markers)) == "<|tool_call|>":
            source.sure = True
            yield from source.blanks()
            return declared.listed((yield from source.json("[")))
        calls = yield from json_calls(source, declared)
        yield from closing(source, declared, "</tool_call>")
        return calls

    @property
    def example(self) -> str:
        return '<tool_call>\n{"name": "FUNCTION_NAME", "arguments": {"ARGUMENT": "VALUE"}}\n</tool_call>'

    def call(self, name: str, arguments: str, call_id: str) -> str:
        body = f'{{"name": {as_json(name)}, "arguments": {written_object(arguments)}}}'
        return f"<tool_call>\n{body}\n</tool_call>"

    def result(self, result: Result) -> str:
        return f"<tool_response>\n{result.text}\n</tool_response>"


class Llama(Form):
    """``<|python_tag|>{"name": …, "parameters": …}`` or that JSON alone: Llama 3.1 to 3.3.

    No text may follow the calls.
    """

    name = "llama3"
    markers = ("<|python_tag|>",)
    bare = bare_if_repairing = True
    result_beginnings = ("<|start_header_id|>",)
    around_results = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    _keys: Final[dict[str, Any]] = {"arguments": ("parameters", "arguments"), "other": ()}

    def read(self, source: Source, declared: Declared) -> Reading[list[TextCall]]:
        yield from source.literal("<|python_tag|>")
        source.sure = True
        calls = yield from self._calls(source, declared, sure=True)
        yield from source.end()
        return calls

    def read_json(self, source: Source, declared: Declared) -> Reading[list[TextCall]]:
        return (yield from self._calls(source, declared, sure=False))

    def _calls(self, source: Source, declared: Declared, *, sure: bool) -> Reading[list[TextCall]]:
        calls = []
        while True:
            yield from source.blanks()
            calls.append((yield from json_call(source, declared, sure=sure, **self._keys)))
            yield from source.blanks()
            if not (yield from source.maybe(";")):
                if (yield from source.peek()) not in (",", "{"):
                    break
                declared.note("several calls stand where one belongs")
                yield from source.maybe(",")
        yield from source.maybe("<|eom_id|>", "<|eot_id|>")
        return calls

    @property
    def example(self) -> str:
        return '{"name": "FUNCTION_NAME", "parameters": {"ARGUMENT": "VALUE"}}'

    def call(self, name: str, arguments: str, call_id: str) -> str:
        return f'{{"name": {as_json(name)}, "parameters": {written_object(arguments)}}}'

    def calls(self, written: Sequence[str]) -> str:
        return "; ".join(written)

    def definitions(self, tools: Sequence[dict[str, Any]]) -> str:
        return "\n".join(as_json({"type": "function", "function": tool}) for tool in tools)

    def result(self, result: Result) -> str:
        key = "error" if result.is_error else "output"
        return f'{{"name": {as_json(result.name)}, "{key}": {as_json(result.text)}}}'


class Mistral(Form):
    """``[TOOL_CALLS][{"name": …, "arguments": …}]``; from the eleventh version of the tokenizer on
    ``[TOOL_CALLS]NAME[ARGS]{…}``."""

    name = "mistral"
    markers = ("[TOOL_CALLS]",)
    bare_if_repairing = True
    result_beginnings = ("[TOOL_RESULTS]",)
    around_results = ("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[INST]", "[/INST]")

    def read(self, source: Source, declared: Declared) -> Reading[list[TextCall]]:
        yield from source.literal("[TOOL_CALLS]")
        source.sure = True
        yield from source.blanks()
        first = yield from source.peek()
        if first == "[":
            return declared.listed((yield from source.json("[")))
        if first == "{":
            declared.note("the list around the calls is missing")
            return (yield from json_calls(source, declared))
        name = yield from source.name()
        declared.name_of(name)
        call_id = ""
        if (yield from source.maybe("[CALL_ID]")):
            call_id = yield from source.name(9)
            if not _CALL_ID.fullmatch(call_id):
                raise NotACall
        yield from source.literal("[ARGS]")
        yield from source.blanks()
        arguments = yield from source.json()
        return [declared.call(name, arguments, call_id)]

    @property
    def example(self) -> str:
        return '[TOOL_CALLS][{"name": "FUNCTION_NAME", "arguments": {"ARGUMENT": "VALUE"}}]'

    def call(self, name: str, arguments: str, call_id: str) -> str:
        return f'{{"name": {as_json(name)}, "arguments": {written_object(arguments)}}}'

    def calls(self, written: Sequence[str]) -> str:
        return f"[TOOL_CALLS][{', '.join(written)}]"

    def definitions(self, tools: Sequence[dict[str, Any]]) -> str:
        listed = as_json([{"type": "function", "function": tool} for tool in tools])
        return f"[AVAILABLE_TOOLS]{listed}[/AVAILABLE_TOOLS]"

    def result(self, result: Result) -> str:
        return f'[TOOL_RESULTS]{{"content": {as_json(result.text)}}}[/TOOL_RESULTS]'


class Cohere(Form):
    """``<|START_ACTION|>[{"tool_name": …, "parameters": …}]<|END_ACTION|>``: Command R and A."""

    name = "cohere"
    markers = ("<|START_ACTION|>",)
    result_beginnings = ("<|START_TOOL_RESULT|>",)
    around_results = ("<|START_TOOL_RESULT|>", "<|END_TOOL_RESULT|>")

    def read(self, source: Source, declared: Declared) -> Reading[list[TextCall]]:
        yield from source.literal("<|START_ACTION|>")
        source.sure = True
        yield from source.blanks()
        text = yield from source.json("[")
        calls = declared.listed(text, names=("tool_name",), arguments=("parameters",), other=())
        yield from closing(source, declared, "<|END_ACTION|>")
        return calls

    @property
    def example(self) -> str:
        call = '{"tool_call_id": "0", "tool_name": "FUNCTION_NAME", "parameters": {"ARGUMENT": "VALUE"}}'
        return f"<|START_ACTION|>[{call}]<|END_ACTION|>"

    def call(self, name: str, arguments: str, call_id: str) -> str:
        given = written_object(arguments)
        return f'{{"tool_call_id": {as_json(call_id)}, "tool_name": {as_json(name)}, "parameters": {given}}}'

    def calls(self, written: Sequence[str]) -> str:
        return f"<|START_ACTION|>[{', '.join(written)}]<|END_ACTION|>"

    def result(self, result: Result) -> str:
        content = {"tool_call_id": result.call_id, "results": {"0": result.text}, "is_error": result.is_error}
        return as_json(content)

    def results(self, written: Sequence[str]) -> str:
        return f"<|START_TOOL_RESULT|>[{', '.join(written)}]<|END_TOOL_RESULT|>"
