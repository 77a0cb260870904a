"""Compressed strategies are held to the bounds that their compressors state, and mistakes leave these."""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]
pytest.importorskip("tensorflow")

import keras
import tensorflow as tf
from cases import Case, case_of_model
from model import N_CLASSES, Model, mean_cross_entropy, on_labelled
from test_model_types import biased_convolution
from test_mutations import After, one_shard_less, reweighted

from harness.verification.verdict import BoundVerdict
from harness.verification.worker import bounds
from harness.verification.worker.check import check_bounds
from strategies.numerics.compressors import Cast, Feedback
from strategies.passes.pass_order import passes_of
from strategies.plan.compressors import BY_NAME
from strategies.plan.schema import Plan

STRATEGIES = ("ps-load-balancing", "all-reduce", "hierarchical-all-reduce")
OPTIONS = {"topk": {"compressor_ratio": 0.1}, "powersgd": {"compressor_rank": 2}}


def bounded(case: Case, plan: Plan) -> BoundVerdict:
    assert plan.strategy_class == "bounded"
    assert any(node.compressor for node in plan.nodes)
    return check_bounds(case.step, case.initial, plan, case.batches)


def plan_of(case: Case, strategy: str, compressor: str, replicas: tuple[int, ...] = (2, 1), **more) -> Plan:
    return case.plan(strategy, replicas, compressor=compressor, **OPTIONS.get(compressor, {}), **more)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("compressor", BY_NAME)
def test_a_sound_compressor_stays_within_its_bound(cases, strategy, compressor):
    case = cases.of("digits-mlp", "adam")
    verdict = bounded(case, plan_of(case, strategy, compressor))
    assert replace(verdict, worst=None) == BoundVerdict(within=True, reason=None)
    assert verdict.worst is not None
    assert 0 < verdict.worst.error <= (1 + 1e-9) * verdict.worst.bound


@pytest.mark.parametrize(
    ("strategy", "compressor"),
    [
        ("partitioned-ps", "fp16"),
        ("partitioned-all-reduce", "topk"),
        ("partitioned-all-reduce", "powersgd"),
    ],
)
def test_parts_have_bounds_of_their_own(cases, strategy, compressor):
    case = cases.of("digits-cnn", "momentum")
    plan = plan_of(case, strategy, compressor)
    assert any(node.compressor and node.partition for node in plan.nodes)
    assert bounded(case, plan).within is True


@pytest.fixture(scope="module")
def biased(shared) -> Case:
    """A bias before BatchNormalization, which has a gradient of pure rounding."""
    keras.backend.clear_session()
    return case_of_model(biased_convolution(1), shared / "biased")


@pytest.mark.parametrize("value", [1.0, np.nan])
def test_what_rounding_cannot_make_is_noticed_where_it_hides_the_rest(biased, monkeypatch, value):
    plan, plain = plan_of(biased, "all-reduce", "bf16", (1, 1)), bounds.passed_on

    def passed_on(session, step, batch, boundaries):
        values, loss = plain(session, step, batch, boundaries)
        of_bias = [b.variable.endswith("conv/bias") for b in boundaries]
        return [v + value if wrong else v for v, wrong in zip(values, of_bias, strict=True)], loss

    monkeypatch.setattr(bounds, "passed_on", passed_on)
    bound = bounded(biased, plan)
    assert bound.within is False
    assert "conv/bias" in bound.reason


def low_rank_update() -> Model:
    """A low-rank update of a kernel: its second factor begins at zero, and so the gradient of the first."""
    dense = keras.layers.Dense(N_CLASSES, name="frozen")
    dense.build((None, 3))
    dense.enable_lora(2)
    optimizer = keras.optimizers.SGD(0.2)
    optimizer.build(dense.trainable_variables)

    @tf.function
    def train(batch):
        with tf.GradientTape() as tape:
            loss = mean_cross_entropy(batch[1], dense(batch[0]))
        variables = dense.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    return on_labelled(train, owned=[*dense.variables, *optimizer.variables])


@pytest.fixture(scope="module")
def low_rank(shared) -> Case:
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    return case_of_model(low_rank_update(), shared / "low-rank")


@pytest.mark.parametrize("lost", [None, 0, 1, 2])
@pytest.mark.parametrize("compressor", ["topk", "fp16-ef"])
def test_a_step_without_a_gradient_hides_no_other(low_rank, monkeypatch, compressor, lost):
    """In a step that is lost nothing is passed on of the variable, or in the first, of no gradient, ones."""
    plan, plain, result = plan_of(low_rank, "all-reduce", compressor, (1, 1)), bounds.passed_on, Counter()

    def passed_on(session, step, batch, boundaries):
        values, loss = plain(session, step, batch, boundaries)
        n = result[session.program.task]
        result[session.program.task] += 1
        factor = [n == lost and b.variable.endswith("lora_kernel_a") for b in boundaries]
        return [
            np.zeros_like(v) + (n == 0) if wrong else v for v, wrong in zip(values, factor, strict=True)
        ], loss

    monkeypatch.setattr(bounds, "passed_on", passed_on)
    actual = bounded(low_rank, plan)
    assert actual.within is (lost is None), actual.reason
    assert actual.undecidable == ()


