"""DLRM: whether an advertisement is clicked, from numbers and from ids in large tables."""

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
    import keras
    import tensorflow as tf

_DATA_SEED = 20_240_305
_NUMBERS = 13
# Distinct values of the 26 categories of Criteo's Kaggle data set: rows of DLRM's tables for it.
# fmt: off
_KAGGLE_ROWS = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10,
    5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)
# fmt: on


@dataclass(kw_only=True, slots=True)
class Dlrm:
    """Two perceptrons around the products of 26 looked-up vectors and one made of 13 numbers.

    Args:
        name: as references name it.
        training: optimizer and clipping.
        batch_size: global examples per step.
        most_rows: a table has so many at most.
        width: length of each vector.
        hidden: units of either perceptron's first layer; the second has half as many, a third an eighth.
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
        """Create the model and its optimizer."""
        import tensorflow as tf

        tables = [
            embedding_table(rows, self.width, name=f"table_{number}")
            for number, rows in enumerate(self._rows())
        ]
        bottom = _perceptron(self._bottom(), name="bottom", last="relu")
        top = _perceptron(self._top(), name="top", last=None)
        n_vectors = 1 + len(tables)
        # Each pair of vectors once, none with itself.
        pairs = np.stack(np.tril_indices(n_vectors, -1), axis=1)

        def logit(inputs: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            numbers, ids = inputs
            dense = bottom(numbers)
            found = [look_up(table, of) for table, of in zip(tables, tf.unstack(ids, axis=1), strict=True)]
            vectors = tf.stack([dense, *found], axis=1)
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
        rng = np.random.default_rng(_DATA_SEED)
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
