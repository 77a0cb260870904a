"""Names of the copies of nodes for the parts of a variable, and snippets between a whole and its parts."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from strategies.ir.graph import DType, Node, after, identity, output_index, producer, tensor
from strategies.ir.partitioning.facts import PartUse, RuleOutcome
from strategies.ir.train_graph import TrainGraph
from strategies.ir.variable import Cut
from strategies.tf_bridge.snippet import Snippet


class PartNames:
    """Decides for each node of a step whether it is copied for parts, and names the copies.

    Args:
        cuts: trainable or slot → its cut.
        outcomes: node of the update → outcome of its partitioning rule.
    Attributes:
        variables: cut variables by name.
        handles: cut variables by handle.
        boundaries: node of a cut variable's gradient (of its values, if sparse) → boundary.
        indices: nodes of the ids of sparse gradients.
        reads: nodes outside of the update that read a cut variable; they still return the whole.
        prefix: prefix of all new names; no node of the step has it.
    """

    def __init__(
        self, graph: TrainGraph, cuts: Mapping[str, Cut], outcomes: Mapping[str, RuleOutcome]
    ) -> None:
        self.cuts = cuts
        self.variables = {v.name: v for v in graph.variables if v.name in cuts}
        self.handles = {v.handle: v for v in self.variables.values()}
        self.boundaries = {b.values: b for b in graph.gradients() if b.variable in cuts}
        indices = {b.indices: b for b in self.boundaries.values() if b.indices is not None}
        self.indices = frozenset(indices)
        self.prefix = _free_prefix(graph)
        self._outcomes = outcomes
        # Node → variable; the node has one copy per part of it, in its place or (reads) beside it.
        self._owners: dict[str, str] = {name: o.variable for name, o in outcomes.items()}
        self._owners |= {n: b.variable for n, b in (self.boundaries | indices).items()}
        self._owners |= {n: name for name, v in self.variables.items() for n in v.access}
        reads = [(n, h) for n, h in _readers(graph, self.handles) if n.name not in self._owners]
        self.reads = frozenset(node.name for node, _ in reads)
        # The shape of the whole is a constant, not one of a part.
        self._owners |= {n.name: self.handles[h].name for n, h in reads if n.op != "VariableShape"}

    def n_parts(self, variable: str) -> int:
        """Number of a variable's parts."""
        return self.cuts[variable].n

    def part_shape(self, variable: str, index: int) -> tuple[int, ...]:
        """Shape of a variable's part."""
        return self.cuts[variable].shape(self.variables[variable].shape.dims or (), index)

    def copy(self, node: str, index: int) -> str:
        """Name of a node's copy for a part."""
        return f"{self.prefix}{index}/{node}"

    def owner(self, node: str) -> str | None:
        """Variable for whose parts a node is copied; None if it is not copied."""
        return self._owners.get(node)

    def has_copies_only(self, node: str) -> bool:
        """True if copies replace a node, so that no node of its own name has its result."""
        return self._is_copied(node) and (node not in self._outcomes or self._outcomes[node].combine is None)

    def ref(self, ref: str, index: int) -> str:
        """Reference that a part's copy reads instead of this one."""
        name = producer(ref)
        return tensor(self.copy(name, index), output_index(ref)) if self.has_copies_only(name) else ref

    def waits(self, node: Node, variable: str | None, index: int) -> tuple[str, ...]:
        """Control inputs of a node, or of its copy for a part, in the new graph.

        Args:
            variable: variable whose nodes, and those of its slots, are waited for only in the copy of the
                same part; for other variables all copies are waited for. None waits for all copies of all.
        """
        names: dict[str, None] = {}
        for name in node.control_inputs:
            owner = self._owners.get(name)
            if owner is None:
                names[name] = None
            elif variable is not None and self._family(owner) == self._family(variable):
                names[self.copy(name, index)] = None
            else:
                names |= dict.fromkeys(self.copy(name, other) for other in range(self.n_parts(owner)))
        return after(names)

    def constant(self, node: str, k: int, index: int) -> str:
        """Name of the constant that replaces a node's k-th data input in its copy for a part."""
        return f"{self.copy(node, index)}/input_{k}"

    def copy_with_constants(self, node: str, index: int) -> tuple[str, ...]:
        """Names of a part's nodes for a node: constants that replace its inputs, then its copy."""
        swaps = self._outcomes[node].swaps if node in self._outcomes else {}
        known = sorted(k for k, swap in swaps.items() if swap.use is not PartUse.SLICE)
        return (*(self.constant(node, k, index) for k in known), self.copy(node, index))

    def rewritten(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """Names of these nodes in the new graph, with all copies of copied ones."""
        names: list[str] = []
        for node in nodes:
            if self._is_copied(node):
                for index in range(self.n_parts(self._owners[node])):
                    names += self.copy_with_constants(node, index)
            else:
                names.append(node)
        return tuple(names)

    def _is_copied(self, node: str) -> bool:
        return node in self._owners and node not in self.reads

    def _family(self, name: str) -> str:
        return self.variables[name].slot_of or name


def _readers(graph: TrainGraph, handles: Container[str]) -> Iterator[tuple[Node, str]]:
    for node in graph.graph.nodes:
        if node.data_inputs and producer(node.data_inputs[0]) in handles:
            yield node, producer(node.data_inputs[0])


def _free_prefix(graph: TrainGraph) -> str:
    prefix = "part_"
    while any(name.startswith(prefix) for name in graph.graph.by_name):
        prefix += "_"
    return prefix


class PartSnippets:
    """Splices snippets; the constants of a snippet are the same for all variables, and shared.

    Args:
        prefix: prefix of the shared constants' names.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._constants: dict[int, Node] = {}

    def splice(
        self, snippet: Snippet, prefix: str, inputs: Sequence[str]
    ) -> tuple[list[Node], tuple[str, ...]]:
        """Nodes of a snippet and references of its outputs, as `Snippet.splice` returns them."""
        spliced, refs = snippet.splice(prefix, inputs)
        renamed: dict[str, str] = {}
        nodes: list[Node] = []
        for node in spliced:
            if node.op == "Const":
                # All copies of a snippet's constant share its attributes.
                shared = self._constants.get(id(node.attrs))
                if shared is None:
                    shared = node.changed(name=f"{self._prefix}constants/{len(self._constants)}", inputs=())
                    self._constants[id(node.attrs)] = shared
                    nodes.append(shared)
                renamed[node.name] = shared.name
            elif renamed:
                nodes.append(node.changed(inputs=tuple(renamed.get(ref, ref) for ref in node.inputs)))
            else:
                nodes.append(node)
        return nodes, refs

    def in_place(
        self, node: Node, snippet: Snippet, prefix: str, inputs: Sequence[str], dtype: DType
    ) -> list[Node]:
        """Nodes of a snippet; the node of its only output gets the given node's name."""
        nodes, (ref,) = self.splice(snippet, prefix, inputs)
        if nodes and nodes[-1].name == ref:
            return [*nodes[:-1], nodes[-1].changed(name=node.name)]
        return [*nodes, identity(node.name, ref, dtype)]
