"""The search for plans, on a hand-made workload that is small enough to try all plans."""

import itertools
import json
import math
from collections.abc import Sequence
from functools import lru_cache

import pytest
from planned_steps import BATCH, STEP
from planning import slot, state, step_of, trainable
from test_predictions import PROBE, WORKLOAD

from harness.errors import UsageError
from harness.experiment.chosen_strategy import choose
from harness.experiment.references import StrategyRef, parse_strategy
from harness.prediction.goals import Goal
from harness.prediction.plan_search import (
    Candidate,
    PlanSearch,
    PredictedPlan,
    SearchLimits,
    search,
    variable_groups,
)
from harness.prediction.predictions import Question, predict
from harness.prediction.recommendation import builders_of, rankings_of
from strategies.errors import StrategyError
from strategies.params import Params
from strategies.plan.strategy import Strategy
from strategies.registry import alternatives
from strategies.topology import Topology
from strategies.user_strategies import read_plan

LIMITS = SearchLimits(seconds=600.0)
FEWER = SearchLimits(seconds=600.0, n_predictions=60)
FEW = tuple(
    parse_strategy(text, field="strategies")
    for text in (
        "ps-load-balancing:local_proxy_variable=false",
        "sharded-ps:local_proxy_variable=false,min_bytes=16384",
        "all-reduce:chunk_size=1,transport=tcp",
        "sharded-update:min_bytes=16384,bucket_bytes=4194304,transport=tcp",
    )
)
"""Builders without a free parameter."""
ALL = builders_of(PROBE, inexact=False)


def question(n_workers: int, link_mbit: float | None) -> Question:
    return Question(workers=n_workers, batch_size=BATCH, link_mbit=link_mbit)


@lru_cache
def searched(
    n_workers: int,
    link_mbit: float | None,
    builders: tuple[StrategyRef, ...] = ALL,
    limits: SearchLimits = LIMITS,
    seed: int = 0,
):
    rankings = rankings_of(Goal.FASTEST)
    own = question(n_workers, link_mbit)
    return search(WORKLOAD, own, PROBE, builders, rankings, limits=limits, seed=seed)


def best(plans: Sequence[PredictedPlan]) -> PredictedPlan:
    (rank,) = rankings_of(Goal.FASTEST)
    return min(plans, key=lambda plan: rank(plan, plans[0]))


@pytest.mark.parametrize(("n_workers", "link_mbit"), [(2, None), (2, 300.0), (3, 100.0), (4, 1000.0)])
def test_the_search_finds_the_best_of_all_plans(n_workers: int, link_mbit: float | None) -> None:
    every = PlanSearch(WORKLOAD, question(n_workers, link_mbit), PROBE, LIMITS)
    for builder in FEW:
        every.begin(builder)
    n_groups = len(variable_groups(STEP))
    every.try_all(Candidate(builders=own) for own in itertools.product(FEW, repeat=n_groups))
    result = searched(n_workers, link_mbit, FEW)
    assert best(result.plans).prediction.step_s == best(every.plans).prediction.step_s
    assert len(result.plans) < len(every.plans)


def test_several_builders_are_faster_where_links_and_cores_both_limit() -> None:
    result = best(searched(4, 650.0).plans)
    alone = best([plan for plan in searched(4, 650.0).plans if not plan.candidate.is_mixed])
    assert result.candidate.is_mixed
    assert result.prediction.step_s < 0.95 * alone.prediction.step_s


@pytest.mark.parametrize(("n_workers", "link_mbit"), [(2, None), (2, 300.0), (4, 650.0), (16, 100.0)])
def test_the_best_plan_is_never_slower_than_any_builder(n_workers: int, link_mbit: float | None) -> None:
    result = searched(n_workers, link_mbit)
    alone = [
        predict(WORKLOAD, builder, choose(builder), question(n_workers, link_mbit), PROBE)
        for builder in ALL
        if builder not in result.refused
    ]
    assert result.is_complete
    assert len(alone) > 5
    assert best(result.plans).prediction.step_s <= min(prediction.step_s for prediction in alone)


