"""What pytest-benchmark has written, as a night: each benchmark's median in seconds."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from reports.history.database import HistoryError
from reports.history.figures import SECONDS, Figure, Subject
from reports.history.store import History, Night

_MACHINE = ("machine", "processor", "system", "python_implementation", "python_version")
_CPU = ("brand_raw", "count", "arch")


def added_benchmarks(history: History, file: Path) -> Night:
    """Write the medians of a file as a night; a file that is there already is not written again.

    Args:
        file: as `pytest --benchmark-json` writes it.
    Raises:
        HistoryError: it is none.
    """
    try:
        text = file.read_text()
        document = json.loads(text)
        figures = tuple(_figures(document))
        started_utc = _utc(str(document["datetime"]))
        commit = document.get("commit_info") or {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"[:200]
        raise HistoryError(f"{file} must be a file of pytest-benchmark, got {why}; name another") from None
    return history.add(
        figures,
        (),
        started_utc=started_utc,
        experiment="pytest-benchmark",
        run=hashlib.sha256(text.encode()).hexdigest(),
        run_dir=str(file),
        git_sha=commit.get("id"),
        git_dirty=commit.get("dirty"),
    )


def _figures(document: Mapping[str, Any]) -> Iterator[Figure]:
    machine = document.get("machine_info") or {}
    cpu = machine.get("cpu") or {}
    facts = {
        **{name: machine.get(name) for name in _MACHINE},
        **{name: cpu.get(name) for name in _CPU},
    }
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    for benchmark in document["benchmarks"]:
        stats = benchmark["stats"]
        median, rounds = float(stats["median"]), int(stats["rounds"])
        if not (math.isfinite(median) and median > 0):
            continue
        error = float(stats["stddev"]) / median / math.sqrt(rounds) if rounds > 1 else None
        subject = Subject(
            case=str(benchmark["fullname"]),
            workload=str(benchmark.get("group") or "benchmarks"),
            shape=str(facts["brand_raw"] or facts["processor"] or "this machine"),
            strategy=str(benchmark["name"]),
            comparison_key=key,
            lock_hash="",
            metric=SECONDS.name,
        )
        yield Figure(subject=subject, value=median, error=error, n=rounds)


def _utc(text: str) -> str:
    """A moment with its zone; one without is of UTC, as pytest-benchmark means it."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()
