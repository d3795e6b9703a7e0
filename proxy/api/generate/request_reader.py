"""The body of a request: read completely and checked against its caller's rights, or streamed on as it
arrives."""

from collections.abc import AsyncIterator, Callable

from proxy.api.context import Context
from proxy.relay.body import Body
from proxy.relay.memory.commit_waiter import CommitWaiter
from proxy.rights.callers import Rights
from proxy.server.auth.body_rights import check_references, check_rights
from proxy.server.auth.principals import Principal, Principals
from proxy.server.messages.azure_paths import name_deployment
from proxy.server.messages.body import BodyBounds, read_body, received_body, stream_body
from proxy.server.messages.forms import Form
from proxy.server.messages.json_bodies import JsonBodies
from proxy.store.base import Store
from proxy.wires.registry.requests import continued_by, conversation_of


class RequestReader:
    """The reader of request bodies, within the operator's limits."""

    def __init__(
        self, bounds: BodyBounds, principals: Principals, store: Store, commits: CommitWaiter
    ) -> None:
        self._bounds = bounds
        self._principals = principals
        self._store = store
        self._commits = commits
        self._bodies = JsonBodies(bounds.max_json_values)

    async def read(self, context: Context) -> Body:
        """Return the JSON body; if the path names a deployment, the body names it as its model.

        Raises :class:`~proxy.base.errors.RequestError` as :func:`~proxy.server.messages.body.read_body` and
        :func:`~proxy.json.splice.load_strict` do.
        """
        request, caller, deployment = context.request, context.caller, context.target.deployment
        raw = received_body(request, self._bounds.max_body_bytes)
        if raw is None:
            raw = await read_body(request, self._bounds.max_body_bytes, self._bounds.body_timeout_s)
        payload = self._bodies.load_now(raw)
        if payload is None:
            payload = await self._bodies.load(raw, caller.counted_as, caller.parent_counted_as)
        return Body(*name_deployment(raw, payload, deployment)) if deployment else Body(raw, payload)

    def principal(self, context: Context, body: Body | None) -> Principal:
        """Return who asks; without a body, only as far as the headers tell."""
        return self._principals.of(context.request, context.caller, body.payload if body is not None else {})

    async def check_rights(self, context: Context, body: Body, principal: Principal) -> None:
        """Refuse a body that asks for more than the caller's key covers.

        Raises :class:`RequestError` (400, 404), and :class:`StoreError` if the
        owner of a response cannot be looked up.
        """
        rights, permits = context.caller.rights, context.permissions.router.permits
        refers = context.target.endpoint.refers and not _is_local(context, body, principal)
        await self.check_rights_of(rights, permits, body, principal.name, refers=refers)

    async def check_rights_of(
        self, rights: Rights, permits: Callable[[str], bool], body: Body, caller: str, *, refers: bool
    ) -> None:
        """Check a body without its HTTP; ``refers`` says that ids in it may belong to other callers."""
        if rights.isolated:
            check_rights(rights, permits, body.payload)
            if refers:
                await check_references(rights, body.payload, caller, self._store, self._commits)

    @property
    def most_held(self) -> int:
        """The most bytes of a body that are held in memory."""
        return self._bounds.max_body_bytes

    def form(self, context: Context, *, strict: bool) -> Form:
        """Return the multipart form of a request; see :class:`~proxy.server.messages.forms.Form`."""
        return Form(context.request.headers.get("Content-Type", ""), self.upload(context), strict=strict)

    def upload(self, context: Context) -> AsyncIterator[bytes]:
        """Stream the body on as it arrives."""
        bounds = self._bounds
        return stream_body(
            context.request, bounds.max_upload_bytes, bounds.body_timeout_s, bounds.max_body_bytes
        )


def _is_local(context: Context, body: Body, principal: Principal) -> bool:
    """Return whether a message continues only from a response that its own connection remembers."""
    message, previous = context.request.websocket, continued_by(body.payload)
    if message is None or previous is None or conversation_of(body.payload) is not None:
        return False
    return isinstance(previous.value, str) and message.local.find(previous.value, principal.name) is not None
