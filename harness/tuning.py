"""Tuning of a strategy by successive halving: candidates are measured beside the default.

In the first rung of a bracket, each candidate has one repeat beside the default. The faster half goes on,
and each rung doubles the number of its candidates' repeats. If none is faster than the default, candidates
that time did not allow before form another bracket. The best of many candidates is partly lucky. So the last
one is measured again, in as many repeats as time allows, and these alone decide, once all have ended.

Source:
    Li et al. 2018, "Hyperband: a novel bandit-based approach to hyperparameter optimization", JMLR 18,
    algorithm 1 with brackets of one size and η = 2; Jamieson and Talwalkar 2016, "Non-stochastic best arm
    identification and hyperparameter optimization", AISTATS.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from harness.atomic_files import json_bytes, write_output
from harness.canonical import JsonValue
from harness.errors import UNSUPPORTED, CaseError, UsageError
from harness.experiment.cases import Case, expand
from harness.experiment.chosen_strategy import choose
from harness.experiment.model import Experiment
from harness.experiment.references import StrategyRef
from harness.experiment.schedule import Slot
from harness.provision.failures import USER_ERROR
from harness.records.comparison import MIN_REPEATS_INTERVAL, paired_ratios, repeated_mean
from harness.records.record import Record
from harness.records.run_folder import RunFolder
from harness.run.further_repeats import ClusterState, PlanOf
from strategies.errors import StrategyError
from strategies.plan.schema import Plan
from strategies.registry import alternatives

LEAST_CONFIRMING = MIN_REPEATS_INTERVAL
MOST_CONFIRMING = 12
_SPARED_CONFIRMING = 4  # for the last candidate, before others are tried
_WITH_DEFAULT = 2  # a candidate and the default


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """Repeats of some candidates, beside the default.

    Attributes:
        number: index in its bracket, from 0.
        confirms: True if these repeats decide about the one remaining candidate; `n_repeats` is then an upper
            limit, as time allows.
    """

    names: tuple[str, ...]
    n_repeats: int
    number: int = 0
    confirms: bool = False


def next_rung(
    names: Sequence[str],
    *,
    seed: int,
    rungs: Sequence[Rung],
    logs: Mapping[str, Sequence[float]],
    n_affordable: int,
) -> Rung | None:
    """Next rung; None if the result is decided, no candidate is left, or time is too short.

    Args:
        names: names of all candidates.
        seed: seed of the random selection, if time does not allow all.
        rungs: rungs so far.
        logs: candidate → logarithm of its rate ÷ the default's, one per repeat; failed candidates have none.
        n_affordable: repeats that time allows, the default's included.
    """
    if rungs and rungs[-1].confirms:
        if all(logs.get(name) for name in rungs[-1].names):
            return None
        # It failed: the candidates that it was selected from go on without it.
        selecting = [rung for rung in rungs if not rung.confirms]
        return next_rung(names, seed=seed, rungs=selecting, logs=logs, n_affordable=n_affordable)
    number, left = (rungs[-1].number + 1, _best_half(rungs[-1].names, logs)) if rungs else (0, ())
    if all(_mean(logs[name]) <= 0 for name in left):
        number, left = 0, _drawn(names, rungs, seed=seed, n_affordable=n_affordable)
    is_open = len(left) > 1 or (bool(left) and number == 0)
    if is_open and (len(left) + 1) * _n_repeats(number) <= n_affordable:
        return Rung(names=left, n_repeats=_n_repeats(number), number=number)
    # Time does not allow another rung: confirm the best candidate so far.
    left = left[:1]
    if not left or n_affordable < _WITH_DEFAULT:
        return None
    return Rung(names=left, n_repeats=MOST_CONFIRMING, number=number, confirms=True)


def is_faster(logs: Sequence[float]) -> bool:
    """True if the 95 % interval of the confirming repeats is above the default.

    Args:
        logs: logarithms of rate ÷ the default's, one per repeat.
    """
    mean = repeated_mean(logs) if logs else None
    half = None if mean is None else mean.half_width()
    return mean is not None and half is not None and mean.value - half > 0


def _best_half(names: Sequence[str], logs: Mapping[str, Sequence[float]]) -> tuple[str, ...]:
    measured = [name for name in names if logs.get(name)]
    ranked = sorted(measured, key=lambda name: -_mean(logs[name]))
    return tuple(ranked[: max(1, len(names) // 2)])


def _drawn(names: Sequence[str], rungs: Sequence[Rung], *, seed: int, n_affordable: int) -> tuple[str, ...]:
    """New candidates, as many as there is time for."""
    order = list(names)
    random.Random(seed).shuffle(order)  # noqa: S311 - an order, not a secret
    tried = {name for rung in rungs for name in rung.names}
    left = [name for name in order if name not in tried]
    return tuple(left[: _n_fitting(len(left), n_affordable)])


def _n_repeats(number: int) -> int:
    """Repeats in a rung, counted from 0; with them, its candidates have had 1, 2, 4, … in all."""
    return 1 << max(0, number - 1)


def _n_fitting(n_candidates: int, n_affordable: int) -> int:
    """Largest number of candidates to begin with that leaves time to confirm one of them."""
    if n_affordable < _WITH_DEFAULT:
        return 0
    fitting = (n for n in range(n_candidates, 1, -1) if _n_needed(n) <= n_affordable)
    return next(fitting, min(1, n_candidates))


def _n_needed(n_candidates: int) -> int:
    n, number = _SPARED_CONFIRMING * _WITH_DEFAULT, 0
    while n_candidates > 1 or not number:
        n += (n_candidates + 1) * _n_repeats(number)
        n_candidates, number = n_candidates // 2, number + 1
    return n


def _mean(logs: Sequence[float]) -> float:
    return math.fsum(logs) / len(logs)


TUNED_PLAN = "tuned.plan.json"


class Outcome(StrEnum):
    """Outcome of a candidate, in order from best to worst."""

    CHOSEN = "chosen"
    NOT_FASTER = "not faster"
    DROPPED = "dropped"
    NOT_TRIED = "not tried"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A candidate, compared with the default.

    Attributes:
        ratio: its rate ÷ the default's, over the repeats that decide about it; None if it has none.
        interval: lower and upper limit of the 95 % confidence interval; None with fewer than three repeats.
        why: reason of its failure.
    """

    strategy: StrategyRef
    outcome: Outcome
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    n_repeats: int = 0
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """Chosen plan, and all candidates of a tuning.

    Attributes:
        case: case of the plan; the default's unless a candidate was faster.
        seconds: time limit of the search. seed: seed of selections and orders.
        path: file of the plan.
    """

    plan: Plan
    case: Case
    default: StrategyRef
    tried: Sequence[Tried]
    seconds: float
    seed: int
    run_dir: Path
    path: Path
    is_interrupted: bool = False

    @property
    def verdict(self) -> str:
        best = next((candidate for candidate in self.tried if candidate.ratio is not None), None)
        if self.case.strategy != self.default:
            return f"{self.case.strategy} is faster than {self.default}: {figures(self.tried[0])}"
        if not self.tried:
            return f"{self.default} stays: all values of its knobs give the same plan here"
        if best is None:
            return f"{self.default} stays: no candidate could be measured"
        n_left = sum(candidate.outcome is Outcome.NOT_TRIED for candidate in self.tried)
        text = f"{best.strategy} at {figures(best)}"
        text += f"; there was no time for {n_left} of {len(self.tried)}" if n_left else ""
        if best.outcome is Outcome.NOT_FASTER:
            return f"{self.default} stays: the best candidate is not faster beyond noise, {text}"
        if best.ratio is not None and best.ratio > 1:
            return f"{self.default} stays: no candidate was confirmed to be faster, the best so far is {text}"
        return f"{self.default} stays: no candidate that was tried is faster, the best is {text}"

    def to_document(self) -> dict[str, JsonValue]:
        shape = self.case.shape
        return {
            "workload": str(self.case.workload),
            "strategy": str(self.case.strategy),
            "default": str(self.default),
            "verdict": self.verdict,
            "provider": shape.provider,
            "workers": shape.workers,
            "replicas": shape.replicas_per_worker,
            "link": {"rate_mbit": shape.link.rate_mbit, **shape.link.other_keys()},
            "seconds": self.seconds,
            "seed": self.seed,
            "interrupted": self.is_interrupted,
            "run_dir": str(self.run_dir),
            "candidates": [_document(candidate) for candidate in self.tried],
        }

    def write(self) -> None:
        document = {**self.plan.model_dump(mode="json"), "tuning": self.to_document()}
        write_output(self.path, json_bytes(document))


