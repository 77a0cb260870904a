"""Documents of a run folder besides its results: default name, identity, experiment and machine."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from harness.atomic_files import write_json, write_text
from harness.canonical import JsonValue, canonical_hash, json_value, slug
from harness.errors import StoreError, first_line
from harness.records.checksums import require_checksum, with_checksum, without_checksum
from harness.records.contained_files import read_inside

LOCK_FILE = ".lock"
RUN_FILE = "run.json"
"""Document that is written last: a folder with it is a run folder."""
EXPERIMENT = "experiment.yaml"
ENVIRONMENT = "environment.json"
RESULTS = "results.jsonl"
INDEX = "results.index"
"""File with a line `<case>/<repeat>` for each line of the results, written after it, to detect lost lines."""
PREDICTIONS = "predictions.json"
"""Predicted steps of the run's cases, made once after they were measured."""
REPORT = "report.html"

CASES = "cases"
"""Folder with `<case>/<repeat>/`, which contain the files below."""
LOGS = "logs"
PLAN = "plan.json"
STEPS = "steps.parquet"
TRACE = "trace.json"
PROFILE = "profile.json"
CHECKPOINT = "checkpoint"
FAILURE_LOG = "failure.log"

_DEFAULT_NAME = re.compile(r"[a-z0-9-]+-\d{8}t\d{6}z-[0-9a-f]{8}")


def default_name(experiment: str, now: datetime) -> str:
    """Make a name for the folder of a run that begins now, in UTC."""
    return f"{slug(experiment)}-{now:%Y%m%dt%H%M%Sz}-{secrets.token_hex(4)}"


def is_default_name(name: str) -> bool:
    """True if a name was made by `default_name`, not by a person."""
    return _DEFAULT_NAME.fullmatch(name) is not None


RUN_SCHEMA = 2
"""Version of the documents; from 2 on, each has a checksum."""
_CHECKSUMS_SINCE = 2
_MOST_BYTES = 1 << 24
_MOST_VALUES = 50_000
"""Maximum of values in a document, nested ones included; a small YAML file can expand to any number."""
_MOST_LEVELS = 100
_WAY_OUT = "put back a copy"


def is_of_run(path: Path) -> bool:
    """True if a path without links is that of a run's records, documents or logs, not reports."""
    is_document = path.name in (LOCK_FILE, RUN_FILE, EXPERIMENT, ENVIRONMENT, INDEX, PREDICTIONS)
    folders = [item.parent for item in (path, *path.parents) if item.name in (CASES, LOGS)]
    if is_document or path.name.startswith(RESULTS):
        folders.append(path.parent)
    return any(os.path.lexists(folder / name) for folder in folders for name in (RUN_FILE, INDEX))


def describe(
    path: Path,
    *,
    head: Mapping[str, str],
    experiment: Mapping[str, JsonValue],
    environment: Mapping[str, JsonValue],
) -> None:
    """Write the documents that make a folder a run folder."""
    import yaml

    write_text(path / EXPERIMENT, yaml.safe_dump(json_value(experiment), sort_keys=False, allow_unicode=True))
    write_json(path / ENVIRONMENT, with_checksum(environment))
    # Last: a folder with this file is complete.
    write_json(path / RUN_FILE, with_checksum({"schema": RUN_SCHEMA, **head}))


def read_head(path: Path) -> dict[str, JsonValue]:
    """Read the identity of a run folder: its run, the hash of its experiment, and its creation time.

    Raises:
        StoreError: it cannot be read.
    """
    file = path / RUN_FILE
    stored = _read_json(path, RUN_FILE)
    head = _without_checksum(file, stored, is_required=_has_checksums(stored))
    schema = head.get("schema")
    if not isinstance(schema, int) or schema > RUN_SCHEMA:
        raise StoreError(
            f"{file} must have a schema up to {RUN_SCHEMA}, got {schema!r}; read the folder with a newer "
            "stratbench"
        )
    for key in ("run", "spec_hash", "created_utc"):
        if not isinstance(head.get(key), str):
            raise StoreError(
                f"{file} must have {key!r} as stratbench wrote it, got {head.get(key)!r}; {_WAY_OUT}"
            )
    try:
        datetime.fromisoformat(str(head["created_utc"])).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise StoreError(
            f"{file} must have a date of the calendar as 'created_utc', got "
            f"{head['created_utc']!r:.60} ({error}); {_WAY_OUT}"
        ) from None
    return head


