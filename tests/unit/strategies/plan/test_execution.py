"""Tests for how the steps of a plan go."""

from dataclasses import fields

import pytest

from strategies.plan.execution import PARAMETERS, Execution
from strategies.registry import STRATEGIES


def test_what_is_not_asked_for_goes_as_usual() -> None:
    assert Execution.of({}) == Execution.of(dict.fromkeys(PARAMETERS)) == Execution()
    assert Execution.of({"compressor": "topk", "sync": False}) == Execution(sync=False)
    assert Execution.of({"period": "daily", "backup": 1.0}) == Execution(backup=1)


def test_every_field_is_some_strategys_parameter() -> None:
    assert set(PARAMETERS.values()) == {field.name for field in fields(Execution)}
    assert set(PARAMETERS) <= {param.name for strategy in STRATEGIES for param in strategy.params}


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_a_strategy_as_it_comes_waits_for_all(strategy) -> None:
    usual = Execution.of({param.name: param.default for param in strategy.params})
    own = ("period", "fused_update", "steps_per_loop", "merge_rows")
    assert usual == Execution.of(
        {param.name: param.default for param in strategy.params if param.name in own}
    )
    assert usual.waits_for_all


@pytest.mark.parametrize("knobs", [{"sync": False}, {"staleness": 1}, {"backup": 1}], ids=str)
def test_who_does_not_wait_for_all(knobs) -> None:
    assert not Execution.of(knobs).waits_for_all
