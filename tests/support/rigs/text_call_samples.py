"""Texts with calls in each format, as models of that family write them, and what they contain."""

from typing import Any, Final

NAMES: Final = ("get_weather", "get_time", "mcp__files.read")
SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "units": {"type": ["string", "null"]},
            "detail": {"type": "boolean"},
            "at": {"type": "array"},
        },
    },
    "get_time": {"type": "object", "properties": {}},
    "mcp__files.read": {"type": "object", "properties": {"path": {"type": "string"}}},
}

WEATHER: Final = ("get_weather", {"city": "Paris"})
TIME: Final[tuple[str, dict[str, Any]]] = ("get_time", {})
BRACES: Final = ("get_weather", {"city": 'a </tool_call> "{"}} \\ b'})

SAMPLES: Final[dict[str, list[tuple[str, list[Any]]]]] = {
    "seed": [
        ('<tool_call name="get_weather" args={"city": "Paris"}></tool_call>', ["", WEATHER]),
        ("One moment.\n\n<tool_call name='get_time'\n args={} />", ["One moment.", TIME]),
        ('<tool_call name="get_weather" args={"city": "Paris"}>', ["", WEATHER]),
        ('<tool_call name="get_time" args={}></tool_call>\nThen I say more.', ["", TIME, "Then I say more."]),
        (
            '<tool_call name="get_weather" args={"city": "a </tool_call> \\"{\\"}} \\\\ b"}></tool_call>',
            ["", BRACES],
        ),
    ],
    "hermes": [
        ('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>', ["", WEATHER]),
        (
            'Both.\n<tool_call>{"name":"get_time"}</tool_call>\n<tool_call>\n{"name": "get_weather", '
            '"arguments": "{\\"city\\": \\"Paris\\"}"}</tool_call>',
            ["Both.", TIME, WEATHER],
        ),
        ('<tool_call>{"function": {"name": "get_time", "arguments": {}}}</tool_call>', ["", TIME]),
        ('<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]', ["", WEATHER]),
        (
            '<tool_call>{"name": "get_weather", "arguments": {"city": "a </tool_call> \\"{\\"}} \\\\ b"}}'
            "</tool_call>",
            ["", BRACES],
        ),
    ],
    "qwen-xml": [
        (
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
            "<parameter=days>\n3\n</parameter>\n<parameter=units>\nnull\n</parameter>\n"
            "<parameter=detail>\nTrue\n</parameter>\n<parameter=at>\n[1]\n</parameter>\n"
            "</function>\n</tool_call>",
            ["", ("get_weather", {"city": "Paris", "days": 3, "units": None, "detail": True, "at": [1]})],
        ),
        ("Sure.\n<function=get_time>\n</function>", ["Sure.", TIME]),
        (
            "<function=get_weather><parameter=city>\n<b>&amp;</b>\n\n</parameter></function>\n</tool_call>",
            ["", ("get_weather", {"city": "<b>&amp;</b>\n"})],
        ),
    ],
    "glm": [
        (
            "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>",
            ["", WEATHER],
        ),
        ("Hm.\n<tool_call>get_time</tool_call>", ["Hm.", TIME]),
    ],
    "llama3": [
        ('<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}<|eom_id|>', ["", WEATHER]),
        (
            '{"type": "function", "name": "get_weather", "parameters": {"city": "Paris"}}; '
            '{"name": "get_time", "parameters": {}}',
            ["", WEATHER, TIME],
        ),
    ],
    "mistral": [
        ('[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}]', ["", WEATHER]),
        (
            'Hm [sic].\n[TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]{"city": "Paris"}'
            "[TOOL_CALLS]get_time[ARGS]{}",
            ["Hm [sic].", WEATHER, TIME],
        ),
    ],
    "deepseek": [
        (
            "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
            '{"city": "Paris"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
            ["I look.", WEATHER],
        ),
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
            '{"city": "Paris"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n'
            "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            ["", WEATHER, TIME],
        ),
        ("<｜tool_call_begin｜>get_time<｜tool_sep｜>{}<｜tool_call_end｜>", ["", TIME]),
    ],
    "dsml": [
        (
            '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
            '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n'
            "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
            ["", ("get_weather", {"city": "Paris", "days": 2})],
        ),
        ('<tool_calls><invoke name="get_time">{}</invoke></tool_calls>', ["", TIME]),
    ],
    "minimax": [
        (
            '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n'
            '</invoke>\n<invoke name="get_time">\n</invoke>\n</minimax:tool_call>',
            ["", WEATHER, TIME],
        ),
    ],
    "kimi": [
        (
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
            '<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|><|tool_call_begin|>'
            'functions.mcp__files.read:1<|tool_call_argument_begin|>{"path": "/x"}<|tool_call_end|>'
            "<|tool_calls_section_end|>",
            ["", WEATHER, ("mcp__files.read", {"path": "/x"})],
        ),
    ],
    "harmony": [
        (
            '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}'
            "<|call|>",
            ["", WEATHER],
        ),
        (
            "<|start|>assistant to=functions.get_time<|channel|>commentary<|message|>{}<|call|>",
            ["", TIME],
        ),
    ],
    "cohere": [
        (
            '<|START_ACTION|>[\n{"tool_call_id": "0", "tool_name": "get_weather", "parameters": '
            '{"city": "Paris"}}\n]<|END_ACTION|>',
            ["", WEATHER],
        ),
    ],
}
"""Format → texts, each with what it contains: the text before the calls, the calls, the text after them."""
