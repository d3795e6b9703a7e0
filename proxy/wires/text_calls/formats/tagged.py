"""Forms with tags around each argument: Qwen3-Coder, GLM, MiniMax, and DeepSeek from V3.2 on.

Values stand there without quotes and, except for DeepSeek, without types, which the tool's schema provides.
"""

from collections.abc import Sequence
from typing import Any, Final

from proxy.wires.text_calls.call import Declared, TextCall
from proxy.wires.text_calls.form import Form, Result, as_json, closing, parsed
from proxy.wires.text_calls.source import NotACall, Reading, Source

_MOST_KEY: Final = 256


class QwenXml(Form):
    """``<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>``."""

    name = "qwen-xml"
    markers = ("<tool_call>", "<function=")

    def read(self, source: Source, declared: Declared) -> Reading[list[TextCall]]:
        outer = yield from source.maybe("<tool_call>")
        yield from source.blanks()
        yield from source.literal("<function=")
        source.sure = True
        name = yield from source.name()
        declared.name_of(name)
        yield from source.literal(">")
        values: dict[str, str] = {}
        while True:
            yield from source.blanks()
            if not (yield from source.maybe("<parameter=")):
                break
            key = yield from source.until(">", _MOST_KEY)
            value = yield from source.until("</parameter>")
            _put(values, key.strip(), value.removeprefix("\n").removesuffix("\n"))
        yield from closing(source, declared, "</function>")
        if outer:
            yield from closing(source, declared, "</tool_call>")
        else:
            yield from _may_close(source, "</tool_call>")
        return [declared.typed(name, values)]

    def call(self, name: str, arguments: str, call_id: str) -> str:
        given = "".join(
            f"<parameter={key}>\n{_plain(value)}\n</parameter>\n" for key, value in parsed(arguments).items()
        )
        return f"<tool_call>\n<function={name}>\n{given}</function>\n</tool_call>"

    def result(self, result: Result) -> str:
        return f"<tool_response>\n{result.text}\n</tool_response>"


class Glm(Form):
    """``<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>``: GLM-4.5 to 5."""

    name = "glm"
    markers = ("<tool_call>",)
    result_beginnings = ("<tool_response>", "<|observation|>")

    def read(self, source: Source, declared: Declared) -> Reading[list[TextCall]]:
        yield from source.literal("<tool_call>")
        yield from source.blanks()
        source.sure = True
        name = yield from source.name()
        declared.name_of(name)
        values: dict[str, str] = {}
        while True:
            yield from source.blanks()
            if not (yield from source.maybe("<arg_key>")):
                break
            key = yield from source.until("</arg_key>", _MOST_KEY)
            yield from source.blanks()
            yield from source.literal("<arg_value>")
            _put(values, key.strip(), (yield from source.until("</arg_value>")))
        yield from closing(source, declared, "</tool_call>")
        return [declared.typed(name, values)]

    def call(self, name: str, arguments: str, call_id: str) -> str:
        given = "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{_plain(value)}</arg_value>\n"
            for key, value in parsed(arguments).items()
        )
        return f"<tool_call>{name}\n{given}</tool_call>"

    def result(self, result: Result) -> str:
        return f"<tool_response>\n{result.text}\n</tool_response>"


