"""Forward state: how copies of several replicas become one, and random state that each has for itself."""

import itertools

import keras
import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from tiny_steps import (
    SPEC,
    assert_equivalent,
    cross_entropy,
    fresh,
    hidden,
    model,
    train,
    variable,
)

from strategies.capture.capture import capture
from strategies.errors import CaptureError
from strategies.registry import make_plan
from strategies.summary import summarise
from strategies.topology import Topology

layers, optimizers = keras.layers, keras.optimizers


@pytest.fixture(autouse=True)
def _session():
    fresh()


def sgd():
    return optimizers.SGD(0.1, momentum=0.9)


def rules(captured):
    return {v.name: v.rule for v in captured.step.variables if v.kind == "state"}


def test_batch_statistics_are_means(tmp_path):
    net = model(layers.Dense(5), layers.BatchNormalization())
    captured = capture(train(net, sgd()), SPEC)
    assert set(rules(captured).values()) == {"mean"}
    assert_equivalent(captured, tmp_path)


def test_fused_batch_statistics_too(tmp_path):
    net, average = hidden(), tf.Variable(tf.zeros(3), trainable=False, name="average")

    def loss(batch):
        image = batch[0][:, None, None, :]
        ones = tf.ones(3)
        image, mean, _ = tf.compat.v1.nn.fused_batch_norm(image, ones, ones, is_training=True)
        average.assign(average * 0.9 + mean * 0.1)
        return cross_entropy(net)((image[:, 0, 0], batch[1]))

    captured = capture(train(net, sgd(), loss), SPEC)
    assert any(n.op == "FusedBatchNormV3" for n in captured.step.graph.nodes)
    assert rules(captured) == {"average": "mean"}
    assert_equivalent(captured, tmp_path, strategies=("ps",))


def test_statistics_updated_twice_in_a_step_cross_once(tmp_path):
    norm, net = layers.BatchNormalization(), hidden()
    norm.build((None, 3))

    def loss(batch):
        x = norm(batch[0], training=True)
        return cross_entropy(net)((norm(tf.tanh(x) + batch[0], training=True), batch[1]))

    captured = capture(train(net, sgd(), loss), SPEC)
    state = [b.variable for b in captured.step.boundaries if b.role == "state"]
    assert sorted(state) == sorted(v.path for v in norm.non_trainable_variables)
    assert_equivalent(captured, tmp_path)


def test_metrics_are_sums_even_if_updated_twice(tmp_path):
    net = hidden()
    mean = keras.metrics.Mean(name="mean")

    def loss(batch):
        value = cross_entropy(net)(batch)
        mean.update_state(value)
        mean.update_state(value * 2.0)
        mean.result()
        return value

    captured = capture(train(net, sgd(), loss), SPEC)
    assert set(rules(captured).values()) == {"sum"}
    assert_equivalent(captured, tmp_path)


def test_rules_follow_from_how_state_is_written():
    net = hidden()
    steps = tf.Variable(0, dtype=tf.int64, name="steps")
    examples = tf.Variable(0, dtype=tf.int64, trainable=False, name="examples")
    level = tf.Variable(0.0, trainable=False, name="level")

    def loss(batch):
        steps.assign_add(1)
        examples.assign_add(tf.shape(batch[0], out_type=tf.int64)[0])
        level.assign_sub(0.1 * (level - tf.reduce_mean(batch[0])))
        return cross_entropy(net)(batch)

    captured = capture(train(net, sgd(), loss), SPEC)
    assert rules(captured) == {"steps": "first-replica", "examples": "sum", "level": "mean"}


def test_counters_sums_and_moving_averages_by_addition_are_merged(tmp_path):
    net = hidden()
    steps = tf.Variable(0, dtype=tf.int64, name="steps")
    examples = tf.Variable(0, dtype=tf.int64, trainable=False, name="examples")
    level = tf.Variable(0.0, trainable=False, name="level")

    def loss(batch):
        steps.assign_add(1)
        examples.assign_add(tf.shape(batch[0], out_type=tf.int64)[0])
        level.assign_sub(0.1 * (level - tf.reduce_mean(batch[0])))
        return cross_entropy(net)(batch)

    assert_equivalent(capture(train(net, sgd(), loss), SPEC), tmp_path)


