"""The baseline once more: a case of its own, which is the same strategy."""

from typing import Any

import pytest

from harness.errors import UsageError
from harness.experiment.cases import Case, expand
from harness.experiment.load import resolve
from harness.experiment.schedule import baseline_of, blocks_of


def cases(**measure: Any) -> tuple[Case, ...]:
    strategies = ["single", "none", "ps:staleness=1"]
    document = {"name": "x", "workloads": ["digits-mlp"], "strategies": strategies}
    spec = resolve({**document, "measure": measure, "compare": {"baseline": "ps:staleness=1"}})
    assert resolve(spec.to_document()) == spec
    return expand(spec)


def test_the_twin_has_a_name_of_its_own_and_the_baselines_strategy() -> None:
    plain, found = cases(), cases(aa=True)
    assert found[: len(plain)] == plain
    (twin,) = found[len(plain) :]
    (baseline,) = (case for case in plain if case.strategy.name == "ps")
    assert str(twin.strategy) == "ps:aa=true,staleness=1"
    assert twin.id != baseline.id
    assert twin.chosen == baseline.chosen
    assert len(blocks_of(found)) == 1


def test_the_twin_is_compared_with_the_baseline_and_never_taken_for_it() -> None:
    found = cases(aa=True)
    baseline = next(case for case in found if case.strategy.name == "ps" and not case.is_twin)
    alike = [case for case in found if case.shape == baseline.shape]
    assert len(alike) == 3
    assert all(baseline_of(case, found, baseline.strategy) == baseline for case in alike)


def test_a_name_that_a_person_gives_is_no_twin() -> None:
    document = {"name": "x", "workloads": ["digits-mlp"], "strategies": ["ps:aa=true"]}
    (case,) = expand(resolve(document))
    with pytest.raises(UsageError, match="aa"):
        _ = case.chosen


@pytest.mark.parametrize("asked", [{"aa": True}, {"until": {"ratio_ci": "3%"}}])
def test_what_is_formed_within_rounds_needs_them(asked: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"measure\.interleave"):
        cases(interleave=False, **asked)


def test_without_its_baseline_there_is_no_twin() -> None:
    strategies = ["single", "ps"]
    document = {"name": "x", "workloads": ["digits-mlp"], "strategies": strategies, "measure": {"aa": True}}
    with pytest.raises(UsageError, match=r"measure\.aa: must be used with the baseline"):
        expand(resolve({**document, "matrix": {"exclude": [{"strategy": "single"}]}}))