def read_experiment(path: Path, head: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Read the resolved experiment of a run folder.

    Args:
        head: identity of the folder, with the hash of its experiment; empty if lost.
    Raises:
        StoreError: it cannot be read, or is not as it was written.
    """
    import yaml

    file = path / EXPERIMENT
    try:
        document = yaml.safe_load(_text(path, EXPERIMENT))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise StoreError(
            f"{file} must be a YAML file written by stratbench: {first_line(str(error))}; {_WAY_OUT}"
        ) from None
    if not isinstance(document, dict):
        raise StoreError(f"{file} must hold a mapping, got {type(document).__name__}; {_WAY_OUT}")
    _require_readable(file, document)
    if _has_checksums(head) and _hash(document) != head["spec_hash"]:
        raise StoreError(
            f"{file} must hold the experiment that {RUN_FILE} names, {str(head['spec_hash'])[:12]}…, got "
            f"{_hash(document)[:12]}…; it was damaged or edited after it was written; "
            f"{_WAY_OUT}"
        )
    return document


def read_environment(path: Path, head: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Read the facts of the machine that made a run; empty if an older run has none.

    Args:
        head: identity of the folder, which shows if its documents have checksums; empty if lost.
    Raises:
        StoreError: they cannot be read, or are not as they were written.
    """
    file = path / ENVIRONMENT
    if not os.path.lexists(file):
        if not _has_checksums(head):
            return {}
        raise StoreError(
            f"{file} must be there, got nothing: it was removed after it was written; {_WAY_OUT}"
        )
    document = _read_json(path, ENVIRONMENT)
    return _without_checksum(file, document, is_required=_has_checksums(head))


def read_predictions_document(path: Path) -> dict[str, JsonValue]:
    """Read the predictions of a run folder as JSON; empty if there are none.

    Raises:
        StoreError: they cannot be read, or are not as they were written.
    """
    if not os.path.lexists(path / PREDICTIONS):
        return {}
    return _without_checksum(path / PREDICTIONS, _read_json(path, PREDICTIONS), is_required=True)


def _has_checksums(head: Mapping[str, JsonValue]) -> bool:
    schema = head.get("schema")
    return isinstance(schema, int) and schema >= _CHECKSUMS_SINCE


def _hash(document: Mapping[str, JsonValue]) -> str:
    try:
        return canonical_hash(document)
    except TypeError:
        return "no experiment"  # YAML has more types than JSON: dates, sets and bytes


def _without_checksum(
    file: Path, document: Mapping[str, JsonValue], *, is_required: bool
) -> dict[str, JsonValue]:
    try:
        if is_required:
            require_checksum(document)
        return without_checksum(document)
    except StoreError as error:
        raise StoreError(f"{file}: {error}") from None


def _text(folder: Path, name: str) -> str:
    return read_inside(folder, name, most_bytes=_MOST_BYTES).decode()


def _read_json(folder: Path, name: str) -> dict[str, JsonValue]:
    file = folder / name
    try:
        document = json.loads(_text(folder, name))
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{file} must be a JSON file written by stratbench: {error}; {_WAY_OUT}") from None
    if not isinstance(document, dict):
        raise StoreError(f"{file} must hold a JSON object, got {type(document).__name__}; {_WAY_OUT}")
    _require_readable(file, document)
    return document


def _require_readable(file: Path, document: object) -> None:
    """Refuse documents that are too deep or too large; YAML's aliases can nest without end."""
    left = [(document, 1)]
    n_values = 0
    while left:
        value, level = left.pop()
        within: list[object] = []
        if isinstance(value, Mapping):
            within = [*value.values()]
        elif isinstance(value, list | tuple | set):
            within = [*value]
        n_values += len(within)
        if n_values > _MOST_VALUES:
            raise StoreError(f"{file} must hold at most {_MOST_VALUES:,} values, got more; {_WAY_OUT}")
        if within and level > _MOST_LEVELS:
            raise StoreError(f"{file} must be nested at most {_MOST_LEVELS} times, got more; {_WAY_OUT}")
        left.extend((item, level + 1) for item in within)
