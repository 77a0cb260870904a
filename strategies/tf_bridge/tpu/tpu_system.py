"""The TPU devices of this host under TensorFlow's TPUStrategy: brought up, described, given back."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import tensorflow as tf

from strategies.errors import StrategyError

TpuTopology: TypeAlias = tf.tpu.experimental.Topology
LOCAL = "local"
"""TensorFlow's name of the TPU devices of this host, which it reaches without a server."""


class Resolver(Protocol):
    """What finds a TPU system."""

    def get_tpu_system_metadata(self) -> object:
        """Its devices."""


class _Tpu(tf.distribute.TPUStrategy):  # type: ignore[misc]
    """TPUStrategy, which tells a step of one replica, as `OneReplicaSeen` does.

    Unlike TensorFlow's other strategies it goes by what it tells itself: it makes so many copies.
    """

    _makes_copies = False

    def run(self, *args: object, **kw: object) -> object:
        """Run a function on every replica; while it is traced it hears of one."""
        self._makes_copies = True
        try:
            return super().run(*args, **kw)
        finally:
            self._makes_copies = False

    @property
    def num_replicas_in_sync(self) -> int:
        """One; how many there are, where TensorFlow asks to make copies."""
        in_replica = tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
        return len(self.extended.worker_devices) if self._makes_copies and not in_replica else 1


def on_devices(resolver: Resolver, topology: TpuTopology, n_replicas: int) -> tf.distribute.Strategy:
    """TensorFlow's strategy on the first devices of a system, as many as there are replicas."""
    assignment = tf.tpu.experimental.DeviceAssignment.build(topology, num_replicas=n_replicas)
    return _Tpu(resolver, experimental_device_assignment=assignment)


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuRuntime:
    """The calls of TensorFlow that only a host with TPUs answers.

    Attributes:
        resolve: finds the system.
        initialize: brings its devices up, which loses what they held; where they lie.
        distribute: a strategy for so many replicas on it.
        shut_down: gives the devices back.
    """

    resolve: Callable[[], Resolver]
    initialize: Callable[[Resolver], TpuTopology]
    distribute: Callable[[Resolver, TpuTopology, int], tf.distribute.Strategy]
    shut_down: Callable[[Resolver], None]


def local_runtime() -> TpuRuntime:
    """TensorFlow's own, on the devices of this host."""
    return TpuRuntime(
        resolve=lambda: tf.distribute.cluster_resolver.TPUClusterResolver(tpu=LOCAL),
        initialize=tf.tpu.experimental.initialize_tpu_system,
        distribute=on_devices,
        shut_down=tf.tpu.experimental.shutdown_tpu_system,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuSystem:
    """Devices that are up.

    Attributes:
        description: of what there is, a sentence.
        shut_down: gives the devices back; once is enough.
    """

    strategy: tf.distribute.Strategy
    description: str
    shut_down: Callable[[], None]


def brought_up(runtime: TpuRuntime, n_replicas: int, *, label: str, matmul: str) -> TpuSystem:
    """Bring the devices of this host up for so many replicas, a device for each.

    Args:
        label: of the plan's strategy, for messages.
        matmul: in what they multiply matrices of float32, `float32` or `bfloat16`; of all of this process.
    Raises:
        StrategyError: TensorFlow finds no TPU devices, or fewer than replicas.
    """
    # Of NVIDIA's devices by its name; TPUs go by it too, says TensorFlow's reference.
    tf.config.experimental.enable_tensor_float_32_execution(matmul == "bfloat16")
    resolver = runtime.resolve()
    try:
        topology = runtime.initialize(resolver)
    except (tf.errors.OpError, RuntimeError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise StrategyError(
            f"strategy {label!r}: needs a TensorFlow that brings up the TPUs of this host, got {reason}; "
            "use the image of `make image TARGET=tpu` on a TPU VM"
        ) from error
    with ExitStack() as stack:
        stack.callback(runtime.shut_down, resolver)
        n_devices = int(topology.num_tpus_per_task)
        if n_devices < n_replicas or topology.num_tasks > 1:
            raise StrategyError(
                f"strategy {label!r}: needs a TPU device of one host for each replica, got {n_replicas} "
                f"replicas and hosts x devices {topology.num_tasks} x {n_devices}; set "
                "cluster.replicas_per_worker, or take a slice of one host"
            )
        strategy = runtime.distribute(resolver, topology, n_replicas)
        description = _described(topology, n_replicas, matmul)
        return TpuSystem(strategy=strategy, description=description, shut_down=stack.pop_all().close)


def _described(topology: TpuTopology, n_replicas: int, matmul: str) -> str:
    mesh = "x".join(str(n) for n in np.asarray(topology.mesh_shape).tolist())
    places = (tuple(place) for place in np.asarray(topology.device_coordinates)[0].tolist())
    return (
        f"TPU system: {topology.num_tpus_per_task} devices in a mesh {mesh} at "
        f"{', '.join(str(place).replace(' ', '') for place in places)}, {n_replicas} of them with a replica; "
        f"matrices of float32 are multiplied in {matmul}"
    )