def test_equal_seeds_give_equal_searches() -> None:
    builders = (*FEW[:2], StrategyRef(name="all-reduce"))
    first, second = (searched.__wrapped__(4, 1000.0, builders, FEWER, seed=3) for _ in range(2))
    assert [plan.title for plan in first.plans] == [plan.title for plan in second.plans]
    other = searched(4, 1000.0, builders, FEWER, seed=4)
    assert [plan.title for plan in other.plans] != [plan.title for plan in first.plans]


@pytest.mark.parametrize("limits", [SearchLimits(seconds=600.0, n_predictions=1), SearchLimits(seconds=0.0)])
def test_limits_leave_the_builders_as_they_were_named(limits: SearchLimits) -> None:
    result = searched(2, None, FEW, limits)
    assert [plan.title for plan in result.plans] == [str(builder) for builder in FEW]
    assert result.is_at_limit
    assert not result.is_complete


def test_a_search_that_ended_by_itself_stays_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    result = searched.__wrapped__(2, None, FEW[2:3])
    monkeypatch.setattr("time.monotonic", lambda: math.inf)
    assert (result.is_at_limit, result.is_complete) == (True, True)


def test_a_strategy_with_too_many_tunable_values_is_no_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(strategy: Strategy, fixed: Params) -> tuple[Params, ...]:
        if strategy.name == "ps":
            raise StrategyError("tunable values must combine to at most 1000")
        return alternatives(strategy, fixed)

    monkeypatch.setattr("harness.prediction.plan_search.alternatives", refusing)
    ps = StrategyRef(name="ps")
    result = searched.__wrapped__(2, None, (ps, FEW[2]))
    assert str(result.refused[ps]) == "strategies: tunable values must combine to at most 1000"
    assert {plan.candidate.builders[0] for plan in result.plans} == {FEW[2]}


def test_more_predictions_are_not_made_than_allowed() -> None:
    result = searched(2, 300.0, limits=SearchLimits(seconds=600.0, n_predictions=30))
    assert (len(result.plans), result.is_at_limit) == (30, True)


def test_builders_without_predictions_are_no_candidates() -> None:
    named = (*FEW, parse_strategy("robust-ps", field="s"), parse_strategy("none", field="s"))
    refused = searched(4, None, named).refused
    assert [builder.name for builder in refused] == ["robust-ps", "none"]
    with pytest.raises(UsageError, match="none, a control"):
        searched(2, None, (StrategyRef(name="none"),))


def test_strategies_that_differ_by_design_are_not_mixed() -> None:
    result = searched(2, 300.0, (StrategyRef(name="local-sgd"), *FEW))
    assert any(plan.candidate.builders[0].name == "local-sgd" for plan in result.plans)
    mixed = [plan for plan in result.plans if plan.candidate.is_mixed]
    assert mixed
    assert not any(builder.name == "local-sgd" for plan in mixed for builder in plan.candidate.distinct)


def test_plans_of_several_builders_are_plan_files() -> None:
    result = searched(2, 300.0)
    plans = [result.plan_of(plan.candidate) for plan in result.plans if plan.candidate.is_mixed]
    topology = Topology(replicas_per_task=(1, 1), batch_size=BATCH)
    assert {node.synchronizer for plan in plans for node in plan.nodes} >= {"ps", "all-reduce"}
    for plan in plans:
        text = json.dumps(plan.model_dump(mode="json"))
        again = read_plan(text, name="plan-1", where="plan-1.json").plan(STEP, topology)
        assert again.nodes == plan.nodes
        assert (again.strategy_class, again.traffic) == ("exact", plan.traffic)


def test_variables_are_grouped_by_shape_tables_and_small_ones_apart() -> None:
    step = step_of(
        trainable("a", 100, 100),
        slot("a/m", "a", 100, 100),
        trainable("b", 100, 100),
        trainable("table", 100, 100, sparse=True),
        trainable("bias", 100),
        state("mean", 8),
        state("seed", 2, rule="per-replica"),
        trainable("wide", 10, 5000),
    )
    groups = {group.title: (group.names, group.n_bytes) for group in variable_groups(step)}
    assert groups == {
        "wide": ({"wide"}, 200_000),
        "all of shape 100x100": ({"a", "b"}, 80_000),
        "table": ({"table"}, 40_000),
        "the small variables": ({"bias", "mean"}, 432),
    }
    assert [group.title for group in variable_groups(step)][:2] == ["wide", "all of shape 100x100"]
