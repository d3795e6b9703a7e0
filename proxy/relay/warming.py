"""Answer a request that only prepares: a WebSocket client sends what it has before its user's turn.

Source: OpenAI's guide "WebSocket mode", ``generate: false``. The model is not asked. The client gets a
response without output, and continues from its id.
"""

from proxy.base.conversation import Message
from proxy.base.events import FinishReason, Frame, TurnFinished, TurnStarted, Usage, UsageReported
from proxy.relay.ask import Ask
from proxy.relay.base import ClientStream
from proxy.relay.memory.hidden.history import History
from proxy.relay.memory.hidden.turns import LastTurn, unchanged
from proxy.relay.memory.local import LocalResponses
from proxy.relay.typed_tools import with_functions
from proxy.wires.client_port import ClientView


async def warm_up(ask: Ask, local: LocalResponses, history: History, client: ClientStream) -> None:
    """Answer with a response that has no output, and keep its input in ``local``.

    Raise :class:`~proxy.base.errors.RequestError` if the request continues a response that the proxy does not
    know, or if its dialect's responses have no ids. Raise :class:`StoreError` if the record
    cannot be read.
    """
    wire, sent = ask.wire, ask.body.payload
    ask, functions = with_functions(ask, ask.access.routes[0])
    typed = None if functions is None else functions.answer
    caller = ask.identity.caller
    request = wire.parse(ask.body.payload)
    editor = wire.editor(ask.body.raw, request, "stateless", caller=caller)
    restored = await history.restore(request, editor, caller, is_person=ask.identity.is_person, local=local)
    restored.check_found(request)
    encoder = wire.encoder(request)
    writer = wire.writer(request, ClientView(request.model, lambda name: False))
    nothing = (TurnStarted("", request.model), UsageReported(Usage(0, 0, 0)), TurnFinished(FinishReason.STOP))
    frames = [*encoder.encode(Frame(b"", events=nothing)), *encoder.close()]
    said = b"".join(map(writer.write, frames)) + writer.turn_ended("final") + writer.finish(FinishReason.STOP)
    turn = LastTurn(
        run_id=ask.identity.run_id,
        caller=caller,
        wire=wire.dialect.name,
        message=wire.write_turn(Message("assistant", ())),
        mask=unchanged,
        untrusted=restored.untrusted,
        upstream=restored.upstream,
        with_tools=wire.items_with_tools(sent, restored.with_tools),
        input_items=None if typed is None else typed.input_items(),
    )
    resource = writer.result() or {}
    if typed is not None:
        said, resource = typed.stream(said), typed.resource(resource)
    history.keep(request, editor, turn, resource, local=local)
    client.start(200, [("Content-Type", wire.dialect.framing.content_type)])
    await client.write(said)
    client.finish()
