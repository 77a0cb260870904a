"""The answer of a night that is published, in words and as a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.cli.answer import Answer
from harness.cli.nightly.answer_in_lines import answer_in_lines
from harness.cli.nightly.commits_of_change import commits_of
from harness.cli.nightly.publishing import PublishedNight
from harness.errors import EXIT_CASE, EXIT_OK, EXIT_REGRESSION
from reports.history import wording
from reports.history.verdicts import NightVerdict


def night_answer(
    store: Path,
    night: PublishedNight,
    *,
    otherwise: int,
    heading: Sequence[str] = (),
    fields: Mapping[str, object] | None = None,
    others: Sequence[PublishedNight] = (),
) -> Answer:
    """What a person and a program are told of a night.

    Args:
        otherwise: exit status where nothing has regressed or newly drifts, and no case computes something
            else.
        heading: lines above all others. fields: of the document, beside the night's.
        others: nights of other experiments, with a line each; the status is of all.
    """
    verdict = night.verdict
    lines = [
        *(_other_line(other.verdict) for other in others),
        *heading,
        wording.verdict_line(verdict),
        *wording.further_lines(verdict, commits_of),
        *([f"code: {', '.join(code)}"] if (code := wording.code_of(verdict.night)) else []),
        *([] if night.report is None else [f"report: {night.report}"]),
    ]
    document = {
        **(fields or {}),
        **({"others": [_other_entry(other) for other in others]} if others else {}),
        "store": str(store),
        **_entry(night),
    }
    verdicts = [each.verdict for each in (night, *others)]
    return answer_in_lines(lines, document=document, exit_status=_exit_status(verdicts, otherwise))


def _exit_status(verdicts: Sequence[NightVerdict], otherwise: int) -> int:
    if any(each.regressed or each.new_drifts for each in verdicts):
        return EXIT_REGRESSION
    # As its run ends, also where the night is imported or replayed.
    return EXIT_CASE if otherwise == EXIT_OK and any(each.wrong for each in verdicts) else otherwise


def _entry(night: PublishedNight) -> Mapping[str, object]:
    return {
        **wording.document_of(night.verdict, commits_of),
        "report": None if night.report is None else str(night.report),
    }


def _other_line(verdict: NightVerdict) -> str:
    return f"{verdict.night.experiment}: {wording.verdict_line(verdict)}"


def _other_entry(night: PublishedNight) -> Mapping[str, object]:
    return {"experiment": night.verdict.night.experiment, **_entry(night)}
