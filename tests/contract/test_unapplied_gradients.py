"""Gradients that a step takes of all variables, and applies to some: nobody waits for what nobody takes."""

import keras
import pytest

# Where a mistake leaves workers waiting for each other, the test must not wait long.
pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]
tf = pytest.importorskip("tensorflow")

from cases import case_of_model
from model import N_CLASSES, mean_cross_entropy, on_labelled

from harness.verification.worker.in_process import programs_of

# Where each gradient travels alone, one that nobody takes is seen.
STRATEGIES = {
    "ps": {},
    "ps-load-balancing": {},
    "all-reduce": {"chunk_size": 1},
    "parallax": {"chunk_size": 1},
    "sharded-update": {"bucket_bytes": 1},
}
USES = ("left", "clipped", "shown")


def partly_applied(use):
    """A table and two layers, of which the first layer is left as it is."""
    layers = [keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(N_CLASSES)]
    layers[0].build((None, 3))
    layers[1].build((None, 4))
    table = tf.Variable(tf.ones((5, 4)), name="table")
    frozen = layers[0].trainable_variables
    trained = [table, *layers[1].trainable_variables]
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(trained)

    @tf.function
    def train(batch):
        rows, labels = batch
        with tf.GradientTape() as tape:
            hidden = layers[0](rows) + tf.nn.embedding_lookup(table, labels)
            loss = mean_cross_entropy(labels, layers[1](hidden))
        gradients = tape.gradient(loss, [*frozen, *trained])
        if use == "clipped":
            gradients, _ = tf.clip_by_global_norm(gradients, 0.5)
        if use == "shown":
            tf.print("norm of frozen", tf.linalg.global_norm(gradients[: len(frozen)]), summarize=1)
        optimizer.apply(gradients[len(frozen) :], trained)
        return loss

    return on_labelled(train)


@pytest.fixture(scope="module")
def case(shared):
    results = {}

    def of(use):
        if use not in results:
            keras.backend.clear_session()
            keras.utils.set_random_seed(1)
            results[use] = case_of_model(partly_applied(use), shared / f"partly-applied-{use}")
        return results[use]

    return of


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("replicas", [(1, 1), (2, 1)], ids=str)
def test_what_is_not_applied_moves_nothing_and_stops_nobody(case, use, strategy, replicas):
    plan = case(use).plan(strategy, replicas, **STRATEGIES[strategy])
    # As timed steps are made: what a verdict looks at besides would take all gradients.
    verdict = case(use).run(plan, programs_of(case(use).step, plan))
    worst = max(verdict.variables, key=lambda v: v.update_error)
    assert verdict.equivalent, f"{worst.name} is off by {worst.update_error:.1e}"


def test_payload_counts_what_crosses(case):
    left, clipped = (case(use).plan("all-reduce", (1, 1)) for use in ("left", "clipped"))
    frozen = [v for v in case("left").summary.variables if v.kind == "trainable" and not v.synced]
    assert len(frozen) == 2
    # Of two workers, each sends the other as much as there is.
    assert clipped.payload_bytes_per_step - left.payload_bytes_per_step == 2 * sum(v.bytes for v in frozen)
