"""The names by which programs call tools."""

from itertools import permutations

from proxy.base.events import ToolDefinition
from proxy.tools.programs.stubs import bindings_of, stubs


def test_a_name_means_the_same_tool_whatever_the_order() -> None:
    """The declarations that a model reads and the names of its program are made from lists in other orders.

    A tool whose name Python allows has that name, also beside others that would get the same.
    """
    tools = [ToolDefinition(name, "", {}) for name in ("m__a-b", "m__a_b", "m__a.b")]
    for ordered in permutations(tools):
        names = {name: bound.tool for name, bound in bindings_of(ordered).items()}
        assert names == {"m__a_b": "m__a_b", "m__a_b_": "m__a-b", "m__a_b__": "m__a.b"}
        assert stubs(ordered) == stubs(tools)
