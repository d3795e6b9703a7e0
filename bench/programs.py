"""``python -m bench.programs``: what ten tasks cost with and without programs, on real MCP servers.

The servers are ``mcp-server-git`` on a small repository and ``mcp-server-time``; ``TOOLRELAY_TEST_MCP`` names
the folder in which they are installed. Everything of the proxy is real. The model is scripted: for each
task it makes the calls that a good model would make, as few turns as possible and side by side where no call
needs the result of another, or it writes one program that makes the same calls. So turns and bytes say what
programs can save at best, and not how often a model writes a right program. A scripted model answers at
once: the time is that of the proxy and the tools. Tokens are counted as a quarter of the bytes that the
model reads and writes.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, web

ROOT = Path(__file__).resolve().parents[1]
INSTALLED = Path(os.environ.get("TOOLRELAY_TEST_MCP") or ROOT / ".venv-ci-mcp")
ZONES = (
    "Europe/Berlin",
    "Asia/Tokyo",
    "America/New_York",
    "Australia/Sydney",
    "Asia/Kolkata",
    "Africa/Cairo",
)

Calls = Sequence[tuple[str, dict[str, Any]]]
Task = tuple[str, Sequence[Calls], str]
"""A task: its name, the calls of each turn without programs, and the program."""


def now_in(zone: str) -> tuple[str, dict[str, Any]]:
    """Return the call for the time in a zone."""
    return "mcp__time__get_current_time", {"timezone": zone}


def converted(zone: str, at: str = "09:00") -> tuple[str, dict[str, Any]]:
    """Return the call that converts a time in Berlin."""
    given = {"source_timezone": "Europe/Berlin", "time": at, "target_timezone": zone}
    return "mcp__time__convert_time", given


def tasks(repo: str) -> list[Task]:
    """Return the ten tasks."""

    def git(tool: str, **given: Any) -> tuple[str, dict[str, Any]]:
        return f"mcp__git__git_{tool}", {"repo_path": repo, **given}

    log, revisions = git("log", max_count=20), [f"HEAD~{number}" for number in range(8)]
    shows = [git("show", revision=one) for one in revisions]
    made = [git("create_branch", branch_name=f"b{number}") for number in range(3)]
    ends = [git("show", revision=one) for one in ("HEAD", "HEAD~9")]
    turns: Sequence[Sequence[Calls]] = [
        [[now_in(zone) for zone in ZONES]],
        [[converted(zone) for zone in ZONES]],
        [[converted(zone)] for zone in ZONES[1:5]],
        [[log]],
        [shows],
        [[one] for one in shows[:4]],
        [[git("status"), git("diff_unstaged")]],
        [made, [git("branch", branch_type="local")]],
        [ends],
        [[now_in("UTC")]],
    ]
    head = f"import asyncio\nzones = {ZONES!r}\nat = {{'repo_path': {repo!r}}}\n"
    programs = [f"{head}{code}" for code in _PROGRAMS.values()]
    return list(zip(_PROGRAMS, turns, programs, strict=True))


_CONVERT = "mcp__time__convert_time(source_timezone='Europe/Berlin', time='09:00', target_timezone=zone)"
_SHOW = "mcp__git__git_show(revision=revision, **at)"
_PROGRAMS = {
    "time in six zones": "found = await asyncio.gather(\n"
    "    *[mcp__time__get_current_time(timezone=zone) for zone in zones])\n"
    "[one['datetime'] for one in found]",
    "a meeting in six zones": f"found = await asyncio.gather(*[{_CONVERT} for zone in zones])\n"
    "[one['target']['datetime'] for one in found]",
    "a chain of four conversions": "said = []\nfor zone in zones[1:5]:\n"
    f"    said.append((await {_CONVERT})['target']['datetime'])\nsaid[-1]",
    "commits of one author": "(await mcp__git__git_log(max_count=20, **at)).count('Ada')",
    "changes of eight commits": "revisions = [f'HEAD~{n}' for n in range(8)]\n"
    f"shown = await asyncio.gather(*[{_SHOW} for revision in revisions])\n"
    "sum(text.count('\\n+') for text in shown)",
    "the commit that broke it": "for revision in [f'HEAD~{n}' for n in range(4)]:\n"
    f"    text = await {_SHOW}\n    if 'line 5 of version 6' in text:\n        return revision",
    "status and diff": "both = await asyncio.gather(\n"
    "    mcp__git__git_status(**at), mcp__git__git_diff_unstaged(**at))\n'modified' in both[0]",
    "three branches": "for n in range(3):\n"
    "    await mcp__git__git_create_branch(branch_name=f'c{n}', **at)\n"
    "(await mcp__git__git_branch(branch_type='local', **at)).count('c')",
    "first and last commit": "ends = ('HEAD', 'HEAD~9')\n"
    f"shown = await asyncio.gather(*[{_SHOW} for revision in ends])\n[len(text) for text in shown]",
    "one call": "(await mcp__time__get_current_time(timezone='UTC'))['datetime']",
}
"""The programs by the names of the tasks."""


class Model:
    """The scripted model; it counts its turns and the bytes that it reads and writes."""

    def __init__(self, given: Sequence[Task]) -> None:
        self._tasks = given
        self.turns = self.bytes = 0
        self.failed = ""

    async def answer(self, request: web.Request) -> web.Response:
        """Answer one request of the Chat API."""
        raw = await request.read()
        body = json.loads(raw)
        said = [message for message in body["messages"] if message["role"] in ("user", "assistant")]
        number, done = int(said[0]["content"].split()[1]), len(said) - 1
        _, turns, code = self._tasks[number]
        if any(tool["function"]["name"] == "core__run_program" for tool in body.get("tools", ())):
            turns = [[("core__run_program", {"code": code})]]
        results = [str(one["content"]) for one in body["messages"] if one["role"] == "tool"]
        self.failed = next((text for text in results if '"ok":false' in text), self.failed)
        message: dict[str, Any] = {"role": "assistant", "content": "Done."}
        if done < len(turns):
            calls = [
                {
                    "id": f"c{done}_{at}",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(given)},
                }
                for at, (name, given) in enumerate(turns[done])
            ]
            message = {"role": "assistant", "content": None, "tool_calls": calls}
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        made = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        self.turns += 1
        self.bytes += len(raw) + len(json.dumps(message))
        return web.json_response(made)


def repository(folder: Path) -> str:
    """Make a repository with ten commits and a change that is not committed."""
    repo = folder / "repo"
    repo.mkdir()

    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", str(repo), *arguments], check=True, capture_output=True)

    git("init", "-q")
    for name, value in (("user.name", "Ada"), ("user.email", "ada@example.com")):
        git("config", name, value)
    for number in range(10):
        text = "\n".join(f"line {line} of version {number}" for line in range(40))
        (repo / "text.txt").write_text(text)
        git("add", ".")
        git("commit", "-qm", f"Version {number}")
    (repo / "text.txt").write_text("something else")
    return str(repo)


def configuration(folder: Path, repo: str, upstream: int, programs: str) -> Path:
    """Write the configuration of a proxy, and allow the tools of the servers."""
    folder.mkdir()
    file = folder / "toolrelay.toml"
    servers = {"git": ["--repository", repo], "time": []}
    text = (
        f'[server]\nport = 0\n[upstreams.default]\nbase_url = "http://127.0.0.1:{upstream}/v1"\n'
        'api_key = ""\n'
        f'[tools]\nprograms = "{programs}"\n[policy]\nallow = ["mcp__*"]\nafter_untrusted = "allow"\n'
        f'[auth]\nmode = "open"\n[store]\nurl = "sqlite:///{folder / "record.db"}"\n'
    )
    for name, arguments in servers.items():
        program = INSTALLED / name / "bin" / f"mcp-server-{name}"
        text += f'[mcp.servers.{name}]\ncommand = "{program}"\nargs = {json.dumps(arguments)}\n'
        text += 'effects = {"*create*" = "state_change", "*" = "read_only"}\n'
    file.write_text(text)
    allow = [sys.executable, "-m", "proxy", "tools", "allow", "mcp__*", "--yes", "--config", str(file)]
    subprocess.run(allow, cwd=folder, check=True, capture_output=True, env=_environment())
    return file


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


async def measured(file: Path, model: Model, given: Sequence[Task]) -> list[tuple[int, int, float]]:
    """Run a proxy and all tasks; return turns, bytes and seconds of each."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy", "serve", "--config", str(file)),
        cwd=file.parent,
        env=_environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        assert process.stdout is not None
        address = ""
        while "listens on" not in address:
            address = (await process.stdout.readline()).decode()
        url = address.partition("listens on ")[2].split()[0]
        rest = asyncio.create_task(process.stdout.read())
        found = []
        async with ClientSession() as client:
            for number in (0, *range(len(given))):  # The first one only warms up.
                model.turns = model.bytes = 0
                began = time.perf_counter()
                asked = {"model": "m", "messages": [{"role": "user", "content": f"task {number} please"}]}
                async with client.post(f"{url}/chat/completions", json=asked) as answer:
                    await answer.read()
                found.append((model.turns, model.bytes, time.perf_counter() - began))
        if model.failed:
            print(f"a call failed: {model.failed[:300]}", file=sys.stderr)
        return found[1:]
    finally:
        process.terminate()
        await process.wait()
        rest.cancel()


async def compare(show: Callable[[str], None] = print) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        repo = repository(folder)
        given = tasks(repo)
        model = Model(given)
        app = web.Application()
        app.router.add_post("/v1/chat/completions", model.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        both = [
            await measured(configuration(folder / mode, repo, port, mode), model, given)
            for mode in ("off", "on")
        ]
        await runner.cleanup()
    show(f"{'task':28} {'turns':>9} {'tokens':>15} {'ms':>13}")
    for (task, _, _), (turns, size, took), (less, small, quick) in zip(given, *both, strict=True):
        tokens = f"{size // 4:>7}{small // 4:>8}"
        show(f"{task:28} {turns:>4}{less:>5} {tokens} {took * 1000:>6.0f}{quick * 1000:>7.0f}")
    sums = [[sum(one[at] for one in each) for each in both] for at in range(3)]
    show(
        f"{'all':28} {sums[0][0]:>4}{sums[0][1]:>5} {sums[1][0] // 4:>7}{sums[1][1] // 4:>8} "
        f"{sums[2][0] * 1000:>6.0f}{sums[2][1] * 1000:>7.0f}"
    )


def main() -> int:
    """Run the bench."""
    asyncio.run(compare())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
