"""When repeats are enough, which are made where they are not, and how often their intervals miss."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from open_folders import made_record

from harness.experiment.cases import Case, expand
from harness.experiment.load import resolve
from harness.experiment.model import Experiment, Until
from harness.experiment.schedule import Slot
from harness.records.comparison import SEQUENTIAL_CONFIDENCE, RepeatedMean, repeated_mean
from harness.records.outcome import Rounds
from harness.records.record import Record
from harness.run.further_repeats import FIRST_LOOK, MOST_REPEATS, expected_s, further_slots, is_narrow, looks

N_ROUNDS = 10
UNTIL = {"ratio_ci": "5%", "at_most": "10m"}


def experiment(**measure: Any) -> Experiment:
    strategies = ["none", "ps", "all-reduce"]
    document = {"name": "x", "workloads": ["digits-mlp"], "strategies": strategies}
    return resolve({**document, "measure": {"until": UNTIL, **measure}, "compare": {"baseline": "ps"}})


def repeats_of(case: Case, *, sd: float, n: int, seed: int = 0) -> list[Record]:
    logs = np.random.default_rng(seed).normal(0, sd, size=n)
    return [
        replace(
            made_record(),
            case=case.id,
            strategy=case.strategy.name,
            repeat=repeat,
            batch_size=64,
            wall_s=3.0,
            rounds=Rounds(
                block=f"b{repeat}", n_steps=5, n_lead=2, n_made=70, step_s=(float(np.exp(log)),) * N_ROUNDS
            ),
        )
        for repeat, log in enumerate(logs)
    ]


def records_of(spec: Experiment, *, sd: dict[str, float], n: int = 4) -> list[Record]:
    return [
        record
        for seed, case in enumerate(expand(spec))
        for record in repeats_of(case, sd=sd[case.strategy.name], n=n, seed=seed)
    ]


def repeats(slots: Sequence[Any]) -> dict[str, list[int]]:
    results: dict[str, list[int]] = {}
    for slot in slots:
        results.setdefault(slot.case.strategy.name, []).append(slot.repeat)
    return results


def test_a_ratio_known_well_has_no_more_repeats_and_a_wide_one_those_up_to_the_next_look() -> None:
    spec = experiment()
    cases = expand(spec)
    records = records_of(spec, sd={"none": 0.001, "ps": 0.001, "all-reduce": 0.2})
    slots = further_slots(spec, cases, records, first=12)
    more = [4, 5, 6]
    assert list(looks(4))[:3] == [4, 7, 12]
    assert repeats(slots) == {"none": more, "ps": more, "all-reduce": more}, "control and baseline go along"
    assert [slot.order for slot in slots] == list(range(12, 21))
    assert len({slot.block for slot in slots}) == 3
    quiet = records_of(spec, sd={"none": 0.001, "ps": 0.001, "all-reduce": 0.001})
    assert further_slots(spec, cases, quiet, first=12) == ()


def test_a_case_that_is_decided_has_no_more_repeats_than_that() -> None:
    spec = resolve(
        {
            "name": "x",
            "workloads": ["digits-mlp"],
            "strategies": ["ps", "all-reduce", "ps-load-balancing"],
            "measure": {"until": UNTIL},
        }
    )
    cases = expand(spec)
    records = records_of(spec, sd={"ps": 0.0, "all-reduce": 0.2, "ps-load-balancing": 0.0})
    assert set(repeats(further_slots(spec, cases, records, first=12))) == {"ps", "all-reduce"}


def test_what_failed_is_not_repeated_for_ever() -> None:
    spec = experiment()
    cases = expand(spec)
    records = records_of(spec, sd={"none": 0.0, "ps": 0.0, "all-reduce": 0.5})
    for status in ("failed", "implausible"):
        bad = [
            replace(r, status=status) if r.strategy == "all-reduce" and r.repeat == 3 else r for r in records
        ]
        assert further_slots(spec, cases, bad, first=12) == ()
    many = records_of(spec, sd={"none": 0.0, "ps": 0.0, "all-reduce": 0.5}, n=MOST_REPEATS)
    assert further_slots(spec, cases, many, first=12) == ()


@pytest.mark.parametrize("sd", [0.0, 0.5])
def test_between_two_looks_nothing_is_decided(sd: float) -> None:
    spec = experiment()
    records = records_of(spec, sd={"none": 0.0, "ps": 0.0, "all-reduce": sd}, n=5)
    further = repeats(further_slots(spec, expand(spec), records, first=12))
    assert further["all-reduce"] == [5, 6]


def test_without_until_there_are_no_further_repeats() -> None:
    spec = experiment(until=None)
    records = records_of(spec, sd={"none": 0.5, "ps": 0.5, "all-reduce": 0.5})
    assert further_slots(spec, expand(spec), records, first=12) == ()


@pytest.mark.parametrize("n_asked", [1, 4, 5, 150])
def test_looks_are_few_and_begin_where_an_interval_means_something(n_asked: int) -> None:
    looks_at = list(looks(n_asked))
    assert looks_at == sorted(set(looks_at))
    assert looks_at[0] == max(FIRST_LOOK, n_asked)
    assert looks_at[-1] == max(MOST_REPEATS, n_asked)
    assert len(looks_at) <= 8


@pytest.mark.parametrize("n_seats", [1, 2, 3])
@pytest.mark.parametrize("spread", [0.2, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0])
def test_intervals_that_were_waited_for_miss_no_more_than_others(spread: float, n_seats: int) -> None:
    """Repeats of one worker on several workers' cores in turn, which differ more than others do."""
    until = Until(ratio_ci=0.03, at_most=1.0)
    draw = np.random.default_rng(int(10 * spread) + n_seats)
    seats = [repeat % n_seats for repeat in range(MOST_REPEATS)]
    of_seats = 0.1 * (np.arange(n_seats) - (n_seats - 1) / 2)
    missed, n_draws = 0, 2000
    for _ in range(n_draws):
        logs = draw.normal(of_seats[seats], spread * 0.03).tolist()

        def mean_of(n: int, logs: list[float] = logs) -> RepeatedMean:
            return repeated_mean(logs[:n], None if n_seats == 1 else seats[:n])

        n = next((n for n in looks(4) if is_narrow(mean_of(n), until)), MOST_REPEATS)
        mean = mean_of(n)
        half = mean.half_width(SEQUENTIAL_CONFIDENCE)
        assert half is not None
        missed += abs(mean.value) > half
    # The bound of the decision, and three standard deviations of this estimate of it.
    assert missed / n_draws <= 0.056 + 3 * (0.056 * 0.944 / n_draws) ** 0.5


def test_a_case_that_had_no_repeat_is_expected_to_take_as_long_as_others() -> None:
    cases = expand(experiment())
    records = [record for case in cases[:2] for record in repeats_of(case, sd=0.1, n=1)]
    records[1] = replace(records[1], wall_s=5.0)
    slots = [Slot(order=0, block=0, repeat=0, case=case) for case in cases[:3]]
    assert expected_s(slots, records) == 3.0 + 5.0 + 4.0
    assert expected_s(slots, []) == 0.0