def test_seeds_of_layers_and_shared_generators_are_per_replica(tmp_path):
    shared = keras.random.SeedGenerator(3)
    net = model(layers.Dropout(0.5, seed=1), layers.Dense(5), layers.GaussianNoise(0.1))

    def loss(batch):
        x = batch[0] + keras.random.normal((3,), seed=shared) * keras.random.uniform((3,), seed=shared)
        return cross_entropy(net)((x, batch[1]))

    captured = capture(train(net, sgd(), loss), SPEC)
    seeds = [v for v in captured.step.variables if v.rule == "per-replica"]
    assert [v.seed_word for v in seeds] == [0, 0, 0]
    assert_equivalent(captured, tmp_path)


def test_a_generator_is_per_replica_and_its_key_is_what_differs(tmp_path):
    generator, net = tf.random.Generator.from_seed(5), hidden()

    def loss(batch):
        shift = generator.normal(tf.shape(batch[0]))
        for _ in tf.range(2):
            shift += generator.uniform((3,))
        return cross_entropy(net)((batch[0] + shift, batch[1]))

    captured = capture(train(net, sgd(), loss), SPEC)
    (state,) = (v for v in captured.step.variables if v.rule == "per-replica")
    assert state.seed_word == 2
    assert_equivalent(captured, tmp_path)


def test_stateful_random_ops_in_graph_and_bodies(tmp_path):
    tf.random.set_seed(7)
    net = hidden()

    def loss(batch):
        shift = tf.random.normal((3,), seed=3)
        for _ in tf.range(2):
            shift += tf.random.normal((3,), seed=4)
        if tf.reduce_sum(batch[0]) > 0:
            shift += tf.random.uniform((3,), seed=5)
        else:
            shift -= tf.random.uniform((3,), seed=6)
        return cross_entropy(net)((batch[0] + shift, batch[1]))

    assert_equivalent(capture(train(net, sgd(), loss), SPEC), tmp_path)


def test_state_written_in_a_loop_or_branch_is_refused_by_name():
    net, calls = hidden(), tf.Variable(0.0, trainable=False, name="calls")

    def loss(batch):
        if tf.reduce_sum(batch[0]) > 0:
            calls.assign_add(1.0)
        return cross_entropy(net)(batch)

    with pytest.raises(CaptureError, match=r"variable 'calls': forward state must be assigned at the top"):
        capture(train(net, sgd(), loss), SPEC)


def test_a_loop_reads_what_was_assigned_before(tmp_path):
    net, level = hidden(), tf.Variable(1.0, trainable=False, name="level")

    def loss(batch):
        level.assign(level * 0.5)
        shift = tf.constant(0.0)
        for _ in tf.range(2):
            shift += level
        return cross_entropy(net)((batch[0] + shift, batch[1]))

    assert_equivalent(capture(train(net, sgd(), loss), SPEC), tmp_path)


def test_single_elements_of_what_was_assigned_are_refused_by_name_and_line():
    net, level = hidden(), tf.Variable([1.0, 2.0], trainable=False, name="level")

    def loss(batch):
        level.assign(level * 0.5)
        shift = tf.gather_nd(level, [[1]])
        return cross_entropy(net)((batch[0] + shift, batch[1]))

    line = loss.__code__.co_firstlineno + 2
    with pytest.raises(
        CaptureError,
        match=r"variable 'level': what the forward pass assigns must be read at the top of the step, got "
        rf"ResourceGatherNd .*\(\S*test_capture_state\.py:{line}\)$",
    ):
        capture(train(net, sgd(), loss), SPEC)


