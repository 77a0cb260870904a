"""A worker's graph does not grow with the number of workers."""

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from strategies.passes.pass_order import passes_of
from strategies.registry import STRATEGIES, make_plan
from strategies.topology import Topology

SHARDED = {"transport": "ring", "min_bytes": 1}
PARAMS = {"sharded-update": SHARDED, "fully-sharded": SHARDED, "sharded-ps": {"min_bytes": 1}}
ON_CPUS = [s.name for s in STRATEGIES if "cpu" in s.devices and not s.single]


def n_nodes(case, strategy, n, task):
    """Nodes of a worker's graph among n workers."""
    topology = Topology(replicas_per_task=(1,) * n, batch_size=n)
    step = case.step
    plan = make_plan(strategy, PARAMS.get(strategy, {}), case.summary, topology)
    for rewrite in passes_of(plan, task):
        step = rewrite.apply(step, topology)
    return len(step.graph.nodes)


@pytest.mark.parametrize("strategy", ON_CPUS)
def test_a_worker_of_many_has_few_nodes_more_than_one_of_two(cases, strategy):
    """Sixteen workers have a part of each kernel, 1,024 of none."""
    case = cases.of("wide-mlp", "momentum")
    for task in (0, 1):
        two, *many = (n_nodes(case, strategy, n, task) for n in (2, 16, 1024))
        print("NODES", strategy, task, two, *many)
        assert max(many) <= 3 * two
