"""A replicated computation and the nodes around it, as TensorFlow's TPU rewrites expect."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from strategies.ir.graph import (
    Attr,
    DType,
    FunctionRef,
    Graph,
    Node,
    Shape,
    after,
    no_op,
    output_index,
    producer,
)
from strategies.ir.tensor_proto import const
from strategies.ir.train_graph import BatchInput, TrainGraph
from strategies.passes.tpu.computations import Argument, ArgumentKind, CompileMetadata, Sharding

CLUSTER = "step"
"""Name of a step's only computation."""
BODY = "_tpu_replicate"
"""Attribute of the nodes that cores run, with the computation's name."""
PREFIX = "tpu/"
"""Prefix of node names that no capture contains."""
PIVOT, METADATA, DONE = (f"{PREFIX}{name}" for name in ("pivot", "metadata", "done"))
OF_CLUSTER: Mapping[str, Attr] = {BODY: CLUSTER.encode()}
WAITED_FOR: Mapping[str, Attr] = {"_has_manual_control_dependencies": True}
"""Attribute of nodes that others wait for, as `tf.control_dependencies` sets it."""
SUM = "CrossReplicaSum"
ANY_CORE = "/device:TPU_REPLICATED_CORE:0"


def input_of(name: str) -> str:
    """Name of the replicated input of a fed placeholder."""
    return f"{PREFIX}input/{name}"


def fed_on(task: int, name: str) -> str:
    """Name of the placeholder that another task feeds."""
    return f"{PREFIX}task_{task}/{name}"


def scaffold_nodes(n_replicas: int) -> tuple[Node, ...]:
    """Pivot, metadata and compilation result of a computation."""
    described: dict[str, Attr] = {
        **OF_CLUSTER,
        **WAITED_FOR,
        "allow_soft_placement": False,
        "computation_shape": (),
        "device_assignment": (),
        "host_compute_core": (),
        "num_cores_per_replica": 1,
        "num_replicas": n_replicas,
        "padding_map": (),
        "step_marker_location": b"STEP_MARK_AT_ENTRY",
        "topology": b"",
        "tpu_compile_options_proto": b"",
        "use_shardy_partitioner": False,
        "use_spmd_for_xla_partitioning": True,
        "use_tpu": True,
    }
    return (
        Node(name=PIVOT, op="NoOp", attrs={"_pivot_for_cluster": CLUSTER.encode()}),
        Node(name=METADATA, op="TPUReplicateMetadata", inputs=(f"^{PIVOT}",), attrs=described),
        Node(
            name=f"{PREFIX}compilation_result",
            op="TPUCompilationResult",
            inputs=(f"^{METADATA}",),
            attrs={"_tpu_compilation_status": CLUSTER.encode()},
        ),
    )


def updates_done(updates: Sequence[str]) -> Node:
    """NoOp after all updates, for which outputs wait."""
    return no_op(DONE, (*updates, METADATA)).changed(attrs={**OF_CLUSTER, **WAITED_FOR})


def cross_replica_sum(name: str, ref: str, dtype: DType, n_replicas: int) -> tuple[Node, Node]:
    """Sum over all replicas, and its one group [1, n_replicas]."""
    group = const(
        f"{name}/group_assignment",
        "int32",
        [range(n_replicas)],
        waits=[METADATA],
        attrs=OF_CLUSTER,
    )
    return group, Node(name=name, op=SUM, inputs=(ref, group.name), attrs={"T": dtype, **OF_CLUSTER})


def replicated_input(name: str, refs: Sequence[str], dtype: DType, *, mirrored: bool) -> Node:
    """Input of a computation, one tensor per replica.

    Args:
        refs: tensor references by rank. mirrored: True for the handles of a variable with equal copies.
    """
    attrs: dict[str, Attr] = {
        "N": len(refs),
        "T": dtype,
        "index": -1,
        "is_mirrored_variable": mirrored,
        "is_packed": False,
    }
    waits = (f"^{METADATA}",) if mirrored else ()
    return Node(name=name, op="TPUReplicatedInput", inputs=(*refs, *waits), attrs=attrs)


