"""Steps of every form: where the gradient boundary lies, and that what is rebuilt computes the same."""

from collections import OrderedDict

import keras
import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from tiny_steps import (
    SPEC,
    Step,
    assert_equivalent,
    cross_entropy,
    dense_batches,
    fresh,
    hidden,
    model,
    train,
    variable,
)

from harness.verification.worker.in_process import InProcessCluster, programs_of
from harness.worker.session.capture_store import InitialValues, save
from strategies.capture.capture import capture
from strategies.errors import CaptureError
from strategies.registry import make_plan
from strategies.summary import summarise
from strategies.topology import Topology

optimizers, layers = keras.optimizers, keras.layers


@pytest.fixture(autouse=True)
def _session():
    fresh()


def gradients(captured):
    return sorted(b.variable for b in captured.step.gradients())


def own_tape(returned=lambda loss, logits: loss):
    net, optimizer = hidden(), optimizers.Adam(0.01)
    optimizer.build(net.trainable_variables)
    loss_of = cross_entropy(net)

    @tf.function
    def step(batch):
        with tf.GradientTape() as tape:
            loss = loss_of(batch)
        gradient = tape.gradient(loss, net.trainable_variables)
        optimizer.apply_gradients(zip(gradient, net.trainable_variables, strict=True))
        return returned(loss, net(batch[0]))

    return step, net


def test_a_whole_step_with_its_own_tape_even_if_it_ran_before(tmp_path):
    step, net = own_tape()
    step(tuple(tf.constant(part) for part in dense_batches()[0]))
    captured = capture(step, SPEC)
    assert gradients(captured) == sorted(v.path for v in net.trainable_variables)
    assert_equivalent(captured, tmp_path)


@pytest.mark.parametrize(
    ("returned", "left"),
    [
        (lambda loss, logits: {"logits": logits, "loss": loss}, "logits"),
        (lambda loss, logits: (loss, logits, tf.reduce_max(logits)), "[1], [2]"),
    ],
    ids=["mapping", "tuple"],
)
def test_results_of_the_updated_model_are_left_out(tmp_path, returned, left):
    captured = capture(own_tape(returned)[0], SPEC)
    (note,) = captured.step.notes
    assert note.startswith("not fetched, because they are computed after an update")
    assert f": {left};" in note
    assert captured.step.results == ()
    assert "Max" not in {node.op for node in captured.step.graph.nodes}
    assert_equivalent(captured, tmp_path)


@pytest.mark.parametrize(
    "returned",
    [
        lambda loss, tracker: None,
        lambda loss, tracker: {"examples": tf.constant(3)},
        lambda loss, tracker: {"loss": tracker.result()},
        lambda loss, tracker: (tracker.result(), 1.0),
    ],
)
@pytest.mark.parametrize("scaled", [False, True])
def test_the_loss_of_a_step_that_returns_none_of_its_own_is_what_its_gradients_are_of(
    tmp_path, returned, scaled
):
    """Loss of this step alone, without a loss scale; a metric's running result covers all steps."""
    net, optimizer = hidden(), optimizers.SGD(0.1)
    if scaled:
        optimizer = optimizers.LossScaleOptimizer(optimizer, initial_scale=256.0)
    optimizer.build(net.trainable_variables)
    tracker, loss_of = keras.metrics.Mean("loss"), cross_entropy(net)

    @tf.function
    def step(batch):
        with tf.GradientTape() as tape:
            loss = loss_of(batch)
            scaled_loss = optimizer.scale_loss(loss)
        tracker.update_state(loss)
        gradient = tape.gradient(scaled_loss, net.trainable_variables)
        optimizer.apply(gradient, net.trainable_variables)
        return returned(loss, tracker)

    batches = dense_batches()
    expected = [float(loss_of(tuple(map(tf.constant, batch)))) for batch in batches[:1]]
    captured = capture(step, SPEC)
    assert losses(captured, tmp_path, batches[:1]) == pytest.approx(expected, rel=1e-6)
    assert_equivalent(captured, tmp_path)


