"""Reference of a captured step, whether its shards mean what it means, and whether bounds are kept."""

from pathlib import Path
from typing import TYPE_CHECKING

from harness.equivalence.separability import Separability
from harness.worker.jobs.batches import read_batches
from harness.worker.process.job import JobState

if TYPE_CHECKING:
    from harness.equivalence.reference_outcome import Reference
    from harness.equivalence.verdict import BoundVerdict
    from strategies.plan.schema import Plan
    from strategies.topology import Topology


def reference(
    state: JobState, capture_folder: str, batch_folder: str, topology: "Topology", n_steps: int
) -> "Reference":
    """The reference of a captured step in its own types, after so many steps on the first batches."""
    from harness.worker.session.capture_store import InitialValues, load_step
    from harness.worker.verify.check import make_reference

    folder = Path(capture_folder)
    batches = read_batches(Path(batch_folder), n=n_steps)
    return make_reference(load_step(folder), InitialValues(folder), topology, batches)


def separability(
    state: JobState, capture_folder: str, batch_folder: str, topology: "Topology"
) -> "Separability":
    """Whether the shards of the first batch mean what a captured step means on the whole of it.

    Raises:
        UsageError: the loss is a sum over examples and is not said to be one, or the other way round.
    """
    from harness.worker.session.capture_store import InitialValues, load_step
    from harness.worker.verify.whole_batch import separability_of

    folder = Path(capture_folder)
    (batch,) = read_batches(Path(batch_folder), n=1)
    return separability_of(load_step(folder), InitialValues(folder, float64=True), topology, batch)


def bounds(
    state: JobState, capture_folder: str, batch_folder: str, plan: "Plan", n_steps: int
) -> "BoundVerdict":
    """Whether a compressed strategy stays within its bounds in as many steps, in the model's own types.

    Its workers share this process: what crosses their boundaries is looked at, which timed steps do not show.
    """
    from harness.worker.session.capture_store import InitialValues, load_step
    from harness.worker.verify.check import check_bounds

    folder = Path(capture_folder)
    batches = read_batches(Path(batch_folder), n=n_steps)
    return check_bounds(load_step(folder), InitialValues(folder), plan, batches)
