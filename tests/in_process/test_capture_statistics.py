"""Batch normalisation in a captured step: where its statistics are, and where they can be a shard's only."""

import keras
import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from tiny_steps import SPEC, assert_equivalent, cross_entropy, fresh, hidden, model, train

from strategies.capture.capture import capture
from strategies.errors import CaptureError, UnsupportedError
from strategies.registry import make_plan
from strategies.summary import summarise
from strategies.topology import Topology

layers, optimizers = keras.layers, keras.optimizers
TWO = Topology(replicas_per_task=(1, 1), batch_size=4)


@pytest.fixture(autouse=True)
def _session():
    fresh()


def captured_with(norm, before=None):
    """A step that normalises its rows, which something trainable may have made, before two layers more.

    Args:
        norm: rows → normalised rows.
    """
    head = hidden()
    first = layers.Dense(3, use_bias=False, name="first") if before is None else before
    first.build((None, 3))

    def loss(batch):
        return cross_entropy(head)((norm(first(batch[0])), batch[1]))

    step = train(head, optimizers.SGD(0.1, momentum=0.9), loss)
    step.variables = [*first.trainable_variables, *step.variables]
    return capture(step, SPEC)


def layer(**options):
    batch_normalization = layers.BatchNormalization(name="norm", **options)
    batch_normalization.build((None, 3))
    return batch_normalization


def test_each_layer_has_two_statistics_and_their_gradients():
    net = model(layers.Dense(5), layers.BatchNormalization(name="norm"))
    captured = capture(train(net, optimizers.SGD(0.1)), SPEC)
    results = [(s.node.rpartition("/")[2], s.level, s.shape.dims) for s in captured.step.statistics]
    shape = (1, 5)
    assert sorted(results, key=lambda s: s[1:2]) == [
        ("mean", 1, shape),
        ("variance", 2, shape),
        *sorted([("mean_gradient", 3, shape), ("variance_gradient", 3, shape)], key=results.index),
    ]
    (summary,) = summarise(captured.step, "tiny", {}).statistics
    assert summary.layer.endswith("norm")
    assert summary.bytes == 4 * 5 * 4


def test_statistics_that_no_gradient_comes_back_to_cross_once():
    """Nothing trainable lies below, so that nobody needs a gradient there."""
    norm = layer()
    captured = captured_with(
        lambda x: norm(x, training=True), before=layers.Dense(3, name="fixed", trainable=False)
    )
    assert [s.node.rpartition("/")[2] for s in captured.step.statistics] == ["mean", "variance"]


def test_statistics_of_half_precision_are_in_single():
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        net = model(layers.Dense(5), layers.BatchNormalization())
        captured = capture(train(net, optimizers.SGD(0.1)), SPEC)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert [s.dtype for s in captured.step.statistics] == ["float"] * 4


def test_each_gradient_of_two_losses_comes_back_by_itself(tmp_path):
    """Train two networks against each other."""
    norm, first, second = layer(), layers.Dense(3, use_bias=False), layers.Dense(4)
    first.build((None, 3))
    second.build((None, 3))

    @tf.function
    def step(batch):
        with tf.GradientTape() as one, tf.GradientTape() as other:
            logits = second(norm(first(batch[0]), training=True))
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(batch[1], logits))
            penalty = tf.reduce_mean(tf.abs(logits))
        first.kernel.assign_sub(0.1 * one.gradient(loss, first.kernel.value))
        second.kernel.assign_sub(0.1 * other.gradient(penalty, second.kernel.value))
        return loss

    captured = capture(step, SPEC)
    assert captured.step.own_statistics == {}
    assert_equivalent(captured, tmp_path, strategies=("ps",), sync_batch_norm=True)


