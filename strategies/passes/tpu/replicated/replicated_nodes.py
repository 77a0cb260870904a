"""Nodes that stand around a replicated computation, as TensorFlow's TPU rewrites know them."""

from collections.abc import Mapping, Sequence

from strategies.ir.graph import Attr, DType, Node, TensorValue
from strategies.ir.text.tensors import tensor_proto

CLUSTER = "step"
"""Name of the one computation of a step."""
BODY = "_tpu_replicate"
"""Attribute of the nodes that cores run, with the computation's name."""
PREFIX = "tpu/"
"""Begins the names of nodes that no capture has."""
PIVOT, METADATA, DONE = (f"{PREFIX}{name}" for name in ("pivot", "metadata", "done"))
OF_CLUSTER: Mapping[str, Attr] = {BODY: CLUSTER.encode()}
WAITED_FOR: Mapping[str, Attr] = {"_has_manual_control_dependencies": True}
"""Of nodes for which others wait, as TensorFlow marks those of `tf.control_dependencies`."""
SUM = "CrossReplicaSum"
ANY_CORE = "/device:TPU_REPLICATED_CORE:0"


def input_of(name: str) -> str:
    """The replicated input of what is fed under a name."""
    return f"{PREFIX}input/{name}"


def fed_on(task: int, name: str) -> str:
    """What another task is fed with, by its name where it is."""
    return f"{PREFIX}task_{task}/{name}"


def around(n_replicas: int) -> tuple[Node, ...]:
    """What every computation has: where it begins, what describes it, and whether it compiled."""
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


def done(updates: Sequence[str]) -> Node:
    """What all outputs wait for: a group of the nodes that update variables."""
    inputs = (*(f"^{name}" for name in updates), f"^{METADATA}")
    return Node(name=DONE, op="NoOp", inputs=inputs, attrs={**OF_CLUSTER, **WAITED_FOR})


def cross_replica_sum(name: str, ref: str, dtype: DType, n_replicas: int) -> tuple[Node, Node]:
    """The sum of a tensor over all replicas, and their groups, of which there is one: [1, n_replicas]."""
    proto = tensor_proto("int32", (1, n_replicas), tuple(range(n_replicas)))
    groups: dict[str, Attr] = {"dtype": DType("int32"), "value": TensorValue(proto), **OF_CLUSTER}
    group = Node(name=f"{name}/group_assignment", op="Const", inputs=(f"^{METADATA}",), attrs=groups)
    return group, Node(name=name, op=SUM, inputs=(ref, group.name), attrs={"T": dtype, **OF_CLUSTER})


def replicated_input(name: str, refs: Sequence[str], dtype: DType, *, mirrored: bool) -> Node:
    """One input of the computation, which each replica has a tensor of its own for.

    Args:
        refs: by rank. mirrored: they are handles of a variable whose copies are equal.
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


def taken(name: str, ref: str, dtype: DType) -> Node:
    """An input where the computation takes it."""
    attrs: dict[str, Attr] = {"T": dtype, "_tpu_input_identity": True, **OF_CLUSTER}
    return Node(name=name, op="Identity", inputs=(ref, f"^{METADATA}"), attrs=attrs)


def given(name: str, ref: str, dtype: DType) -> Node:
    """A tensor where the computation gives it."""
    attrs: dict[str, Attr] = {"T": dtype, "_tpu_output_identity": True, **OF_CLUSTER}
    return Node(name=name, op="Identity", inputs=(ref,), attrs=attrs, device=ANY_CORE)


def replicated_output(name: str, ref: str, dtype: DType, n_replicas: int) -> Node:
    """One output of the computation, which gives a tensor of each replica."""
    attrs: dict[str, Attr] = {"T": dtype, "num_replicas": n_replicas}
    return Node(name=name, op="TPUReplicatedOutput", inputs=(ref,), attrs=attrs)
