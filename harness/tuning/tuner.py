"""Tuner: measures candidates beside the default, rung after rung, and decides which plan to take."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import UNSUPPORTED, CaseError, UsageError
from harness.experiment.cases import Case, expand
from harness.experiment.chosen_strategy import choose
from harness.experiment.model import Experiment
from harness.experiment.references import StrategyRef
from harness.experiment.schedule import Slot
from harness.provision.failures import USER_ERROR
from harness.records.comparison import paired_ratios, repeated_mean
from harness.records.record import Record
from harness.records.run_folder import RunFolder
from harness.run.further_repeats import PlanOf, SiteSoFar
from harness.tuning.successive_halving import LEAST_CONFIRMING, Rung, is_faster, next_rung
from harness.tuning.tuned import TUNED_PLAN, Outcome, Tried, Tuned
from strategies.errors import StrategyError
from strategies.plan.schema import Plan
from strategies.registry import alternatives


@dataclass(slots=True, kw_only=True)
class Tuner:
    """The repeats that follow the default's first one.

    Attributes:
        cases: the default's and all candidates', in this order.
        at_most_s: seconds for all of it.
    """

    spec: Experiment
    cases: Sequence[Case]
    at_most_s: float
    _plans: dict[str, Plan] = field(default_factory=dict)
    _refused: dict[str, str] = field(default_factory=dict)
    _rungs: list[Rung] = field(default_factory=list)

    @property
    def default(self) -> Case:
        return self.cases[0]

    @property
    def asked(self) -> Sequence[Slot]:
        return (Slot(order=0, block=0, repeat=0, case=self.default),)

    @property
    def candidates(self) -> Sequence[str]:
        """Ids of cases whose plans differ from the default's and from each other's; none before these are."""
        return [name for name in self._plans if name != self.default.id]

    def is_measured(self, records: Sequence[Record]) -> bool:
        """Whether there is a default to measure others beside."""
        usable = _usable(self.default, records)
        return bool(usable) and not any(_is_wrong(record) for record in usable)

    def slots(self, site: SiteSoFar) -> Sequence[Slot]:
        """The repeats of the next rung; all cases are of one site."""
        records, left_s = site.records, site.left_s
        if site.plan_of is None or not self.is_measured(records):
            return ()
        if not self._plans:
            started_s = time.monotonic()
            self._distinguish(site.plan_of)
            left_s -= time.monotonic() - started_s
        walls_s = [record.wall_s for record in records if record.wall_s and record.status == "ok"]
        repeat_s = math.fsum(walls_s) / max(1, len(walls_s))
        rung = next_rung(
            self.candidates,
            seed=self.spec.measure.seed,
            made=self._rungs,
            logs=self._logs(records),
            n_affordable=max(0, int(left_s / repeat_s)) if repeat_s else 0,
        )
        if rung is None:
            return ()
        repeat = _next_repeat(self._rungs)
        self._rungs.append(rung)
        names = {self.default.id, *rung.names}
        together = [case for case in self.cases if case.id in names]
        return [
            Slot(
                order=site.first + number * len(together) + place,
                block=site.first + number * len(together),
                repeat=repeat + number,
                case=case,
            )
            for number in range(rung.n_repeats)
            for place, case in enumerate(together)
        ]

    @property
    def has_plans(self) -> bool:
        return bool(self._plans)

    def has_tried(self, records: Sequence[Record]) -> bool:
        candidates = self.candidates
        return not candidates or any(record.case in candidates for record in records)

    def tuned(self, folder: RunFolder, out: Path | None, *, is_interrupted: bool = False) -> Tuned:
        """The plan to take by what is recorded: the default's unless a candidate is faster.

        Args:
            out: of the plan's file; None for one in the run folder.
        """
        tried = self.tried(folder.records)
        chosen = [each.strategy for each in tried if each.outcome is Outcome.CHOSEN]
        case = next((case for case in self.cases if case.strategy in chosen), self.default)
        return Tuned(
            plan=self._plans[case.id],
            case=case,
            default=self.default.strategy,
            tried=tried,
            seconds=self.at_most_s,
            seed=self.spec.measure.seed,
            run_dir=folder.path,
            path=folder.path / TUNED_PLAN if out is None else out,
            is_interrupted=is_interrupted,
        )

    def tried(self, records: Sequence[Record]) -> Sequence[Tried]:
        names = [name for name in (*self._plans, *self._refused) if name != self.default.id]
        tried = [self._tried(case, records) for case in self.cases if case.id in names]
        return sorted(tried, key=lambda each: (list(Outcome).index(each.outcome), -(each.ratio or 0.0)))

    def _tried(self, case: Case, records: Sequence[Record]) -> Tried:
        why = self._refused.get(case.id) or failure(case, records)
        if why is not None:
            return Tried(strategy=case.strategy, outcome=Outcome.FAILED, why=why)
        # The repeats by which the last one was selected would flatter it.
        confirming = self._ratios(case, records, since=self._confirms_since(case))
        is_decided = len(confirming) >= LEAST_CONFIRMING
        logs = confirming if is_decided else self._ratios(case, records)
        if not logs:
            return Tried(strategy=case.strategy, outcome=Outcome.NOT_TRIED)
        outcome = Outcome.CHOSEN if is_faster(confirming) else Outcome.NOT_FASTER
        mean = repeated_mean(logs)
        half = mean.half_width()
        interval = None if half is None else (math.exp(mean.value - half), math.exp(mean.value + half))
        return Tried(
            strategy=case.strategy,
            outcome=outcome if is_decided else Outcome.DROPPED,
            ratio=math.exp(mean.value),
            interval=interval,
            n_repeats=len(logs),
        )

    def _confirms_since(self, case: Case) -> float:
        """Number of the first repeat that confirms a case; infinite of one that never came so far."""
        is_last = bool(self._rungs) and self._rungs[-1].confirms and case.id in self._rungs[-1].names
        return _next_repeat(self._rungs[:-1]) if is_last else math.inf

    def _logs(self, records: Sequence[Record]) -> Mapping[str, Sequence[float]]:
        usable = [c for c in self.cases[1:] if c.id in self._plans and failure(c, records) is None]
        return {case.id: self._ratios(case, records) for case in usable}

    def _ratios(self, case: Case, records: Sequence[Record], *, since: float = 0) -> Sequence[float]:
        late = [record for record in records if record.repeat >= since]
        return paired_ratios(_usable(case, late), _usable(self.default, late)).logs

    def _distinguish(self, plan_of: PlanOf) -> None:
        """Plan every case; keep one of those that come to the same."""
        keys: set[str] = set()
        for case in self.cases:
            try:
                plan = plan_of(case)
            except CaseError as error:
                # What cannot run here is no candidate.
                if error.kind != UNSUPPORTED:
                    self._refused[case.id] = error.message
                continue
            key = _key(plan)
            if key not in keys:
                keys.add(key)
                self._plans[case.id] = plan


def _next_repeat(made: Sequence[Rung]) -> int:
    return 1 + sum(rung.n_repeats for rung in made)


def _key(plan: Plan) -> str:
    descriptive = {"strategy_params", "notes", "warnings"}
    return f"{plan.execution}{plan.model_dump_json(exclude=descriptive)}"


def _usable(case: Case, records: Sequence[Record]) -> Sequence[Record]:
    return [record for record in records if record.case == case.id and record.status == "ok"]


def _is_wrong(record: Record) -> bool:
    return record.equivalence is not None and record.equivalence.wrong


def failure(case: Case, records: Sequence[Record]) -> str | None:
    """Why a case is out: it failed, nobody should believe its figures, or it computes something else."""
    for record in records:
        if record.case == case.id:
            if record.equivalence is not None and _is_wrong(record):
                return f"not equivalent: {record.equivalence.reason}"
            if record.error is not None:
                return record.error.message
            if record.status != "ok":
                return record.plausibility or record.status
    return None


def tuner_of(spec: Experiment, *, seconds: float) -> Tuner:
    """What tunes the one strategy of an experiment.

    Args:
        seconds: for all of it.
    Raises:
        UsageError: it has no knob to tune, the experiment has several cases, or time is too short for any
            candidate.
    """
    (asked,) = spec.strategies
    if len(expand(spec)) > 1:
        raise UsageError(
            f"must be one workload on one shape in one computation, got {len(expand(spec))} cases of "
            f"{asked}; give no lists",
            field="set",
        )
    if spec.measure.repeats != 1 or spec.measure.until is not None:
        raise UsageError(
            f"must leave the number of repeats to the tuning, got measure.repeats {spec.measure.repeats} and "
            f"measure.until {'unset' if spec.measure.until is None else 'set'}; leave both out",
            field="set",
        )
    _require_time(spec, seconds)
    spec = spec.with_strategies(asked, *_alternatives(asked), baseline=asked)
    return Tuner(spec=spec, cases=expand(spec), at_most_s=seconds)


def require_measured(tuner: Tuner, records: Sequence[Record]) -> None:
    """Look whether the default was measured, and there was time for a candidate.

    Raises:
        UsageError: time was too short, or the default cannot be used. CaseError: it failed, or computes
            something else than it should.
    """
    asked = tuner.default.strategy
    of_default = [record for record in records if record.case == tuner.default.id]
    if not tuner.is_measured(records):
        error = of_default[0].error
        if error is None:
            raise CaseError(
                "not-measured",
                f"{asked} must be equivalent and plausible before it is tuned, got "
                f"{failure(tuner.default, records)}; see `stratbench verify {tuner.default.workload} "
                f"--strategy {asked}`",
                stage="run",
            )
        if error.type in (USER_ERROR, UNSUPPORTED):
            raise UsageError(error.message)
        raise CaseError(error.type, error.message, stage=error.stage)
    if not tuner.has_tried(records):
        took_s = sum(record.wall_s or 0.0 for record in of_default)
        raise UsageError(
            f"must hold a repeat of the default and of a candidate, about {took_s:.0f} s each once all is "
            f"captured, got {tuner.at_most_s:g}; give it more",
            field="seconds",
        )


def _alternatives(asked: StrategyRef) -> tuple[StrategyRef, ...]:
    chosen = choose(asked, field="strategy")
    try:
        others = () if chosen.edited is not None else alternatives(chosen.strategy, asked.params)
    except StrategyError as error:
        raise UsageError(str(error), field="strategy") from None
    if not others:
        raise UsageError(
            f"must have a tunable knob that is free to change, got {asked}; `stratbench list strategies "
            "--json` shows which are tunable",
            field="strategy",
        )
    return tuple(StrategyRef(name=asked.name, params=params) for params in others)


def _require_time(spec: Experiment, seconds: float) -> None:
    """Refuse less time than the windows take of the default and of one candidate beside it."""
    measure = spec.measure
    least_n = 1 + LEAST_CONFIRMING  # one to select a candidate by
    least_s = (1 + 2 * least_n) * measure.n_rounds * measure.window_s
    if seconds < least_s:
        raise UsageError(
            f"must hold {least_n} repeats of the default and of a candidate, whose windows take "
            f"{least_s:g} s, got {seconds:g}; give it more",
            field="seconds",
        )
