"""The blocks of programs in an answer, and its container; both writers of the dialect use it."""

from collections.abc import Sequence
from typing import Any

from proxy.base.events import ToolCall
from proxy.wires.anthropic.blocks import Block
from proxy.wires.anthropic.hosted.code import CodeForm, result_block
from proxy.wires.anthropic.hosted.programs import ContainerInUse, Containers, call_block
from proxy.wires.client_port import ClientCall, ClientView
from proxy.wires.hosted.forms import CallForm


class ProgramBlocks:
    """The blocks of programs in one answer.

    ``opening`` are those that come before the model's: the results of programs that an earlier answer showed
    as running.
    """

    def __init__(self, view: ClientView, container: ContainerInUse | None) -> None:
        self.container = container or ContainerInUse(Containers([bytes(32)], view.caller))
        self.opening: list[Block] = [result_block(one.part_id, one.result) for one in view.ended]
        self._forms = view.shown.forms
        self._shows = bool(view.ended)

    def begun(self, form: CallForm, call: ToolCall, arguments: Any) -> Block | None:
        """Return the block of a call that begins, of a program or of any other tool."""
        self._shows = self._shows or isinstance(form, CodeForm)
        return form.begun(call, arguments)

    def called(self, name: str, calls: Sequence[ClientCall]) -> list[Block]:
        """Return the blocks of calls that programs make of the client."""
        form, self._shows = self._forms[name], True
        return [call_block(form.caller, call) for call in calls if isinstance(form, CodeForm)]

    def ending(self) -> dict[str, Any]:
        """Return the member that names the container, if a program has run."""
        return {"container": self.container.shown()} if self._shows else {}
