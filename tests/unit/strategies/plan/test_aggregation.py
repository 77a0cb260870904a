"""Rules by name: what they need of workers, and what is refused."""

import pytest

from strategies.builders.robust import describe
from strategies.errors import StrategyError
from strategies.plan.aggregation import BY_NAME, Aggregation


@pytest.mark.parametrize(
    ("params", "n", "message"),
    [
        (
            {"rule": "krum", "f": 5},
            11,
            (
                "rule=krum needs n ≥ 2f + 3, got f=5 with 11 workers; f may be 4 at most, or raise workers "
                "to 13"
            ),
        ),
        (
            {"rule": "bulyan", "f": 3},
            11,
            (
                "rule=bulyan needs n ≥ 4f + 3, got f=3 with 11 workers; f may be 2 at most, or raise workers "
                "to 15"
            ),
        ),
        (
            {"rule": "mean", "f": 1},
            4,
            "rule=mean needs f = 0, got f=1 with 4 workers; choose another rule",
        ),
        (
            {"rule": "krum"},
            2,
            "rule=krum needs n ≥ 2f + 3, got 2 workers; raise workers to 3 or more",
        ),
        (
            {"rule": "multi-krum", "f": 1, "m": 3},
            5,
            "m must be at most n − f − 2 = 2, got 3; lower m, or leave it out",
        ),
        (
            {"rule": "median", "tau": 1.0},
            5,
            "rule median: takes no tau, got 1.0; drop it, it is for centered-clipping",
        ),
        (
            {"rule": "median", "bucket_size": 2},
            5,
            "bucket_size needs pre=bucketing, got pre=none; leave bucket_size out",
        ),
        (
            {"rule": "median", "f": 3, "pre": "bucketing"},
            11,
            (
                "rule=median needs n ≥ 2f + 1, got f=3 with 6 buckets of 11 workers; f may be 2 at most, or "
                "raise workers to 14"
            ),
        ),
        (
            {"rule": "mda", "f": 12},
            25,
            (
                "rule=mda looks at all subsets of n − f workers, 10000 at most, got 5200300 with n=25 and "
                "f=12; lower f, or choose multi-krum"
            ),
        ),
    ],
)
def test_what_workers_are_too_few_for_is_refused(
    params: dict[str, str | int | float], n: int, message: str
) -> None:
    with pytest.raises(StrategyError) as caught:
        Aggregation.of({"pre": "none", **params}, n)
    assert str(caught.value) == message


@pytest.mark.parametrize("rule", BY_NAME)
def test_as_many_faults_as_a_rule_withstands_are_usual(rule: str) -> None:
    aggregation = Aggregation.of({"rule": rule, "pre": "none"}, 11)
    assert aggregation is not None
    assert aggregation.f == BY_NAME[rule].most(11)
    assert BY_NAME[rule].needs(aggregation.f) <= 11


@pytest.mark.parametrize("rule", BY_NAME)
def test_any_f_contributions_may_be_missing(rule: str) -> None:
    aggregation = Aggregation.of({"rule": rule, "pre": "none"}, 11)
    assert aggregation is not None
    assert aggregation.least_finite <= 11 - aggregation.f
    assert aggregation.still_faulty(11 - aggregation.f) == 0


def test_no_rule_is_none() -> None:
    assert Aggregation.of({"sync": True}, 4) is None


def test_the_list_names_every_rule_with_what_it_needs() -> None:
    listed = {entry["name"]: entry["summary"] for entry in describe()}
    assert listed.keys() > BY_NAME.keys()
    assert listed["bulyan"].endswith("needs n ≥ 4f + 3")
