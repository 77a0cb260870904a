"""A replicated computation as its nodes tell of it: what it takes and gives, and what cores run."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from strategies.ir.graph import Attr, DType, FunctionRef, Graph, Node, Shape, output_index, producer
from strategies.ir.train_graph import BatchInput, TrainGraph
from strategies.passes.tpu.compiled.compile_metadata import Argument, ArgumentKind, CompileMetadata, Sharding
from strategies.passes.tpu.replicated.replicated_nodes import BODY, CLUSTER, METADATA, PREFIX

PROGRAM = f"{CLUSTER}__program"
"""The function that cores run."""
RESOURCE = DType("resource")
_SCAFFOLD = frozenset(
    {"TPUReplicateMetadata", "TPUReplicatedInput", "TPUReplicatedOutput", "TPUCompilationResult"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedComputation:
    """A replicated computation.

    Attributes:
        graph: with its nodes, and all that is around them.
        inputs, outputs: replicated ones, in graph order.
        n_replicas: that run it.
    """

    graph: Graph
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    n_replicas: int

    @classmethod
    def of(cls, step: TrainGraph) -> "ReplicatedComputation":
        """The one of a step."""
        nodes = step.graph.nodes
        n_replicas = step.graph.by_name[METADATA].attrs["num_replicas"]
        assert isinstance(n_replicas, int)
        return cls(
            graph=step.graph,
            inputs=tuple(node for node in nodes if node.op == "TPUReplicatedInput"),
            outputs=tuple(node for node in nodes if node.op == "TPUReplicatedOutput"),
            n_replicas=n_replicas,
        )

    @property
    def body(self) -> tuple[Node, ...]:
        """What cores run."""
        return tuple(n for n in self.graph.nodes if BODY in n.attrs and n.op not in _SCAFFOLD)

    def place_of(self, ref: str) -> tuple[int, int]:
        """Which output a tensor outside of the computation is, and whose."""
        source = self.graph.by_name[producer(ref)].inputs[0]
        names = [node.name for node in self.outputs]
        return names.index(producer(source)), output_index(source)

    def outside(self, batch: Sequence[BatchInput]) -> Iterator[Node]:
        """Nodes around the computation that remain when it has become a program; what is fed is stacked."""
        fed = {b.node for b in batch}
        for node in self.graph.nodes:
            if BODY in node.attrs or node.op in _SCAFFOLD or node.name.startswith(PREFIX):
                continue
            yield as_stacked(node) if node.name in fed else node

    def fed_elsewhere(self) -> Iterator[Node]:
        """What other tasks are fed with."""
        for node in self.graph.nodes:
            if node.op == "Placeholder" and node.name.startswith(PREFIX):
                yield as_stacked(node)

    def compile_node(self, name: str, parted: AbstractSet[str], *, waits: Sequence[str], device: str) -> Node:
        """The node that compiles the program.

        Args:
            parted: replicated handles of variables that may lie in parts.
        """
        arguments = [
            Argument(
                kind=ArgumentKind.VARIABLE if dtype_of(node) == RESOURCE else ArgumentKind.PARAMETER,
                sharding=Sharding.TENTATIVE
                if node.name in parted and node.attrs["is_mirrored_variable"]
                else Sharding.DISALLOWED,
            )
            for node in self.inputs
        ]
        attrs: dict[str, Attr] = {
            "NumDynamicShapes": 0,
            "Tguaranteed_constants": (),
            "function": FunctionRef(PROGRAM),
            "metadata": CompileMetadata.of(self.n_replicas, arguments).proto,
            "num_computations": 1,
        }
        inputs = tuple(f"^{each}" for each in waits)
        return Node(name=name, op="TPUCompile", inputs=inputs, attrs=attrs, device=device)

    def execute_node(
        self, name: str, arguments: Sequence[str], key: str, *, waits: Sequence[str], device: str
    ) -> Node:
        """The node by which one replica runs the program."""
        variables = tuple(i for i, node in enumerate(self.inputs) if dtype_of(node) == RESOURCE)
        attrs: Mapping[str, Attr] = {
            "Targs": tuple(map(dtype_of, self.inputs)),
            "Tresults": tuple(map(dtype_of, self.outputs)),
            "device_var_reads_indices": variables,
            "device_var_updates_indices": variables,
        }
        inputs = (*arguments, key, *(f"^{each}" for each in waits))
        return Node(name=name, op="TPUExecuteAndUpdateVariables", inputs=inputs, attrs=attrs, device=device)


def argument(place: int) -> str:
    """Name of an argument of the program."""
    return f"argument_{place}"


def dtype_of(node: Node) -> DType:
    """Type of a replicated input or output."""
    dtype = node.attrs["T"]
    assert isinstance(dtype, DType)
    return dtype


def stacked(b: BatchInput) -> BatchInput:
    """What is fed, for several steps."""
    return b if b.shape.dims is None else replace(b, shape=Shape((-1, *b.shape.dims)))


def as_stacked(node: Node) -> Node:
    """A placeholder for the batches of several steps."""
    shape = node.attrs.get("shape")
    dims = shape.dims if isinstance(shape, Shape) else None
    return node.changed(attrs={**node.attrs, "shape": Shape(None if dims is None else (-1, *dims))})


def in_program(node: Node, inputs: tuple[str, ...]) -> Node:
    """A node of the computation as a program has it."""
    attrs = {name: attr for name, attr in node.attrs.items() if not name.startswith("_tpu_")}
    return node.changed(inputs=inputs, attrs=attrs, device="")
