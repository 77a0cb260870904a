"""Propagation of cut variables through updates; values that an update reads of others stay whole."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from strategies.ir.graph import DType, Function, FunctionRef, Graph, Node, producer
from strategies.ir.partitioning.facts import (
    UNKNOWN,
    Fact,
    FactKind,
    NotLocalError,
    PartUse,
    RuleOutcome,
    Swap,
    constant_fact,
    whole,
    whole_fact,
)
from strategies.ir.partitioning.rules import Operands, Tables, apply_rule
from strategies.ir.train_graph import TrainGraph
from strategies.ir.traversal import ancestors, topological_order
from strategies.ir.variable import Variable

_BRANCHES = frozenset({"If", "StatelessIf"})
_OUTPUT_INDEX = {"idx": 1}
_FORWARD_READS = frozenset({"ReadVariableOp", "ResourceGather", "VariableShape"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Effect of cut variables on an update.

    Attributes:
        outcomes: node → outcome of its rule; all other nodes exist once.
        facts: tensor reference → fact; all other tensors are WHOLE.
        refused: variable → node, op and reason that keep it whole along this axis.
    """

    outcomes: Mapping[str, RuleOutcome]
    facts: Mapping[str, Fact]
    refused: Mapping[str, str]


def cut_together(step: TrainGraph, names: Iterable[str]) -> Mapping[str, tuple[Variable, ...]]:
    """Each trainable with its slots of the same shape."""
    families: dict[str, list[Variable]] = {}
    for v in step.variables:
        families.setdefault(v.slot_of or v.name, []).append(v)
    shapes = {v.name: v.shape for v in step.variables}
    return {name: tuple(v for v in families[name] if v.shape == shapes[name]) for name in names}


def spread(step: TrainGraph, axes: Mapping[str, int]) -> Spread:
    """Follow ranges of variables and gradients through the update.

    Args:
        axes: trainable → axis along which it is cut.
    """
    return _Walk(step, axes).walked()


@dataclass(slots=True)
class _Walk:
    step: TrainGraph
    axes: Mapping[str, int]
    tables: dict[str, tuple[tuple[int, ...], int]] = field(default_factory=dict)
    facts: dict[str, Fact] = field(default_factory=dict)
    outcomes: dict[str, RuleOutcome] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def walked(self) -> Spread:
        self._begin()
        graph = self.step.graph
        update = self.step.update_nodes()
        boundaries = {n for b in self.step.boundaries for n in (b.values, b.indices) if n}
        access = {n for v in self.step.variables for n in (v.load, v.read)}
        for node in topological_order(
            [n for n in graph.nodes if n.name in update and n.name not in boundaries]
        ):
            self._visit(node)
        self._check_other_users(graph, update | boundaries | access)
        return Spread(outcomes=self.outcomes, facts=self.facts, refused=self.refused)

    def _begin(self) -> None:
        for name, family in cut_together(self.step, self.axes).items():
            shape, axis = family[0].shape.dims, self.axes[name]
            assert shape is not None
            self.tables[name] = (shape, axis)
            for v in family:
                self.facts[v.handle] = Fact(kind=FactKind.HANDLE, shape=shape, axis=axis, variable=name)
        for v in self.step.variables:
            self.facts.setdefault(v.handle, whole(v.shape.dims))
        for b in self.step.gradients():
            if b.variable not in self.axes:
                self.facts[b.values] = whole(
                    b.shape.dims if b.indices is None else (-1, *(b.shape.dims or ())[1:])
                )
                continue
            shape, axis = self.tables[b.variable]
            if b.indices is None:
                self.facts[b.values] = Fact(kind=FactKind.SPLIT, shape=shape, axis=axis, variable=b.variable)
            elif axis:
                self._refuse(
                    [b.variable], f"its gradient comes as rows, which are cut along axis 0, not {axis}"
                )
            else:
                self.facts[b.values] = Fact(kind=FactKind.ROWS, shape=(-1, *shape[1:]), variable=b.variable)
                self.facts[b.indices] = Fact(kind=FactKind.IDS, shape=(-1,), variable=b.variable)

    def _visit(self, node: Node) -> None:
        facts = [self._fact(ref) for ref in node.data_inputs]
        try:
            outcome, outputs = _carried(node, facts, self.tables, self.step.graph)
        except NotLocalError as error:
            self._refuse(error.variables, f"node {node.name!r} ({node.op}): {error}")
            outcome, outputs = None, (whole_fact(node, [whole(f.shape, f.values) for f in facts]),)
        if outcome is not None:
            self.outcomes[node.name] = outcome
        for k, fact in enumerate(outputs):
            self.facts[node.name if k == 0 else f"{node.name}:{k}"] = fact

    def _fact(self, ref: str) -> Fact:
        ref = ref.removesuffix(":0")
        fact = self.facts.get(ref)
        if fact is None:
            node = self.step.graph.by_name[producer(ref)]
            fact = constant_fact(node) if node.op == "Const" else UNKNOWN
        # From here on a refused tensor counts as whole, so that its users are not refused with it.
        return whole(fact.shape) if fact.variable in self.refused else fact

    def _check_other_users(self, graph: Graph, inside: set[str]) -> None:
        """Check users outside updates: they may read or look up cut variables, not use sparse gradients."""
        cut = {ref: fact for ref, fact in self.facts.items() if fact.kind is not FactKind.WHOLE}
        names = {producer(ref) for ref in cut}
        for node in graph.nodes:
            if node.name in inside or names.isdisjoint(map(producer, node.inputs)):
                continue
            for ref in node.data_inputs:
                fact = cut.get(ref)
                if fact is None or fact.kind is FactKind.SPLIT:
                    continue
                lookup = node.op != "ResourceGather" or lookup_form(node, fact.axis) is not None
                if fact.kind is FactKind.HANDLE and node.op in _FORWARD_READS and lookup:
                    continue
                what = "the variable feeds" if fact.kind is FactKind.HANDLE else "rows of its gradient reach"
                self._refuse([fact.variable or ""], f"{what} node {node.name!r} ({node.op})")

    def _refuse(self, variables: Iterable[str], reason: str) -> None:
        for name in variables:
            self.refused.setdefault(name, reason)


