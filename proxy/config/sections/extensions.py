"""The settings of what operators add: hooks, and plugins that other packages bring."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from proxy.config.types import Seconds, Section, Strings, check_unique

Names = Annotated[Strings, AfterValidator(check_unique)]


class HooksConfig(Section):
    """Your own code that sees requests, tool calls and results, and may change or refuse them."""

    modules: Names = Field(
        default=(),
        description="Python files (masking.py) or importable modules with a hook, or a list of hooks, named "
        "hooks. They run in this order, those of plugins.hooks after them.",
    )
    timeout_s: Seconds = Field(default=2, description="Time that each call of a hook may take, in seconds.")
    on_error: Literal["refuse", "ignore"] = Field(
        default="refuse",
        description="What happens if a hook fails or takes too long. refuse: the request or the call ends. "
        "ignore: it goes on as if there were no such hook.",
    )
    unread: Literal["refuse", "allow"] = Field(
        default="refuse",
        description="What happens, if there is a hook for requests, to those whose texts no hook can see: "
        "embeddings, images, audio, files, batches. refuse or allow.",
    )


class PluginsConfig(Section):
    """Plugins of installed packages, by the names of their entry points. Nothing else of them is loaded."""

    tools: Names = Field(default=(), description="Entry points of the group toolrelay.tools to load.")
    hooks: Names = Field(default=(), description="Entry points of the group toolrelay.hooks to load.")
    dialects: Names = Field(
        default=(),
        description="Entry points of the group toolrelay.dialects to load: dialects that clients may speak.",
    )
