"""Steps that follow Keras's policy, and steps that do not; workers load this file as a user's."""

import keras
import numpy as np
import tensorflow as tf

from workloads import TrainStep

WIDTH, CLASSES = 6, 3


class Layers:
    name = "layers"
    batch_size = 8
    flops_per_example = None

    def __init__(self, clip: float | None = None, optimizer: str = "adam"):
        self.clip, self.optimizer = clip, optimizer

    def train_step(self):
        net = self.net()
        optimizer = keras.optimizers.get(self.optimizer)
        optimizer.build(net.trainable_variables)

        def loss(x, y):
            return tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, net(x), from_logits=True))

        return TrainStep(
            loss=loss, variables=net.trainable_variables, optimizer=optimizer, clip_global_norm=self.clip
        )

    def net(self):
        return keras.Sequential(
            [keras.Input((WIDTH,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(CLASSES)]
        )

    def dataset(self, seed):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(32, WIDTH)).astype(np.float32)
        return tf.data.Dataset.from_tensor_slices((x, rng.integers(CLASSES, size=32).astype(np.int32)))


class PartlyWide(Layers):
    """The last layer keeps to float32."""

    def net(self):
        net = super().net()
        net.add(keras.layers.Dense(CLASSES, dtype="float32"))
        return net


class PlainOperations(Layers):
    def train_step(self):
        weight = tf.Variable(tf.ones((WIDTH, CLASSES)), name="weight")

        def loss(x, y):
            return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ weight))

        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build([weight])
        return TrainStep(loss=loss, variables=[weight], optimizer=optimizer)


class OwnPolicy(Layers):
    def train_step(self):
        keras.config.set_dtype_policy("mixed_float16")
        return super().train_step()


class Compiled(Layers):
    def train_step(self):
        net = self.net()
        net.compile(self.optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return net


class WholeStep(Layers):
    """A tape of its own."""

    def train_step(self):
        train_step = super().train_step()

        @tf.function
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = train_step.loss(x, y)
            variables = train_step.variables
            train_step.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        return step