def lookup_form(node: Node, axis: int) -> Literal["rows", "columns"] | None:
    """Form of a ResourceGather on a part: some `rows` of the result, some `columns` of each row, or None.

    None for an axis before the ids' own: each index there has ids of its own.
    """
    batch_dims = node.attrs.get("batch_dims", 0)
    assert isinstance(batch_dims, int)
    if axis > batch_dims:
        return "columns"
    return "rows" if axis == batch_dims == 0 else None


def _carried(
    node: Node, facts: Sequence[Fact], tables: Tables, graph: Graph
) -> tuple[RuleOutcome | None, Sequence[Fact]]:
    if all(f.kind is FactKind.WHOLE for f in facts):
        if node.op == "ReadVariableOp":
            return None, (facts[0],)
        return None, (whole_fact(node, facts),)
    operands = Operands(node=node, facts=facts, tables=tables)
    outcome = _branch(operands, graph) if node.op in _BRANCHES else apply_rule(operands)
    return outcome, outcome.outputs


def _branch(x: Operands, graph: Graph) -> RuleOutcome:
    owner = x.owner
    predicate, *arguments = x.facts
    if predicate.kind not in (FactKind.WHOLE, FactKind.SAME_COUNT):
        raise x.refused("its condition differs between parts")
    shape, axis = x.tables[owner]
    swaps: dict[int, Swap] = {}
    types = x.node.attrs.get("Tin", ())
    assert isinstance(types, tuple)
    if any(
        f.kind is FactKind.WHOLE and dtype == "resource" for f, dtype in zip(arguments, types, strict=True)
    ):
        raise x.refused("it uses other variables, and must run once")
    for k, fact in enumerate(arguments):
        # The dense shape of a sparse gradient is passed with it.
        if fact.kind is FactKind.WHOLE and fact.values == shape and fact.shape == (len(shape),) and axis == 0:
            dtype = types[k]
            assert isinstance(dtype, DType)
            swaps[k + 1] = Swap(use=PartUse.SHAPE, dtype=dtype)
            arguments[k] = Fact(kind=FactKind.LENGTH_SHAPE, shape=shape, variable=owner)
    results = []
    for key in ("then_branch", "else_branch"):
        branch = x.node.attrs[key]
        assert isinstance(branch, FunctionRef)
        results.append(_in_function(graph.functions[branch.name], arguments, x, graph))
    outputs = []
    for one, other in zip(*results, strict=True):
        if (one.kind, one.axis) != (other.kind, other.axis):
            raise x.refused("its branches return different things")
        outputs.append(one if one.shape == other.shape else Fact(kind=one.kind, variable=one.variable))
    if predicate.kind is not FactKind.WHOLE and any(f.kind is FactKind.WHOLE for f in outputs):
        raise x.refused("its condition differs between parts")
    return RuleOutcome(outputs=tuple(outputs), variable=owner, swaps=swaps)


