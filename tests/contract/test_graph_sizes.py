"""A worker's graph does not grow with the number of workers."""

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from strategies.passes.pass_order import passes_of
from strategies.registry import STRATEGIES, make_plan
from strategies.topology import Topology

KERNELS = {"min_bytes": 200}
PARAMS = {
    "sharded-ps": KERNELS,
    "sharded-update": {"transport": "ring", **KERNELS},
    "fully-sharded": {"transport": "ring", **KERNELS},
}
OF_WORKERS = [s.name for s in STRATEGIES if s.runner == "graph" and not s.single and not s.on_one_host]


def n_nodes(case, strategy, n, task, **params):
    """Nodes of a worker's graph among n workers."""
    topology = Topology(replicas_per_task=(1,) * n, batch_size=n)
    step = case.step
    plan = make_plan(strategy, {**PARAMS.get(strategy, {}), **params}, case.summary, topology)
    for rewrite in passes_of(plan, task):
        step = rewrite.apply(step, topology)
    return len(step.graph.nodes)


@pytest.mark.parametrize("task", [0, 1])
@pytest.mark.parametrize("strategy", OF_WORKERS)
def test_a_worker_of_many_has_few_nodes_more_than_one_of_two(cases, strategy, task):
    """Sixteen workers have a part of most kernels, 1,024 of none."""
    case = cases.of("wide-mlp", "momentum")
    two, *many = (n_nodes(case, strategy, n, task) for n in (2, 16, 1024))
    assert max(many) <= 3 * two
