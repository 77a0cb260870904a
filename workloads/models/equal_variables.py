"""A model with hardly any arithmetic: equal matrices, and equal tables from which examples look up rows."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from workloads.data.arrays import endless
from workloads.models.layers import embedding_table, look_up
from workloads.optimizers import Training
from workloads.protocol import TrainStep

if TYPE_CHECKING:
    import tensorflow as tf


_DATA_SEED = 20_261_128
_EXAMPLES = 256
_LEAST = 1e-6
"""Factor on sums of variables, so that losses stay small."""


@dataclass(kw_only=True, slots=True)
class EqualVariables:
    """Sum of squared matrix elements and of looked-up rows, times the example's number.

    Its steps consist of little but the exchanges of a strategy. Gradients of matrices are products, because
    TensorFlow would send a constant gradient as one number.

    Args:
        batch_size: global examples per step.
        variables: number of square float32 matrices, at least 1. side: length of their sides.
        tables: number of float32 tables. rows: rows of a table. width: length of a row.
        lookups: rows of each table that an example looks up.
    """

    name: str
    training: Training
    batch_size: int
    variables: int
    side: int
    tables: int
    rows: int
    width: int
    lookups: int
    flops_per_example: float | None = None  # the matrices' work is the same for any number of examples

    def train_step(self) -> TrainStep:
        import keras
        import tensorflow as tf

        values = np.random.default_rng(_DATA_SEED).normal(size=(self.variables, self.side, self.side))
        matrices = [
            keras.Variable(value, name=f"matrix_{k}") for k, value in enumerate(values.astype(np.float32))
        ]
        tables = [embedding_table(self.rows, self.width, name=f"table_{k}") for k in range(self.tables)]

        def loss(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            numbers, ids = batch
            total = tf.add_n([tf.reduce_sum(tf.square(matrix.value)) for matrix in matrices])
            looked_up = [
                tf.reduce_sum(look_up(table, ids[:, k]), axis=[1, 2]) for k, table in enumerate(tables)
            ]
            return (
                tf.reduce_mean(numbers * tf.add_n([*looked_up, tf.fill(tf.shape(numbers), total)])) * _LEAST
            )

        return self.training.step(loss, [*matrices, *tables])

    def dataset(self, seed: int) -> "tf.data.Dataset":
        """Return (number [] float32, ids [tables, lookups] int32), endless, in a new order each epoch.

        Each table has its own ids: TensorFlow would send those of all tables once.
        """
        rng = np.random.default_rng(_DATA_SEED)
        numbers = rng.normal(size=_EXAMPLES).astype(np.float32)
        ids = rng.integers(self.rows, size=(_EXAMPLES, max(self.tables, 1), self.lookups)).astype(np.int32)
        return endless(numbers, ids, seed=seed)
