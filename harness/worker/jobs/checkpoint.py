"""Jobs that gather workers' state and write a checkpoint."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.worker.jobs.training import Training
from harness.worker.process.job import JobState
from harness.worker.variable_parts import Pieces, values_of


@dataclass(slots=True, frozen=True, kw_only=True)
class _Gathered:
    values: Mapping[str, Pieces]


def gather_checkpoint(state: JobState, shared: Collection[str], writer: bool) -> Mapping[str, Pieces]:
    """Values that this worker adds to a checkpoint; the writer keeps its own share in its process.

    All workers run this together, since reading may need them all.

    Args:
        shared: variables of which all replicas have equal copies.
    """
    from harness.worker.session.checkpoint import contribution

    values = contribution(state.get(Training).session.read(), shared)
    if not writer:
        return values
    state.put(_Gathered(values=values))
    return {}


def write_checkpoint(
    state: JobState,
    folder: str,
    model: Collection[str],
    others: Sequence[Mapping[str, Pieces]],
    step: int,
) -> None:
    """Write this worker's and the others' gathered values into a folder.

    Args:
        model: names of the model's own variables.
    Raises:
        CaseError: `checkpoint-unwritable`.
    """
    from harness.worker.session.checkpoint import write_checkpoint as write

    write(Path(folder), values_of([state.get(_Gathered).values, *others]), model, step)
