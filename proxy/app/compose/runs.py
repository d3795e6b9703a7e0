"""Builds the component that plans and executes runs."""

from collections.abc import Mapping, Sequence

from proxy.app.compose.overrides import Overrides
from proxy.app.compose.services import Services
from proxy.app.compose.tools import search_rules, serving_tools
from proxy.app.compose.upstreams import model_prices
from proxy.config.load import Config
from proxy.records.ids import row_ids
from proxy.relay.base import RunSettings
from proxy.relay.memory.commit_waiter import CommitWaiter
from proxy.relay.memory.hidden.history import History
from proxy.relay.memory.hidden.sealed_turns import SealedTurns
from proxy.relay.memory.idempotency import Idempotency
from proxy.relay.memory.programs import ProgramStates
from proxy.relay.memory.references import ItemReferences
from proxy.relay.memory.refusals import RefusalCache
from proxy.relay.memory.threads import Threads
from proxy.relay.offering.offer import OfferRules
from proxy.relay.offering.programs import ProgramRules
from proxy.relay.planning import Planner, PlanSettings
from proxy.relay.routing.prices import to_nanos
from proxy.relay.run.journal import Journal
from proxy.relay.run.orchestrator import Orchestrator
from proxy.relay.run.parents import Parents
from proxy.relay.run.tapes import Tapes
from proxy.relay.run_memory import RunMemory
from proxy.relay.starting.agents import AgentRuns
from proxy.relay.starting.program_steps import StepTools
from proxy.relay.starting.programs import ProgramRuns
from proxy.relay.starting.runs import Runs
from proxy.tools.programs import racer
from proxy.tools.programs.engine import ProgramLimits
from proxy.tools.programs.monty import MontyEngine
from proxy.tools.programs.racer import RacerEngine
from proxy.wires.wire import Wire


def create_runs(
    services: Services,
    given: Overrides,
    wires: Mapping[str, Wire],
    item_keys: Sequence[bytes],
    tapes: Tapes | None = None,
) -> Runs:
    """Build everything that runs need, for requests over HTTP and for other callers. ``wires`` are by name.

    The first of ``item_keys`` encrypts what clients carry; the others only decrypt. ``tapes`` record the
    bytes of runs.
    """
    config, store = services.config, services.store
    prices = model_prices(config)
    memory = RunMemory(
        history=History(store, store.now, config.store.history_system, _sealed_turns(services, item_keys)),
        items=ItemReferences(store),
        threads=Threads(store),
        refusals=RefusalCache(),
        idempotency=Idempotency(forget=store.release_effect, settle=store.settle_effects, now=store.now),
        commits=_commits(services),
        approvals=services.approvals,
    )
    parents = Parents(services.approvals.agents)
    planner = Planner(
        memory=memory,
        prices=prices,
        settings=PlanSettings(
            offer=OfferRules(
                inject=config.tools.inject,
                aliases=dict(config.tools.aliases),
                hosted=serving_tools(config),
                known_hosts=_known_hosts(config),
                search=search_rules(config),
                programs=ProgramRules(config.tools.programs, search_rules(config)),
            ),
            keep_requests=config.store.content == "all",
            people_in_bodies=not config.auth.end_user,
        ),
        wires=wires,
        parents=parents,
        budgets=_run_settings(config),
    )
    orchestrator = Orchestrator(
        runner=services.runner,
        journal=Journal(store, services.instruments.run_events(given.on_run_event), tapes),
        settings=_run_settings(config),
        memory=memory,
        approver=given.approver,
        broken=services.instruments.hooks.broken,
        parents=parents,
        searches=services.links.searches,
    )
    runs = Runs(planner, orchestrator, prices, memory, services.hooks)
    if config.tools.programs != "off":
        services.links.programs.bind(_program_runs(services, parents))
    for provider in services.agents:
        provider.bind(_agent_runs(services, runs, parents, wires))
    return runs


def _agent_runs(services: Services, runs: Runs, parents: Parents, wires: Mapping[str, Wire]) -> AgentRuns:
    """Build the component that runs agents. It asks their models in the Chat dialect, or in one that their
    upstreams speak."""
    ids = row_ids("run_")
    return AgentRuns(
        runs,
        parents,
        wire=wires["chat"],
        others=[wire.dialect.wire for wire in wires.values()],
        settings=_run_settings(services.config),
        run_ids=lambda: next(ids),
        run_context=services.instruments.hooks.run_context,
    )


def _program_runs(services: Services, parents: Parents) -> ProgramRuns:
    """Build the component that runs programs."""
    tools, ids = services.config.tools, row_ids("run_")
    steps = StepTools(
        services.runner, services.approvals, ProgramStates(services.store, services.store.now), tools.parallel
    )
    limits = ProgramLimits(tools.programs_memory, tools.programs_compute_s)
    return ProgramRuns(
        steps,
        parents,
        services.store,
        MontyEngine(limits),
        RacerEngine(limits) if racer.is_installed() else None,
        timeout_s=tools.programs_timeout_s,
        run_ids=lambda: next(ids),
    )


def _sealed_turns(services: Services, keys: Sequence[bytes]) -> SealedTurns:
    """Build the turns that clients carry; they stay valid as long as the record would keep them."""
    settings = services.config.store
    lasts_s, unstored = settings.keep_days * 86400, settings.content == "none"
    return SealedTurns(keys, lasts_s=lasts_s, unstored=unstored, now=services.store.now)


def _commits(services: Services) -> CommitWaiter:
    """Build the waiter for commits, for the case that a client's next request reaches another process or this
    one after a restart."""
    config = services.config
    return CommitWaiter(
        services.store,
        shared=config.server.workers > 1 or config.store.url.startswith(("postgres", "plugin:")),
        late=services.instruments.hooks.late,
    )


def _known_hosts(config: Config) -> tuple[str, ...]:
    """Return the hosts whose pages the provider's fetch may open although nobody has mentioned them: those
    that the operator names for pages, in full."""
    serves = config.tools.hosted.get("web_fetch") == "web__fetch_page"
    return tuple(host for host in config.tools.web_hosts if "*" not in host) if serves else ()


def _run_settings(config: Config) -> RunSettings:
    tools = config.tools
    return RunSettings(
        max_turns=tools.max_turns,
        max_calls=tools.max_calls,
        max_tokens=tools.max_tokens,
        max_cost=to_nanos(tools.max_cost),
        request_timeout_s=tools.request_timeout_s,
        keepalive_s=tools.keepalive_s,
        parallel=tools.parallel,
        max_argument_bytes=config.policy.max_argument_bytes,
    )
