"""NeuMF: neural collaborative filtering of who likes what."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from workloads.data.arrays import endless
from workloads.data.files import one_file
from workloads.data.ratings import not_rated, read_ratings
from workloads.data.zipf import zipf_ids
from workloads.errors import WorkloadError
from workloads.flops import dense_flops
from workloads.models.embedding import embedding_table, look_up
from workloads.models.losses import binary_cross_entropy
from workloads.optimizers import Training
from workloads.protocol import TrainStep

if TYPE_CHECKING:
    import tensorflow as tf

Array = npt.NDArray[np.generic]
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
        data: path of a `ratings.dat`, of which at most so many examples are taken; None makes examples up.
        data_sha256: what it must hash to.
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
    data: str | None = None
    data_sha256: str | None = None
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
        """Return (user and item [2] int32, rated [] float32), endless, in a new order each epoch.

        One in five is rated; of those made up, items have Zipf's frequencies. The others are any that the
        user did not rate, or made up, any at all.

        Raises:
            WorkloadError: the data is not there, or has more users or items than there are tables for.
        """
        rng = np.random.default_rng(_DATA_SEED)
        pairs, rated = self._made_up(rng) if self.data is None else self._read(self.data, rng)
        return endless(pairs.astype(np.int32), rated.astype(np.float32), seed=seed)

    def _made_up(self, rng: np.random.Generator) -> tuple[Array, Array]:
        rated = np.arange(self.examples) % (1 + _NEGATIVES) == 0
        users = rng.integers(self.users, size=self.examples)
        liked = zipf_ids(rng, self.items, size=(self.examples,))
        items = np.where(rated, liked, rng.integers(self.items, size=self.examples))
        return np.stack([users, items], 1), rated

    def _read(self, data: str, rng: np.random.Generator) -> tuple[Array, Array]:
        ratings = read_ratings(one_file(data, self.data_sha256))
        for name, there, rows in (
            ("users", ratings.n_users, self.users),
            ("items", ratings.n_items, self.items),
        ):
            if there > rows:
                message = f"{name} must be at least {there:,}, as many as {data} has, got {rows:,}; raise it"
                raise WorkloadError(message, field=name)
        most = max(1, self.examples // (1 + _NEGATIVES))
        chosen = rng.permutation(len(ratings.users))[:most]
        users = np.repeat(ratings.users[chosen], 1 + _NEGATIVES)
        rated = np.arange(len(users)) % (1 + _NEGATIVES) == 0
        items = np.zeros_like(users)
        items[rated] = ratings.items[chosen]
        items[~rated] = not_rated(ratings, users[~rated], rng)
        return np.stack([users, items], 1), rated
