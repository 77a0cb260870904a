"""`stratbench recommend`: what it asks for, and what it shows."""

from dataclasses import replace
from pathlib import Path

import pytest
from called import RECOMMENDATION, Pipeline, call, document

from harness.experiment.references import StrategyRef
from harness.prediction.goals import Aim, Goal
from harness.records.run_folder import open_run
from harness.written_values import parse_rate_mbit


def test_a_workload_is_profiled_and_measured_on_two_workers(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline
) -> None:
    assert call(capsys, "recommend", "wide-mlp:units=16")[0] == 0
    (request,) = pipeline.asked
    assert request.aim == Aim(goal=Goal.FASTEST, workers=2, link_mbit=None)
    assert request.out is None
    assert (request.workload, request.experiment) == (None, "quickstart")
    profiling, measuring = request.source, request.measuring
    assert [str(ref) for ref in profiling.workloads] == ["wide-mlp:units=16"]
    assert (profiling.cluster.workers, profiling.measure.trace) == ((1, 2), True)
    assert [str(ref) for ref in measuring.workloads] == ["wide-mlp:units=16"]
    assert (measuring.cluster.workers, measuring.measure.until.ratio_ci) == ((2,), 0.03)
    assert next(str(ref) for ref in request.probing.strategies) == "none"


def test_options_say_what_and_where(capsys: pytest.CaptureFixture[str], pipeline: Pipeline) -> None:
    command = "recommend quickstart --workload dlrm --workers 64 --link 1gbit --goal network --seed 7"
    more = "--strategies ps,all-reduce --allow inexact --seconds 9 --out best.json --probe costs.json"
    assert call(capsys, *command.split(), *more.split())[0] == 0
    (request,) = pipeline.asked
    assert request.aim == Aim(
        goal=Goal.NETWORK,
        workers=64,
        link_mbit=1000.0,
        strategies=(StrategyRef(name="ps"), StrategyRef(name="all-reduce")),
        inexact=True,
        seconds=9.0,
        seed=7,
    )
    assert (request.out, request.probe) == (Path("best.json"), Path("costs.json"))
    assert [str(ref) for ref in request.source.workloads] == ["dlrm"]
    assert (request.measuring, request.experiment) == (None, "quickstart")


@pytest.mark.parametrize(
    ("more", "is_measured"),
    [
        (["--workers", "2"], True),
        (["--no-measure"], False),
        (["--workers", "3"], False),
        (["--workers", "3", "--set", "cluster.workers=3"], True),
        (["--workers", "3", "--set", "cluster.workers=[2,3]"], True),
        (["--link", "100mbit"], False),
    ],
)
def test_plans_are_measured_if_the_experiment_has_such_workers_and_links(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline, more: list[str], is_measured: bool
) -> None:
    assert call(capsys, "recommend", "wide-mlp", *more)[0] == 0
    measuring = pipeline.asked[0].measuring
    assert (measuring is not None) is is_measured
    if is_measured:
        assert measuring.cluster.workers == (pipeline.asked[0].aim.workers,)


def test_an_experiments_own_links_and_ends_of_measurement_stay(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline
) -> None:
    settings = (
        "cluster.provider=docker",
        "cluster.link.rate_mbit=[100,1000]",
        "measure.until={ratio_ci: 9%}",
    )
    words = [word for setting in settings for word in ("--set", setting)]
    assert call(capsys, "recommend", "wide-mlp", *words, "--link", "1gbit")[0] == 0
    assert call(capsys, "recommend", "wide-mlp", *words)[0] == 0
    first, second = pipeline.asked
    assert (first.aim.link_mbit, second.aim.link_mbit) == (1000.0, 100.0)
    assert first.measuring.cluster.link.rate_mbit == (1000.0,)
    assert first.measuring.measure.until.ratio_ci == 0.09
    assert first.source.cluster.link.rate_mbit == (None,)
    assert first.probing.cluster.provider == ("docker",)


def test_a_run_folder_is_enough(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline, tmp_path: Path
) -> None:
    with open_run(
        tmp_path, experiment={"name": "x", "workloads": ["dlrm"], "strategies": ["none"]}, environment={}
    ):
        pass
    assert call(capsys, "recommend", str(tmp_path), "--workers", "8", "--workload", "dlrm")[0] == 0
    (request,) = pipeline.asked
    assert (request.source, request.workload, request.aim.workers) == (tmp_path, "dlrm", 8)
    assert request.measuring is None
    assert "workers: must be 2 or more, got none" in call(capsys, "recommend", str(tmp_path))[1].err
    several = call(capsys, "recommend", str(tmp_path), "--workers", "4,8")[1].err
    assert "workers: must be one number for a recommendation, got '4,8'" in several
    refusal = call(capsys, "recommend", str(tmp_path), "--workers", "8", "--measure")[1].err
    assert refusal == "stratbench: measure: is for a workload or an experiment, got a run folder; name one\n"


