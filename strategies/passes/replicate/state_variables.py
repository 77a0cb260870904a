"""State variables that a pass adds to keep a value from one step to the next."""

import zlib
from dataclasses import dataclass

from strategies.ir.graph import Attr, DType, Node, Shape, assign_variable, read_variable
from strategies.ir.variable import Fresh, Inherits, Part, Variable
from strategies.numerics.compressors import StateSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class StateVariable:
    """One replica's copy of an added variable, its value in this step, and the update of its value.

    Attributes:
        nodes: handle, nodes for access by sessions, and the read.
        value: tensor of the value that the step reads.
    """

    variable: Variable
    nodes: tuple[Node, ...]
    value: str

    @classmethod
    def of(
        cls,
        spec: StateSpec,
        name: str,
        *,
        of: str | None = None,
        group: str = "compressor",
        path: str,
        rank: int,
        device: str,
        owners: tuple[int, ...],
        shared: bool = False,
        lasting: bool = True,
        part: Part | None = None,
    ) -> "StateVariable":
        """Make a state variable for one replica.

        It takes eleven arguments: facts of a variable that no other value holds together.

        Args:
            name: name of the state variable, the same on all replicas.
            of: name of the variable whose gradient it belongs to, None if there is none.
            group: purpose of the state.
            path: prefix of its nodes' names, the same on all replicas.
            owners: ranks of all replicas that have such a state.
            shared: True if a value that is initially the same on every replica must stay so.
            lasting: True if a checkpoint restores its value; otherwise every session starts with a fresh one.
            part: range that it covers in the state of the whole variable; None for a whole state.
        """
        prefix = f"{path}/replica_{rank}/"
        # Random draws differ between replicas; a factor must not.
        owner = prefix if spec.initial == "seed" else name
        variable = Variable(
            name=name,
            kind="state",
            group=group,
            dtype=DType(spec.dtype),
            shape=Shape(spec.dims),
            handle=f"{prefix}handle",
            placeholder=f"{prefix}initial",
            load=f"{prefix}load",
            read=f"{prefix}read",
            slot_of=of,
            rule="per-replica",
            rank=rank,
            part=part,
            fresh=Fresh(
                kind=spec.initial,
                dims=spec.dims,
                dtype=spec.dtype,
                seed=zlib.crc32(owner.encode()),
                inherits=_inherits(spec, shared=shared, lasting=lasting),
                owners=owners,
            ),
        )
        nodes = _access(variable, read_name=f"{prefix}kept", device=device)
        return cls(variable=variable, nodes=nodes, value=nodes[-1].name)

    def keep(self, value: str) -> Node:
        """Node that stores a value for the next step, after this step has read the old value."""
        handle = self.nodes[0]
        name = f"{handle.name.removesuffix('handle')}keep"
        return assign_variable(
            name, handle.name, value, self.variable.dtype, handle.device, waits=[self.value]
        )


def _inherits(spec: StateSpec, *, shared: bool, lasting: bool) -> Inherits:
    if not lasting:
        return "nothing"
    if spec.common:
        return "alike"
    if shared and spec.initial == "normal":
        return "first"
    return "share" if spec.is_residual else "own"


def _access(variable: Variable, *, read_name: str, device: str) -> tuple[Node, ...]:
    handle, dtype = variable.handle, variable.dtype
    shaped: dict[str, Attr] = {"dtype": dtype, "shape": variable.shape}
    named: dict[str, Attr] = {**shaped, "shared_name": handle.encode(), "container": b""}
    return (
        Node(name=handle, op="VarHandleOp", attrs=named, device=device),
        Node(name=variable.placeholder, op="Placeholder", attrs=shaped, device=device),
        assign_variable(variable.load, handle, variable.placeholder, dtype, device),
        read_variable(variable.read, handle, dtype, device),
        read_variable(read_name, handle, dtype, device),
    )
