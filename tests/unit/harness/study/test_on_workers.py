"""What cannot be verified on real workers."""

from typing import Any

import pytest

from harness.errors import UsageError
from harness.experiment.references import parse_strategy, parse_workload
from harness.requests import Target, VerifyRequest
from harness.study import refuse_what_workers_lack


def request(strategy: str = "all-reduce", **asked: Any) -> VerifyRequest:
    target = Target(
        workload=parse_workload("digits-mlp", field="workload"),
        strategy=parse_strategy(strategy, field="strategy"),
        device="gpu",
    )
    return VerifyRequest(target=target, **asked)


def test_exact_strategies_are_verified_in_the_model_s_types() -> None:
    refuse_what_workers_lack(request())
    refuse_what_workers_lack(request(dtype="model"))


@pytest.mark.parametrize(
    ("strategy", "asked", "field"),
    [
        ("all-reduce", {"dtype": "float64"}, "dtype"),
        ("all-reduce", {"last_batch": 3}, "last_batch"),
        ("all-reduce", {"shrink": True}, "shrink"),
        ("all-reduce:compressor=topk", {}, "device"),
        ("local-sgd", {}, "device"),
    ],
)
def test_what_needs_all_workers_in_one_process_is_refused(
    strategy: str, asked: dict[str, Any], field: str
) -> None:
    with pytest.raises(UsageError) as refused:
        refuse_what_workers_lack(request(strategy, **asked))
    assert refused.value.field == field