def _in_function(function: Function, arguments: Sequence[Fact], caller: Operands, graph: Graph) -> list[Fact]:
    facts = {f"{arg.name}:0": fact for arg, fact in zip(function.inputs, arguments, strict=True)}

    def fact_of(ref: str) -> Fact:
        # In a body a reference is an argument, or `node:output:number`.
        name, _, output = ref.partition(":")
        output, _, number = output.partition(":")
        return facts.get(f"{name}:{_OUTPUT_INDEX.get(output, 0) + int(number or 0)}", UNKNOWN)

    for node in topological_order(function.nodes):
        inputs = [fact_of(ref) for ref in node.data_inputs]
        outcome, outputs = _carried(node, inputs, caller.tables, graph)
        if outcome is not None and (outcome.swaps or outcome.combine):
            raise caller.refused(f"{node.op} {node.name!r} in its branch needs values outside of a part")
        for k, fact in enumerate(outputs):
            facts[f"{node.name}:{k}"] = fact
    return [fact_of(function.results[out.name]) for out in function.outputs]


def spread_along(step: TrainGraph) -> tuple[Spread, ...]:
    """For each axis, the spread of updates if all trainables that have the axis are cut along it."""
    shapes = _shapes(step)
    rank = max(map(len, shapes.values()), default=0)
    return tuple(
        spread(step, {name: axis for name, shape in shapes.items() if axis < len(shape)})
        for axis in range(rank)
    )


def axes_to_cut(step: TrainGraph, spreads: Sequence[Spread]) -> dict[str, tuple[int, ...]]:
    """Trainable → axes along which it can be cut.

    Args:
        spreads: spread of the same step along each axis.
    """
    shapes = _shapes(step)
    return {
        b.variable: tuple(
            axis
            for axis, length in enumerate(shapes.get(b.variable, ()))
            if length > 1 and b.variable not in spreads[axis].refused
        )
        for b in step.gradients()
    }


def _shapes(step: TrainGraph) -> dict[str, tuple[int, ...]]:
    crossing = {b.variable for b in step.gradients()}
    dims = {v.name: v.shape.dims for v in step.variables if v.name in crossing}
    return {name: shape for name, shape in dims.items() if shape is not None and -1 not in shape}


_OUTSIDE = ""
"""Placeholder for readers of an update's results that are not updates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReach:
    """Dependencies between updates.

    Attributes:
        apart: trainables whose value and slots no other update reads.
        shared_gradients: trainables whose gradient other updates read, as global-norm clipping does.
        readers: update node → two, at most, of the variables whose updates need it.
    """

    apart: frozenset[str]
    shared_gradients: frozenset[str]
    readers: Mapping[str, Sequence[str]]

    def parts_apart(self, propagated: Spread) -> frozenset[str]:
        """Trainables whose parts do not depend on each other's updates.

        A reduction over a whole gradient that all updates read is available to all replicas.
        """
        together = {
            outcome.variable
            for node, outcome in propagated.outcomes.items()
            if outcome.combine is not None and list(self.readers.get(node, ())) == [outcome.variable]
        }
        return self.apart - together - set(propagated.refused)


def update_reach(step: TrainGraph) -> UpdateReach:
    """Find the updates that depend on each other, backwards from assignments and other readers."""
    readers = _readers(step)
    gradients = {n: b.variable for b in step.gradients() for n in (b.values, b.indices) if n is not None}
    trainables = set(gradients.values())
    families = {v.handle: v.slot_of or v.name for v in step.variables}
    apart, shared = set(trainables), set()
    for node, names in readers.items():
        owner = families.get(node)
        if owner in trainables and any(name != owner for name in names):
            apart.discard(owner)
        if node in gradients and any(name != gradients[node] for name in names):
            shared.add(gradients[node])
    return UpdateReach(apart=frozenset(apart), shared_gradients=frozenset(shared), readers=readers)


def _readers(step: TrainGraph) -> dict[str, list[str]]:
    by_name = step.graph.by_name
    update = step.update_nodes()
    own = {n for b in step.boundaries for n in (b.values, b.indices) if n is not None}
    own |= update.union(v.handle for v in step.variables if v.slot_of is not None)
    run = ancestors(step.graph, [*step.targets(), *step.returned()])
    waiting = [(target, region.variable) for region in step.regions for target in region.targets]
    waiting += [
        (producer(ref), _OUTSIDE)
        for name in run - update
        for ref in by_name[name].data_inputs
        if producer(ref) in own
    ]
    readers: dict[str, list[str]] = {}
    while waiting:
        name, reader = waiting.pop()
        names = readers.setdefault(name, [])
        # Two are enough to detect another one, and keep the walk linear.
        if reader in names or len(names) == 2:
            continue
        names.append(reader)
        if name in update:
            waiting += [(producer(ref), reader) for ref in by_name[name].data_inputs]
    return readers
