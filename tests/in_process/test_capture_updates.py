"""Update regions: what belongs to one, in which order it runs, and sparse gradients in it."""

from dataclasses import replace

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
    fresh,
    hidden,
    train,
    variable,
)

from strategies.capture.capture import capture
from strategies.ir.graph import producer
from strategies.ir.traversal import ancestors

optimizers, schedules = keras.optimizers, keras.optimizers.schedules
OPTIMIZERS = {
    "weight decay": lambda: optimizers.AdamW(0.01, weight_decay=0.1),
    "averages": lambda: optimizers.SGD(0.1, momentum=0.9, use_ema=True, ema_overwrite_frequency=2),
    "clipped each": lambda: optimizers.Adam(0.01, clipnorm=0.1),
    "clipped together": lambda: optimizers.SGD(0.1, global_clipnorm=0.05),
    "clipped values": lambda: optimizers.SGD(0.1, clipvalue=0.01),
    "schedule": lambda: optimizers.SGD(schedules.PiecewiseConstantDecay([1, 3], [0.1, 0.01, 0.02])),
    "loss scale": lambda: optimizers.LossScaleOptimizer(optimizers.Adam(0.01), dynamic_growth_steps=2),
    "accumulation": lambda: optimizers.SGD(0.1, gradient_accumulation_steps=2),
}


@pytest.fixture(autouse=True)
def _session():
    fresh()
    yield
    keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_are_kept(tmp_path, name):
    assert_equivalent(capture(train(hidden(), OPTIMIZERS[name]()), SPEC), tmp_path)


@pytest.mark.parametrize("clip", [None, 0.05])
def test_optimizers_of_several_get_all_gradients_and_none_for_what_has_none(tmp_path, clip):
    net = hidden()
    unused = keras.Variable(np.ones(2, "float32"), name="unused")
    kernels, others = optimizers.Adam(0.01), optimizers.SGD(0.1, momentum=0.9)
    both = optimizers.MultiOptimizer(lambda v: kernels if v.path.endswith("kernel") else others)
    step = Step(cross_entropy(net), [*net.trainable_variables, unused], both, clip)
    captured = capture(step, SPEC)
    assert {b.variable for b in captured.step.gradients()} == {v.path for v in net.trainable_variables}
    kernel = net.trainable_variables[0].path
    assert {v.group for v in captured.step.variables if v.slot_of == kernel} == {"momentums", "velocities"}
    assert_equivalent(captured, tmp_path)


@pytest.mark.parametrize("minimized", [True, False])
@pytest.mark.parametrize("name", ["AdamOptimizer", "MomentumOptimizer", "FtrlOptimizer"])
def test_optimizers_of_the_first_tensorflow(tmp_path, name, minimized):
    net = hidden()
    weights, loss_of = [v.value for v in net.trainable_variables], cross_entropy(net)
    options = {"momentum": 0.9} if name == "MomentumOptimizer" else {}
    optimizer = getattr(tf.compat.v1.train, name)(0.1, **options)

    @tf.function
    def step(batch):
        with tf.GradientTape() as tape:
            loss = loss_of(batch)
        if minimized:
            optimizer.minimize(loss, var_list=weights)
        else:
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    captured = capture(step, SPEC)
    slots = [v for v in captured.step.variables if v.slot_of is not None]
    assert len(slots) == len(weights) * len(optimizer.get_slot_names())
    assert_equivalent(captured, tmp_path, strategies=("ps", "partitioned-ps", "all-reduce"))


def test_clipping_by_the_step_reads_all_gradients(tmp_path):
    captured = capture(train(hidden(), optimizers.AdamW(0.01), clip=0.05), SPEC)
    by_name = captured.step.graph.by_name
    read = {producer(ref) for n in captured.step.shared_update for ref in by_name[n].data_inputs}
    assert {b.values for b in captured.step.gradients()} <= read
    assert_equivalent(captured, tmp_path)


def test_mixed_precision(tmp_path):
    keras.config.set_dtype_policy("mixed_float16")
    captured = capture(train(hidden(), optimizers.LossScaleOptimizer(optimizers.Adam(0.01))), SPEC)
    assert any(n.attrs.get("T") == "half" for n in captured.step.graph.nodes)
    assert_equivalent(captured, tmp_path, strategies=("ps",))


def region_of(captured, name):
    region = next(r for r in captured.step.regions if r.variable == name)
    return [captured.step.graph.by_name[n] for n in (*region.nodes, *captured.step.shared_update)]


def assigned(captured, nodes):
    handles = {v.handle: v.name for v in captured.step.variables}
    return [handles[n.inputs[0]] for n in nodes if n.op.startswith("Assign") and n.inputs[0] in handles]


