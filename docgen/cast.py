"""Draws the picture of the demo: runs the demo, asks it with its own Python program, and draws both outputs.

The picture is an SVG file without scripts, fonts or addresses, so that every viewer of Markdown shows it.
Its lines appear one after the other. If the reader prefers no motion, all are visible at once.
"""

import html
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator
from typing import Final

_COLUMNS: Final = 100
_LINE_PX: Final = 19
_COLUMN_PX: Final = 7.83
_PADDING_PX: Final = 18
_PAUSE_S: Final = 0.35
_WAIT_S: Final = 60.0
_PROGRAM: Final = "from openai import OpenAI"
_BEHIND_PROGRAM: Final = "Other questions to ask:"
_ADDRESS: Final = re.compile(r"http://127\.0\.0\.1:\d+")
_CODE: Final = re.compile(r"#login=[A-Za-z0-9_-]+")
_RUN: Final = re.compile(r"\[[0-9a-f]{8}\]")
_MS: Final = re.compile(r"\b\d+ ms")


def play() -> list[str]:
    """Run the demo and the Python program that it prints; return the lines of a terminal.

    :raises subprocess.CalledProcessError: the program failed (it needs the ``openai`` package).
    """
    command = [sys.executable, "-m", "proxy", "demo", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as demo:
        assert demo.stdout is not None
        try:
            greeting = []
            for line in demo.stdout:
                greeting.append(line.rstrip("\n"))
                if "Runs appear here" in line:
                    break
            first, last = (greeting.index(line) for line in (_PROGRAM, _BEHIND_PROGRAM))
            program = "\n".join(greeting[first:last])
            answer = subprocess.run(
                [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=_WAIT_S
            ).stdout
            run = [line.rstrip("\n") for line in _until_done(demo.stdout)]
        finally:
            demo.send_signal(signal.SIGTERM)
    return [
        "$ toolrelay demo",
        *(
            _CODE.sub("#login=…", _ADDRESS.sub("http://127.0.0.1:8080", line))
            for line in greeting[:6]
            if line
        ),
        "",
        "$ python ask.py    # the program that the demo prints",
        *_wrapped(answer.strip()),
        "",
        "The first terminal shows meanwhile:",
        *(part for line in run for part in _wrapped(line)),
    ]


def _until_done(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines about a run, up to the one that says how it ended."""
    for line in lines:
        yield line
        if " completed: " in line:
            return


def _wrapped(text: str) -> list[str]:
    return [
        part.rstrip()
        for line in text.splitlines()
        for part in textwrap.wrap(line, _COLUMNS, subsequent_indent="    ", drop_whitespace=False) or [""]
    ]


def words(lines: list[str]) -> list[str]:
    """Return the words of the lines in alphabetical order, without what differs from run to run.

    That is the run's id, the times, and which of two parallel calls ends first.
    """
    return sorted(_MS.sub("N ms", _RUN.sub("[RUN]", " ".join(lines))).split())


def drawn(picture: str) -> list[str]:
    """Return the lines that a picture shows."""
    return [html.unescape(line) for line in re.findall(r"<text [^>]*>([^<]*)</text>", picture)]


def draw(lines: list[str]) -> str:
    """Draw an SVG picture of a terminal with these lines."""
    width = round(_COLUMNS * _COLUMN_PX + 2 * _PADDING_PX)
    height = len(lines) * _LINE_PX + 2 * _PADDING_PX
    rows = []
    for number, line in enumerate(lines):
        kind = "c" if line.startswith("$") else "r" if line.startswith("[") else "t"
        y = _PADDING_PX + (number + 1) * _LINE_PX - 5
        delay = f' style="animation-delay:{(number + 1) * _PAUSE_S:.2f}s"'
        text = html.escape(line, quote=False)
        rows.append(
            f'<text class="{kind}" x="{_PADDING_PX}" y="{y}" xml:space="preserve"{delay}>{text}</text>'
        )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            "<title>toolrelay demo in a terminal: one question, two server tools, one stream</title>",
            "<style>",
            "text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#c9d1d9;"
            "opacity:0;animation:show 0s linear forwards}",
            ".c{fill:#7ee787;font-weight:600}.r{fill:#79c0ff}",
            "@keyframes show{to{opacity:1}}",
            "@media(prefers-reduced-motion:reduce){text{animation:none;opacity:1}}",
            "</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>',
            *rows,
            "</svg>",
            "",
        ]
    )
