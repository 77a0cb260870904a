"""The check in a model's own types, where rounding hides much: it sees mistakes or what it cannot see.

By default few models meet few strategies there; with `--all-cases` every model meets every exact strategy on
every topology, from three seeds.
"""

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]
tf = pytest.importorskip("tensorflow")

import keras
from cases import Case, case_of_model, digests_of
from layer_models import bfloat16_weights
from matrix import CORE_ROWS, ROWS, TOPOLOGIES, refusal
from model import LABELLED, Model
from models import MODELS
from test_mutations import after, broken, one_shard_less, reweighted, without

from harness.verification.verdict import Verdict
from harness.verification.worker.in_process import InProcessCluster, programs_of
from strategies.ir.train_graph import TrainGraph
from strategies.plan.schema import Plan
from strategies.planner import topology_of
from strategies.topology import Topology
from workloads import TrainStep

N_STEPS = 4
SEEDS = (1, 2, 3)
FEW = ("digits-cnn+adam", "word-lm+rmsprop", "recurrent", "normalised")
IMAGE = (tf.TensorSpec((6, 6, 2), tf.float32), LABELLED[1])


def biased_convolution(seed: int) -> Model:
    """A bias before BatchNormalization has a gradient of pure rounding, which Adam makes whole steps of."""
    layers = keras.layers
    return classifier(
        [
            layers.Conv2D(8, 3, name="conv"),
            layers.BatchNormalization(name="norm"),
            layers.ReLU(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(4, name="head"),
        ],
        seed,
    )


def classifier(hidden: list[keras.Layer], seed: int, optimizer: keras.Optimizer | None = None) -> Model:
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((6, 6, 2)), *hidden])
    optimizer = optimizer or keras.optimizers.Adam(1e-2)
    optimizer.build(model.trainable_variables)
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def loss(batch):
        images, labels = batch
        return entropy(labels, tf.cast(model(images, training=True), tf.float32))

    random = np.random.default_rng(seed)
    fed = [
        [
            random.normal(size=(8, 6, 6, 2)).astype(np.float32),
            random.integers(0, 4, 8).astype(np.int32),
        ]
        for _ in range(N_STEPS)
    ]
    return Model(
        step=TrainStep(loss=loss, variables=model.trainable_variables, optimizer=optimizer),
        spec=IMAGE,
        batches=fed,
    )


@pytest.fixture(scope="module")
def convolution(shared: Path) -> Case:
    keras.backend.clear_session()
    return case_of_model(biased_convolution(1), shared / "biased-convolution", float64=False)


def scaled_loss(step: TrainGraph, topology: Topology) -> TrainGraph:
    return replace(step, losses=tuple(replace(loss, weight=loss.weight * 2) for loss in step.losses))


MISTAKES: dict[str, tuple[tuple[int, ...], Callable]] = {
    "half the gradient": ((1, 1), after("replicate", reweighted(lambda weight, _: weight / 2))),
    "loss scaled by N": ((1, 1), after("replicate", reweighted(lambda weight, t: weight * t.n_replicas))),
    "loss told twice as large": ((1, 1), after("replicate", scaled_loss)),
    "no collective": ((1, 1), without("dense-all-reduce")),
    "one shard dropped": ((2, 1), after("replicate", one_shard_less)),
}


