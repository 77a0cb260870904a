"""Jobs after a repeat's steps: time of codecs and of aggregation, evaluation, and checkpoints."""

import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from harness.experiment.cases import Case
from harness.worker.counters.read import memory_left_bytes
from harness.worker.jobs.training import Training
from harness.worker.jobs.workload import users_errors, workload_anew
from harness.worker.process.job import JobState
from harness.worker.variable_parts import Pieces, values_of
from strategies.plan.aggregation import Aggregation
from strategies.plan.schema import Plan, PlanNode

if TYPE_CHECKING:
    import tensorflow as tf


N_WARM = 2
N_TIMED = 5
_TIMES_THE_DRAWS = 4
"""Required memory, in multiples of the random gradients: for these, and for combining them."""


def aggregation_counts(state: JobState) -> Sequence[Sequence[int]]:
    """Counts per worker: steps whose result it contributed to, steps with non-finite gradients, all steps.

    Empty if another worker counts. Each of several gradients in a row counts as a step.
    """
    counts = state.get(Training).aggregation_counts()
    return () if not counts else np.sum(counts, axis=0).tolist()


def aggregation_seconds(
    state: JobState, aggregation: Aggregation, size: int, device: str
) -> tuple[float, float] | None:
    """Seconds to combine all gradients on one worker or server, by the rule and by a plain mean.

    Median of a few runs of the step's functions on normal draws, with no step in flight. None without enough
    memory.

    Args:
        size: number of values in all dense gradients together. device: device that combines them.
    """
    left_bytes = memory_left_bytes(state)
    if not size or (left_bytes is not None and left_bytes < _TIMES_THE_DRAWS * 4 * size * aggregation.n):
        return None
    by_rule_s, mean_s = (_seconds(aggregation, size, device, by_rule=by_rule) for by_rule in (True, False))
    return by_rule_s, mean_s


def _seconds(aggregation: Aggregation, size: int, device: str, *, by_rule: bool) -> float:
    import tensorflow as tf

    from strategies.numerics.aggregators import aggregate, states
    from strategies.tf_bridge.snippet import first_control_flow

    n, v1 = aggregation.n, tf.compat.v1
    types = {"float": tf.float32, "int64": tf.int64}
    with tf.Graph().as_default(), tf.device(device), first_control_flow():
        # Variables, because TensorFlow would combine constants only once.
        blocks = [
            v1.Variable(tf.random.normal([1, size], seed=k), use_resource=True).read_value() for k in range(n)
        ]
        if by_rule:
            state = [tf.zeros(spec.dims, types[spec.dtype]) for spec in states(aggregation, size, "float")]
            result = aggregate(blocks, state, aggregation=aggregation, shares=(1.0 / n,) * n).vector
        else:
            result = tf.add_n(blocks) / n
        return _median_s(result.op)


def codec_seconds(state: JobState, plan: Plan) -> float:
    """Seconds for one replica to encode its gradients and to decode the received ones.

    Median of a few runs of the step's functions, in sequence, on normal draws of the gradients' shapes, with
    no step in flight. If payloads are gathered, those of all encoders are decoded; a parameter server's
    decoding counts once per push.
    """
    del state
    import tensorflow as tf

    with tf.Graph().as_default():
        codecs = [_encoded_and_decoded(node, plan) for node in plan.nodes if node.compressor is not None]
        return _median_s(tf.group(*codecs))


def _median_s(operation: "tf.Operation") -> float:
    """Median seconds of a few runs of an operation of the default graph, once its variables have values."""
    import tensorflow as tf

    v1 = tf.compat.v1
    config = v1.ConfigProto(allow_soft_placement=True)
    # The optimizer would drop operations whose values are not fetched.
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with v1.Session(config=config) as session:
        session.run(v1.global_variables_initializer())
        seconds = []
        for _ in range(N_WARM + N_TIMED):
            started_s = time.perf_counter()
            session.run(operation)
            seconds.append(time.perf_counter() - started_s)
    return statistics.median(seconds[N_WARM:])