def test_an_update_between_two_assignments_of_state_is_refused_by_name():
    net, level = hidden(), tf.Variable(1.0, trainable=False, name="level")
    loss_of, weights = cross_entropy(net), net.trainable_variables

    @tf.function
    def step(batch):
        level.assign(level * 0.5)
        with tf.GradientTape() as tape:
            loss = loss_of(batch)
        for v, g in zip(weights, tape.gradient(loss, weights), strict=True):
            v.assign_sub(level * g)
        level.assign(level + tf.reduce_mean(batch[0]))
        return loss

    with pytest.raises(
        CaptureError, match=r"variable 'level': an update reads forward state before its first"
    ):
        capture(step, SPEC)


def test_updates_read_what_all_shards_have_assigned(tmp_path):
    net, level = hidden(), tf.Variable(1.0, trainable=False, name="level")
    loss_of, weights = cross_entropy(net), net.trainable_variables

    @tf.function
    def step(batch):
        level.assign(tf.reduce_mean(tf.abs(batch[0])))
        with tf.GradientTape() as tape:
            loss = loss_of(batch)
        for v, g in zip(weights, tape.gradient(loss, weights), strict=True):
            v.assign_sub(level * g)
        return loss

    assert_equivalent(capture(step, SPEC), tmp_path)


def test_a_variable_that_a_trainable_update_does_not_touch_is_left(tmp_path):
    net, frozen = hidden(), tf.Variable([1.0, 2.0, 3.0], trainable=False, name="frozen")

    def loss(batch):
        return cross_entropy(net)((batch[0] * frozen, batch[1]))

    captured = capture(train(net, sgd(), loss), SPEC)
    assert variable(captured, "frozen").kind == "state"
    assert not any(b.variable == "frozen" for b in captured.step.boundaries)
    assert_equivalent(captured, tmp_path, strategies=("ps",))


def test_whole_numbers_are_no_seed_for_what_stands_beside_a_draw(tmp_path):
    net = model(layers.Dense(5), layers.Dropout(0.5, seed=1))
    means = tf.Variable([1, 2, 3], trainable=False, name="means")
    rounds = tf.Variable([0, 0], trainable=False, name="rounds")

    def loss(batch):
        rounds.assign_add([1, 2])
        # The shape of what is drawn comes of all that stands before it.
        shifted = tf.cond(
            rounds[0] > 1, lambda: batch[0] + tf.random.stateless_normal((3,), (1, 2)), lambda: batch[0]
        )
        return cross_entropy(net)((shifted - tf.cast(means, tf.float32), batch[1]))

    captured = capture(train(net, sgd(), loss), SPEC)
    words = {v.name: v.seed_word for v in captured.step.variables if v.kind == "state"}
    assert (words.pop("means"), words.pop("rounds")) == (None, None)
    assert set(words.values()) == {0}
    assert_equivalent(captured, tmp_path)


def test_a_seed_is_found_in_branches_and_calls(tmp_path):
    net, seed = hidden(), tf.Variable([3, 4], trainable=False, name="seed")

    @tf.function
    def noise(key):
        return tf.cond(key[0] > 0, lambda: tf.random.stateless_normal((3,), key), lambda: tf.zeros((3,)))

    def loss(batch):
        seed.assign_add([0, 1])
        return cross_entropy(net)((batch[0] + noise(seed), batch[1]))

    captured = capture(train(net, sgd(), loss), SPEC)
    (state,) = (v for v in captured.step.variables if v.kind == "state")
    assert (state.rule, state.seed_word) == ("per-replica", 0)
    assert_equivalent(captured, tmp_path)


@pytest.mark.parametrize("way", ["branch", "rows"])
def test_an_average_that_a_branch_or_a_lookup_reads_is_a_mean(tmp_path, way):
    net, average = hidden(), tf.Variable(tf.zeros(3), trainable=False, name="average")

    def loss(batch):
        mean = tf.reduce_mean(batch[0], 0)
        if way == "rows":
            delta = mean - tf.gather(average, [0, 1, 2])
        else:
            delta = tf.cond(mean[0] > -9.0, lambda: mean - average, lambda: tf.zeros_like(average))
        average.assign_add(0.1 * delta)
        return cross_entropy(net)(batch)

    captured = capture(train(net, sgd(), loss), SPEC)
    assert rules(captured) == {"average": "mean"}
    assert_equivalent(captured, tmp_path)