def test_micro_batches_are_compressed_together(cases):
    case = cases.of("digits-mlp", "momentum")
    assert bounded(case, plan_of(case, "all-reduce", "bf16-ef", (1, 1), accumulate=2)).within is True


def mistaken(monkeypatch: pytest.MonkeyPatch, pass_name: str, mistake) -> None:
    def with_mistake(plan: Plan, task: int):
        return tuple(After(p, mistake) if p.name == pass_name else p for p in passes_of(plan, task))

    monkeypatch.setattr("strategies.compile.passes_of", with_mistake)


MISTAKES = {
    "half the gradient": reweighted(lambda weight, _: weight / 2),
    "times N": reweighted(lambda weight, t: weight * t.n_replicas),
    "one shard dropped": one_shard_less,
}


@pytest.mark.parametrize("compressor", ["bf16", "topk"])
def test_one_gradient_that_is_rounding_hides_no_other(biased, monkeypatch, compressor):
    plan = plan_of(biased, "all-reduce", compressor, (1, 1))
    bound = bounded(biased, plan)
    assert bound.within is True, bound.reason
    assert [name for name in bound.undecidable if name.endswith("conv/bias")]
    mistaken(monkeypatch, "replicate", MISTAKES["half the gradient"])
    assert bounded(biased, plan).within is False


@pytest.mark.parametrize(
    ("mistake", "compressor"),
    [
        *itertools.product(["half the gradient", "one shard dropped"], BY_NAME),
        # Half the gradient is harder to notice: all compressors are tried with it.
        ("times N", "fp16"),
    ],
)
def test_a_mistake_leaves_the_bound(cases, monkeypatch, compressor, mistake):
    case = cases.of("digits-mlp", "adam")
    mistaken(monkeypatch, "replicate", MISTAKES[mistake])
    verdict = bounded(case, plan_of(case, "all-reduce", compressor))
    assert verdict.within is False
    assert verdict.reason


@pytest.mark.parametrize("strategy", ["ps-load-balancing", "all-reduce"])
def test_memory_that_is_not_kept_is_noticed(cases, monkeypatch, strategy):
    monkeypatch.setattr("strategies.numerics.compressors.next_residual", lambda lost: lost / 2)
    case = cases.of("digits-mlp", "adam")
    # A ratio that no other test has: equal codecs are traced once.
    plan = case.plan(strategy, (2, 1), compressor="topk", compressor_ratio=0.17)
    assert bounded(case, plan).within is False


def test_what_is_not_compressed_is_held_to_rounding(cases, monkeypatch):
    case = cases.of("digits-mlp", "adam")
    plan = plan_of(case, "all-reduce", "powersgd")
    assert any(node.compressor is None for node in plan.nodes)

    def biases_halved(step, _):
        def halved(b):
            lighter = tuple(replace(c, weight=c.weight / 2) for c in b.contributions)
            return replace(b, contributions=lighter) if b.variable.endswith("bias") else b

        return replace(step, boundaries=tuple(map(halved, step.boundaries)))

    mistaken(monkeypatch, "replicate", biases_halved)
    assert bounded(case, plan).within is False


@pytest.mark.parametrize("compressor", BY_NAME)
def test_the_bound_of_one_encoding_holds_and_is_not_idle(compressor):
    """Against the codec itself, on gradients of many sizes and shapes."""
    from strategies.numerics.compressors import codec_of
    from strategies.plan.schema import Compression

    option = {"topk": {"ratio": 0.1}, "powersgd": {"rank": 2}, "qsgd": {"levels": 127}}.get(compressor, {})
    codec = codec_of(Compression(name=compressor, **option), n_terms=1)
    inner = codec.codec if isinstance(codec, Feedback) else codec
    import tensorflow as tf

    random = np.random.default_rng(0)
    for scale in (1e-9, 1e-3, 1.0, 1e6):
        for dims in ((64, 40), (600, 3), (1, 8)):
            gradient = random.standard_cauchy(dims) * scale
            state = [
                tf.constant(random.normal(size=spec.dims), spec.dtype)
                if spec.initial == "normal"
                else tf.zeros(spec.dims, spec.dtype)
                for spec in inner.states(dims, "double")
            ]
            payload, _ = inner.encode(tf.constant(gradient), *state)
            lost = np.linalg.norm(inner.decode(payload, dims, tf.float64).numpy() - gradient)
            assert lost <= inner.loss_bound(gradient) * (1 + 1e-9)
            if not isinstance(inner, Cast) or scale == 1.0:
                assert inner.loss_bound(gradient) <= np.linalg.norm(gradient) * (1 + 1e-9)