def losses(captured, folder, batches):
    """Loss of the captured step itself."""
    summary = summarise(captured.step, "tiny", {})
    save(folder / "losses", captured.step, captured.initial)
    plan = make_plan("single", {}, summary, Topology(replicas_per_task=(1,), batch_size=len(batches[0][0])))
    with InProcessCluster(programs_of(captured.step, plan), InitialValues(folder / "losses")) as cluster:
        return [cluster.step(batch) for batch in batches]


def test_a_loss_that_the_step_returns_is_preferred_to_what_its_gradients_are_of(tmp_path):
    net, sgd = hidden(), optimizers.SGD(0.1)
    sgd.build(net.trainable_variables)
    loss_of = cross_entropy(net)

    @tf.function
    def step(batch):
        with tf.GradientTape() as tape:
            loss = loss_of(batch)
            penalised = loss + sum(tf.nn.l2_loss(v) for v in net.trainable_variables)
        sgd.apply(tape.gradient(penalised, net.trainable_variables), net.trainable_variables)
        return {"loss": loss}

    batches = dense_batches()[:1]
    expected = float(loss_of(tuple(map(tf.constant, batches[0]))))
    assert losses(capture(step, SPEC), tmp_path, batches) == pytest.approx([expected], rel=1e-6)


def test_a_sum_of_targets_is_the_loss_and_weighted_targets_are_none(tmp_path):
    net, sgd = hidden(), optimizers.SGD(0.1)
    sgd.build(net.trainable_variables)
    loss_of = cross_entropy(net)

    def step(**options):
        @tf.function
        def train_on(batch):
            with tf.GradientTape() as tape:
                targets = [loss_of(batch), tf.square(net(batch[0]))]
            weights = [tf.ones_like(t) for t in targets] if options else None
            gradient = tape.gradient(targets, net.trainable_variables, output_gradients=weights)
            sgd.apply(gradient, net.trainable_variables)

        return train_on

    batches = dense_batches()[:1]
    parts = tuple(map(tf.constant, batches[0]))
    expected = float(loss_of(parts) + tf.reduce_sum(tf.square(net(parts[0]))))
    assert losses(capture(step(), SPEC), tmp_path, batches) == pytest.approx([expected], rel=1e-6)
    with pytest.raises(CaptureError, match="loss must be a floating scalar, got NoneType"):
        capture(step(weighted=True), SPEC)


NAMED = {"x": SPEC[0], "labels": SPEC[1]}


@pytest.mark.parametrize("spec", [SPEC, NAMED], ids=["tuple", "dict"])
@pytest.mark.parametrize("whole", [True, False])
def test_a_step_may_take_the_parts_of_a_batch_as_arguments(tmp_path, whole, spec):
    net, sgd = hidden(), optimizers.SGD(0.1)
    sgd.build(net.trainable_variables)
    loss_of = cross_entropy(net)

    def loss(x, labels, scale=1.0):
        return scale * loss_of((x, labels))

    @tf.function
    def step(x, labels):
        with tf.GradientTape() as tape:
            value = loss(x, labels)
        sgd.apply(tape.gradient(value, net.trainable_variables), net.trainable_variables)
        return value

    batches = dense_batches()
    if spec is NAMED:  # Structures of names are in the order of their keys.
        batches = [list(reversed(batch)) for batch in batches]
    assert_equivalent(capture(step if whole else train(net, sgd, loss), spec), tmp_path, batches)


@pytest.mark.parametrize(
    ("spec", "got"), [(SPEC, "a tuple of 2"), (SPEC[0], "a tensor"), (NAMED, "the keys labels, x")]
)
def test_a_step_of_other_arguments_than_its_batch_has_parts_is_refused(spec, got):
    @tf.function
    def step(x, y, z):
        return x

    with pytest.raises(CaptureError) as caught:
        capture(step, spec)
    assert str(caught.value) == (
        f"train step: must take a batch, or its parts as arguments, got the arguments x, y, z for {got}; let "
        "it take the batch alone and unpack that"
    )


