"""Steps that cannot be captured: one line that names the cause and the way out."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from tiny_steps import SPEC, Step, cross_entropy, fresh, hidden, train

from strategies.capture.capture import capture
from strategies.errors import CaptureError

optimizers = keras.optimizers


@pytest.fixture(autouse=True)
def _session():
    fresh()


def refusal(step, **kwargs):
    with pytest.raises(CaptureError) as caught:
        capture(step, SPEC, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    return message


def placed(message):
    """The message without the line that it ends with, which is one of this file."""
    text, _, line = message.rpartition(" (")
    assert re.fullmatch(rf".*{Path(__file__).name}:\d+\)", line)
    return text


def with_loss(loss):
    return train(hidden(), optimizers.SGD(0.1), loss)


@pytest.mark.parametrize(
    ("make", "got"),
    [
        (lambda net, b: net(b[0]), "float32 of shape (None, 4); take its mean over the batch"),
        (lambda net, b: tf.constant(3), "int32 of shape (); take its mean over the batch"),
        (lambda net, b: {"loss": net(b[0])}, "dict; return the loss alone, as a tensor"),
        (lambda net, b: None, "NoneType; return the loss alone, as a tensor"),
    ],
)
def test_losses(make, got):
    net = hidden()
    message = refusal(train(net, optimizers.SGD(0.1), lambda batch: make(net, batch)))
    message = placed(message) if "shape" in got else message
    assert message == f"train step: the loss must be a floating scalar, got {got}"


NO_GRADIENT = (
    "train step: the loss must depend on a trainable variable, got no gradient for any; compute it from "
    "the variables inside `loss`, and take the gradient with tf.GradientTape"
)


def test_no_gradient():
    assert refusal(with_loss(lambda batch: tf.reduce_mean(batch[0]))) == NO_GRADIENT


def test_no_gradient_that_anything_comes_of():
    net = hidden()
    loss_of = cross_entropy(net)

    @tf.function
    def step(batch):
        with tf.GradientTape() as tape:
            loss = loss_of(batch)
        tape.gradient(loss, net.trainable_variables)
        return loss

    assert refusal(step) == NO_GRADIENT


def test_variables():
    net, sgd = hidden(), optimizers.SGD(0.1)
    loss = cross_entropy(net)
    assert refusal(Step(loss, [], sgd)) == (
        "train step: `variables` must name a trainable variable, got none; pass the "
        "model's trainable_variables"
    )
    assert refusal(Step(loss, ["kernel"], sgd)) == (
        "train step: `variables` must hold tf.Variable or keras.Variable, got str; pass the model's "
        "trainable_variables"
    )


def test_optimizer_and_step():
    net = hidden()
    assert refusal(Step(cross_entropy(net), net.trainable_variables, "adam")) == (
        "train step: `optimizer` must be a Keras optimizer, got str; use keras.optimizers, or write a whole "
        "step as a tf.function"
    )
    assert refusal(3) == (
        "train step: must be a TrainStep, a compiled Keras model or a tf.function, got int; return one "
        "of them from train_step()"
    )


def test_what_the_users_code_raises_is_told_in_one_line():
    def loss(batch):
        return scaled(batch)

    def scaled(batch):
        raise ValueError("labels are\nmissing")

    line = scaled.__code__.co_firstlineno + 1
    with pytest.raises(CaptureError) as caught:
        capture(with_loss(loss), SPEC)
    message = "train step: tracing it raised ValueError: labels are missing ("
    assert str(caught.value).startswith(message)
    assert str(caught.value).endswith(f"/test_capture_errors.py:{line})")
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("valued", [lambda x: x.numpy(), np.asarray], ids=["numpy", "asarray"])
def test_the_value_of_a_tensor_that_has_none_yet(valued):
    message = refusal(with_loss(lambda batch: tf.reduce_mean(valued(batch[0]))))
    assert re.search(
        r"/test_capture_errors\.py:\d+\); a step's tensors have no values while it is traced", message
    )
    assert message.endswith("in place of .numpy(), float() and NumPy's, and tf.print to look at them")


def test_a_layer_that_does_not_fit():
    net = hidden()
    message = refusal(train(net, optimizers.SGD(0.1), lambda b: tf.reduce_mean(net(b[0][:, :2]))))
    assert message.startswith("train step: tracing it raised ValueError: ")
    assert len(message) < 460


def test_a_gradient_inside_a_nested_function():
    net, sgd = hidden(), optimizers.SGD(0.1)
    sgd.build(net.trainable_variables)
    loss_of = cross_entropy(net)

    @tf.function
    def nested(batch):
        with tf.GradientTape() as tape:
            loss = loss_of(batch)
        return loss, tape.gradient(loss, net.trainable_variables)

    @tf.function
    def step(batch):
        loss, result = nested(batch)
        sgd.apply(result, net.trainable_variables)
        return loss

    name = net.trainable_variables[0].path
    assert re.fullmatch(
        f"train step: gradients must be taken in the step's own function, got variable '{name}' "
        "differentiated inside the loop, branch or nested function 'nested'; take the gradient outside it, "
        r"in a loop over range\(\) in place of tf\.range\(\) \(\S*test_capture_errors\.py:\d+\)",
        refusal(step),
    )


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside-another"])
def test_gradients_of_single_rows(beside):
    net, sgd = hidden(), optimizers.SGD(0.1)
    weights = net.trainable_variables
    sgd.build(weights)
    loss_of = cross_entropy(net)

    def of_row(row):
        with tf.GradientTape() as tape:
            loss = loss_of(tf.nest.map_structure(lambda part: part[None], row))
        return tape.gradient(loss, weights)

    @tf.function
    def step(batch):
        with tf.GradientTape() as tape:
            loss = loss_of(batch)
        gradients = tf.vectorized_map(of_row, batch)
        gradients = [tf.reduce_mean(tf.clip_by_value(gradient, -1.0, 1.0), 0) for gradient in gradients]
        if beside:
            gradients[0] += tape.gradient(loss, weights[:1])[0]
        sgd.apply(gradients, weights)
        return loss

    line = of_row.__code__.co_firstlineno + 3
    assert re.fullmatch(
        f"train step: gradients must be taken of a whole batch, got variable '{weights[0].path}' "
        r"differentiated row by row, inside tf\.vectorized_map or by tape\.jacobian; take one gradient of "
        rf"the mean of all rows' losses, outside of it \(.*test_capture_errors\.py:{line}\)",
        refusal(step),
    )


def test_a_jacobian_in_a_loss_is_no_gradient_of_single_rows():
    net, sgd = hidden(), optimizers.SGD(0.1)

    def loss(batch):
        with tf.GradientTape() as tape:
            outputs = tf.reduce_mean(net(batch[0]), axis=0)
        slopes = tape.jacobian(outputs, net.trainable_variables[0].value)
        return cross_entropy(net)(batch) + tf.reduce_mean(tf.square(slopes))

    updated = {region.variable for region in capture(train(net, sgd, loss), SPEC).step.regions}
    assert updated >= {weight.path for weight in net.trainable_variables}


@pytest.mark.parametrize(
    "write",
    [
        lambda v: v.scatter_add(tf.IndexedSlices(tf.ones((1,)), tf.constant([1]))),
        lambda v: v.scatter_nd_update([[0]], [2.0]),
        lambda v: v[:1].assign([3.0]),
    ],
    ids=["scatter_add", "scatter_nd_update", "slice"],
)
def test_state_of_which_some_elements_are_written(write):
    net, seen = hidden(), tf.Variable(tf.zeros((2,)), trainable=False, name="seen")

    def loss(batch):
        write(seen)
        return cross_entropy(net)(batch) + 0.0 * tf.reduce_sum(seen)

    assert re.fullmatch(
        r"variable 'seen': forward state must be assigned as a whole, got a write by Resource\w+ '.*'; "
        r"make the new value by tf\.tensor_scatter_nd_update, _add or _sub, then assign it \(.*\.py:\d+\)",
        refusal(train(net, optimizers.SGD(0.1), loss)),
    )


def test_an_optimizer_in_a_loop_of_the_graphs():
    net, sgd = hidden(), optimizers.SGD(0.1)
    sgd.build(net.trainable_variables)
    loss_of = cross_entropy(net)

    @tf.function
    def step(batch):
        loss = tf.constant(0.0)
        for _ in tf.range(2):
            with tf.GradientTape() as tape:
                loss = loss_of(batch)
            sgd.apply(tape.gradient(loss, net.trainable_variables), net.trainable_variables)
        return loss

    line = step.python_function.__code__.co_firstlineno + 6
    assert refusal(step).endswith(f"/test_capture_errors.py:{line})")


def test_an_assignment_between_two_reads_for_one_gradient():
    net, sgd = hidden(), optimizers.SGD(0.1)
    weights = net.trainable_variables
    sgd.build(weights)
    loss_of = cross_entropy(net)

    @tf.function
    def step(batch):
        with tf.GradientTape() as tape:
            loss = loss_of(batch)
        first = tape.gradient(loss, weights)
        for v, g in zip(weights, first, strict=True):
            v.assign_add(g)
        with tf.GradientTape() as tape:
            moved = loss_of(batch)
            for v, g in zip(weights, first, strict=True):
                v.assign_sub(2.0 * g)
            moved += loss_of(batch)
        sgd.apply(tape.gradient(moved, weights), weights)
        return loss

    line = step.python_function.__code__.co_firstlineno + 10
    message = refusal(step)
    assert "between a forward pass that reads it and its next assignment there must be a gradient" in message
    assert message.endswith(f"/test_capture_errors.py:{line})")


def test_an_update_that_reads_the_loss():
    net, rate = hidden(), tf.Variable(0.1, trainable=False, name="rate")
    loss_of, weights = cross_entropy(net), net.trainable_variables

    @tf.function
    def step(batch):
        with tf.GradientTape() as tape:
            loss = loss_of(batch)
        for v, g in zip(weights, tape.gradient(loss, weights), strict=True):
            v.assign_sub(rate * loss * g)
        return loss

    message = refusal(step)
    assert message.startswith("train step: the update must read forward values only through gradients, got '")
    assert re.search(
        r"which depends on the batch; compute it from gradients or variables \(\S*capture_errors\.py:\d+\)$",
        message,
    )


def test_an_update_that_draws():
    net, weights = (net := hidden()), net.trainable_variables
    loss_of = cross_entropy(net)

    @tf.function
    def step(batch):
        with tf.GradientTape() as tape:
            loss = loss_of(batch)
        for v, g in zip(weights, tape.gradient(loss, weights), strict=True):
            v.assign_sub(g + tf.random.normal(g.shape, seed=1))
        return loss

    assert refusal(step).startswith("train step: the update must not draw random numbers, got 'random_normal")


def test_a_fixed_batch_and_uneven_shards():
    net = hidden()

    def loss(batch):
        rows = tf.stack([batch[0][i] for i in range(batch[0].shape[0])])
        return cross_entropy(net)((rows, batch[1]))

    assert refusal(train(net, optimizers.SGD(0.1), loss)) == (
        "train step: the model needs a fixed batch size, got shards of different sizes; choose a batch size "
        "that the number of replicas divides"
    )


def test_resources_that_cannot_be_made_again():
    net = hidden()
    numbers = iter(tf.data.Dataset.range(3).repeat())
    table = tf.lookup.experimental.MutableHashTable(tf.int32, tf.int32, -1)

    def reads_iterator(batch):
        return cross_entropy(net)(batch) + tf.cast(next(numbers), tf.float32)

    def reads_table(batch):
        return cross_entropy(net)((batch[0], tf.maximum(table.lookup(batch[1]), 0)))

    message = refusal(train(net, optimizers.SGD(0.1), reads_iterator))
    assert placed(message).startswith(
        "train step: captured resources must be variables or lookup tables, got '"
    )
    message = refusal(train(net, optimizers.SGD(0.1), reads_table))
    assert placed(message).startswith("train step: captured tables must not change, got MutableHashTable '")


@pytest.mark.parametrize(
    ("call", "op"), [(tf.py_function, "EagerPyFunc"), (tf.numpy_function, "PyFunc")], ids=["eager", "numpy"]
)
def test_code_that_only_this_process_could_run(call, op):
    net = hidden()

    def loss(batch):
        value = cross_entropy(net)(batch)
        call(print, [value], [])
        return value

    assert placed(refusal(train(net, optimizers.SGD(0.1), loss))) == (
        f"train step: Python code cannot run on workers, got {op} '{op}'; use TensorFlow's operations "
        "(tf.print, tf.summary, a Keras metric), or the dataset"
    )


def test_a_step_that_returns_several_results_must_return_the_loss_first():
    net = hidden()
    assert placed(refusal(tf.function(lambda batch: (net(batch[0]), 1.0)))).endswith(
        "got float32 of shape (None, 4); take its mean over the batch"
    )
    assert refusal(tf.function(lambda batch: {"accuracy": 1.0})).endswith(
        "got dict; return the loss alone, as a tensor"
    )


def test_large_constants_inside_of_loops():
    net, large = hidden(), np.ones((3, 200_000), "float32") * np.arange(200_000, dtype="float32")

    def loss(batch):
        shift = tf.zeros((1,))
        for _ in tf.range(2):
            shift += tf.reduce_mean(batch[0] @ large)
        return cross_entropy(net)((batch[0] + shift * 1e-9, batch[1]))

    message = refusal(train(net, optimizers.SGD(0.1), loss))
    assert message.startswith("train step: a loop, branch or nested function may hold 1048576 bytes")
