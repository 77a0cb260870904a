"""Plan of a captured step under a strategy: parameters checked, variables laid out, bytes predicted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from strategies.builders import all_reduce, partitioned, robust
from strategies.builders.shared_params import (
    ACCUMULATE,
    SYNC_BATCH_NORM,
    check_exclusions,
    merging_notes,
    with_sparse_duplicates,
)
from strategies.errors import StrategyError, UnsupportedError, first_few, suggestion
from strategies.params import Params, ParamValue
from strategies.plan import compressors
from strategies.plan.aggregation import Aggregation, has_reference
from strategies.plan.compressors import compressed, is_encoded
from strategies.plan.execution import Execution, requested_topology
from strategies.plan.node_rules import is_owned
from strategies.plan.partitions import server_bytes, worker_bytes
from strategies.plan.schema import BY_RULE, Plan, PlanNode, StatisticSummary, StepSummary, StrategyClass
from strategies.plan.strategy import Strategy, independent
from strategies.topology import Topology

if TYPE_CHECKING:
    from strategies.plan.exchanges.flow import Flow
    from strategies.plan.traffic import PayloadMatrix

_ASKED = "BatchNormalization(synchronized=True)"


@dataclass(frozen=True, slots=True, kw_only=True)
class JointStatistics:
    """Layers that take statistics of the whole batch, in call order, and notes for the plan."""

    layers: tuple[StatisticSummary, ...] = ()
    notes: tuple[str, ...] = ()


def joint_statistics(strategy: Strategy, step: StepSummary, topology: Topology) -> JointStatistics:
    """Layers whose statistics replicas compute together, because of a knob or of the layer.

    Raises:
        UnsupportedError: a layer cannot use statistics of the whole batch.
    """
    if topology.n_replicas == 1:
        return JointStatistics()
    if topology.global_statistics:
        return _of_every_layer(strategy, step)
    if not step.synchronized:
        return JointStatistics()
    if strategy.strategy_class not in ("exact", "bounded"):
        return JointStatistics(notes=(_own_statistics(step.synchronized),))
    first = step.synchronized[0]
    if topology.micro_batches > 1:
        raise UnsupportedError(
            f"strategy {strategy.name!r}: layer {first!r}: {_ASKED} needs all examples at once, got "
            f"{ACCUMULATE.name}={topology.micro_batches}; drop {ACCUMULATE.name}, or synchronized=True"
        )
    for layer in step.synchronized:
        if layer in step.own_statistics:
            raise UnsupportedError(
                f"strategy {strategy.name!r}: layer {layer!r} has synchronized=True and "
                f"{step.own_statistics[layer]}, or drop synchronized=True"
            )
    return JointStatistics(layers=tuple(s for s in step.statistics if s.layer in step.synchronized))


def _of_every_layer(strategy: Strategy, step: StepSummary) -> JointStatistics:
    for layer, reason in step.own_statistics.items():
        raise UnsupportedError(
            f"strategy {strategy.name!r}: {SYNC_BATCH_NORM.name}=true: layer {layer!r} {reason}, or drop "
            f"{SYNC_BATCH_NORM.name}"
        )
    if step.statistics:
        return JointStatistics(layers=step.statistics)
    note = f"{SYNC_BATCH_NORM.name}: no layer normalises by its batch, nothing to synchronise"
    return JointStatistics(notes=(note,))


def _own_statistics(layers: Sequence[str]) -> str:
    return (
        f"{_ASKED} uses each replica's own statistics, because replicas do not wait for each other: "
        f"{first_few(layers)}"
    )


_COMPLEX = frozenset({"complex64", "complex128"})
Settled = tuple[Strategy, dict[str, ParamValue]]


def settled(strategy: Strategy, params: Params | None = None) -> Settled:
    """Return a strategy with the class that these parameters imply, and all parameters with defaults.

    A compressor makes the class `bounded`, updates that do not wait for all workers `statistical`.

    Raises:
        StrategyError: a parameter is unknown (the message suggests one) or has the wrong type, or values
            contradict each other.
    """
    known = {p.name: p for p in strategy.params}
    values: dict[str, ParamValue] = {p.name: p.default for p in strategy.params}
    for key, value in (params or {}).items():
        snake = key.replace("-", "_")
        if snake not in known:
            hint = suggestion(snake, known) if known else "it takes no parameters"
            raise StrategyError(f"strategy {strategy.name!r}: unknown parameter {key!r}; {hint}")
        values[snake] = known[snake].read(value, of=f"strategy {strategy.name!r}: ")
    if values.get("bucket_bytes") is not None and "chunk_size" in (params or {}):
        raise StrategyError(
            f"strategy {strategy.name!r}: takes chunk_size or bucket_bytes, got both; drop one of them"
        )
    check_exclusions(values)
    compression, filled = compressors.choose(strategy.name, values)
    strategy_class = strategy.strategy_class if compression is None else "bounded"
    return replace(strategy, strategy_class=class_with(filled, strategy_class)), dict(filled)


def class_with(params: Params, otherwise: StrategyClass) -> StrategyClass:
    """Class under these parameters: `statistical` if updates do not wait for all workers or use no mean."""
    return otherwise if Execution.of(params).waits_for_all and has_reference(params) else "statistical"


def refusal_of(strategy: Strategy, values: Params, topology: Topology) -> str | None:
    """Reason why a strategy cannot run on a topology, None if it can."""
    reason = strategy.lacks(topology.device) or all_reduce.refuse_transport(topology, values)
    if reason is None and strategy.refuses is not None:
        return strategy.refuses(topology, values)
    return reason


def plan_of(strategy: Strategy, values: Params, step: StepSummary, topology: Topology) -> Plan:
    """Lay out a step's variables as a plan.

    Args:
        values: all parameters, see `settled`.
    Raises:
        StrategyError: the step cannot be laid out, or a strategy for one replica got several.
        UnsupportedError: the strategy cannot run on this topology.
    """
    if strategy.single and topology.n_replicas > 1:
        raise StrategyError(
            f"strategy {strategy.name!r}: runs one replica, got {topology.n_replicas}; "
            "use workers=1 and replicas=1"
        )
    reason = refusal_of(strategy, values, topology)
    if reason is not None:
        raise UnsupportedError(f"strategy {strategy.name!r}: {reason}")
    layout = independent if topology.n_replicas == 1 else strategy.layout
    compression, _ = compressors.choose(strategy.name, values)
    laid_out = layout(step, topology, values)
    nodes = compressed(laid_out, step, compression, topology)
    notes = []
    if topology.n_replicas == 1 and not strategy.single and strategy.runner == "graph":
        steps = Execution.of(values)
        merges = steps.merges_rows and any(v.sparse for v in step.variables)
        besides = " apart from its updates" if steps.fused_update or merges else ""
        notes.append(f"one replica: {strategy.name} leaves the captured graph unchanged{besides}")
    elif compression is not None and not any(node.compressor for node in nodes):
        notes.append(f"{compression.name}: no gradient gets smaller here, all are sent uncompressed")
    if topology.n_replicas > 1 and strategy.notes is not None:
        notes += strategy.notes(step, nodes, topology, values)
    notes += all_reduce.notes_on_sharing(nodes, topology, values)
    if topology.n_replicas > 1 and not partitioned.CUTTING.isdisjoint(p.name for p in strategy.params):
        is_cut = strategy.parts is None or any(node.partition for node in nodes)
        notes += partitioned.kept_whole(step, nodes) if is_cut else []
    return assembled(strategy, values, nodes, step, topology, notes)


def _require_possible(
    strategy: Strategy, values: Params, nodes: Sequence[PlanNode], step: StepSummary, topology: Topology
) -> None:
    """Refuse combinations that no pass can carry out; see `assembled`."""
    synchronizers = {node.variable: node.synchronizer for node in nodes}
    rewrites = strategy.runner == "graph" and topology.n_replicas > 1
    for v in step.variables if rewrites else ():
        by = synchronizers.get(v.name)
        if v.synced and v.dtype in _COMPLEX and by in ("ps", *BY_RULE):
            raise UnsupportedError(
                f"strategy {strategy.name!r}: servers and rules take real numbers, got {v.dtype} of variable "
                f"{v.name!r}; use all-reduce"
            )
    if topology.n_replicas == 1 and topology.micro_batches > 1:
        raise UnsupportedError(
            f"strategy {strategy.name!r}: accumulate={topology.micro_batches} needs two replicas or more, "
            "got one, whose step stays as it was captured; raise workers or replicas, or drop accumulate"
        )
    if any(node.in_parts for node in nodes) and Execution.of(values).loops_on_device:
        raise StrategyError(
            f"strategy {strategy.name!r}: variables are partitioned during a host loop, got "
            "device_loop=true; set in_parts to false, or device_loop"
        )


def assembled(
    strategy: Strategy,
    values: Params,
    nodes: Sequence[PlanNode],
    step: StepSummary,
    topology: Topology,
    notes: Iterable[str] = (),
) -> Plan:
    """Make the plan of given nodes, with the bytes that they send and store.

    Args:
        notes: notes in addition to those of the step.
    Raises:
        StrategyError: there are fewer examples than micro-batches, or variables are in parts on TPU devices
            or in loops that cores run themselves.
        UnsupportedError: a single replica has micro-batches, a layer cannot use statistics of the whole
            batch, or servers or rules get complex variables.
    """
    # Not needed to list strategies, which should not wait for NumPy's import.
    from strategies.plan.exchanges.listing import flows_of
    from strategies.plan.traffic import traffic_of

    topology = requested_topology(topology, values)
    nodes = with_sparse_duplicates(strategy, nodes, step, topology, values)
    _require_possible(strategy, values, nodes, step, topology)
    statistics = joint_statistics(strategy, step, topology)
    if topology.n_replicas > 1:
        robust.check_nodes(nodes, step, Aggregation.of(values, topology.n_tasks))
    flows = flows_of(step, nodes, topology, values, statistics=statistics.layers)
    traffic = traffic_of(flows, topology.kinds())
    return Plan(
        workload=step.workload,
        strategy=strategy.name,
        strategy_params=dict(values),
        strategy_class=strategy.strategy_class,
        replicas_per_task=topology.replicas_per_task,
        batch_size=topology.batch_size,
        device=topology.device,
        shares_devices=topology.shares_devices,
        nodes=tuple(nodes),
        payload_bytes_per_step=sum(alike.sent_bytes * len(alike.tasks) for alike in traffic),
        traffic=traffic,
        server_bytes=server_bytes(nodes, topology),
        worker_bytes=worker_bytes(nodes),
        statistics=statistics.layers,
        notes=(*step.notes, *notes, *statistics.notes, *merging_notes(nodes, step)),
        warnings=_warnings(strategy, values, nodes, step, topology),
    )


def _warnings(
    strategy: Strategy, values: Params, nodes: Sequence[PlanNode], step: StepSummary, topology: Topology
) -> tuple[str, ...]:
    parts, whole = strategy.parts, strategy.whole
    if topology.n_replicas == 1 or parts is None or whole is None or any(n.partition for n in nodes):
        return ()
    return (partitioned.nothing_cut(parts(step, topology, values), whole),)


def topology_of(plan: Plan) -> Topology:
    """Topology for which a plan was made."""
    shape = Topology(
        replicas_per_task=plan.replicas_per_task,
        batch_size=plan.batch_size,
        device=plan.device,
        shares_devices=plan.shares_devices,
    )
    return requested_topology(shape, plan.strategy_params)


def exchanges(plan: Plan, step: StepSummary) -> tuple[Flow, ...]:
    """Exchanges of a plan's step: messages between tasks, with their bytes, variables and transport.

    They are the only source of the plan's payload and of collectives' bytes, and a simulation of steps reads
    them. Exchanges between the replicas of one task are listed, too, with no bytes between tasks.

    Args:
        step: the step that was planned.
    """
    from strategies.plan.exchanges.listing import flows_of

    return flows_of(step, plan.nodes, topology_of(plan), plan.strategy_params, statistics=plan.statistics)


def payload_matrix(plan: Plan, step: StepSummary) -> PayloadMatrix:
    """Bytes from each task to each other one: for few tasks, since it grows with their square."""
    from strategies.plan.traffic import PayloadMatrix

    return PayloadMatrix.of(exchanges(plan, step), len(plan.replicas_per_task))


def n_waiting(plan: Plan) -> int:
    """Maximum number of a worker's threads that wait for its ring at a time.

    They wait for gradients, encoded gradients and owners' values. Gradients are waited for once all of their
    kind are handed over. Owners hand over new values while others of their kind, or gradients of the next
    update, may already be waited for.
    """
    in_ring = [node for node in plan.nodes if node.transport == "tcp"]
    encoded = list(filter(is_encoded, in_ring))
    return int(len(in_ring) > len(encoded)) + int(bool(encoded)) + int(any(map(is_owned, in_ring)))