def test_several_tapes_are_joined_and_each_optimizer_keeps_its_slots(tmp_path):
    generator, judge = model(layers.Dense(3)), keras.Sequential([keras.Input((3,)), layers.Dense(1)])
    first, second = optimizers.Adam(0.01), optimizers.RMSprop(0.01)
    first.build(generator.trainable_variables)
    second.build(judge.trainable_variables)

    @tf.function
    def step(batch):
        with tf.GradientTape() as one, tf.GradientTape() as other:
            fake = judge(generator(batch[0])[:, :3])
            loss = -tf.reduce_mean(tf.math.log_sigmoid(fake))
            against = -tf.reduce_mean(tf.math.log_sigmoid(judge(batch[0])) + tf.math.log_sigmoid(-fake))
        mine = one.gradient(loss, generator.trainable_variables)
        yours = other.gradient(against, judge.trainable_variables)
        first.apply_gradients(zip(mine, generator.trainable_variables, strict=True))
        second.apply_gradients(zip(yours, judge.trainable_variables, strict=True))
        return loss + against

    captured = capture(step, SPEC)
    everything = [*generator.trainable_variables, *judge.trainable_variables]
    assert gradients(captured) == sorted(v.path for v in everything)
    owned = {v.slot_of for v in captured.step.variables if v.kind == "slot"}
    assert owned == {None, *(v.path for v in everything)}
    assert_equivalent(captured, tmp_path)


def test_a_persistent_tape_asked_twice_is_the_union(tmp_path):
    net, optimizer = hidden(), optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(net.trainable_variables)
    loss_of = cross_entropy(net)

    @tf.function
    def step(batch):
        with tf.GradientTape(persistent=True) as tape:
            loss = loss_of(batch)
        results = [tape.gradient(loss, [v])[0] for v in net.trainable_variables]
        optimizer.apply(results, net.trainable_variables)
        return loss

    captured = capture(step, SPEC)
    assert len(gradients(captured)) == 4
    assert_equivalent(captured, tmp_path, strategies=("ps",))


def test_of_nested_tapes_only_the_outermost_is_the_boundary(tmp_path):
    net = hidden()
    inner_loss = cross_entropy(net)

    def loss(batch):
        with tf.GradientTape() as tape:
            inner = inner_loss(batch)
        gradient = tape.gradient(inner, [v.value for v in net.trainable_variables])
        return inner + 0.1 * tf.add_n([tf.nn.l2_loss(g) for g in gradient])

    captured = capture(train(net, optimizers.Adam(0.01), loss), SPEC)
    assert len(gradients(captured)) == 4
    assert_equivalent(captured, tmp_path)


@pytest.mark.parametrize("clipped", [False, True], ids=["plain", "clipped"])
def test_a_gradient_crosses_where_something_comes_of_it(tmp_path, clipped):
    """A step that freezes its first layer by applying the others' gradients alone."""
    net, optimizer = hidden(), optimizers.SGD(0.1)
    weights, loss_of = net.trainable_variables, cross_entropy(net)
    optimizer.build(weights[2:])

    @tf.function
    def step(batch):
        with tf.GradientTape() as tape:
            loss = loss_of(batch)
        gradient = tape.gradient(loss, weights)
        if clipped:
            gradient, _ = tf.clip_by_global_norm(gradient, 0.1)
        optimizer.apply(gradient[2:], weights[2:])
        return loss

    captured = capture(step, SPEC)
    assert gradients(captured) == sorted(v.path for v in (weights if clipped else weights[2:]))
    assert {variable(captured, v.path).kind for v in weights} == {"trainable"}
    assert_equivalent(captured, tmp_path)


