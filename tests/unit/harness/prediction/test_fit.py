"""Fits of the costs of exchanges: costs that made the steps are found again."""

import pytest
from planned_steps import STRATEGIES, USUAL, planned, profile

from harness.prediction.costs import Costs
from harness.prediction.fit import Observation, fitted, predicted_s
from harness.prediction.step_model import Machines, processor_s, simulate_step

TRUE = USUAL.with_values(
    {name: 1.7 * value for name, value in USUAL.flat().items() if name != "servers.ids_s"}
)
"""Costs unlike the first guess; the time until ids of rows arrive is not fitted."""


def observed(
    strategy: str, n_workers: int = 2, *, compute_s: float = 0.004, off: float = 1.0, costs: Costs = TRUE
) -> Observation:
    step = planned(strategy, n_workers, own=profile(compute_s=compute_s, update_s=compute_s / 4))
    return Observation(
        family=strategy.partition(":")[0],
        planned=step,
        machines=Machines(),
        step_s=simulate_step(step, costs, Machines()).step_s * off,
        cpu_s=[off * seconds for seconds in processor_s(step, costs)],
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


def test_the_variation_of_exchanges_is_found(fit) -> None:
    assert fit.costs.exchange_variation == pytest.approx(TRUE.exchange_variation, rel=0.2)


def test_costs_that_no_step_shows_are_not_there(fit) -> None:
    assert set(fit.costs.collectives) == {"tcp", "collectives"}
    assert set(fit.costs.codecs) == {"bf16"}


def test_nothing_is_fitted_to_nothing() -> None:
    with pytest.raises(ValueError, match="one measured step or more"):
        fitted([])


@pytest.mark.parametrize("strategy", ["all-reduce", "ps", "partitioned-ps"])
def test_latencies_far_below_the_first_guess_are_found(strategy: str) -> None:
    low = TRUE.with_values(
        {
            name: 0.1 * value
            for name, value in USUAL.flat().items()
            if name.endswith(("request_s", "variation"))
        }
    )
    steps = [observed(name, compute_s=c, costs=low) for name in STRATEGIES for c in (0.0005, 0.004)]
    other = observed(strategy, compute_s=0.0015, costs=low)
    assert predicted_s(other, fitted(steps).costs) == pytest.approx(other.step_s, rel=0.03)
