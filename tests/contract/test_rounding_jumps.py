"""Rounding that flips a comparison moves a gradient by a jump, which few references meet (decision 0105)."""

from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import Case, case_of_model
from model import Model

from harness.verification.reference import Outcome, Reference, Tolerances
from harness.verification.worker import check as checks
from harness.verification.worker.check import check, check_bounds, make_reference, run_references
from harness.verification.worker.rounding import EPS, MORE_VARIATIONS, Rounding
from workloads.protocol import TrainStep

N_PAIRS, N_EXAMPLES = 16, 64
MARGIN = 8 * EPS["float"]
"""Activation of the first example: rounding moves it below zero in about one reference of ten."""


SEED = 11
"""Seed of numbers for which none of the usual three references meets the jump."""
WORKERS = (1, 1)


def one_unit() -> Model:
    """A layer of one unit; the products of the first example add up to the margin."""
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
    """Reference with the tolerances of three others."""
    return make_reference(case.step, case.initial, case.topology(WORKERS), case.batches)


@pytest.fixture(scope="module")
def more(case: Case) -> Tolerances:
    thorough = make_reference(case.step, case.initial, case.topology(WORKERS), case.batches, thorough=True)
    return thorough.tolerances


@pytest.fixture(scope="module")
def jumped(case: Case, few: Reference) -> Outcome:
    """Outcome of a correct computation that rounds the first example's activation below zero."""
    roundings = [Rounding(name="other", jitter=seed) for seed in range(100, 150)]
    outcomes = run_references(
        case.step, case.initial, case.topology(WORKERS), case.batches, roundings, eps=EPS["float"]
    )
    return next(outcome for outcome in outcomes if few.errors(outcome.values)["kernel"] > 1e-3)


def test_references_round_in_different_ways() -> None:
    assert len({rounding.jitter for rounding in MORE_VARIATIONS}) == len(MORE_VARIATIONS) == 64


def test_three_references_call_a_jump_wrong_and_more_do_not(
    few: Reference, more: Tolerances, jumped: Outcome
) -> None:
    first = few.judge(jumped)
    assert (first.wrong, few.may_be_rounding(first)) == (("kernel",), True)
    verdict = more.judge_again(first)
    assert verdict.equivalent is None
    assert verdict.undecidable == ("kernel",)
    assert "--dtype float64" in str(verdict.reason)


@pytest.mark.parametrize(("name", "error"), [("slope", 0.01), ("kernel", 0.5)])
def test_a_fault_that_rounding_does_not_make_stays_wrong(
    name: str, error: float, few: Reference, more: Tolerances
) -> None:
    copy = (name, None)
    wrong = few.values[copy] + error * few.scales[name]
    faulty = replace(few.outcome, values={**few.values, copy: wrong.astype(np.float32)})
    first = few.judge(faulty)
    assert few.may_be_rounding(first)
    assert more.judge_again(first).wrong == (name,)


@pytest.mark.parametrize(("strategy", "equivalent"), [("all-reduce", None), ("none", False)])
def test_a_strategy_that_must_equal_the_reference_is_judged_again(
    strategy: str, equivalent: bool | None, case: Case, few: Reference, jumped: Outcome
) -> None:
    """The reference is one that met the jump, so that the strategy, which did not, differs by it."""
    jump = replace(few, outcome=replace(few.outcome, values=jumped.values))
    checkup = check(case.step, case.initial, case.plan(strategy, WORKERS), case.batches, lambda: jump)
    assert checkup.verdict.equivalent is equivalent


@pytest.mark.parametrize(("error", "n_references"), [(0.5, 2), (0.0, 1)])
def test_a_bound_that_seems_broken_is_measured_again(
    error: float, n_references: int, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []

    def counted(*args: Any, thorough: bool, **options: Any) -> Reference:
        runs.append(thorough)
        reference = make_reference(*args, thorough=thorough, **options)
        slope = ("slope", None)
        wrong = reference.values[slope] + error * reference.scales["slope"]
        values = {**reference.values, slope: wrong.astype(np.float32)}
        return replace(reference, outcome=replace(reference.outcome, values=values))

    monkeypatch.setattr(checks, "make_reference", counted)
    plan = case.plan("all-reduce", WORKERS, compressor="bf16")
    verdict = check_bounds(case.step, case.initial, plan, case.batches)
    assert (verdict.within is False, runs) == (error > 0, [False, True][:n_references])