@pytest.mark.parametrize("returns_loss", [True, False])
def test_a_jacobian_in_the_loss_has_no_boundary_and_is_not_the_loss(tmp_path, returns_loss):
    """TensorFlow traces a gradient for it, and computes others in its place."""
    net, optimizer = hidden(), optimizers.SGD(0.1)
    weights, plain_loss = net.trainable_variables, cross_entropy(net)
    optimizer.build(weights)

    def loss_of(batch):
        with tf.GradientTape() as tape:
            outputs = tf.reduce_mean(net(batch[0]), axis=0)
        return plain_loss(batch) + tf.nn.l2_loss(tape.jacobian(outputs, weights[0].value))

    @tf.function
    def step(batch):
        with tf.GradientTape() as tape:
            loss = loss_of(batch)
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss if returns_loss else {"examples": tf.shape(batch[1])[0]}

    batches = dense_batches()
    expected = [float(loss_of(tuple(map(tf.constant, batches[0]))))]
    captured = capture(step, SPEC)
    assert gradients(captured) == sorted(v.path for v in weights)
    assert losses(captured, tmp_path, batches[:1]) == pytest.approx(expected, rel=1e-5)
    assert_equivalent(captured, tmp_path)


def test_tf_gradients_and_autograph(tmp_path):
    net, optimizer = hidden(), optimizers.SGD(0.1)
    optimizer.build(net.trainable_variables)
    loss_of = cross_entropy(net)

    @tf.function
    def step(batch):
        loss = loss_of(batch)
        if loss > 1.0:
            loss = loss * 2.0
        for i in tf.range(2):
            loss += tf.cast(i, tf.float32) * loss
        grads = tf.gradients(loss, [v.value for v in net.trainable_variables])
        optimizer.apply(grads, net.trainable_variables)
        return loss

    captured = capture(step, SPEC)
    assert any(n.op in ("If", "StatelessIf") for n in captured.step.graph.nodes)
    assert_equivalent(captured, tmp_path)


def test_hooks_are_gone_afterwards():
    before = tf.GradientTape.gradient, tf.gradients, vars(keras.optimizers.Optimizer).get("apply")
    capture(train(hidden(), optimizers.SGD(0.1)), SPEC)
    assert (tf.GradientTape.gradient, tf.gradients, vars(keras.optimizers.Optimizer).get("apply")) == before


@pytest.mark.parametrize("keys", ["strings", "integers"])
def test_lookup_tables_are_made_again_in_the_graph(tmp_path, keys):
    values = tf.constant([3, 2, 1, 0])
    names = tf.constant(["0", "1", "2", "3"]) if keys == "strings" else tf.range(4)
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(names, values), -1)
    net = hidden()

    def loss(batch):
        wanted = tf.strings.as_string(batch[1]) if keys == "strings" else batch[1]
        return cross_entropy(net)((batch[0], table.lookup(wanted)))

    handle = table.resource_handle
    captured = capture(train(net, optimizers.SGD(0.1), loss), SPEC)
    assert table.resource_handle is handle
    assert len(captured.step.tables) == 1
    assert_equivalent(captured, tmp_path)


def test_effects_run_once_and_checks_on_every_replica(tmp_path, capfd):
    net = hidden()

    def loss(batch):
        value = cross_entropy(net)(batch)
        tf.print("the loss is", value)
        tf.debugging.assert_greater(value, -1.0)
        return value

    captured = capture(train(net, optimizers.SGD(0.1), loss), SPEC)
    by_name = captured.step.graph.by_name
    assert [by_name[n].op for n in captured.step.effects] == ["PrintV2"]
    assert captured.step.state_targets, "the assertion must run on every replica"
    assert "PrintV2" not in {by_name[n].op for n in captured.step.state_targets}
    for strategy in ("ps", "partitioned-ps", "all-reduce"):
        capfd.readouterr()
        assert_equivalent(captured, tmp_path, strategies=(strategy,))
        printed = [line for line in capfd.readouterr().err.splitlines() if "the loss is" in line]
        assert len(printed) == len(dense_batches())