def test_a_region_holds_all_that_a_variable_needs_and_nothing_of_forward():
    net = hidden()
    captured = capture(train(net, optimizers.AdamW(0.01, use_ema=True)), SPEC)
    name = net.trainable_variables[0].path
    nodes = region_of(captured, name)
    written = assigned(captured, nodes)
    owned = {v.name for v in captured.step.variables if v.slot_of == name}
    assert set(written) >= {name, *owned}
    assert {variable(captured, slot).group for slot in owned} == {
        "momentums",
        "velocities",
        "model_variables_moving_average",
    }
    forward_ops = {"MatMul", "SparseSoftmaxCrossEntropyWithLogits", "Placeholder", "Tanh"}
    assert not forward_ops & {n.op for n in nodes}
    # Decay, then the step: as captured.
    changes = [n.op for n in nodes if n.inputs and n.inputs[0] == variable(captured, name).handle]
    assert changes.count("AssignSubVariableOp") + changes.count("AssignVariableOp") >= 2


def test_decay_waits_for_the_gradient_so_that_all_replicas_have_read_before():
    net = hidden()
    captured = capture(train(net, optimizers.AdamW(0.01, weight_decay=0.1)), SPEC)
    boundaries = {b.variable: b.values for b in captured.step.gradients()}
    for v in net.trainable_variables:
        writes = [
            n
            for n in region_of(captured, v.path)
            if n.op.startswith("Assign") and n.inputs[0] == variable(captured, v.path).handle
        ]
        assert boundaries[v.path] in writes[0].control_inputs


def test_a_metric_of_gradients_belongs_to_the_update(tmp_path):
    net, optimizer = hidden(), optimizers.SGD(0.1)
    weights = net.trainable_variables
    optimizer.build(weights)
    norm, mean_loss = keras.metrics.Mean(name="norm"), keras.metrics.Mean(name="mean_loss")
    loss_of = cross_entropy(net)

    @tf.function
    def step(batch):
        with tf.GradientTape() as tape:
            loss = loss_of(batch)
        gradient = tape.gradient(loss, weights)
        optimizer.apply(gradient, weights)
        norm.update_state(tf.linalg.global_norm(gradient))
        mean_loss.update_state(loss)
        return loss

    captured = capture(step, SPEC)
    assert variable(captured, "norm/total").kind == "slot"
    # Added to once in a step, as the total is; that of the loss once in each shard.
    assert variable(captured, "norm/count").rule == "first-replica"
    assert {variable(captured, f"mean_loss/{name}").rule for name in ("total", "count")} == {"sum"}
    assert_equivalent(captured, tmp_path)


def test_an_average_that_the_step_keeps_itself_follows_the_update(tmp_path):
    net, optimizer = hidden(), optimizers.SGD(0.1)
    weights = net.trainable_variables
    optimizer.build(weights)
    average = tf.Variable(weights[0].value, trainable=False, name="average")
    loss_of = cross_entropy(net)

    @tf.function
    def step(batch):
        with tf.GradientTape() as tape:
            loss = loss_of(batch)
        optimizer.apply(tape.gradient(loss, weights), weights)
        average.assign(0.9 * average + 0.1 * weights[0])
        return loss

    captured = capture(step, SPEC)
    assert variable(captured, "average").kind == "slot"
    assert_equivalent(captured, tmp_path)


IDS = (tf.TensorSpec((4,), tf.int32), tf.TensorSpec((), tf.int32))


def id_batches():
    rng = np.random.default_rng(1)
    return [
        [rng.integers(0, 6, size=(5, 4)).astype("int32"), rng.integers(0, 3, size=5).astype("int32")]
        for _ in range(3)
    ]


