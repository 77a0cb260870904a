"""Losses as people write them: which of them mean on shards what they mean on the whole batch."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

import keras
from model import BATCH_SIZE, N_CLASSES, on_rows
from models import MODELS
from state_models import descent, kernel

from harness.errors import UsageError
from harness.verification.reference import Outcome
from harness.verification.worker.in_process import InProcessCluster, programs_of
from harness.verification.worker.whole_batch import separability_of
from harness.worker.session.capture_store import InitialValues, save
from strategies.capture.capture import capture
from strategies.ir.assembly import assemble
from strategies.topology import Topology
from workloads import TrainStep

WIDTH = 6
SPEC = (
    tf.TensorSpec((WIDTH,), tf.float32),
    tf.TensorSpec((), tf.int32),
    tf.TensorSpec((), tf.float32),
)
layers = keras.layers
Loss = Callable[[Any, Any, Any, Any], Any]


def batch(n=BATCH_SIZE):
    random = np.random.default_rng(0)
    return [
        random.normal(size=(n, WIDTH)).astype(np.float32),
        random.integers(0, N_CLASSES, n).astype(np.int32),
        random.uniform(0.2, 3, n).astype(np.float32),
    ]


def entropies(y, logits):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(y, tf.cast(logits, tf.float32))


def training(loss: Loss, *hidden: Any, optimizer: Any = None, **options: Any) -> TrainStep:
    """A step of a small network.

    Args:
        loss: function of network, rows, labels and weights.
    """
    net = keras.Sequential(
        [keras.Input((WIDTH,)), *(hidden or (layers.Dense(8, "relu"),)), layers.Dense(N_CLASSES)]
    )
    return TrainStep(
        loss=lambda fed: loss(net, *fed),
        variables=net.trainable_variables,
        optimizer=optimizer or keras.optimizers.SGD(0.1),
        **options,
    )


def mean(net, x, y, w):
    return tf.reduce_mean(entropies(y, net(x, training=True)))


def total(net, x, y, w):
    return tf.reduce_sum(entropies(y, net(x, training=True)))


def over_a_fixed_number(net, x, y, w):
    return tf.nn.compute_average_loss(entropies(y, net(x)), global_batch_size=BATCH_SIZE)


def keras_weighted(net, x, y, w):
    crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return crossentropy(y, net(x), sample_weight=w)


def regularised(loss):
    def with_norms(net, x, y, w):
        norms = tf.add_n([tf.nn.l2_loss(v) for v in net.trainable_variables])
        return loss(net, x, y, w) + 1e-3 * norms

    return with_norms


def contrastive(net, x, y, w):
    alike = tf.matmul(net(x), net(x + 0.1), transpose_b=True)
    return tf.reduce_mean(entropies(tf.range(tf.shape(x)[0]), alike))


def triplet(net, x, y, w):
    e = net(x)
    apart = tf.reduce_sum((e[:, None] - e[None]) ** 2, axis=-1)
    return tf.reduce_mean(tf.nn.relu(apart - tf.roll(apart, 1, 0) + 1.0))


def weighted_mean(net, x, y, w):
    return tf.reduce_sum(w * entropies(y, net(x))) / tf.reduce_sum(w)


def in_training(loss):
    return lambda net, x, y, w: loss(lambda rows: net(rows, training=True), x, y, w)


def mildly_weighted_mean(net, x, y, w):
    return weighted_mean(net, x, y, 1 + 1e-4 * w)


def normalised_rewards(net, x, y, w):
    advantages = (w - tf.reduce_mean(w)) / (tf.math.reduce_std(w) + 1e-6)
    return tf.reduce_mean(advantages * entropies(y, net(x)))


def dropped_as_one_row(net, x, y, w):
    dropped = tf.nn.dropout(tf.reshape(x, [-1]), 0.3)
    return mean(net, tf.reshape(dropped, [-1, WIDTH]), y, w)


def dropped_across(net, x, y, w):
    dropped = tf.nn.dropout(tf.reshape(tf.transpose(x), [-1]), 0.3)
    return mean(net, tf.transpose(tf.reshape(dropped, [WIDTH, -1])), y, w)


def dropped_in_a_function(net, x, y, w):
    return mean(net, tf.function(lambda rows: tf.nn.dropout(rows, 0.3))(x), y, w)


def mixed_by_index(net, x, y, w):
    others = tf.random.shuffle(tf.range(tf.shape(x)[0]))
    return mean(net, 0.7 * x + 0.3 * tf.gather(x, others), y, w)


def mixed_by_shuffle(net, x, y, w):
    return mean(net, 0.7 * x + 0.3 * tf.random.shuffle(x), y, w)


def paired_by_shuffle(net, x, y, w):
    return tf.reduce_mean((net(x) - net(tf.random.shuffle(x, seed=3))) ** 2)


def shuffled_columns(net, x, y, w):
    return mean(net, tf.gather(x, tf.random.shuffle(tf.range(WIDTH)), axis=1), y, w)


def in_single_precision(net, x, y, w):
    """Through an operation that TensorFlow has for float32 and narrower types only."""
    images = tf.reshape(net.layers[0](x), [-1, 2, 2, 2])
    constant = tf.ones([2])
    scaled, *_ = tf.compat.v1.nn.fused_batch_norm(
        images, net.layers[0].bias[:2] + 1, constant, constant, constant, is_training=False
    )
    return tf.reduce_mean(entropies(y, net.layers[1](tf.reshape(scaled, [-1, 8]))))


def looked_up():
    table, head = layers.Embedding(40, 5), layers.Dense(N_CLASSES)
    table.build((None, WIDTH))
    head.build((None, 5))

    def loss(fed):
        x, y, _ = fed
        return tf.reduce_mean(entropies(y, head(tf.reduce_mean(table(tf.cast(tf.abs(x) * 9, tf.int32)), 1))))

    variables = [*table.trainable_variables, *head.trainable_variables]
    return TrainStep(loss=loss, variables=variables, optimizer=keras.optimizers.Adam())


def in_half_precision(policy, optimizer=None):
    keras.mixed_precision.set_global_policy(policy)
    try:
        return training(mean, optimizer=optimizer)
    finally:
        keras.mixed_precision.set_global_policy("float32")


def scaled():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))


def whole_function():
    """A tf.function with a tape of its own."""
    net = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(N_CLASSES)])
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(net.trainable_variables)

    @tf.function
    def step(fed):
        with tf.GradientTape() as tape:
            loss = total(net, *fed)
        gradients = tape.gradient(loss, net.trainable_variables)
        optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))
        return loss

    return step


MEANS = {
    "mean": lambda: training(mean),
    "mean, clipped": lambda: training(mean, clip_global_norm=0.1),
    "a Keras loss with weights": lambda: training(keras_weighted),
    "mean and norms": lambda: training(regularised(mean)),
    "dropout": lambda: training(mean, layers.Dense(8), layers.Dropout(0.5), layers.GaussianNoise(0.2)),
    "dropout of one long row": lambda: training(dropped_as_one_row),
    "shuffled columns": lambda: training(shuffled_columns),
    "recurrent dropout": lambda: training(
        mean, layers.Reshape((WIDTH, 1)), layers.LSTM(4, dropout=0.3, recurrent_dropout=0.2)
    ),
    "sparse gradients": looked_up,
    "mixed bfloat16": lambda: in_half_precision("mixed_bfloat16"),
    "mixed float16, scaled": lambda: in_half_precision("mixed_float16", scaled()),
}
SUMS = {
    "sum": total,
    "over a fixed number": over_a_fixed_number,
}
COUPLED = {
    "contrastive": contrastive,
    "triplet": triplet,
    "weighted mean": weighted_mean,
    "mildly weighted mean": mildly_weighted_mean,
    "normalised rewards": normalised_rewards,
    "the hardest example": lambda net, x, y, w: tf.reduce_max(entropies(y, net(x))),
}


@pytest.fixture
def judged(tmp_path):
    """Separability of a newly built step, by default on two workers with two replicas and one."""

    def measured(make, *, spec=SPEC, fed=None, replica_batch=None, **topology):
        keras.backend.clear_session()
        keras.utils.set_random_seed(1)
        captured = capture(make(), spec, replica_batch=replica_batch)
        save(tmp_path, captured.step, captured.initial)
        return separability_of(
            captured.step,
            InitialValues(tmp_path, float64=True),
            Topology(**{"replicas_per_task": (2, 1), "batch_size": BATCH_SIZE, **topology}),
            fed or batch(),
        )

    return measured


@pytest.mark.parametrize("name", MEANS)
def test_a_mean_over_examples_is_separable(judged, name):
    separability = judged(MEANS[name])
    assert separability.separable is True, separability.explanation
    assert max(separability.gradient_difference, separability.loss_difference) < 1e-13


@pytest.mark.parametrize(
    "name", ["recurrent", "summed-state", "averaged-state", "sharpness-aware", "noisy", "thrice"]
)
def test_so_are_loops_state_and_gradients_in_a_row(judged, name):
    model = MODELS[name]()
    separability = judged(lambda: model.step, spec=model.spec, fed=model.batches[0])
    assert separability.separable is True, separability.explanation
    assert separability.gradient_difference < 1e-13


def test_a_metric_of_shards_is_told_and_makes_no_difference(judged):
    model = MODELS["keras-own-step"]()
    separability = judged(lambda: model.step, spec=model.spec, fed=model.batches[0])
    assert separability.separable is True, separability.explanation
    assert "differs, because every shard adds to it" in separability.explanation


def counted_by_hand():
    """The bias correction of a hand-written Adam."""
    w, t = kernel(), tf.Variable(0.0, trainable=False, name="t")

    @tf.function
    def train(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x * w) ** 2)
        gradient = tape.gradient(loss, w)
        t.assign_add(1.0)
        w.assign_sub(0.1 * gradient / (1 - 0.9**t))
        return loss

    return on_rows(train)


def aged():
    """Each place of a vector gets older by 1, which nothing reads."""
    w, ages = kernel(), tf.Variable(tf.zeros(5), trainable=False, name="ages")

    def loss(x):
        ages.assign(ages + 1.0)
        return tf.reduce_mean((x * w) ** 2)

    return on_rows(descent(loss, w))


@pytest.mark.parametrize(("make", "is_told"), [(counted_by_hand, False), (aged, True)])
def test_what_counts_passes_changes_what_is_trained_only_if_it_is_read(judged, make, is_told):
    model = make()
    separability = judged(lambda: model.step, spec=model.spec, fed=model.batches[0])
    assert separability.separable is True, separability.explanation
    assert ("differs, because every shard adds to it" in separability.explanation) is is_told


def test_a_count_that_an_update_reads_is_no_tally(judged, monkeypatch):
    """Were it added up over replicas, what is trained would differ."""
    model = counted_by_hand()
    assembled = assemble.state_rules

    def added_up(*args):
        return dict.fromkeys(assembled(*args), "sum")

    monkeypatch.setattr(assemble, "state_rules", added_up)
    separability = judged(lambda: model.step, spec=model.spec, fed=model.batches[0])
    assert separability.separable is False
    assert separability.state_variable == "t"


def test_what_computes_in_float32_has_a_tolerance_of_float32(judged):
    separability = judged(lambda: training(in_single_precision))
    assert separability.separable is True, separability.explanation
    assert separability.gradient_difference > 1e-9
    assert judged(lambda: training(lambda *fed: in_single_precision(*fed) ** 2)).separable is False


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_says_so_or_is_refused(judged, name):
    with pytest.raises(UsageError, match=r'got a sum.*TrainStep\(reduction="sum"\)'):
        judged(lambda: training(SUMS[name]))
    declared = judged(lambda: training(SUMS[name], reduction="sum"))
    assert declared.separable is True, declared.explanation
    assert declared.gradient_difference < 1e-13


def test_a_whole_function_that_sums_is_refused(judged):
    with pytest.raises(UsageError, match="got a sum"):
        judged(whole_function)


def test_a_mean_is_not_to_be_declared_a_sum(judged):
    with pytest.raises(UsageError, match="drop reduction"):
        judged(lambda: training(mean, reduction="sum"))


@pytest.mark.parametrize("name", COUPLED)
def test_a_loss_that_couples_examples_is_not_separable(judged, name):
    separability = judged(lambda: training(COUPLED[name]))
    assert separability.separable is False, separability.explanation
    assert "its examples interact" in separability.explanation
    assert separability.gradient_difference > 2e-5


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_sum_beside_norms_is_told_apart_from_what_couples_examples(judged, reduction):
    separability = judged(lambda: training(regularised(total), reduction=reduction))
    assert separability.separable is False
    assert "each shard counts terms such as a regularisation again" in separability.explanation


class TestStatistics:
    """A step that normalises by its batch is coupled by it, and by nothing else."""

    @staticmethod
    def normalising(loss=mean, **options):
        return training(loss, layers.Dense(8), layers.BatchNormalization(), layers.Dense(5), **options)

    def test_of_shards_couple_examples_and_the_way_out_is_told(self, judged):
        separability = judged(self.normalising)
        assert separability.separable is False
        assert separability.state_variable.endswith("moving_variance")
        assert "sync_batch_norm=true" in separability.explanation

    def test_of_micro_batches_have_no_such_way_out(self, judged):
        separability = judged(self.normalising, micro_batches=2, replicas_per_task=(1, 1))
        assert separability.separable is False
        assert "sync_batch_norm" not in separability.explanation

    def test_beside_another_coupling_are_no_way_out(self, judged):
        separability = judged(lambda: self.normalising(in_training(weighted_mean)))
        assert separability.separable is False
        assert "sync_batch_norm" not in separability.explanation

    @pytest.mark.parametrize(("loss", "reduction"), [(mean, "mean"), (total, "sum")])
    def test_of_the_whole_batch_are_separable(self, judged, loss, reduction):
        result = lambda: self.normalising(loss, reduction=reduction)  # noqa: E731 - once for two arguments
        separability = judged(result, global_statistics=True)
        assert separability.separable is True, separability.explanation


class TestNoAnswer:
    """Steps whose shards cannot get the whole batch's random numbers are not judged."""

    @pytest.mark.parametrize(
        ("loss", "reason"),
        [
            (dropped_in_a_function, "PartitionedCall.* draws random numbers in a nested function"),
            (dropped_across, "cannot be assigned to examples"),
            (mixed_by_index, "RandomShuffle shuffles the examples of the batch"),
            (mixed_by_shuffle, "RandomShuffle shuffles the examples of the batch"),
            (paired_by_shuffle, "RandomShuffle shuffles the examples of the batch"),
        ],
    )
    def test_names_what_draws(self, judged, loss, reason):
        separability = judged(lambda: training(loss))
        assert separability.separable is None
        assert re.search(reason, separability.explanation)

    def test_for_a_model_of_a_fixed_batch(self, judged):
        def fixed():
            def loss(net, x, y, w):
                return mean(net, tf.concat([x[i : i + 1] for i in range(x.shape[0])], 0), y, w)

            return training(loss)

        separability = judged(fixed, replica_batch=2)
        assert separability.separable is None
        assert "takes 2 examples at a time" in separability.explanation


def test_one_shard_is_the_whole_batch(judged):
    assert judged(lambda: training(total), replicas_per_task=(1,)).separable is True


@pytest.mark.parametrize(
    ("strategy", "params"),
    [
        ("all-reduce", {}),
        ("all-reduce", {"accumulate": 2}),
        ("ps", {"local_proxy_variable": True}),
        ("parallax", {}),
        ("partitioned-ps", {}),
        ("sharded-update", {"min_bytes": 1}),
    ],
)
def test_a_declared_sum_trains_as_one_device_does_on_the_whole_batch(cases, strategy, params):
    case = cases.model("summed")
    whole = case.reference((1,))
    plan = case.plan(strategy, (2, 1), **params)
    with InProcessCluster(programs_of(case.step, plan), case.initial) as cluster:
        losses = [cluster.step(fed) for fed in case.batches]
        verdict = whole.judge(Outcome(values=cluster.read()))
    assert verdict.equivalent
    np.testing.assert_allclose(losses, whole.losses, rtol=1e-12)
    assert whole.judge(Outcome(values=case.reference((2, 1)).values)).equivalent