def test_summaries_are_written_once_by_a_writer_that_can_be_made_again(tmp_path):
    net = hidden()
    writer = tf.summary.create_file_writer(str(tmp_path / "events"), experimental_trackable=True)

    def loss(batch):
        value = cross_entropy(net)(batch)
        with writer.as_default(step=tf.constant(0, tf.int64)):
            tf.summary.write("loss", value)
        return value

    captured = capture(train(net, optimizers.SGD(0.1), loss), SPEC)
    assert captured.step.effects == ("write_summary", "FlushSummaryWriter")
    assert len(captured.step.tables) == 1
    assert_equivalent(captured, tmp_path, strategies=("ps", "partitioned-ps", "all-reduce"))


def test_names_are_unique_in_creation_order_and_initial_values_are_no_constants(tmp_path):
    first = tf.Variable(tf.ones((3, 4)), name="w")
    second = tf.Variable(tf.zeros((4,)), name="w")
    third = tf.Variable(tf.ones((4,)), name="w")
    large = np.full((3, 200_000), 1e-3, "float32") * np.arange(200_000, dtype="float32")
    eager = tf.constant(large)

    def loss(batch):
        x = batch[0] + tf.reduce_mean(batch[0] @ eager + batch[0] @ large, axis=1, keepdims=True) * 1e-6
        logits = tf.nn.relu(x @ first + second) + third
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch[1], logits=logits))

    step = Step(loss, [third, first, second], optimizers.SGD(0.1, momentum=0.9))
    captured = capture(step, SPEC)
    assert [v.name for v in captured.step.variables if v.kind == "trainable"] == ["w", "w__1", "w__2"]
    assert captured.initial["w__2"].tolist() == [1.0] * 4
    slots = {v.slot_of: v.shape.dims for v in captured.step.variables if v.group == "momentums"}
    assert slots == {"w": (3, 4), "w__1": (4,), "w__2": (4,)}
    constants = [n for n in captured.step.graph.nodes if n.op == "Const"]
    assert max(len(n.attrs["value"].proto) for n in constants) < 1 << 20
    beside = [v for v in captured.step.variables if v.name.startswith("constants/")]
    assert [(v.kind, v.rule) for v in beside] == [("state", "per-replica")] * 2
    assert_equivalent(captured, tmp_path, strategies=("ps",))


def test_counters_are_slots_of_no_variable_although_there_are_as_many():
    """Without momentum the optimizer has a counter and a rate, for two variables by chance."""
    first = tf.Variable(tf.ones((3, 4)), name="first")
    second = tf.Variable(tf.ones(4), name="second")

    def loss(batch):
        return tf.reduce_mean(tf.square(batch[0] @ first + second))

    captured = capture(Step(loss, [first, second], optimizers.SGD(0.1)), SPEC)
    assert {v.slot_of for v in captured.step.variables if v.kind == "slot"} == {None}


def test_batches_may_be_nested_and_their_axis_is_free_where_the_model_allows(tmp_path):
    net = hidden()

    def loss(batch):
        return cross_entropy(net)((batch["x"][0], batch["y"]))

    captured = capture(train(net, optimizers.SGD(0.1), loss), {"y": SPEC[1], "x": (SPEC[0],)})
    assert [(b.path, b.shape.dims) for b in captured.step.batch] == [("x/0", (-1, 3)), ("y", (-1,))]
    assert_equivalent(captured, tmp_path, strategies=("ps",))


def test_a_model_that_needs_a_fixed_batch_gets_one():
    net = hidden()

    def loss(batch):
        rows = tf.stack([batch[0][i] for i in range(batch[0].shape[0])])
        return cross_entropy(net)((rows, batch[1]))

    captured = capture(train(net, optimizers.SGD(0.1), loss), SPEC, replica_batch=2)
    assert captured.step.batch[0].shape.dims == (2, 3)


def test_an_unused_variable_stays_and_has_no_boundary(tmp_path):
    net, unused = hidden(), tf.Variable([1.0, 2.0], name="unused")
    step = Step(cross_entropy(net), [unused, *net.trainable_variables], optimizers.SGD(0.1))
    captured = capture(step, SPEC)
    assert variable(captured, "unused").kind == "trainable"
    assert "unused" not in gradients(captured)
    assert_equivalent(captured, tmp_path, strategies=("ps",))


