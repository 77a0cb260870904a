"""Recommenders of large tables: neural collaborative filtering (NCF) and DLRM."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from workloads.data.arrays import endless, zipf_ids
from workloads.data.files import not_rated, one_file, read_ratings
from workloads.flops import dense_flops
from workloads.models.layers import binary_cross_entropy, embedding_table, look_up
from workloads.optimizers import Training
from workloads.protocol import TrainStep, WorkloadError

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


Array = npt.NDArray[np.generic]
_DATA_SEED = 20_240_304
_LAYERS = (64, 32, 16, 8)
# Number of unrated items per rated item.
_NEGATIVES = 4


@dataclass(kw_only=True, slots=True)
class Ncf:
    """Matrix factorisation and a perceptron of 64, 32, 16 and 8 units over user and item vectors.

    Args:
        batch_size: global examples per step.
        users: number of users.
        items: number of items.
        factors: length of the factorisation's vectors.
        examples: size of the data set.
        data: path of a `ratings.dat`, which gives at most `examples` examples; None generates synthetic
            examples.
        data_sha256: checksum that the data must have, see `data_files`; None skips the check.
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

        One example in five is a rated item. In synthetic examples, items have Zipf's frequencies and unrated
        items are drawn from all items; with data, from those that the user did not rate.

        Raises:
            WorkloadError: the data is missing, or has more users or items than the tables.
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


_CLICKS_SEED = 20_240_305
_NUMBERS = 13
# Distinct values of the 26 categories of Criteo's Kaggle data set: number of rows of DLRM's tables.
# fmt: off
_KAGGLE_ROWS = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10,
    5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)
# fmt: on


@dataclass(kw_only=True, slots=True)
class Dlrm:
    """Two perceptrons around the products of 26 embedding vectors and one vector of 13 dense features.

    Args:
        batch_size: global examples per step.
        most_rows: maximum number of rows per table.
        width: length of each vector.
        hidden: units of the first layer of both perceptrons; the second has half as many, the third an
            eighth.
        examples: size of the data set.
    Source:
        Naumov et al. 2019, arXiv:1906.00091, sections 2 and 5; sizes of its Criteo Kaggle configuration.
    """

    name: str
    training: Training
    batch_size: int
    most_rows: int
    width: int
    hidden: int
    examples: int
    flops_per_example: float | None = field(init=False)

    def __post_init__(self) -> None:
        n_vectors = 1 + len(_KAGGLE_ROWS)
        self.flops_per_example = sum(
            dense_flops(*widths) for layers in (self._bottom(), self._top()) for widths in pairwise(layers)
        ) + dense_flops(n_vectors, self.width, positions=n_vectors)

    def train_step(self) -> TrainStep:
        import tensorflow as tf

        tables = [
            embedding_table(rows, self.width, name=f"table_{number}")
            for number, rows in enumerate(self._rows())
        ]
        bottom = _perceptron(self._bottom(), name="bottom", last="relu")
        top = _perceptron(self._top(), name="top", last=None)
        n_vectors = 1 + len(tables)
        # Each pair of different vectors once.
        pairs = np.stack(np.tril_indices(n_vectors, -1), axis=1)

        def logit(inputs: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            numbers, ids = inputs
            dense = bottom(numbers)
            embeddings = [
                look_up(table, of) for table, of in zip(tables, tf.unstack(ids, axis=1), strict=True)
            ]
            vectors = tf.stack([dense, *embeddings], axis=1)
            products = tf.matmul(vectors, vectors, transpose_b=True)
            crossed = tf.gather(
                tf.reshape(products, [-1, n_vectors * n_vectors]), pairs @ [n_vectors, 1], axis=1
            )
            return top(tf.concat([dense, crossed], axis=1))[:, 0]

        return self.training.step(
            binary_cross_entropy(logit), [*tables, *bottom.trainable_variables, *top.trainable_variables]
        )

    def dataset(self, seed: int) -> "tf.data.Dataset":
        """Return ((numbers [13] float32, ids [26] int32), clicked [] float32), synthetic, endless.

        Numbers are logarithms of counts, ids have Zipf's frequencies, and who clicks depends on the numbers.
        """
        rng = np.random.default_rng(_CLICKS_SEED)
        numbers = np.log1p(rng.lognormal(sigma=2.0, size=(self.examples, _NUMBERS)))
        ids = [zipf_ids(rng, rows, size=(self.examples,)) for rows in self._rows()]
        lean = (numbers - numbers.mean(0)) @ rng.normal(size=_NUMBERS)
        clicked = rng.random(self.examples) < 1 / (1 + np.exp(-lean))
        rows = endless(numbers.astype(np.float32), np.stack(ids, 1), clicked.astype(np.float32), seed=seed)
        return rows.map(lambda number, of, label: ((number, of), label))

    def _rows(self) -> list[int]:
        return [min(rows, self.most_rows) for rows in _KAGGLE_ROWS]

    def _bottom(self) -> list[int]:
        return [_NUMBERS, self.hidden, self.hidden // 2, self.hidden // 8, self.width]

    def _top(self) -> list[int]:
        n_vectors = 1 + len(_KAGGLE_ROWS)
        return [self.width + n_vectors * (n_vectors - 1) // 2, self.hidden, self.hidden // 2, 1]


def _perceptron(widths: list[int], *, name: str, last: str | None) -> "keras.Sequential":
    import keras

    n_layers = len(widths) - 1
    dense = [
        keras.layers.Dense(width, "relu" if number < n_layers - 1 else last, name=f"{name}_{number}")
        for number, width in enumerate(widths[1:])
    ]
    return keras.Sequential([keras.Input([widths[0]]), *dense], name=name)
