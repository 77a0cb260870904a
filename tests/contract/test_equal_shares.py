"""Batches of which every replica has as much: the ring weighs sums, in place of each worker its gradients."""

from dataclasses import replace

import pytest

# Where a mistake leaves workers waiting for each other, the test must not wait long.
pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]
pytest.importorskip("tensorflow")

from cases import Case, case_of_model
from layer_models import bfloat16_weights

from harness.verification.worker.in_process import programs_of
from harness.worker.transport.tcp_ring import Ring

N_EXAMPLES = 6
STRATEGIES = ("all-reduce", "hierarchical-all-reduce", "sharded-update", "fully-sharded")
MEANS, SUMS = "means", "sums"
# Forward state, rows beside dense gradients, sums in place of means, and levels that follow one another.
MODELS = {
    "digits-mlp+adamw-clipped": MEANS,
    "digits-cnn+momentum": MEANS,
    "word-lm+momentum": MEANS,
    "summed": SUMS,
    "averaged-state": MEANS,
    "thrice": MEANS,
}
EVEN = ((1, 1), (2, 1), (1, 1, 1), (3, 3))


def even(case: Case) -> Case:
    """A case with as many examples in each batch as its replicas can share equally."""
    batches = [[part[:N_EXAMPLES] for part in batch] for batch in case.batches]
    return replace(case, batches=batches, _references={}, _verdicts={})


def factors(case: Case, plan):
    """Factors by which transfers multiply the sums of dense gradients."""
    summed = [
        t for p in programs_of(case.step, plan) for t in p.step.transfers if t.kind in ("sum", "scatter")
    ]
    return {transfer.factor for transfer in summed}


@pytest.fixture(scope="module")
def even_mlp(cases) -> Case:
    return even(cases.of("digits-mlp", "momentum"))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("model", MODELS)
def test_sums_that_the_ring_weighs_are_those_of_one_device(cases, model, strategy):
    case = even(cases.model(model))
    replicas = EVEN[(STRATEGIES.index(strategy) + list(MODELS).index(model)) % len(EVEN)]
    plan = case.plan(strategy, replicas)
    verdict = case.check(plan)
    worst = max(verdict.variables, key=lambda v: v.update_error)
    assert verdict.equivalent, f"{worst.name} is off by {worst.update_error:.1e}"
    expected = {MEANS: {1.0 / sum(replicas)}, SUMS: {1.0}}
    assert factors(case, plan) == expected[MODELS[model]]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("replicas", EVEN)
def test_every_mean_is_weighed_as_a_sum(even_mlp, strategy, replicas):
    assert factors(even_mlp, even_mlp.plan(strategy, replicas)) == {1.0 / sum(replicas)}


def test_a_sum_is_rounded_for_its_way_when_it_is_weighed(even_mlp):
    assert factors(even_mlp, even_mlp.plan("all-reduce", (2, 1), compressor="bf16")) == {1.0 / 3}


def test_sums_of_a_small_type_could_overflow_before_they_are_weighed(shared):
    case = even(case_of_model(bfloat16_weights(), shared / "bfloat16-sums", float64=False))
    assert factors(case, case.plan("all-reduce", (1, 1))) == {1.0}


@pytest.mark.parametrize(
    ("replicas", "params"),
    [((2, 2), {}), ((1, 1), {"compressor": "bf16-ef"})],
    ids=["uneven", "owed"],
)
def test_what_is_not_weighed_alike_is_weighed_before(even_mlp, replicas, params):
    assert factors(even_mlp, even_mlp.plan("all-reduce", replicas, **params)) == {1.0}


@pytest.mark.parametrize(("strategy", "method"), [("all-reduce", "sum"), ("sharded-update", "scatter")])
def test_a_sum_that_is_left_as_it_is_is_noticed(even_mlp, monkeypatch, strategy, method):
    plan = even_mlp.plan(strategy, (2, 1))
    assert even_mlp.check(plan).equivalent
    sound = getattr(Ring, method)
    monkeypatch.setattr(Ring, method, lambda *args: sound(*args[:-1]))
    assert not even_mlp.check(plan).equivalent
