"""A step that each replica compiles by XLA, under one of TensorFlow's strategies that gives it devices.

On TPUs TensorFlow makes one program of a replica's whole step, sums included. Where CPUs take their place,
XLA compiles what lies between sums, and TensorFlow sums.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

# Functions that a traced one imports, TensorFlow looks for in the process's own library only, and nothing
# public puts those of a GraphDef there.
from tensorflow.python.eager import context as eager

from strategies.errors import UnsupportedError
from strategies.ir.variable import Variable
from strategies.replica_program import ReplicaProgram, Segment
from strategies.tf_bridge.attrs import dtype_number
from strategies.topology import Replica

Array: TypeAlias = np.ndarray[Any, Any]
_REASON = 300
_PerReplica: TypeAlias = tf.distribute.DistributedValues


class CompiledReplicas:
    """Replicas of one host that make steps together, several in one run.

    Args:
        variables: name → the distributed variable, of all that the program takes.
        replicas: all there are, in order.
        loops_on_device: a run's steps are a loop of the replicas, not of the host.
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

    def compile(self, batches: Sequence[Array]) -> None:
        """Have a run compiled before anything is timed; variables change, as by a run.

        Args:
            batches: as `__call__` takes them.
        Raises:
            UnsupportedError: TensorFlow refuses the step on these devices.
        """
        try:
            self(batches)
        except Exception as error:
            raise UnsupportedError(
                f"a step for TPU devices: XLA must be able to compile it, got {_reason(error)}; compare it "
                "by cluster.device=tpu-emulated"
            ) from error

    def __call__(self, batches: Sequence[Array]) -> Array:
        """Make a step on each of some batches.

        Args:
            batches: of each component of the dataset, all batches stacked, [n_steps, n_examples, …].
        Returns:
            loss of each replica in each step, [n_steps, n_replicas].
        """
        losses = self._run(self._placed(batches))
        return np.stack([loss.numpy() for loss in losses], axis=1)

    def _placed(self, batches: Sequence[Array]) -> list[_PerReplica]:
        """Examples as each replica takes them, still on the host."""

        def share(part: Array) -> Callable[[tf.distribute.experimental.ValueContext], tf.Tensor]:
            def of(context: tf.distribute.experimental.ValueContext) -> tf.Tensor:
                replica = self._replicas[context.replica_id_in_sync_group]
                return tf.constant(part[:, replica.start : replica.stop])

            return of

        return [
            self._distribution.experimental_distribute_values_from_function(share(part)) for part in batches
        ]

    def _from_host(self, batches: Sequence[_PerReplica]) -> tuple[tf.Tensor, ...]:
        """Losses of each replica; every iteration sends its batch to the devices."""

        def step(number: tf.Tensor) -> tuple[tf.Tensor, ...]:
            batch = tf.nest.map_structure(lambda part: part[number], batches, expand_composites=True)
            return self._local(self._distribution.run(self._step, args=(batch,)))

        return self._loop(step, self._local(batches[0])[0], n_losses=len(self._replicas))

    def _on_devices(self, batches: Sequence[_PerReplica]) -> tuple[tf.Tensor, ...]:
        """As `_from_host`; the devices are sent all batches at once."""

        def steps(own: Sequence[tf.Tensor]) -> tf.Tensor:
            def step(number: tf.Tensor) -> tuple[tf.Tensor, ...]:
                return (self._step([part[number] for part in own]),)

            (losses,) = self._loop(step, own[0], n_losses=1)
            return losses

        return self._local(self._distribution.run(steps, args=(batches,)))

    def _loop(
        self, step: Callable[[tf.Tensor], tuple[tf.Tensor, ...]], batches: tf.Tensor, *, n_losses: int
    ) -> tuple[tf.Tensor, ...]:
        """A step for each batch, one after the other; of each loss its values, [n_steps]."""
        n_steps, dtype = int(batches.shape[0]), tf.as_dtype(dtype_number(self._program.loss_dtype))
        losses = [tf.TensorArray(dtype, n_steps, element_shape=()) for _ in range(n_losses)]

        def body(number: tf.Tensor, kept: Sequence[tf.TensorArray]) -> tuple[object, ...]:
            made = step(number)
            return number + 1, [array.write(number, loss) for array, loss in zip(kept, made, strict=True)]

        _, kept = tf.while_loop(
            lambda number, _: number < n_steps, body, (tf.constant(0), losses), parallel_iterations=1
        )
        return tuple(array.stack() for array in kept)

    def _local(self, values: _PerReplica) -> tuple[tf.Tensor, ...]:
        return tuple(self._distribution.experimental_local_results(values))

    def _step(self, batch: Sequence[tf.Tensor]) -> tf.Tensor:
        """One replica's step; its loss."""
        program, context = self._program, tf.distribute.get_replica_context()
        values = dict(zip(program.batch, batch, strict=True))
        values |= {handle: self._variables[name].handle for handle, name in program.variables.items()}
        if program.rank is not None:
            values[program.rank] = tf.convert_to_tensor(context.replica_id_in_sync_group, tf.int32)
        for segment, compiled in self._segments:
            given = compiled(*(values[ref] for ref in segment.takes))
            values |= dict(zip(segment.gives, given, strict=True))
            if segment.sums:
                contributed = [values[ref] for ref in segment.sums.values()]
                values |= dict(zip(segment.sums, sum_over_replicas(contributed), strict=True))
        return values[program.loss]


