"""The settings of the web UI."""

from typing import Literal

from pydantic import Field

from proxy.config.types import LimitList, Patterns, Section, Strings


class UiConfig(Section):
    """The web UI at /ui, for administrators."""

    enabled: bool = Field(
        default=True,
        description='Serve /ui. With auth.mode = "open", only on a loopback address.',
    )
    session_s: int = Field(
        default=28800,
        ge=60,
        le=604800,
        description="Seconds after which a sign-in ends; without requests it ends after an hour.",
    )
    capture: Literal["asked", "off"] = Field(
        default="asked",
        description="asked: an administrator may ask to capture the bytes of the next requests, and until "
        "then nothing is captured. off: nothing can be captured.",
    )
    playground_models: Strings = Field(
        default=("*",), description="Models that the playground may use: names or patterns. Empty: none."
    )
    playground_tools: Patterns = Field(
        default=("*",),
        description="Tools that the playground may use, out of those that policy.allow names: names or "
        "patterns.",
    )
    playground_requests: LimitList = Field(
        default=("30/minute",), description="Requests that all users of the playground may make together."
    )
