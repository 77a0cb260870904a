"""Patterns of arithmetic on a variable, its slots and its gradient, and where a graph has them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from strategies.ir.graph import Graph, producer

_COMMUTING = frozenset({"AddV2", "Mul"})
_SAME = {"Add": "AddV2"}


@dataclass(frozen=True, slots=True)
class Leaf:
    """Any tensor; the same one wherever a pattern has this name."""

    name: str


@dataclass(frozen=True, slots=True)
class Before:
    """What a slot holds before its assignment."""

    slot: str


@dataclass(frozen=True, slots=True)
class After:
    """What a slot holds after its assignment."""

    slot: str


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation on what matches the patterns of its inputs."""

    op: str
    inputs: tuple["Pattern", ...]


Pattern: TypeAlias = Leaf | Before | After | Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """An assignment by an op, of what matches a pattern."""

    op: str
    value: Pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What of a graph matched so far.

    Attributes:
        leaves: name of a leaf → tensor.
        slots: name of a slot → handle.
        before: name of a slot → its read before the assignment.
        nodes: operations and reads that matched, by name.
    """

    leaves: Mapping[str, str]
    slots: Mapping[str, str]
    before: Mapping[str, str]
    nodes: frozenset[str]


NOTHING = Found(leaves={}, slots={}, before={}, nodes=frozenset())


@dataclass(frozen=True, slots=True, kw_only=True)
class Matcher:
    """Finds patterns in a graph.

    Attributes:
        writers: handle → the one node that writes it in a step; absent where there are several or none.
    """

    graph: Graph
    writers: Mapping[str, str]

    def matches(self, pattern: Pattern, ref: str, found: Found) -> Iterator[Found]:
        """Every way in which a tensor matches, given what matched already."""
        node = self.graph.by_name[producer(ref)]
        if isinstance(pattern, Leaf):
            if found.leaves.get(pattern.name, ref) == ref:
                yield replace(found, leaves={**found.leaves, pattern.name: ref})
            return
        if isinstance(pattern, Operation):
            if _SAME.get(node.op, node.op) != pattern.op or len(node.data_inputs) != len(pattern.inputs):
                return
            orders = [node.data_inputs]
            if pattern.op in _COMMUTING:
                orders.append(node.data_inputs[::-1])
            for order in orders:
                yield from self._all(pattern.inputs, order, replace(found, nodes=found.nodes | {node.name}))
            return
        if node.op == "ReadVariableOp":
            yield from self._read(pattern, node.name, found)

    def _all(self, patterns: tuple[Pattern, ...], refs: tuple[str, ...], found: Found) -> Iterator[Found]:
        if not patterns:
            yield found
            return
        for first in self.matches(patterns[0], refs[0], found):
            yield from self._all(patterns[1:], refs[1:], first)

    def _read(self, pattern: Before | After, name: str, found: Found) -> Iterator[Found]:
        read = self.graph.by_name[name]
        handle = producer(read.data_inputs[0])
        writer = self.writers.get(handle)
        if writer is None or found.slots.get(pattern.slot, handle) != handle:
            return
        if isinstance(pattern, After) != (writer in read.control_inputs):
            return
        before = found.before
        if isinstance(pattern, Before):
            if before.get(pattern.slot, name) != name:
                return
            before = {**before, pattern.slot: name}
        slots = {**found.slots, pattern.slot: handle}
        yield replace(found, slots=slots, before=before, nodes=found.nodes | {name})
