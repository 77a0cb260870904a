"""What a run folder holds beside its results: which run it is, of which experiment, and on what machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from harness.atomic_files import write_json, write_text
from harness.canonical import JsonValue, json_value
from harness.errors import StoreError, first_line
from harness.run_layout import ENVIRONMENT, EXPERIMENT, RUN_FILE

RUN_SCHEMA = 1


def describe(
    path: Path,
    *,
    head: Mapping[str, str],
    experiment: Mapping[str, JsonValue],
    environment: Mapping[str, JsonValue],
) -> None:
    """Make a folder a run folder."""
    import yaml

    write_text(path / EXPERIMENT, yaml.safe_dump(json_value(experiment), sort_keys=False, allow_unicode=True))
    write_json(path / ENVIRONMENT, environment)
    # Last: a folder with this file is complete.
    write_json(path / RUN_FILE, {"schema": RUN_SCHEMA, **head})


def read_head(path: Path) -> dict[str, JsonValue]:
    """Read what a run folder is: its run, the hash of its experiment, and when it was made.

    Raises:
        StoreError: it cannot be read.
    """
    file = path / RUN_FILE
    head = _read_json(file)
    schema = head.get("schema")
    if not isinstance(schema, int) or schema > RUN_SCHEMA:
        raise StoreError(
            f"{file} must have a schema up to {RUN_SCHEMA}, got {schema!r}; read the folder with a newer "
            "stratbench"
        )
    for key in ("run", "spec_hash", "created_utc"):
        if not isinstance(head.get(key), str):
            raise StoreError(f"{file} must have {key!r} as stratbench wrote it, got {head.get(key)!r}")
    return head


def read_experiment(path: Path) -> dict[str, JsonValue]:
    """Read the resolved experiment of a run folder.

    Raises:
        StoreError: it cannot be read.
    """
    import yaml

    file = path / EXPERIMENT
    try:
        document = yaml.safe_load(file.read_text())
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise StoreError(
            f"{file} must be a YAML file written by stratbench: {first_line(str(error))}"
        ) from None
    if not isinstance(document, dict):
        raise StoreError(f"{file} must hold a mapping, got {type(document).__name__}")
    return document


def read_environment(path: Path) -> dict[str, JsonValue]:
    """Read the facts of the machine that a run was made on; none where they were not kept.

    Raises:
        StoreError: they cannot be read.
    """
    file = path / ENVIRONMENT
    return _read_json(file) if file.is_file() else {}


def _read_json(file: Path) -> dict[str, JsonValue]:
    try:
        document = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{file} must be a JSON file written by stratbench: {error}") from None
    if not isinstance(document, dict):
        raise StoreError(f"{file} must hold a JSON object, got {type(document).__name__}")
    return document
