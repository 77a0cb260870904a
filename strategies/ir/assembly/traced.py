"""Contents of a traced step before assembly."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from strategies.ir.graph import DType, Graph, Node, Shape
from strategies.ir.train_graph import BatchInput, Reduction, Result, Statistic
from strategies.ir.variable import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedVariable:
    """A variable of a trace.

    Attributes:
        placeholder: node of the variable's handle in the trace; None if the step never uses it.
        constant: True if the variable holds a captured tensor too large for a constant; it is never written.
        slot_of, group: trainable and kind of the slot, if the optimizer knows them.
    """

    name: str
    placeholder: str | None
    dtype: DType
    shape: Shape
    trainable: bool
    optimizer_owned: bool
    constant: bool = False
    slot_of: str | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedGradient:
    """Identity nodes that one gradient call of the trace put behind a trainable's gradient."""

    call: int
    variable: str
    values: str
    indices: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedTable:
    """A lookup table or another initialised resource.

    Attributes:
        placeholder: node of the table's handle in the trace; `handle` replaces it.
        initializers: nodes to run once before the first step.
    """

    placeholder: str
    nodes: tuple[Node, ...]
    handle: str
    initializers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """A traced step.

    Attributes:
        constants: placeholder of a captured tensor → the constant that replaces it.
        marks: used gradients of every gradient call, including nested calls.
        loss: tensor that the step returns as its loss, else `target`.
        target: tensor whose gradients the step takes, None if it is no scalar loss.
        rules: forward state → merge rule, if it is known from elsewhere than this trace.
        must_run: nodes with effects that the traced function always runs.
        stateful_ops: op types with effects or state.
        own_statistics: layer → reason why its means stay local to a shard.
        synchronized: layers whose author requests means over all replicas' examples.
    """

    graph: Graph
    constants: Mapping[str, Node]
    variables: tuple[TracedVariable, ...]
    marks: tuple[TracedGradient, ...]
    batch: tuple[BatchInput, ...]
    loss: str
    must_run: tuple[str, ...]
    stateful_ops: frozenset[str]
    tables: tuple[TracedTable, ...] = field(default=())
    reduction: Reduction = "mean"
    rules: Mapping[str, Rule] = field(default_factory=dict)
    statistics: tuple[Statistic, ...] = ()
    own_statistics: Mapping[str, str] = field(default_factory=dict)
    synchronized: tuple[str, ...] = ()
    results: tuple[Result, ...] = ()
    target: str | None = None
