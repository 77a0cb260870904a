"""Contents of a training step's trace, before its parts are told apart."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from strategies.ir.graph import DType, Graph, Node, Shape
from strategies.ir.train_graph import Reduction
from strategies.ir.variable import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedVariable:
    """A variable of a trace.

    Attributes:
        placeholder: stands for its handle in the trace; None when the step never uses it.
        trainable: its author wants it trained.
        optimizer_owned: an optimizer made it.
        constant: holds a value that was too large for a constant; nobody ever writes it.
        slot_of: the trainable whose slot it is and `group` the kind of slot, where the optimizer tells.
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
class TracedStatistic:
    """Identity node of a mean over examples in BatchNormalization, or of the gradient that comes back to it.

    Attributes:
        layer: whose it is, by path.
    """

    layer: str
    node: str
    backward: bool
    shape: Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedInput:
    """A placeholder of the trace that stands for a component of the batch."""

    path: str
    node: str
    dtype: DType
    shape: Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedResult:
    """Identity node of a tensor that a whole step returns beside its loss; `name` is where it returns it."""

    name: str
    node: str
    dtype: DType
    shape: Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedTable:
    """A lookup table or another initialised resource that the step uses.

    Attributes:
        placeholder: stands for its handle in the trace.
        nodes: make and initialise it. handle: the one that `placeholder` becomes.
        initializers: to be run once before the first step.
    """

    placeholder: str
    nodes: tuple[Node, ...]
    handle: str
    initializers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """All that a trace tells about a step.

    Attributes:
        constants: placeholder of a captured tensor → the constant that replaces it.
        marks: gradients of every gradient call, nested ones included, that something which runs needs.
        loss: tensor reference of the loss that it returns, or of `target` where it returns none.
        target: tensor reference of what its gradients are of, None where that is no scalar loss.
        reduction: how the loss comes of the examples' losses.
        rules: name of forward state → its rule, where that is known better than this trace tells.
        must_run: nodes with effects, which the traced function runs whether or not a result needs them.
        stateful_ops: the op types of the graph and its functions that have effects or state.
        statistics: means over the examples in forward, and their gradients in backward.
        own_statistics: layer → why its means cannot become those of a larger batch.
        synchronized: layers whose author asks for means over all replicas' examples.
        results: what it returns beside the loss.
    """

    graph: Graph
    constants: Mapping[str, Node]
    variables: tuple[TracedVariable, ...]
    marks: tuple[TracedGradient, ...]
    batch: tuple[TracedInput, ...]
    loss: str
    must_run: tuple[str, ...]
    stateful_ops: frozenset[str]
    tables: tuple[TracedTable, ...] = field(default=())
    reduction: Reduction = "mean"
    rules: Mapping[str, Rule] = field(default_factory=dict)
    statistics: tuple[TracedStatistic, ...] = ()
    own_statistics: Mapping[str, str] = field(default_factory=dict)
    synchronized: tuple[str, ...] = ()
    results: tuple[TracedResult, ...] = ()
    target: str | None = None
