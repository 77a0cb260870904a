"""What a rule has done with workers' gradients, and what it costs by itself."""

import statistics
import time
from collections.abc import Sequence

import numpy as np

from harness.worker.jobs.training import Training
from harness.worker.process.job import JobState
from strategies.plan.schema import Plan

N_WARM = 2
N_TIMED = 5
_MOST_BYTES = 1 << 30


def aggregation_counts(state: JobState) -> Sequence[Sequence[int]]:
    """Of each worker the steps in whose result it had a part, those in which it was not finite, and all.

    Empty where another worker counts. Of several gradients in a row each counts as a step.
    """
    counts = state.get(Training).aggregation_counts()
    return () if not counts else np.sum(counts, axis=0).tolist()


def aggregation_seconds(state: JobState, plan: str) -> tuple[float, float] | None:
    """Seconds in which one worker or server combines the gradients of all, by the rule and by a plain mean.

    The same functions as in the step, on normal draws of the size of all dense gradients together, with no
    step in flight; the median of a few runs. None where the draws would take too much memory.

    Args:
        plan: JSON of a plan with a rule.
    """
    del state
    parsed = Plan.model_validate_json(plan)
    aggregation = parsed.aggregation
    assert aggregation is not None
    # What is cut or sparse counts by its whole variable; slots and state have no gradient.
    gradients = [n for n in parsed.nodes if n.synchronizer in ("ps", "robust-gather") and not n.sparse]
    size = sum(int(np.prod(node.shape)) for node in gradients)
    if not size or 4 * size * aggregation.n > _MOST_BYTES:
        return None
    return _seconds(aggregation, size, by_rule=True), _seconds(aggregation, size, by_rule=False)


def _seconds(aggregation: object, size: int, *, by_rule: bool) -> float:
    import tensorflow as tf

    from strategies.numerics.aggregators.table import aggregate, states
    from strategies.plan.aggregation import Aggregation

    assert isinstance(aggregation, Aggregation)
    n, v1 = aggregation.n, tf.compat.v1
    types = {"float": tf.float32, "int64": tf.int64}
    v1.disable_control_flow_v2()
    with tf.Graph().as_default():
        # Variables, since of constants TensorFlow would combine once for all.
        vectors = [
            v1.Variable(tf.random.normal([size], seed=k), use_resource=True).read_value() for k in range(n)
        ]
        if by_rule:
            kept = [tf.zeros(spec.dims, types[spec.dtype]) for spec in states(aggregation, size, "float")]
            result = aggregate(vectors, kept, aggregation=aggregation, shares=(1.0 / n,) * n).vector
        else:
            result = tf.add_n(vectors) / n
        config = v1.ConfigProto()
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
