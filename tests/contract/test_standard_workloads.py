"""Standard workloads, tiny, compute under every exact strategy what they compute on one device.

By default one of each kind meets one of a few strategies; with `--all-cases` each meets all.
"""

import functools
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from matrix import CORE_ROWS, ROWS

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(1200)]
pytest.importorskip("tensorflow")

from cases import Case, one_at_a_time
from model import Model

from harness.verification.worker.in_process import programs_of
from strategies.ir.random_ops import require_seeds_of_variables
from workloads import registry
from workloads.data.examples import examples_of
from workloads.table import WORKLOADS

STANDARD = tuple(name for name, entry in WORKLOADS.items() if entry.sizes)
TOPOLOGIES = ((2, 1), (1, 2), (2, 2))
N_STEPS = 2
# One of each kind of model, with one strategy of each family.
FEW = ("linear-regression", "vgg16", "bert-base", "gpt-small", "lm1b", "ncf", "dlrm", "resnet50")
FAMILIES = ("all-reduce", "ps", "partitioned-ps", "sharded-update")


def pytest_generate_tests(metafunc):
    if "workload" in metafunc.fixturenames:
        # Others are deeper or wider kinds of these.
        metafunc.parametrize("workload", STANDARD if metafunc.config.getoption("--all-cases") else FEW)
    if "combination" not in metafunc.fixturenames:
        return
    topologies = itertools.cycle(TOPOLOGIES)
    if metafunc.config.getoption("--all-cases"):
        pairs = zip(STANDARD, topologies, strict=False)
        chosen = [(*pair, row) for pair in pairs for row in ROWS if row not in CORE_ROWS]
    else:
        chosen = list(zip(FEW, topologies, itertools.cycle(FAMILIES), strict=False))
    metafunc.parametrize("combination", chosen, ids=lambda c: f"{c[0]}-{'+'.join(map(str, c[1]))}-{c[2]}")


def tiny(name: str) -> Model:
    """The workload's tiny size and a batch for each step, of a length that shards do not share evenly."""
    workload = registry.resolve(name, {"size": "tiny"})
    examples = examples_of(workload)
    fed = itertools.islice(examples.batches(workload.batch_size - 1), N_STEPS)
    return Model(
        step=workload.train_step(),
        spec=examples.dataset.element_spec,
        batches=[list(batch) for batch in fed],
    )


@pytest.fixture(scope="module")
def standard(shared: Path, all_cases: bool) -> Callable[[str], Case]:
    """Cases by name; a few of them stay in memory, so that each is captured once."""
    of = one_at_a_time(tiny, shared / "standard")
    return of if all_cases else functools.cache(of)


@pytest.mark.parametrize("name", ["lm1b", "ncf", "dlrm"])
def test_all_reduce_of_tables_needs_no_server(standard, name):
    case = standard(name)
    plan = case.plan("all-reduce", (1, 1))
    assert {node.transport for node in plan.nodes if node.sparse} == {"tcp"}
    assert all(program.self_contained for program in programs_of(case.step, plan))


@pytest.mark.parametrize("name", ["lm1b", "bert-base", "dlrm"])
def test_tensorflow_s_strategies_can_draw_what_a_standard_workload_draws(standard, name):
    require_seeds_of_variables(standard(name).step.graph)


def test_a_standard_workload_is_captured_as_written(standard, workload):
    verdict = standard(workload).capture_verdict()
    assert verdict.equal is True, verdict.explanation
    # Kernels are the same, so that not even rounding differs.
    assert verdict.max_error < 1e-6


def test_a_standard_workload_is_trained_as_on_one_device(standard, combination):
    name, replicas, row = combination
    strategy, params = ROWS[row]
    case = standard(name)
    verdict = case.check(case.plan(strategy, replicas, **params))
    assert verdict.equivalent is True, verdict.reason
    assert verdict.loss.limits.decide
