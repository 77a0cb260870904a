"""NeuMF: neural collaborative filtering of who likes what."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from workloads.data.arrays import endless
from workloads.data.zipf import zipf_ids
from workloads.flops import dense_flops
from workloads.models.embedding import embedding_table, look_up
from workloads.models.losses import binary_cross_entropy
from workloads.optimizers import Training
from workloads.protocol import TrainStep

if TYPE_CHECKING:
    import tensorflow as tf

_DATA_SEED = 20_240_304
_LAYERS = (64, 32, 16, 8)
# One rated item for so many that the user did not rate.
_NEGATIVES = 4


@dataclass(kw_only=True, slots=True)
class Ncf:
    """A product of factors beside a perceptron of 64, 32, 16 and 8, over vectors of users and items.

    Args:
        name: as references name it.
        training: optimizer and clipping.
        batch_size: global examples per step.
        users: rows of the users' tables.
        items: rows of the items' tables.
        factors: length of the vectors that are multiplied.
        examples: size of the data set.
    Source:
        He et al. 2017, arXiv:1708.05031, sections 3.4 and 4.1; layers as in MLPerf's recommendation.
    """

    name: str
    training: Training
    batch_size: int
    users: int
    items: int
    factors: int
    examples: int
    flops_per_example: float | None = field(init=False)

    def __post_init__(self) -> None:
        self.flops_per_example = sum(dense_flops(*widths) for widths in pairwise(_LAYERS)) + dense_flops(
            _LAYERS[-1] + self.factors, 1
        )

    def train_step(self) -> TrainStep:
        """Create the model and its optimizer."""
        import keras
        import tensorflow as tf

        half = _LAYERS[0] // 2
        factors = [
            embedding_table(self.users, self.factors, name="user_factors"),
            embedding_table(self.items, self.factors, name="item_factors"),
        ]
        vectors = [
            embedding_table(self.users, half, name="user_vectors"),
            embedding_table(self.items, half, name="item_vectors"),
        ]
        perceptron = keras.Sequential(
            [
                keras.Input([2 * half]),
                *[keras.layers.Dense(n, "relu", name=f"hidden_{i}") for i, n in enumerate(_LAYERS[1:])],
            ],
            name="perceptron",
        )
        last = keras.Sequential(
            [keras.Input([_LAYERS[-1] + self.factors]), keras.layers.Dense(1, name="logit")], name="last"
        )

        def logit(pair: tf.Tensor) -> tf.Tensor:
            ids = tf.unstack(pair, axis=1)
            user, item = (look_up(table, of) for table, of in zip(factors, ids, strict=True))
            deep = tf.concat([look_up(table, of) for table, of in zip(vectors, ids, strict=True)], axis=1)
            return last(tf.concat([user * item, perceptron(deep)], axis=1))[:, 0]

        own = [*factors, *vectors]
        return self.training.step(
            binary_cross_entropy(logit),
            [*own, *perceptron.trainable_variables, *last.trainable_variables],
        )

    def dataset(self, seed: int) -> "tf.data.Dataset":
        """Return (user and item [2] int32, rated [] float32), synthetic, endless, in a new order each epoch.

        One in five is rated, of items whose frequencies are Zipf's; the others are any.
        """
        rng = np.random.default_rng(_DATA_SEED)
        rated = np.arange(self.examples) % (1 + _NEGATIVES) == 0
        users = rng.integers(self.users, size=self.examples)
        liked = zipf_ids(rng, self.items, size=(self.examples,))
        items = np.where(rated, liked, rng.integers(self.items, size=self.examples))
        return endless(np.stack([users, items], 1).astype(np.int32), rated.astype(np.float32), seed=seed)
