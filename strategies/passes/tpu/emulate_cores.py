"""TPU computations lowered to other devices, with the same graph, the same formats and real traffic.

An execute becomes a call of its program, a compile node a constant key, a sum over replicas a collective,
and resharding a function that cuts or gathers variables if their format differs.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from strategies.errors import GraphError
from strategies.ir.graph import Attr, DType, Function, FunctionRef, Graph, Node, Shape, no_op, producer
from strategies.ir.tensor_proto import const
from strategies.ir.train_graph import TrainGraph
from strategies.ir.traversal import COLOCATION_ATTR, descendants, drop_unreachable_functions
from strategies.numerics.compressors import StateSpec
from strategies.numerics.resharding import COUNTS, GAUGES, ON_CORE, all_here, part_length, resharded
from strategies.passes.collectives.members import GATHER_GROUP_KEY, GROUP_KEY, instance_keys
from strategies.passes.replicate.state_variables import StateVariable
from strategies.passes.task_plan import TaskPlan
from strategies.passes.tpu.computations import COMPILES, PLACE_SPEC, Member
from strategies.passes.tpu.emulated_program import BARRIER, RESHARD, EmulatedComputation
from strategies.passes.tpu.replicated_computation import PREFIX
from strategies.passes.tpu.scopes import Scope, Scopes, handle_node, variable_of
from strategies.tf_bridge.attrs import dtype_number
from strategies.tf_bridge.function_bodies import function_of
from strategies.tf_bridge.runtime import unoptimized_config
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Topology


def resharding_call(
    emulated: EmulatedComputation, member: Member, node: Node, keys: Mapping[str, int]
) -> tuple[Node, Function]:
    """Function that reshards one replica's variables, and the call of it.

    Args:
        node: node that reshards. keys: name of a collective → its instance key.
    Raises:
        GraphError: it reshards other variables than its execute node uses.
    """
    *handles, key, state = node.data_inputs
    if len(handles) != len(emulated.resharded):
        raise GraphError(
            f"{node.name!r}: must reshard {len(emulated.resharded)} variables, as for its execute, got "
            f"{len(handles)}"
        )
    parted_variables = [(position, emulated.variables[position]) for position in emulated.parted]
    parted = [
        ref for position, ref in zip(emulated.resharded, handles, strict=True) if position in emulated.parted
    ]
    handle = TensorSpec(dtype=_RESOURCE, shape=Shape(()))
    n_parted = len(parted_variables)
    snippet = trace(
        resharded,
        (
            *(handle,) * (2 * n_parted),
            TensorSpec(dtype=_STRING, shape=Shape((3,))),
            *(handle, handle, PLACE_SPEC),
        ),
        variables=tuple(
            (variable.shape.dims, dtype_number(variable.dtype)) for _, variable in parted_variables
        ),
        group=member.group,
        order=member.order,
        keys=tuple(keys[emulated.collective(name)] for name in (*emulated.parted_arguments, BARRIER)),
    )
    own = list(_own_nodes(emulated, member))
    arguments = {f"argument_{i}": _RESOURCE for i in range(n_parted)}
    arguments |= {"key": _STRING, "state": _RESOURCE}
    *parts, counts, rank = (node.name for node in own)
    refs = [*list(arguments)[:n_parted], *parts, "key", "state", counts, rank]
    nodes, waits = snippet.splice("", refs)
    name = f"{emulated.label}__reshard_{member.place}"
    function = function_of(
        name,
        [*own, *(_placed(node, member) for node in nodes)],
        inputs=arguments,
        results={},
        waits=[producer(ref) for ref in waits],
        library={},
    )
    call = call_of(node.name, name, (*parted, key, state, *node.waits), arguments.values(), (), member.host)
    return call, function


def _own_nodes(emulated: EmulatedComputation, member: Member) -> Iterator[Node]:
    for position in emulated.parted:
        variable = emulated.variables[position]
        assert variable.shape.dims is not None
        yield handle_node(
            f"part_{position}",
            shared_name=emulated.part(position, member.place),
            dtype=variable.dtype,
            shape=Shape((part_length(variable.shape.dims, member.group[0]),)),
            device=member.device,
        )
    yield handle_node(
        "counts",
        shared_name=counts_name(emulated.label, member.place),
        dtype=DType("int64"),
        shape=Shape((len(COUNTS) + len(GAUGES),)),
        device=member.host,
    )
    yield member.place_node().changed(device=member.host)


def _placed(node: Node, member: Member) -> Node:
    # Colocations are with inputs of the snippet, whose names all its copies share.
    device = member.device if node.device == ON_CORE else member.host
    return node.without_attrs(COLOCATION_ATTR).changed(device=device)


def call_of(
    name: str,
    function: str,
    inputs: tuple[str, ...],
    input_types: Iterable[DType],
    output_types: tuple[Attr, ...],
    device: str,
) -> Node:
    """Call of a function; `taken` and `given` are types of its arguments and results."""
    attrs: dict[str, Attr] = {
        "Tin": tuple(input_types),
        "Tout": output_types,
        "config": b"",
        "config_proto": unoptimized_config(),
        "executor_type": b"",
        "f": FunctionRef(function),
    }
    return Node(name=name, op="StatefulPartitionedCall", inputs=inputs, attrs=attrs, device=device)


def counts_path(label: str) -> str:
    """Name prefix of the counters of a computation's resharding."""
    return f"reshard_counts/{label}"