def _encoded_and_decoded(node: PlanNode, plan: Plan) -> object:
    """Operation that encodes a variable's gradient, updates the codec's state, and decodes."""
    import tensorflow as tf

    from strategies.ir.variable import Fresh
    from strategies.numerics.compressed_sums import decode_sum_of
    from strategies.numerics.compressors import codec_of
    from strategies.plan.compressors import is_added_up
    from strategies.planner import topology_of

    assert node.compressor is not None
    topology = topology_of(plan)
    all_reduced = node.synchronizer != "ps"
    codec = codec_of(node.compressor, n_terms=node.n_members(topology) if all_reduced else 1)
    kind = "double" if node.dtype == "double" else "float"
    dtype = tf.float64 if kind == "double" else tf.float32
    v1 = tf.compat.v1
    # A variable, because TensorFlow would encode a constant only once.
    gradient = v1.Variable(tf.random.normal(node.shape, dtype=dtype), use_resource=True).read_value()
    state = [
        v1.Variable(
            Fresh(kind=spec.initial, dims=spec.dims, dtype=spec.dtype, seed=1).value(), use_resource=True
        )
        for spec in codec.states(node.shape, kind)
    ]
    payload, after = codec.encode(gradient, *(variable.read_value() for variable in state))
    keep = [variable.assign(value) for variable, value in zip(state, after, strict=True)]
    gathered = all_reduced and not is_added_up(node.compressor)
    n_payloads = sum(node.n_encoders(topology)) if gathered else 1
    decoded = decode_sum_of(codec, [payload] * n_payloads, node.shape, dtype)
    return tf.group(*(assigned.op for assigned in keep), decoded.op)


Array = npt.NDArray[np.generic]


def evaluate(
    state: JobState, case: Case, seed: int, capture: str, values: Mapping[str, Array]
) -> Mapping[str, float]:
    """Build a workload anew, set its trained variables, and return its metrics.

    Args:
        seed: seed of the capture.
        capture: folder of the capture. values: captured name → value.
    Raises:
        UsageError: the workload's `evaluate` failed.
    """
    del state
    from harness.worker.session.capture_store import load_step
    from strategies.baselines.variables import matched, recorded
    from strategies.capture.capture import declared_variables
    from workloads.keras_step import step_of
    from workloads.precision import policy_of
    from workloads.protocol import EvaluatedWorkload

    workload, structure = workload_anew(case, seed)
    assert isinstance(workload, EvaluatedWorkload)
    with policy_of(case.computation.precision), recorded() as created:
        step = step_of(workload, structure).step
    captured = [v for v in load_step(Path(capture)).variables if v.name in values]
    for name, variable in matched(captured, created, declared_variables(step)).items():
        if name in values:
            variable.assign(values[name])
    with users_errors(workload, "evaluate()"):
        metrics = workload.evaluate()
        return {str(name): float(value) for name, value in metrics.items()}


@dataclass(slots=True, frozen=True, kw_only=True)
class _Gathered:
    values: Mapping[str, Pieces]


def gather_checkpoint(state: JobState, shared: Collection[str], writer: bool) -> Mapping[str, Pieces]:
    """Values that this worker adds to a checkpoint; the writer keeps its own share in its process.

    All workers run this together, because reading may need them all.

    Args:
        shared: names of variables with equal copies on all replicas.
    """
    from harness.worker.session.checkpoint import contribution

    values = contribution(state.get(Training).session.read(), shared)
    if not writer:
        return values
    state.put(_Gathered(values=values))
    return {}


def write_checkpoint(
    state: JobState,
    folder: str,
    model: Collection[str],
    others: Sequence[Mapping[str, Pieces]],
    step: int,
) -> None:
    """Write this worker's and the others' gathered values into a folder.

    Args:
        model: names of the model's own variables.
    Raises:
        CaseError: `checkpoint-unwritable`.
    """
    from harness.worker.session.checkpoint import write_checkpoint as write

    write(Path(folder), values_of([state.get(_Gathered).values, *others]), model, step)
