"""Jobs that the tests of `tf-tpu` run in worker processes: all of it but the TPUs themselves."""

from collections import Counter
from collections.abc import Sequence
from functools import partial

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.python.tpu.tpu_system_metadata import TPUSystemMetadata

from harness.worker.jobs.distributed.workload import Distributed, use_distribution
from harness.worker.jobs.rendezvous import on_reserved_port
from harness.worker.jobs.training import Training
from harness.worker.process.job import JobState
from strategies.baselines import distribution
from strategies.plan.schema import Plan
from strategies.tf_bridge import tpu
from strategies.tf_bridge.tpu import Batch, CompiledReplicas

# Four chips of a device each on one host, as of a v4 slice 2x2x1.
CHIPS = [(0, 0, 0, 0), (0, 1, 0, 0), (1, 0, 0, 0), (1, 1, 0, 0)]
_TRACED: dict[CompiledReplicas, tf.Graph] = {}
SHUT_DOWN = "shut down"


class Described:
    """A TPU system by its description alone."""

    def get_tpu_system_metadata(self) -> TPUSystemMetadata:
        names = [f"/job:localhost/replica:0/task:0/device:TPU:{k}" for k in range(len(CHIPS))]
        devices = [tf.config.LogicalDevice(name, "TPU") for name in names]
        return TPUSystemMetadata(
            num_cores=len(CHIPS),
            num_hosts=1,
            num_of_cores_per_host=len(CHIPS),
            topology=None,
            devices=devices,
        )


def topology_of_chips(resolver: object) -> tf.tpu.experimental.Topology:
    return tf.tpu.experimental.Topology(
        mesh_shape=[2, 2, 1, 1], device_coordinates=np.array([CHIPS], np.int32)
    )


def on_cpus(resolver: object, topology: object, n_replicas: int) -> tf.distribute.Strategy:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * n_replicas)
    return distribution._Mirrored([f"/cpu:{k}" for k in range(n_replicas)])


def start_without_tpus(
    state: JobState, task: int, addresses: Sequence[str], n_devices: int, *, plan: Plan, describe: bool
) -> None:
    """Begin as `start_distribution` does, with CPUs in the place of TPUs, or with TPUs by description."""
    events: Counter[str] = Counter()
    runtime = tpu.TpuRuntime(
        resolve=Described,
        initialize=topology_of_chips,
        distribute=tpu.on_devices if describe else on_cpus,
        shut_down=lambda _: events.update([SHUT_DOWN]),
    )
    with on_reserved_port(state, task, addresses):
        use_distribution(state, distribution.on_tpus(plan, runtime))
    state.put(events)


start_on_cpus = partial(start_without_tpus, describe=False)
start_described = partial(start_without_tpus, describe=True)


def times_shut_down(state: JobState) -> int:
    return state.get(Counter)[SHUT_DOWN]


def n_seen_in_step(state: JobState) -> list[int]:
    """Numbers of replicas that a step sees, in the strategy's scope and in each replica."""
    distribution = state.get(Distributed).distribution.strategy
    seen = []

    def see() -> tf.Tensor:
        seen.append(tf.distribute.get_strategy().num_replicas_in_sync)
        return tf.zeros(())

    def on_all() -> tf.Tensor:
        return distribution.run(see)

    with distribution.scope():
        see()
    tf.function(on_all).get_concrete_function()
    return seen


def only_trace(state: JobState) -> None:
    """Let replicas trace what they would compile, since there is nothing to run it."""

    def compile_nothing(replicas: CompiledReplicas, batches: Sequence[Batch]) -> None:
        _TRACED[replicas] = replicas._run.get_concrete_function(replicas.joined(batches)).graph

    CompiledReplicas.compile = compile_nothing


def drop_sums_of_replicas(state: JobState) -> None:
    """Break compiled replicas: each keeps its gradients to itself."""
    tpu.sum_over_replicas = lambda contributed: contributed  # type: ignore[assignment]


def _traced(state: JobState) -> tf.Graph:
    session = state.get(Training).session
    if hasattr(session, "_replicas"):
        return _TRACED[session._replicas]
    step = session._step  # type: ignore[attr-defined]
    n = sum(replica.examples for replica in step._replicas.values())
    empty = [np.zeros((n, *s.shape), s.dtype.as_numpy_dtype) for s in tf.nest.flatten(step._structure)]
    return step._train.get_concrete_function(step.placed(empty), step.weight).graph


def traced(state: JobState) -> tuple[Counter[str], list[int], list[str]]:
    """Counts of the traced step's operations, the replicas that each spans, and those in float64."""
    definition = _traced(state).as_graph_def()
    nodes = [
        *definition.node,
        *(node for function in definition.library.function for node in function.node_def),
    ]
    copies = [node.attr["num_replicas"].i for node in nodes if node.op == "TPUReplicateMetadata"]
    wide = [
        node.name for node in nodes if any(attr.type == types_pb2.DT_DOUBLE for attr in node.attr.values())
    ]
    return Counter(node.op for node in nodes), copies, wide