def replicated_variables(
    distribution: tf.distribute.Strategy, captured: Sequence[Variable], values: Mapping[str, Array]
) -> dict[str, tf.Variable]:
    """Variables of which each replica has a copy, by name.

    Args:
        values: name → what every copy begins with; random state differs once it is loaded.
    """
    made = {}
    with distribution.scope():
        for v in captured:
            differs = v.rule == "per-replica"
            made[v.name] = tf.Variable(
                values[v.name],
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ
                if differs
                else tf.VariableSynchronization.ON_WRITE,
                aggregation=tf.VariableAggregation.SUM if differs else tf.VariableAggregation.NONE,
            )
    return made


def sum_over_replicas(contributed: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    """The sums of what all replicas contribute; called in a replica."""
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, contributed)  # type: ignore[no-any-return]


def _compiled(segment: Segment) -> Callable[..., Sequence[tf.Tensor]]:
    """A segment as a function of what it takes, which XLA compiles."""
    definition = tf.compat.v1.GraphDef.FromString(segment.graph_def)
    for function in definition.library.function:
        if not eager.context().has_function(function.signature.name):
            eager.context().add_function_def(function)

    def run(*taken: tf.Tensor) -> Sequence[tf.Tensor]:
        wanted = [*(_tensor(ref) for ref in segment.gives), *segment.runs]
        elements = tf.graph_util.import_graph_def(
            definition,
            input_map={_tensor(ref): value for ref, value in zip(segment.takes, taken, strict=True)},
            return_elements=wanted,
            name="",
        )
        n_given = len(segment.gives)
        with tf.control_dependencies(elements[n_given:]):
            return [tf.identity(value) for value in elements[:n_given]]

    return tf.function(run, jit_compile=True, autograph=False)  # type: ignore[no-any-return]


def _tensor(ref: str) -> str:
    return ref if ":" in ref else f"{ref}:0"


def _reason(error: Exception) -> str:
    """What an error of TensorFlow's is about, on one line, without the frames and nodes around it."""
    lines = [line.strip() for line in str(error).splitlines()]
    roots = [line.removeprefix("(0) ") for line in lines if line.startswith("(0) ")]
    told = [line for line in lines if line and not line.startswith(("Graph execution error", "Detected at"))]
    return (roots or told or [type(error).__name__])[0][:_REASON]
