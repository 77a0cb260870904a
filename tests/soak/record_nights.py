"""Series of runs of one experiment and code, for `test_recorded_nights.py`.

python tests/soak/record_nights.py "what they are of" RUN_DIR... > tests/soak/recorded_nights.json
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from reports.history.figures import Subject, run_night


def recorded(folders: Sequence[Path]) -> tuple[list[str], list[dict[str, object]]]:
    """When runs began, in that order, and every series, which has a figure of each.

    Raises:
        SystemExit: a run has no figure of a case, or is not comparable with the others.
    """
    nights = sorted(
        (run_night(folder, notify=sys.exit) for folder in folders),
        key=lambda night: night.started_utc,
    )
    series: dict[Subject, list[tuple[float, float | None]]] = {}
    for night in nights:
        for figure in night.figures:
            series.setdefault(figure.subject, []).append((figure.value, figure.error))
    short = [subject.case for subject, figures in series.items() if len(figures) != len(nights)]
    if short:
        sys.exit(f"every series must have a figure of each run, got fewer of {', '.join(sorted(set(short)))}")
    return [night.started_utc for night in nights], [
        {
            "workload": subject.workload,
            "strategy": subject.strategy,
            "metric": subject.metric,
            "values": [rounded(value) for value, _ in figures],
            "errors": [None if error is None else rounded(error) for _, error in figures],
        }
        for subject, figures in series.items()
    ]


def rounded(value: float) -> float:
    """To six digits."""
    return float(f"{value:.6g}")


if __name__ == "__main__":
    began, series = recorded([Path(path) for path in sys.argv[2:]])
    head = json.dumps({"what": sys.argv[1], "began": began}, indent=2)[:-2]
    lines = ",\n    ".join(map(json.dumps, series))
    sys.stdout.write(f'{head},\n  "series": [\n    {lines}\n  ]\n}}\n')
