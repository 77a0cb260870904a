"""Shapes: one run, workload and cluster shape, whose cases may be set against each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.records.facts.circumstances import AS_WRITTEN
from harness.records.record import Record
from reports.load import Run
from reports.quantities import link_rate

BASELINE = "single"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ComparedShape:
    """What must be equal before two strategies are set against each other.

    `precision` is empty where steps compute as written, so that these come first; `xla`: whether XLA compiled
    them. `scenario`: what the experiment calls the faults of its workers, empty where there are none.
    """

    workload: str
    provider: str
    device: str
    workers: int
    replicas: int
    batch_size: int
    link_mbit: float
    precision: str
    xla: bool
    scenario: str = ""

    def without_batch(self) -> ComparedShape:
        """The shape as a case knows it that failed early."""
        return replace(self, batch_size=0, link_mbit=0.0)


def _label(name: str, params: Mapping[str, object]) -> str:
    shown = [f"{key}={_value(value)}" for key, value in sorted(params.items())]
    return f"{name}:{','.join(shown)}" if shown else name


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def _shape_of(record: Record) -> ComparedShape:
    params = {key: value for key, value in record.workload_params.items() if key != "batch_size"}
    return ComparedShape(
        workload=_label(record.workload, params),
        provider=record.provider,
        device=record.device,
        workers=record.workers,
        replicas=record.replicas,
        batch_size=record.batch_size or 0,
        link_mbit=(record.link.requested_mbit if record.link else None) or 0.0,
        precision=_mixed(record),
        xla=bool(record.method and record.method.xla),
        scenario=record.method.scenario if record.method else "",
    )


def _mixed(record: Record) -> str:
    precision = record.method.precision if record.method else AS_WRITTEN
    return "" if precision == AS_WRITTEN else precision


def shapes_of(run: Run) -> dict[ComparedShape, dict[str, list[Record]]]:
    """Records by shape and strategy; the one-device `single` joins every shape of its workload."""
    shapes: dict[ComparedShape, dict[str, list[Record]]] = {}
    singles: dict[ComparedShape, dict[str, list[Record]]] = {}
    for record, shape in _with_shapes(run.records):
        home = singles if record.strategy == BASELINE else shapes
        home.setdefault(shape, {}).setdefault(strategy_label(record), []).append(record)
    lonely = dict(singles)
    for shape, cases in shapes.items():
        best = _nearest(shape, singles)
        if best is not None:
            shapes[shape] = singles[best] | cases
            lonely.pop(best, None)
    return dict(sorted((shapes | lonely).items(), key=lambda item: (_place(run, item[0]), item[0])))


def _with_shapes(records: Sequence[Record]) -> list[tuple[Record, ComparedShape]]:
    """Each record with its shape.

    A case that failed early may know neither batch nor link; it belongs to the shape of its other repeats,
    else to one that it does not contradict.
    """
    known = {record.case: _shape_of(record) for record in records if record.batch_size is not None}
    pairs = []
    for record in records:
        shape = _shape_of(record)
        if record.batch_size is None:
            fits = (other for other in known.values() if other.without_batch() == shape.without_batch())
            shape = known.get(record.case) or next(fits, shape)
        pairs.append((record, shape))
    return pairs


def _nearest(shape: ComparedShape, singles: Iterable[ComparedShape]) -> ComparedShape | None:
    """The shape of the `single` to compare with.

    With `batch: per-replica` no single has the same batch; the nearest one is taken, and a note says so.
    """
    near = [single for single in singles if shared_with_single(single) == shared_with_single(shape)]

    def distance(single: ComparedShape) -> tuple[int, bool]:
        return (abs(single.batch_size - shape.batch_size), single.link_mbit != shape.link_mbit)

    return min(near, key=distance, default=None)


def shared_with_single(shape: ComparedShape) -> tuple[str | bool, ...]:
    """What a strategy and the `single` beside it have in common."""
    return shape.workload, shape.provider, shape.device, shape.precision, shape.xla


def _place(run: Run, shape: ComparedShape) -> int:
    """Position of a shape's workload in the experiment's list."""
    listed = run.experiment.get("workloads")
    names = [_listed_name(entry) for entry in listed] if isinstance(listed, Sequence) else []
    fits = [i for i, name in enumerate(names) if f"{shape.workload}:".startswith(f"{name}:")]
    return fits[0] if fits else len(names)


def _listed_name(entry: object) -> object:
    """The name of an experiment's workload, given as such or as a mapping."""
    return entry.get("name") if isinstance(entry, Mapping) else entry


def strategy_label(record: Record) -> str:
    """The strategy as a person types it, as in `ps:staleness=2,sync=true`."""
    return _label(record.strategy, record.strategy_params)


def strategy_names(record: Record) -> set[str]:
    """What an experiment may call the strategy: with parameters or without, a user's own by its file."""
    if record.is_twin:
        return {strategy_label(record)}
    files = record.provenance.files if record.provenance else {}
    written = {_label(reference, record.strategy_params) for reference in files}
    return {record.strategy, strategy_label(record), *written}


def shape_text(shape: ComparedShape) -> str:
    """A shape as a person says it."""
    workers = f"{shape.workers} worker{'s' if shape.workers != 1 else ''}"
    replicas = (
        f"{shape.replicas} replica{'s' if shape.replicas != 1 else ''}{' each' if shape.workers > 1 else ''}"
    )
    return f"{workers}, {replicas}, {circumstances_text(shape)}"


def circumstances_text(shape: ComparedShape) -> str:
    """All of a shape but its size, as a person says it."""
    pieces = [shape.device.upper(), f"{shape.provider} provider"]
    if shape.batch_size:
        pieces.append(f"batch {shape.batch_size}")
    if shape.link_mbit:
        pieces.append(f"link shaped to {link_rate(shape.link_mbit)}")
    if shape.precision:
        pieces.append(f"mixed {shape.precision}")
    if shape.xla:
        pieces.append("XLA")
    if shape.scenario:
        pieces.append(f"faults: {shape.scenario}")
    return ", ".join(pieces)
