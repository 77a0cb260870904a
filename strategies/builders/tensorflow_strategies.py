"""TensorFlow's own strategies: their plan nodes, and the shapes on which they cannot run."""

from strategies.builders import tpu
from strategies.params import Param, Params
from strategies.plan.schema import PlanNode, StepSummary
from strategies.plan.strategy import node_of
from strategies.topology import Topology

SERVERS = Param(
    name="servers",
    type=int,
    default=None,
    minimum=1,
    unit="workers",
    summary="Workers that also run a server; none: all.",
)


def mirrored(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:  # noqa: ARG001 - a Layout
    """Every replica owns all variables; gradients are summed in packs, the last variable's first.

    TensorFlow closes a pack once it holds more than `bytes_per_pack`; 0 puts everything into one pack.
    Forward state stays with its replica.
    """
    limit = int(params.get("bytes_per_pack") or 0)
    pack_of: dict[str, int] = {}
    pack, n_bytes = 0, 0
    for variable in reversed(step.variables):
        if variable.kind == "trainable" and variable.synced and not variable.sparse:
            if limit and n_bytes > limit:
                pack, n_bytes = pack + 1, 0
            pack_of[variable.name] = pack
            n_bytes += variable.bytes
    return [
        node_of(
            v,
            synchronizer="all-reduce" if v.kind == "trainable" and v.synced else "none",
            group=pack_of.get(v.name),
        )
        for v in step.variables
    ]


def central(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:  # noqa: ARG001 - a Layout
    """One device holds all variables and slots, and forward state, which every replica updates there."""
    return [
        node_of(v, destination=0, synchronizer="ps" if v.synced or v.rule is not None else "none")
        for v in step.variables
    ]


def refuse_more_workers(topology: Topology, params: Params) -> str | None:  # noqa: ARG001 - a Refusal
    """Refuse several workers: `MirroredStrategy` and `CentralStorageStrategy` run in one process."""
    if topology.n_tasks > 1:
        return (
            f"keeps replicas within one process, got {topology.n_tasks} workers; use workers=1 with more "
            "replicas, or tf-multi-worker-mirrored"
        )
    return None


def refuse_more_replicas(topology: Topology, params: Params) -> str | None:  # noqa: ARG001 - a Refusal
    """Refuse several CPU replicas: `MultiWorkerMirroredStrategy` uses all CPUs of a worker as one device."""
    most = max(topology.replicas_per_task)
    if topology.device == "cpu" and most > 1:
        return (
            f"makes one replica of all CPUs of a worker, got {most} replicas per worker; use replicas=1 with "
            "more workers, or tf-mirrored"
        )
    if len(set(topology.replicas_per_task)) > 1:
        return f"needs as many replicas on each worker, got {topology.replicas_per_task}; make them equal"
    return None


def summed_on_tpus(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:  # noqa: ARG001 - a Layout
    """Every replica owns all variables; gradients are summed between TPUs, forward state stays apart.

    Raises:
        UnsupportedError: a gradient is sparse.
    """
    tpu.require_dense_gradients(
        step, "tf-tpu", "take tpu-replicate, which makes them dense, or processors or GPUs"
    )
    return [
        node_of(v, synchronizer="cross-replica-sum" if v.kind == "trainable" and v.synced else "none")
        for v in step.variables
    ]


def refuse_more_hosts(topology: Topology, params: Params) -> str | None:  # noqa: ARG001 - a Refusal
    """Refuse several hosts: `TPUStrategy` gets the TPU devices of one host, which all run one program."""
    if topology.n_tasks > 1:
        return (
            f"drives the TPU devices of one host, got {topology.n_tasks} workers; use workers=1 with a "
            "replica for each of them, on a slice of one host"
        )
    return tpu.uneven_shares(topology)


def round_robin(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:
    """Place variables on servers in turn, in the model's order of creation; slots with their variable.

    Forward state is on servers as well, and every worker updates it there. The payload is computed for
    equally many closures on each worker.
    """
    n_servers = servers_of(topology, params)
    in_turn = [v.name for v in step.variables if v.kind != "slot"]
    destinations = {name: number % n_servers for number, name in enumerate(in_turn)}
    return [
        node_of(
            v,
            destination=destinations.get(v.slot_of or v.name, 0),
            synchronizer="ps" if v.synced or v.rule is not None else "none",
        )
        for v in step.variables
    ]


def servers_of(topology: Topology, params: Params) -> int:
    """Number of parameter servers: the first workers, by default all."""
    return int(params.get(SERVERS.name) or topology.n_tasks)


def refuse_uneven_work(topology: Topology, params: Params) -> str | None:
    """Refuse uneven shares: `ParameterServerStrategy` schedules equal closures on any free worker."""
    most = max(topology.replicas_per_task)
    if topology.device != "cpu":
        return f"is compared on CPU workers, got device {topology.device}; use tf-multi-worker-mirrored there"
    if most > 1:
        return (
            f"makes one replica of all CPUs of a worker, got {most} replicas per worker; use replicas=1 with "
            "more workers"
        )
    if topology.batch_size % topology.n_tasks:
        return (
            f"gives all workers shares of one size, got {topology.batch_size} examples for "
            f"{topology.n_tasks} workers; make batch_size a multiple"
        )
    if servers_of(topology, params) > topology.n_tasks:
        return (
            f"has a server on each worker at most, got servers={params[SERVERS.name]} on {topology.n_tasks} "
            "workers; lower servers"
        )
    return None
