"""What a rule has done with workers' gradients, and what it costs by itself."""

import statistics
import time
from collections.abc import Sequence

import numpy as np

from harness.worker.counters.memory import memory_left_bytes
from harness.worker.jobs.training import Training
from harness.worker.process.job import JobState
from strategies.plan.aggregation import Aggregation

N_WARM = 2
N_TIMED = 5
_TIMES_THE_DRAWS = 4
"""Memory that must be left: for the draws, and for what combining them takes."""


def aggregation_counts(state: JobState) -> Sequence[Sequence[int]]:
    """Of each worker the steps in whose result it had a part, those in which it was not finite, and all.

    Empty where another worker counts. Of several gradients in a row each counts as a step.
    """
    counts = state.get(Training).aggregation_counts()
    return () if not counts else np.sum(counts, axis=0).tolist()


def aggregation_seconds(
    state: JobState, aggregation: Aggregation, size: int, device: str
) -> tuple[float, float] | None:
    """Seconds in which one worker or server combines the gradients of all, by the rule and by a plain mean.

    The same functions as in the step, on normal draws, with no step in flight; the median of a few runs. None
    where this process has not the memory for it, which would end the case.

    Args:
        size: of all dense gradients together. device: on which they are combined.
    """
    left_bytes = memory_left_bytes(state)
    if not size or (left_bytes is not None and left_bytes < _TIMES_THE_DRAWS * 4 * size * aggregation.n):
        return None
    return _seconds(aggregation, size, device, by_rule=True), _seconds(
        aggregation, size, device, by_rule=False
    )


def _seconds(aggregation: Aggregation, size: int, device: str, *, by_rule: bool) -> float:
    import tensorflow as tf

    from strategies.numerics.aggregators.table import aggregate, states
    from strategies.tf_bridge.snippet import first_control_flow

    n, v1 = aggregation.n, tf.compat.v1
    types = {"float": tf.float32, "int64": tf.int64}
    with tf.Graph().as_default(), tf.device(device), first_control_flow():
        # Variables, since of constants TensorFlow would combine once for all.
        vectors = [
            v1.Variable(tf.random.normal([size], seed=k), use_resource=True).read_value() for k in range(n)
        ]
        if by_rule:
            kept = [tf.zeros(spec.dims, types[spec.dtype]) for spec in states(aggregation, size, "float")]
            result = aggregate(vectors, kept, aggregation=aggregation, shares=(1.0 / n,) * n).vector
        else:
            result = tf.add_n(vectors) / n
        config = v1.ConfigProto(allow_soft_placement=True)
        # It would leave out what only its running is waited for.
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        with v1.Session(config=config) as session:
            session.run(v1.global_variables_initializer())
            call = session.make_callable(result.op)
            seconds = []
            for _ in range(N_WARM + N_TIMED):
                started_s = time.perf_counter()
                call()
                seconds.append(time.perf_counter() - started_s)
    return statistics.median(seconds[N_WARM:])
