"""Predictions have the speed of their run; an interrupted recommendation leaves no plan."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_predictions import PROBE, WORKLOAD
from test_recommendation import aim, run_in

from harness import foresight
from harness.errors import Interrupted, UsageError
from harness.experiment.load import resolve
from harness.pipeline import RunOutcome
from harness.prediction.conditions import conditions
from harness.prediction.plan_search import PlanSearch, search
from harness.prediction.predictions import Question
from harness.prediction.probe import Probe
from harness.prediction.profiled_workload import ProfiledWorkload
from harness.prediction.run_speed import RunSpeed
from harness.requests import PredictRequest, ProbeRequest, RecommendRequest, RunOptions

STEPS = {"measure": {"repeats": 2}, "strategies": ["single", "ps"], "workloads": ["digits-mlp"]}


@pytest.fixture
def profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of a run with a profile, whose machine has a probe."""
    monkeypatch.setattr(foresight, "load_run", run_in)
    monkeypatch.setattr(foresight, "profiled_workloads", lambda _: (WORKLOAD,))
    monkeypatch.setattr(foresight, "identity_of", lambda _: PROBE.identity)
    monkeypatch.setattr(foresight, "_probe_for", lambda *_: (tmp_path / "probe.json", PROBE))
    return tmp_path


def test_predictions_have_the_speed_of_the_run(profiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = {"name": WORKLOAD.name, **WORKLOAD.params}
    document = {"name": "x", "workloads": [workload], "strategies": ["none", "all-reduce"]}
    spec = conditions(document, of_run=True)
    probing = resolve({"name": "x", **STEPS})
    request = PredictRequest(
        source=profiled, spec=spec, changes=(), probe=None, probing=probing, options=RunOptions()
    )
    usual = foresight.predict(request)
    monkeypatch.setattr(foresight, "speed_of", lambda *_: RunSpeed(slowdown=2.0, n_cases=3))
    slow = foresight.predict(request)
    none, exchanging = (
        after.step_s - before.step_s
        for after, before in zip(slow.predictions, usual.predictions, strict=True)
    )
    assert (none, exchanging > 0) == (0.0, True)
    assert (usual.notes, usual.to_document()["slowdown"]) == ((), 1.0)
    assert slow.notes == (
        f"costs of exchanges are 2.00 times the probe's, fitted to 3 measured cases of {profiled}",
    )
    assert (slow.probe, slow.to_document()["slowdown"]) == (PROBE, 2.0)


def test_a_probe_that_cannot_be_read_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foresight, "run", lambda *_: pytest.fail("it must not run"))
    spec = resolve({"name": "x", **STEPS})
    request = PredictRequest(
        source=spec, spec=spec, changes=(), probe=tmp_path / "no.json", probing=spec, options=RunOptions()
    )
    with pytest.raises(UsageError, match=r"no\.json must be a probe .* got No such file or directory; make"):
        foresight.predict(request)


def test_a_probe_of_another_version_is_measured_again_for_an_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.prediction.probe.PROBES", tmp_path)
    path = PROBE.identity.probe_path
    path.write_text(json.dumps({**PROBE.to_document(), "schema": 1}))
    requests: list[ProbeRequest] = []

    def probe(request: ProbeRequest) -> tuple[Path, Probe]:
        requests.append(request)
        return path, PROBE

    monkeypatch.setattr(foresight, "probe", probe)
    monkeypatch.setattr(foresight, "run", lambda *_: RunOutcome(run_dir=tmp_path))
    monkeypatch.setattr(foresight, "load_run", run_in)
    monkeypatch.setattr(foresight, "profiled_workloads", lambda _: (WORKLOAD,))
    monkeypatch.setattr(foresight, "identity_of", lambda _: PROBE.identity)
    probing = resolve({"name": "x", **STEPS})
    workload = {"name": WORKLOAD.name, **WORKLOAD.params}
    spec = conditions({"name": "x", "workloads": [workload], "strategies": ["all-reduce"]}, of_run=False)
    request = PredictRequest(
        source=probing, spec=spec, changes=(), probe=None, probing=probing, options=RunOptions()
    )
    assert foresight.predict(request).probe == PROBE
    assert [own.out for own in requests] == [path]
    with pytest.raises(UsageError, match="got a probe of another version; make one by `stratbench probe"):
        foresight.predict(replace(request, source=tmp_path))


@pytest.fixture(scope="module")
def searched_once() -> Callable[..., PlanSearch]:
    """Search that answers an equal question with the same plans."""
    searches: dict[Question, PlanSearch] = {}

    def search_once(workload: ProfiledWorkload, question: Question, *args: Any, **options: Any) -> PlanSearch:
        if question not in searches:
            searches[question] = search(workload, question, *args, **options)
        return searches[question]

    return search_once


@pytest.mark.parametrize("signal", [Interrupted("its folder can be resumed"), KeyboardInterrupt()])
def test_an_interrupted_recommendation_leaves_no_plan(
    profiled: Path,
    monkeypatch: pytest.MonkeyPatch,
    searched_once: Callable[..., PlanSearch],
    signal: BaseException,
) -> None:
    files: list[list[str]] = []

    def interrupted(*_: object) -> RunOutcome:
        files.append(sorted(path.name for path in profiled.iterdir()))
        raise signal

    spec = resolve({"name": "x", **STEPS})
    request = RecommendRequest(
        source=profiled,
        workload=None,
        aim=aim(),
        probe=None,
        probing=spec,
        measuring=spec,
        experiment="x",
        out=None,
        options=RunOptions(),
    )
    monkeypatch.setattr(foresight, "run", interrupted)
    monkeypatch.setattr("harness.prediction.recommendation.search", searched_once)
    with pytest.raises(Interrupted, match=r"^interrupted; no plan was written, repeat the command$"):
        foresight.recommend(request)
    assert [name for names in files for name in names][:1] == ["plan-1.json"], "the best plan mixes builders"
    assert list(profiled.iterdir()) == []
    elsewhere = spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"workers": (64,)})})
    (*_, note) = foresight.recommend(replace(request, measuring=elsewhere)).notes
    assert note == "nothing was measured: the best plan is for 2 workers, fewer than --workers"
    recommendation = foresight.recommend(replace(request, measuring=None))
    assert [path.name for path in profiled.iterdir()] == [recommendation.path.name]