def figures(tried: Tried) -> str:
    """A ratio with its interval, as text."""
    if tried.ratio is None:
        return "-"
    ratio = f"{tried.ratio:.3g}×"
    if tried.interval is None:
        return f"{ratio} (n = {tried.n_repeats})"
    return f"{ratio} ({tried.interval[0]:.3g} to {tried.interval[1]:.3g}, n = {tried.n_repeats})"


def _document(tried: Tried) -> JsonValue:
    return {
        "strategy": str(tried.strategy),
        "outcome": tried.outcome.value,
        "ratio": tried.ratio,
        "interval": None if tried.interval is None else {"low": tried.interval[0], "high": tried.interval[1]},
        "n": tried.n_repeats,
        "why": tried.why,
    }


@dataclass(slots=True, kw_only=True)
class Tuner:
    """Chooses the repeats that follow the default's first one.

    Attributes:
        cases: the default's and all candidates', in this order.
        at_most_s: time limit of the whole search, in seconds.
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
    def default_slots(self) -> Sequence[Slot]:
        return (Slot(order=0, block=0, repeat=0, case=self.default),)

    @property
    def candidates(self) -> Sequence[str]:
        """Ids of cases with different plans, the default's excluded; empty before the cases are planned."""
        return [name for name in self._plans if name != self.default.id]

    def is_measured(self, records: Sequence[Record]) -> bool:
        """True if the default has a usable repeat to measure others beside."""
        usable = _usable(self.default, records)
        return bool(usable) and not any(_is_wrong(record) for record in usable)

    def slots(self, state: ClusterState) -> Sequence[Slot]:
        """Repeats of the next rung; all cases share a cluster."""
        records, left_s = state.records, state.left_s
        if state.plan_of is None or not self.is_measured(records):
            return ()
        if not self._plans:
            started_s = time.monotonic()
            self._distinguish(state.plan_of)
            left_s -= time.monotonic() - started_s
        walls_s = [record.wall_s for record in records if record.wall_s and record.status == "ok"]
        repeat_s = math.fsum(walls_s) / max(1, len(walls_s))
        rung = next_rung(
            self.candidates,
            seed=self.spec.measure.seed,
            rungs=self._rungs,
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
                order=state.first + number * len(together) + place,
                block=state.first + number * len(together),
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
        """Choose the plan from the records: the default's unless a candidate is faster.

        Args:
            out: file for the plan; None for one in the run folder.
        """
        tried = self.tried(folder.records)
        chosen = [candidate.strategy for candidate in tried if candidate.outcome is Outcome.CHOSEN]
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
        return sorted(
            tried, key=lambda candidate: (list(Outcome).index(candidate.outcome), -(candidate.ratio or 0.0))
        )

    def _tried(self, case: Case, records: Sequence[Record]) -> Tried:
        why = self._refused.get(case.id) or failure(case, records)
        if why is not None:
            return Tried(strategy=case.strategy, outcome=Outcome.FAILED, why=why)
        # The repeats that selected the last candidate would overestimate it.
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
        """Number of the first repeat that confirms a case; infinite for a case without one."""
        is_last = bool(self._rungs) and self._rungs[-1].confirms and case.id in self._rungs[-1].names
        return _next_repeat(self._rungs[:-1]) if is_last else math.inf

    def _logs(self, records: Sequence[Record]) -> Mapping[str, Sequence[float]]:
        usable = [c for c in self.cases[1:] if c.id in self._plans and failure(c, records) is None]
        return {case.id: self._ratios(case, records) for case in usable}

    def _ratios(self, case: Case, records: Sequence[Record], *, since: float = 0) -> Sequence[float]:
        late = [record for record in records if record.repeat >= since]
        return paired_ratios(_usable(case, late), _usable(self.default, late)).logs

    def _distinguish(self, plan_of: PlanOf) -> None:
        """Plan every case; keep one of each group with the same plan."""
        keys: set[str] = set()
        for case in self.cases:
            try:
                plan = plan_of(case)
            except CaseError as error:
                # Plans that cannot run here are not candidates.
                if error.kind != UNSUPPORTED:
                    self._refused[case.id] = error.message
                continue
            key = _key(plan)
            if key not in keys:
                keys.add(key)
                self._plans[case.id] = plan


def _next_repeat(rungs: Sequence[Rung]) -> int:
    return 1 + sum(rung.n_repeats for rung in rungs)


def _key(plan: Plan) -> str:
    descriptive = {"strategy_params", "notes", "warnings"}
    return f"{plan.execution}{plan.model_dump_json(exclude=descriptive)}"


def _usable(case: Case, records: Sequence[Record]) -> Sequence[Record]:
    return [record for record in records if record.case == case.id and record.status == "ok"]


def _is_wrong(record: Record) -> bool:
    return record.equivalence is not None and record.equivalence.wrong


def failure(case: Case, records: Sequence[Record]) -> str | None:
    """Reason why a case is excluded: failure, implausible figures, or a wrong result."""
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
    """Tuner of an experiment with a single strategy.

    Args:
        seconds: time limit of the whole search.
    Raises:
        UsageError: it has no knob to tune, the experiment has several cases, or time is too short for any
            candidate.
    """
    (strategy,) = spec.strategies
    if len(expand(spec)) > 1:
        raise UsageError(
            f"must be one workload on one shape in one computation, got {len(expand(spec))} cases of "
            f"{strategy}; give no lists",
            field="set",
        )
    if spec.measure.repeats != 1 or spec.measure.until is not None:
        raise UsageError(
            f"must leave the number of repeats to the tuning, got measure.repeats {spec.measure.repeats} and "
            f"measure.until {'unset' if spec.measure.until is None else 'set'}; leave both out",
            field="set",
        )
    _require_time(spec, seconds)
    spec = spec.with_strategies(strategy, *_alternatives(strategy), baseline=strategy)
    return Tuner(spec=spec, cases=expand(spec), at_most_s=seconds)


def require_measured(tuner: Tuner, records: Sequence[Record]) -> None:
    """Refuse to go on without a measured default and time for a candidate.

    Raises:
        UsageError: time was too short, or the default cannot be used. CaseError: it failed, or computes
            something else than it should.
    """
    strategy = tuner.default.strategy
    of_default = [record for record in records if record.case == tuner.default.id]
    if not tuner.is_measured(records):
        error = of_default[0].error
        if error is None:
            raise CaseError(
                "not-measured",
                f"{strategy} must be equivalent and plausible before it is tuned, got "
                f"{failure(tuner.default, records)}; see `stratbench verify {tuner.default.workload} "
                f"--strategy {strategy}`",
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


def _alternatives(strategy: StrategyRef) -> tuple[StrategyRef, ...]:
    chosen = choose(strategy, field="strategy")
    try:
        others = () if chosen.edited is not None else alternatives(chosen.strategy, strategy.params)
    except StrategyError as error:
        raise UsageError(str(error), field="strategy") from None
    if not others:
        raise UsageError(
            f"must have a tunable knob that is free to change, got {strategy}; `stratbench list strategies "
            "--json` shows which are tunable",
            field="strategy",
        )
    return tuple(StrategyRef(name=strategy.name, params=params) for params in others)


def _require_time(spec: Experiment, seconds: float) -> None:
    """Require time for the windows of the default and of one candidate."""
    measure = spec.measure
    least_n = 1 + LEAST_CONFIRMING  # one to select a candidate by
    least_s = (1 + 2 * least_n) * measure.n_rounds * measure.window_s
    if seconds < least_s:
        raise UsageError(
            f"must hold {least_n} repeats of the default and of a candidate, whose windows take "
            f"{least_s:g} s, got {seconds:g}; give it more",
            field="seconds",
        )
