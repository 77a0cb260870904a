"""TensorFlow's strategy object for a plan: its devices, its cluster and its own options."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import tensorflow as tf

from strategies.plan.schema import Plan
from strategies.tf_bridge import tpu


class OneReplicaSeen:
    """A TensorFlow strategy that reports one replica, in its scope and in each replica.

    A step is written for one device and weighted by our baseline code. Keras's loss objects,
    `tf.nn.compute_average_loss` and similar functions divide by the replica count, which would weight it
    twice. The strategy itself counts its replicas in another way.
    """

    @property
    def num_replicas_in_sync(self) -> int:
        """Reported number of replicas: always one."""
        return 1


class _Mirrored(OneReplicaSeen, tf.distribute.MirroredStrategy):  # type: ignore[misc]
    pass


class _CentralStorage(OneReplicaSeen, tf.distribute.experimental.CentralStorageStrategy):  # type: ignore[misc]
    pass


class _MultiWorkerMirrored(OneReplicaSeen, tf.distribute.MultiWorkerMirroredStrategy):  # type: ignore[misc]
    pass


def _nothing() -> None:
    """Release nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """TensorFlow's strategy of one task.

    Attributes:
        weight_dtype: type of the replicas' weights; TPUs have no float64.
        notes: notes on the devices, one sentence each.
        close: function that releases the devices.
    """

    strategy: tf.distribute.Strategy
    weight_dtype: tf.DType = tf.float64
    notes: tuple[str, ...] = ()
    close: Callable[[], None] = _nothing


Maker: TypeAlias = Callable[[Plan, int, Sequence[str]], tf.distribute.Strategy]
_COMMUNICATION = tf.distribute.experimental.CommunicationImplementation


def distribution_of(plan: Plan, task: int, addresses: Sequence[str], n_devices: int) -> Distribution:
    """Make one task's TensorFlow strategy, before TensorFlow has run anything in this process.

    Args:
        addresses: `host:port` of every task. If there are several, TensorFlow starts this task's server here
            and waits for the others.
        n_devices: number of logical CPU devices of this task.
    Raises:
        StrategyError: the plan is for TPUs, and this host lacks a requirement.
    """
    if n_devices > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * n_devices)
    if plan.device == "tpu":
        return on_tpus(plan, tpu.local_runtime())
    return Distribution(strategy=_MAKERS[plan.strategy](plan, task, addresses))


def on_tpus(plan: Plan, runtime: tpu.TpuRuntime) -> Distribution:
    """Make the single task's TensorFlow strategy on the TPU devices of its host.

    Raises:
        StrategyError: see `tpu_system.brought_up`.
    """
    (n_replicas,) = plan.replicas_per_task
    system = tpu.bring_up(
        runtime, n_replicas, label=plan.strategy, matmul=str(plan.strategy_params["matmul"])
    )
    return Distribution(
        strategy=system.strategy,
        weight_dtype=tf.float32,
        notes=(system.description,),
        close=system.shut_down,
    )


def _one_device(plan: Plan, task: int, addresses: Sequence[str]) -> tf.distribute.Strategy:  # noqa: ARG001 - a Maker
    return tf.distribute.OneDeviceStrategy(f"/{plan.device}:0")


def _mirrored(plan: Plan, task: int, addresses: Sequence[str]) -> tf.distribute.Strategy:  # noqa: ARG001 - a Maker
    cross_device_ops = _CROSS_DEVICE[str(plan.strategy_params["cross_device_ops"])]
    devices = [f"/{plan.device}:{i}" for i in range(plan.replicas_per_task[task])]
    return _Mirrored(devices, None if cross_device_ops is None else cross_device_ops())


def _central_storage(plan: Plan, task: int, addresses: Sequence[str]) -> tf.distribute.Strategy:  # noqa: ARG001 - a Maker
    devices = [f"/{plan.device}:{i}" for i in range(plan.replicas_per_task[task])]
    return _CentralStorage(devices, "/cpu:0")


def _multi_worker_mirrored(plan: Plan, task: int, addresses: Sequence[str]) -> tf.distribute.Strategy:
    communication = "ring" if plan.shares_devices else str(plan.strategy_params["communication"])
    options = tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=plan.strategy_params["bytes_per_pack"],
        implementation=_COMMUNICATION[communication.upper()],
    )
    # A single task must have no cluster: TensorFlow would start a server without peers.
    cluster = tf.train.ClusterSpec({"worker": list(addresses)} if len(addresses) > 1 else {})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster,
        task_type="worker",
        task_id=task,
        num_accelerators={"GPU": plan.replicas_per_task[task]} if plan.device == "gpu" else None,
        rpc_layer="grpc",
    )
    return _MultiWorkerMirrored(resolver, options)


_CROSS_DEVICE: Mapping[str, Callable[[], tf.distribute.CrossDeviceOps] | None] = {
    "auto": None,
    "nccl": tf.distribute.NcclAllReduce,
    "hierarchical-copy": tf.distribute.HierarchicalCopyAllReduce,
    "reduction-to-one-device": tf.distribute.ReductionToOneDevice,
}
_MAKERS: Mapping[str, Maker] = {
    "tf-one-device": _one_device,
    "tf-mirrored": _mirrored,
    "tf-central-storage": _central_storage,
    "tf-multi-worker-mirrored": _multi_worker_mirrored,
}
