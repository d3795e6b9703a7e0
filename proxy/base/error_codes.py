"""Every error code of a response, as data: its meaning and its remedy.

``docgen`` makes docs/reference/errors.md from it, and the proxy the pages below ``/docs/errors``. Texts are
Markdown; their links are relative to ``docs/``.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

ERROR_DOCS: Final = "/docs/errors"
"""The path of the page that lists all codes; the page of one code is below it."""

_REQUEST: Final = "invalid_request_error"
_SERVER: Final = "server_error"
_UPSTREAM: Final = "upstream_error"
_LIMIT: Final = "rate_limit_error"
_SIGN_IN: Final = "authentication_error"


class ErrorCode(Struct, frozen=True):
    """One kind of error.

    ``name`` is the code, or the HTTP status if ``error.code`` is null. ``statuses`` are the possible HTTP
    statuses, and ``type`` is ``error.type`` in OpenAI's shape. Both are empty for an error that no HTTP
    response has. ``when`` says what happened, and ``remedy`` what to do; it is empty if nothing can be
    done.
    """

    name: str
    statuses: tuple[int, ...]
    type: str
    when: str
    remedy: str = ""

    @property
    def code(self) -> str | None:
        """The value of ``error.code``."""
        return None if self.name.isdecimal() else self.name


_ALL: Final = (
    # The request itself.
    ErrorCode(
        "400", (400,), _REQUEST,
        "A field of the request is missing, has the wrong type, or contradicts another. `error.param` names"
        " it (`model`, `n`, `messages[2].tool_call_id`, `x-toolrelay-tools`).",
        "Correct the field that the message names.",
    ),
    ErrorCode(
        "refused_by_hook", (403,), "permission_error",
        "A [hook](how-to/hooks.md) of this server refused the request, or hooks check requests here and"
        " cannot read those to this path.",
        "Do what the message says, or ask the operator.",
    ),
    ErrorCode(
        "hook_failed", (503,), _SERVER,
        "A [hook](how-to/hooks.md) of this server failed or took too long, and `hooks.on_error` is `refuse`.",
        "Try again later. The operator finds `hook_failed` in the log.",
    ),
    ErrorCode(
        "invalid_json", (400,), _REQUEST,
        "The body is not JSON, is not a JSON object, or is nested too deeply.",
        "Send one JSON object, encoded as UTF-8.",
    ),
    ErrorCode(
        "duplicate_key", (400,), _REQUEST,
        "An object in the body has the same key twice, so two readers could understand it differently.",
        "Send each key once.",
    ),
    ErrorCode(
        "too_many_entries", (400,), _REQUEST,
        "The body has more than `server.max_json_values` values, 20,000 messages, or 2,000 tools.",
        "Send a shorter conversation or fewer tools, or raise `server.max_json_values`.",
    ),
    ErrorCode(
        "not_translatable", (400,), _REQUEST,
        "The upstream speaks another dialect than the client, and that dialect cannot express a field of "
        "the request. `error.param` names the field.",
        "Leave the field out, or use a model whose upstream speaks the client's dialect "
        "([translation](concepts/translation.md)).",
    ),
    ErrorCode(
        "thread_unsupported_request", (400,), _REQUEST,
        "A Messages request asks the upstream to keep the conversation (`thread`). The upstream speaks "
        "another dialect, is not known to keep any, or would not get what belongs to server tools.",
        "Send the whole conversation without `thread`. The helpers of Anthropic's packages do so by "
        "themselves.",
    ),
    ErrorCode(
        "model_conflict", (400,), _REQUEST,
        "A path of Azure's names one model (`/openai/deployments/NAME/…`), and the body names another.",
        "Name the same model in both places, or leave it out of the body.",
    ),
    ErrorCode(
        "unknown_query_parameter", (400,), _REQUEST,
        "An inference request has a query parameter that `upstreams.*.forward_query` does not list.",
        "Send it in the body, or list it in `upstreams.*.forward_query`.",
    ),
    ErrorCode(
        "invalid_encrypted_content", (400,), _REQUEST,
        "A compaction item of the proxy was changed, or the proxy made it for another caller, or another "
        "proxy made it.",
        "Send the messages that it summarizes, or compact them again.",
    ),
    ErrorCode(
        "previous_response_not_found", (400, 404), _REQUEST,
        "404: with client keys, the response of `previous_response_id` belongs to another caller or does "
        "not exist. 400: the upstream speaks another dialect, and the proxy has no record of the response.",
        "Send the whole conversation instead of `previous_response_id`.",
    ),
    ErrorCode(
        "item_not_found", (404,), _REQUEST,
        "An `item_reference` names an item that is not in a response that the proxy stored for this caller."
        " The upstream speaks another dialect than Responses, so it cannot know the item either.",
        "Send the item itself.",
    ),
    ErrorCode(
        "invalid_path", (400,), _REQUEST,
        "The path contains `..`, `//`, or an encoded slash.",
        "Use the path as the API's reference writes it.",
    ),
    ErrorCode(
        "key_in_address", (400,), _REQUEST,
        "A client key or token is part of the URL: of the path, the query, or another part, in any "
        "encoding. Logs keep URLs.",
        "Send the key as `Authorization: Bearer`. Revoke it with `toolrelay keys revoke`, and create "
        "another.",
    ),
    ErrorCode(
        "invalid_http", (400,), _REQUEST,
        "The request is not valid HTTP/1.1, or has more than 128 headers.",
        "Check the client, and every proxy between it and toolrelay.",
    ),
    # Who may call.
    ErrorCode(
        "role_not_allowed", (403,), _REQUEST,
        "The token is valid, but has none of the roles in `auth.jwt.roles`.",
        "Get one of these roles from your OpenID provider, or ask the operator for a table of yours in "
        "`auth.jwt.roles`.",
    ),
    ErrorCode(
        "invalid_api_key", (401,), _REQUEST,
        "The request has no valid client key. Missing, malformed, unknown, expired, and revoked keys get "
        "the same answer. Before the first client key exists, the start token is missing or wrong. With "
        "`auth.mode = \"forward\"`, `Authorization` is missing or malformed, or holds a key of the proxy's "
        "own. Below `/admin`, the key is not an administrator's.",
        "Send a valid key; `toolrelay keys create NAME` creates one. Or send the start token, which `serve`"
        " prints. Or start the server with `--open`.",
    ),
    ErrorCode(
        "endpoint_not_allowed", (403,), _REQUEST,
        "This client key may not call this path.",
        "Create a key whose `endpoints` name the path ([keys](how-to/keys.md)).",
    ),
    ErrorCode(
        "model_not_readable", (400, 403), _REQUEST,
        "This client key is limited to some models, and the proxy cannot read the model from this kind of "
        "request, or from the field in `param`: a preset, a stored prompt or a tool that "
        "leaves the choice of a model to the provider, or a form that names its model twice or behind its "
        "file. Or a large form names its model behind its file, and the model chooses the upstream.",
        "Name a model that the key may use, in a form before the file, or leave the field out. Otherwise use "
        "a key without `models`.",
    ),
    ErrorCode(
        "minting_not_allowed", (403,), _REQUEST,
        "The key may not create tokens, or it is a token itself.",
        "Use a key that was created with `--mint`.",
    ),
    ErrorCode(
        "host_not_allowed", (403,), _REQUEST,
        "The `Host` header is not a name that the proxy knows as its own.",
        "Call the proxy by its address, or list the name in `server.allowed_hosts`.",
    ),
    ErrorCode(
        "origin_not_allowed", (403,), _REQUEST,
        "A web page sent the request, and `server.cors_origins` does not list the page's origin. Or the "
        "server is open, and a page of another site could have sent this `GET`.",
        "List the origin in `server.cors_origins` ([from a browser](how-to/browser.md)), or call from a "
        "program.",
    ),
    ErrorCode(
        "http_version_not_allowed", (403,), _REQUEST,
        "The request is HTTP/1.0, and the server is open or `auth.mode` is `forward`.",
        "Call with HTTP/1.1. Behind a reverse proxy, serve without `--open`, or name the reverse proxy's "
        "address in `server.trusted_proxies`.",
    ),
    ErrorCode(
        "forwarded_not_allowed", (403,), _REQUEST,
        "The request came through a proxy, and the server is open or `auth.mode` is `forward`.",
        "Name that proxy's address in `server.trusted_proxies`, or serve without `--open`.",
    ),
    # Paths, models and stored objects.
    ErrorCode(
        "not_found", (404,), _REQUEST,
        "Nothing is served at this path. Below `/admin`: no run has this id. The API is below `/v1`.",
        "Check the client's base URL: it ends in `/v1` for OpenAI's clients.",
    ),
    ErrorCode(
        "404", (404,), _REQUEST,
        "With client keys: the response or conversation belongs to another caller, or does not exist.",
        "Use the id of a response that this key created.",
    ),
    ErrorCode(
        "model_not_found", (404,), _REQUEST,
        "No upstream serves this model, or this key may not use it.",
        "Ask for a model of the proxy's list of models, or add the model to `upstreams.*.models`.",
    ),
    ErrorCode(
        "model_not_priced", (400,), _REQUEST,
        "`limits.cost` limits this caller, and the model has no price.",
        "Ask for another model, or add its price to `[prices]` ([limits](how-to/limits.md)).",
    ),
    ErrorCode(
        "no_fixture", (404,), _REQUEST,
        "The demo, or an upstream that replays fixtures, has no recording of this request. The message "
        "names the nearest one.",
        "Send the request that was recorded, or record this one with `toolrelay record`.",
    ),
    ErrorCode(
        "response_restarted", (400,), _REQUEST,
        "Another server process runs a [background response](background.md#when-a-process-ends) from the "
        "start, so the events that the client has are void. This error is also possible in a stream.",
        "Discard the events, and stream the response again without `starting_after`.",
    ),
    ErrorCode(
        "run_not_resumable", (400, 404), _REQUEST,
        "404: no log of the run that `x-toolrelay-resume` names can be read here. 400: the run belongs to "
        "another request.",
        "Send the request again with `x-toolrelay-resume: on`.",
    ),
    ErrorCode(
        "405", (405,), _REQUEST,
        "The path does not support this HTTP method.",
        "Use a method that the `Allow` header or the API's reference names.",
    ),
    ErrorCode(
        "method_not_allowed", (405,), _REQUEST,
        "The request to `/mcp` is not a `POST`.",
        "Send each message as a `POST`.",
    ),
    ErrorCode(
        "not_acceptable", (406,), _REQUEST,
        "The `Accept` header of a request to `/mcp` names neither JSON nor an event stream.",
        "Send an `Accept` header with `application/json` and the media type of event streams.",
    ),
    # Sizes, formats and rates.
    ErrorCode(
        "request_timeout", (408,), _REQUEST,
        "The head or the body took longer than `server.header_timeout_s` or `server.body_timeout_s`.",
        "Send faster, or raise the setting.",
    ),
    ErrorCode(
        "request_too_large", (413,), _REQUEST,
        "The body is larger than `server.max_body_bytes`, or an upload than `server.max_upload_bytes`. Or "
        "the stored items that `input` names have more than 64 MiB together.",
        "Send less, or raise the setting. Name fewer items.",
    ),
    ErrorCode("414", (414,), _REQUEST, "The URL is longer than 8192 characters.", "Send a shorter URL."),
    ErrorCode(
        "content_type_not_allowed", (415,), _REQUEST,
        "The server is open or `auth.mode` is `forward`, and the body is not `application/json`. Or the "
        "body is JSON in another character set than UTF-8.",
        "Send `Content-Type: application/json` without `charset`. For files, see [from a "
        "browser](how-to/browser.md).",
    ),
    ErrorCode(
        "unsupported_content_encoding", (415,), _REQUEST,
        "The body of the request is compressed.",
        "Send the body without `Content-Encoding`.",
    ),
    ErrorCode(
        "expectation_failed", (417,), _REQUEST,
        "The `Expect` header says something other than `100-continue`.",
        "Leave the header out.",
    ),
    ErrorCode(
        "headers_too_large", (431,), _REQUEST,
        "The request line or one header is longer than 16 KiB, or all of them together are too long.",
        "Send shorter headers.",
    ),
    ErrorCode(
        "rate_limit_exceeded", (429,), _LIMIT,
        "The caller has reached one of `limits`; the message names it. This 429 is the proxy's, not the "
        "provider's ([how to tell](how-to/limits.md#our-429-and-the-providers)).",
        "Wait as long as `retry-after` says, or raise the limit.",
    ),
    # WebSockets.
    ErrorCode(
        "426", (426,), _REQUEST,
        "The client asked for a WebSocket, and this path has none (only the Responses API has), or "
        "`limits.websockets` is 0.",
        "Use HTTP.",
    ),
    ErrorCode(
        "invalid_handshake", (400,), _REQUEST,
        "The WebSocket handshake is not valid.",
        "Use a WebSocket client: it sends `GET`, `Sec-WebSocket-Key`, and `Sec-WebSocket-Version: 13`.",
    ),
    ErrorCode(
        "too_many_websockets", (429,), _LIMIT,
        "`limits.websockets` or `limits.websockets_per_caller` is reached.",
        "Close a connection, or use HTTP.",
    ),
    ErrorCode(
        "unsupported_event", (400,), _REQUEST,
        "A WebSocket message is not a `response.create` event.",
        "Send `response.create`.",
    ),
    ErrorCode(
        "invalid_stream_id", (400,), _REQUEST,
        "The `stream_id` of a WebSocket message is not 1 to 256 letters, digits, `_`, `.` or `-`.",
        "Choose another `stream_id`.",
    ),
    ErrorCode(
        "too_many_messages", (429,), _LIMIT,
        "More than 8 WebSocket messages, or more than `server.max_body_bytes` of them, wait for their "
        "answers.",
        "Wait for the answers before you send more.",
    ),
    ErrorCode(
        "websocket_connection_limit_reached", (400,), _REQUEST,
        "The WebSocket connection is older than `server.websocket_lifetime_s`.",
        "Open a new connection.",
    ),
    # The upstream.
    ErrorCode(
        "upstream_error", (502,), _UPSTREAM,
        "The upstream refused a later turn of a run, or its answer is not valid. The status may be the "
        "upstream's own.",
        "Read the message: it quotes the upstream.",
    ),
    ErrorCode(
        "upstream_unreachable", (502,), _UPSTREAM,
        "The proxy could not connect to the upstream, or the connection closed before the first byte.",
        "Check `upstreams.*.base_url`; `toolrelay check` tries to connect.",
    ),
    ErrorCode(
        "upstream_timeout", (504,), _UPSTREAM,
        "The upstream did not connect, answer, or continue in time.",
        "Raise the `*_timeout_s` setting of the upstream that the message names.",
    ),
    ErrorCode(
        "upstream_broken", (502,), _UPSTREAM,
        "The upstream's response began and then broke off.",
        "Try again.",
    ),
    ErrorCode(
        "upstream_malformed", (502,), _UPSTREAM,
        "The upstream's response is not what its dialect allows.",
        "Examine the upstream with `toolrelay doctor` ([check a model server](doctor.md)).",
    ),
    ErrorCode(
        "upstream_too_large", (502,), _UPSTREAM,
        "Server tools are offered, and one event or reply of the upstream has more than 600,000 JSON "
        "values.",
        "Ask the upstream for less, for example for fewer `top_logprobs`.",
    ),
    # The server.
    ErrorCode(
        "internal_error", (500,), _SERVER,
        "The proxy has a defect. Its log has the cause, with the request id.",
        "Report it, with the lines of the log.",
    ),
    ErrorCode(
        "server_error", (), "",
        "A [background response](background.md) failed in the proxy. This code is in the `error` of the "
        "response, and the message says why.",
        "Send the request again.",
    ),
    ErrorCode(
        "no_client_keys", (503,), _SERVER,
        "Clients need a key, and no key is valid any more.",
        "Create one: `toolrelay keys create NAME`.",
    ),
    ErrorCode(
        "issuer_unavailable", (503,), _SERVER,
        "With `auth.mode = \"jwt\"`, the provider of the tokens has not shown its keys, now or within a day.",
        "Read the log line `issuer_keys_unread`, and correct `auth.jwt` or bring the provider back. Client "
        "keys still work.",
    ),
    ErrorCode(
        "keys_unavailable", (503,), _SERVER,
        "The record has not answered for ten seconds, so the proxy cannot tell which keys are revoked.",
        "Read the log, and bring the database back. Keys of the configuration file still work.",
    ),
    ErrorCode(
        "limits_unavailable", (503,), _SERVER,
        "Redis does not answer, and `limits.on_error` is `closed`.",
        'Try again. The operator brings Redis back, or sets `limits.on_error = "open"`.',
    ),
    ErrorCode(
        "store_unavailable", (503,), _SERVER,
        "The record does not answer, and only the record knows what the request asks for. Or the proxy "
        "could not store a background response, or a turn that waits for the client's results; then this "
        "error is also possible in a stream.",
        "Try again. The operator reads the log.",
    ),
    ErrorCode(
        "draining", (503,), _SERVER,
        "The server is stopping.",
        "Send the request to another instance, or try again.",
    ),
    ErrorCode(
        "too_many_connections", (503,), _SERVER,
        "The server process has no file descriptor left.",
        "Try again. The operator raises the limit of open files (`ulimit -n`, `LimitNOFILE`).",
    ),
    ErrorCode(
        "too_many_pending_requests", (503,), _SERVER,
        "Too many clients have started a request and not sent its whole head.",
        "Try again. The operator can raise `server.max_pending_heads`.",
    ),
    ErrorCode(
        "client_gone", (499,), "",
        "The client closed the connection. Only the log and the record show this code.",
    ),
    # Approvals.
    ErrorCode(
        "approval_not_found", (404,), _REQUEST,
        "No approval has this id, or it belongs to another caller.",
        "List what waits: `toolrelay approvals list`.",
    ),
    ErrorCode(
        "approval_not_allowed", (403,), _REQUEST,
        "This key may not decide about this approval. The message says who may.",
        "Ask an approver ([approvals](approvals.md)).",
    ),
    ErrorCode(
        "approval_changed", (400,), _REQUEST,
        "The client changed the question that it answers, or answered it with yes and with no. Nothing was "
        "decided.",
        "Send the question back as the proxy showed it, with one answer.",
    ),
    ErrorCode(
        "approval_decided", (409,), _REQUEST,
        "The approval was decided before, has expired, or the tool's definition has changed since.",
        "Read it: `toolrelay approvals show ID`.",
    ),
    ErrorCode(
        "too_many_grants", (409,), _REQUEST,
        "The caller has 50 active grants, so that no further one was given, and nothing was decided.",
        "Revoke a grant ([grants](approvals.md#grants)), or approve without one.",
    ),
    ErrorCode(
        "grant_not_found", (404,), _REQUEST,
        "No grant has this id, or it is one of a tool that this key does not approve.",
        "List the grants: `toolrelay approvals grants`.",
    ),
    # The web UI.
    ErrorCode(
        "not_signed_in", (401,), _SIGN_IN,
        "A request below `/ui/api` has no session, or its session has ended: by time, by signing out, or "
        "because its key was revoked.",
        "Sign in again: `toolrelay ui` prints a link.",
    ),
    ErrorCode(
        "sign_in_failed", (400, 401, 403, 503), _SIGN_IN,
        "The link was used before or is too old, or the key is not an administrator's. All get the same "
        "answer. After a login at an OpenID provider, the page says why it failed.",
        "Run `toolrelay ui` again, or use another key; for a login read the log line `ui_login_failed`.",
    ),
    ErrorCode(
        "too_many_sign_ins", (429,), _LIMIT,
        "The sign-in failed, and so did five others from this address within a minute.",
        "Use a key or a link that is right; it signs in at once.",
    ),
    ErrorCode(
        "too_many_listeners", (429,), _LIMIT,
        "Four pages of this session, eight of its user, twelve of all approvers or twenty of the process "
        "already listen for live events.",
        "Close a page.",
    ),
    ErrorCode(
        "insecure_sign_in", (403,), _REQUEST,
        "Somebody tried to sign in to the web UI from another machine over plain HTTP.",
        "Use HTTPS, or an SSH tunnel (`ssh -L`).",
    ),
    ErrorCode(
        "csrf_refused", (403,), _REQUEST,
        "A page of another origin sent a request below `/ui/api`, or a write lacks the header "
        "`x-toolrelay-ui: 1`.",
        "Use the proxy's own pages, or `/admin` with a key.",
    ),
    ErrorCode(
        "not_allowed", (403,), "permission_error",
        "An approver's session asked for something other than approvals.",
        "Sign in with an administrator's key.",
    ),
    ErrorCode(
        "capture_off", (403,), _REQUEST,
        "The configuration does not allow bytes to be captured. The message names the setting.",
        "Change the setting.",
    ),
    ErrorCode(
        "cannot_save_fixture", (409,), _REQUEST,
        "The bytes of the run were not captured, have expired, or are over 1 MiB.",
        "Capture the next run on the Wire page of the UI, or use `toolrelay record`.",
    ),
    ErrorCode(
        "cannot_replay", (409,), _REQUEST,
        "The record has too little of the run to replay it. The message says what is missing.",
        "Keep more of the next run with `store.content`.",
    ),
)  # fmt: skip

ERRORS: Final[Mapping[str, ErrorCode]] = MappingProxyType({error.name: error for error in _ALL})
"""The errors of HTTP responses and of streams, by their names."""


def docs_path(code: str | None, status: int) -> str:
    """Return the path of the page about an error; empty for a code that is not the proxy's.

    An error without a code has the page of its status if there is one, else the page of all codes.
    """
    name = str(status) if code is None else code
    if name in ERRORS:
        return f"{ERROR_DOCS}/{name}"
    return ERROR_DOCS if code is None else ""


def help_link(address: str) -> tuple[str, str]:
    """Return the response header that links to the page of an error (RFC 8288).

    ``address`` is the path or the whole URL of the page.
    """
    return "Link", f'<{address}>; rel="help"'