@pytest.mark.parametrize(
    ("setting", "field"),
    [
        ("cluster.replicas_per_worker=2", "cluster.replicas_per_worker: must be 1"),
        ("cluster.cores_per_worker=[1,2]", "cluster.cores_per_worker: must be one number"),
        ("measure.precision=[float32,bfloat16]", "measure.precision: must be one"),
        ("measure.xla=[false,true]", "measure.xla: must be one for a recommendation, got false, true"),
    ],
)
def test_conditions_that_cannot_be_predicted_are_refused_before_profiling(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline, setting: str, field: str
) -> None:
    status, captured = call(capsys, "recommend", "wide-mlp", "--no-measure", "--set", setting)
    assert status == 2
    assert field in captured.err
    assert pipeline.asked == []


def test_a_workload_is_meant_beside_a_folder_of_its_name_without_a_run(
    capsys: pytest.CaptureFixture[str],
    pipeline: Pipeline,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("wide-mlp", "something"):
        (tmp_path / name).mkdir()
    status, captured = call(capsys, "recommend", "wide-mlp")
    assert (status, len(pipeline.asked)) == (0, 1)
    assert "note: wide-mlp is the workload; the folder of this name has no run\n" in captured.out
    assert call(capsys, "recommend", "something")[0] != 0


def test_it_shows_plans_reasons_and_the_verdict(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline
) -> None:
    status, captured = call(capsys, "recommend", "wide-mlp")
    assert status == 0
    assert "wide-mlp · 2 workers · batch 64 · links of 100 Mbit/s\n" in captured.out
    heading = next(line for line in captured.out.splitlines() if "busiest link" in line)
    first = next(line for line in captured.out.splitlines() if "11.0 ms (1.20×)" in line)
    assert heading.split()[-1] == "worker-h/million"
    assert float(first.split()[-1]) == pytest.approx(2 * 0.010 / 64 * 1e6 / 3600, rel=0.01)
    assert "11.0 ms (1.20×)" in captured.out
    assert "failed: it fell over" in captured.out
    assert "\n1: limited by link\n2: the reference\n" in captured.out
    assert (
        "all-reduce; table by ps: measured 1.2× the examples per second of all-reduce (1.1 to 1.3, n = 4)\n"
        in captured.out
    )
    assert captured.out.endswith(
        "note: one thing to know\nmeasured in: runs/recommend\nplan: best.plan.json\n"
    )
    pipeline.recommendation = replace(RECOMMENDATION, measured_in=None, later="stratbench run x")
    _, captured = call(capsys, "recommend", "wide-mlp")
    assert "all-reduce; table by ps: predicted shortest step\n" in captured.out
    assert captured.out.endswith("measure it there: stratbench run x\n")


def test_its_document_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    status, captured = call(capsys, "recommend", "wide-mlp", "--json")
    message = document(captured)
    assert status == 0
    assert (message["path"], message["chosen"]) == ("best.plan.json", "all-reduce; table by ps")
    assert (message["workload"], message["workers"], message["goal"]) == ("wide-mlp", 2, "fastest")
    first, second = message["plans"]
    assert first["measured"]["interval"] == {"low": 0.010, "high": 0.012}
    assert first["predicted"]["step_s"] == 0.010
    assert (second["measured"], second["problem"]) == (None, "it fell over")


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100mbit", 100.0),
        ("2.5 Gbit", 2500.0),
        ("500kbit", 0.5),
        ("40", None),
        ("fast", None),
        ("1tbit", None),
        ("-1", None),
        ("", None),
    ],
)
def test_rates_are_read_as_people_write_them(text: str, rate: float | None) -> None:
    assert parse_rate_mbit(text) == rate


def test_a_search_that_was_cut_and_a_long_title_are_marked(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline
) -> None:
    first, *others = RECOMMENDATION.plans
    long = replace(first, predicted=replace(first.predicted, title="ps; " + ", ".join(["table"] * 40)))
    pipeline.recommendation = replace(RECOMMENDATION, plans=(long, *others), is_complete=False)
    lines = call(capsys, "recommend", "wide-mlp")[1].out.splitlines()
    assert "ended at its limit of plans or --seconds, after 20 plans" in "\n".join(lines)
    row = next(line for line in lines if line.startswith("1 "))
    assert "…" in row.split("  ")[1]
    assert len(row) < 150
