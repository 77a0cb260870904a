"""Steps of several gradients and updates in a row, and of assignments that forward passes make and read."""

import keras
import tensorflow as tf
from model import N_CLASSES, mean_cross_entropy, on_labelled, on_rows, variable
from state_models import descent, kernel

K, layers = keras.optimizers, keras.layers


def adversarial():
    """Two networks: the second learns against the first as its own update has just left it."""
    generator = keras.Sequential([keras.Input((3,)), layers.Dense(4, activation="tanh"), layers.Dense(3)])
    critic = keras.Sequential(
        [keras.Input((3,)), layers.Dense(4, use_bias=False), layers.BatchNormalization(), layers.Dense(1)]
    )
    first, second = K.SGD(0.1, momentum=0.9), K.SGD(0.05)
    first.build(critic.trainable_variables)
    second.build(generator.trainable_variables)

    @tf.function
    def train(x):
        with tf.GradientTape() as tape:
            real, fake = critic(x, training=True), critic(generator(x, training=True), training=True)
            told_apart = tf.reduce_mean((real - 1.0) ** 2 + (fake + 1.0) ** 2)
        gradients = tape.gradient(told_apart, critic.trainable_variables)
        first.apply(gradients, critic.trainable_variables)
        with tf.GradientTape() as tape:
            fooled = tf.reduce_mean((critic(generator(x, training=True), training=True) - 1.0) ** 2)
        gradients = tape.gradient(fooled, generator.trainable_variables)
        second.apply(gradients, generator.trainable_variables)
        return {"loss": fooled, "told_apart": told_apart}

    owned = [*critic.variables, *generator.variables, *first.variables, *second.variables]
    return on_rows(train, owned=owned)


def sharpness_aware():
    """The gradient at weights that a first gradient has moved, applied to the weights as they were."""
    net = keras.Sequential([keras.Input((3,)), layers.Dense(5, activation="tanh"), layers.Dense(N_CLASSES)])
    weights, optimizer = net.trainable_variables, K.SGD(0.2, momentum=0.9)
    optimizer.build(weights)

    @tf.function
    def train(batch):
        rows, labels = batch
        with tf.GradientTape() as tape:
            loss = mean_cross_entropy(labels, net(rows, training=True))
        gradients = tape.gradient(loss, weights)
        scale = 0.2 / (tf.linalg.global_norm(gradients) + 1e-12)
        moves = [g * scale for g in gradients]
        for v, move in zip(weights, moves, strict=True):
            v.assign_add(move)
        with tf.GradientTape() as tape:
            moved = mean_cross_entropy(labels, net(rows, training=True))
        gradients = tape.gradient(moved, weights)
        for v, move in zip(weights, moves, strict=True):
            v.assign_sub(move)
        optimizer.apply(gradients, weights)
        return loss

    return on_labelled(train, owned=[*weights, *optimizer.variables])


def penalised():
    """A gradient penalty, which has a gradient within a gradient, and then a second update of the weights."""
    w, other = variable("w", 3, 4), variable("other", 4, 1)

    @tf.function
    def train(x):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                score = tf.tanh(x @ w) @ other
            slope = inner.gradient(score, x)
            loss = tf.reduce_mean(score**2) + tf.reduce_mean((tf.norm(slope, axis=1) - 1.0) ** 2)
        for v, g in zip((w, other), outer.gradient(loss, (w, other)), strict=True):
            v.assign_sub(0.1 * g)
        with tf.GradientTape() as tape:
            again = tf.reduce_mean(tf.abs(tf.tanh(x @ w) @ other - 0.3))
        for v, g in zip((w, other), tape.gradient(again, (w, other)), strict=True):
            v.assign_sub(0.05 * g)
        return loss + again

    return on_rows(train, owned=[w, other])


