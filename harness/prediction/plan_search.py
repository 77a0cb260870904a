"""Search for plans by predicted steps: builders, their parameters, and a builder for each group of variables.

A candidate names a builder for each group of variables; most name one for all. The search is a beam search.
It predicts every builder as it was named, then seeded mixtures of two builders. Then it expands the best
candidate that it has not expanded, until the few best are all expanded: each parameter of its builders takes
each other value, and each group each other builder. It ends early when it has used up its predictions or
time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import TypeAlias

from harness.errors import UsageError
from harness.experiment.chosen_strategy import Chosen, choose
from harness.experiment.references import StrategyRef
from harness.prediction.predictions import Prediction, Question, planned_for, predict_planned
from harness.prediction.probe import Probe
from harness.prediction.profiled_workload import ProfiledWorkload
from harness.prediction.step_model import PlannedStep
from strategies.builders.all_reduce import readiness
from strategies.errors import StrategyError
from strategies.plan.node_rules import is_owned
from strategies.plan.schema import Plan, PlanNode, StepSummary
from strategies.registry import alternatives
from strategies.user_strategies import EditedPlan

SMALL_BYTES = 16 << 10
"""Dense variables below this size are one group: their bytes do not decide, their messages do."""
_BEAM = 8
_N_MIXTURES = 16
_MOST_PREDICTIONS = 500
_MOST_PLANS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class VariableGroup:
    """Variables that have the same builder in every candidate.

    Attributes:
        n_bytes: bytes of all of them.
    """

    title: str
    names: frozenset[str]
    n_bytes: int


def variable_groups(step: StepSummary) -> tuple[VariableGroup, ...]:
    """Groups of a step's synchronised variables, the largest first.

    A table is a group of its own; dense variables of one shape are one group, and so are all small ones.
    """
    members: dict[object, list[tuple[str, int]]] = {}
    titles: dict[object, str] = {}
    for v in step.variables:
        if v.kind == "slot" or not v.synced:
            continue
        is_small = not v.sparse and v.bytes < SMALL_BYTES
        key: object = v.name if v.sparse else None if is_small else (v.shape, v.dtype)
        members.setdefault(key, []).append((v.name, v.bytes))
        titles[key] = "the small variables" if is_small else f"all of shape {'x'.join(map(str, v.shape))}"
    groups = (
        VariableGroup(
            title=own[0][0] if len(own) == 1 else titles[key],
            names=frozenset(name for name, _ in own),
            n_bytes=sum(n_bytes for _, n_bytes in own),
        )
        for key, own in members.items()
    )
    return tuple(sorted(groups, key=lambda group: -group.n_bytes))


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A builder for each group of variables, in the order of the groups."""

    builders: tuple[StrategyRef, ...]

    @property
    def distinct(self) -> tuple[StrategyRef, ...]:
        return tuple(dict.fromkeys(self.builders))

    @property
    def is_mixed(self) -> bool:
        return len(self.distinct) > 1

    def with_builder(self, index: int, builder: StrategyRef) -> Candidate:
        return Candidate(builders=(*self.builders[:index], builder, *self.builders[index + 1 :]))

    def replacing(self, old: StrategyRef, new: StrategyRef) -> Candidate:
        return Candidate(builders=tuple(new if builder == old else builder for builder in self.builders))


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedPlan:
    """A plan that the search predicted; see `PlanSearch.plan_of` for the plan itself, which may be large.

    Attributes:
        title: its builder, or the builder of most bytes and the groups that have others.
    """

    title: str
    candidate: Candidate
    prediction: Prediction

    @property
    def n_workers(self) -> int:
        return self.prediction.question.workers

    @property
    def seconds_per_example(self) -> float:
        return self.prediction.step_s / self.prediction.question.batch_size