def input_identity(name: str, ref: str, dtype: DType) -> Node:
    """An input inside the computation."""
    attrs: dict[str, Attr] = {"T": dtype, "_tpu_input_identity": True, **OF_CLUSTER}
    return Node(name=name, op="Identity", inputs=(ref, f"^{METADATA}"), attrs=attrs)


def output_identity(name: str, ref: str, dtype: DType) -> Node:
    """An output inside the computation."""
    attrs: dict[str, Attr] = {"T": dtype, "_tpu_output_identity": True, **OF_CLUSTER}
    return Node(name=name, op="Identity", inputs=(ref,), attrs=attrs, device=ANY_CORE)


def replicated_output(name: str, ref: str, dtype: DType, n_replicas: int) -> Node:
    """Output of a computation, one tensor per replica."""
    attrs: dict[str, Attr] = {"T": dtype, "num_replicas": n_replicas}
    return Node(name=name, op="TPUReplicatedOutput", inputs=(ref,), attrs=attrs)


PROGRAM = f"{CLUSTER}__program"
"""Name of the function that cores run."""
RESOURCE = DType("resource")
_SCAFFOLD = frozenset(
    {"TPUReplicateMetadata", "TPUReplicatedInput", "TPUReplicatedOutput", "TPUCompilationResult"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedComputation:
    """A replicated computation; inputs and outputs are in graph order."""

    graph: Graph
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    n_replicas: int

    @classmethod
    def of(cls, step: TrainGraph) -> "ReplicatedComputation":
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
        return tuple(n for n in self.graph.nodes if BODY in n.attrs and n.op not in _SCAFFOLD)

    def place_of(self, ref: str) -> tuple[int, int]:
        source = self.graph.by_name[producer(ref)].inputs[0]
        names = [node.name for node in self.outputs]
        return names.index(producer(source)), output_index(source)

    def outside(self, batch: Sequence[BatchInput]) -> Iterator[Node]:
        fed = {b.node for b in batch}
        for node in self.graph.nodes:
            if BODY in node.attrs or node.op in _SCAFFOLD or node.name.startswith(PREFIX):
                continue
            yield as_stacked(node) if node.name in fed else node

    def fed_elsewhere(self) -> Iterator[Node]:
        for node in self.graph.nodes:
            if node.op == "Placeholder" and node.name.startswith(PREFIX):
                yield as_stacked(node)

    def compile_node(self, name: str, parted: AbstractSet[str], *, waits: Sequence[str], device: str) -> Node:
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
        return Node(name=name, op="TPUCompile", inputs=after(waits), attrs=attrs, device=device)

    def execute_node(
        self, name: str, arguments: Sequence[str], key: str, *, waits: Sequence[str], device: str
    ) -> Node:
        variables = tuple(i for i, node in enumerate(self.inputs) if dtype_of(node) == RESOURCE)
        attrs: Mapping[str, Attr] = {
            "Targs": tuple(map(dtype_of, self.inputs)),
            "Tresults": tuple(map(dtype_of, self.outputs)),
            "device_var_reads_indices": variables,
            "device_var_updates_indices": variables,
        }
        inputs = (*arguments, key, *after(waits))
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
    """Batch input of several steps."""
    return b if b.shape.dims is None else replace(b, shape=Shape((-1, *b.shape.dims)))


def as_stacked(node: Node) -> Node:
    """Placeholder of batches of several steps."""
    shape = node.attrs.get("shape")
    dims = shape.dims if isinstance(shape, Shape) else None
    return node.changed(attrs={**node.attrs, "shape": Shape(None if dims is None else (-1, *dims))})


def in_program(node: Node, inputs: tuple[str, ...]) -> Node:
    """A node of the computation inside a program."""
    attrs = {name: attr for name, attr in node.attrs.items() if not name.startswith("_tpu_")}
    return node.changed(inputs=inputs, attrs=attrs, device="")
