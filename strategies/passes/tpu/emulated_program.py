"""Programs that a replica's device runs instead of a TPU core."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from strategies.errors import GraphError
from strategies.ir.control_flow import LoopFrames
from strategies.ir.graph import DType, Function, FunctionRef, Graph, Node, Shape, identity, producer
from strategies.ir.ops import READ_OPS
from strategies.ir.random_ops import reseed
from strategies.ir.tensor_proto import constant_array
from strategies.ir.traversal import reachable_functions
from strategies.numerics.collectives import summed
from strategies.passes.tpu.computations import Computation, Member, Program, read_computation
from strategies.passes.tpu.replicated_computation import SUM
from strategies.passes.tpu.scopes import Scope, Scopes, handle_node, variable_of
from strategies.passes.tpu.sharded_program import PartitionedValues, PartitionedVariable, ShardedProgram
from strategies.tf_bridge.function_bodies import OUTPUT_SHAPES, body_of
from strategies.tf_bridge.op_types import op_definition
from strategies.tf_bridge.snippet import TensorSpec, static_specs, trace

RESHARD = "TPUReshardVariables"
_RESOURCE = DType("resource")
BARRIER = "all have their parts"
"""Name of the collective that ends once no replica needs a whole variable any more."""
_COLLECTIVE = (SUM, "ReadVariableOp")
"""Ops of a program that become or may become collectives."""
_WITHOUT_EFFECT = READ_OPS | {"VarHandleOp", SUM}


@dataclass(frozen=True, kw_only=True)
class EmulatedComputation:
    """A computation and the values that its emulation needs.

    Attributes:
        label: label, unique in the graph and its functions.
        program: program of every replica, with whole variables.
        variables: position of an argument → its variable.
        resharded: positions of arguments that are resharded before the program runs.
        library: functions that the program may call.
    """

    label: str
    computation: Computation
    program: Program
    variables: Mapping[int, TensorSpec]
    resharded: tuple[int, ...]
    library: Mapping[str, Function]

    @classmethod
    def of(
        cls, scopes: Scopes, scope: Scope, node: Node, library: Mapping[str, Function]
    ) -> "EmulatedComputation":
        try:
            computation = read_computation(scope, node)
            program = _program(computation, library)
            variables = dict(_variables(scopes, scope, computation))
        except GraphError as error:
            raise GraphError(f"computation {node.name!r}: {error}") from None
        positions = _resharded(scope, computation)
        if any(_size(variables[position]) < 0 for position in positions if position in variables):
            raise GraphError("shapes of partitioned variables must be known, got one that is not")
        label = "/".join(filter(None, (scope.name, node.name)))
        return cls(
            label=label,
            computation=computation,
            program=program,
            variables=variables,
            resharded=positions,
            library=library,
        )

    @property
    def name(self) -> str:
        return self.computation.compile.name

    @cached_property
    def specs(self) -> Mapping[str, TensorSpec]:
        nodes = (
            _argument(name, dtype, self.variables.get(position), self._shape(position))
            for position, (name, dtype) in enumerate(self.program.arguments.items())
        )
        return static_specs(Graph(nodes=(*nodes, *self.program.nodes), functions=self.library))

    def _shape(self, position: int) -> Shape:
        called = self.computation.compile.attrs["function"]
        assert isinstance(called, FunctionRef)
        shapes = self.library[called.name].arg_attrs.get(position, {}).get(OUTPUT_SHAPES)
        known = shapes[0] if isinstance(shapes, tuple) and shapes else None
        return known if isinstance(known, Shape) else Shape(None)

    def collectives(self) -> Iterator[str]:
        for node in self.program.nodes:
            if node.op in _COLLECTIVE:
                yield self.collective(node.name)
        for argument in self.program.arguments:
            yield self.collective(argument)
        yield self.collective(BARRIER)

    def collective(self, what: str) -> str:
        return f"{self.label}/{what}"

    @property
    def parted(self) -> tuple[int, ...]:
        return tuple(position for position in self.resharded if _size(self.variables[position]) > 0)

    @property
    def parted_arguments(self) -> tuple[str, ...]:
        arguments = tuple(self.program.arguments)
        return tuple(arguments[position] for position in self.parted)

    def part(self, position: int, place: int) -> str:
        return f"stratbench/part/{self.label}/{position}/{place}"

    def program_of(
        self, place: int, member: Member, keys: Mapping[str, int]
    ) -> tuple[Program, Mapping[str, Function]]:
        """Program of one replica, and the functions that it may call.

        Args:
            keys: name of a collective → its instance key.
        """
        seeded = reseed(Graph(nodes=self.program.nodes, functions=self.library), place)
        program = replace(self.program, nodes=seeded.nodes)
        named = [*program.arguments, *(node.name for node in program.nodes if node.op in _COLLECTIVE)]
        own_keys = {name: keys[self.collective(name)] for name in named}
        parted = {
            argument: PartitionedVariable(
                argument=argument, spec=self.variables[position], shared_name=self.part(position, place)
            )
            for argument, position in zip(self.parted_arguments, self.parted, strict=True)
        }
        if parted:
            values = PartitionedValues(program=program, parted=parted, specs=self.specs)
            sharded = ShardedProgram(values=values, member=member, keys=own_keys)
            program = sharded.rewritten()
        summing = program.with_nodes(_summing(program, member, own_keys, self.specs))
        placed = summing.with_nodes(_placed(summing.nodes, member))
        called = reachable_functions(placed.nodes, seeded.functions)
        return placed, {name: seeded.functions[name] for name in sorted(called)}


def _program(computation: Computation, library: Mapping[str, Function]) -> Program:
    called = computation.compile.attrs.get("function")
    function = library.get(called.name) if isinstance(called, FunctionRef) else None
    if function is None:
        raise GraphError("must compile a function of the library, got none")
    nodes, read = body_of(function, library)
    by_name = {node.name: node for node in nodes}
    for node in nodes:
        if node.op == SUM:
            _check_group(by_name, node, computation.metadata.n_replicas)
    inputs = {arg.name: arg.dtype for arg in function.inputs if arg.dtype is not None}
    if len(inputs) != len(computation.metadata.arguments):
        raise GraphError(
            f"its function must take {len(computation.metadata.arguments)} arguments, got {len(inputs)}"
        )
    return Program(
        nodes=nodes,
        arguments=inputs,
        results={arg.name: read(function.results[arg.name]) for arg in function.outputs},
        waits=tuple(
            dict.fromkeys(
                (*(function.control_results[name] for name in function.control_outputs), *_effects(nodes))
            )
        ),
    )


def _effects(nodes: tuple[Node, ...]) -> tuple[str, ...]:
    """Nodes that TensorFlow runs in each call of a function, even if its results do not need them."""
    stateful = [
        node.name
        for node in nodes
        if node.op not in _WITHOUT_EFFECT
        and (definition := op_definition(node.op)) is not None
        and definition.is_stateful
    ]
    return LoopFrames.of(Graph(nodes=nodes)).outside(stateful)


def _check_group(by_name: Mapping[str, Node], node: Node, n_replicas: int) -> None:
    groups = constant_array(by_name[node.data_inputs[1]]) if node.data_inputs[1] in by_name else None
    if groups is None or sorted(groups.ravel().tolist()) != list(range(n_replicas)) or len(groups) != 1:
        raise GraphError(
            f"{node.name!r} must sum over one group of all {n_replicas} replicas, got another one"
        )


def _variables(scopes: Scopes, scope: Scope, computation: Computation) -> Iterator[tuple[int, TensorSpec]]:
    for position, ref in enumerate(computation.executes[0].data_inputs[:-1]):
        node = variable_of(scopes, scope, ref)
        if node is None:
            continue
        dtype, shape = node.attrs.get("dtype"), node.attrs.get("shape")
        if isinstance(dtype, DType) and isinstance(shape, Shape):
            yield position, TensorSpec(dtype=dtype, shape=shape)


def _resharded(scope: Scope, computation: Computation) -> tuple[int, ...]:
    execute = computation.executes[0]
    before = (scope.graph.by_name[name] for name in execute.control_inputs)
    handles = [ref for node in before if node.op == RESHARD for ref in node.data_inputs[:-2]]
    return tuple(position for position, ref in enumerate(execute.data_inputs[:-1]) if ref in handles)


def _size(spec: TensorSpec) -> int:
    """Number of elements of a variable; -1 if unknown."""
    dims = spec.shape.dims
    return -1 if dims is None or min(dims, default=0) < 0 else math.prod(dims)


def _argument(name: str, dtype: DType, variable: TensorSpec | None, shape: Shape) -> Node:
    if dtype != _RESOURCE or variable is None:
        return Node(name=name, op="Placeholder", attrs={"dtype": dtype, "shape": shape})
    return handle_node(name, shared_name=name, dtype=variable.dtype, shape=variable.shape)


def _summing(
    program: Program, member: Member, keys: Mapping[str, int], specs: Mapping[str, TensorSpec]
) -> Iterator[Node]:
    for node in program.nodes:
        if node.op != SUM:
            yield node
            continue
        snippet = trace(summed, (specs[node.name],), group=member.group, key=keys[node.name])
        # In a loop, inputs that the sum creates itself must be in the loop too.
        ref = node.data_inputs[0]
        nodes, (total,) = snippet.splice(f"{node.name}/summed/", [ref], control=[producer(ref)])
        yield from nodes
        yield identity(node.name, total, specs[node.name].dtype, waits=node.control_inputs)


def _placed(nodes: tuple[Node, ...], member: Member) -> Iterator[Node]:
    for node in nodes:
        yield node.without_attrs("_tpu_replicate", "_class").changed(device=member.device)
