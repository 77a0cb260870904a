"""What pytest-benchmark has written, as a night: each benchmark's median in seconds.

Benchmarks of cases, as the fixture `strategy_benchmark` makes them, say in their `extra_info` of which
workload and strategy they are, under what circumstances, and what they cost beside seconds.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from reports.history.database import HistoryError
from reports.history.figures import MEMORY, METRICS, SECONDS, Figure, Subject
from reports.history.store import History, Night

_MACHINE = ("machine", "processor", "system", "python_implementation", "python_version")
_CPU = ("brand_raw", "count", "arch")
_COSTS = {
    "payload_bytes_per_step": METRICS["payload_bytes"],
    "tcp_bytes_per_step": METRICS["tcp_bytes"],
    "peak_rss_bytes": MEMORY,
}
"""Of a case: name in `extra_info` → what it is in a history. Its rate says no more than its seconds."""


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
    for benchmark in document["benchmarks"]:
        extra: Mapping[str, object] = benchmark.get("extra_info") or {}
        subject = Subject(
            case=str(benchmark["fullname"]),
            workload=str(extra.get("workload") or benchmark.get("group") or "benchmarks"),
            shape=str(facts["brand_raw"] or facts["processor"] or "this machine"),
            strategy=str(extra.get("strategy") or benchmark["name"]),
            comparison_key=_key(facts, extra.get("comparison_key")),
            lock_hash=str(extra.get("lock_hash") or ""),
            metric=SECONDS.name,
        )
        yield from _of_benchmark(subject, benchmark["stats"], extra)


def _of_benchmark(
    subject: Subject, stats: Mapping[str, Any], extra: Mapping[str, object]
) -> Iterator[Figure]:
    median, rounds = float(stats["median"]), int(stats["rounds"])
    # Rounds of one repeat of a case have its processes in common, and so are no evidence each.
    repeats = extra.get("repeats")
    n = repeats if isinstance(repeats, int) and repeats >= 1 else rounds
    if math.isfinite(median) and median > 0:
        error = float(stats["stddev"]) / median / math.sqrt(n) if min(n, rounds) > 1 else None
        yield Figure(subject=subject, value=median, error=error, n=n)
    for name, metric in _COSTS.items():
        value = extra.get(name)
        if isinstance(value, int | float) and math.isfinite(value) and value > 0:
            yield Figure(subject=replace(subject, metric=metric.name), value=value, error=None, n=n)


def _key(facts: Mapping[str, object], of_case: object) -> str:
    """Of the machine, and of a case's own circumstances if it is one's."""
    known = {**facts, **({} if of_case is None else {"comparison_key": of_case})}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]


def _utc(text: str) -> str:
    """A moment with its zone; one without is of UTC, as pytest-benchmark means it."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()
