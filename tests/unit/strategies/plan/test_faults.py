"""Faults by name: what is refused, and what a person reads."""

import pytest

from strategies.errors import StrategyError
from strategies.plan.faults import BY_NAME, check_faults, describe, deviations, fault_of, refusal


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            {"worker": 1, "kind": "sing-flip"},
            "kind must be a fault that there is, got 'sing-flip'; did you mean 'sign-flip'",
        ),
        (
            {"worker": 1, "kind": "nan", "scale": 2.0},
            "kind nan: takes no scale, got 2.0; drop it, it is for sign-flip, reverse, random and 3 more",
        ),
        (
            {"worker": 1, "kind": "dead", "rate": 0.5},
            "kind dead: takes no rate, got 0.5; drop it, it is for sign-flip",
        ),
        ({"worker": 1, "kind": "label-flip"}, "kind label-flip needs classes, got none; give it"),
        (
            {"worker": 1, "kind": "zero", "from_step": 5, "to_step": 5},
            "to_step must be above from_step=5, got 5; raise it",
        ),
    ],
)
def test_what_means_nothing_is_refused(document: dict[str, object], message: str) -> None:
    with pytest.raises(StrategyError) as caught:
        fault_of(document, seed=0)
    assert str(caught.value).startswith(message)


def test_what_is_given_is_kept_and_the_rest_is_as_usual() -> None:
    fault = fault_of({"worker": 2, "kind": "sign_flip", "scale": 10.0, "from_step": 20}, seed=7)
    assert (fault.kind, fault.scale, fault.rate, fault.seed) == ("sign-flip", 10.0, 1.0, 7)
    assert str(fault) == "sign-flip scale=10 from_step=20"
    assert fault_of(fault.document(), seed=7) == fault
    assert fault_of({"worker": 0, "kind": "drop"}, seed=0).rate == 0.5


@pytest.mark.parametrize("kind", BY_NAME)
def test_every_kind_can_be_written_down_and_read_again(kind: str) -> None:
    needed = {"classes": 10} if kind == "label-flip" else {}
    fault = fault_of({"worker": 1, "kind": kind, **needed}, seed=3)
    assert fault_of(fault.document(), seed=3) == fault
    assert str(fault).startswith(kind)


def test_faults_are_of_workers_that_there_are() -> None:
    with pytest.raises(StrategyError, match="worker must be one of 3 workers, counted from 0, got 3; raise"):
        check_faults([fault_of({"worker": 3, "kind": "nan"}, seed=0)], 3)
    seeing = [fault_of({"worker": w, "kind": "inner-product"}, seed=0) for w in range(3)]
    with pytest.raises(StrategyError, match="needs an honest worker to look at, got faults of all 3; leave"):
        check_faults(seeing, 3)
    both = [
        fault_of({"worker": 0, "kind": "mimic", "target": 1}, seed=0),
        fault_of({"worker": 1, "kind": "nan"}, seed=0),
    ]
    with pytest.raises(StrategyError, match="target must be an honest worker, got 1, which has a fault"):
        check_faults(both, 3)
    check_faults(both[:1], 3)


def test_faults_that_mean_nothing_to_a_strategy_are_told() -> None:
    seeing, sending, slow = (
        [fault_of({"worker": 0, "kind": kind}, seed=0)] for kind in ("mimic", "nan", "slow")
    )
    assert refusal(seeing, {"robust-gather"}, has_rule=True) is None
    assert "looks at what others send" in str(refusal(seeing, {"all-reduce"}, has_rule=False))
    assert "got a strategy that sends variables" in str(refusal(sending, {"average"}, has_rule=False))
    assert "replicas that share one program" in str(refusal(sending, {"cross-replica-sum"}, has_rule=False))
    assert refusal(slow, {"average"}, has_rule=False) is None


def test_deviations_are_those_of_the_paper() -> None:
    """Two of 50 workers must support the attack of 24 corrupted ones: 24 of 26 honest ones go beyond."""
    assert deviations(50, 24) == pytest.approx(1.4261, abs=1e-4)


def test_the_list_names_every_kind() -> None:
    assert [entry["name"] for entry in describe()] == list(BY_NAME)
