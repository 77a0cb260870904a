"""Collectives of programs on cores: parts of sums where parts will do, and whole sums where they will not."""

from collections import Counter
from dataclasses import replace

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

import tensorflow as tf
from cases import Case

from harness.worker.verify.in_process import programs_of

SCATTER, SUM, GATHER = "CollectiveAllToAllV2", "CollectiveReduceV2", "CollectiveGatherV2"


def collectives(case: Case, **params: object) -> Counter[str]:
    """What one replica's program of a step exchanges, by op."""
    batches = [[part[:4] for part in batch] for batch in case.batches]
    even = replace(case, batches=batches, _references={}, _verdicts={})
    (program,) = programs_of(even.step, even.plan("tpu-replicate", (2,), **params))
    library = tf.compat.v1.GraphDef.FromString(program.graph_def).library
    (body,) = [f.node_def for f in library.function if f.signature.name.endswith("__replica_1")]
    return Counter(node.op for node in body if node.op.startswith("Collective"))


def n_trainables(case: Case) -> int:
    return sum(v.kind == "trainable" for v in case.summary.variables)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_gradients_of_what_lies_in_parts_are_summed_in_parts(cases, optimizer):
    case = cases.of("digits-mlp", optimizer)
    n = n_trainables(case)
    assert collectives(case, reshard=True) == {SCATTER: n, GATHER: n}
    assert collectives(case) == {SUM: n}


def test_gradients_of_which_all_take_the_norm_are_summed_whole(cases):
    case = cases.of("wide-mlp", "adamw-clipped")
    found = collectives(case, reshard=True)
    assert (found[SUM], found[SCATTER]) == (n_trainables(case), 0)
