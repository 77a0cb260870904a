"""Models of layers under Keras optimizers, whose updates do more than follow the gradient."""

import keras
import numpy as np
import tensorflow as tf
from model import BATCH_SIZE, N_CLASSES, N_STEPS, ROWS, Model, mean_cross_entropy, on_labelled, variable

from workloads.protocol import TrainStep

K = keras.optimizers


def perceptron(optimizer, *, clip_global_norm=None, n_steps=N_STEPS):
    """Two layers by any optimizer."""
    layers = keras.layers
    net = keras.Sequential([keras.Input((3,)), layers.Dense(5, "tanh"), layers.Dense(N_CLASSES)])
    optimizer.build(net.trainable_variables)

    def loss(batch):
        rows, labels = batch
        return mean_cross_entropy(labels, net(rows, training=True))

    step = TrainStep(
        loss=loss,
        variables=net.trainable_variables,
        optimizer=optimizer,
        clip_global_norm=clip_global_norm,
    )
    return on_labelled(step, n_steps=n_steps)


def clipped_and_averaged():
    """Gradients are clipped together, weights decay, and averages of them replace them every other step."""
    optimizer = K.AdamW(0.05, weight_decay=0.1, use_ema=True, ema_overwrite_frequency=2)
    return perceptron(optimizer, clip_global_norm=0.05)


def accumulated():
    """The optimizer adds up two steps' gradients, and updates inside an If."""
    return perceptron(K.Adam(0.05, gradient_accumulation_steps=2), n_steps=4)


def normalised(*, reduction="mean", synchronized=()):
    """Batch normalisation with and without parameters, of images and rows, and one layer called twice.

    Args:
        synchronized: names of the layers with statistics over all replicas' examples.
    """
    layers = keras.layers

    def normalisation(name, **options):
        return layers.BatchNormalization(name=name, synchronized=name in synchronized, **options)

    net = keras.Sequential(
        [
            keras.Input((3,)),
            layers.Dense(8, use_bias=False),
            layers.Reshape((2, 2, 2)),
            normalisation("of_images"),
            layers.Activation("tanh"),
            layers.Flatten(),
            layers.Dense(5, use_bias=False),
        ]
    )
    shared = normalisation("shared", center=False, scale=False, momentum=0.7)
    head = layers.Dense(N_CLASSES)
    for layer in (shared, head):
        layer.build((None, 5))
    variables = [*net.trainable_variables, *head.trainable_variables]
    optimizer = K.Adam(0.05)
    optimizer.build(variables)

    def loss(batch):
        rows, labels = batch
        first = shared(net(rows, training=True), training=True)
        second = shared(tf.tanh(first) ** 2, training=True)
        mean = mean_cross_entropy(labels, head(first + second))
        return mean if reduction == "mean" else mean * tf.cast(tf.size(labels), mean.dtype)

    return on_labelled(TrainStep(loss=loss, variables=variables, optimizer=optimizer, reduction=reduction))


def summed():
    """A sum over examples, of a table's rows and a layer, whose size and norm show in every update."""
    table, head = keras.layers.Embedding(11, 3), keras.layers.Dense(N_CLASSES)
    table.build((None, 2))
    head.build((None, 3))
    variables = [*table.trainable_variables, *head.trainable_variables]
    optimizer = K.SGD(0.01, momentum=0.5)
    optimizer.build(variables)

    def loss(batch):
        rows, labels = batch
        ids = tf.cast(tf.abs(rows[:, :2]) * 5, tf.int32) % 11
        logits = head(rows + tf.reduce_sum(table(ids), axis=1))
        return tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

    return on_labelled(
        TrainStep(loss=loss, variables=variables, optimizer=optimizer, reduction="sum", clip_global_norm=5.0)
    )