def counts_name(label: str, place: int) -> str:
    """Shared name of a replica's counters, see `COUNTS` and `GAUGES` of `resharding`."""
    return f"{counts_path(label)}/replica_{place}/handle"


_ASSERT = "TPUCompileSucceededAssert"
_STRING, _RESOURCE, _BOOL = DType("string"), DType("resource"), DType("bool")


def lower_computations(graph: Graph, members: Mapping[int, Member]) -> Graph:
    """Lower a graph's computations to the devices of these members.

    Args:
        members: position among the execute nodes → replica that runs here; other execute nodes and their
            users are dropped.
    Raises:
        GraphError: a computation cannot be lowered.
    """
    scopes = Scopes.of(graph)
    emulated = {
        name: [
            EmulatedComputation.of(scopes, scope, node, graph.functions)
            for node in scope.graph.nodes
            if node.op in COMPILES
        ]
        for name, scope in scopes.by_name.items()
    }
    for computation in (member for own in emulated.values() for member in own):
        _check_members(computation, members)
    keys = instance_keys(
        name for own in emulated.values() for computation in own for name in computation.collectives()
    )
    states = {
        state: (computation, place)
        for name, own in emulated.items()
        for computation in own
        for place, execute in enumerate(computation.computation.executes)
        for state in _states(scopes, scopes.by_name[name], execute)
    }
    functions = dict(graph.functions)
    nodes = graph.nodes
    for name, scope in scopes.by_name.items():
        if not any(node.op in COMPILES or node.op == RESHARD for node in scope.graph.nodes):
            continue
        lowering = _ScopeLowering(
            scopes=scopes, scope=scope, emulated=emulated[name], states=states, members=members, keys=keys
        )
        lowered, added = lowering.nodes()
        functions |= added
        if scope.function is None:
            nodes = lowered
        else:
            functions[name] = lowering.function(scope.function, lowered)
    return drop_unreachable_functions(replace(graph, nodes=nodes, functions=functions))


def _check_members(emulated: EmulatedComputation, members: Mapping[int, Member]) -> None:
    n_replicas = emulated.computation.metadata.n_replicas
    for place, member in members.items():
        if member.group[0] != n_replicas:
            raise GraphError(
                f"computation {emulated.label!r}: needs a member for each of {n_replicas} replicas, "
                f"got a group of {member.group[0]} at place {place}"
            )


def _states(scopes: Scopes, scope: Scope, execute: Node) -> Iterator[bytes]:
    for name in execute.control_inputs:
        node = scope.graph.by_name[name]
        if node.op == RESHARD:
            yield _shared_name(scopes, scope, node.data_inputs[-1])


def _shared_name(scopes: Scopes, scope: Scope, ref: str) -> bytes:
    variable = variable_of(scopes, scope, ref)
    shared_name = None if variable is None else variable.attrs.get("shared_name")
    if not isinstance(shared_name, bytes) or not shared_name:
        raise GraphError(f"{ref!r}: the variable with a format must have a shared name, got none")
    return shared_name