@pytest.mark.parametrize("global_statistics", [False, True], ids=["own statistics", "sync_batch_norm"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_noise_of_one_variable_excuses_no_other(convolution: Case, mistake: str, global_statistics: bool):
    replicas, change = MISTAKES[mistake]
    plan = convolution.plan("all-reduce", replicas, transport="ring", sync_batch_norm=global_statistics)
    wrong = convolution.run(plan, broken(convolution, plan, change))
    assert wrong.equivalent is not True, wrong
    if wrong.equivalent is None:
        assert wrong.reason


@pytest.mark.parametrize("global_statistics", [False, True], ids=["own statistics", "sync_batch_norm"])
def test_a_sound_strategy_is_not_called_wrong(convolution: Case, global_statistics: bool):
    plan = convolution.plan("all-reduce", (1, 1), sync_batch_norm=global_statistics)
    verdict = convolution.check(plan)
    assert verdict.equivalent is not False, verdict.reason
    bias = of_name(verdict, "conv/bias")
    kernel = of_name(verdict, "head/kernel")
    # What is nothing but rounding is said to be so; the rest is held to a tolerance of its own.
    assert not bias.decidable
    assert kernel.decidable
    assert bias.name in verdict.undecidable


def of_name(verdict: Verdict, end: str):
    return next(v for v in verdict.variables if v.kind == "trainable" and v.name.endswith(end))


def test_a_loss_scale_that_overflows_proves_nothing(shared: Path):
    keras.backend.clear_session()
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        inner = keras.optimizers.SGD(0.1)
        scaled = keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**120)
        model = classifier([keras.layers.Flatten(), keras.layers.Dense(4)], 0, scaled)
        case = case_of_model(model, shared / "overflow", float64=False)
    finally:
        keras.mixed_precision.set_dtype_policy("float32")
    verdict = case.check(case.plan("all-reduce", (1, 1)))
    assert verdict.equivalent is None
    assert "did not move although the gradient is not zero" in verdict.reason


def test_variables_of_bfloat16_are_compared(shared: Path):
    case = case_of_model(bfloat16_weights(), shared / "bfloat16", float64=False)
    verdict = case.check(case.plan("all-reduce", (1, 1)))
    # Four steps of eight bits are too few to tell a mistake from rounding.
    assert verdict.equivalent is None
    assert "--dtype float64" in verdict.reason


def pytest_generate_tests(metafunc):
    if "combination" not in metafunc.fixturenames:
        return
    if metafunc.config.getoption("--all-cases"):
        chosen = [(SEEDS, *combination) for combination in itertools.product(MODELS, TOPOLOGIES, ROWS)]
    else:
        chosen = [
            (SEEDS[:1], model, topology, row)
            for model, topology in zip(FEW, TOPOLOGIES[1:], strict=False)
            for row in ("all-reduce", "ps", "partitioned-ps", "sharded-update", "tpu-replicate")
        ]
    # The equivalence matrix meets those that cores do not train.
    chosen = [combination for combination in chosen if refusal(combination[1], combination[3]) is None]
    metafunc.parametrize(
        "combination",
        chosen,
        ids=lambda c: f"{c[1]}-{'+'.join(map(str, c[2]))}-{c[3]}-seed{'+'.join(map(str, c[0]))}",
    )


@dataclass(frozen=True)
class OneGraph:
    """Cases that differ in their initial values and batches alone."""

    cases: list[Case]
    _verdicts: dict[Hashable, list[Verdict]] = field(default_factory=dict)

    def for_row(self, row: str, replicas: tuple[int, ...]) -> "OneGraph":
        """The cases that a strategy can train."""
        return OneGraph([case.for_row(row, replicas) for case in self.cases]) if row in CORE_ROWS else self

    def check(self, plan: Plan) -> list[Verdict]:
        """A verdict for each case, on the same sessions; once for plans that have the same programs."""
        first, *others = self.cases
        programs = programs_of(first.step, plan)
        known = (topology_of(plan), digests_of(programs))
        if known not in self._verdicts:
            with InProcessCluster(programs, first.initial) as cluster:
                verdicts = [first.judge(cluster, plan)]
                for case in others:
                    cluster.begin(case.initial)
                    verdicts.append(case.judge(cluster, plan))
            self._verdicts[known] = verdicts
        return self._verdicts[known]


@pytest.fixture(scope="module")
def in_own_types(shared: Path):
    """The cases of one model at a time, one for each seed, by their graphs."""
    graphs: dict[str, list[OneGraph]] = {}

    def of(name: str, seeds: Sequence[int]) -> list[OneGraph]:
        if name not in graphs:
            graphs.clear()
            groups: list[OneGraph] = []
            for seed in seeds:
                keras.backend.clear_session()
                keras.utils.set_random_seed(seed)
                case = case_of_model(MODELS[name](), shared / f"{name}-{seed}", float64=False)
                group = next((group for group in groups if group.cases[0].step == case.step), None)
                if group is None:
                    groups.append(group := OneGraph([]))
                group.cases.append(case)
            graphs[name] = groups
        return graphs[name]

    return of


def test_no_exact_strategy_is_called_wrong(in_own_types, combination):
    seeds, name, replicas, row = combination
    strategy, params = ROWS[row]
    for group in (group.for_row(row, replicas) for group in in_own_types(name, seeds)):
        for verdict in group.check(group.cases[0].plan(strategy, replicas, **params)):
            assert verdict.equivalent is not False, verdict.reason
