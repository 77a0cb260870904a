"""`verify --shrink` names the pass that was broken and the variable that shows it first."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from cases import Cases

from harness.verification.reference import Outcome
from harness.verification.worker.check import check
from harness.verification.worker.divergence import first_divergence
from strategies.numerics.collectives import take_back, take_back_rows
from strategies.passes.collectives import all_reduce, tcp_ring
from strategies.passes.parameter_server import accumulator
from strategies.passes.replicate import contributions

TOPOLOGY = (2, 1)
RING = "all-reduce:transport=ring"
WEIGHTED_SUM, NUMBER_ROWS = contributions.weighted_sum, accumulator.number_rows


def half_weights(*values: Any, weights: tuple[float, ...]) -> Any:
    return WEIGHTED_SUM(*values, weights=tuple(weight / 2 for weight in weights))


def no_collective(*tensors: Any, shapes: Any, **_: Any) -> list[Any]:
    return [tf.identity(value) for value in tensors[: len(shapes)]]


def a_constant(*, shares: Any, dtype: Any) -> list[Any]:
    back = take_back(shares=shares, dtype=dtype)
    return [tf.ones_like(value) for value in back]


def doubled(**static: Any) -> list[Any]:
    return [t * 2.0 if t.dtype.is_floating else t for t in take_back_rows(**static)]


def no_gather(rows: Any, ids: Any, **_: Any) -> tuple[Any, Any]:
    return tf.identity(rows), tf.identity(ids)


def doubled_rows(rows: Any, ids: Any, **static: int) -> tuple[Any, Any]:
    numbered, unique = NUMBER_ROWS(rows, ids, **static)
    return numbered * 2.0, unique


@pytest.mark.parametrize(
    ("strategy", "module", "function", "broken", "blamed", "sparse"),
    [
        ("ps", contributions, "weighted_sum", half_weights, "local-reduce", False),
        ("all-reduce", contributions, "weighted_sum", half_weights, "local-reduce", False),
        (RING, all_reduce, "keyed_all_reduce", no_collective, "dense-all-reduce", False),
        ("all-reduce", tcp_ring, "take_back", a_constant, "tcp-all-reduce", False),
        (RING, all_reduce, "gather_rows", no_gather, "sparse-all-gather", True),
        ("all-reduce", tcp_ring, "take_back_rows", doubled, "tcp-all-reduce", True),
        ("ps", accumulator, "number_rows", doubled_rows, "sync-ps", True),
    ],
)
def test_the_broken_pass_is_named(
    cases: Cases,
    monkeypatch: pytest.MonkeyPatch,
    strategy: str,
    module: Any,
    function: str,
    broken: Callable[..., Any],
    blamed: str,
    sparse: bool,
) -> None:
    model = cases.of("word-lm", "adam")
    plan = (
        model.plan("all-reduce", TOPOLOGY, transport="ring")
        if strategy == RING
        else model.plan(strategy, TOPOLOGY)
    )
    reference = model.reference(TOPOLOGY)
    monkeypatch.setattr(module, function, broken)
    verdict = check(model.step, model.initial, plan, model.batches, lambda: reference).verdict
    assert not verdict.equivalent
    divergence = first_divergence(model.step, model.initial, plan, model.batches[0], verdict)
    assert divergence.pass_name == blamed
    (embedding,) = [b.variable for b in model.step.boundaries if b.indices is not None]
    assert (divergence.variable == embedding) is sparse


def test_without_synchronisation_nothing_passes_on_what_all_bring(cases: Cases) -> None:
    model = cases.of("word-lm", "adam")
    plan = model.plan("none", TOPOLOGY)
    verdict = check(model.step, model.initial, plan, model.batches, lambda: model.reference(TOPOLOGY)).verdict
    divergence = first_divergence(model.step, model.initial, plan, model.batches[0], verdict)
    assert divergence.pass_name == "replicate"


def test_gradients_after_an_update_are_compared_where_replicas_share_it(
    cases: Cases, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = cases.model("sharpness-aware")
    assert max(b.level for b in model.step.boundaries) > 1
    plan = model.plan("all-reduce", TOPOLOGY, transport="ring")
    reference = model.reference(TOPOLOGY)
    monkeypatch.setattr(all_reduce, "keyed_all_reduce", no_collective)
    verdict = check(model.step, model.initial, plan, model.batches, lambda: reference).verdict
    divergence = first_divergence(model.step, model.initial, plan, model.batches[0], verdict)
    assert divergence.pass_name == "dense-all-reduce"


def test_of_steps_in_a_loop_on_the_device_the_last_pass_is_named(cases: Cases) -> None:
    model = cases.model("digits-mlp+momentum").for_row("tpu-replicate", (1, 1))
    plan = model.plan("tpu-replicate", (1, 1))
    reference = model.reference((1, 1))
    verdict = reference.judge(Outcome(values={copy: value + 1 for copy, value in reference.values.items()}))
    assert verdict.equivalent is False
    divergence = first_divergence(model.step, model.initial, plan, model.batches[0], verdict)
    assert divergence.pass_name == "tpu-emulation"
    assert divergence.variable in {v.name for v in verdict.variables if v.wrong}
