"""Rounding that flips a comparison moves a gradient by a jump, which few references meet (decision 0105)."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import Case, case_of_model
from model import Model

from harness.verification.reference import Outcome, Reference
from harness.verification.verdict import Limits
from harness.verification.verification import judge_capture
from harness.verification.worker.check import make_reference, repeatable_reference, run_references
from harness.verification.worker.rounding import EPS, Rounding
from workloads.protocol import TrainStep

N_PAIRS, N_EXAMPLES = 16, 64
MARGIN = 8 * EPS["float"]
"""Activation of the first example: rounding moves it below zero in about one reference of ten."""


SEED = 11
"""Seed of numbers for which none of the usual three references meets the jump."""
WORKERS = (1, 1)
EXACT = Limits(floor=0.0, tolerance=0.0, eps=EPS["float"])


def one_unit() -> Model:
    """A layer of one unit; the products of the first example cancel each other but for the margin."""
    random = np.random.default_rng(SEED)
    signs = np.tile([1.0, -1.0], N_PAIRS)
    weights = signs * np.repeat(random.uniform(0.7, 1.3, N_PAIRS), 2)
    examples = random.uniform(0.5, 1.5, (N_EXAMPLES, 2 * N_PAIRS + 1)) * np.append(signs, 1.0)
    examples[0] = np.append(np.repeat(random.uniform(0.7, 1.3, N_PAIRS), 2), MARGIN)
    kernel = tf.Variable(np.append(weights, 1.0).astype(np.float32), name="kernel")
    slope = tf.Variable(0.5, name="slope")

    def loss(rows: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.nn.relu(tf.linalg.matvec(rows, kernel)) + (slope * rows[:, 0] - 1.0) ** 2)

    step = TrainStep(loss=loss, variables=[kernel, slope], optimizer=keras.optimizers.SGD(0.1))
    spec = tf.TensorSpec((2 * N_PAIRS + 1,), tf.float32)
    return Model(step=step, spec=spec, batches=[[examples.astype(np.float32)]])


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return case_of_model(one_unit(), tmp_path_factory.mktemp("jump"), float64=False)


@pytest.fixture(scope="module")
def few(case: Case) -> Reference:
    """Reference with the limits of the usual three others alone."""
    return make_reference(case.step, case.initial, case.topology(WORKERS), case.batches)


@pytest.fixture(scope="module")
def repeatable(case: Case) -> Reference:
    return repeatable_reference(case.step, case.initial, case.topology(WORKERS), case.batches)


@pytest.fixture(scope="module")
def jumped(case: Case, few: Reference) -> Outcome:
    """Outcome of a correct computation that rounds the first example's activation below zero."""
    roundings = [Rounding(name="other", jitter=seed) for seed in range(100, 150)]
    outcomes = run_references(
        case.step, case.initial, case.topology(WORKERS), case.batches, roundings, eps=EPS["float"]
    )
    return next(outcome for outcome in outcomes if few.errors(outcome.values)["kernel"] > 1e-3)


def test_three_references_call_a_jump_wrong_and_more_do_not(
    few: Reference, repeatable: Reference, jumped: Outcome
) -> None:
    assert few.judge(jumped).wrong == ("kernel",)
    verdict = repeatable.judge(jumped)
    assert verdict.equivalent is None
    assert verdict.undecidable == ("kernel",)
    assert "--dtype float64" in str(verdict.reason)


def test_a_fault_that_rounding_does_not_make_stays_wrong(repeatable: Reference) -> None:
    slope = ("slope", None)
    wrong = repeatable.values[slope] + 0.01 * repeatable.scales["slope"]
    faulty = replace(repeatable.outcome, values={**repeatable.values, slope: wrong})
    assert repeatable.judge(faulty).wrong == ("slope",)


def test_the_captured_step_may_differ_from_the_users_by_a_jump(
    repeatable: Reference, jumped: Outcome
) -> None:
    captured = replace(repeatable, limits=dict.fromkeys(repeatable.limits, EXACT), measure_again=None)
    users = replace(jumped, gradient_norms={})
    assert judge_capture(captured, users, lambda: replace(repeatable, measure_again=None)).equal is False
    assert judge_capture(captured, users, lambda: repeatable).equal is None
