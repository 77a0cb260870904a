"""One computation on all cores: sums over replicas, and variables partitioned during a host loop."""

from collections.abc import Sequence

from strategies.builders.shared_params import ALWAYS_MERGED, SYNC_BATCH_NORM
from strategies.errors import UnsupportedError, first_few
from strategies.params import Param, Params
from strategies.plan.schema import Plan, PlanNode, StepSummary
from strategies.plan.strategy import node_of
from strategies.topology import Topology

MATMUL = Param(
    name="matmul",
    type=str,
    default="float32",
    choices=("float32", "bfloat16"),
    summary="Type of matrix products on TPUs; bfloat16 is faster and not exact.",
)
"""Type in which TPUs multiply float32 matrices; TensorFlow's default is bfloat16, which is not exact."""
_MOST_STEPS = 10_000
"""Maximum number of steps per loop, whose batches are in memory together; windows are whole loops."""
PARAMS = (
    Param(
        name="reshard",
        type=bool,
        default=False,
        tunable=(False, True),
        summary="Shard variables between iterations; emulated cores only.",
    ),
    Param(
        name="device_loop",
        type=bool,
        default=False,
        tunable=(False, True),
        summary="Run the loop on the cores instead of the host.",
    ),
    Param(
        name="steps_per_loop",
        type=int,
        default=10,
        minimum=1,
        maximum=_MOST_STEPS,
        tunable=(1, 10, 100),
        unit="steps",
        summary="Most steps in one run of the loop.",
    ),
    SYNC_BATCH_NORM,
    MATMUL,
    ALWAYS_MERGED,
)


def replicated(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:
    """Give every replica all variables, or with `reshard` its part of those that can be partitioned.

    Sparse gradients are sent as dense ones, since cores run programs of known shapes.
    """
    in_parts = {
        v.name for v in step.variables if params["reshard"] and v.can_lie_in_parts(topology.n_replicas)
    }
    return [
        node_of(v, synchronizer="cross-replica-sum" if v.synced else "none", in_parts=v.name in in_parts)
        for v in step.variables
    ]


def notes(step: StepSummary, nodes: Sequence[PlanNode], *_: object) -> list[str]:
    """Notes on gradients that become dense on cores, and on updates that need whole gradients."""
    sparse = [v.name for v in step.variables if v.sparse]
    parted = {node.variable for node in nodes if node.in_parts}
    dense = [v for v in step.variables if v.name in parted and not v.sparse]
    coupled = [v.name for v in dense if not v.updated_by_elements]
    names_of_notes = {
        "dense gradients of all rows, as on TPU cores, not only the batch's rows: "
        f"{first_few(sparse)}": sparse,
        "gradients summed whole, because updates take their norms, means or branches; the "
        f"payload excludes other gathered tensors of these variables: {first_few(coupled)}": coupled,
    }
    return [note for note, names in names_of_notes.items() if names]


def refuse(topology: Topology, params: Params) -> str | None:
    """Reason why replicas cannot run one common program, None if they can."""
    if topology.device != "tpu" and params[MATMUL.name] != MATMUL.default:
        return f"matmul={params[MATMUL.name]} is for TPU devices, got device {topology.device}; leave it out"
    if topology.device == "tpu" and params["reshard"]:
        return (
            "this plan partitions variables on emulated cores, got device tpu, where "
            "TensorFlow's own rewrites of loops decide that; leave reshard out, and compare "
            "device_loop=true, which keeps them whole"
        )
    if topology.device == "tpu" and topology.n_replicas == 1:
        return "replicates over TPU devices, got one; raise replicas"
    return uneven_shares(topology)


def on_cores(plan: Plan) -> bool:
    """True if replicas run one common program."""
    return any(node.synchronizer == "cross-replica-sum" for node in plan.nodes)


def uneven_shares(topology: Topology) -> str | None:
    """Reason why replicas would need different programs, None if they run one."""
    if topology.batch_size % topology.n_replicas:
        return (
            "every replica runs the same program, so that each needs as many examples, got "
            f"{topology.batch_size} for {topology.n_replicas} replicas; make batch_size a multiple"
        )
    return None


def require_dense_gradients(step: StepSummary, strategy: str, way_out: str) -> None:
    """Refuse a step that has no program of known shapes.

    Raises:
        UnsupportedError: a gradient is sparse.
    """
    sparse = next((v.name for v in step.variables if v.sparse), None)
    if sparse is not None:
        raise UnsupportedError(
            f"strategy {strategy!r}: variable {sparse!r} must have dense gradients, since cores run "
            f"programs of known shapes, got rows, as many as ids differ; {way_out}"
        )
