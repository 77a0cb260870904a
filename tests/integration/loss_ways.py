"""One small regression whose loss is written in every way that people write one; each means the same step.

A worker loads this file as a user's. Plain gradient descent: an adaptive optimizer would hide a factor.
"""

import keras
import tensorflow as tf

from workloads import TrainStep

BATCH = 13
RATE = 0.05


class Penalty(keras.layers.Layer):
    def call(self, inputs):
        self.add_loss(0.1 * tf.reduce_mean(inputs**2))
        return inputs


class Penalized(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(3, kernel_regularizer="l2", activity_regularizer="l1")
        self.penalty = Penalty()
        self.out = keras.layers.Dense(1)

    def call(self, inputs):
        return self.out(self.penalty(self.hidden(inputs)))

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=data[1], y_pred=self(data[0], training=True))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


class Regression:
    name = "regression"
    batch_size = BATCH
    flops_per_example = None

    def __init__(self, way: str):
        self._way = getattr(self, way)

    def train_step(self):
        self.model = keras.Sequential([keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
        self.model.build((None, 4))
        self.optimizer = keras.optimizers.SGD(RATE)
        self.variables = self.model.trainable_variables
        graph = self._way()
        if isinstance(graph, keras.Model | TrainStep) or hasattr(graph, "python_function"):
            return graph
        self.optimizer.build(self.variables)
        return TrainStep(loss=graph, variables=self.variables, optimizer=self.optimizer)

    def dataset(self, seed):
        x = tf.random.stateless_normal((24, 4), (seed, 1))
        y = tf.reduce_sum(x, axis=1, keepdims=True) + tf.random.stateless_normal((24, 1), (seed, 2))
        return tf.data.Dataset.from_tensor_slices((x, y))

    def _squares(self, batch):
        return keras.losses.mean_squared_error(batch[1], self.model(batch[0]))

    def loss_object(self):
        of = keras.losses.MeanSquaredError()
        return lambda batch: of(batch[1], self.model(batch[0], training=True))

    def loss_object_without_reduction(self):
        of = keras.losses.MeanSquaredError(reduction=None)
        return lambda batch: tf.reduce_mean(of(batch[1], self.model(batch[0])))

    def loss_function(self):
        return lambda batch: tf.reduce_mean(self._squares(batch))

    def reduced_mean(self):
        return lambda batch: tf.reduce_mean((self.model(batch[0]) - batch[1]) ** 2)

    def average_loss(self):
        return lambda batch: tf.nn.compute_average_loss(self._squares(batch))

    def average_loss_of_a_batch(self):
        """Divided by a fixed number, so that it adds up over replicas."""

        def loss(batch):
            return tf.nn.compute_average_loss(self._squares(batch), global_batch_size=BATCH)

        self.optimizer.build(self.variables)
        return TrainStep(loss=loss, variables=self.variables, optimizer=self.optimizer, reduction="sum")

    def divided_by_replicas(self):
        """Step written as in TensorFlow's guide for steps that a strategy runs."""
        n = tf.distribute.get_strategy().num_replicas_in_sync

        def loss(batch):
            context = tf.distribute.get_replica_context()
            return tf.reduce_mean(self._squares(batch)) / (0.5 * n + 0.5 * context.num_replicas_in_sync)

        return loss

    def under_a_policy_of_its_own(self):
        """A layer that is made while the step is traced follows the policy that train_step() has set."""
        keras.config.set_dtype_policy("mixed_bfloat16")

        def loss(batch):
            identity = keras.layers.Identity()
            factor = 2.0 if identity.compute_dtype == "bfloat16" else 1.0
            return factor * tf.reduce_mean(self._squares(batch))

        return loss

    def _compiled(self, *layers):
        model = keras.Sequential(layers or (keras.layers.Dense(1),))
        model.build((None, 4))
        self.variables = model.trainable_variables
        model.compile(optimizer=self.optimizer, loss="mean_squared_error", metrics=["mae"])
        return model

    def computed_by_the_model(self):
        self.model = self._compiled()
        return lambda batch: self.model.compute_loss(*batch, self.model(batch[0]), training=True)

    def computed_of_two_outputs(self):
        """Keras counts the losses of an output by examples where their number is static, else by steps."""
        inputs = keras.Input((4,))
        self.model = keras.Model(inputs, [keras.layers.Dense(1)(inputs), keras.layers.Dense(1)(inputs)])
        self.variables = self.model.trainable_variables
        self.model.compile(optimizer=self.optimizer, loss=["mse", "mae"])
        return lambda batch: self.model.compute_loss(
            y=[batch[1], batch[1]], y_pred=self.model(batch[0], training=True)
        )

    def regularized(self):
        """Once from layers' own regularizers, once from `add_loss`."""
        self.model = self._compiled(keras.layers.Dense(1, kernel_regularizer="l2"), Penalty())
        return lambda batch: self.model.compute_loss(*batch, self.model(batch[0]), training=True)

    def compiled_with_regularizers(self):
        return self._compiled(
            keras.layers.Dense(3, kernel_regularizer="l2", bias_regularizer="l1", activity_regularizer="l2"),
            Penalty(),
            keras.layers.Dense(1, kernel_regularizer=keras.regularizers.L1L2(0.02, 0.03)),
        )

    def model_that_builds_itself_in_its_step(self):
        """And adds to its loss, by its layers' regularizers and by `add_loss`."""
        model = Penalized()
        model.compile(optimizer=self.optimizer, loss="mse")
        return model

    def model_whose_step_builds_its_optimizer(self):
        """The model itself is built before."""
        model = Penalized()
        model(tf.zeros((1, 4)))
        model.compile(optimizer=keras.optimizers.Adam(0.05), loss="mse")
        return model

    def scaled_regularization(self):
        def loss(batch):
            penalty = tf.stack([tf.nn.l2_loss(v) for v in self.variables])
            return tf.nn.compute_average_loss(self._squares(batch)) + tf.nn.scale_regularization_loss(penalty)

        return loss

    def failing_under_a_strategy(self):
        model = self._compiled()

        def loss(batch):
            if tf.distribute.has_strategy():
                return batch.no_such_thing
            return model.compute_loss(*batch, model(batch[0], training=True))

        return loss

    def failing_to_be_made_under_a_strategy(self):
        if tf.distribute.has_strategy():
            return tf.distribute.get_strategy().no_such_thing
        return self.loss_object()

    def loss_scaled_by_the_optimizer(self):
        self.optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(RATE), initial_scale=8.0)
        return self.loss_object()

    def compiled_model(self):
        return self._compiled(keras.layers.Dense(2), keras.layers.Dense(1))

    def train_step_of_a_model(self):
        """Step that returns its metrics' running results, and the mean of all losses so far as the loss."""
        model = self._compiled(keras.layers.Dense(2), keras.layers.Dense(1))
        return tf.function(model.train_step)

    def synchronized_layer(self):
        """No way to write a loss: one layer normalises by all replicas' examples, one by its replica's."""
        norm = keras.layers.BatchNormalization
        self.model = self._compiled(
            keras.layers.Dense(5),
            norm(synchronized=True),
            keras.layers.Dense(4),
            norm(),
            keras.layers.Dense(1),
        )
        return lambda batch: self.model.compute_loss(*batch, self.model(batch[0], training=True))

    def whole_step(self):
        """Its own tape, its own clipping, and a gradient within the loss, which is no gradient to apply."""
        of = keras.losses.MeanSquaredError()
        self.optimizer.build(self.variables)

        @tf.function
        def step(batch):
            with tf.GradientTape() as tape:
                with tf.GradientTape() as within:
                    within.watch(batch[0])
                    first = of(batch[1], self.model(batch[0]))
                inner = within.gradient(first, [batch[0], self.variables[0].value])
                loss = first + sum(tf.reduce_mean(tensor**2) for tensor in inner)
            gradients = tape.gradient(loss, self.variables)
            clipped, _ = tf.clip_by_global_norm(gradients, 0.5)
            self.optimizer.apply_gradients(zip(clipped, self.variables, strict=True))
            return loss

        return step
