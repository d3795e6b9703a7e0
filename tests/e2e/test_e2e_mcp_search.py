"""Tool search finds the right tools of real MCP servers for the words that models ask with."""

import asyncio
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from e2e_packages import installed_packages
from mcp_real import python_server
from mcp_rig import hosted
from require import require

from proxy.base.events import ToolDefinition
from proxy.tools.mcp.servers import Server
from proxy.tools.searching.index import ToolIndex

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ASKED: Mapping[str, Sequence[str]] = {
    "what time is it in Tokyo": ["time__get_current_time"],
    "convert a meeting from one timezone to another": ["time__convert_time"],
    "download a web page as markdown": ["fetch__fetch"],
    "read a URL": ["fetch__fetch"],
    "see uncommitted changes": ["git__git_diff_unstaged", "git__git_status"],
    "which files changed in the working tree": ["git__git_status"],
    "stage files for commit": ["git__git_add"],
    "record staged changes with a message": ["git__git_commit"],
    "history of a repository": ["git__git_log"],
    "switch to another branch": ["git__git_checkout"],
    "make a new branch": ["git__git_create_branch"],
    "unstage everything": ["git__git_reset"],
    "list branches": ["git__git_branch"],
    "open a text file": ["files__read_text_file"],
    "read several files at once": ["files__read_multiple_files"],
    "save text to a file": ["files__write_file"],
    "replace lines in a file": ["files__edit_file"],
    "make a folder": ["files__create_directory"],
    "what is in this directory": ["files__list_directory", "files__directory_tree"],
    "rename a file": ["files__move_file"],
    "find files by name pattern": ["files__search_files"],
    "file size and modification date": ["files__get_file_info"],
    "view an image": ["files__read_media_file"],
    "remember that Anna works at Acme": ["memory__create_entities", "memory__create_relations"],
    "look up something in the knowledge graph": ["memory__search_nodes"],
    "forget an entity": ["memory__delete_entities"],
    "add a fact about an existing entity": ["memory__add_observations"],
    "show all that is remembered": ["memory__read_graph"],
    "add two numbers": ["every__get-sum"],
    "repeat a message back": ["every__echo"],
    "environment variables": ["every__get-env"],
    "compress files into an archive": ["every__gzip-file-as-resource"],
    "git_show": ["git__git_show"],
    "delete relations between nodes": ["memory__delete_relations"],
    "which folders may be accessed": ["files__list_allowed_directories"],
}
"""What a model asks, and the tools that answer it. Any one of them is right.

The words that the index takes for alike were chosen with these questions in view.
"""

ASKED_LATER: Mapping[str, Sequence[str]] = {
    "current hour in Berlin": ["time__get_current_time"],
    "translate 9am New York time to London": ["time__convert_time"],
    "get the contents of a website": ["fetch__fetch"],
    "compare two revisions": ["git__git_diff"],
    "diff of what is staged": ["git__git_diff_staged"],
    "who committed recently": ["git__git_log"],
    "display one commit": ["git__git_show"],
    "start a feature branch": ["git__git_create_branch"],
    "append to a document": ["files__write_file", "files__edit_file"],
    "mkdir": ["files__create_directory"],
    "recursive tree of a folder": ["files__directory_tree"],
    "biggest files in a directory": ["files__list_directory_with_sizes"],
    "relocate a document": ["files__move_file"],
    "metadata of a file": ["files__get_file_info"],
    "look at a picture": ["files__read_media_file"],
    "store a new person in the graph": ["memory__create_entities"],
    "connect two entities": ["memory__create_relations"],
    "erase an observation": ["memory__delete_observations"],
    "open certain nodes": ["memory__open_nodes"],
    "sum of 2 and 3": ["every__get-sum"],
}
"""Questions that were written when the index was done. It must not be fitted to them."""


async def tools_of_servers(folder: Path) -> list[ToolDefinition]:
    """The tools of six servers, by the names that models see."""
    node, npm = shutil.which("node"), shutil.which("npm")
    require("node", bool(node and npm), "node and npm are not installed")
    packages, trouble = installed_packages(str(npm))
    require("node", packages is not None, f"the npm packages cannot be installed: {trouble}")
    assert packages is not None
    programs = packages / "node_modules" / ".bin"
    await asyncio.to_thread(subprocess.run, ["git", "init", "--quiet", str(folder)], check=True)
    servers = [
        Server("time", command=python_server("time")),
        Server("git", command=python_server("git"), args=("--repository", str(folder))),
        Server("fetch", command=python_server("fetch")),
        Server("files", command=str(programs / "mcp-server-filesystem"), args=(str(folder),)),
        Server("memory", command=str(programs / "mcp-server-memory")),
        Server("every", command=str(programs / "mcp-server-everything")),
    ]
    found = []
    async with AsyncExitStack() as stack:
        host = await stack.enter_async_context(hosted(*servers))
        for server in servers:
            for name, tool in (await host.definitions(server.name)).items():
                full = f"{server.name}__{name}"
                found.append(ToolDefinition(full, tool.description, tool.input_schema))
    return found


def answered(index: ToolIndex, asked: Mapping[str, Sequence[str]], most: int) -> float:
    """Return the share of questions with a right tool among the first ``most``."""
    return sum(bool(set(rights) & set(index.find(each, most))) for each, rights in asked.items()) / len(asked)


async def test_search_finds_tools_of_real_servers(tmp_path: Path) -> None:
    """A right tool is among the first five for nine of ten questions, for six of ten of those asked later."""
    tools = await tools_of_servers(tmp_path)
    names = {tool.name for tool in tools}
    assert len(tools) > 45
    for asked in (ASKED, ASKED_LATER):
        assert [right for rights in asked.values() for right in rights if right not in names] == []
    index = ToolIndex(tools)
    assert answered(index, ASKED, 5) >= 0.9
    assert answered(index, ASKED, 1) >= 0.5
    assert answered(index, ASKED_LATER, 5) >= 0.6
