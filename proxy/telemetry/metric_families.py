"""Declare the metrics: their names, meanings, labels and buckets.

If the GenAI semantic conventions of OpenTelemetry have a name for a metric, it is used, in its Prometheus
form. ``gen_ai_client_*`` is about requests of the proxy to upstreams; ``gen_ai_server_*`` is about requests
of clients to the proxy.
"""

from dataclasses import dataclass
from typing import Literal

Labels = tuple[str, ...]

# The buckets that the GenAI conventions prescribe.
_TOKENS = tuple(float(4**power) for power in range(14))
_OPERATION_S = tuple(0.01 * 2**power for power in range(14))
_FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
_HTTP_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_DECIDED_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
_HELD_S = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

_ASKED = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")
_SERVED = ("gen_ai_operation_name", "gen_ai_request_model")


@dataclass(frozen=True, slots=True)
class Family:
    """One metric.

    ``name`` is the name in Prometheus, without the suffixes of a histogram. ``summed`` says how the values
    of several processes are combined.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: Labels = ()
    buckets: tuple[float, ...] = ()
    summed: Literal["sum", "min", "max"] = "sum"


FAMILIES = (
    Family("toolrelay_build_info", "gauge", "Version of toolrelay that runs.", ("version",), summed="max"),
    Family(
        "toolrelay_requests_total",
        "counter",
        "Requests that have ended, by method, class of path and status; 499 if the client left.",
        ("method", "endpoint", "status"),
    ),
    Family(
        "toolrelay_request_duration_seconds",
        "histogram",
        "Time from the head of a request to the end of its response.",
        ("endpoint",),
        _HTTP_S,
    ),
    Family(
        "toolrelay_time_to_first_byte_seconds",
        "histogram",
        "Time from the head of a request to the first byte of a relayed body.",
        ("endpoint",),
        _FIRST_TOKEN_S,
    ),
    Family("toolrelay_open_requests", "gauge", "Requests that are open now."),
    Family("toolrelay_open_streams", "gauge", "Open requests that count against limits.concurrent_streams."),
    Family("toolrelay_rate_limit_hits_total", "counter", "Requests that a limit refused.", ("limit",)),
    Family("toolrelay_runs_total", "counter", "Runs that have ended, by status.", ("status",)),
    Family(
        "toolrelay_background_orphans_total",
        "counter",
        "Background responses whose process died or was stopped, by what another process did: taken_over, "
        "failed or cancelled.",
        ("outcome",),
    ),
    Family(
        "toolrelay_hooks_total",
        "counter",
        "Calls of hooks, by their point, their name and what they did: kept, changed, refused, failed or "
        "timed_out.",
        ("point", "hook", "outcome"),
    ),
    Family(
        "toolrelay_agent_runs_total",
        "counter",
        "Runs of agents that have ended, by agent and status.",
        ("agent", "status"),
    ),
    Family(
        "toolrelay_memory_total",
        "counter",
        "Earlier answers and client calls that requests of runs sent back, by the outcome of the search for "
        "their hidden turns.",
        ("outcome",),
    ),
    Family(
        "toolrelay_turns_total",
        "counter",
        "Model responses in runs, by finish reason; empty if the upstream gave none.",
        ("upstream", "finish_reason"),
    ),
    Family(
        "toolrelay_tool_calls_total",
        "counter",
        "Tool calls, by tool and outcome: success, or the error code that the model read.",
        ("tool", "outcome"),
    ),
    Family(
        "toolrelay_approvals_total",
        "counter",
        "Calls that need an approval, by tool and outcome: requested, approved, denied, used (the approved "
        "call ran), expired, superseded (it could not run any more), granted (it ran under a grant). "
        "Outcomes are read from the record every ten seconds, by the process that asked.",
        ("tool", "outcome"),
    ),
    Family(
        "toolrelay_approvals_pending",
        "gauge",
        "Calls that wait for a decision now, of all processes on the record.",
        summed="max",
    ),
    Family(
        "toolrelay_approval_wait_seconds",
        "histogram",
        "Time from the question to the decision about a call.",
        (),
        _DECIDED_S,
    ),
    Family("toolrelay_mcp_up", "gauge", "Whether an MCP server is connected.", ("server",), summed="max"),
    Family(
        "toolrelay_mcp_calls_total",
        "counter",
        "Calls of tools of an MCP server, by outcome: success, or the error code that the model read.",
        ("server", "outcome"),
    ),
    Family(
        "toolrelay_mcp_reconnects_total",
        "counter",
        "How often an MCP server was connected again.",
        ("server",),
        summed="max",
    ),
    Family(
        "toolrelay_mcp_drifted",
        "gauge",
        "Tools of an MCP server that were allowed and are withheld, since they have changed or are gone.",
        ("server",),
        summed="max",
    ),
    Family("toolrelay_upstream_requests_total", "counter", "Requests to upstreams.", ("upstream", "status")),
    Family(
        "toolrelay_upstream_errors_total",
        "counter",
        "Requests to upstreams that failed, by HTTP status or cause.",
        ("upstream", "kind"),
    ),
    Family(
        "toolrelay_upstream_time_to_head_seconds",
        "histogram",
        "Time until the head of an upstream's response arrived.",
        ("upstream",),
        _FIRST_TOKEN_S,
    ),
    Family("toolrelay_tool_cost_total", "counter", "Cost of tool calls, in the unit of [prices].", ("tool",)),
    Family("toolrelay_cost_total", "counter", "Cost of requests, in the unit of [prices].", ("model",)),
    Family(
        "toolrelay_store_waiting_writes", "gauge", "Writes to the store that are waiting for their commit."
    ),
    Family(
        "toolrelay_unrecorded_requests_total",
        "counter",
        "Requests without a run that got no row: too many waited, too many came without a key, or the "
        "record lost them.",
    ),
    Family("toolrelay_store_lost_writes_total", "counter", "Writes to the store that were lost."),
    Family("toolrelay_cache_bytes", "gauge", "Estimated bytes that a cache holds.", ("cache",)),
    Family("toolrelay_cache_limit_bytes", "gauge", "Bytes that a cache may hold.", ("cache",)),
    Family(
        "toolrelay_record_late_total",
        "counter",
        "Records that a client's next request needs and that were not committed in time: suspended (the "
        "client got an error), answer, owner.",
        ("what",),
    ),
    Family(
        "toolrelay_loop_held_seconds",
        "histogram",
        "CPU seconds by which a timer of the event loop ran late, sampled ten times a second.",
        (),
        _HELD_S,
    ),
    Family(
        "toolrelay_log_dropped_lines_total",
        "counter",
        "Log lines that were dropped because nobody read them.",
    ),
    Family(
        "gen_ai_client_operation_duration_seconds",
        "histogram",
        "Time of one request to a model, to the end of its response.",
        (*_ASKED, "error_type"),
        _OPERATION_S,
    ),
    Family(
        "gen_ai_client_operation_time_to_first_chunk_seconds",
        "histogram",
        "Time until the first piece of a model's stream.",
        _ASKED,
        _FIRST_TOKEN_S,
    ),
    Family(
        "gen_ai_client_token_usage",
        "histogram",
        "Tokens of one model response, if its upstream reported them.",
        (*_ASKED, "gen_ai_token_type"),
        _TOKENS,
    ),
    Family(
        "gen_ai_server_request_duration_seconds",
        "histogram",
        "Time of one client's request to a model, including tools.",
        _SERVED,
        _OPERATION_S,
    ),
    Family(
        "gen_ai_server_time_to_first_token_seconds",
        "histogram",
        "Time until the client got the first piece of a successful answer.",
        _SERVED,
        _FIRST_TOKEN_S,
    ),
    Family(
        "gen_ai_execute_tool_duration_seconds",
        "histogram",
        "Time of one tool call.",
        ("gen_ai_tool_name",),
        _HTTP_S,
    ),
    Family("process_cpu_seconds_total", "counter", "CPU time, user and system."),
    Family("process_resident_memory_bytes", "gauge", "Resident memory."),
    Family("process_virtual_memory_bytes", "gauge", "Virtual memory."),
    Family("process_open_fds", "gauge", "Open file descriptors."),
    Family("process_max_fds", "gauge", "Largest number of file descriptors of one process.", summed="min"),
    Family("process_start_time_seconds", "gauge", "Start of the oldest process.", summed="min"),
)
