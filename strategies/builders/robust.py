"""Robust aggregation: a rule combines the gradients of all workers, on a server or on every worker."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from strategies.builders import all_reduce, parameter_server
from strategies.builders.shared_params import ALWAYS_MERGED, KNOBS
from strategies.errors import StrategyError, UnsupportedError
from strategies.params import Param, Params
from strategies.plan.aggregation import BUCKETING, BY_NAME, CLIPPING, MIXING, NONE, RULES, Aggregation
from strategies.plan.aggregation import KNOBS as RULE_KNOBS
from strategies.plan.schema import BY_RULE, PlanNode, StepSummary, Synchronizer, VariableSummary
from strategies.topology import Topology

_F = Param(
    name="f",
    type=int,
    default=None,
    minimum=0,
    unit="workers",
    summary="Faulty workers to tolerate; none: as many as the rule can.",
)
_BUCKET_SIZE = Param(
    name="bucket_size",
    type=int,
    default=None,
    minimum=1,
    unit="workers",
    summary="Workers per bucket with pre=bucketing; none: 2.",
)
RULE = (
    Param(
        name="rule",
        type=str,
        default="median",
        choices=tuple(BY_NAME),
        summary="Aggregation rule; see `stratbench list aggregators`.",
    ),
    _F,
    *RULE_KNOBS.values(),
    Param(
        name="pre",
        type=str,
        default=NONE,
        choices=(NONE, MIXING, BUCKETING),
        summary="Step before the rule.",
    ),
    _BUCKET_SIZE,
)
PARAMS = (*RULE, *KNOBS, ALWAYS_MERGED)
SERVERS = (
    Param(
        name="servers",
        type=int,
        default=1,
        minimum=1,
        unit="servers",
        summary="Replicated servers; workers take the median of their answers.",
    ),
    Param(
        name="lying",
        type=int,
        default=0,
        minimum=0,
        unit="servers",
        summary="Servers of these, the last ones, that answer with negated values.",
    ),
)
SERVER = 0


def on_server(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:
    """Place all variables on one server that combines all gradients, or on several copies of it.

    Raises:
        StrategyError: there are too few workers for the rule, or a knob belongs to another rule.
        UnsupportedError: several servers are combined with several replicas per worker.
    """
    _check(step, topology, params)
    if int(params.get("servers") or 1) > 1:
        if max(topology.replicas_per_task) > 1:
            raise UnsupportedError(
                "strategy 'robust-ps': servers of copies need one replica in each worker, got "
                f"{max(topology.replicas_per_task)}; use replicas=1, or leave servers out"
            )
        if params.get("sync_batch_norm"):
            raise UnsupportedError(
                "strategy 'robust-ps': servers of copies and sync_batch_norm=true run into each other, got "
                "both; leave one of them out"
            )
        return _gathered(step, topology, params, "robust-servers")
    return parameter_server.placed(step, {v.name: SERVER for v in step.variables}, topology, params)


def by_all_workers(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:
    """Let every worker gather all gradients; new forward state is averaged between workers.

    Raises:
        StrategyError: see `on_server`.
    """
    _check(step, topology, params)
    return _gathered(step, topology, params, "robust-gather")


def _gathered(
    step: StepSummary, topology: Topology, params: Params, synchronizer: Synchronizer
) -> list[PlanNode]:
    nodes = all_reduce.hierarchical(step, topology, params)
    trained = {v.name for v in trained_variables(step)}
    by_rule = {"synchronizer": synchronizer, "group": None, "transport": None}
    return [node.model_copy(update=by_rule) if node.variable in trained else node for node in nodes]


def check_nodes(nodes: Sequence[PlanNode], step: StepSummary, rule: Aggregation | None) -> None:
    """Check that a rule receives all gradients, and that no node needs a rule if there is none.

    Raises:
        StrategyError: a node contradicts the rule; the message names the first one.
    """
    trained = {v.name for v in trained_variables(step)}
    chosen = [node for node in nodes if node.variable in trained]
    if rule is None:
        asking = next((node for node in chosen if node.synchronizer in BY_RULE), None)
        if asking is not None:
            raise StrategyError(
                f"variable {asking.variable!r}: synchronizer {asking.synchronizer} needs a rule, got none "
                "among the parameters; make the plan with robust-ps or robust-all-reduce"
            )
        return
    copies = any(node.synchronizer == "robust-servers" for node in chosen)
    if chosen and copies != (rule.servers > 1):
        raise StrategyError(
            f"variable {chosen[0].variable!r}: servers={rule.servers} needs synchronizer "
            f"{'robust-servers' if rule.servers > 1 else 'ps or robust-gather'}, got "
            f"{chosen[0].synchronizer}; change one of them"
        )
    rows = next((node for node in chosen if node.sparse), None)
    if rule.rule == CLIPPING and rows is not None:
        raise StrategyError(
            f"variable {rows.variable!r}: rule={CLIPPING} keeps a value for each coordinate from step to "
            "step, got a sparse gradient; choose geometric-median, or another rule without state"
        )
    for node in chosen:
        synchronizer, destinations = way = _way(node)
        is_complete = synchronizer in BY_RULE or (synchronizer == "ps" and len(destinations) == 1)
        if is_complete and node.compressor is None and way == _way(chosen[0]):
            continue
        got = f"{node.synchronizer} to {node.destination}" if node.compressor is None else "a compressor"
        raise StrategyError(
            f"variable {node.variable!r}: rule={rule.rule} sees all gradients as they are: all are on one "
            f"server, or all are {' or '.join(sorted(BY_RULE))}, got {got}; make it as variable "
            f"{chosen[0].variable!r} is"
        )


def _way(node: PlanNode) -> tuple[Synchronizer, frozenset[int | None]]:
    """Synchronizer and servers of a gradient."""
    parts = None if node.partition is None else node.partition.destinations
    return node.synchronizer, frozenset(parts or (node.destination,))


def trained_variables(step: StepSummary) -> Sequence[VariableSummary]:
    """Variables whose gradients a rule combines."""
    return [v for v in step.variables if v.kind == "trainable" and v.synced]


def notes(step: StepSummary, nodes: Sequence[PlanNode], topology: Topology, params: Params) -> Sequence[str]:
    """Notes on a plan's rule, one sentence each."""
    del step, nodes
    aggregation = Aggregation.of(params, topology.n_tasks)
    assert aggregation is not None
    if params.get("f") is not None or not BY_NAME[aggregation.rule].per_fault:
        return ()
    rule = f"rule={aggregation.rule} with f={aggregation.f} of {aggregation.n} workers"
    return (f"{rule}, the maximum: a smaller f uses more of the honest workers' gradients",)


def _check(step: StepSummary, topology: Topology, params: Params) -> None:
    Aggregation.of(params, topology.n_tasks)
    unknown = next((v for v in trained_variables(step) if -1 in v.shape), None)
    if unknown is not None:
        raise StrategyError(
            f"variable {unknown.name!r}: a rule needs gradients of a static shape, got {unknown.shape}; "
            "declare its shape, or use ps"
        )


def describe() -> Sequence[Mapping[str, Any]]:
    """Rows of `stratbench list aggregators`."""
    rules = [
        {
            "name": rule.name,
            "summary": f"{rule.summary}; needs {rule.bound()}",
            "params": [param.describe() for param in (_F, *rule.params)],
        }
        for rule in RULES
    ]
    mixing = "before a rule: each gradient becomes the mean of its n − f nearest"
    bucketing = "before a rule: means of a few gradients in random order take their place"
    size = replace(_BUCKET_SIZE, default=2).describe()
    return [
        *rules,
        {"name": MIXING, "summary": mixing, "params": []},
        {"name": BUCKETING, "summary": bucketing, "params": [size]},
    ]