def test_layers_that_take_no_statistics_have_none():
    norm = layer()
    still = captured_with(lambda x: norm(x, training=False)).step
    frozen = layer(trainable=False)
    assert not still.statistics
    assert not captured_with(lambda x: frozen(x, training=True)).step.statistics
    normal = layers.LayerNormalization()
    normal.build((None, 3))
    assert not captured_with(normal).step.statistics


def test_statistics_renormalised_are_synchronised_too(tmp_path):
    norm = layer(renorm=True)
    captured = captured_with(lambda x: norm(x, training=True))
    assert len(captured.step.statistics) == 4
    assert_equivalent(captured, tmp_path, strategies=("all-reduce",), sync_batch_norm=True)


def test_keras_has_its_own_functions_back_afterwards():
    before = keras.layers.BatchNormalization.call, tf.nn.moments
    norm = layer()
    captured_with(lambda x: norm(x, training=True))
    assert (keras.layers.BatchNormalization.call, tf.nn.moments) == before


def in_a_function(norm):
    @tf.function
    def inner(x):
        return norm(x, training=True)

    return inner


def in_a_branch(norm):
    return lambda x: tf.cond(tf.reduce_sum(x) > 0.0, lambda: norm(x, training=True), lambda: x)


@pytest.mark.parametrize("called", [in_a_function, in_a_branch])
def test_a_layer_in_a_function_is_refused_for_its_moving_averages(called):
    with pytest.raises(
        CaptureError, match="'norm/moving_mean': forward state must be assigned at the top of"
    ):
        captured_with(called(layer()))


def differentiated_within(norm):
    def with_slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = norm(x, training=True)
            energy = tf.reduce_sum(y**2)
        return y + tape.gradient(energy, x)

    return with_slope


def after_draws(norm):
    return lambda x: norm(x * tf.random.uniform([], 0.5, 1.0), training=True)


@pytest.mark.parametrize(
    ("called", "options", "reason"),
    [
        (lambda n: lambda x: n(x, training=True, mask=x[:, 0] > 0.0), {}, "has a mask, so that examples do"),
        (differentiated_within, {}, "is differentiated within the loss"),
        (after_draws, {}, "is in a step with random operations that cannot be repeated"),
    ],
)
def test_a_layer_whose_statistics_stay_its_shards_is_named(called, options, reason):
    captured = captured_with(called(layer(**options)))
    summary = summarise(captured.step, "tiny", {})
    assert make_plan("ps", {}, summary, TWO).statistics == ()
    with pytest.raises(UnsupportedError) as raised:
        make_plan("ps", {"sync_batch_norm": True}, summary, TWO)
    (line,) = str(raised.value).splitlines()
    assert line.startswith(f"strategy 'ps': sync_batch_norm=true: layer 'norm' {reason}")
    assert line.endswith(", or drop sync_batch_norm")


def test_a_layer_that_asks_for_what_it_cannot_have_is_named_without_the_knob():
    norm = layer(synchronized=True)
    captured = captured_with(lambda x: norm(x, training=True, mask=x[:, 0] > 0.0))
    summary = summarise(captured.step, "tiny", {})
    with pytest.raises(
        UnsupportedError,
        match=r"^strategy 'ps': layer 'norm' has synchronized=True and has a mask, so that examples do not "
        r"count alike; normalise without one, or drop synchronized=True$",
    ):
        make_plan("ps", {}, summary, TWO)
    alone = Topology(replicas_per_task=(1,), batch_size=4)
    assert make_plan("ps", {}, summary, alone).statistics == ()


def test_a_synchronized_layer_is_captured_as_any_other_and_left_as_it_was():
    norm, plain = layer(synchronized=True), layer()
    step = captured_with(lambda x: norm(x, training=True)).step
    assert norm.synchronized
    assert step.synchronized == ("norm",)
    assert not captured_with(lambda x: norm(x, training=False)).step.synchronized
    other = captured_with(lambda x: plain(x, training=True)).step
    assert [n.op for n in step.graph.nodes] == [n.op for n in other.graph.nodes]
