"""Records to make again in a resumed run, because user files have changed."""

from collections.abc import Sequence

from harness.errors import UsageError
from harness.experiment.cases import Case
from harness.measure.windows import timed_unit
from harness.records.record import Record
from harness.run.recorder import files_of
from strategies.plan.execution import Execution


def outdated_records(records: Sequence[Record], cases: Sequence[Case]) -> tuple[Record, ...]:
    """Earlier records for which a user file, or one of their baseline, has changed since."""
    files = {case.id: files_of(case) for case in cases}
    changed = {
        record.case
        for record in records
        if record.provenance is not None
        and files.get(record.case, record.provenance.files) != record.provenance.files
    }
    return tuple(
        record
        for record in records
        if record.case in changed or (record.rounds is not None and record.rounds.baseline in changed)
    )


def changed_files(outdated: Sequence[Record], cases: Sequence[Case]) -> list[str]:
    """User files that differ from those of the records."""
    now = {name: digest for case in cases for name, digest in files_of(case).items()}
    return sorted(
        {
            name
            for record in outdated
            if record.provenance is not None
            for name, digest in record.provenance.files.items()
            if now.get(name, digest) != digest
        }
    )


def require_timed_units(records: Sequence[Record], cases: Sequence[Case]) -> None:
    """Refuse to add repeats to records that an older version timed by another unit.

    Raises:
        UsageError: for the first such record.
    """
    units = {case.id: timed_unit(Execution.of(case.chosen.params)) for case in cases}
    for record in records:
        unit = units.get(record.case, record.timed_unit)
        if record.status == "ok" and record.method is not None and record.timed_unit != unit:
            raise UsageError(
                f"--resume needs records that are timed by {unit}, got one of an older version for "
                f"{record.case}; name another folder with --out",
                field="out",
            )


def require_placements(records: Sequence[Record], cases: Sequence[Case]) -> None:
    """Refuse to add repeats to GPU records from before the memory of batches was recorded.

    Raises:
        UsageError: for the first such record.
    """
    on_gpus = {
        case.id
        for case in cases
        if case.shape.hardware == "gpu" and case.chosen.strategy.runner != "coordinator"
    }
    for record in records:
        method = record.method if record.status == "ok" and record.case in on_gpus else None
        if method is not None and method.input_placement is None:
            raise UsageError(
                "--resume needs records that say where batches were, got one of an older version for "
                f"{record.case}; name another folder with --out",
                field="out",
            )
