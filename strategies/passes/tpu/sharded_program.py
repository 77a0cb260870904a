"""Programs with partitioned variables: a replica updates its own part and gathers reads.

Assigned values are needed in parts. This need is propagated back through elementwise operations to values
that are already in parts, and to sums over replicas, which become reduce-scatters. Other uses gather a whole
copy for one call.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from strategies.ir.graph import Attr, Graph, Node, Shape, after, identity, producer
from strategies.ir.ops import ASSIGNMENTS, DENSE_UPDATES, ELEMENTWISE
from strategies.ir.traversal import ancestors, topological_order
from strategies.numerics.resharding import part_length, part_of, summed_part, whole_of
from strategies.passes.tpu.computations import PLACE, PLACE_SPEC, Member, Program
from strategies.passes.tpu.replicated_computation import SUM
from strategies.passes.tpu.scopes import handle_node
from strategies.tf_bridge.snippet import TensorSpec, trace

RESHAPES = frozenset({"EnsureShape", "ExpandDims", "Reshape", "Squeeze"})
"""Ops whose result has the values of the first input in the same order."""
_SCALAR = Shape(())


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionedVariable:
    """A variable that is partitioned during a loop.

    Attributes:
        argument: argument of the handle of the whole variable.
        spec: type and known shape of the whole variable.
        shared_name: shared name of this replica's part.
    """

    argument: str
    spec: TensorSpec
    shared_name: str

    @property
    def dims(self) -> tuple[int, ...]:
        assert self.spec.shape.dims is not None
        return self.spec.shape.dims


@dataclass(frozen=True, kw_only=True)
class PartitionedValues:
    """Values of a program for which parts are sufficient.

    Attributes:
        parted: argument → its partitioned variable.
        whole_sums: sums over replicas that the program needs as a whole in any case.
    """

    program: Program
    parted: Mapping[str, PartitionedVariable]
    specs: Mapping[str, TensorSpec]
    whole_sums: frozenset[str] = frozenset()

    @cached_property
    def handles(self) -> Mapping[str, str]:
        handles = {name: name for name in self.parted}
        for node in topological_order(self.program.nodes):
            if node.op == "Identity" and node.data_inputs[0] in handles:
                handles[node.name] = handles[node.data_inputs[0]]
        return handles

    def handles_in(self, node: Node) -> list[str]:
        if node.name in self.handles:
            return []
        return list(dict.fromkeys(self.handles[ref] for ref in node.data_inputs if ref in self.handles))

    @cached_property
    def users(self) -> Mapping[str, tuple[Node, ...]]:
        users: dict[str, list[Node]] = {name: [] for name in self.parted}
        handed_on: dict[str, list[str]] = {}
        for node in topological_order(self.program.nodes):
            # A loop returns handles that it received, and TensorFlow may use one for the other.
            refs = [
                *self.handles_in(node),
                *(name for ref in self._handles_of(node) for name in handed_on.get(ref, ())),
            ]
            for name in dict.fromkeys(refs):
                users[name].append(node)
            handed_on[node.name] = refs
        return {name: tuple(nodes) for name, nodes in users.items()}

    def _handles_of(self, node: Node) -> list[str]:
        return [producer(ref) for ref in node.data_inputs if self.specs[ref].dtype == "resource"]

    @cached_property
    def whole(self) -> frozenset[str]:
        """Arguments whose variables the program also uses as a whole."""
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
            handle = self.handles.get(ref)
            if handle is not None:
                fits = handle not in whole and self.parted[handle].spec.shape == shape
            else:
                spec = self.specs[ref]
                is_scalar = node.op in DENSE_UPDATES and spec.shape == _SCALAR and spec.dtype != "resource"
                fits = is_scalar or spec.shape == shape
            if not fits:
                return False
        return True

    @cached_property
    def reads(self) -> Mapping[str, str]:
        return {
            node.name: name
            for name, users in self.users.items()
            if name not in self.whole
            for node in users
            if node.op == "ReadVariableOp"
        }

    @cached_property
    def sums(self) -> frozenset[str]:
        """Sums over replicas whose part costs less than the whole."""
        return frozenset(
            node.name
            for node in self.program.nodes
            if node.op == SUM and node.name not in self.whole_sums and _is_known(self.specs[node.name].shape)
        )

    @cached_property
    def in_parts(self) -> Mapping[str, Node]:
        """Nodes whose part can be computed without their whole value."""
        parted: dict[str, Node] = {}
        for node in topological_order(self.program.nodes):
            if (
                node.name in self.reads
                or node.name in self.sums
                or self._is_elementwise(node, parted)
                or self._is_reshaped(node, parted)
            ):
                parted[node.name] = node
        return parted

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
        return self.specs[ref].shape == _SCALAR


def _is_known(shape: Shape) -> bool:
    return bool(shape.dims) and min(shape.dims or (-1,)) >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedProgram:
    """A program with partitioned variables.

    Attributes:
        keys: node or argument → instance key of the collective that gathers its value or sums it in parts.
    """

    values: PartitionedValues
    member: Member
    keys: Mapping[str, int]

    def rewritten(self) -> Program:
        program = self._sharded()
        live = ancestors(Graph(nodes=program.nodes), program.roots(), stop=program.arguments)
        whole_sums = frozenset(name for name in self.values.sums if name in live)
        if whole_sums:
            values = replace(self.values, whole_sums=self.values.whole_sums | whole_sums)
            return replace(self, values=values).rewritten()
        return program.with_nodes(node for node in program.nodes if node.name in live)

    def waits(self, node: Node) -> tuple[str, ...]:
        return tuple(
            f"^{part_name(name)}" if name in self.values.reads else f"^{name}" for name in node.control_inputs
        )

    def _sharded(self) -> Program:
        parts = _Parts(program=self)
        nodes: list[Node] = []
        for node in self.values.program.nodes:
            handles = self.values.handles_in(node)
            if node.name in self.values.reads:
                nodes += self._read(node)
            elif handles and self.values.whole.isdisjoint(handles):
                nodes.append(self._written(node, parts))
            else:
                inputs = (_whole_name(ref) if ref in self.values.whole else ref for ref in node.data_inputs)
                nodes.append(node.changed(inputs=(*inputs, *self.waits(node))))
        nodes += parts.nodes()
        nodes += [
            self.member.place_node(),
            *(self._part_handle(variable) for variable in self.values.parted.values()),
        ]
        ends = []
        for name in sorted(self.values.whole):
            users = {node.name for node in self.values.users[name]}
            *begin, ready = self._put_together(name)
            nodes = [node.waiting_for(ready.name) if node.name in users else node for node in nodes]
            *end, deletion = self._taken_apart(name, ready.name)
            nodes += [*begin, ready, *end, deletion]
            ends.append(deletion.name)
        return self.values.program.with_nodes(nodes, waits=ends)

    def _written(self, node: Node, parts: "_Parts") -> Node:
        inputs = (
            _handle_name(self.values.handles[ref])
            if ref in self.values.handles
            else (ref if node.op in DENSE_UPDATES and self.values.is_scalar(ref) else parts.of(ref))
            for ref in node.data_inputs
        )
        return node.changed(inputs=(*inputs, *self.waits(node)))

    def _read(self, node: Node) -> Iterator[Node]:
        variable = self.values.parted[self.values.reads[node.name]]
        part = _read_of(part_name(node.name), _handle_name(variable.argument), variable, self.waits(node))
        yield part
        nodes, whole = self._gathered(variable, part.name, node.name, f"{node.name}/whole/")
        yield from nodes
        yield identity(node.name, whole, variable.spec.dtype)

    def _gathered(
        self, variable: PartitionedVariable, part: str, key: str, prefix: str
    ) -> tuple[tuple[Node, ...], str]:
        length = part_length(variable.dims, self.member.group[0])
        gather = trace(
            whole_of,
            (TensorSpec(dtype=variable.spec.dtype, shape=Shape((length,))),),
            shape=variable.dims,
            group=self.member.group,
            order=self.member.order,
            key=self.keys[key],
        )
        nodes, (whole,) = gather.splice(prefix, [part])
        return nodes, whole

    def _put_together(self, name: str) -> list[Node]:
        """Gather a whole copy before any use; others may use the variable itself."""
        variable = self.values.parted[name]
        handle = handle_node(
            _whole_name(name),
            shared_name=f"{variable.shared_name}/whole",
            dtype=variable.spec.dtype,
            shape=variable.spec.shape,
        )
        part = _read_of(f"{name}/restored/part", _handle_name(name), variable, ())
        nodes, whole = self._gathered(variable, part.name, name, f"{name}/restored/")
        assigned = _assignment(f"{name}/restored/assigned", handle.name, whole, variable, ())
        return [handle, part, *nodes, assigned]

    def _taken_apart(self, name: str, ready: str) -> list[Node]:
        """Store the copy's value in parts, after all other nodes."""
        variable = self.values.parted[name]
        ends = after(dict.fromkeys((ready, *self.values.program.roots())))
        read = _read_of(f"{name}/kept/whole", _whole_name(name), variable, ends)
        nodes, part = self.cut(read.name, variable.spec, f"{name}/kept/")
        assigned = _assignment(f"{name}/kept/assigned", _handle_name(name), part, variable, ())
        deletion = Node(
            name=f"{name}/kept/gone",
            op="DestroyResourceOp",
            inputs=(_whole_name(name), f"^{assigned.name}"),
            attrs={"ignore_lookup_error": True},
        )
        return [read, *nodes, assigned, deletion]

    def cut(self, ref: str, spec: TensorSpec, prefix: str) -> tuple[tuple[Node, ...], str]:
        snippet = trace(part_of, (spec, PLACE_SPEC), n_parts=self.member.group[0])
        nodes, (part,) = snippet.splice(prefix, [ref, PLACE])
        return nodes, part

    def _part_handle(self, variable: PartitionedVariable) -> Node:
        shape = Shape((part_length(variable.dims, self.member.group[0]),))
        return handle_node(
            _handle_name(variable.argument),
            shared_name=variable.shared_name,
            dtype=variable.spec.dtype,
            shape=shape,
        )


