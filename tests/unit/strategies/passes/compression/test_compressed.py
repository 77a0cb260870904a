"""Encoded gradients on the workers' own transport, as text."""

from dataclasses import replace

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from golden_steps import check_pass, tiny

from strategies.ir.graph import Shape
from strategies.registry import make_plan
from strategies.summary import summarise
from strategies.topology import Topology

MATRIX = Shape((16, 8))


def matrix():
    """The tiny step with a matrix for its variable."""
    step = tiny()
    return replace(
        step,
        graph=step.graph.with_nodes(
            replace(node, attrs={**node.attrs, "shape": MATRIX}) if node.name == "w" else node
            for node in step.graph.nodes
        ),
        variables=(replace(step.variables[0], shape=MATRIX),),
        boundaries=(replace(step.boundaries[0], shape=MATRIX),),
    )


@pytest.mark.parametrize(
    "params",
    [{"compressor": "powersgd", "compressor_rank": 1}, {"compressor": "topk", "compressor_ratio": 0.1}],
    ids=["powersgd", "topk"],
)
def test_golden(params):
    step = matrix()
    shape = Topology(replicas_per_task=(1, 2), batch_size=3)
    plan = make_plan("all-reduce", params, summarise(step, "matrix", {}), shape)
    name = "compressed-tcp-all-reduce"
    check_pass(step, plan, 1, name, f"{name}-{params['compressor']}-task-1.txt")
