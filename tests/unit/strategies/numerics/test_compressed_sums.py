"""Two members' gradients as products of factors, stage by stage."""

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from strategies.ir.graph import DType
from strategies.numerics.compressed_sums import (
    directions,
    own_right_factors,
    projected,
    projection_states,
    sums_of_factors,
)
from strategies.tf_bridge.attrs import dtype_number

DIMS = (6, 5)


def summed(gradients, states):
    """The sum of one gradient of each member, and what each keeps: residual and factor."""
    parts = [projected(gradient, *state) for gradient, state in zip(gradients, states, strict=True)]
    matrices, products = zip(*parts, strict=True)
    (left,) = directions(sum(products[1:], products[0]))
    own = [own_right_factors(matrix, left)[0] for matrix in matrices]
    right = sum(own[1:], own[0])
    residuals = [
        projection_states(matrix, left, mine, right, factor, shapes=(DIMS,))
        for matrix, mine, (_, factor) in zip(matrices, own, states, strict=True)
    ]
    (total,) = sums_of_factors(left, right, shapes=(DIMS,), dtype=dtype_number(DType("float")))
    return total.numpy(), residuals


@pytest.fixture
def random():
    return np.random.default_rng(0)


def beginning(random):
    factor = random.normal(size=(5, 2)).astype(np.float32)
    return [[np.zeros(DIMS, np.float32), factor] for _ in range(2)]


def test_what_is_sent_and_kept_is_all_there_was(random):
    gradients = [random.normal(size=DIMS).astype(np.float32) for _ in range(2)]
    total, residuals = summed(gradients, beginning(random))
    owed = sum(residual.numpy() for residual, _ in residuals)
    np.testing.assert_allclose(total + owed, sum(gradients), rtol=1e-5, atol=1e-5)
    assert np.abs(owed).max() > 0.1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_arrives_and_no_member_keeps_it(random, bad):
    gradients = [random.normal(size=DIMS).astype(np.float32) for _ in range(2)]
    spoilt = gradients[0].copy()
    spoilt[2, 3] = bad
    total, residuals = summed([spoilt, gradients[1]], beginning(random))
    assert not np.isfinite(total).any()
    assert all(np.isfinite(part.numpy()).all() for state in residuals for part in state)
    assert np.isfinite(summed(gradients, residuals)[0]).all()
