"""TPU devices of this host under TensorFlow's TPUStrategy, and steps compiled per replica.

On TPUs, TensorFlow compiles a replica's step into one program, including sums. On CPUs, XLA compiles the
segments between sums, and TensorFlow sums.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np
import tensorflow as tf

# Functions of an imported GraphDef must be in the process's library; nothing public puts them there.
from tensorflow.python.eager import context as eager

from strategies.errors import StrategyError, UnsupportedError
from strategies.ir.variable import Variable
from strategies.program import ReplicaProgram, Segment
from strategies.tf_bridge.attrs import dtype_number
from strategies.topology import Replica

TpuTopology: TypeAlias = tf.tpu.experimental.Topology
LOCAL = "local"
"""TensorFlow's name of the TPU devices of this host, which it reaches without a server."""


class Resolver(Protocol):
    """Resolver of a TPU system."""

    def get_tpu_system_metadata(self) -> object: ...


class _Tpu(tf.distribute.TPUStrategy):  # type: ignore[misc]
    """TPUStrategy that reports one replica to a step, but makes a copy for every device."""

    _makes_copies = False

    def run(self, *args: object, **kw: object) -> object:
        self._makes_copies = True
        try:
            return super().run(*args, **kw)
        finally:
            self._makes_copies = False

    @property
    def num_replicas_in_sync(self) -> int:
        in_replica = tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
        return len(self.extended.worker_devices) if self._makes_copies and not in_replica else 1


def on_devices(resolver: Resolver, topology: TpuTopology, n_replicas: int) -> tf.distribute.Strategy:
    """TPUStrategy on the first devices of a system, one per replica."""
    assignment = tf.tpu.experimental.DeviceAssignment.build(topology, num_replicas=n_replicas)
    return _Tpu(resolver, experimental_device_assignment=assignment)


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuRuntime:
    """TensorFlow calls that work only on a host with TPUs.

    Attributes:
        initialize: function that initialises the devices, which clears their memory.
    """

    resolve: Callable[[], Resolver]
    initialize: Callable[[Resolver], TpuTopology]
    distribute: Callable[[Resolver, TpuTopology, int], tf.distribute.Strategy]
    shut_down: Callable[[Resolver], None]


