"""Cost of encoding and decoding by themselves; in the timed steps they run beside everything else."""

import statistics
import time

from harness.worker.process.job import JobState
from strategies.plan.schema import Plan, PlanNode

N_WARM = 2
N_TIMED = 5


def codec_seconds(state: JobState, plan: str) -> float:
    """Seconds in which one replica encodes all its gradients and decodes what it gets for them.

    The same functions as in the step, on normal draws of the gradients' shapes, one after the other with no
    step in flight; the median of a few runs. Where payloads are gathered, those of all who encode are
    decoded; a parameter server's decoding counts once, for it decodes each worker's push.

    Args:
        plan: JSON of the plan.
    """
    del state
    import tensorflow as tf

    parsed = Plan.model_validate_json(plan)
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        done = [_encoded_and_decoded(node, parsed) for node in parsed.nodes if node.compressor is not None]
        together = tf.group(*done)
        config = v1.ConfigProto()
        # It would leave out what only its running is waited for.
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        with v1.Session(config=config) as session:
            session.run(v1.global_variables_initializer())
            seconds = []
            for _ in range(N_WARM + N_TIMED):
                started_s = time.perf_counter()
                session.run(together)
                seconds.append(time.perf_counter() - started_s)
    return statistics.median(seconds[N_WARM:])


def _encoded_and_decoded(node: PlanNode, plan: Plan) -> object:
    """The operation that encodes a variable's gradient, keeps what the codec keeps, and decodes."""
    import tensorflow as tf

    from strategies.ir.initial_value import Fresh
    from strategies.numerics.compressed_sums import decode_sum_of
    from strategies.numerics.compressors.table import codec_of
    from strategies.plan.compressors import is_added_up
    from strategies.planner import topology_of

    assert node.compressor is not None
    topology = topology_of(plan)
    all_reduced = node.synchronizer != "ps"
    codec = codec_of(node.compressor, n_terms=node.n_members(topology) if all_reduced else 1)
    kind = "double" if node.dtype == "double" else "float"
    dtype = tf.float64 if kind == "double" else tf.float32
    v1 = tf.compat.v1
    # A variable, since of a constant TensorFlow would encode once for all.
    gradient = v1.Variable(tf.random.normal(node.shape, dtype=dtype), use_resource=True).read_value()
    kept = [
        v1.Variable(
            Fresh(kind=spec.initial, dims=spec.dims, dtype=spec.dtype, seed=1).value(), use_resource=True
        )
        for spec in codec.states(node.shape, kind)
    ]
    payload, after = codec.encode(gradient, *(variable.read_value() for variable in kept))
    keep = [variable.assign(value) for variable, value in zip(kept, after, strict=True)]
    gathered = all_reduced and not is_added_up(node.compressor)
    n_payloads = sum(node.n_encoders(topology)) if gathered else 1
    decoded = decode_sum_of(codec, [payload] * n_payloads, node.shape, dtype)
    return tf.group(*(assigned.op for assigned in keep), decoded.op)
