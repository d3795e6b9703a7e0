"""Requests to models as the operator's hooks leave them."""

import orjson
from msgspec import Struct

from proxy.hooks.chain import HookChain
from proxy.hooks.contract import Request
from proxy.hooks.placeholders import Placeholders
from proxy.json.in_thread import LARGE_BYTES, in_thread
from proxy.relay.body import Body
from proxy.wires.dialect import Dialect
from proxy.wires.turn.conversation_texts import ConversationTexts


class Asker(Struct, frozen=True):
    """Who sends a request: its id, the caller, the client key, and the agent if it is an agent's."""

    request_id: str
    caller: str
    key: str
    agent: str = ""


async def hooked_body(
    hooks: HookChain,
    dialect: Dialect,
    body: Body,
    asker: Asker,
    originals: Placeholders,
    *,
    keeps_model: bool = False,
) -> Body:
    """Return a body as the hooks leave it, the same object if they change nothing; with ``keeps_model`` they
    do not change its model.

    Their placeholders are added to ``originals``. Raise :class:`~proxy.base.errors.RequestError` as
    :meth:`~proxy.hooks.chain.HookChain.before_request` does.
    """
    is_large = len(body.raw) > LARGE_BYTES
    found = (
        await in_thread(ConversationTexts, dialect, body.raw)
        if is_large
        else ConversationTexts(dialect, body.raw)
    )
    model = body.payload.get("model")
    named = model if isinstance(model, str) else ""
    request = Request(
        asker.request_id, asker.caller, asker.key, dialect.name, named, found.texts, asker.agent
    )
    left = await hooks.before_request(request, originals)
    if left is request:
        return body
    raw = found.written(left.texts, "" if keeps_model or left.model == named else left.model)
    return Body(raw, await in_thread(orjson.loads, raw) if is_large else orjson.loads(raw))
