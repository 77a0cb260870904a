"""Records to make again in a resumed run, because user files have changed."""

from collections.abc import Sequence

from harness.experiment.cases import Case
from harness.records.record import Record
from harness.run.recorder import files_of


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