Ranking: TypeAlias = Callable[[PredictedPlan, PredictedPlan], tuple[float, ...]]
"""Sort key of a plan, the best first, where the second plan is the fastest so far."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchLimits:
    """Bounds of a search; builders with their own defaults are predicted in any case.

    Attributes:
        seconds: time after which nothing more is predicted.
    """

    seconds: float
    n_predictions: int = _MOST_PREDICTIONS


def search(
    workload: ProfiledWorkload,
    question: Question,
    probe: Probe,
    builders: Sequence[StrategyRef],
    rankings: Sequence[Ranking],
    *,
    limits: SearchLimits,
    seed: int = 0,
) -> PlanSearch:
    """Search for the best plans of a workload.

    Args:
        builders: strategies to begin with; their parameters are kept.
        rankings: orders in which candidates are expanded, one after the other.
        seed: seed of the mixtures. Searches that end before their time have equal results for equal seeds.
    Raises:
        UsageError: no builder can be predicted.
    """
    plans = PlanSearch(workload, question, probe, limits)
    for builder in builders:
        plans.begin(builder)
    if not plans.by_candidate:
        raise next(iter(plans.refused.values()))
    plans.try_all(plans.variants())
    plans.try_all(plans.mixtures(seed))
    plans.is_complete = all(plans.expand(ranking) for ranking in rankings)
    return plans


class PlanSearch:
    """Search, in progress or ended.

    Attributes:
        by_candidate: candidates with different plans, in the order of their predictions.
        refused: builders that are no candidates → reason.
        is_complete: True once the search has ended before its limits.
    Raises:
        UsageError: the workload has nothing to exchange.
    """

    def __init__(
        self, workload: ProfiledWorkload, question: Question, probe: Probe, limits: SearchLimits
    ) -> None:
        self._workload, self._question, self._probe = workload, question, probe
        self._groups = variable_groups(workload.step)
        if not self._groups:
            raise UsageError(f"must have variables to synchronise, got {workload.title}", field="workload")
        self._most = limits.n_predictions
        self._ends_s = time.monotonic() + limits.seconds
        self._variants: dict[StrategyRef, tuple[StrategyRef, ...]] = {}
        # Plans for thousands of workers have megabytes: few are kept, and hashes of the others.
        self._plan = lru_cache(maxsize=_MOST_PLANS)(self._planned)
        self._hashes: set[int] = set()
        self._tried: set[Candidate] = set()
        self._expanded: set[Candidate] = set()
        self.by_candidate: dict[Candidate, PredictedPlan] = {}
        self.refused: dict[StrategyRef, UsageError] = {}
        self.is_complete = False

    @property
    def plans(self) -> tuple[PredictedPlan, ...]:
        return tuple(self.by_candidate.values())

    @property
    def is_at_limit(self) -> bool:
        return len(self.by_candidate) >= self._most or time.monotonic() > self._ends_s

    def plan_of(self, candidate: Candidate) -> Plan:
        """Plan of a candidate that was predicted."""
        chosen = self._chosen(candidate)
        return self._planned_for(chosen).plan

    def begin(self, builder: StrategyRef) -> None:
        """Predict a builder as it was named; record the reason if it cannot be predicted."""
        chosen = choose(builder, field="strategies")
        try:
            others = () if chosen.edited is not None else alternatives(chosen.strategy, builder.params)
            if chosen.strategy.strategy_class == "control":
                raise UsageError(
                    f"must be one that trains like a single device, got {builder}, a control; drop it",
                    field="strategies",
                )
            planned = self._planned_for(chosen)
            self._predict(self._everywhere(builder), planned)
        except UsageError as error:
            self.refused[builder] = error
            return
        except StrategyError as error:
            self.refused[builder] = UsageError(str(error), field="strategies")
            return
        self._variants[builder] = (
            builder,
            *(StrategyRef(name=builder.name, params=params) for params in others),
        )

    def variants(self) -> Iterator[Candidate]:
        """Candidates of one builder in which one parameter differs, those of the fastest builder first."""
        for builder in self._best_variants():
            for other in self._variants.get(builder, ()):
                if _n_differences(builder, other) == 1:
                    yield self._everywhere(other)

    def mixtures(self, seed: int) -> Iterator[Candidate]:
        """Candidates in which each group has one of two builders by chance."""
        chance = random.Random(seed)  # noqa: S311 - a search, not a secret
        builders = self._best_variants()
        for _ in range(_N_MIXTURES if len(builders) > 1 else 0):
            pair = chance.sample(builders, 2)
            yield Candidate(builders=tuple(chance.choice(pair) for _ in self._groups))

    def expand(self, ranking: Ranking) -> bool:
        """Predict the neighbours of the best candidates until they are the best of all.

        Returns:
            False if the search reached its limits before.
        """
        while not self.is_at_limit:
            fastest = min(self.plans, key=lambda plan: plan.seconds_per_example)
            ordered = sorted(self.plans, key=lambda plan: ranking(plan, fastest))
            # Plans with equal figures would fill the beam: only the first of them is expanded.
            alike = {(p.prediction.step_s, p.prediction.busiest_bytes): p for p in reversed(ordered)}
            beam = islice((p for p in ordered if p in alike.values()), _BEAM)
            best = next((p.candidate for p in beam if p.candidate not in self._expanded), None)
            if best is None:
                return True
            self._expanded.add(best)
            self.try_all(self._neighbours(best))
        return False

    def try_all(self, candidates: Iterator[Candidate]) -> None:
        """Predict candidates with plans that no other one has."""
        for candidate in candidates:
            if self.is_at_limit:
                return
            if candidate in self._tried:
                continue
            self._tried.add(candidate)
            try:
                planned = self._planned_for(self._chosen(candidate))
                self._predict(candidate, planned)
            except UsageError:
                continue  # builders that cannot be mixed, or an unprobed transport

    def _neighbours(self, candidate: Candidate) -> Iterator[Candidate]:
        for builder in candidate.distinct:
            variants = next((own for own in self._variants.values() if builder in own), ())
            for other in variants:
                if _n_differences(builder, other) == 1:
                    yield candidate.replacing(builder, other)
        for index in range(len(self._groups)):
            for builder in self._best_variants():
                yield candidate.with_builder(index, builder)

    def _best_variants(self) -> list[StrategyRef]:
        """Fastest parameters so far of each builder that can be mixed, the fastest builder first."""
        best: list[tuple[float, StrategyRef]] = []
        for variants in self._variants.values():
            if choose(variants[0]).strategy.strategy_class != "statistical":
                known = map(self.by_candidate.get, map(self._everywhere, variants))
                times = [(p.seconds_per_example, p.candidate.builders[0]) for p in known if p is not None]
                best += [min(times, key=lambda pair: pair[0])] if times else []
        return [builder for _, builder in sorted(best, key=lambda pair: pair[0])]

    def _everywhere(self, builder: StrategyRef) -> Candidate:
        return Candidate(builders=(builder,) * len(self._groups))

    def _predict(self, candidate: Candidate, planned: PlannedStep) -> None:
        key = hash((planned.plan.nodes, planned.plan.execution))
        if key in self._hashes:
            return
        main = self._main(candidate)
        prediction = predict_planned(self._workload, main, planned, self._question, self._probe)
        self._hashes.add(key)
        self._tried.add(candidate)
        title = self._title(candidate, main)
        self.by_candidate[candidate] = PredictedPlan(title=title, candidate=candidate, prediction=prediction)

    def _main(self, candidate: Candidate) -> StrategyRef:
        """Builder with the most bytes."""
        n_bytes = dict.fromkeys(candidate.distinct, 0)
        for group, builder in zip(self._groups, candidate.builders, strict=True):
            n_bytes[builder] += group.n_bytes
        return max(n_bytes, key=lambda builder: n_bytes[builder])

    def _title(self, candidate: Candidate, main: StrategyRef) -> str:
        parts = [str(main)]
        for builder in candidate.distinct:
            own = [g.title for g, b in zip(self._groups, candidate.builders, strict=True) if b == builder]
            if builder != main:
                parts.append(f"{', '.join(own)} by {builder}")
        return "; ".join(parts)

    def _chosen(self, candidate: Candidate) -> Chosen:
        """Strategy of a candidate: its builder, or the plan that its builders make together.

        Raises:
            UsageError: one of the builders cannot be planned, or they run steps in different ways.
        """
        if not candidate.is_mixed:
            return choose(candidate.builders[0])
        plans = {builder: self._plan(builder) for builder in candidate.distinct}
        if len({plan.execution for plan in plans.values()}) > 1:
            raise UsageError("must run steps in one way, got builders that differ", field="strategies")
        main = choose(self._main(candidate))
        nodes = _mixed_nodes(self._workload.step, self._groups, candidate, plans)
        is_bounded = any(node.compressor is not None for node in nodes)
        strategy = replace(main.strategy, strategy_class="bounded" if is_bounded else "exact")
        edited = EditedPlan(
            where="mixture",
            strategy=strategy,
            params=main.params,
            workload=self._workload.step.workload,
            replicas_per_task=(1,) * self._question.workers,
            nodes=nodes,
        )
        return Chosen(strategy=strategy, params=main.params, edited=edited)

    def _planned_for(self, chosen: Chosen) -> PlannedStep:
        return planned_for(self._workload, chosen, self._question, self._probe)

    def _planned(self, builder: StrategyRef) -> Plan:
        return self._planned_for(choose(builder)).plan


def _n_differences(first: StrategyRef, second: StrategyRef) -> int:
    """Number of parameters in which two references to one builder differ."""
    unset = object()
    names = {*first.params, *second.params}
    return sum(first.params.get(name, unset) != second.params.get(name, unset) for name in names)


def _mixed_nodes(
    step: StepSummary,
    groups: Sequence[VariableGroup],
    candidate: Candidate,
    plans: Mapping[StrategyRef, Plan],
) -> tuple[PlanNode, ...]:
    """Nodes of all variables, each as its builder plans it, with the buckets of all builders apart."""
    builder_of = {
        name: builder
        for group, builder in zip(groups, candidate.builders, strict=True)
        for name in group.names
    }
    by_name = {builder: {node.variable: node for node in plan.nodes} for builder, plan in plans.items()}
    # What no gradient or new state reaches may be as any of the builders has it.
    builders = [builder_of.get(v.slot_of or v.name, candidate.builders[0]) for v in step.variables]
    nodes = [by_name[builder][v.name] for builder, v in zip(builders, step.variables, strict=True)]
    if any(node.synchronizer == "ps" for node in nodes):
        nodes = [_beside_servers(node) for node in nodes]
    complete: dict[tuple[StrategyRef, int], int] = {}
    for v, builder, node in zip(step.variables, builders, nodes, strict=True):
        for group in _buckets(node):
            complete[builder, group] = max(readiness(v), complete.get((builder, group), -1))
    numbers = {bucket: n for n, bucket in enumerate(sorted(complete, key=lambda bucket: complete[bucket]))}
    return tuple(
        _with_buckets(node, {group: numbers[builder, group] for group in _buckets(node)})
        for builder, node in zip(builders, nodes, strict=True)
    )


def _beside_servers(node: PlanNode) -> PlanNode:
    """The node with a transport that servers allow beside them: TensorFlow's."""
    if node.transport != "tcp":
        return node
    in_rows = node.sparse and not is_owned(node)
    changes = {"transport": None, "group": None} if in_rows else {"transport": "auto"}
    return node.model_copy(update=changes)


def _buckets(node: PlanNode) -> tuple[int, ...]:
    groups = () if node.partition is None else node.partition.groups or ()
    return groups if node.group is None else (node.group, *groups)


def _with_buckets(node: PlanNode, numbers: Mapping[int, int]) -> PlanNode:
    partition = node.partition
    if partition is not None and partition.groups is not None:
        groups = tuple(numbers[group] for group in partition.groups)
        partition = partition.model_copy(update={"groups": groups})
    group = None if node.group is None else numbers[node.group]
    return node.model_copy(update={"group": group, "partition": partition})