def test_a_number_is_added_to_every_place(tmp_path):
    net, ages = hidden(), tf.Variable(tf.zeros((4, 2)), trainable=False, name="ages")

    def loss(batch):
        ages.assign(ages + tf.reduce_sum(batch[0]))
        return cross_entropy(net)(batch)

    captured = capture(train(net, sgd(), loss), SPEC)
    assert rules(captured) == {"ages": "sum"}
    assert_equivalent(captured, tmp_path)


def test_what_a_layer_keeps_of_each_example_stays_with_its_replica():
    inputs = keras.Input(batch_shape=(5, 4, 3))
    net = keras.Model(inputs, layers.Dense(4)(layers.LSTM(2, stateful=True)(inputs)))
    captured = capture(train(net, sgd()), (tf.TensorSpec((4, 3)), SPEC[1]), replica_batch=5)
    assert list(rules(captured).values()) == ["per-replica", "per-replica"]


def test_variables_of_texts_are_refused_by_name():
    net, names = hidden(), tf.Variable(["a", "b"], trainable=False, name="names")

    def loss(batch):
        return cross_entropy(net)(batch) * tf.cast(tf.strings.length(names[0]), tf.float32)

    with pytest.raises(
        CaptureError, match="variable 'names': must hold numbers, got strings; use a constant"
    ):
        capture(train(net, sgd(), loss), SPEC)


def by_hand(optimizer_step, spec=SPEC):
    """A step whose updates are written out; `optimizer_step` takes weights and gradients."""
    net = hidden()
    plain = cross_entropy(net)

    @tf.function
    def train_by_hand(batch):
        with tf.GradientTape() as tape:
            loss = plain(batch)
        optimizer_step(net.trainable_variables, tape.gradient(loss, net.trainable_variables))
        return loss

    return capture(train_by_hand, spec)


def test_steps_that_an_update_counts_in_floats_are_counted_once(tmp_path):
    t, rate = (tf.Variable(0.0, trainable=False, name=name) for name in ("t", "rate"))

    def step(weights, gradients):
        t.assign_add(1.0)
        rate.assign_add(0.01)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(rate * gradient / (1 - 0.9**t))

    captured = by_hand(step)
    assert rules(captured) == {"t": "first-replica", "rate": "first-replica"}
    assert_equivalent(captured, tmp_path)


def test_slots_of_an_update_that_is_written_out_are_where_their_variables_are(tmp_path):
    """Adam with all gradients clipped together, in variables of the same names."""
    shapes = ((3, 5), (5,), (5, 4), (4,))
    moments = [
        [tf.Variable(tf.zeros(shape), trainable=False, name=name) for name in ("m", "v")] for shape in shapes
    ]

    def step(weights, gradients):
        clipped, _ = tf.clip_by_global_norm(gradients, 0.1)
        for weight, gradient, (m, v) in zip(weights, clipped, moments, strict=True):
            m.assign(0.9 * m + 0.1 * gradient)
            v.assign(0.99 * v + 0.01 * gradient**2)
            weight.assign_sub(0.01 * m / (tf.sqrt(v) + 1e-6))

    captured = by_hand(step)
    slots = [v for v in captured.step.variables if v.kind == "slot"]
    trained = [v.name for v in captured.step.variables if v.kind == "trainable"]
    assert sorted((v.slot_of, v.group) for v in slots) == sorted(itertools.product(trained, "mv"))
    summary = summarise(captured.step, "tiny", {})
    plan = make_plan("ps-load-balancing", {}, summary, Topology(replicas_per_task=(1, 1), batch_size=4))
    places = {node.variable: node.destination for node in plan.nodes}
    assert all(places[v.name] == places[v.slot_of] for v in slots)
    assert {places[v.name] for v in slots} == {0, 1}
    assert_equivalent(captured, tmp_path, strategies=("ps", "partitioned-ps", "all-reduce"))


