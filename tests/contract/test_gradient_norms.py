"""A gradient of a wrong scale is seen where clipping hides it from updates."""

from dataclasses import replace

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]
pytest.importorskip("tensorflow")

from test_mutations import After, reweighted

from harness.verification.worker.check import check
from strategies.passes.pass_order import passes_of

TOPOLOGY = (2, 1)
STRATEGIES = (
    "ps-load-balancing",
    "all-reduce",
    "hierarchical-all-reduce",
    "sharded-update",
    "partitioned-ps",
    "parallax",
)


@pytest.fixture(scope="module")
def clipped(cases):
    """A model whose updates depend on the direction of gradients alone."""
    return cases.model("clipped-and-averaged")


def verdict_of(case, strategy):
    plan = case.plan(strategy, TOPOLOGY)
    return check(case.step, case.initial, plan, case.batches, lambda: case.reference(TOPOLOGY)).verdict


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_a_wrong_scale_is_seen(clipped, monkeypatch, strategy, factor):
    sound = verdict_of(clipped, strategy)
    assert sound.equivalent is True
    assert {g.name for g in sound.gradients} == {v.name for v in sound.variables if v.kind == "trainable"}

    def mistaken(plan, task):
        scaled = reweighted(lambda weight, _: weight * factor)
        return tuple(After(p, scaled) if p.name == "replicate" else p for p in passes_of(plan, task))

    monkeypatch.setattr("strategies.compile.passes_of", mistaken)
    verdict = verdict_of(clipped, strategy)
    assert not any(v.wrong for v in verdict.variables)
    assert verdict.equivalent is False
    assert "the norm of the first gradient of" in verdict.reason
    assert max(g.error for g in verdict.gradients) == pytest.approx(abs(factor - 1))


def test_what_each_copy_passes_on_counts(clipped):
    norms = clipped.reference(TOPOLOGY).tolerances.gradient_norms
    (name, place), norm = next(iter(norms.items()))
    reference = clipped.reference(TOPOLOGY)
    alike = {(name, place): [norm.value, norm.value]}
    assert reference.judge(replace(reference.outcome, gradient_norms=alike)).equivalent is True
    other = {(name, place): [norm.value, 2 * norm.value]}
    assert reference.judge(replace(reference.outcome, gradient_norms=other)).equivalent is False


def test_a_norm_that_is_nothing_but_rounding_shows_nothing(clipped):
    reference = clipped.reference(TOPOLOGY)
    tolerances = reference.tolerances
    (gradient, norm), *_ = tolerances.gradient_norms.items()
    rounding = replace(norm, limits=replace(norm.limits, tolerance=0.5))
    norms = {**tolerances.gradient_norms, gradient: rounding}
    noisy = replace(reference, tolerances=replace(tolerances, gradient_norms=norms))
    assert noisy.judge(replace(noisy.outcome, gradient_norms={gradient: [2 * norm.value]})).equivalent is True
