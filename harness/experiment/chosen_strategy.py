"""Strategy of a reference: a registered one, a builder in a user's file, or an edited plan."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from harness.canonical import slug
from harness.errors import UsageError
from harness.experiment.references import StrategyRef, file_of
from harness.written_values import Scalar, kebab

if TYPE_CHECKING:
    from strategies.plan.schema import Plan, PlanNode, StepSummary
    from strategies.plan.strategy import Layout, Strategy
    from strategies.topology import Topology
    from strategies.user_strategies import EditedPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """A strategy with all of its parameters, defaults included.

    Args:
        edited: plan from a file, used in place of one that the strategy makes.
    """

    strategy: Strategy
    params: Mapping[str, Scalar]
    edited: EditedPlan | None = None

    def plan(self, step: StepSummary, topology: Topology) -> Plan:
        from strategies.planner import plan_of

        if self.edited is not None:
            return self.edited.plan(step, topology)
        return plan_of(self.strategy, self.params, step, topology)


def choose(ref: StrategyRef, *, field: str | None = None) -> Chosen:
    """Resolve a reference to a strategy; a file of strategies is executed once per process.

    Args:
        field: dotted path of the reference, for the error.
    Raises:
        UsageError: there is no such strategy, its file cannot be used, or a parameter is wrong.
    """
    from strategies import registry
    from strategies.errors import StrategyError
    from strategies.planner import settled
    from workloads.protocol import WorkloadError

    try:
        if ref.is_plan:
            edited = _read(Path(ref.name).absolute(), ref.name)
            return Chosen(strategy=edited.strategy, params=edited.params, edited=edited)
        if ref.is_builder:
            file, _, name = ref.name.rpartition(":")
            strategy, params = settled(_built(Path(file).absolute(), name, ref.name), ref.params)
        else:
            strategy, params = registry.resolve(ref.name, with_registered_words(ref).params)
    except (StrategyError, WorkloadError) as error:
        raise UsageError(str(error), field=field) from error
    return Chosen(strategy=strategy, params=params)


def with_registered_words(ref: StrategyRef) -> StrategyRef:
    """Reference in the registered spelling of parameter values: `multi_krum` becomes `multi-krum`."""
    from strategies.registry import STRATEGIES

    params = next((strategy.params for strategy in STRATEGIES if strategy.name == ref.name), ())
    words = {param.name: param.choices for param in params}
    changed = {
        name: kebab(value)
        for name, value in ref.params.items()
        if isinstance(value, str) and value != kebab(value) and kebab(value) in words.get(name, ())
    }
    return replace(ref, params={**ref.params, **changed}) if changed else ref


def merging_rows(ref: StrategyRef) -> StrategyRef:
    """The reference with `merge_rows=true` where it may say so and says nothing of it.

    TensorFlow's own strategies run what their users would run, and an edited plan says what it does.
    """
    from strategies.builders.shared_params import MERGE_ROWS
    from strategies.registry import STRATEGIES

    rewriting = {strategy.name for strategy in STRATEGIES if strategy.runner == "graph"}
    if MERGE_ROWS.name in ref.params or not (ref.is_builder or ref.name in rewriting):
        return ref
    return replace(ref, params={**ref.params, MERGE_ROWS.name: True})


def source_hash(reference: str) -> str | None:
    """Hash of the file that a reference names, when it was first asked for; 64 hex digits (sha256).

    None where there is none.
    """
    return _hash(file_of(reference).absolute())


@lru_cache(maxsize=64)
def _hash(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


@lru_cache(maxsize=64)
def _built(path: Path, name: str, reference: str) -> Strategy:
    """Build a strategy from a file; a run uses the file's content at its start, even if it changes later."""
    from strategies.user_strategies import strategy_of
    from workloads.user_file import Kind, split

    del name  # Path and name distinguish files with the same reference in different folders.
    maker = split(reference, Kind(name="strategy", maker="Builder"))
    _hash(path)
    builder = maker.make(None)
    with _blaming():
        strategy = strategy_of(builder, where=str(maker))
    return replace(strategy, layout=_guarded(strategy.layout))


@lru_cache(maxsize=64)
def _read(path: Path, reference: str) -> EditedPlan:
    """An edited plan, named after its file, so that records distinguish it from the original strategy."""
    from strategies.user_strategies import read_plan

    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no text"
        raise UsageError(f"plan {reference}: must be a file that can be read, got: {reason}") from error
    _hash(path)
    stem = slug(path.stem)
    name = stem if stem.startswith("plan") else f"plan-{stem}"
    return read_plan(text, name=name, where=f"plan {reference}")


def _guarded(layout: Layout) -> Layout:
    def guarded(step: StepSummary, topology: Topology, params: Mapping[str, Scalar]) -> Sequence[PlanNode]:
        with _blaming():
            return layout(step, topology, params)

    return guarded


@contextmanager
def _blaming() -> Iterator[None]:
    """Turn any error in a user's file, except Ctrl-C, into one line with its location."""
    from strategies.errors import StrategyError
    from workloads.user_file import describe_failure

    try:
        yield
    except (StrategyError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise StrategyError(describe_failure(error)) from error
