"""Forms that use a tokenizer's special tokens: DeepSeek, Kimi K2, and harmony of gpt-oss."""

import re
from collections.abc import Sequence
from typing import Final

from proxy.wires.text_calls.call import Declared, TextCall
from proxy.wires.text_calls.form import Form, Result, closing, written_object
from proxy.wires.text_calls.source import NotACall, Reading, Source

_RECIPIENT: Final = re.compile(r"\bto=([A-Za-z0-9_.:-]{1,140})")


def _token(name: str) -> tuple[str, str]:
    """Return a token of DeepSeek's in two spellings: with block characters, and as other tokenizers write
    it."""
    return f"<｜{name.replace(' ', '▁')}｜>", f"<｜{name.replace(' ', '_')}｜>"


_CALLS, _CALLS_END = _token("tool calls begin"), _token("tool calls end")
_CALL, _CALL_END = _token("tool call begin"), _token("tool call end")
_SEP = _token("tool sep")
_FENCE: Final = "\n```json\n"
_OUTPUT_SIGNS: Final = ("outputs begin", "outputs end", "output begin", "output end")


class DeepSeek(Form):
    """``<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜><｜tool▁calls▁end｜>``.

    V3.1 writes the tool's name. V3 and R1 write the word ``function`` instead, then the name, then the JSON
    in a code fence. Some servers drop the outer pair.
    """

    name = "deepseek"
    markers = (*_CALLS, *_CALL)
    result_beginnings = (_token("tool outputs begin")[0], _token("tool output begin")[0])
    around_results = tuple(_token(f"tool {sign}")[0] for sign in _OUTPUT_SIGNS)

    def read(self, source: Source, declared: Declared) -> Reading[list[TextCall]]:
        outer = yield from source.maybe(*_CALLS)
        source.sure = True
        calls: list[TextCall] = []
        while True:
            yield from source.blanks()
            if not (yield from source.maybe(*_CALL)):
                if calls:
                    break
                yield from source.literal(*_CALL)
            calls.append((yield from self._one(source, declared)))
            if not outer:
                return calls
        yield from closing(source, declared, *_CALLS_END)
        return calls

    @staticmethod
    def _one(source: Source, declared: Declared) -> Reading[TextCall]:
        name = yield from source.name()
        yield from source.literal(*_SEP)
        fenced = name == "function" and name not in declared.names
        if fenced:
            name = yield from source.name()
        declared.name_of(name)
        if fenced:
            yield from source.literal(_FENCE)
        else:
            yield from source.blanks()
        arguments = yield from source.json()
        if fenced:
            yield from source.blanks()
            yield from source.literal("```")
        yield from closing(source, declared, *_CALL_END)
        return declared.call(name, arguments)

    @property
    def example(self) -> str:
        return self.calls([self.call("FUNCTION_NAME", '{"ARGUMENT": "VALUE"}', "")])

    def call(self, name: str, arguments: str, call_id: str) -> str:
        return f"{_CALL[0]}{name}{_SEP[0]}{written_object(arguments)}{_CALL_END[0]}"

    def calls(self, written: Sequence[str]) -> str:
        return f"{_CALLS[0]}{''.join(written)}{_CALLS_END[0]}"

    def result(self, result: Result) -> str:
        return f"{_token('tool output begin')[0]}{result.text}{_token('tool output end')[0]}"

    def results(self, written: Sequence[str]) -> str:
        return f"{_token('tool outputs begin')[0]}{''.join(written)}{_token('tool outputs end')[0]}"


class Kimi(Form):
    """Calls of Kimi K2, each with an id ``functions.NAME:N``; N counts the calls of the conversation."""

    name = "kimi"
    markers = ("<|tool_calls_section_begin|>",)
    result_beginnings = ("## Return of",)
    around_results = ("## Return of", "<|im_end|>")
    _call: Final = "<|tool_call_begin|>"

    def read(self, source: Source, declared: Declared) -> Reading[list[TextCall]]:
        yield from source.literal(*self.markers)
        source.sure = True
        calls: list[TextCall] = []
        while True:
            yield from source.blanks()
            if not (yield from source.maybe(self._call)):
                if calls:
                    break
                yield from source.literal(self._call)
            yield from source.blanks()
            call_id = yield from source.name(160)
            name, _, number = call_id.rpartition(":")
            if not number.isdecimal():
                raise NotACall
            declared.name_of(name)
            yield from source.blanks()
            yield from source.literal("<|tool_call_argument_begin|>")
            yield from source.blanks()
            arguments = yield from source.json()
            yield from closing(source, declared, "<|tool_call_end|>")
            calls.append(declared.call(name, arguments, call_id))
        yield from closing(source, declared, "<|tool_calls_section_end|>")
        return calls

    @property
    def example(self) -> str:
        return self.calls([self.call("FUNCTION_NAME", '{"ARGUMENT": "VALUE"}', "functions.FUNCTION_NAME:0")])

    def call(self, name: str, arguments: str, call_id: str) -> str:
        given = written_object(arguments)
        return f"<|tool_call_begin|>{call_id}<|tool_call_argument_begin|>{given}<|tool_call_end|>"

    def id_of(self, name: str, number: int, call_id: str) -> str:
        return f"functions.{name}:{number}"

    def calls(self, written: Sequence[str]) -> str:
        return f"<|tool_calls_section_begin|>{''.join(written)}<|tool_calls_section_end|>"

    def result(self, result: Result) -> str:
        return f"## Return of {result.call_id or result.name}\n{result.text}"


class Harmony(Form):
    """What servers of gpt-oss leave in the text: ``<|channel|>commentary to=functions.NAME
    …<|message|>{…}``.

    The recipient may stand in the role or in the channel. Only messages to a declared tool are read. A text
    that begins with a channel is split into its channels instead.
    """

    name = "harmony"
    channels = True
    markers = ("<|start|>assistant", "<|channel|>commentary")
    result_beginnings = ("<|start|>functions.",)
    around_results = ("<|start|>", "<|end|>", "<|call|>", "<|return|>")
    _ends: Final = ("<|call|>", "<|end|>", "<|return|>")

    def read(self, source: Source, declared: Declared) -> Reading[list[TextCall]]:
        yield from source.literal(*self.markers)
        source.sure = True
        header = yield from source.until("<|message|>", 256)
        recipient = _RECIPIENT.search(header)
        if recipient is None:
            raise NotACall
        name = recipient[1]
        declared.name_of(name)
        yield from source.blanks()
        arguments = yield from source.json()
        yield from closing(source, declared, *self._ends)
        return [declared.call(name, arguments)]

    @property
    def example(self) -> str:
        return self.call("FUNCTION_NAME", '{"ARGUMENT": "VALUE"}', "")

    def call(self, name: str, arguments: str, call_id: str) -> str:
        to = f"<|channel|>commentary to=functions.{name} <|constrain|>json"
        return f"{to}<|message|>{written_object(arguments)}<|call|>"

    def result(self, result: Result) -> str:
        header = f"functions.{result.name} to=assistant<|channel|>commentary"
        return f"<|start|>{header}<|message|>{result.text}<|end|>"
