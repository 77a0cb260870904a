"""Recommendation: the plans that serve a goal best, with reasons, and the verdict of their measured steps."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from harness.atomic_files import json_bytes, write_output
from harness.canonical import JsonValue
from harness.errors import CaseError, UsageError
from harness.experiment.chosen_strategy import merging_rows
from harness.experiment.model import AS_USUAL
from harness.experiment.references import BATCH_SIZE, StrategyRef, WorkloadRef
from harness.prediction.goals import RULES, SLACK, Aim, Goal
from harness.prediction.plan_search import PlanSearch, PredictedPlan, Ranking, SearchLimits, search
from harness.prediction.predictions import Question
from harness.prediction.probe import Probe
from harness.prediction.profiled_workload import USUAL_UPDATES, ProfiledWorkload, suiting
from harness.records.comparison import SEQUENTIAL_CONFIDENCE, RepeatedMean, paired_ratios, repeated_mean
from harness.records.conditions import global_examples
from harness.records.record import Record
from harness.records.stored_run import StoredRun
from harness.written_values import n_of_workers
from strategies.plan import compressors
from strategies.plan.schema import Plan
from strategies.registry import STRATEGIES

RECOMMENDED_PLAN = "recommended.plan.json"
MOST_PLANS = 5
LEAST_GAIN = 0.01
"""Part by which each further builder must make a plan better."""
_LEAST_BYTES = 10_000
"""Bytes per step below which two plans send as much."""
_ALONE: tuple[StrategyRef, ...] = (StrategyRef(name="single"),)
"""Builders for one worker."""
_AS_ALL_REDUCE = "hierarchical-all-reduce"
"""Strategy that is the same as all-reduce with one replica per worker, which predictions are about."""


def builders_of(probe: Probe, *, inexact: bool) -> tuple[StrategyRef, ...]:
    """Strategies that a search begins with.

    Args:
        inexact: True adds the probed compressors, and strategies whose result differs by design.
    """
    classes = ("exact", "bounded", "statistical") if inexact else ("exact",)
    strategies = [
        s for s in STRATEGIES if not s.single and s.strategy_class in classes and s.name != _AS_ALL_REDUCE
    ]
    codecs = [name for name in compressors.BY_NAME if inexact and name in probe.costs.codecs]
    compressing = [s for s in strategies if any(p.name == compressors.COMPRESSOR for p in s.params)]
    return (
        *(StrategyRef(name=strategy.name) for strategy in strategies),
        *(
            StrategyRef(name=strategy.name, params={compressors.COMPRESSOR: codec})
            for codec in codecs
            for strategy in compressing
        ),
    )


def chosen_workload(workloads: Sequence[ProfiledWorkload], title: str | None) -> ProfiledWorkload:
    """The profiled workload of a title, or the only one.

    Raises:
        UsageError: there are several and no title, or not one of that title.
    """
    named = suiting([workload for workload in workloads if title in (None, workload.title)], USUAL_UPDATES)
    if len(named) != 1:
        names = ", ".join(dict.fromkeys(workload.title for workload in workloads))
        got = f"{len(named)} steps" if title is None else f"{title!r} for {len(named)}"
        raise UsageError(f"must name one profiled step of {names}, got {got}", field="workload")
    return named[0]


def numbers_of_workers(aim: Aim) -> tuple[int, ...]:
    """Numbers of workers to search with: for the goal `cheapest` also halves, down to one.

    Strategies that are named are for two workers or more.
    """
    counts = [aim.workers]
    while aim.goal is Goal.CHEAPEST and counts[-1] >= (4 if aim.strategies else 2):
        counts.append(counts[-1] // 2)
    return tuple(counts)


def rankings_of(goal: Goal) -> tuple[Ranking, ...]:
    """Orders in which a search expands its candidates: the fastest first, then by the goal."""
    fastest, own = _ranking(Goal.FASTEST), _ranking(goal)
    return (fastest,) if goal is Goal.FASTEST else (fastest, own)


def _ranking(goal: Goal) -> Ranking:
    def rank(plan: PredictedPlan, fastest: PredictedPlan) -> tuple[float, ...]:
        time_s = plan.seconds_per_example
        simple = 1.0 + LEAST_GAIN * (len(plan.candidate.distinct) - 1)
        if not _serves(goal, plan, fastest):
            return 1.0, simple * time_s
        return 0.0, simple * cost(goal, plan), simple * time_s

    return rank


def _serves(goal: Goal, plan: PredictedPlan, fastest: PredictedPlan) -> bool:
    """True if a plan is fast enough for a goal."""
    return plan.seconds_per_example <= SLACK[goal] * fastest.seconds_per_example


def cost(goal: Goal, plan: PredictedPlan) -> float:
    """Figure that a goal makes small."""
    if goal is Goal.NETWORK:
        return float(plan.prediction.busiest_bytes)
    if goal is Goal.CHEAPEST:
        return plan.prediction.worker_hours_per_million_examples
    return plan.seconds_per_example


def reference_of(plans: Sequence[PredictedPlan], builders: Sequence[StrategyRef]) -> PredictedPlan:
    """The fastest plan of one builder as it was named, at the first number of workers."""
    n_workers = plans[0].n_workers
    named = [
        plan
        for plan in plans
        if plan.n_workers == n_workers
        and not plan.candidate.is_mixed
        and plan.candidate.builders[0] in builders
    ]
    return min(named, key=lambda plan: plan.prediction.step_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Measured steps of a plan.

    Attributes:
        step_s: geometric mean over repeats, with its interval.
        ratio: examples per second ÷ the reference's in the same rounds, with its interval; None without
            such rounds. Intervals are None with fewer than three repeats.
        n_repeats: repeats of the ratio.
    """

    step_s: float
    interval_s: tuple[float, float] | None
    ratio: float | None
    ratio_interval: tuple[float, float] | None
    n_repeats: int

    def to_document(self) -> dict[str, JsonValue]:
        return {
            "step_s": self.step_s,
            "interval": _limits(self.interval_s),
            "ratio": self.ratio,
            "ratio_interval": _limits(self.ratio_interval),
            "n": self.n_repeats,
        }