def looking_up(optimizer, *, shared=False, layer=False, clip=None):
    head = keras.layers.Dense(3)
    head.build((None, 2))
    if layer:
        embedding = keras.layers.Embedding(7, 2)
        embedding.build((None, 4))
        tables, rows = list(embedding.trainable_variables), embedding
    else:
        table = tf.Variable(np.random.default_rng(0).normal(size=(7, 2)).astype("float32"), name="table")
        tables, rows = [table], lambda ids: tf.nn.embedding_lookup(table, ids)

    def loss(batch):
        result = rows(batch[0]) + (rows((batch[0] + 1) % 7) if shared else 0.0)
        logits = head(tf.reduce_mean(result, axis=1))
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch[1], logits=logits))

    return Step(loss, [*tables, *head.trainable_variables], optimizer, clip)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (lambda: optimizers.Adagrad(0.1), {"shared": True}),
        (lambda: optimizers.Adam(0.01), {"layer": True}),
        (lambda: optimizers.RMSprop(0.01, momentum=0.5), {}),
        (lambda: optimizers.AdamW(0.01, use_ema=True), {"shared": True, "clip": 0.02}),
        (lambda: optimizers.LossScaleOptimizer(optimizers.Adam(0.01, clipnorm=0.02)), {}),
    ],
    ids=["adagrad-shared", "adam-layer", "rmsprop", "adamw-clipped", "loss-scale"],
)
def test_rows_reach_the_update_as_they_are(tmp_path, optimizer, options):
    captured = capture(looking_up(optimizer(), **options), IDS)
    sparse = [b for b in captured.step.gradients() if b.indices is not None]
    assert len(sparse) == 1
    readers = captured.step.graph.consumers[sparse[0].indices]
    assert "Unique" not in [n.op for n in readers], "the optimizer sees each row by itself"
    assert captured.rows == {sparse[0].variable: (8.0 if options.get("shared") else 4.0, 0.0)}
    assert_equivalent(captured, tmp_path, id_batches())


@pytest.mark.parametrize("value_op", ["autocast", "read-value"])
def test_rows_of_a_value_that_is_cast_or_passed_on_are_looked_up(tmp_path, value_op):
    """A layer of the user's own under mixed precision, and a gather from what `read_value` gives."""

    class Table(keras.layers.Layer):
        def build(self, shape):
            self.rows = self.add_weight(shape=(7, 2), initializer="random_normal", name="rows")

        def call(self, ids):
            return tf.gather(tf.convert_to_tensor(self.rows), ids)

    head = keras.layers.Dense(3)
    head.build((None, 2))
    if value_op == "autocast":
        table = Table(dtype="mixed_bfloat16")
        table.build((None, 4))
        table_variable, rows = table.rows, table
    else:
        table_variable = tf.Variable(np.linspace(-1, 1, 14).reshape(7, 2).astype("float32"), name="table")

        def rows(ids):
            return tf.gather(table_variable.read_value(), ids)

    def loss(batch):
        logits = head(tf.reduce_mean(tf.cast(rows(batch[0]), tf.float32), axis=1))
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch[1], logits=logits))

    step = Step(loss, [table_variable, *head.trainable_variables], optimizers.Adagrad(0.1))
    captured = capture(step, IDS)
    (sparse,) = [b for b in captured.step.gradients() if b.indices is not None]
    handle = variable(captured, sparse.variable).handle
    needed = ancestors(captured.step.graph, [producer(captured.step.losses[0].tensor)])
    readers = [n.op for n in captured.step.graph.consumers[handle] if n.name in needed]
    assert readers == ["ResourceGather"]
    assert ("Cast" in {captured.step.graph.by_name[n].op for n in needed}) == (value_op == "autocast")
    assert_equivalent(captured, tmp_path, id_batches())


def counted(step):
    """The step, and how often its loss was traced so far."""
    traced = []

    def loss(batch):
        traced.append(batch)
        return step.loss(batch)

    return replace(step, loss=loss), traced


@pytest.mark.parametrize("replica_batch", [None, 5])
def test_a_step_with_sparse_gradients_is_traced_once(replica_batch):
    step, traced = counted(looking_up(optimizers.Adam(0.01)))
    captured = capture(step, IDS, replica_batch=replica_batch)
    assert len(traced) == 1
    assert list(captured.rows.values()) == [(4.0, 0.0)]


def test_rows_of_a_lookup_in_a_function_are_told():
    step = looking_up(optimizers.Adam(0.01))
    captured = capture(replace(step, loss=tf.function(step.loss)), IDS)
    assert list(captured.rows.values()) == [(4.0, 0.0)]


def test_rows_that_a_step_draws_whatever_its_examples_are_told_apart():
    table = tf.Variable(np.ones((7, 2), "float32"), name="table")

    def loss(batch):
        drawn = tf.random.uniform((3,), maxval=7, dtype=tf.int32)
        return tf.reduce_mean(tf.gather(table, tf.concat([tf.reshape(batch[0], [-1]), drawn], axis=0)))

    captured = capture(Step(loss, [table], optimizers.SGD(0.1)), IDS)
    assert list(captured.rows.values()) == [(4.0, 3.0)]


def test_rows_that_no_shape_tells_are_not_told():
    table = tf.Variable(np.ones((7, 2), "float32"), name="table")

    def loss(batch):
        return tf.reduce_mean(tf.gather(table, tf.boolean_mask(batch[0], batch[0] > 2)))

    captured = capture(Step(loss, [table], optimizers.SGD(0.1)), IDS)
    assert captured.step.gradients()[0].indices is not None
    assert captured.rows == {}
