"""Records that a resumed run makes anew, because files of the user have changed since."""

from collections.abc import Sequence

from harness.experiment.cases import Case
from harness.records.record import Record
from harness.run.recorder import files_of


def outdated_records(records: Sequence[Record], cases: Sequence[Case]) -> tuple[Record, ...]:
    """Records of an earlier part of the run whose user's files, or whose baseline's, have changed since."""
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
    """The user's files that are not as records have them."""
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
