"""Values of variables after each assignment of a step, as tensors: who reads one need not wait."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from strategies.errors import CaptureError
from strategies.ir.graph import DType, Graph, Node

ADDITIONS = frozenset({"AssignAddVariableOp", "AssignSubVariableOp"})
_SUM_OF = {"AssignAddVariableOp": "AddV2", "AssignSubVariableOp": "Sub"}
# What reads of a variable that no assignment changes.
UNCHANGED = frozenset({"VariableShape", "VarIsInitializedOp"})


@dataclass(slots=True)
class WrittenValues:
    """Values after assignments, and the nodes that make them.

    Attributes:
        values: read → the tensor that takes its place.
        lookups: node that looks rows up → the same on the written value.
        waits: read, gone or kept → the write that it waited for.
        before: write → nodes to stand before it; it waits for those that read.
    """

    graph: Graph
    values: dict[str, str] = field(default_factory=dict)
    lookups: dict[str, Node] = field(default_factory=dict)
    waits: dict[str, str] = field(default_factory=dict)
    before: dict[str, list[Node]] = field(default_factory=dict)

    def take(
        self, variable: str, dtype: DType, writes: Mapping[str, bool], reads: Iterable[str]
    ) -> dict[str, str]:
        """Give reads that come after writes the written value instead.

        Args:
            writes: assignments of the variable, in order → whether reads may take what it assigns.
            reads: nodes that read the variable.
        Returns:
            read that no longer waits → the write that it waited for.
        Raises:
            CaptureError: when a loop, a branch or another node that takes the variable itself comes after
                such a write.
        """
        order = {name: i for i, name in enumerate(writes)}
        taken: dict[str, str] = {}
        for name in reads:
            node = self.graph.by_name[name]
            last = max((c for c in node.control_inputs if c in order), key=order.__getitem__, default=None)
            if last is None or not writes[last]:
                continue
            if node.op == "ReadVariableOp":
                self.values[name] = self._after(last, dtype, writes)
            elif node.op == "ResourceGather" and not node.attrs.get("batch_dims"):
                inputs = (self._after(last, dtype, writes), *node.inputs[1:])
                attrs = {"Tparams": dtype, "Tindices": node.attrs["Tindices"]}
                self.lookups[name] = replace(node, op="Gather", inputs=inputs, attrs=attrs)
            elif node.op not in UNCHANGED:
                raise CaptureError(
                    f"variable {variable!r}: what the forward pass assigns must be read at the top of the "
                    f"step, got {node.op} {name!r}; assign a value, and use that value",
                    node=name,
                )
            taken[name] = self.waits[name] = last
        return taken

    def _after(self, write_name: str, dtype: DType, writes: Mapping[str, bool]) -> str:
        """The variable's value after a write."""
        write = self.graph.by_name[write_name]
        if write.op not in ADDITIONS:
            return write.inputs[1]
        sum_name = f"{write.name}/value"
        own = self.before.setdefault(write.name, [])
        if all(node.name != sum_name for node in own):
            earlier = list(writes)[: list(writes).index(write_name)]
            if earlier and writes[earlier[-1]]:
                start = self._after(earlier[-1], dtype, writes)
            else:
                start = f"{write.name}/before"
                inputs = (write.inputs[0], *(f"^{c}" for c in write.control_inputs))
                own.append(Node(name=start, op="ReadVariableOp", inputs=inputs, attrs={"dtype": dtype}))
            inputs = (start, write.inputs[1])
            own.append(Node(name=sum_name, op=_SUM_OF[write.op], inputs=inputs, attrs={"T": dtype}))
        return sum_name

    def ending(self) -> dict[str, str]:
        """Read → the tensor in its place, followed to its end: a written value may be such a read itself."""
        return {name: self._end(ref) for name, ref in self.values.items()}

    def _end(self, ref: str) -> str:
        while ref in self.values:
            ref = self.values[ref]
        return ref

    def inserted(self, nodes: Iterable[Node]) -> Iterator[Node]:
        """Nodes, lookups too, with those that make values before each write, which waits for what reads."""
        for node in nodes:
            added = self.before.get(node.name, ())
            yield from added
            reads = tuple(f"^{a.name}" for a in added if a.op == "ReadVariableOp")
            after_reads = replace(node, inputs=(*node.inputs, *reads)) if reads else node
            yield self.lookups.get(node.name, after_reads)


def without_waits(node: Node, gone: Collection[str]) -> Node:
    """The node, which waits for none of these."""
    if not any(c in gone for c in node.control_inputs):
        return node
    return replace(node, inputs=tuple(ref for ref in node.inputs if ref[0] != "^" or ref[1:] not in gone))


def waiting_elsewhere(node: Node, instead: Mapping[str, str]) -> Node:
    """The node, which waits for others in place of these."""
    if instead.keys().isdisjoint(node.control_inputs):
        return node
    waits = dict.fromkeys(f"^{instead.get(c, c)}" for c in node.control_inputs)
    return replace(node, inputs=(*node.data_inputs, *waits))


def is_assignment(node: Node) -> bool:
    """Whether a node assigns one variable, or adds to it, and does nothing else."""
    return node.op == "AssignVariableOp" or node.op in ADDITIONS