def test_examples_that_an_update_counts_in_floats_are_added_up(tmp_path):
    seen = tf.Variable(0.0, trainable=False, name="seen")
    net = hidden()
    plain = cross_entropy(net)

    @tf.function
    def step(batch):
        with tf.GradientTape() as tape:
            loss = plain(batch)
        seen.assign_add(tf.cast(tf.shape(batch[1])[0], tf.float32))
        for weight, gradient in zip(
            net.trainable_variables, tape.gradient(loss, net.trainable_variables), strict=True
        ):
            weight.assign_sub(gradient / (10.0 + seen))
        return loss

    captured = capture(step, SPEC)
    assert rules(captured) == {"seen": "sum"}
    assert_equivalent(captured, tmp_path)


@pytest.mark.parametrize("adds", [True, False])
def test_a_sum_with_an_older_value_is_an_assignment(tmp_path, adds):
    net, level = hidden(), tf.Variable(0.0, trainable=False, name="level")

    def loss(batch):
        old = level.read_value()
        if adds:
            level.assign_add(1.0)
        else:
            level.assign(level + 1.0)
        level.assign(old + tf.reduce_mean(batch[0]))
        return cross_entropy(net)(batch)

    if adds:
        with pytest.raises(CaptureError, match="either assigned or added to in a step, got both"):
            capture(train(net, sgd(), loss), SPEC)
        return
    captured = capture(train(net, sgd(), loss), SPEC)
    assert rules(captured) == {"level": "mean"}
    assert_equivalent(captured, tmp_path)


def test_state_whose_names_no_node_can_have_has_boundaries_of_its_own(tmp_path):
    net = hidden()
    total, seen = (tf.Variable(0.0, trainable=False) for _ in range(2))
    odd = [keras.Variable(0.0, trainable=False, name=name) for name in ("损失", "精度")]

    def loss(batch):
        total.assign_add(1.0)
        total.assign_add(tf.reduce_sum(batch[0]))
        seen.assign_add(1.0)
        for name in odd:
            name.assign_add(tf.reduce_sum(batch[0]))
        return cross_entropy(net)(batch)

    captured = capture(train(net, sgd(), loss), SPEC)
    assert len({b.values for b in captured.step.boundaries}) == len(captured.step.boundaries)
    assert_equivalent(captured, tmp_path)


def test_a_mean_that_the_loss_reads_divides_a_sum_by_a_sum(tmp_path):
    """Its count grows by 1 for each value, whatever the batch: as often as its total."""
    net, tracker = hidden(), keras.metrics.Mean(name="tracker")
    plain = cross_entropy(net)

    def loss(batch):
        value = plain(batch)
        tracker.update_state(tf.stop_gradient(value))
        return value / (1.0 + tf.stop_gradient(tracker.result()))

    captured = capture(train(net, sgd(), loss), SPEC)
    assert set(rules(captured).values()) == {"sum"}
    assert_equivalent(captured, tmp_path)


def test_an_update_beside_a_scope_of_its_name(tmp_path):
    net = hidden()
    rate = tf.Variable(0.1, trainable=False, name="rate")
    plain = cross_entropy(net)

    @tf.function
    def step(batch):
        with tf.GradientTape() as tape:
            with tf.name_scope("update"):
                now = rate.read_value()
            loss = plain(batch) * now
        gradients = tape.gradient(loss, net.trainable_variables)
        with tf.name_scope("update"):
            for weight, gradient in zip(net.trainable_variables, gradients, strict=True):
                weight.assign_sub(now * gradient)
        return loss

    captured = capture(step, SPEC)
    assert any(node.name.startswith("update_/") for node in captured.step.graph.nodes)
    assert_equivalent(captured, tmp_path)
