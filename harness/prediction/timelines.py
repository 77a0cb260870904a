"""Simulated steps as spans of time, for a chart beside the traced step of the same case."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.errors import UsageError
from harness.experiment.cases import CONTROL
from harness.experiment.chosen_strategy import Chosen, choose
from harness.experiment.references import StrategyRef
from harness.prediction.measured_cases import is_predicted, question_of
from harness.prediction.observations import profiled_case, strategy_of
from harness.prediction.predictions import Prediction, Question, planned_for, simulated
from harness.prediction.probe import Probe
from harness.prediction.profiled_workload import ProfiledWorkload, suiting, updates_of
from harness.prediction.step_activities import COMPUTING, core, executor_lane, link_in, link_out
from harness.prediction.step_model import SimulatedStep
from harness.records.predictions import PredictedSpan, PredictedTimeline
from harness.records.stored_run import StoredRun

_SHORTEST = 1e-3
"""Part of a step below which a span cannot be seen in a chart."""
_MOST_TASKS = 4
_MOST = 12
"""Most steps of a workload."""


def timelines(
    run: StoredRun,
    workloads: Sequence[ProfiledWorkload],
    predictions: Sequence[Prediction],
    probe: Probe,
) -> Iterator[PredictedTimeline]:
    """Simulate the measured cases of predicted strategies; without any, the fastest of the fewest workers."""
    names = {p.strategy.name for p in predictions}
    measured = {r.case: r for r in run.records if is_predicted(r) and r.strategy in names}
    profiled = {case: profiled_case(run, record, workloads) for case, record in measured.items()}
    for title in dict.fromkeys(workload.title for workload in workloads):
        n_shown = 0
        for case, known in profiled.items():
            if known is None or known[0].title != title or n_shown == _MOST:
                continue
            try:
                yield _timeline(*known, strategy_of(measured[case]), question_of(measured[case]), probe, case)
            except UsageError:
                continue  # `predict` states the reason
            n_shown += 1
        others = [p for p in predictions if p.workload == title and p.strategy.name != CONTROL]
        if not n_shown and others:
            best = min(others, key=lambda p: (p.question.workers, p.step_s))
            chosen = choose(best.strategy)
            own = [workload for workload in workloads if workload.title == title]
            (workload,) = suiting(own, updates_of(chosen), best.question.requested_batch)
            yield _timeline(workload, chosen, best.strategy, best.question, probe, None)


def _timeline(
    workload: ProfiledWorkload,
    chosen: Chosen,
    strategy: StrategyRef,
    question: Question,
    probe: Probe,
    case: str | None,
) -> PredictedTimeline:
    planned = planned_for(workload, chosen, question, probe)
    step = simulated(planned, question, probe)
    return PredictedTimeline(
        workload=workload.title,
        strategy=str(strategy),
        workers=question.workers,
        link_mbit=question.link_mbit,
        case=case,
        spans=tuple(_spans(step)),
    )


def _spans(step: SimulatedStep) -> Iterator[PredictedSpan]:
    timeline = step.timeline
    class_of = {resource(number): number for number in step.members for resource in (core, link_out, link_in)}
    executors = {executor_lane(number) for number in step.members}
    for name, (start_s, end_s) in timeline.spans.items():
        activity = timeline.activities[name]
        if end_s - start_s < _SHORTEST * timeline.end_s:
            continue
        in_lane = activity.lane in executors
        is_computing = name.partition(" ")[0] in COMPUTING
        # Latencies use no resource, and belong to no task; a shared core belongs to several.
        for number in sorted({class_of[resource] for resource in activity.needs if resource in class_of}):
            yield PredictedSpan(
                tasks=_tasks(step.members[number]),
                kind="computing" if is_computing else "exchange" if in_lane else "transfer",
                name=name,
                start_s=start_s,
                end_s=end_s,
            )


def _tasks(tasks: Sequence[int]) -> str:
    """Tasks of a class in words."""
    if len(tasks) == 1:
        return f"worker {tasks[0]}"
    if list(tasks) == list(range(tasks[0], tasks[-1] + 1)):
        return f"workers {tasks[0]}\N{EN DASH}{tasks[-1]}"
    first = ", ".join(map(str, tasks[:_MOST_TASKS]))
    return f"workers {first}{', …' if len(tasks) > _MOST_TASKS else ''}"
