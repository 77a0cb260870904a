"""Result of all repeats of a case, and the conditions under which there is none."""

import dataclasses
import subprocess
from pathlib import Path

import pytest
from synthetic_run import DIED, NO_GPU, NONE, TOO_FAST, Case, write_run

from harness.errors import CaseError
from harness.experiment.cases import expand
from harness.experiment.load import load_experiment
from harness.experiment.references import StrategyRef
from harness.pytest_plugin import benchmarked_case
from harness.pytest_plugin.benchmarked_case import BenchmarkedCase, problem_of
from harness.pytest_plugin.one_case import CaseRequest, one_case
from harness.records.outcome import Equivalence
from harness.records.record import Record
from harness.records.stored_run import load_run

SPEC = one_case(CaseRequest(experiment="quickstart", workload="digits-cnn", strategy="all-reduce")).spec


def test_what_the_command_refuses_is_the_reason(tmp_path: Path) -> None:
    unknown = StrategyRef(name="all-redoce")
    spec = SPEC.with_strategies(unknown, baseline=unknown)
    with pytest.raises(CaseError) as refused:
        benchmarked_case.run_experiment(spec, tmp_path)
    assert str(refused.value) == (
        "strategies[0]: strategy 'all-redoce': unknown name; did you mean 'all-reduce'?"
    )
    assert not (tmp_path / "run").exists()


def test_a_command_that_leaves_nothing_is_told_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    (tmp_path / "run.log").write_text("of a run before")
    with pytest.raises(CaseError, match=rf"must leave a run, got status 1; its log is {tmp_path}/run\.log"):
        benchmarked_case.run_experiment(SPEC, tmp_path)
    assert not (tmp_path / "run.log").read_text()


def test_it_has_ended_once_the_test_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(subprocess.Popen[bytes]):
        """A process during which somebody presses Ctrl-C."""

        is_first = True

        def communicate(self, *args: object, **options: object) -> object:
            if self.is_first:
                self.is_first = False
                started.append(self)
                raise KeyboardInterrupt
            return super().communicate(*args, **options)

    started: list[Interrupted] = []
    monkeypatch.setattr(benchmarked_case.subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        benchmarked_case.run_experiment(SPEC, tmp_path)
    (process,) = started
    try:
        assert process.returncode is not None
    finally:
        process.kill()
        process.wait()


def recorded(folder: Path, *, n_repeats: int = 3, **case: object) -> tuple[Record, ...]:
    of_case = Case(**{"workload": "wide-mlp", "strategy": "ps", **case})
    path = write_run(folder / "run", [of_case], n_repeats=n_repeats, baseline="ps", minutes=(1.0, 1.2))
    return load_run(path).records


def test_repeats_that_ended_well_are_a_result(tmp_path: Path) -> None:
    records = recorded(tmp_path)
    assert problem_of(records) is None
    case = next(case for case in expand(load_experiment("quickstart")) if case.strategy.name == "ps")
    benchmarked = BenchmarkedCase(case=case, run_dir=tmp_path, records=records)
    assert benchmarked.step_s == tuple(s for record in records for s in record.rounds.step_s)
    extra = benchmarked.extra_info()
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
        ({"equivalent": False}, "is not equivalent to one device: "),
    ],
)
def test_one_bad_repeat_is_enough(tmp_path: Path, case: dict[str, object], problem: str) -> None:
    assert (problem_of(recorded(tmp_path, **case)) or "").startswith(problem)


def test_a_loss_beyond_its_bound_is_none_either(tmp_path: Path) -> None:
    (record,) = recorded(tmp_path, n_repeats=1)
    check = Equivalence(checked=True, within_bound=False, reason="lost 3 times what topk states")
    lost = dataclasses.replace(record, equivalence=check)
    assert problem_of([lost]) == "is not equivalent to one device: lost 3 times what topk states"


def test_controls_may_compute_something_else(tmp_path: Path) -> None:
    (record,) = recorded(tmp_path, n_repeats=1, **NONE)
    assert problem_of([dataclasses.replace(record, control=True)]) is None
    assert problem_of([dataclasses.replace(record, control=False)]) is not None


def test_no_record_is_no_result() -> None:
    assert problem_of([]) == "left no record of a repeat"