@dataclass(frozen=True, kw_only=True)
class _ScopeLowering:
    """Lowering of one scope.

    Attributes:
        states: shared name of a replica's format variable → computation and position, over all scopes.
        keys: name of a collective → its instance key.
    """

    scopes: Scopes
    scope: Scope
    emulated: Sequence[EmulatedComputation]
    states: Mapping[bytes, tuple[EmulatedComputation, int]]
    members: Mapping[int, Member]
    keys: Mapping[str, int]

    def nodes(self) -> tuple[tuple[Node, ...], dict[str, Function]]:
        executes, compiles = self._executes, self._compiles
        left_out = self._left_out(executes)
        functions: dict[str, Function] = {}
        nodes: list[Node] = []
        for node in self.scope.graph.nodes:
            if node.name in left_out:
                continue
            compile_node = node.changed(inputs=tuple(self._inputs(node, left_out)))
            if node.name in compiles:
                nodes += self._compiled(compiles[node.name], compile_node)
            elif node.name in executes:
                nodes.append(self._called(*executes[node.name], compile_node, functions))
            elif node.op == RESHARD:
                nodes.append(self._resharded(compile_node, functions))
            elif node.op == "VarHandleOp" and node.attrs.get("shared_name") in self.states:
                nodes.append(compile_node.changed(device=self._host))
            elif node.op == _ASSERT:
                waits = (producer(ref) for ref in compile_node.inputs)
                nodes.append(no_op(node.name, tuple(dict.fromkeys(waits)), self._host))
            else:
                nodes.append(compile_node)
        return tuple(nodes), functions

    def function(self, function: Function, nodes: tuple[Node, ...]) -> Function:
        results = {name: self._local_ref(ref) for name, ref in function.results.items()}
        waits = {name: self._local_ref(f"^{node}")[1:] for name, node in function.control_results.items()}
        return replace(function, nodes=nodes, results=results, control_results=waits)

    @cached_property
    def _executes(self) -> Mapping[str, tuple[EmulatedComputation, int]]:
        return {
            execute.name: (computation, place)
            for computation in self.emulated
            for place, execute in enumerate(computation.computation.executes)
        }

    @cached_property
    def _compiles(self) -> Mapping[str, EmulatedComputation]:
        return {computation.name: computation for computation in self.emulated}

    @property
    def _host(self) -> str:
        return next(iter(self.members.values())).host

    def _left_out(self, executes: Mapping[str, tuple[EmulatedComputation, int]]) -> set[str]:
        elsewhere = [name for name, (_, place) in executes.items() if place not in self.members]
        elsewhere += [
            node.name
            for node in self.scope.graph.nodes
            if node.op == RESHARD and self._replica(node)[1] not in self.members
        ]
        return descendants(self.scope.graph, elsewhere, control=False)

    def _replica(self, node: Node) -> tuple[EmulatedComputation, int]:
        shared_name = _shared_name(self.scopes, self.scope, node.data_inputs[-1])
        if shared_name not in self.states:
            raise GraphError(f"{node.name!r}: must reshard for an execute that waits for it, got none")
        return self.states[shared_name]

    def _inputs(self, node: Node, left_out: Container[str]) -> Iterator[str]:
        for ref in node.inputs:
            if ref[0] != "^" or ref[1:] not in left_out:
                yield self._local_ref(ref)

    def _local_ref(self, ref: str) -> str:
        name = producer(ref)
        if name in self._compiles:
            key = f"^{_key_name(name)}"
            return key if ref[0] == "^" else self.scope.ref(self._constant(self._compiles[name], ref))
        if name in self._executes and ref[0] != "^":
            number = self.scope.number(ref)
            return self.scope.ref(name, "output", number, number)
        return ref

    def _constant(self, emulated: EmulatedComputation, ref: str) -> str:
        n_programs = emulated.computation.compile.attrs["num_computations"]
        assert isinstance(n_programs, int)
        if ref == self.scope.ref(emulated.name, "compilation_status"):
            return f"{emulated.name}/status"
        keys = {self.scope.ref(emulated.name, "program", 1 + k, k) for k in range(n_programs)}
        return _key_name(emulated.name) if ref in keys else f"{emulated.name}/may_modify_variables"

    def _compiled(self, emulated: EmulatedComputation, node: Node) -> Iterator[Node]:
        label = emulated.label.encode()
        form = label if emulated.parted else b""
        values = (
            (f"{emulated.name}/status", "string", b""),
            (_key_name(emulated.name), "string", (label, b"", form)),
            (f"{emulated.name}/may_modify_variables", "bool", True),
        )
        for name, dtype, value in values:
            yield const(name, dtype, value, waits=node.control_inputs, device=self._host)

    def _called(
        self, emulated: EmulatedComputation, place: int, node: Node, functions: dict[str, Function]
    ) -> Node:
        member = self.members[place]
        program, library = emulated.program_of(place, member, self.keys)
        functions |= library
        dtypes = node.attrs["Tresults"]
        assert isinstance(dtypes, tuple)
        name = f"{emulated.label}__replica_{place}"
        functions[name] = function_of(
            name,
            program.nodes,
            inputs=program.arguments,
            results={
                result: (ref, dtype)
                for (result, ref), dtype in zip(program.results.items(), dtypes, strict=True)
                if isinstance(dtype, DType)
            },
            # Once TensorFlow inlines the body, nodes that wait for a call wait only for control outputs.
            waits=program.roots(),
            library=library,
        )
        *arguments, key = node.data_inputs
        waits = (f"^{producer(key)}", *node.waits)
        return call_of(
            node.name, name, (*arguments, *waits), program.arguments.values(), dtypes, member.device
        )

    def _resharded(self, node: Node, functions: dict[str, Function]) -> Node:
        emulated, place = self._replica(node)
        call, function = resharding_call(emulated, self.members[place], node, self.keys)
        functions[function.name] = function
        return call


