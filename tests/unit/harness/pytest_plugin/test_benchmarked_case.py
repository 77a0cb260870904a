"""What the repeats of a case say together, and when they are no result."""

import dataclasses
from pathlib import Path

import pytest
from synthetic_run import DIED, NO_GPU, NONE, TOO_FAST, Case, write_run

from harness.experiment.cases import expand
from harness.experiment.load import load_experiment
from harness.pytest_plugin.benchmarked_case import BenchmarkedCase, problem_of
from harness.records.facts.outcome import Equivalence
from harness.records.record import Record
from harness.records.store import load_run


def recorded(folder: Path, *, n_repeats: int = 3, **case: object) -> tuple[Record, ...]:
    of_case = Case(**{"workload": "wide-mlp", "strategy": "ps", **case})
    path = write_run(folder / "run", [of_case], n_repeats=n_repeats, baseline="ps", minutes=(1.0, 1.2))
    return load_run(path).records


def test_repeats_that_ended_well_are_a_result(tmp_path: Path) -> None:
    records = recorded(tmp_path)
    assert problem_of(records) is None
    case = next(case for case in expand(load_experiment("quickstart")) if case.strategy.name == "ps")
    result = BenchmarkedCase(case=case, run_dir=tmp_path, records=records)
    assert result.step_s == tuple(s for record in records for s in record.rounds.step_s)
    extra = result.extra_info()
    assert (extra["repeats"], extra["payload_bytes_per_step"], extra["class"]) == (3, 1_000_000.0, "exact")
    assert (extra["equivalence"], extra["workers"], extra["experiment"]) == ("equivalent", 2, "synthetic")
    assert extra["tcp_bytes_per_step"] == pytest.approx(1_000_000 * 1.006, rel=0.01)
    assert extra["examples_per_s"] == sorted(record.median_examples_per_s for record in records)[1]
    assert extra["peak_rss_bytes"] == pytest.approx(max(records[0].peak_rss_bytes), rel=0.2)


def test_a_repeat_without_rounds_counts_by_its_median_step(tmp_path: Path) -> None:
    (record,) = recorded(tmp_path, n_repeats=1)
    record = dataclasses.replace(record, rounds=None)
    case = expand(load_experiment("quickstart"))[0]
    assert BenchmarkedCase(case=case, run_dir=tmp_path, records=(record,)).step_s == (record.step_s.p50,)
    assert problem_of([dataclasses.replace(record, step_s=None)]) == "has no step times"


@pytest.mark.parametrize(
    ("case", "problem"),
    [
        ({"problems": {1: ("failed", DIED)}}, f"failed: worker-died: {DIED.message}"),
        ({"problems": {2: ("skipped", NO_GPU)}}, f"skipped: missing-device: {NO_GPU.message}"),
        (
            {"problems": {0: ("implausible", TOO_FAST)}},
            f"implausible: above-link-ceiling: {TOO_FAST.message}",
        ),
        ({"equivalent": False}, "computes something else than one device: "),
    ],
)
def test_one_bad_repeat_is_enough(tmp_path: Path, case: dict[str, object], problem: str) -> None:
    assert (problem_of(recorded(tmp_path, **case)) or "").startswith(problem)


def test_a_loss_beyond_its_bound_is_none_either(tmp_path: Path) -> None:
    (record,) = recorded(tmp_path, n_repeats=1)
    check = Equivalence(checked=True, within_bound=False, reason="lost 3 times what topk states")
    lost = dataclasses.replace(record, equivalence=check)
    assert problem_of([lost]) == "computes something else than one device: lost 3 times what topk states"


def test_controls_may_compute_something_else(tmp_path: Path) -> None:
    (record,) = recorded(tmp_path, n_repeats=1, **NONE)
    assert problem_of([dataclasses.replace(record, control=True)]) is None
    assert problem_of([dataclasses.replace(record, control=False)]) is not None


def test_no_record_is_no_result() -> None:
    assert problem_of([]) == "left no record of a repeat"
