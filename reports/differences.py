"""Facts that runs of one report, or records of one run, do not have in common: why figures may differ."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from harness.records.record import Record
from harness.records.redaction import redacted_document
from reports.load import Run
from reports.origins import leaves, shown_name
from reports.rows import FactDifference, FactValue

# What a case is: comparisons are made of it, so that it differs as it should.
_OF_CASES = tuple(
    f"method.{name}" for name in ("scenario", "faults", "precision", "xla", "tf32", "replicas_on_gpus")
)
# Where these are not there, they are not set or not installed, which is a difference, too.
_ABSENCE_TELLS = ("environ.", "provenance.versions.")
_OF_RECORDS = ("machine", "provenance", "method")

_Values = Mapping[str, Counter[str]]


def differences_of(runs: Sequence[Run]) -> tuple[FactDifference, ...]:
    """Facts that differ, by name; what every run says of itself, such as its start, is none of them."""
    of_runs = [_facts(run) for run in runs]
    names = dict.fromkeys(name for facts in of_runs for name in facts)
    return tuple(
        FactDifference(fact=shown_name(name), values=tuple(_values(facts.get(name)) for facts in of_runs))
        for name in names
        if name not in _OF_CASES and _differs(name, of_runs)
    )


def _differs(name: str, of_runs: Sequence[_Values]) -> bool:
    distinct = {text for facts in of_runs for text in facts.get(name, ())}
    is_absent = any(name not in facts for facts in of_runs)
    return len(distinct) > 1 or (is_absent and name.startswith(_ABSENCE_TELLS))


def _values(counted: Counter[str] | None) -> tuple[FactValue, ...]:
    if counted is None:
        return ()
    # Facts of a run as a whole are counted by none of its records.
    return tuple(FactValue(text=text, n_records=n or None) for text, n in counted.most_common())


def _facts(run: Run) -> _Values:
    """Values of each fact by its dotted name, and in how many records each stands."""
    facts: dict[str, Counter[str]] = {}
    for section in _OF_RECORDS:
        for value, n in _distinct(run.records, section):
            if dataclasses.is_dataclass(value) and not isinstance(value, type):
                _count(facts, section, dataclasses.asdict(value), n)
    for name in ("provider", "exposed"):
        for value, n in _distinct(run.records, name):
            _count(facts, name, value, n)
    _count(facts, "environ", run.stored.environment.get("environ"), 0)
    return facts


def _count(facts: dict[str, Counter[str]], name: str, value: object, n: int) -> None:
    for path, text in leaves(name, value):
        facts.setdefault(path, Counter())[str(redacted_document(text, name=path))] += n


def _distinct(records: Sequence[Record], section: str) -> Sequence[tuple[object, int]]:
    """Each value of a field that is there once, and in how many records: thousands share a few."""
    values: dict[str, object] = {}
    counts: Counter[str] = Counter()
    for record in records:
        value = getattr(record, section)
        if value is not None:
            # Sections hold mappings, which have no hash; equal ones are written alike.
            written = repr(value)
            values.setdefault(written, value)
            counts[written] += 1
    return [(values[written], n) for written, n in counts.items()]
