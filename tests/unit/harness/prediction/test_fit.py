"""Fits of the costs of exchanges: costs that made the steps are found again."""

import pytest
from planned_steps import STRATEGIES, USUAL, planned, profile

from harness.prediction.fit import Observation, fitted, predicted_s, slowdown
from harness.prediction.step_model import Machines, processor_s, simulate_step

TRUE = USUAL.with_values(
    {name: 1.7 * value for name, value in USUAL.flat().items() if name != "servers.ids_s"}
)
"""Costs unlike the first guess; the time until ids of rows arrive is not fitted."""


def observed(strategy: str, n_workers: int = 2, *, compute_s: float = 0.004, off: float = 1.0) -> Observation:
    step = planned(strategy, n_workers, own=profile(compute_s=compute_s, update_s=compute_s / 4))
    return Observation(
        family=strategy.partition(":")[0],
        planned=step,
        machines=Machines(),
        step_s=simulate_step(step, TRUE, Machines()).step_s * off,
        cpu_s=[off * seconds for seconds in processor_s(step, TRUE)],
    )


@pytest.fixture(scope="module")
def fit():
    probed = [observed(strategy, compute_s=c) for strategy in STRATEGIES for c in (0.0005, 0.004)]
    disturbed = observed("all-reduce", compute_s=0.002, off=5.0)
    return fitted([*probed, disturbed])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_steps_of_other_sizes_are_predicted(fit, strategy: str) -> None:
    other = observed(strategy, 2, compute_s=0.0015)
    assert predicted_s(other, fit.costs) == pytest.approx(other.step_s, rel=0.05)


def test_errors_are_known_by_family_and_small(fit) -> None:
    assert set(fit.spreads) == {strategy.partition(":")[0] for strategy in STRATEGIES}
    assert max(fit.spreads.values()) < 0.05


def test_the_spread_of_exchanges_is_found(fit) -> None:
    assert fit.costs.spread == pytest.approx(TRUE.spread, rel=0.2)


def test_costs_that_no_step_shows_are_not_there(fit) -> None:
    assert set(fit.costs.collectives) == {"tcp", "collectives"}
    assert set(fit.costs.codecs) == {"bf16"}


def test_nothing_is_fitted_to_nothing() -> None:
    with pytest.raises(ValueError, match="one measured step or more"):
        fitted([])


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.5])
def test_the_speed_of_other_hours_shows_in_measured_steps(factor: float) -> None:
    measured = [observed(strategy) for strategy in STRATEGIES]
    costs = TRUE.scaled(1 / factor)
    assert costs.spread == TRUE.spread
    assert slowdown(measured, costs) == pytest.approx(factor, rel=0.02)


def test_a_single_step_changes_the_speed_less() -> None:
    assert 1.0 < slowdown([observed("ps")], TRUE.scaled(1 / 1.5)) < 1.45
