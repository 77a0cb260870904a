"""One command's workload and strategy are checked before anything is captured."""

import pytest

from harness.errors import UsageError
from harness.experiment.references import parse_strategy, parse_workload
from harness.preflight import check_target
from harness.requests import Target


@pytest.mark.parametrize(("rule", "n_workers"), [("krum", 5), ("bulyan", 7)])
def test_a_rule_has_as_many_workers_as_it_needs(rule: str, n_workers: int) -> None:
    def checked(workers: int) -> None:
        workload = parse_workload("wide-mlp", field="workload")
        strategy = parse_strategy(f"robust-ps:rule={rule},f=1", field="strategy")
        check_target(Target(workload=workload, strategy=strategy, workers=workers))

    checked(n_workers)
    message = f"strategy: rule={rule} needs n ≥ .*, got f=1 with {n_workers - 1} workers; .* to {n_workers}$"
    with pytest.raises(UsageError, match=message):
        checked(n_workers - 1)
