"""Collectives of programs on cores: parts of sums where parts will do, and whole sums where they will not."""

from collections import Counter
from dataclasses import replace

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

import keras
import tensorflow as tf
from cases import Case, case_of_model
from layer_models import perceptron

from harness.verification.worker.in_process import programs_of
from strategies.planner import exchanges

SCATTER, SUM, GATHER = "CollectiveAllToAllV2", "CollectiveReduceV2", "CollectiveGatherV2"


def collectives(case: Case, **params: object) -> Counter[str]:
    """Collectives of one replica's program of a step, by op."""
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
    operations = collectives(case, reshard=True)
    assert (operations[SUM], operations[SCATTER]) == (n_trainables(case), 0)


K = keras.optimizers
OPTIMIZERS = {
    "clipped by its own norm": lambda: K.SGD(0.1, momentum=0.9, clipnorm=0.01),
    "clipped by value": lambda: K.Adam(0.05, clipvalue=0.01),
    "lamb": lambda: K.Lamb(0.05),
    "adafactor": lambda: K.Adafactor(0.05),
    "lion": lambda: K.Lion(0.01),
    "centered": lambda: K.RMSprop(0.01, centered=True),
    "ftrl": lambda: K.Ftrl(0.05),
    "accumulated": lambda: K.Adam(0.05, gradient_accumulation_steps=2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_plans_predict_which_sums_are_whole(name, tmp_path):
    keras.backend.clear_session()
    case = case_of_model(perceptron(OPTIMIZERS[name]()), tmp_path).with_examples(4)
    plan = case.plan("tpu-replicate", (2,), reshard=True)
    ops = [flow.op for flow in exchanges(plan, case.summary)]
    operations = collectives(case, reshard=True)
    predicted = ops.count("sum"), ops.count("scatter")
    # Of LAMB's update slots are needed whole in place of the gradient; a plan says that it does not know.
    is_guess = name == "lamb"
    assert ((operations[SUM], operations[SCATTER]) == predicted) is not is_guess
    is_whole = predicted[0] > 0
    assert any("updates take their norms, means or branches" in note for note in plan.notes) == is_whole