def _limits(interval: tuple[float, float] | None) -> JsonValue:
    return None if interval is None else {"low": interval[0], "high": interval[1]}


@dataclass(frozen=True, kw_only=True, slots=True)
class RankedPlan:
    """A plan of the recommendation.

    Attributes:
        why: reason for its place, in one line.
        measured: its measured steps, if there are any.
        problem: reason why a plan that was to be measured is not chosen, whatever its figures are.
    """

    predicted: PredictedPlan
    plan: Plan
    why: str
    measured: Measured | None = None
    problem: str | None = None

    @property
    def title(self) -> str:
        return self.predicted.title

    def overlaps(self, best: RankedPlan) -> bool:
        """True if its predicted interval overlaps another plan's."""
        own, other = self.predicted.prediction, best.predicted.prediction
        return own.low_s <= other.high_s and other.low_s <= own.high_s

    def to_document(self) -> dict[str, JsonValue]:
        return {
            "plan": self.title,
            "predicted": self.predicted.prediction.to_document(),
            "measured": None if self.measured is None else self.measured.to_document(),
            "why": self.why,
            "problem": self.problem,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """Answer of `stratbench recommend`.

    Attributes:
        question: conditions with the number of workers that was asked for.
        plans: the best plans, one for each builder of most bytes, and the reference; the best one first.
        chosen: index of the chosen plan: the first one, unless measured steps decide otherwise.
        reference: fastest plan of one builder as it was named, which reasons and ratios refer to.
        n_predictions: plans that were predicted. is_complete: True if the search ended before its limits.
        measured_in: folder of the run that measured plans; None without one.
        path: file of the chosen plan.
        later: command that measures the chosen plan; None if it was measured.
    """

    goal: Goal
    workload: str
    question: Question
    plans: tuple[RankedPlan, ...]
    reference: PredictedPlan
    n_predictions: int
    is_complete: bool
    notes: tuple[str, ...]
    run_dir: Path
    path: Path
    chosen: int = 0
    measured_in: Path | None = None
    later: str | None = None

    @property
    def best(self) -> RankedPlan:
        return self.plans[self.chosen]

    @property
    def contenders(self) -> tuple[int, ...]:
        """Indices of the reference and of plans that the predictions do not distinguish from the first one.

        All are for as many workers as the first one.
        """
        best = self.plans[0]
        return tuple(
            n
            for n, plan in enumerate(self.plans)
            if plan.predicted.n_workers == best.predicted.n_workers
            if plan.overlaps(best) or plan.predicted is self.reference
        )

    @property
    def verdict(self) -> str:
        best, measured = self.best, self.best.measured
        if self.measured_in is None:
            return f"{best.title}: predicted {RULES[self.goal]}"
        if measured is None:
            return f"{best.title}: predicted {RULES[self.goal]}; no plan could be measured"
        if best.predicted is self.reference:
            return f"{best.title}: measured {measured.step_s * 1e3:.3g} ms per step; {self._reference_wins}"
        if measured.ratio is None:
            figures = f"{measured.step_s * 1e3:.3g} ms per step, not in the same rounds as"
            return f"{best.title}: measured {figures} {self.reference.title}"
        figures = f"{measured.ratio:.3g}× the examples per second of {self.reference.title}"
        if measured.ratio_interval is not None:
            low, high = measured.ratio_interval
            figures += f" ({low:.3g} to {high:.3g}, n = {measured.n_repeats})"
            if low <= 1.0 <= high:
                figures += ", which is no significant difference"
        return f"{best.title}: measured {figures}"

    @property
    def _reference_wins(self) -> str:
        if self.goal is Goal.NETWORK:
            return "no other plan that is nearly as fast sends less"
        return "no other plan is significantly faster"

    def measured(
        self, cases: Mapping[int, str], reference_case: str, records: Sequence[Record], run_dir: Path
    ) -> Recommendation:
        """The recommendation after the contenders were measured.

        Args:
            cases: index of a measured plan → its case.
            reference_case: case of the reference. run_dir: folder of the run.
        Raises:
            CaseError: every plan failed, or is not equivalent.
        """
        of_case: dict[str, list[Record]] = {}
        for record in records:
            of_case.setdefault(record.case, []).append(record)
        reference = of_case.get(reference_case, [])
        plans = tuple(
            _with_measurement(plan, of_case.get(cases[n], []), reference) if n in cases else plan
            for n, plan in enumerate(self.plans)
        )
        records_of = {n: _usable(of_case[case]) for n, case in cases.items() if plans[n].measured}
        chosen = _choice(self.goal, plans, records_of)
        return replace(self, plans=plans, chosen=chosen, measured_in=run_dir, later=None)

    def to_document(self) -> dict[str, JsonValue]:
        return {
            "workload": self.workload,
            "workers": self.question.workers,
            "link_mbit": self.question.link_mbit,
            "goal": self.goal.value,
            "plans": [plan.to_document() for plan in self.plans],
            "chosen": self.best.title,
            "verdict": self.verdict,
            "reference": self.reference.title,
            "predictions": self.n_predictions,
            "complete": self.is_complete,
            "run_dir": str(self.run_dir),
            "measured_in": None if self.measured_in is None else str(self.measured_in),
            "measure_later": self.later,
            "notes": list(self.notes),
        }

    def write(self) -> None:
        """Write the chosen plan, for `run --plan`."""
        write_plan(self.path, self.best.plan, recommendation=self.to_document())


@contextmanager
def plan_references(recommendation: Recommendation) -> Iterator[dict[int, StrategyRef]]:
    """References with which a run takes the contenders: builders, and files of plans of several builders.

    The files are in the folder of the run with the profile; an error removes them.

    Yields:
        Index of a plan → its reference.
    """
    references: dict[int, StrategyRef] = {}
    files: list[Path] = []
    try:
        for n in recommendation.contenders:
            contender = recommendation.plans[n]
            references[n] = contender.predicted.candidate.builders[0]
            if contender.predicted.candidate.is_mixed:
                files.append(recommendation.run_dir / f"plan-{n + 1}.json")
                write_plan(files[-1], contender.plan)
                references[n] = StrategyRef(name=str(files[-1]))
        yield references
    except BaseException:
        for path in files:
            path.unlink(missing_ok=True)
        raise


def write_plan(path: Path, plan: Plan, **more: JsonValue) -> None:
    """Write a plan file, with further keys."""
    write_output(path, json_bytes({**plan.model_dump(mode="json"), **more}))


def recommended(
    aim: Aim,
    workload: ProfiledWorkload,
    probe: Probe,
    run: StoredRun,
    *,
    experiment: str,
    out: Path | None = None,
) -> Recommendation:
    """Recommend plans by predictions alone.

    Args:
        run: run with the profile. experiment: experiment with which the plan can be measured later.
        out: file for the plan; None for one in the folder of the run.
    Raises:
        UsageError: no strategy can be predicted.
    """
    goal = aim.goal
    builders = aim.strategies or builders_of(probe, inexact=aim.inexact)
    alone = _ALONE
    if workload.updates.merges_rows:
        builders, alone = (tuple(map(merging_rows, own)) for own in (builders, alone))
    questions = [
        Question(
            workers=n_workers,
            batch_size=global_examples(workload.batch_size, workload.batch_rule, n_workers),
            batch_rule=workload.batch_rule,
            link_mbit=aim.link_mbit,
        )
        for n_workers in numbers_of_workers(aim)
    ]
    searches: dict[int, PlanSearch] = {}
    notes: list[str] = []
    for question in questions:
        try:
            searches[question.workers] = search(
                workload,
                question,
                probe,
                builders if question.workers > 1 else alone,
                rankings_of(goal),
                limits=SearchLimits(seconds=aim.seconds / len(questions)),
                seed=aim.seed,
            )
        except UsageError as error:
            if question.workers == aim.workers:
                raise
            notes.append(f"no plan for {n_of_workers(question.workers)}: {error.message}")
    predicted = [plan for own in searches.values() for plan in own.plans]
    reference = reference_of(predicted, builders)
    plans = tuple(
        RankedPlan(
            predicted=plan,
            plan=searches[plan.n_workers].plan_of(plan.candidate),
            why=_why(plan, reference),
        )
        for plan in best_plans(goal, predicted, reference)
    )
    path = out or run.path / RECOMMENDED_PLAN
    return Recommendation(
        goal=goal,
        workload=workload.title,
        question=questions[0],
        plans=plans,
        reference=reference,
        n_predictions=len(predicted),
        is_complete=all(own.is_complete for own in searches.values()),
        notes=(*_notes(searches[aim.workers].refused, named=aim.strategies), *notes),
        run_dir=run.path,
        path=path,
        later=_run_command(experiment, workload, plans[0].predicted.n_workers, path),
    )


def _run_command(experiment: str, workload: ProfiledWorkload, n_workers: int, path: Path) -> str:
    """The command that runs a plan with the batch and the computation that were predicted."""
    reference = WorkloadRef(
        reference=workload.name, params={**workload.params, BATCH_SIZE: workload.batch_size}
    )
    computation = workload.computation
    settings = [
        *[f"measure.batch={workload.batch_rule}"] * (workload.batch_rule != "global"),
        *[f"measure.precision={computation.precision}"] * (computation.precision != AS_USUAL.precision),
        *["measure.xla=true"] * computation.xla,
        *["measure.tf32=false"] * (computation.tf32 is False),
        *["measure.merge_rows=true"] * workload.updates.merges_rows,
    ]
    return shlex.join(
        [
            *("stratbench", "run", experiment, "--workloads", str(reference), "--workers", str(n_workers)),
            *(word for setting in settings for word in ("--set", setting)),
            *("--plan", str(path)),
        ]
    )


def _notes(refused: Mapping[StrategyRef, UsageError], named: Collection[StrategyRef]) -> Iterator[str]:
    """Notes on builders that are no candidates, with the reasons for those that the user named."""
    if named:
        for builder, error in refused.items():
            yield f"no candidate: {builder}: {error.message}"
    elif refused:
        names = ", ".join(dict.fromkeys(builder.name for builder in refused))
        yield (
            f"no candidates: {names}, because their steps are not predicted or have too many tunable values; "
            "`stratbench run` measures them"
        )


def best_plans(
    goal: Goal, plans: Sequence[PredictedPlan], reference: PredictedPlan
) -> tuple[PredictedPlan, ...]:
    """The best plans for a goal, one for each builder of most bytes, the best first, and the reference.

    Args:
        plans: predicted plans, at least one.
    """
    fastest = min(plans, key=lambda plan: plan.seconds_per_example)
    rank = _ranking(goal)
    by_builder: dict[str, PredictedPlan] = {}
    figures: set[tuple[float, int]] = set()
    for plan in sorted(plans, key=lambda plan: rank(plan, fastest)):
        name, own = plan.prediction.strategy.name, (plan.prediction.step_s, plan.prediction.payload_bytes)
        if _serves(goal, plan, fastest) and name not in by_builder and own not in figures:
            by_builder[name] = plan
            figures.add(own)
    best = list(by_builder.values())
    return tuple(
        best[:MOST_PLANS] if reference in best[:MOST_PLANS] else [*best[: MOST_PLANS - 1], reference]
    )


def _why(plan: PredictedPlan, reference: PredictedPlan) -> str:
    limit = f"limited by {plan.prediction.limited_by}"
    if plan is reference:
        return f"{limit}; the fastest builder with its defaults"
    pace = reference.seconds_per_example / plan.seconds_per_example
    more_bytes = plan.prediction.payload_bytes - reference.prediction.payload_bytes
    size = f"{abs(more_bytes) / 1e6:,.2f} MB {'more' if more_bytes > 0 else 'less'} than"
    is_alike = abs(more_bytes) < _LEAST_BYTES
    return (
        f"{limit}; sends {'as much as' if is_alike else size} {reference.title}; "
        f"{pace:.2f}× its examples per second"
    )


def _with_measurement(plan: RankedPlan, records: Sequence[Record], reference: Sequence[Record]) -> RankedPlan:
    problem = next((reason for record in records if (reason := _problem(record)) is not None), None)
    usable = _usable(records)
    if problem is not None or not usable:
        return replace(plan, problem=problem or "no repeat was measured")
    ratios = paired_ratios(usable, _usable(reference))
    step_s = repeated_mean([math.log(record.median_step_s or math.inf) for record in usable])
    measured = Measured(
        step_s=math.exp(step_s.value),
        interval_s=_interval(step_s),
        ratio=math.exp(ratios.mean().value) if ratios.logs else None,
        ratio_interval=_interval(ratios.mean()) if ratios.logs else None,
        n_repeats=len(ratios.logs),
    )
    return replace(plan, measured=measured)


def _problem(record: Record) -> str | None:
    if record.equivalence is not None and record.equivalence.wrong:
        return f"not equivalent: {record.equivalence.reason}"
    if record.error is not None:
        return record.error.message
    return None if record.status == "ok" else record.plausibility or record.status


def _usable(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.status == "ok" and record.median_examples_per_s]


def _interval(mean: RepeatedMean) -> tuple[float, float] | None:
    """Interval of the exponential of a mean of logarithms."""
    half = mean.half_width(SEQUENTIAL_CONFIDENCE)
    return None if half is None else (math.exp(mean.value - half), math.exp(mean.value + half))


def _choice(goal: Goal, plans: Sequence[RankedPlan], records_of: Mapping[int, Sequence[Record]]) -> int:
    """Index of the plan that measured steps choose; the first prediction stays unless one is faster.

    Args:
        records_of: index of a plan that may be chosen → its usable records.
    Raises:
        CaseError: every plan has a problem.
    """
    if not records_of:
        usable = next((n for n, plan in enumerate(plans) if plan.problem is None), None)
        if usable is None:
            raise CaseError(
                "no-plan",
                f"No plan can be recommended. {plans[0].title}: {plans[0].problem}. Remove the cause, or "
                "choose other --strategies.",
                stage="plan",
            )
        return usable
    first = min(records_of)
    to_first = {n: paired_ratios(own, records_of[first]) for n, own in records_of.items()}
    means = {n: own.mean() for n, own in to_first.items() if own.logs}
    ratios = {n: math.exp(mean.value) for n, mean in means.items()}
    if goal is Goal.NETWORK:
        near = [n for n, ratio in ratios.items() if ratio * SLACK[goal] >= max(ratios.values())]
        least = min(cost(goal, plans[n].predicted) for n in near)
        return next(n for n in near if cost(goal, plans[n].predicted) <= least * (1.0 + LEAST_GAIN))
    intervals = {n: _interval(mean) for n, mean in means.items()}
    faster = [n for n, interval in intervals.items() if interval is not None and interval[0] > 1.0]
    return max(faster, key=lambda n: ratios[n], default=first)
