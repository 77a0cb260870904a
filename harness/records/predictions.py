"""Predictions as reports read them: documents of `stratbench predict`, and of a run's own cases."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from harness.atomic_files import write_json
from harness.canonical import JsonValue, json_value
from harness.errors import StoreError
from harness.records.checksums import with_checksum
from harness.records.conditions import BatchRule, requested_batch
from harness.records.run_documents import PREDICTIONS, read_predictions_document

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Limit = Literal["computing", "link", "server", "exchanges", "latency"]
SCHEMA = 1
INEXACT = " (inexact)"
"""Mark of a strategy whose result differs from one device's by design."""
_WAY_OUT = f"remove {PREDICTIONS}"
PROBES = Path("runs") / "probes"
"""Folder of the probes of this machine, within the current folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedLimits:
    """95 % interval of a predicted duration, in seconds."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredPrediction:
    """Predicted step, with names as in the JSON of `stratbench predict`.

    Attributes:
        link_mbit: limit of each worker's link; None without one.
        payload_bytes_per_step: bytes that all workers send.
        memory_bytes: variables and slots on the worker with the most.
        limited_by: cause of most of the duration.
        label: strategy with the parameters that differ from its defaults.
        extrapolated: quantities beyond those that were measured.
        efficiency: part of the step that it would take without exchanges; None if it is not stored.
        is_single: True if the strategy always runs one worker.
        is_exact: False if its result differs from one device's by design.
        fault_texts: faults as records name them.
        cores_per_worker: None for those of the probe.
        batch_rule: rule by which the batch size was requested.
    """

    workload: str
    strategy: str
    strategy_params: Mapping[str, bool | int | float | str | None]
    workers: int
    replicas: int
    batch_size: int
    link_mbit: float | None
    step_s: float
    interval: PredictedLimits
    examples_per_s: float
    payload_bytes_per_step: float
    memory_bytes: float
    limited_by: Limit
    label: str = ""
    extrapolated: tuple[str, ...] = ()
    efficiency: float | None = None
    is_single: bool = False
    is_exact: bool = True
    fault_texts: tuple[str, ...] = ()
    cores_per_worker: float | None = None
    batch_rule: BatchRule = "global"

    @property
    def requested_batch(self) -> int:
        return requested_batch(self.batch_size, self.batch_rule, self.workers)

    @property
    def title(self) -> str:
        return f"{self.label}{'' if self.is_exact else INEXACT}"

    @property
    def competes(self) -> bool:
        """False for a control, which exchanges nothing."""
        return self.is_single or self.payload_bytes_per_step > 0


Kind = Literal["computing", "exchange", "transfer"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedSpan:
    """Part of a simulated step.

    Attributes:
        tasks: tasks that are alike, such as `worker 0` or `workers 1–7`.
        kind: computation and updates, work of exchanges on the same thread, or bytes on their way.
    """

    tasks: str
    kind: Kind
    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedTimeline:
    """A simulated step, with all periodic exchanges.

    Attributes:
        case: case of the run that was made under the same conditions; None without one.
        strategy: strategy with its parameters.
    """

    workload: str
    strategy: str
    workers: int
    link_mbit: float | None
    case: str | None
    spans: tuple[PredictedSpan, ...]


def fastest_by_workers(rates: Iterable[tuple[int | None, str, float]]) -> list[tuple[int, str]]:
    """Fastest strategies by number of workers: the number from which each of them is the fastest.

    Args:
        rates: number of workers, or None for one step beside all numbers; strategy; examples per second.
    """
    cases = list(rates)
    fastest: list[tuple[int, str]] = []
    for n_workers in sorted({n for n, _, _ in cases if n is not None}):
        rivals = (case for case in cases if case[0] in (n_workers, None))
        _, strategy, _ = max(rivals, key=lambda case: case[2])
        if not fastest or fastest[-1][1] != strategy:
            fastest.append((n_workers, strategy))
    return fastest


def read_predictions(folder: Path) -> dict[str, StoredPrediction]:
    """Predictions of a run's cases, by case; empty if none are stored.

    Raises:
        StoreError: the file is damaged, or of a newer version.
    """
    document = read_predictions_document(folder)
    schema, cases = document.get("schema", SCHEMA), document.get("cases", {})
    if not isinstance(schema, int) or schema > SCHEMA:
        raise StoreError(
            f"{folder / PREDICTIONS} must have a schema up to {SCHEMA}, got {schema!r}; read the folder with "
            f"a newer stratbench, or {_WAY_OUT}"
        )
    if not isinstance(cases, dict):
        raise StoreError(f"{folder / PREDICTIONS} must hold predictions by case; remove it")
    return dict(zip(cases, stored_predictions(cases.values()), strict=True))


def write_predictions(folder: Path, cases: Mapping[str, StoredPrediction]) -> None:
    """Store predictions of a run's cases, by case, in place of those that are stored.

    Raises:
        OSError: they cannot be written.
    """
    document = {"schema": SCHEMA, "cases": json_value(cases)}
    write_json(folder / PREDICTIONS, with_checksum(document))


def drop_predictions(folder: Path, cases: Collection[str]) -> None:
    """Remove stored predictions of a run's cases, and all of them if the file is damaged.

    Raises:
        OSError: the file cannot be changed.
    """
    try:
        others = {case: own for case, own in read_predictions(folder).items() if case not in cases}
    except StoreError:
        others = {}
    if others:
        write_predictions(folder, others)
    else:
        (folder / PREDICTIONS).unlink(missing_ok=True)


def stored_predictions(documents: Iterable[JsonValue]) -> list[StoredPrediction]:
    """Predictions of their JSON.

    Raises:
        StoreError: one is damaged.
    """
    from pydantic import ValidationError

    predictions = []
    for document in documents:
        try:
            prediction = _adapter().validate_json(json.dumps(document))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise StoreError(
                f"a prediction must be as stratbench wrote it, got {place} {first['input']!r:.80}; {_WAY_OUT}"
            ) from None
        if not 0.0 < prediction.interval.low <= prediction.step_s <= prediction.interval.high:
            raise StoreError(
                f"a predicted step must lie above 0 and in its interval, got {prediction.step_s:g} s; "
                f"{_WAY_OUT}"
            )
        predictions.append(prediction)
    return predictions


@cache
def _adapter() -> TypeAdapter[StoredPrediction]:
    # pydantic costs more to import than all of this package; most readers have no predictions.
    from pydantic import ConfigDict, TypeAdapter, with_config

    return TypeAdapter(with_config(ConfigDict(allow_inf_nan=False))(StoredPrediction))
