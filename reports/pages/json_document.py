"""JSON: the rows of a report as one document."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Collection, Mapping, Sequence

from reports.rows import Report

SCHEMA = 1


def to_json(report: Report) -> str:
    """The rows as one JSON document; missing and infinite numbers are null."""
    return (
        json.dumps(
            document(report, without=("other_baselines",)), indent=2, ensure_ascii=False, allow_nan=False
        )
        + "\n"
    )


def document(report: Report, *, without: Collection[str] = ()) -> dict[str, object]:
    """The rows as plain data, names as in the contract where it has one.

    Args:
        without: fields that are left out wherever they are.
    """
    fields = [item.name for item in dataclasses.fields(report) if item.name not in without]
    return {"schema": SCHEMA} | {name: _plain(getattr(report, name), without) for name in fields}


def _plain(value: object, without: Collection[str]) -> object:
    # Scalars first: a report has millions of them.
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value):
        return {
            item.name.rstrip("_"): _plain(getattr(value, item.name), without)
            for item in dataclasses.fields(value)
            if item.name not in without
        }
    if isinstance(value, Mapping):
        return {str(key): _plain(item, without) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_plain(item, without) for item in value]
    return str(value)