def noisy():
    """Numbers that are drawn once and used by two gradients, and others of the second one alone."""
    w, other = variable("w", 3, 4), variable("other", 4, 1)

    @tf.function
    def train(x):
        noise = tf.random.normal(tf.shape(x), seed=3)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.tanh((x + noise) @ w) @ other - 0.2) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        with tf.GradientTape() as tape:
            further = tf.random.normal(tf.shape(x), seed=4)
            again = tf.reduce_mean((tf.tanh((x + noise + further) @ w) @ other - 0.3) ** 2)
        for v, g in zip((w, other), tape.gradient(again, (w, other)), strict=True):
            v.assign_sub(0.1 * g)
        return again

    return on_rows(train, owned=[w, other])


def noisy_labels():
    """Two networks whose optimizers count their updates, each against labels with noise of its own."""
    generator = keras.Sequential([keras.Input((3,)), layers.Dense(4, activation="tanh"), layers.Dense(3)])
    critic = keras.Sequential([keras.Input((3,)), layers.Dense(4, activation="tanh"), layers.Dense(1)])
    first, second = K.Adam(0.02), K.Adam(0.01)
    first.build(critic.trainable_variables)
    second.build(generator.trainable_variables)

    @tf.function
    def train(x):
        latent = tf.random.normal(tf.shape(x), seed=5)
        with tf.GradientTape() as tape:
            real, fake = critic(x), critic(generator(latent))
            label = 1.0 - 0.2 * tf.random.uniform(tf.shape(real), seed=6)
            loss = tf.reduce_mean((real - label) ** 2 + (fake + label) ** 2)
        first.apply(tape.gradient(loss, critic.trainable_variables), critic.trainable_variables)
        with tf.GradientTape() as tape:
            fake = critic(generator(latent))
            label = 1.0 - 0.1 * tf.random.uniform(tf.shape(fake), seed=7)
            fooled = tf.reduce_mean((fake - label) ** 2)
        second.apply(tape.gradient(fooled, generator.trainable_variables), generator.trainable_variables)
        return fooled

    owned = [*critic.variables, *generator.variables, *first.variables, *second.variables]
    return on_rows(train, owned=owned)


def thrice():
    """Three updates of a table of which rows are looked up, each from what the last one left."""
    table, head = variable("table", 6, 3), variable("head", 3, N_CLASSES)
    optimizer = K.SGD(0.2)
    optimizer.build([table, head])

    @tf.function
    def train(batch):
        rows, labels = batch
        for _ in range(3):
            with tf.GradientTape() as tape:
                looked_up = tf.nn.embedding_lookup(table, labels)
                loss = mean_cross_entropy(labels, (rows + looked_up) @ head)
            optimizer.apply(tape.gradient(loss, [table, head]), [table, head])
        return loss

    return on_labelled(train, owned=[table, head, *optimizer.variables])


def target_network():
    """A second set of variables follows the first one after its update."""
    online, target = (
        keras.Sequential([keras.Input((3,)), layers.Dense(4, activation="tanh"), layers.Dense(1)])
        for _ in range(2)
    )
    optimizer = K.Adam(0.05)
    optimizer.build(online.trainable_variables)

    @tf.function
    def train(x):
        wanted = tf.stop_gradient(target(x)) * 0.9 + 0.1
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((online(x) - wanted) ** 2)
        optimizer.apply(tape.gradient(loss, online.trainable_variables), online.trainable_variables)
        for slow, fast in zip(target.trainable_variables, online.trainable_variables, strict=True):
            slow.assign(0.9 * slow + 0.1 * fast)
        return loss

    return on_rows(train, owned=[*online.variables, *target.variables, *optimizer.variables])


def followed_first():
    """The second set follows before the forward pass, which reads what it has become."""
    w, slow = kernel(), tf.Variable([0.3, 0.1, 0.2], trainable=False, name="slow")

    def loss(x):
        slow.assign(0.5 * slow + 0.5 * w)
        return tf.reduce_mean((x * w - tf.stop_gradient(slow)) ** 2)

    return on_rows(descent(loss, w), owned=[w, slow])


