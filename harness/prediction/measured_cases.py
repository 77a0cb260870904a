"""Predictions of the cases that a run measured, from its own profiles, beside its measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.errors import UsageError
from harness.experiment.cases import CONTROL
from harness.experiment.load import laid_over
from harness.prediction.conditions import probe_command
from harness.prediction.observations import (
    batch_rule_of,
    burst_of,
    has_unknown_wait,
    is_usable,
    n_shared_of,
    profiled_case,
    profiled_workloads,
    strategy_of,
)
from harness.prediction.predictions import Prediction, Question, planned_for, predict_planned
from harness.prediction.probe import Identity, Probe, machine_of, probe_command_for, read_probe
from harness.records.record import Record
from harness.records.stored_run import StoredRun


def measured_case_predictions(run: StoredRun) -> tuple[Mapping[str, Prediction], Sequence[str]]:
    """Predict each measured case with exchanges that has no stored prediction.

    Returns:
        Case → prediction, without cases that cannot be predicted; and a reason for each kind of machine
        that has no profile or no probe, or whose probe lacks a transport or a compressor.
    """
    by_machine: dict[Identity, list[Record]] = {}
    for record in run.records:
        by_machine.setdefault(machine_of(record), []).append(record)
    predictions: dict[str, Prediction] = {}
    reasons: list[str] = []
    for machine, records in by_machine.items():
        cases = {r.case: r for r in records if is_predicted(r) and r.case not in run.predictions}
        if cases:
            try:
                probe = _probe(run, machine)
                own, lacking = _predict(replace(run, records=tuple(records)), cases, probe)
                predictions |= own
                if lacking:
                    lacks = f"{machine.probe_path} has no costs of {', '.join(lacking)}"
                    ways = f"`{probe_command_for(lacking)}` and `stratbench predict {run.path} --probe FILE`"
                    reasons.append(f"{lacks}; predict such cases by {ways}")
            except UsageError as error:
                reasons.append(str(error))
    return predictions, reasons


def is_predicted(record: Record) -> bool:
    """True for a usable case of several workers that exchange something, one replica each, equal links."""
    links = () if record.link is None else record.link.workers or ()
    return (
        is_usable(record)
        and record.strategy != CONTROL
        and record.workers > 1
        and record.replicas == 1
        and len({link.requested_mbit for link in links}) <= 1
        and not has_unknown_wait(record)
    )


def question_of(record: Record) -> Question:
    """Conditions of a measured case."""
    assert record.batch_size is not None
    return Question(
        workers=record.workers,
        batch_size=record.batch_size,
        batch_rule=batch_rule_of(record),
        link_mbit=None if record.link is None else record.link.requested_mbit,
        link_burst_bytes=burst_of(record),
        n_shared=n_shared_of(record),
    )


def _probe(run: StoredRun, machine: Identity) -> Probe:
    values = {"provider": machine.provider, "device": machine.device, "cores_per_worker": int(machine.cores)}
    overrides = {f"cluster.{key}": value for key, value in values.items()}
    way_out = f"make one by `{probe_command(laid_over(run.experiment, overrides=overrides, runs=False))}`"
    if machine.probe_path.exists():
        return read_probe(machine.probe_path, way_out)
    raise UsageError(
        f"must be in {machine.probe_path.parent} for {machine.provider} workers with {machine.device} and "
        f"cores_per_worker={machine.cores:g}, got none; {way_out}",
        field="probe",
    )


def _predict(
    run: StoredRun, cases: Mapping[str, Record], probe: Probe
) -> tuple[Mapping[str, Prediction], Sequence[str]]:
    """Case → prediction, and the transports and compressors of others that the probe lacks."""
    workloads = profiled_workloads(run)
    predictions: dict[str, Prediction] = {}
    lacking: set[str] = set()
    for case, record in cases.items():
        profiled = profiled_case(run, record, workloads)
        if profiled is None:
            continue
        workload, chosen = profiled
        question = question_of(record)
        try:
            planned = planned_for(workload, chosen, question, probe)
        except UsageError:
            continue  # `predict` states the reason
        missing = probe.missing(planned.flows)
        lacking.update(missing)
        if not missing:
            predictions[case] = predict_planned(workload, strategy_of(record), planned, question, probe)
    return predictions, sorted(lacking)
