"""Calls of functions in place of nodes for cores: of programs, and of what brings variables into a format."""

from collections.abc import Iterable, Iterator, Mapping

from strategies.errors import GraphError
from strategies.ir.graph import Attr, DType, Function, FunctionRef, Node, Shape, producer
from strategies.ir.traversal import COLOCATION_ATTR
from strategies.numerics.resharding import COUNTS, GAUGES, ON_CORE, part_length, resharded
from strategies.passes.tpu.compiled.handles import handle_node
from strategies.passes.tpu.emulation.emulated_program import BARRIER, EmulatedComputation
from strategies.passes.tpu.emulation.program import PLACE_SPEC, Member
from strategies.tf_bridge.attrs import dtype_number
from strategies.tf_bridge.functions.bodies import function_of
from strategies.tf_bridge.functions.config import as_written
from strategies.tf_bridge.snippet import TensorSpec, trace

_STRING, _RESOURCE = DType("string"), DType("resource")


def resharding_call(
    found: EmulatedComputation, member: Member, node: Node, keys: Mapping[str, int]
) -> tuple[Node, Function]:
    """The call of a function that brings a replica's variables into a format, and that function.

    Args:
        node: that reshards. keys: name of a collective → its instance key.
    Raises:
        GraphError: it reshards other variables than its execute takes.
    """
    *handles, key, state = node.data_inputs
    if len(handles) != len(found.resharded):
        raise GraphError(
            f"{node.name!r}: must reshard {len(found.resharded)} variables, as for its execute, got "
            f"{len(handles)}"
        )
    taken = [(position, found.variables[position]) for position in found.parted]
    parted = [ref for position, ref in zip(found.resharded, handles, strict=True) if position in found.parted]
    handle = TensorSpec(dtype=_RESOURCE, shape=Shape(()))
    n_parted = len(taken)
    snippet = trace(
        resharded,
        (
            *(handle,) * (2 * n_parted),
            TensorSpec(dtype=_STRING, shape=Shape((3,))),
            *(handle, handle, PLACE_SPEC),
        ),
        variables=tuple((variable.shape.dims, dtype_number(variable.dtype)) for _, variable in taken),
        group=member.group,
        order=member.order,
        keys=tuple(keys[found.collective(name)] for name in (*found.parted_arguments, BARRIER)),
    )
    own = list(_own_nodes(found, member))
    arguments = {f"argument_{i}": _RESOURCE for i in range(n_parted)}
    arguments |= {"key": _STRING, "state": _RESOURCE}
    *parts, counts, rank = (each.name for each in own)
    refs = [*list(arguments)[:n_parted], *parts, "key", "state", counts, rank]
    nodes, waits = snippet.splice("", refs)
    name = f"{found.label}__reshard_{member.place}"
    function = function_of(
        name,
        [*own, *(_placed(each, member) for each in nodes)],
        inputs=arguments,
        results={},
        waits=[producer(ref) for ref in waits],
        library={},
    )
    after = (f"^{each}" for each in node.control_inputs)
    call = call_of(node.name, name, (*parted, key, state, *after), arguments.values(), (), member.host)
    return call, function


def _own_nodes(found: EmulatedComputation, member: Member) -> Iterator[Node]:
    """What resharding takes of a replica's own: its parts, what it counts, and its rank."""
    for position in found.parted:
        variable = found.variables[position]
        assert variable.shape.dims is not None
        yield handle_node(
            f"part_{position}",
            shared_name=found.part(position, member.place),
            dtype=variable.dtype,
            shape=Shape((part_length(variable.shape.dims, member.group[0]),)),
            device=member.device,
        )
    yield handle_node(
        "counts",
        shared_name=counts_name(found.label, member.place),
        dtype=DType("int64"),
        shape=Shape((len(COUNTS) + len(GAUGES),)),
        device=member.host,
    )
    yield member.place_node().changed(device=member.host)


def _placed(node: Node, member: Member) -> Node:
    """A node of a snippet for hosts and cores, where it is for this replica."""
    # Colocations are with inputs of the snippet, under names that all its copies have in common.
    attrs = {name: attr for name, attr in node.attrs.items() if name != COLOCATION_ATTR}
    return node.changed(attrs=attrs, device=member.device if node.device == ON_CORE else member.host)


def call_of(
    name: str,
    function: str,
    inputs: tuple[str, ...],
    taken: Iterable[DType],
    given: tuple[Attr, ...],
    device: str,
) -> Node:
    """The call of a function.

    Args:
        taken, given: types of its arguments and results.
    """
    attrs: dict[str, Attr] = {
        "Tin": tuple(taken),
        "Tout": given,
        "config": b"",
        "config_proto": as_written(),
        "executor_type": b"",
        "f": FunctionRef(function),
    }
    return Node(name=name, op="StatefulPartitionedCall", inputs=inputs, attrs=attrs, device=device)


def counts_path(label: str) -> str:
    """What the names of all that counts a computation's resharding start with.

    Args:
        label: name of the compile node, after that of the function that it is in.
    """
    return f"reshard_counts/{label}"


def counts_name(label: str, place: int) -> str:
    """Shared name of the variable with what a replica counts, see `COUNTS` and `GAUGES` of `resharding`."""
    return f"{counts_path(label)}/replica_{place}/handle"
