"""What a client is told of a run that failed."""

import orjson
import structlog

from proxy.errors import NotOnRecord, ServerStopping, UpstreamError, WireError
from proxy.relay.run.job import Job, State
from proxy.relay.run.model_turn import TurnRejected

__all__ = ["tell_failure"]


async def tell_failure(
    job: Job,
    state: State,
    fault: UpstreamError | WireError | TurnRejected | ServerStopping | NotOnRecord,
) -> None:
    """Tell the client: with a status while nothing has been sent, inside the stream after that."""
    client = state.client
    message = str(fault)
    code = getattr(fault, "code", "upstream_malformed")
    kind = getattr(fault, "type", "upstream_error")
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.relay")
    log.warning("run_failed", run_id=job.run_id, error_code=code, turn=state.run.turn.number)
    try:
        if client.started:
            # Some clients show the message alone, and no header.
            said = f"{message} ({job.run_id})"
            await client.write(state.writer.fail(said, type=kind, code=code))
        else:
            body = orjson.dumps(job.wire.dialect.errors.body(message, type=kind, code=code))
            headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
            headers += getattr(fault, "headers", ())
            if state.effects:
                # An SDK that repeats the request would repeat the effect (rule E3).
                headers.append(("x-should-retry", "false"))
            status = getattr(fault, "status", 502)
            client.start(status if status >= 400 else 502, headers)
            await client.write(body)
        client.finish()
    except ConnectionError:
        return