def _key_name(compile_name: str) -> str:
    return f"{compile_name}/key"


@dataclass(frozen=True, kw_only=True, slots=True)
class EmulateCores:
    """Lower a step's computations to this task's replicas."""

    name: ClassVar[str] = "tpu-emulation"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        host = topology.host_device(self.plan.task)
        order = topology.collective_order()
        members = {
            replica.rank: Member(
                place=replica.rank,
                order=order,
                group=(topology.n_replicas, GROUP_KEY),
                device=replica.device,
                host=host,
            )
            for replica in topology.local_replicas(self.plan.task)
        }
        emulated = lower_computations(graph.graph, members)
        is_resharded = any(node.op == RESHARD for node in graph.graph.nodes)
        compiles = [node.name for node in graph.graph.nodes if node.op in COMPILES] if is_resharded else []
        counts = [_counts(name, rank, topology.n_replicas, host) for name in compiles for rank in members]
        meeting = [node for member in members.values() for node in _meeting(member)]
        nodes = (*emulated.nodes, *meeting, *(node for count in counts for node in count.nodes))
        return replace(
            graph,
            graph=emulated.with_nodes(nodes),
            variables=(*graph.variables, *(count.variable for count in counts)),
            step_targets=(*graph.step_targets, *(_met(rank) for rank in members)),
            reshard_counts=tuple(count.variable.read for count in counts),
        )


def _meeting(member: Member) -> Iterator[Node]:
    """Collective in the graph itself, outside functions.

    TensorFlow looks only there for collectives, to decide whether workers' runs belong together.
    """
    snippet = trace(all_here, (), group=(member.group[0], GATHER_GROUP_KEY), key=1)
    nodes, (met,) = snippet.splice(f"{_met(member.place)}/", [], device=member.device)
    yield from nodes
    yield no_op(_met(member.place), [met], member.device)


def _met(rank: int) -> str:
    return f"{PREFIX}replica_{rank}/all_here"


def _counts(compile_name: str, rank: int, n_replicas: int, host: str) -> StateVariable:
    n_counted = len(COUNTS) + len(GAUGES)
    path = counts_path(compile_name)
    return StateVariable.of(
        StateSpec(name="counts", dims=(n_counted,), dtype="int64", initial="zeros"),
        path,
        group="resharding",
        path=path,
        rank=rank,
        device=host,
        owners=tuple(range(n_replicas)),
        lasting=False,
    )
