"""Provenance of runs: facts of each run, and facts that differ between runs or records."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from harness.records.safe_text import redacted_document
from reports.load import Run, legible
from reports.quantities import byte_count
from reports.rows.report import FactDifference, FactValue, Origin

# Shown in this order, before the other facts of environment.json.
_NAMES = {
    "experiment": "experiment",
    "command": "made by",
    "created_utc": "started (UTC)",
    "spec_hash": "spec hash",
    "provider": "provider",
    "exposed": "servers reachable from other hosts",
    "machine.cpu_model": "processor",
    "machine.n_cores": "cores",
    "machine.memory_bytes": "memory",
    "machine.architecture": "architecture",
    "machine.kernel": "kernel",
    "machine.gpus.model": "GPU",
    "machine.gpus.driver": "driver of GPUs",
    "machine.gpus.cuda": "CUDA",
    "machine.gpus.cudnn": "cuDNN",
    "machine.gpus.power_limit_w": "power limit of a GPU, W",
    "provenance.git_sha": "stratbench commit",
    "provenance.git_dirty": "uncommitted changes",
    "provenance.workload.name": "workload's repository",
    "provenance.workload.git_sha": "commit of the workload's repository",
    "provenance.workload.git_dirty": "uncommitted changes there",
    "provenance.lock_hash": "lock file hash",
    "provenance.image_digest": "worker image",
    "method.cores_per_worker": "cores per worker",
    "method.memory_per_worker_bytes": "memory per worker",
    "method.pinned": "each worker has its own cores",
    "method.warmup_rule": "warm-up rule",
    "method.steps": "timed steps",
    "method.interleave": "repeats interleaved",
    "method.batch_rule": "batch rule",
    "method.seed": "seed",
}


_Facts = dict[str, Counter[str]]
"""Dotted name of a fact → number of records of each value; 0 for a fact of the whole run."""


def origin_of(run: Run) -> Origin:
    """Facts of one run, from its experiment, records and environment.

    All values of a fact are shown: a report must not hide that two machines took part.
    """
    facts = _facts_of_records(run)
    for name, value in (
        ("experiment", run.experiment.get("name")),
        ("created_utc", run.stored.created_utc),
        ("spec_hash", run.stored.spec_hash),
    ):
        _count(facts, name, value, 0)
    _add_environment(facts, run.stored.environment)
    named = [name for name in _NAMES if name in facts]
    versions = sorted(name for name in facts if name.startswith("provenance.versions."))
    rest = [name for name in facts if name not in _NAMES and name not in versions]
    texts = {name: "; ".join(facts[name]) for name in (*named, *versions, *rest)}
    experiment = redacted_document(run.experiment)
    return Origin(
        run=run.name,
        folder=folder_name(run),
        facts=tuple((shown_name(name), text) for name, text in texts.items() if text),
        experiment=experiment if isinstance(experiment, Mapping) else {},
    )


def _add_environment(facts: _Facts, environment: Mapping[str, object]) -> None:
    known = {text for texts in facts.values() for text in texts}
    of_workers = any(name.startswith("machine.") for name in facts)
    for name, text in leaves("", environment):
        # The driver may run on another machine, and environment.json repeats facts of the records under
        # other names.
        if not (of_workers and name.startswith("machine.")) and (text not in known or len(text) < 4):
            _count(facts, name, text, 0)


def folder_name(run: Run) -> str:
    """Name of a run's folder, without its path."""
    return legible(run.stored.path.resolve().name)


def shown_name(name: str) -> str:
    """Name of a fact for readers, from its dotted name."""
    if name in _NAMES:
        return _NAMES[name]
    return name.removeprefix("provenance.versions.").removeprefix("method.").replace("_", " ")


def leaves(name: str, value: object) -> Iterator[tuple[str, str]]:
    """Leaves of nested mappings by dotted name, without missing values; other lists become one leaf."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(f"{name}.{key}" if name else str(key), item)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        if value and all(isinstance(item, Mapping) for item in value):
            for item in value:
                yield from leaves(name, item)
        elif value:
            yield name, ", ".join(str(item) for item in value)
    elif isinstance(value, bool):
        yield name, "yes" if value else "no"
    elif value is not None and value != "":
        is_bytes = name.endswith("_bytes") and isinstance(value, int | float)
        if is_bytes and isinstance(value, int | float):
            yield name, byte_count(float(value))
        else:
            # Records store cores as floats: 1.0 is shown as 1.
            yield name, f"{value:g}" if isinstance(value, float) and value.is_integer() else str(value)


# Facts that define a case differ by design.
_OF_CASES = tuple(
    f"method.{name}"
    for name in ("scenario", "faults", "precision", "xla", "tf32", "replicas_on_gpus", "timed_unit")
)
# A missing one of these is not set or not installed, which is a difference, too.
_ABSENCE_DIFFERS = ("environ.", "provenance.versions.")


def differences_of(runs: Sequence[Run]) -> tuple[FactDifference, ...]:
    """Facts that differ between runs or records, without those of each run, such as its start."""
    of_runs = [_facts_of_records(run) for run in runs]
    for facts, run in zip(of_runs, runs, strict=True):
        _count(facts, "environ", run.stored.environment.get("environ"), 0)
    names = dict.fromkeys(name for facts in of_runs for name in facts)
    return tuple(
        FactDifference(fact=shown_name(name), values=tuple(_values(facts.get(name)) for facts in of_runs))
        for name in names
        if name not in _OF_CASES and _differs(name, of_runs)
    )


def _differs(name: str, of_runs: Sequence[_Facts]) -> bool:
    distinct = {text for facts in of_runs for text in facts.get(name, ())}
    is_absent = any(name not in facts for facts in of_runs)
    return len(distinct) > 1 or (is_absent and name.startswith(_ABSENCE_DIFFERS))


def _values(counted: Counter[str] | None) -> tuple[FactValue, ...]:
    if counted is None:
        return ()
    return tuple(FactValue(text=text, n_records=n or None) for text, n in counted.most_common())


def _facts_of_records(run: Run) -> _Facts:
    facts: _Facts = {}
    for name in ("machine", "provenance", "method", "provider", "exposed"):
        # Thousands of records share a few values. These contain mappings, so they have no hash; equal ones
        # have equal texts.
        values = [value for record in run.records if (value := getattr(record, name)) is not None]
        texts = [repr(value) for value in values]
        counts = Counter(texts)
        for text, value in dict(zip(texts, values, strict=True)).items():
            _count(facts, name, value, counts[text])
    return facts


def _count(facts: _Facts, name: str, value: object, n_records: int) -> None:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    for path, text in leaves(name, value):
        facts.setdefault(path, Counter())[str(redacted_document(text, name=path))] += n_records
