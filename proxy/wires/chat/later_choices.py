"""Watches the choices after the first, which a turn ignores, so that none calls a server tool unseen."""

from collections.abc import Callable, Collection, Sequence
from typing import Final

from proxy.base.errors import WireError
from proxy.base.events import ToolCallStarted
from proxy.wires.turn.assembler import Fragment, ToolCallAssembler

__all__ = ["LaterChoices"]

_MOST = 128
"""The highest number of choices that any API gives."""


class LaterChoices:
    """A check of all choices but the first for calls of server tools (rule W5).

    With server tools the proxy asks for one choice, but some upstreams return more.  The client gets these
    choices in the upstream's own bytes.  They may contain calls of its own tools.
    """

    REFUSED: Final = (
        "The upstream calls a server tool in a choice after the first, but the proxy runs only calls in the "
        "first. Configure the upstream to return one choice (n = 1)."
    )

    def __init__(self, declared: Collection[str], is_hidden: Callable[[str], bool]) -> None:
        self._declared = declared
        self._is_hidden = is_hidden
        self._choices: dict[str, ToolCallAssembler] = {}
        self.undecided = 0
        """The number of calls that have begun and whose name is not certain yet."""

    def adds_server_call(self, choice: str, fragments: Sequence[Fragment]) -> bool:
        """Take pieces of a choice's calls; return whether one of them is a server tool's."""
        calls = self._choices.get(choice)
        if calls is None:
            if len(self._choices) >= _MOST:
                raise WireError(f"more than {_MOST} choices in one response")
            calls = ToolCallAssembler(self._declared, is_hidden=self._is_hidden)
            self._choices[choice] = calls
        before = calls.undecided
        events = [event for fragment in fragments for event in calls.add(fragment)]
        self.undecided += calls.undecided - before
        return any(isinstance(event, ToolCallStarted) and self._is_hidden(event.name) for event in events)

    def ends_with_server_call(self) -> bool:
        """Return whether a call whose name became certain only at the end of the turn is a server tool's."""
        events = [event for calls in self._choices.values() if calls.undecided for event in calls.finish()]
        self.undecided = 0
        return any(isinstance(event, ToolCallStarted) and self._is_hidden(event.name) for event in events)