def local_runtime() -> TpuRuntime:
    """TensorFlow's runtime on the devices of this host."""
    return TpuRuntime(
        resolve=lambda: tf.distribute.cluster_resolver.TPUClusterResolver(tpu=LOCAL),
        initialize=tf.tpu.experimental.initialize_tpu_system,
        distribute=on_devices,
        shut_down=tf.tpu.experimental.shutdown_tpu_system,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuSystem:
    """Initialised devices."""

    strategy: tf.distribute.Strategy
    description: str
    shut_down: Callable[[], None]


def bring_up(runtime: TpuRuntime, n_replicas: int, *, label: str, matmul: str) -> TpuSystem:
    """Bring up the TPU devices of this host, one per replica.

    Args:
        label: label of the plan's strategy, for error messages.
        matmul: precision of float32 products in this process, `float32` or `bfloat16`.
    Raises:
        StrategyError: TensorFlow finds no TPU devices, or fewer than replicas.
    """
    # The option is named after NVIDIA's format; TensorFlow's reference says that it applies to TPUs too.
    tf.config.experimental.enable_tensor_float_32_execution(matmul == "bfloat16")
    resolver = runtime.resolve()
    try:
        topology = runtime.initialize(resolver)
    except (tf.errors.OpError, RuntimeError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise StrategyError(
            f"strategy {label!r}: needs a TensorFlow that can initialise this host's TPUs, got {reason}; "
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


Array: TypeAlias = np.ndarray[Any, Any]
_REASON = 300
Batch: TypeAlias = Sequence[tf.distribute.DistributedValues]
"""Components of a dataset, with each replica's own examples."""
_REFUSALS = (tf.errors.InvalidArgumentError, tf.errors.NotFoundError, tf.errors.UnimplementedError)
"""Errors for an operation that XLA cannot compile."""


class CompiledReplicas:
    """Replicas of one host that run steps together, several steps per run.

    Args:
        variables: name → distributed variable, for all variables of the program.
        loops_on_device: True if replicas loop over a run's steps themselves, instead of the host.
    """

    def __init__(
        self,
        program: ReplicaProgram,
        distribution: tf.distribute.Strategy,
        variables: Mapping[str, tf.Variable],
        replicas: Sequence[Replica],
        *,
        loops_on_device: bool,
    ) -> None:
        self._program = program
        self._distribution = distribution
        self._variables = variables
        self._replicas = replicas
        self._segments = [(segment, _compiled(segment)) for segment in program.segments]
        steps = self._on_devices if loops_on_device else self._from_host
        self._run = tf.function(steps, autograph=False)

    def compile(self, batches: Sequence[Batch]) -> None:
        """Compile a run before anything is timed; it changes variables like a run.

        Raises:
            UnsupportedError: TensorFlow cannot compile the step for these devices.
        """
        try:
            self(batches)
        except _REFUSALS as error:
            raise UnsupportedError(
                f"a step for TPU devices: XLA must be able to compile it, got {_reason(error)}; compare it "
                "by cluster.device=tpu-emulated"
            ) from error

    def placed(self, batch: Sequence[Array]) -> Batch:
        distribute = self._distribution.experimental_distribute_values_from_function
        return [distribute(partial(self._share, component)) for component in batch]

    def _share(self, component: Array, context: tf.distribute.experimental.ValueContext) -> tf.Tensor:
        replica = self._replicas[context.replica_id_in_sync_group]
        return tf.constant(component[None, replica.start : replica.stop])

    def __call__(self, batches: Sequence[Batch]) -> Array:
        """Run one step per placed batch; return losses [n_steps, n_replicas]."""
        losses = self._run(self.joined(batches))
        return np.stack([loss.numpy() for loss in losses], axis=1)

    def joined(self, batches: Sequence[Batch]) -> Batch:
        if len(batches) == 1:
            return batches[0]
        return tf.nest.map_structure(  # type: ignore[no-any-return]
            lambda *components: tf.concat(components, axis=0), *batches, expand_composites=True
        )

    def _from_host(self, batches: Batch) -> tuple[tf.Tensor, ...]:
        def step(number: tf.Tensor) -> tuple[tf.Tensor, ...]:
            batch = tf.nest.map_structure(lambda all_: all_[number], batches, expand_composites=True)
            return self._local(self._distribution.run(self._step, args=(batch,)))

        return self._loop(step, self._local(batches[0])[0], n_losses=len(self._replicas))

    def _on_devices(self, batches: Batch) -> tuple[tf.Tensor, ...]:
        def steps(own: Sequence[tf.Tensor]) -> tf.Tensor:
            def step(number: tf.Tensor) -> tuple[tf.Tensor, ...]:
                return (self._step([component[number] for component in own]),)

            (losses,) = self._loop(step, own[0], n_losses=1)
            return losses

        return self._local(self._distribution.run(steps, args=(batches,)))

    def _loop(
        self, step: Callable[[tf.Tensor], tuple[tf.Tensor, ...]], batches: tf.Tensor, *, n_losses: int
    ) -> tuple[tf.Tensor, ...]:
        n_steps, dtype = int(batches.shape[0]), tf.as_dtype(dtype_number(self._program.loss_dtype))
        losses = [tf.TensorArray(dtype, n_steps, element_shape=()) for _ in range(n_losses)]

        def body(number: tf.Tensor, arrays: Sequence[tf.TensorArray]) -> tuple[object, ...]:
            latest = step(number)
            return number + 1, [array.write(number, loss) for array, loss in zip(arrays, latest, strict=True)]

        _, loss_arrays = tf.while_loop(
            lambda number, _: number < n_steps, body, (tf.constant(0), losses), parallel_iterations=1
        )
        return tuple(array.stack() for array in loss_arrays)

    def _local(self, values: tf.distribute.DistributedValues) -> tuple[tf.Tensor, ...]:
        return tuple(self._distribution.experimental_local_results(values))

    def _step(self, batch: Sequence[tf.Tensor]) -> tf.Tensor:
        program, context = self._program, tf.distribute.get_replica_context()
        values = dict(zip(program.batch, batch, strict=True))
        values |= {handle: self._variables[name].handle for handle, name in program.variables.items()}
        if program.rank is not None:
            values[program.rank] = tf.convert_to_tensor(context.replica_id_in_sync_group, tf.int32)
        for segment, compiled in self._segments:
            outputs = compiled(*(values[ref] for ref in segment.inputs))
            values |= dict(zip(segment.outputs, outputs, strict=True))
            if segment.sums:
                contributed = [values[ref] for ref in segment.sums.values()]
                values |= dict(zip(segment.sums, sum_over_replicas(contributed), strict=True))
        return values[program.loss]


def replicated_variables(
    distribution: tf.distribute.Strategy, captured: Sequence[Variable], values: Mapping[str, Array]
) -> dict[str, tf.Variable]:
    """Create variables with one copy per replica, by name.

    Args:
        values: name → initial value of all copies.
    """
    variables = {}
    with distribution.scope():
        for v in captured:
            differs = v.rule == "per-replica"
            variables[v.name] = tf.Variable(
                values[v.name],
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ
                if differs
                else tf.VariableSynchronization.ON_WRITE,
                aggregation=tf.VariableAggregation.SUM if differs else tf.VariableAggregation.NONE,
            )
    return variables


def sum_over_replicas(contributed: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    """Sum contributions over replicas, from inside a replica."""
    context = tf.distribute.get_replica_context()
    return [context.all_reduce(tf.distribute.ReduceOp.SUM, tensor) for tensor in contributed]


def _compiled(segment: Segment) -> Callable[..., Sequence[tf.Tensor]]:
    definition = tf.compat.v1.GraphDef.FromString(segment.graph_def)
    for function in definition.library.function:
        if not eager.context().has_function(function.signature.name):
            eager.context().add_function_def(function)

    def segment_of(*inputs: tf.Tensor) -> Sequence[tf.Tensor]:
        elements = tf.graph_util.import_graph_def(
            definition,
            input_map={_tensor(ref): value for ref, value in zip(segment.inputs, inputs, strict=True)},
            return_elements=[*map(_tensor, segment.outputs), *segment.targets],
            name="",
        )
        n_outputs = len(segment.outputs)
        with tf.control_dependencies(elements[n_outputs:]):
            return [tf.identity(value) for value in elements[:n_outputs]]

    return tf.function(segment_of, jit_compile=True, autograph=False)  # type: ignore[no-any-return]


def _tensor(ref: str) -> str:
    return ref if ":" in ref else f"{ref}:0"


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    roots = [line.removeprefix("(0) ") for line in lines if line.startswith("(0) ")]
    around = ("Graph execution error", "Detected at")
    others = [line for line in lines if line and not line.startswith(around)]
    return (roots or others or [type(error).__name__])[0][:_REASON]
