"""Sums of gradients as products of two thin factors, stage by stage, with what travels in between.

Both factors are summed over all members, so that the directions are those of the sum of all gradients. A
member keeps what of its own gradient those directions leave out: together members keep what the sum lost.

Source:
    Vogels et al. 2019, arXiv:1905.13727, algorithms 1 and 2.
"""

import tensorflow as tf

from strategies.numerics.compressors.codec import Dims, working
from strategies.numerics.compressors.power import as_matrix, next_factor, orthonormal, right_factor


def projected(*tensors: tf.Tensor) -> list[tf.Tensor]:
    """Each gradient with what is owed to it, as a matrix, and the products of these with their factors.

    Args:
        tensors: n gradients; then the residual and the factor of the first, of the second, …
    Returns:
        n matrices [rows, columns] and n products [rows, directions]; the products are to be summed.
    """
    n = len(tensors) // 3
    gradients, residuals, factors = tensors[:n], tensors[n::2], tensors[n + 1 :: 2]
    matrices = [as_matrix(working(g) + owing) for g, owing in zip(gradients, residuals, strict=True)]
    return matrices + [tf.matmul(m, factor) for m, factor in zip(matrices, factors, strict=True)]


def directions(*products: tf.Tensor) -> list[tf.Tensor]:
    """Orthonormal left factors of summed products."""
    return [orthonormal(product) for product in products]


def own_right_factors(*tensors: tf.Tensor) -> list[tf.Tensor]:
    """This member's right factors [columns, directions], to be summed.

    Args:
        tensors: n matrices, n left factors.
    """
    matrices, lefts = _in(2, tensors)
    return [right_factor(m, left) for m, left in zip(matrices, lefts, strict=True)]


def kept_of_projection(*tensors: tf.Tensor, shapes: tuple[Dims, ...]) -> list[tf.Tensor]:
    """What is owed next, and the factor to begin from next, of the first gradient, of the second, …

    Args:
        tensors: n each of matrices, left factors, right factors of this member's own, right factors of all,
            factors of before.
        shapes: of the gradients.
    """
    kept = []
    for matrix, left, own, right, factor, dims in zip(*_in(5, tensors), shapes, strict=True):
        lost = matrix - tf.matmul(left, own, transpose_b=True)
        # As `owed`, of all values at a time: one that is not finite has made all of the first factor so, or a
        # column of the second. To look at each would take as long as the products, and so would SelectV2,
        # which copies what it takes.
        finite = tf.math.is_finite(tf.reduce_sum(left)) & tf.math.is_finite(tf.reduce_sum(own))
        residual = tf.raw_ops.Select(condition=finite, x=lost, y=tf.zeros_like(lost))
        kept += [tf.reshape(residual, dims), next_factor(right, factor)]
    return kept


def sums_of_factors(*tensors: tf.Tensor, shapes: tuple[Dims, ...], dtype: int) -> list[tf.Tensor]:
    """The sums of gradients over all members, as far as the directions span them, in the type of this number.

    Args:
        tensors: n left factors, n right factors of all.
    """
    products = (
        tf.matmul(left, right, transpose_b=True) for left, right in zip(*_in(2, tensors), strict=True)
    )
    return [
        tf.cast(tf.reshape(product, dims), tf.as_dtype(dtype))
        for product, dims in zip(products, shapes, strict=True)
    ]


def _in(n: int, tensors: tuple[tf.Tensor, ...]) -> list[tuple[tf.Tensor, ...]]:
    each = len(tensors) // n
    return [tensors[i * each : (i + 1) * each] for i in range(n)]
