"""Faults injected into the step of one worker: into gradients that it sends, or into its labels."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar
from zlib import crc32

from strategies.errors import StrategyError
from strategies.ir.graph import DType, Node, Shape, producer
from strategies.ir.train_graph import BatchInput, Boundary, Contribution, TrainGraph
from strategies.numerics.compressors import StateSpec
from strategies.numerics.faults import delayed, faulty, flipped_labels, next_step
from strategies.passes.collectives.buckets import static_dims
from strategies.passes.replicate.rewire import captured_name, contribute
from strategies.passes.replicate.state_variables import StateVariable
from strategies.passes.task_plan import TaskPlan
from strategies.plan.faults import Fault
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Topology

_STEP = TensorSpec(dtype=DType("int64"), shape=Shape(()))
_PREFIX = "fault"


@dataclass(frozen=True, kw_only=True, slots=True)
class InjectFaults:
    """Let this worker send wrong gradients, or compute gradients from wrong labels.

    All its replicas send the same kind of fault; each combines its micro-batches before.
    """

    name: ClassVar[str] = "inject-faults"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        counter = self._counter(topology)
        counted, (following,) = trace(next_step, (_STEP,)).splice(
            f"{_PREFIX}/next/", [counter.value], device=topology.host_device(self.plan.task)
        )
        keep = counter.keep(following)
        state: list[StateVariable] = [counter]
        added: list[Node] = [*counter.nodes, *counted, keep]
        keeps = [keep.name]
        combined: dict[str, Contribution] = {}
        devices = {replica.rank: replica.device for replica in topology.local_replicas(self.plan.task)}
        gradients = [b for b in graph.boundaries if b.role == "gradient" and b.contributions]
        for b in gradients:
            device = topology.host_device(self.plan.task) if b.rank is None else devices[b.rank]
            contribution = b.contributions[0]
            for turn, fault in enumerate(f for f in self.plan.own_faults if f.place == "gradient"):
                share = 1.0 if self.plan.weighs_own_examples else _share(self.plan.task, topology)
                injected = _Injected.of(b, contribution, fault, counter, device, turn, share)
                added += injected.nodes
                state += injected.state
                keeps += injected.keeps
                contribution = replace(contribution, values=injected.values)
            combined[b.values] = contribution
        rewired = contribute(graph, combined, added)
        rewired = replace(
            rewired,
            variables=(*rewired.variables, *(variable.variable for variable in state)),
            state_targets=(*rewired.state_targets, *keeps),
        )
        for turn, fault in enumerate(f for f in self.plan.own_faults if f.place == "batch"):
            prefix = f"{_PREFIX}/labels/{turn}/"
            rewired = _with_labels(rewired, fault, counter, topology.host_device(self.plan.task), prefix)
        return rewired

    def _counter(self, topology: Topology) -> StateVariable:
        rank = topology.local_replicas(self.plan.task)[0].rank
        return _state_variable("steps", (), "int64", rank, topology.host_device(self.plan.task))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Injected:
    """A fault in one gradient: the value sent instead, and state that it keeps between steps."""

    nodes: tuple[Node, ...]
    values: str
    state: tuple[StateVariable, ...] = ()
    keeps: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        b: Boundary,
        contribution: Contribution,
        fault: Fault,
        counter: StateVariable,
        device: str,
        turn: int,
        share: float,
    ) -> "_Injected":
        prefix = f"{_PREFIX}/{captured_name(b)}/{turn}/replica_{contribution.rank}/"
        spec = TensorSpec(dtype=b.dtype, shape=Shape(None) if b.indices is not None else b.shape)
        old = None
        if fault.kind == "stale":
            dims, name = _dense_dims(b, fault), f"{captured_name(b)}/{turn}"
            state = [
                _state_variable(f"{name}/before_{k}", dims, str(b.dtype), contribution.rank, device)
                for k in range(fault.delay_steps)
            ]
            old = cls._delayed(contribution.values, state, spec, f"{prefix}stale/", device)
        before = () if old is None else (old.values,)
        # Sent values are weighted by the worker's share of the batch, now or later.
        snippet = trace(
            faulty,
            (spec, _STEP, *(spec for _ in before)),
            fault=fault,
            unit=share / contribution.weight,
            # By name: strategies have gradients in different orders.
            salt=crc32(captured_name(b).encode()),
        )
        added, (values,) = snippet.splice(
            prefix, [contribution.values, counter.value, *before], device=device
        )
        if old is None:
            return cls(nodes=tuple(added), values=values)
        return replace(old, nodes=(*old.nodes, *added), values=values)

    @classmethod
    def _delayed(
        cls, values: str, state: Sequence[StateVariable], spec: TensorSpec, prefix: str, device: str
    ) -> "_Injected":
        """Gradient of an earlier step, and state that holds those of later steps."""
        snippet = trace(delayed, (spec,) * (1 + len(state)))
        added, (old, *now) = snippet.splice(
            prefix, [values, *(variable.value for variable in state)], device=device
        )
        keeps = [variable.keep(value) for variable, value in zip(state, now, strict=True)]
        return cls(
            nodes=(*(node for variable in state for node in variable.nodes), *added, *keeps),
            values=old,
            state=tuple(state),
            keeps=tuple(node.name for node in keeps),
        )


def _share(task: int, topology: Topology) -> float:
    return sum(replica.examples for replica in topology.local_replicas(task)) / topology.batch_size


def _dense_dims(b: Boundary, fault: Fault) -> tuple[int, ...]:
    if b.indices is not None:
        raise StrategyError(
            f"variable {b.variable!r}: kind {fault.kind} keeps gradients of earlier steps, got a sparse one, "
            "whose rows differ from step to step; choose another kind"
        )
    if b.dtype not in ("float", "double"):
        raise StrategyError(
            f"variable {b.variable!r}: kind {fault.kind} keeps gradients of type float or double, got "
            f"{b.dtype}; choose another kind"
        )
    return static_dims(b)


def _state_variable(name: str, dims: tuple[int, ...], dtype: str, rank: int, device: str) -> StateVariable:
    return StateVariable.of(
        StateSpec(name=name, dims=dims, dtype=dtype),
        f"{_PREFIX}/{name}",
        group="fault",
        path=f"{_PREFIX}/{name}",
        rank=rank,
        device=device,
        owners=(rank,),
        lasting=False,
    )


def _with_labels(
    graph: TrainGraph, fault: Fault, counter: StateVariable, host: str, prefix: str
) -> TrainGraph:
    labels = _labels(graph.batch, fault)
    snippet = trace(flipped_labels, (TensorSpec(dtype=labels.dtype, shape=labels.shape), _STEP), fault=fault)
    added, (flipped,) = snippet.splice(prefix, [labels.node, counter.value], device=host)
    nodes = (_reading(node, labels.node, flipped) for node in graph.graph.nodes)
    return replace(graph, graph=graph.graph.with_nodes([*nodes, *added]))


def _labels(batch: Sequence[BatchInput], fault: Fault) -> BatchInput:
    if fault.component is None:
        return batch[-1]
    chosen = next((b for b in batch if b.path == fault.component), None)
    if chosen is None:
        paths = ", ".join(b.path for b in batch)
        raise StrategyError(
            f"component must be a part of the batch, one of {paths}, got {fault.component!r}; choose one"
        )
    return chosen


def _reading(node: Node, name: str, instead: str) -> Node:
    if all(producer(ref) != name for ref in node.inputs):
        return node
    return node.changed(inputs=tuple(_other(node.inputs, name, instead)))


def _other(inputs: Sequence[str], name: str, instead: str) -> Iterator[str]:
    for ref in inputs:
        yield instead if ref[0] != "^" and producer(ref) == name else ref
