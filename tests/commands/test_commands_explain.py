"""``explain`` says what a name means; a failed command prints the ``explain`` command for its fault."""

import pytest
from command_line import HINT, Here
from documents import DOCS

from proxy.base.error_codes import ERRORS
from proxy.commands.explain import explain, hint
from proxy.config.text import settings
from proxy.telemetry.metric_families import FAMILIES
from proxy.tools.contract.error_codes import TOOL_ERRORS

PORT = """server.port (setting)

  Port to listen on; 0 takes any free one.
  Default: 8080
"""


def test_a_setting_is_explained(here: Here) -> None:
    """``explain`` prints a setting's name, meaning and default, without Markdown."""
    done = here("explain", "server.port")
    assert (done.returncode, done.stdout, done.stderr) == (0, PORT, "")


def test_the_page_on_errors_shows_what_is_printed(here: Here) -> None:
    """The example on the page of errors is exactly what the command prints."""
    page = (DOCS / "reference/errors.md").read_text("utf-8")
    assert f"$ toolrelay explain model_not_found\n{here('explain', 'model_not_found').stdout}" in page


def test_everything_in_the_reference_is_explained() -> None:
    """Each code, setting and metric has a text; a code of both requests and tools has both texts."""
    for name in (*ERRORS, *TOOL_ERRORS, *(one.name for one in settings()), *(one.name for one in FAMILIES)):
        assert len(explain(name)) > len(name) + 20
    both = sorted(ERRORS.keys() & TOOL_ERRORS.keys())
    assert all("HTTP" in explain(name) and "tool call" in explain(name) for name in both)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("upstreams.mine.base_url", "upstreams.*.base_url (setting)"),
        ("policy.arguments.pay__send.amount", "policy.arguments (setting)"),
        ("[policy]", "[policy] (table of settings)"),
        ("X-Toolrelay-Tools", "x-toolrelay-tools (request header)"),
        ("404", "no code (HTTP 404, invalid_request_error)"),
    ],
)
def test_a_name_is_found_as_people_write_it(name: str, first: str) -> None:
    """``explain`` finds a setting with a chosen name or a path in its value, a table, header or status."""
    assert explain(name).splitlines()[0] == first


def test_a_name_that_is_not_known_is_refused(here: Here) -> None:
    """For an unknown name, the error suggests a similar one."""
    done = here("explain", "sever.port")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        "toolrelay: sever.port: there is no error code, setting, header or metric of this name. "
        "Did you mean server.port?"
    ]


def test_a_fault_names_its_explanation(here: Here) -> None:
    """The last line of a failed command is the ``explain`` command for its first faulty setting."""
    env = {"TOOLRELAY_SERVER__PORT": "x", "OPENAI_API_KEY": "sk-test"}
    for command in (["serve"], ["check"], ["tools", "list"]):
        assert here(*command, env=env).stderr.splitlines()[-1] == f"{HINT}server.port"


def test_what_has_no_explanation_gets_no_hint() -> None:
    """Options and files get no hint; the hint is about the first fault that ``explain`` knows."""
    assert hint(["--write: works only for an upstream", "my_tools.py: cannot be read"]) == ""
    assert hint(["--write: no", "server.port: got 1"]).endswith("explain server.port")
    assert hint(["the upstream is away"], ["upstream_unreachable"]).endswith("explain upstream_unreachable")
