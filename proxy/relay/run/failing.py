"""The client's answer if a run fails."""

import orjson
import structlog

from proxy.base.error_codes import docs_path, help_link
from proxy.base.errors import RunFault
from proxy.relay.run.job import Job
from proxy.relay.run.state import State

_ALWAYS_SENT = "x-request-id"
"""The request id header that every response has."""


async def tell_failure(job: Job, state: State, fault: RunFault) -> None:
    """Tell the client about the failure: by a status if nothing was sent yet, else inside the stream.

    Does nothing if the client has gone.
    """
    client = state.output.client
    message = state.outcome.failure = str(fault)
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.relay")
    log.warning("run_failed", run_id=job.identity.run_id, error_code=fault.code, turn=state.run.turn.number)
    try:
        if client.started:
            # Some clients show only the message and no header, so the message names the run.
            said = f"{message} ({job.identity.run_id})"
            await state.output.send(
                state.output.writer.fail(said, type=fault.type, code=fault.code), last=True
            )
        else:
            errors, identity = job.client.port.dialect.errors, job.identity
            status = fault.status if fault.status >= 400 else 502
            page = docs_path(fault.code, status)
            error = errors.body(
                message,
                type=fault.type,
                code=fault.code,
                request_id=identity.request_id,
                doc_url=client.origin + page if client.origin and page else "",
            )
            body = orjson.dumps(error)
            headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
            if page:
                headers.append(help_link(client.origin + page))
            if errors.id_header != _ALWAYS_SENT:
                headers.append((errors.id_header, identity.request_id))
            headers += fault.headers
            if state.tools.effects:
                # If an SDK repeated the request, it would repeat the effect (rule E3).
                headers.append(("x-should-retry", "false"))
            client.start(status, headers)
            # The last bytes, so that a stream that holds some back sends them, too.
            if (wait := client.push(body, last=True)) is not None:
                await wait
        client.finish()
    except ConnectionError:
        return