def spectral():
    """A kernel that each forward pass divides by its largest singular value."""
    net = keras.Sequential(
        [
            keras.Input((3,)),
            layers.SpectralNormalization(layers.Dense(5, activation="tanh")),
            layers.SpectralNormalization(layers.Dense(N_CLASSES)),
        ]
    )
    optimizer = K.Adam(0.05)
    optimizer.build(net.trainable_variables)

    @tf.function
    def train(batch):
        rows, labels = batch
        with tf.GradientTape() as tape:
            loss = mean_cross_entropy(labels, net(rows, training=True))
        optimizer.apply(tape.gradient(loss, net.trainable_variables), net.trainable_variables)
        return loss

    return on_labelled(train, owned=[*net.variables, *optimizer.variables])


def spectral_critic():
    """Two networks; the critic divides its kernels in each of three passes, and a loop reads one of them."""
    generator = keras.Sequential([keras.Input((3,)), layers.Dense(4, activation="tanh"), layers.Dense(3)])
    critic = keras.Sequential(
        [
            keras.Input((3,)),
            layers.SpectralNormalization(layers.Dense(5, activation="tanh")),
            layers.SpectralNormalization(layers.Dense(1)),
        ]
    )
    first, second = K.SGD(0.1, momentum=0.9), K.SGD(0.1)
    first.build(critic.trainable_variables)
    second.build(generator.trainable_variables)
    kernel_of_first = critic.layers[0].layer.kernel

    @tf.function
    def train(x):
        with tf.GradientTape() as tape:
            real, fake = critic(x, training=True), critic(generator(x), training=True)
            told_apart = tf.reduce_mean((real - 1.0) ** 2 + (fake + 1.0) ** 2)
            for _ in tf.range(2):
                told_apart += 0.01 * tf.reduce_sum(tf.abs(kernel_of_first))
        gradients = tape.gradient(told_apart, critic.trainable_variables)
        first.apply(gradients, critic.trainable_variables)
        with tf.GradientTape() as tape:
            fooled = tf.reduce_mean((critic(generator(x), training=True) - 1.0) ** 2)
        gradients = tape.gradient(fooled, generator.trainable_variables)
        second.apply(gradients, generator.trainable_variables)
        return fooled

    owned = [*critic.variables, *generator.variables, *first.variables, *second.variables]
    return on_rows(train, owned=owned)


def divided_table():
    """A table that is divided by its norm, twice in a step, before rows of it are looked up."""
    table, head = variable("table", 6, 3), variable("head", 3, N_CLASSES)
    optimizer = K.SGD(0.2)
    optimizer.build([table, head])

    @tf.function
    def train(batch):
        rows, labels = batch
        loss = tf.constant(0.0)
        with tf.GradientTape() as tape:
            for _ in range(2):
                table.assign(table / tf.norm(table))
                looked_up = tf.nn.embedding_lookup(table, labels)
                loss += mean_cross_entropy(labels, (rows + looked_up) @ head)
        optimizer.apply(tape.gradient(loss, [table, head]), [table, head])
        return loss

    return on_labelled(train, owned=[table, head, *optimizer.variables])


def counted_first():
    """Counters that are read after they have moved on, by the forward pass and by the update."""
    w, count = kernel(), tf.Variable(0, trainable=False, name="count", dtype=tf.int64)
    seen = tf.Variable(0.0, trainable=False, name="seen")

    @tf.function
    def train(x):
        count.assign_add(1)
        seen.assign_add(tf.cast(tf.shape(x)[0], tf.float32))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x * w) ** 2) / tf.cast(count, tf.float32)
        count.assign_add(2)
        w.assign_sub(0.1 / tf.cast(count, tf.float32) * tape.gradient(loss, w))
        return loss

    return on_rows(train, owned=[w, count, seen])
