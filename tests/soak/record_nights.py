"""Writes `recorded_nights.json` anew: figures of run folders of one experiment, each of them a night.

python tests/soak/record_nights.py "what was recorded" RUN_DIR... > tests/soak/recorded_nights.json
"""

import json
import math
import sys
from collections import defaultdict
from pathlib import Path

from reports.history.night import run_night


def recorded(folders: list[Path]) -> list[dict[str, object]]:
    """Series of all nights, in the order in which they began; a series that lacks one is left out."""
    nights = sorted((run_night(folder, tell=print) for folder in folders), key=lambda each: each.started_utc)
    series = defaultdict(list)
    for night in nights:
        for figure in night.figures:
            series[figure.subject].append((math.log(figure.value), figure.error))
    return [
        {
            "workload": subject.workload,
            "strategy": subject.strategy,
            "metric": subject.metric,
            "logs": [round(log, 5) for log, _ in figures],
            "errors": [None if error is None else round(error, 5) for _, error in figures],
        }
        for subject, figures in series.items()
        if len(figures) == len(nights)
    ]


if __name__ == "__main__":
    what, *runs = sys.argv[1:]
    lines = ",\n    ".join(json.dumps(each) for each in recorded([Path(run) for run in runs]))
    sys.stdout.write(f'{{\n  "what": {json.dumps(what)},\n  "series": [\n    {lines}\n  ]\n}}\n')