def shared_embedding():
    """One table for two look-ups, whose ids overlap, and a dense layer above."""
    table, head = keras.layers.Embedding(11, 3, name="table"), keras.layers.Dense(N_CLASSES, name="head")
    table.build()
    head.build((None, 3))
    variables = [*table.trainable_variables, *head.trainable_variables]
    optimizer = K.Adagrad(0.1)
    optimizer.build(variables)
    random = np.random.default_rng(0)
    fed = [
        [
            random.integers(0, 11, (BATCH_SIZE, 4)).astype(np.int32),
            random.integers(0, N_CLASSES, BATCH_SIZE).astype(np.int32),
        ]
        for _ in range(N_STEPS)
    ]

    def loss(batch):
        ids, labels = batch
        looked_up = [tf.nn.embedding_lookup(table.embeddings.value, i) for i in (ids, (ids + 1) % 11)]
        return mean_cross_entropy(labels, head(tf.reduce_mean(looked_up[0] * looked_up[1], axis=1)))

    step = TrainStep(loss=loss, variables=variables, optimizer=optimizer)
    return Model(step=step, spec=(tf.TensorSpec((4,), tf.int32), tf.TensorSpec((), tf.int32)), batches=fed)


def stacked():
    """Two kernels that the step itself joins, and reads in no other way."""
    upper = keras.Variable(
        np.linspace(-1, 1, 2 * N_CLASSES).reshape(2, N_CLASSES), name="upper", dtype="float32"
    )
    lower = keras.Variable(np.linspace(1, 0, N_CLASSES).reshape(1, N_CLASSES), name="lower", dtype="float32")
    optimizer = K.Adam(0.05)
    optimizer.build([upper, lower])

    def loss(batch):
        rows, labels = batch
        return mean_cross_entropy(labels, rows @ tf.concat([upper.value, lower.value], 0))

    return on_labelled(TrainStep(loss=loss, variables=[upper, lower], optimizer=optimizer))


def with_empty():
    """Beside a kernel a vector and a matrix without elements, which a model cut down to nothing keeps."""
    weights = np.linspace(-1, 1, 3 * N_CLASSES).reshape(3, N_CLASSES)
    kernel = keras.Variable(weights, name="kernel", dtype="float32")
    vector = keras.Variable(np.zeros((0,)), name="vector", dtype="float32")
    matrix = keras.Variable(np.zeros((0, N_CLASSES)), name="matrix", dtype="float32")
    variables = [kernel, vector, matrix]
    optimizer = K.SGD(0.05, momentum=0.9)
    optimizer.build(variables)

    def loss(batch):
        rows, labels = batch
        scores = rows @ tf.concat([kernel.value, matrix.value], 0) + tf.reduce_sum(vector.value)
        return mean_cross_entropy(labels, scores)

    return on_labelled(TrainStep(loss=loss, variables=variables, optimizer=optimizer))


def tied_embeddings():
    """Tables that are looked up in and also read whole, whose dense gradients let any axis be cut.

    One scores its own rows, as a language model's does. One has rows of two axes, and is looked up in by ids
    of rank 2, 1 and 0. One has two batches of rows, with ids for each.
    """
    table = keras.Variable(np.linspace(-1, 1, 21).reshape(7, 3), name="table", dtype="float32")
    matrices = keras.Variable(np.linspace(-0.7, 0.8, 40).reshape(5, 4, 2), name="matrices", dtype="float32")
    batches = keras.Variable(np.linspace(-0.3, 0.6, 42).reshape(2, 7, 3), name="batches", dtype="float32")
    variables = [table, matrices, batches]
    optimizer = K.Adam(0.05)
    optimizer.build(variables)
    random = np.random.default_rng(0)
    fed = [
        [
            random.integers(0, 5, (BATCH_SIZE, 2)).astype(np.int32),
            random.integers(0, 7, BATCH_SIZE).astype(np.int32),
        ]
        for _ in range(N_STEPS)
    ]

    def loss(batch):
        ids, labels = batch
        words = tf.nn.embedding_lookup(table.value, ids)
        first, second, third = (tf.gather(matrices.value, i) for i in (ids, ids[:, 1], tf.constant(3)))
        scores = tf.einsum("btkd,bkd,kd->bt", first, second, third)
        # TensorFlow has no gradient of such a look-up.
        resource_gather = tf.raw_ops.ResourceGather(
            resource=batches.value.handle, indices=tf.transpose(ids) + 1, dtype=tf.float32, batch_dims=1
        )
        hidden = tf.reduce_mean(words, 1) + tf.reduce_sum(tf.stop_gradient(resource_gather), 0)
        logits = tf.tanh(hidden) @ tf.transpose(table.value)
        columns = tf.gather(matrices.value, [1, 0, 2], axis=1)
        whole = tf.reduce_mean(columns**2) + tf.reduce_mean((batches.value - 1.0) ** 2)
        return mean_cross_entropy(labels, logits) + tf.reduce_mean(scores**2) + whole

    step = TrainStep(loss=loss, variables=variables, optimizer=optimizer)
    return Model(step=step, spec=(tf.TensorSpec((2,), tf.int32), tf.TensorSpec((), tf.int32)), batches=fed)


