"""TensorFlow's fused update kernels, and the patterns of Keras's optimizers that each of them replaces.

Kernels: the op documentation of TensorFlow 2.21 (https://www.tensorflow.org/api_docs/python/tf/raw_ops);
arithmetic: `update_step` in Keras 3's `keras/src/optimizers`. Only patterns that are equal in exact
arithmetic are included: Keras's Adagrad and RMSprop add epsilon before the square root, which no kernel does
without a slot that the optimizer lacks (`docs/decisions/0048-fused-updates.md`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from strategies.ir.graph import Graph, producer

_COMMUTING = frozenset({"AddV2", "Mul"})
_SAME = {"Add": "AddV2"}


@dataclass(frozen=True, slots=True)
class Leaf:
    """Any tensor; every leaf of the same name in a pattern is the same tensor."""

    name: str


@dataclass(frozen=True, slots=True)
class Before:
    """Value of a slot before its assignment."""

    slot: str


@dataclass(frozen=True, slots=True)
class After:
    """Value of a slot after its assignment."""

    slot: str


@dataclass(frozen=True, slots=True)
class Operation:
    """Operation whose inputs match these patterns."""

    op: str
    inputs: tuple["Pattern", ...]


Pattern: TypeAlias = Leaf | Before | After | Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Assignment by an op, of a value that matches a pattern."""

    op: str
    value: Pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Parts of a graph that matched so far.

    Attributes:
        leaves: name of a leaf → matched tensor.
        slots: name of a slot → matched handle.
        before: name of a slot → read of it before the assignment.
        nodes: matched operations and reads, by name.
    """

    leaves: Mapping[str, str]
    slots: Mapping[str, str]
    before: Mapping[str, str]
    nodes: frozenset[str]


NOTHING = Match(leaves={}, slots={}, before={}, nodes=frozenset())


@dataclass(frozen=True, slots=True, kw_only=True)
class Matcher:
    """Finds patterns in a graph.

    Attributes:
        writers: handle → only node that writes it in a step; absent if there is none or more than one.
    """

    graph: Graph
    writers: Mapping[str, str]

    def matches(self, pattern: Pattern, ref: str, match: Match) -> Iterator[Match]:
        """All ways in which a tensor matches a pattern, given the matches so far."""
        node = self.graph.by_name[producer(ref)]
        if isinstance(pattern, Leaf):
            if match.leaves.get(pattern.name, ref) == ref:
                yield replace(match, leaves={**match.leaves, pattern.name: ref})
            return
        if isinstance(pattern, Operation):
            if _SAME.get(node.op, node.op) != pattern.op or len(node.data_inputs) != len(pattern.inputs):
                return
            orders = [node.data_inputs]
            if pattern.op in _COMMUTING:
                orders.append(node.data_inputs[::-1])
            for order in orders:
                yield from self._all(pattern.inputs, order, replace(match, nodes=match.nodes | {node.name}))
            return
        if node.op == "ReadVariableOp":
            yield from self._read(pattern, node.name, match)

    def _all(self, patterns: tuple[Pattern, ...], refs: tuple[str, ...], match: Match) -> Iterator[Match]:
        if not patterns:
            yield match
            return
        for first in self.matches(patterns[0], refs[0], match):
            yield from self._all(patterns[1:], refs[1:], first)

    def _read(self, pattern: Before | After, name: str, match: Match) -> Iterator[Match]:
        read = self.graph.by_name[name]
        handle = producer(read.data_inputs[0])
        writer = self.writers.get(handle)
        if writer is None or match.slots.get(pattern.slot, handle) != handle:
            return
        if isinstance(pattern, After) != (writer in read.control_inputs):
            return
        before = match.before
        if isinstance(pattern, Before):
            if before.get(pattern.slot, name) != name:
                return
            before = {**before, pattern.slot: name}
        slots = {**match.slots, pattern.slot: handle}
        yield replace(match, slots=slots, before=before, nodes=match.nodes | {name})


@dataclass(frozen=True, slots=True)
class Slot:
    """Handle of a slot, as an input of a kernel."""

    name: str


@dataclass(frozen=True, slots=True)
class OneMinus:
    """One minus a leaf, as an input of a kernel."""

    name: str


GRADIENT, RATE = Leaf("gradient"), Leaf("rate")
Input: TypeAlias = Literal["variable", "zero", "one"] | Slot | Leaf | OneMinus


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A fused kernel.

    Attributes:
        step: assignment of the variable itself.
        slots: name of a slot → its assignment, in any order.
        inputs: inputs of the kernel, in order.
    """

    op: str
    step: Assignment
    inputs: tuple[Input, ...]
    slots: Mapping[str, Assignment] = field(default_factory=dict)
    attrs: Mapping[str, bool] = field(default_factory=dict)

    @property
    def scalars(self) -> tuple[str, ...]:
        """Names of the scalar leaves: all but the gradient, which has the variable's shape."""
        names = (
            kernel_input.name for kernel_input in self.inputs if isinstance(kernel_input, Leaf | OneMinus)
        )
        return tuple(name for name in names if name != GRADIENT.name)

    @property
    def subtracted(self) -> tuple[str, ...]:
        """Names of the leaves that the kernel gets as 1 - x, and subtracts from one again."""
        return tuple(kernel_input.name for kernel_input in self.inputs if isinstance(kernel_input, OneMinus))


def _op(name: str, *inputs: Pattern) -> Operation:
    return Operation(name, inputs)


_MOVED = _op("Mul", GRADIENT, RATE)


def _carried(momentum: Before | After) -> Operation:
    return _op("Sub", _op("Mul", momentum, Leaf("factor")), _MOVED)


def _momentum(*, nesterov: bool) -> Kernel:
    after = After("momentum")
    return Kernel(
        op="ResourceApplyKerasMomentum",
        step=Assignment(op="AssignAddVariableOp", value=_carried(after) if nesterov else after),
        slots={"momentum": Assignment(op="AssignVariableOp", value=_carried(Before("momentum")))},
        inputs=("variable", Slot("momentum"), RATE, GRADIENT, Leaf("factor")),
        attrs={"use_nesterov": nesterov},
    )


# Keras's Adam except its second average, which stays as captured: the kernel reads the stored average (of
# AMSGrad the largest so far) and, with β = 1, adds nothing to it. The kernel's own average would use 1 - (1 -
# 0.999), which in float32 is off by 1e-5. Keras corrects both averages in the learning rate, so that the
# kernel's own corrections, by powers, use powers of zero.
_ADAM = Kernel(
    op="ResourceApplyAdam",
    step=Assignment(
        op="AssignSubVariableOp",
        value=_op(
            "RealDiv",
            _op("Mul", After("momentum"), RATE),
            _op("AddV2", _op("Sqrt", After("velocity")), Leaf("epsilon")),
        ),
    ),
    slots={
        "momentum": Assignment(
            op="AssignAddVariableOp",
            value=_op("Mul", _op("Sub", GRADIENT, Before("momentum")), Leaf("share")),
        )
    },
    inputs=(
        *("variable", Slot("momentum"), Slot("velocity"), "zero", "zero"),
        *(RATE, OneMinus("share"), "one", Leaf("epsilon"), GRADIENT),
    ),
    attrs={"use_nesterov": False},
)
KERNELS = (
    _ADAM,
    _momentum(nesterov=False),
    _momentum(nesterov=True),
    # AdamW's decay is a step of this form too, along the variable itself.
    Kernel(
        op="ResourceApplyGradientDescent",
        step=Assignment(op="AssignSubVariableOp", value=_MOVED),
        inputs=("variable", RATE, GRADIENT),
    ),
)
