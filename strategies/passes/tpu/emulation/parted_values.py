"""What of a program can be done with variables in parts: reads, elementwise values, sums, assignments.

What is assigned to a variable in parts is needed in parts. That is carried back through elementwise
operations to values that are in parts already, and to sums over replicas.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from strategies.ir.graph import Node, Shape, producer
from strategies.ir.partitioning.elementwise_ops import ASSIGNMENTS, DENSE_UPDATES, ELEMENTWISE
from strategies.ir.traversal import topological_order
from strategies.passes.tpu.emulation.program import Program
from strategies.passes.tpu.replicated.replicated_nodes import SUM
from strategies.tf_bridge.snippet import TensorSpec

RESHAPES = frozenset({"EnsureShape", "ExpandDims", "Reshape", "Squeeze"})
"""Ops whose result has the values of the first input, in the same order."""
_SCALAR = Shape(())


@dataclass(frozen=True, slots=True, kw_only=True)
class PartedVariable:
    """A variable that lies in parts while a loop runs.

    Attributes:
        argument: of the program, by which it takes the handle of the whole.
        spec: of the whole; all of its shape is known.
        shared_name: of this replica's part.
    """

    argument: str
    spec: TensorSpec
    shared_name: str

    @property
    def dims(self) -> tuple[int, ...]:
        """Shape of the whole."""
        assert self.spec.shape.dims is not None
        return self.spec.shape.dims


@dataclass(frozen=True, kw_only=True)
class PartedValues:
    """Values of a program that parts serve; without slots, for what is derived is kept.

    Attributes:
        parted: argument → its variable, of those in parts.
        specs: of each tensor of the program.
        whole_sums: sums over replicas that the program needs whole anyway.
    """

    program: Program
    parted: Mapping[str, PartedVariable]
    specs: Mapping[str, TensorSpec]
    whole_sums: frozenset[str] = frozenset()

    @cached_property
    def handles(self) -> Mapping[str, str]:
        """Reference → the argument whose handle it is, of variables that lie in parts."""
        handles = {name: name for name in self.parted}
        for node in topological_order(self.program.nodes):
            if node.op == "Identity" and node.data_inputs[0] in handles:
                handles[node.name] = handles[node.data_inputs[0]]
        return handles

    def taken(self, node: Node) -> list[str]:
        """Arguments whose handles a node takes."""
        if node.name in self.handles:
            return []
        return list(dict.fromkeys(self.handles[ref] for ref in node.data_inputs if ref in self.handles))

    @cached_property
    def users(self) -> Mapping[str, tuple[Node, ...]]:
        """Argument → nodes that take its handle."""
        users: dict[str, list[Node]] = {name: [] for name in self.parted}
        handed_on: dict[str, list[str]] = {}
        for node in topological_order(self.program.nodes):
            # A loop gives handles that it was given, and TensorFlow may take the one for the other.
            taken = [
                *self.taken(node),
                *(name for ref in self._handles_of(node) for name in handed_on.get(ref, ())),
            ]
            for name in dict.fromkeys(taken):
                users[name].append(node)
            handed_on[node.name] = taken
        return {name: tuple(nodes) for name, nodes in users.items()}

    def _handles_of(self, node: Node) -> list[str]:
        """Nodes whose handles a node takes."""
        return [producer(ref) for ref in node.data_inputs if self.specs[ref].dtype == "resource"]

    @cached_property
    def whole(self) -> frozenset[str]:
        """Arguments with whose variables the program does more than can be done with parts."""
        whole: set[str] = set()
        while True:
            more = {
                name
                for name, users in self.users.items()
                if name not in whole and not all(self._does_with_parts(node, name, whole) for node in users)
            }
            if not more:
                return frozenset(whole)
            whole |= more

    def _does_with_parts(self, node: Node, name: str, whole: set[str]) -> bool:
        if node.op == "ReadVariableOp":
            return True
        if node.op not in ASSIGNMENTS | DENSE_UPDATES:
            return False
        shape = self.parted[name].spec.shape
        if shape == _SCALAR:
            return False
        for ref in node.data_inputs:
            taken = self.handles.get(ref)
            if taken is not None:
                fits = taken not in whole and self.parted[taken].spec.shape == shape
            else:
                spec = self.specs[ref]
                is_scalar = node.op in DENSE_UPDATES and spec.shape == _SCALAR and spec.dtype != "resource"
                fits = is_scalar or spec.shape == shape
            if not fits:
                return False
        return True

    @cached_property
    def reads(self) -> Mapping[str, str]:
        """Node that reads a variable in parts → its argument."""
        return {
            node.name: name
            for name, users in self.users.items()
            if name not in self.whole
            for node in users
            if node.op == "ReadVariableOp"
        }

    @cached_property
    def sums(self) -> frozenset[str]:
        """Sums over replicas of which a part costs less than the whole."""
        return frozenset(
            node.name
            for node in self.program.nodes
            if node.op == SUM and node.name not in self.whole_sums and _is_known(self.specs[node.name].shape)
        )

    @cached_property
    def in_parts(self) -> Mapping[str, Node]:
        """Nodes whose value can be had in parts without having it whole."""
        found: dict[str, Node] = {}
        for node in topological_order(self.program.nodes):
            if (
                node.name in self.reads
                or node.name in self.sums
                or self._is_elementwise(node, found)
                or self._is_reshaped(node, found)
            ):
                found[node.name] = node
        return found

    def _is_reshaped(self, node: Node, in_parts: Mapping[str, Node]) -> bool:
        return (
            node.op in RESHAPES
            and node.data_inputs[0] in in_parts
            and _is_known(self.specs[node.name].shape)
            and _is_known(self.specs[node.data_inputs[0]].shape)
        )

    def _is_elementwise(self, node: Node, in_parts: Mapping[str, Node]) -> bool:
        if node.op not in ELEMENTWISE or not node.data_inputs:
            return False
        shape = self.specs[node.name].shape
        of_parts = [ref for ref in node.data_inputs if not self.is_scalar(ref)]
        return (
            _is_known(shape)
            and all(self.specs[ref].shape == shape for ref in of_parts)
            and any(ref in in_parts for ref in of_parts)
        )

    def is_scalar(self, ref: str) -> bool:
        """Whether a tensor is the same for every part."""
        return self.specs[ref].shape == _SCALAR


def _is_known(shape: Shape) -> bool:
    return bool(shape.dims) and min(shape.dims or (-1,)) >= 0
