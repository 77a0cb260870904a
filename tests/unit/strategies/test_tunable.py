"""Combinations of tunable knobs: all that compute the same, and none that anybody would be refused."""

from dataclasses import replace

import pytest

from strategies.errors import StrategyError
from strategies.plan.strategy import Param, Strategy, independent
from strategies.planner import check_param, settled
from strategies.registry import MOST_COMBINATIONS, STRATEGIES, alternatives, resolve

SIZE = Param(name="size", type=int, default=8, tunable=(2, 8, 32))
EAGER = Param(name="eager", type=bool, default=False, tunable=(False, True))
OTHER = Param(name="rate", type=float, default=0.5)


def strategy(*params: Param) -> Strategy:
    return Strategy(name="mine", summary="s", strategy_class="exact", layout=independent, params=params)


def test_every_combination_of_what_is_declared_and_not_given():
    mine = strategy(SIZE, EAGER, OTHER)
    assert alternatives(mine, {}) == (
        {"eager": True},
        {"size": 2},
        {"size": 2, "eager": True},
        {"size": 32},
        {"size": 32, "eager": True},
    )
    assert alternatives(mine, {"size": 8, "rate": 0.1}) == ({"size": 8, "rate": 0.1, "eager": True},)
    assert alternatives(mine, {"size": 2, "eager": True}) == ()
    assert alternatives(strategy(OTHER), {}) == ()


def test_knobs_of_which_one_can_be_given_are_not_given_together():
    mine, _ = resolve("all-reduce", {"transport": "ring"})
    found = alternatives(mine, {"transport": "ring"})
    assert {tuple(sorted(params)) for params in found} == {
        ("chunk_size", "transport"),
        ("bucket_bytes", "transport"),
    }
    assert {params["transport"] for params in found} == {"ring"}


def test_what_changes_the_class_is_no_alternative():
    sync = Param(name="sync", type=bool, default=True, tunable=(True, False))
    ps, _ = resolve("ps")
    params = (sync, *(p for p in ps.params if p.name != "sync"))
    assert alternatives(replace(ps, params=params), {}) == ({"local_proxy_variable": True},)


def test_too_many_are_refused_with_the_way_out():
    many = [Param(name=f"k{n}", type=int, default=0, tunable=tuple(range(11))) for n in range(3)]
    with pytest.raises(StrategyError, match=rf"at most {MOST_COMBINATIONS}, got 1331 of k0, k1, k2; give"):
        alternatives(strategy(*many), {})


@pytest.mark.parametrize("each", STRATEGIES, ids=lambda each: each.name)
def test_what_strategies_declare_they_take(each):
    for param in each.params:
        for value in param.tunable:
            assert check_param(each.name, param, value) == value
    found = alternatives(each, {})
    assert bool(found) == any(param.tunable for param in each.params)
    for params in found:
        assert settled(each, params)[0].strategy_class == each.strategy_class
    assert not found or each.runner == "graph", "its plan could not be run again"