def of_fixed_batch(kind):
    """A model whose batch has five examples, and its spec."""
    inputs = keras.Input(batch_shape=(5, 3))
    if kind == "stateful":
        inputs = keras.Input(batch_shape=(5, 4, 3))
        result = keras.layers.LSTM(2, stateful=True)(inputs)
    else:
        result = keras.ops.reshape(inputs, (5, 3, 1))[:, :, 0]
    net = keras.Model(inputs, keras.layers.Dense(4)(result))
    return net, (tf.TensorSpec(inputs.shape[1:]), SPEC[1])


@pytest.mark.parametrize("kind", ["stateful", "reshaped"])
def test_a_model_whose_batch_is_fixed_is_captured_at_that_size(kind):
    net, spec = of_fixed_batch(kind)
    captured = capture(train(net, optimizers.SGD(0.1)), spec, replica_batch=5)
    assert [part.shape.dims[0] for part in captured.step.batch] == [5, 5]


@pytest.mark.parametrize("kind", ["stateful", "reshaped"])
@pytest.mark.parametrize(("shard", "got"), [(4, "4"), (None, "different sizes")])
def test_shards_of_another_size_than_the_models_are_refused(kind, shard, got):
    net, spec = of_fixed_batch(kind)
    message = rf"takes batches of 5 examples only, got shards of {got}; set batch_size to 5 times the"
    with pytest.raises(CaptureError, match=message):
        capture(train(net, optimizers.SGD(0.1)), spec, replica_batch=shard)


def test_a_model_of_a_constant_with_a_fixed_batch_leaves_the_batch_free():
    learned = keras.Sequential([keras.Input(batch_shape=(1, 2)), keras.layers.Dense(3)])
    net = model(keras.layers.Dense(3))
    plain = cross_entropy(net)

    def loss(batch):
        return plain((batch[0] + learned(tf.ones((1, 2))), batch[1]))

    captured = capture(train(net, optimizers.SGD(0.1), loss), SPEC, replica_batch=4)
    assert [part.shape.dims[0] for part in captured.step.batch] == [-1, -1]


class Doubled(keras.layers.Layer):
    """Its `if` on a tensor needs autograph."""

    @tf.function
    def branch(self, x):
        if tf.reduce_sum(x) > 0:
            return 2 * x
        return -x

    def call(self, x):
        return self.branch(x)


def test_autograph_reaches_what_layers_call():
    captured = capture(train(model(Doubled()), optimizers.SGD(0.1)), SPEC)
    assert any(
        node.op in ("If", "StatelessIf") for f in captured.step.graph.functions.values() for node in f.nodes
    )


def test_components_of_an_ordered_mapping_have_their_own_paths():
    net = model(keras.layers.Dense(4))
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    spec = OrderedDict(y=tf.TensorSpec((), tf.int32), x=tf.TensorSpec((3,), tf.float32))

    def loss(batch):
        return entropy(batch["y"], net(batch["x"]))

    captured = capture(train(net, optimizers.SGD(0.1), loss), spec)
    assert {part.path: part.dtype for part in captured.step.batch} == {"x": "float", "y": "int32"}


class ForAFixedBatch:
    """Variables that it creates first stay without a value if the later trace of a free batch fails."""

    weight = None

    def __call__(self, x):
        if self.weight is None:
            self.weight = tf.Variable(tf.random.normal((3, 3)), name="weight")
        return tf.reshape(x @ self.weight, (x.shape[0] * 1, 3))


def test_a_variable_that_a_failed_trace_has_made_is_named():
    net = ForAFixedBatch()

    @tf.function
    def step(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(net(batch[0]) ** 2)
        net.weight.assign_sub(0.1 * tape.gradient(loss, net.weight))
        return loss

    with pytest.raises(CaptureError, match="'weight': must have a value before the step is traced, got one"):
        capture(step, SPEC, replica_batch=5)
