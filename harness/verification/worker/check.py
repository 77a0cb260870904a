"""Comparison of a strategy with the reference, in one process."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain

from harness.errors import UsageError
from harness.verification.reference import Checked, Outcome, Reference, returned
from harness.verification.verdict import BoundVerdict, Verdict
from harness.verification.verification import BY_MORE_REFERENCES
from harness.verification.worker.boundary_values import crossings_of, passed_norms
from harness.verification.worker.bounds import BoundMeter, compressed_steps
from harness.verification.worker.in_process import InProcessCluster, programs_of
from harness.verification.worker.rounding import (
    EPS,
    MORE_VARIATIONS,
    PLAIN,
    VARIATIONS,
    Rounding,
    coarsest_eps,
)
from harness.verification.worker.shard_steps import Combine, ShardSteps
from harness.worker.session.capture_store import InitialValues
from harness.worker.session.checkpoint import left_out
from harness.worker.variable_parts import Array
from strategies.compile import Compiled, compile_tasks
from strategies.ir.graph import element_bytes, n_elements
from strategies.ir.train_graph import TrainGraph
from strategies.plan.schema import COMPARED_WITH_REFERENCE, Plan
from strategies.planner import topology_of
from strategies.program import Program
from strategies.tf_bridge.op_types import computed_types
from strategies.topology import Topology

_LONGEST_S = 300.0
"""Time limit of a thorough reference."""
MOST_GRADIENT_BYTES = 512 * 2**20
"""Largest size of a worker's fetched gradients, because fetched values are in memory twice."""


def make_reference(
    step: TrainGraph,
    initial: InitialValues,
    topology: Topology,
    batches: Sequence[Sequence[Array]],
    combine: Combine | None = None,
    *,
    thorough: bool = False,
) -> Reference:
    """Run the reference, and others that differ by rounding, one step for each global batch.

    Args:
        combine: returns inputs of updates in place of exact sums.
        thorough: True runs 64 others, or as many as five minutes allow; False runs three.
    """
    eps = coarsest_eps(computed_types(step))
    roundings = [PLAIN, *(MORE_VARIATIONS if thorough else VARIATIONS)]
    outcomes = run_references(step, initial, topology, batches, roundings, eps=eps, combine=combine)
    return Reference.of(
        compared_variables(step),
        next(outcomes),
        _within(_LONGEST_S, outcomes) if thorough else outcomes,
        loss_eps=loss_eps(step),
        gradient_eps=eps,
    )


