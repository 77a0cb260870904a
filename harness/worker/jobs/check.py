"""Reference of a captured step, whether its shards mean what it means, and verdicts beside real workers."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.equivalence.separability import Separability
from harness.worker.jobs.arithmetic import compute_exactly
from harness.worker.jobs.batches import Batch, read_batches
from harness.worker.process.job import JobState

if TYPE_CHECKING:
    from harness.equivalence.reference_outcome import Reference
    from harness.equivalence.verdict import BoundVerdict, Verdict
    from harness.worker.session.capture_store import InitialValues
    from strategies.ir.train_graph import TrainGraph
    from strategies.plan.schema import Plan
    from strategies.topology import Topology


def reference(
    state: JobState,
    capture_folder: str,
    batch_folder: str,
    topology: "Topology",
    n_steps: int,
    float64: bool,
) -> "Reference":
    """The reference of a captured step, in float64 or its own types, after so many steps."""
    from harness.worker.jobs.step_failures import naming_users_line
    from harness.worker.verify.check import make_reference

    compute_exactly(topology.device)
    step, initial, batches = captured_step(capture_folder, batch_folder, n_steps, float64=float64)
    with naming_users_line(capture_folder, topology, partial(read_batches, Path(batch_folder), n=n_steps)):
        return make_reference(step, initial, topology, batches)


def verdict_in_float64(
    state: JobState, capture_folder: str, batch_folder: str, plan: "Plan", reference: "Reference"
) -> "Verdict":
    """The verdict on a plan whose workers share this process, in float64, after the reference's steps.

    Args:
        reference: of the same topology, in float64.
    """
    from harness.worker.verify.check import check

    compute_exactly(plan.device)
    n_steps = reference.yardstick.n_steps
    step, initial, batches = captured_step(capture_folder, batch_folder, n_steps, float64=True)
    return check(step, initial, plan, batches, lambda: reference).verdict


def separability(
    state: JobState, capture_folder: str, batch_folder: str, topology: "Topology"
) -> "Separability":
    """Whether the shards of the first batch mean what a captured step means on the whole of it.

    Raises:
        UsageError: the loss is a sum over examples and is not said to be one, or the other way round.
    """
    from harness.worker.jobs.step_failures import naming_users_line
    from harness.worker.session.capture_store import InitialValues, load_step
    from harness.worker.verify.whole_batch import separability_of

    compute_exactly(topology.device)
    folder = Path(capture_folder)
    (batch,) = read_batches(Path(batch_folder), n=1)
    with naming_users_line(capture_folder, topology, partial(read_batches, Path(batch_folder), n=1)):
        return separability_of(load_step(folder), InitialValues(folder, float64=True), topology, batch)


def bounds(
    state: JobState, capture_folder: str, batch_folder: str, plan: "Plan", n_steps: int, float64: bool
) -> "BoundVerdict":
    """Whether a compressed strategy stays within its bounds in as many steps, in float64 or its own types.

    Its workers share this process: what crosses their boundaries is looked at, which timed steps do not show.
    """
    from harness.worker.jobs.step_failures import naming_users_line
    from harness.worker.verify.check import check_bounds
    from strategies.planner import topology_of

    compute_exactly(plan.device)
    step, initial, batches = captured_step(capture_folder, batch_folder, n_steps, float64=float64)
    with naming_users_line(
        capture_folder, topology_of(plan), partial(read_batches, Path(batch_folder), n=n_steps)
    ):
        return check_bounds(step, initial, plan, batches)


def captured_step(
    capture_folder: str, batch_folder: str, n_steps: int, *, float64: bool
) -> tuple["TrainGraph", "InitialValues", list[Batch]]:
    """A captured step, its initial values and its first batches, all in float64 or in their own types."""
    from harness.worker.session.capture_store import InitialValues, in_float64, load_step
    from strategies.tf_bridge.float64 import step_in_float64

    folder = Path(capture_folder)
    step, initial = load_step(folder), InitialValues(folder, float64=float64)
    batches: Sequence[Batch] = read_batches(Path(batch_folder), n=n_steps)
    if not float64:
        return step, initial, list(batches)
    return step_in_float64(step), initial, [[in_float64(part) for part in batch] for batch in batches]
