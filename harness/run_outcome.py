"""Outcome of a run, by its records: how its cases ended, and what exit status that costs."""

from harness.errors import EXIT_CASE, EXIT_OK, EXIT_USAGE
from harness.provision.failures import USER_ERROR
from harness.records.record import Record
from harness.records.results_file import DAMAGED
from harness.records.run_folder import RunFolder
from harness.requests import RunOutcome, Written


def outcome_of(folder: RunFolder, written: Written | None) -> RunOutcome:
    """What a run in a folder came to.

    Args:
        written: its report; None where nothing has been recorded.
    """
    records = folder.records
    n = {
        status: sum(r.status == status for r in records)
        for status in ("ok", "failed", "skipped", "implausible")
    }
    return RunOutcome(
        run_dir=folder.path,
        report=written,
        n_ok=n["ok"],
        n_failed=n["failed"],
        n_skipped=n["skipped"],
        n_implausible=n["implausible"],
        exit_status=_exit_status(records),
        notes=tuple(
            f"results.jsonl line {line.number}: {line.why}; put aside in {DAMAGED}, so that its repeat "
            "runs again"
            for line in folder.put_aside
        ),
    )


def _exit_status(records: tuple[Record, ...]) -> int:
    if any(r.error is not None and r.error.type == USER_ERROR for r in records):
        return EXIT_USAGE
    wrong = any(r.equivalence is not None and r.equivalence.wrong and not r.control for r in records)
    failed = any(r.status == "failed" and not r.is_broken_by_faults for r in records)
    return EXIT_CASE if wrong or failed else EXIT_OK
