"""Stages of `probe`, `predict` and `recommend`; each command first runs what it must measure."""

from dataclasses import replace
from pathlib import Path

from harness.errors import Interrupted, UsageError
from harness.experiment.cases import expand
from harness.experiment.model import Experiment
from harness.pipeline import run
from harness.prediction.conditions import probe_command
from harness.prediction.observations import profiled_workloads
from harness.prediction.predictions import Predicted, predict_cases
from harness.prediction.probe import Identity, Probe, identity_of, probe_of, read_probe
from harness.prediction.recommendation import (
    Recommendation,
    chosen_workload,
    plan_references,
    recommended,
)
from harness.prediction.run_speed import speed_of
from harness.prediction.timelines import timelines
from harness.records.stored_run import StoredRun, load_run
from harness.requests import PredictRequest, ProbeRequest, RecommendRequest, RunOptions
from harness.run.progress import StatusLine
from harness.written_values import n_of_workers


def probe(request: ProbeRequest) -> tuple[Path, Probe]:
    """Measure and fit the costs of exchanges; see `stratbench probe`.

    Returns:
        Path of the stored probe, and the probe.
    Raises:
        UsageError: its steps could not be measured.
    """
    outcome = run(request.spec, request.options)
    assert outcome.run_dir is not None
    stored = probe_of(load_run(outcome.run_dir))
    path = request.out or stored.identity.probe_path
    path.parent.mkdir(parents=True, exist_ok=True)
    stored.write(path)
    return path, stored


def predict(request: PredictRequest) -> Predicted:
    """Predict steps at other numbers of workers and links; see `stratbench predict`.

    Raises:
        UsageError: there is no profile or no probe, or no strategy can be predicted.
    """
    stored = _profiling_run(request)
    workloads = profiled_workloads(stored)
    path, stored_probe = _probe_for(identity_of(stored), request)
    speed = speed_of(stored, workloads, stored_probe)
    adjusted_probe = speed.of(stored_probe)
    predictions, notes = predict_cases(workloads, request.spec, adjusted_probe)
    spans = tuple(timelines(stored, workloads, predictions, adjusted_probe)) if request.with_timelines else ()
    return Predicted(
        predictions=predictions,
        probe=stored_probe,
        slowdown=speed.slowdown,
        probe_path=path,
        run_dir=stored.path,
        changes=request.changes,
        notes=(*request.notes, *notes, *filter(None, [speed.note(stored)])),
        timelines=spans,
    )


def recommend(request: RecommendRequest) -> Recommendation:
    """Recommend a plan, and measure those that predictions do not distinguish; see `stratbench recommend`.

    Raises:
        UsageError: there is no profile or no probe, or no strategy can be predicted.
        Interrupted: a signal arrived; no plan was written.
    """
    try:
        stored = _profiling_run(request)
        workloads = profiled_workloads(stored)
        workload = chosen_workload(workloads, request.workload)
        _, stored_probe = _probe_for(identity_of(stored), request)
        speed = speed_of(stored, workloads, stored_probe)
        adjusted_probe = speed.of(stored_probe)
        with StatusLine(live=request.options.live).doing("searching for plans"):
            recommendation = recommended(
                request.aim,
                workload,
                adjusted_probe,
                stored,
                experiment=request.experiment,
                out=request.out,
            )
        notes = (*recommendation.notes, *filter(None, [speed.note(stored)]))
        recommendation = replace(recommendation, notes=notes)
        if request.measuring is not None:
            recommendation = _with_measurements(recommendation, request.measuring, request.options)
        recommendation.write()
    except (Interrupted, KeyboardInterrupt):
        raise Interrupted("interrupted; no plan was written, repeat the command") from None
    return recommendation


def _with_measurements(
    recommendation: Recommendation, spec: Experiment, options: RunOptions
) -> Recommendation:
    """Measure the plans that predictions do not distinguish from the best, beside the reference."""
    n_workers = recommendation.plans[0].predicted.n_workers
    if n_workers not in spec.cluster.workers:
        note = f"nothing was measured: the best plan is for {n_of_workers(n_workers)}, fewer than --workers"
        return replace(recommendation, notes=(*recommendation.notes, note))
    reference = recommendation.reference.candidate.builders[0]
    with plan_references(recommendation) as references:
        spec = spec.with_strategies(reference, *references.values(), baseline=reference)
        outcome = run(spec, replace(options, out=None))
        assert outcome.run_dir is not None
        case_of = {case.strategy: case.id for case in expand(spec)}
        return recommendation.measured(
            {n: case_of[strategy] for n, strategy in references.items()},
            case_of[reference],
            load_run(outcome.run_dir).records,
            outcome.run_dir,
        )


def _profiling_run(request: PredictRequest | RecommendRequest) -> StoredRun:
    """Run with the profiles of workloads, made now from an experiment.

    Raises:
        UsageError: the request names a probe that cannot be read.
    """
    if request.probe is not None:
        read_probe(request.probe, _way_out(request))  # before minutes of profiling
    if isinstance(request.source, Path):
        return load_run(request.source)
    outcome = run(request.source, request.options)
    assert outcome.run_dir is not None
    return load_run(outcome.run_dir)


def _way_out(request: PredictRequest | RecommendRequest) -> str:
    return f"make one by `{probe_command(request.probing)}`"


def _probe_for(identity: Identity, request: PredictRequest | RecommendRequest) -> tuple[Path, Probe]:
    """Stored probe of a machine; for an experiment, measured now if it cannot be read.

    Raises:
        UsageError: it is another machine's, or there is none.
    """
    path = request.probe or identity.probe_path
    try:
        costs = read_probe(path, _way_out(request))
    except UsageError:
        if request.probe is not None or isinstance(request.source, Path):
            raise
        options = replace(request.options, out=None)
        _, costs = probe(ProbeRequest(spec=request.probing, out=path, options=options))
    others = identity.differences(costs.identity)
    if others:
        raise UsageError(
            f"{path} must be of the machine that the run was made on, got {', '.join(others)}; "
            f"{_way_out(request)} on that machine",
            field="probe",
        )
    return path, costs