class _Invoking(Form):
    """Calls ``<invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>`` in a pair of tags.

    ``prefixes`` are possible prefixes of each tag's name; ``outer`` are possible names of the pair.
    """

    prefixes: tuple[str, ...] = ("",)
    outer: tuple[str, ...]

    def read(self, source: Source, declared: Declared) -> Reading[list[TextCall]]:
        marker = yield from source.literal(*self.markers)
        source.sure = True
        prefix = next((prefix for prefix in self.prefixes if prefix and marker.startswith("<" + prefix)), "")
        calls = []
        while True:
            yield from source.blanks()
            if not (yield from source.maybe(f'<{prefix}invoke name="')):
                break
            calls.append((yield from self._invoked(source, declared, prefix)))
        if not calls:
            # This raises, for the end of the text and for any text that is not an opening tag.
            yield from source.literal(f'<{prefix}invoke name="')
        yield from closing(source, declared, "</" + marker[1:])
        return calls

    def _invoked(self, source: Source, declared: Declared, prefix: str) -> Reading[TextCall]:
        name = yield from source.until('"', 128)
        declared.name_of(name)
        yield from source.literal(">")
        yield from source.blanks()
        if (yield from source.peek()) == "{":
            text = yield from source.json()
            yield from source.blanks()
            yield from source.literal(f"</{prefix}invoke>")
            return declared.call(name, text)
        values: dict[str, str] = {}
        given: dict[str, str] = {}
        while True:
            yield from source.blanks()
            if not (yield from source.maybe(f'<{prefix}parameter name="')):
                break
            key = yield from source.until('"', _MOST_KEY)
            typed = yield from source.literal(">", ' string="true">', ' string="false">')
            value = yield from source.until(f"</{prefix}parameter>")
            if typed == ">":
                _put(values, key, value)
            else:
                _put(given, key, as_json(value) if "true" in typed else declared.json(value))
        yield from closing(source, declared, f"</{prefix}invoke>")
        if not given:
            return declared.typed(name, values)
        if values:
            raise NotACall
        members = ",".join(f"{as_json(key)}:{value}" for key, value in given.items())
        return declared.call(name, f"{{{members}}}")

    def _open(self) -> tuple[str, str]:
        """Return the prefix and the outer name with which calls are written."""
        return self.prefixes[0], self.outer[0]

    def call(self, name: str, arguments: str, call_id: str) -> str:
        prefix, _ = self._open()
        given = "".join(self._parameter(prefix, key, value) for key, value in parsed(arguments).items())
        return f'<{prefix}invoke name="{name}">\n{given}</{prefix}invoke>'

    @staticmethod
    def _parameter(prefix: str, key: str, value: Any) -> str:
        return f'<{prefix}parameter name="{key}">{_plain(value)}</{prefix}parameter>\n'

    def calls(self, written: Sequence[str]) -> str:
        prefix, outer = self._open()
        inner = "\n".join(written)
        return f"<{prefix}{outer}>\n{inner}\n</{prefix}{outer}>"


class MiniMax(_Invoking):
    """``<minimax:tool_call><invoke name="NAME">…``: MiniMax M2."""

    name = "minimax"
    outer = ("minimax:tool_call",)
    markers = ("<minimax:tool_call>",)
    result_beginnings = ("<response>",)
    around_results = ("<response>", "</response>")

    def result(self, result: Result) -> str:
        return f"<response>{result.text}</response>"


class Dsml(_Invoking):
    """``<｜DSML｜function_calls><｜DSML｜invoke name="NAME">…``: DeepSeek V3.2 and V4.

    An attribute of each parameter tells whether its value is text or JSON.
    """

    name = "dsml"
    prefixes = ("｜DSML｜",)
    outer = ("function_calls", "tool_calls")
    markers = (
        *("<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"),
        *("<function_calls>", "<tool_calls>"),
    )
    result_beginnings = ("<function_results>",)
    around_results = ("<function_results>", "</function_results>", "<result>", "</result>")

    @staticmethod
    def _parameter(prefix: str, key: str, value: Any) -> str:
        is_text = "true" if isinstance(value, str) else "false"
        return f'<{prefix}parameter name="{key}" string="{is_text}">{_plain(value)}</{prefix}parameter>\n'

    def result(self, result: Result) -> str:
        return f"<result>{result.text}</result>"

    def results(self, written: Sequence[str]) -> str:
        inner = "\n".join(written)
        return f"<function_results>\n{inner}\n</function_results>"


def _put(values: dict[str, str], key: str, value: str) -> None:
    """Add an argument. A call that repeats one is not a valid call."""
    if not key or key in values:
        raise NotACall
    values[key] = value


def _plain(value: Any) -> str:
    """Return a value as it stands between tags: text unchanged, anything else as JSON."""
    return value if isinstance(value, str) else as_json(value)


def _may_close(source: Source, literal: str) -> Reading[None]:
    """Read a closing tag without an opening one, which some models write."""
    yield from source.maybe(literal, "\n" + literal)
