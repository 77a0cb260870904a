"""Eleven workers compute what one device does: with more than ten, `task:10` comes before `task:2`."""

from dataclasses import replace

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]
pytest.importorskip("tensorflow")

import numpy as np

from harness.verification.worker.in_process import InProcessCluster, programs_of

ELEVEN = (1,) * 11


@pytest.fixture(scope="module")
def twice_as_many(cases):
    """The case with two batches in one, an example for each worker at least."""

    def of(workload, optimizer):
        case = cases.of(workload, optimizer)
        pairs = zip(case.batches, [*case.batches[1:], case.batches[0]], strict=True)
        batches = [[np.concatenate(parts) for parts in zip(*pair, strict=True)] for pair in pairs]
        return replace(case, batches=batches, _references={}, _verdicts={}, _shorter={})

    return of


@pytest.mark.parametrize(
    ("strategy", "params"),
    [
        ("sharded-update", {"min_bytes": 1}),
        ("sharded-update", {"min_bytes": 1, "transport": "ring"}),
        ("fully-sharded", {"min_bytes": 1, "transport": "ring"}),
        ("ps", {}),
        ("ps-load-balancing", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_equivalent(twice_as_many, strategy, params):
    case = twice_as_many("digits-mlp", "adam")
    assert case.check(case.plan(strategy, ELEVEN, **params)).equivalent


@pytest.mark.parametrize("transport", ["ring", "tcp"])
def test_rows_of_a_table_in_eleven_parts(twice_as_many, transport):
    case = twice_as_many("word-lm", "adam")
    plan = case.plan("fully-sharded", ELEVEN, min_bytes=1, transport=transport)
    table = next(node for node in plan.nodes if node.sparse and node.partition is not None)
    assert len(table.partition.sizes) == len(ELEVEN)
    assert case.check(plan).equivalent


@pytest.mark.parametrize("params", [{"staleness": 1}, {"backup": 2}], ids=["staleness", "backup"])
def test_nobody_waits_for_ever_where_updates_do_not_wait_for_all(twice_as_many, params):
    case = twice_as_many("digits-mlp", "adam")
    plan = case.plan("ps", ELEVEN, **params)
    with InProcessCluster(programs_of(case.step, plan), case.initial) as cluster:
        losses = cluster.steps([*case.batches, *case.batches])
    assert np.isfinite(losses).all()