def by_tensorflow(optimizer):
    """Two layers by one of the first TensorFlow's own optimizers, whose slots begin in the step."""
    w, head = variable("w", 3, 5), variable("head", 5, N_CLASSES)

    @tf.function
    def train(batch):
        rows, labels = batch
        with tf.GradientTape() as tape:
            loss = mean_cross_entropy(labels, tf.tanh(rows @ w) @ head)
        optimizer.apply_gradients(zip(tape.gradient(loss, [w, head]), [w, head], strict=True))
        return loss

    return on_labelled(train)


def two_optimizers():
    """A step of the author's own: two losses, two optimizers, and one network that both read."""
    layers = keras.layers
    generator = keras.Sequential([keras.Input((3,)), layers.Dense(3, "tanh", name="generator")])
    judge = keras.Sequential([keras.Input((3,)), layers.Dense(4, "tanh", name="hidden"), layers.Dense(1)])
    first, second = K.Adam(0.05), K.RMSprop(0.05, momentum=0.5)
    first.build(generator.trainable_variables)
    second.build(judge.trainable_variables)

    @tf.function
    def step(batch):
        rows, _ = batch
        with tf.GradientTape() as one, tf.GradientTape() as other:
            fake = judge(generator(rows))
            loss = -tf.reduce_mean(tf.math.log_sigmoid(fake))
            against = -tf.reduce_mean(tf.math.log_sigmoid(judge(rows)) + tf.math.log_sigmoid(-fake))
        mine = one.gradient(loss, generator.trainable_variables)
        yours = other.gradient(against, judge.trainable_variables)
        first.apply_gradients(zip(mine, generator.trainable_variables, strict=True))
        second.apply_gradients(zip(yours, judge.trainable_variables, strict=True))
        return loss + against

    return on_labelled(step)


def primes_and_ones(optimizer):
    """A step with a looked up table, a prime and a size-1 dimension, by any optimizer."""
    table = keras.Variable(np.linspace(-1, 1, 44).reshape(11, 4), name="table", dtype="float32")
    kernel = keras.Variable(np.linspace(-1, 1, 28).reshape(4, 7), name="kernel", dtype="float32")
    one = keras.Variable(np.full((1, 7), 0.5), name="one", dtype="float32")
    optimizer.build([table, kernel, one])
    random = np.random.default_rng(0)
    fed = [[random.uniform(0, 3, size=(BATCH_SIZE, 3)).astype(np.float32)] for _ in range(N_STEPS)]

    def loss(batch):
        # Ids repeat, in any order, and some parts of the table are looked up by nobody.
        ids = tf.cast(batch[:, :2] * 5, tf.int32) % 11
        looked_up = tf.nn.embedding_lookup(table.value, ids)
        return tf.reduce_mean(tf.square(tf.reduce_sum(looked_up, 1) @ kernel * one))

    step = TrainStep(loss=loss, variables=[table, kernel, one], optimizer=optimizer)
    return Model(step=step, spec=ROWS, batches=fed)


def bfloat16_weights():
    """Its one variable is of the small type."""
    weights = tf.Variable(tf.ones((3, 4), tf.bfloat16) / 8, name="weights")
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build([weights])

    def loss(batch):
        rows, labels = batch
        logits = tf.cast(tf.matmul(tf.cast(rows, tf.bfloat16), weights), tf.float32)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

    return on_labelled(TrainStep(loss=loss, variables=[weights], optimizer=optimizer))
