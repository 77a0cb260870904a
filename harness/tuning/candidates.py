"""Candidates of a tuning: the strategy as it was asked for, and with other values of its tunable knobs."""

from __future__ import annotations

from collections.abc import Sequence

from harness.errors import UNSUPPORTED, CaseError, UsageError
from harness.experiment.cases import expand
from harness.experiment.chosen_strategy import choose
from harness.experiment.model import Experiment
from harness.experiment.references import StrategyRef
from harness.provision.failures import USER_ERROR
from harness.records.record import Record
from harness.tuning.successive_halving import LEAST_CONFIRMING
from harness.tuning.tuner import Tuner, failure
from strategies.errors import StrategyError
from strategies.registry import alternatives


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