def _within(seconds: float, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    """Outcomes until the time is over, at least as many as usual."""
    end_s = time.monotonic() + seconds
    for n, outcome in enumerate(outcomes, 1):
        yield outcome
        if n >= len(VARIATIONS) and time.monotonic() > end_s:
            return


def run_references(
    step: TrainGraph,
    initial: InitialValues,
    topology: Topology,
    batches: Sequence[Sequence[Array]],
    roundings: Sequence[Rounding],
    *,
    eps: float,
    combine: Combine | None = None,
) -> Iterator[Outcome]:
    """Run the reference on global batches, one step each, once for each way of rounding.

    Args:
        eps: rounding unit of the coarsest dtype in the forward and backward pass.
    """
    with ExitStack() as opened:
        shards = None
        for rounding in roundings:
            if shards is None or not shards.starts_over:
                opened.close()
                shards = opened.enter_context(ShardSteps(step, initial, topology))
            shards.begin(rounding, eps)
            before = shards.snapshot()
            losses = tuple(shards.step(n, batch, combine) for n, batch in enumerate(batches))
            yield Outcome(
                values=shards.snapshot(),
                losses=losses,
                gradient_norms=shards.gradient_norms,
                results=shards.results,
                initial=before,
                with_gradient=frozenset(shards.with_gradient),
            )


def compared_variables(step: TrainGraph) -> list[Checked]:
    """Variables of a step; the check compares all of them."""
    return [
        Checked(name=v.name, kind=v.kind, group=v.group, eps=EPS.get(v.dtype, 0.0)) for v in step.variables
    ]


def loss_eps(step: TrainGraph) -> float:
    """Rounding unit of losses: float32's, unless all computations are in float64."""
    return EPS["double"] if coarsest_eps(computed_types(step)) == EPS["double"] else EPS["float"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """Verdict on a strategy, its results, the reference, and unused values of a checkpoint."""

    verdict: Verdict
    outcome: Outcome
    reference: Reference
    notes: tuple[str, ...] = ()


def check_bounds(
    step: TrainGraph, initial: InitialValues, plan: Plan, batches: Sequence[Sequence[Array]]
) -> BoundVerdict:
    """Compare a compressed strategy's losses with its bounds, with all workers in this process.

    Args:
        step: the captured step, rewritten in float64 or not; `initial` and `batches` in the same types.
    """
    compressed = compressed_steps(step, initial, plan, batches)
    eps, topology = coarsest_eps(computed_types(step)), topology_of(plan)

    def judged(*, thorough: bool) -> tuple[BoundVerdict, Verdict]:
        meter = BoundMeter(step=step, plan=plan, compressed=compressed, eps=eps)
        reference = make_reference(step, initial, topology, batches, meter.combine, thorough=thorough)
        others = reference.judge(compressed.outcome)
        return meter.verdict(others), others

    verdict, others = judged(thorough=False)
    far = others.equivalent is False and not others.is_slightly_wrong
    if verdict.within is not False or eps == EPS["double"] or far:
        return verdict
    again, others_again = judged(thorough=True)
    return again if others.is_explained_by(others_again) else verdict


def check(
    step: TrainGraph,
    initial: InitialValues,
    plan: Plan,
    batches: Sequence[Sequence[Array]],
    refer: Callable[[], Reference] | None = None,
    compiled: Sequence[Compiled] | None = None,
) -> Checkup:
    """Run a plan with all workers in this process, and compare the outcome with the reference.

    Args:
        step: the captured step, rewritten in float64 or not; `initial` and `batches` in the same types.
        batches: global batches; sizes may differ from the plan's if the step accepts any number of examples.
        refer: returns the reference of the same step, topology and batches; called in a separate thread.
        compiled: programs of the plan by task; None builds them.
    Raises:
        UsageError: raised by `refer`, even if the strategy's steps failed, too.
    """
    refer = refer or partial(make_reference, step, initial, topology_of(plan), batches)
    compiled = compiled or compile_tasks(step, plan, range(topology_of(plan).n_tasks))
    programs = [rewritten.program for rewritten in compiled]
    # Preparing a session keeps one core busy for longer than its steps keep two.
    with ThreadPoolExecutor(1, "reference") as beside, _mistakes_first(beside.submit(refer)) as compared:
        outcome = _outcome(step, initial, plan, batches, compiled)
        reference = compared.result()
    verdict, notes = reference.judge(outcome), []
    if reference.may_be_rounding(verdict, plan.strategy_class):
        thorough = make_reference(step, initial, topology_of(plan), batches, thorough=True)
        verdict, notes = thorough.tolerances.judge_again(verdict), [BY_MORE_REFERENCES]
    return Checkup(
        verdict=verdict,
        outcome=outcome,
        reference=reference,
        notes=(*left_out(programs[0].variables, initial, {v.name for v in step.variables}), *notes),
    )


def _outcome(
    step: TrainGraph,
    initial: InitialValues,
    plan: Plan,
    batches: Sequence[Sequence[Array]],
    compiled: Sequence[Compiled],
) -> Outcome:
    programs = [rewritten.program for rewritten in compiled]
    crossings = (
        [crossings_of(rewritten.step) for rewritten in compiled] if _passes_on(step, plan, programs) else []
    )
    fetching = [[result.tensor for result in program.step.results] for program in programs]
    for refs, of_task in zip(fetching, crossings, strict=False):
        refs.extend(ref for crossing in of_task for ref in crossing.tensors)
    with InProcessCluster(programs, initial, fetching=fetching) as cluster:
        for size in sorted({len(batch[0]) for batch in batches} - {plan.batch_size}):
            cluster.take_up(programs_of(step, plan.model_copy(update={"batch_size": size})))
        # Only one at a time, because a run of a loop makes several steps.
        first = 1 if crossings else 0
        losses = cluster.steps(batches[:first])
        passed = [values[len(program.step.results) :] for program, values in cluster.further()]
        norms = passed_norms(step, crossings, passed) if crossings else {}
        losses += cluster.steps(batches[first:])
        last = [zip(program.step.results, values, strict=False) for program, values in cluster.further()]
        return Outcome(
            values=cluster.read(),
            losses=losses,
            gradient_norms=norms,
            results=returned(chain.from_iterable(last)),
        )


def _passes_on(step: TrainGraph, plan: Plan, programs: Sequence[Program]) -> bool:
    """True if steps update by their own gradients, and these are small enough to be fetched."""
    n_bytes = sum(
        n_elements(b.shape.dims or ()) * element_bytes(b.dtype) for b in step.gradients() if b.indices is None
    )
    in_turn = all(
        p.step.n_taken is None and p.step.progress is None and p.step.steps_per_run is None for p in programs
    )
    return plan.strategy_class in COMPARED_WITH_REFERENCE and in_turn and n_bytes <= MOST_GRADIENT_BYTES


@contextmanager
def _mistakes_first(compared: Future[Reference]) -> Iterator[Future[Reference]]:
    """Raise a user's mistake first, such as an undeclared sum, which makes the strategy's steps diverge."""
    try:
        yield compared
    except Exception as error:
        mistake = compared.exception()
        if isinstance(mistake, UsageError) and mistake is not error:
            raise mistake  # noqa: B904 - it has causes of its own, and what failed as its context
        raise