class _Parts:
    """Parts of values, created on request."""

    def __init__(self, program: ShardedProgram) -> None:
        self._program = program
        self._part_names: dict[str, str] = {}

    def of(self, ref: str) -> str:
        if ref not in self._part_names:
            self._part_names[ref] = (
                part_name(ref) if ref in self._program.values.in_parts else f"cut/{_plain(ref)}/part"
            )
        return self._part_names[ref]

    def nodes(self) -> Iterator[Node]:
        done: set[str] = set()
        while waiting := [ref for ref in self._part_names if ref not in done]:
            for ref in waiting:
                done.add(ref)
                yield from self._nodes_of(ref)

    def _nodes_of(self, ref: str) -> Iterator[Node]:
        program, node = self._program, self._program.values.in_parts.get(ref)
        spec = program.values.specs[ref]
        if node is None:
            nodes, part = program.cut(ref, spec, f"cut/{_plain(ref)}/")
        elif node.op == "ReadVariableOp":
            return
        elif node.op == SUM:
            snippet = trace(
                summed_part,
                (spec, PLACE_SPEC),
                group=program.member.group,
                order=program.member.order,
                key=program.keys[node.name],
            )
            nodes, (part,) = snippet.splice(
                f"{node.name}/scattered/",
                [node.data_inputs[0], PLACE],
                control=[wait[1:] for wait in program.waits(node)],
            )
        elif node.op in RESHAPES:
            inputs = (self.of(node.data_inputs[0]), *program.waits(node))
            yield Node(name=part_name(ref), op="Identity", inputs=inputs, attrs={"T": spec.dtype})
            return
        else:
            part_inputs = (
                data_input if program.values.is_scalar(data_input) else self.of(data_input)
                for data_input in node.data_inputs
            )
            yield node.changed(name=part_name(ref), inputs=(*part_inputs, *program.waits(node)))
            return
        yield from nodes
        yield identity(self._part_names[ref], part, spec.dtype)


def part_name(name: str) -> str:
    """Name of the part of a node's value."""
    return f"{name}/part"


def _handle_name(argument: str) -> str:
    return f"{argument}/part_handle"


def _whole_name(argument: str) -> str:
    return f"{argument}/whole_handle"


def _plain(ref: str) -> str:
    return ref.replace(":", "_")


def _read_of(name: str, handle: str, variable: PartitionedVariable, waits: Iterable[str]) -> Node:
    attrs: dict[str, Attr] = {"dtype": variable.spec.dtype}
    return Node(name=name, op="ReadVariableOp", inputs=(handle, *waits), attrs=attrs)


def _assignment(
    name: str, handle: str, ref: str, variable: PartitionedVariable, waits: Iterable[str]
) -> Node:
    attrs: dict[str, Attr] = {"dtype": variable.spec.dtype, "validate_shape": False}
    return Node(name=name, op="AssignVariableOp", inputs=(handle, ref, *waits), attrs=attrs)
