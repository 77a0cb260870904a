"""Shapes: circumstances that cases must share to be compared."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.records.conditions import AS_WRITTEN, sharing_text
from harness.records.record import Record
from reports.load import Run
from reports.quantities import byte_count, count, link_rate

BASELINE = "single"
_SWEPT = ("cores", "memory_bytes", "image")
"""Fields of a shape that are named if an experiment has several values of them."""
_Case = tuple[str, str]
"""Label of a strategy, and the name of its case."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ComparedShape:
    """Circumstances that compared strategies must share.

    Attributes:
        precision: mixed precision; empty if steps compute as written, so that these are sorted first.
        xla: True if XLA compiles the steps.
        tf32: `TF32` or `TF32 off`, empty on other devices than GPUs.
        scenario: name of the injected faults, empty without any.
        replicas_on_gpus: replicas on each GPU if some share one, otherwise empty.
        cores, memory_bytes: resources of each worker, 0 if unknown.
        image: digest of the workers' image if the experiment has several, otherwise empty.
        swept: names of those of the last three fields that differ within the run; the shape's text names
            them.
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
    tf32: str = ""
    scenario: str = ""
    replicas_on_gpus: tuple[int, ...] = ()
    cores: float = 0.0
    memory_bytes: int = 0
    image: str = ""
    swept: frozenset[str] = field(default=frozenset(), compare=False)

    def without_batch_and_links(self) -> ComparedShape:
        """The shape without its batch, and the limit of its links."""
        return replace(self, batch_size=0, link_mbit=0.0)

    def roughly(self) -> ComparedShape:
        """The shape without the settings that may differ between two runs of one experiment."""
        return replace(self, batch_size=0, link_mbit=0.0, cores=0.0, memory_bytes=0, image="")


def _label(name: str, params: Mapping[str, object]) -> str:
    texts = [f"{key}={_value(value)}" for key, value in sorted(params.items())]
    return f"{name}:{','.join(texts)}" if texts else name


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def shape_of(record: Record, *, with_image: bool = False) -> ComparedShape:
    """Shape of a record by itself.

    Args:
        with_image: True if the run has several images of workers.
    """
    params = {key: value for key, value in record.workload_params.items() if key != "batch_size"}
    method, image = record.method, record.provenance.image_digest if record.provenance else None
    return ComparedShape(
        workload=_label(record.workload, params),
        provider=record.provider,
        device=record.device,
        workers=record.workers,
        replicas=record.replicas,
        batch_size=record.batch_size or 0,
        link_mbit=(record.link.requested_mbit if record.link else None) or 0.0,
        precision=_mixed(record),
        xla=bool(method and method.xla),
        tf32=_tf32(record),
        scenario=method.scenario if method else "",
        replicas_on_gpus=method.replicas_on_gpus if method else (),
        cores=(method.cores_per_worker if method else None) or 0.0,
        memory_bytes=(method.memory_per_worker_bytes if method else None) or 0,
        image=(image or "") if with_image else "",
    )


def _mixed(record: Record) -> str:
    precision = record.method.precision if record.method else AS_WRITTEN
    return "" if precision == AS_WRITTEN else precision


def _tf32(record: Record) -> str:
    """Value of `ComparedShape.tf32`; on GPUs, TensorFlow's default is on."""
    if record.device != "gpu":
        return ""
    return "TF32 off" if record.method and record.method.tf32 is False else "TF32"


def shapes_of(run: Run) -> dict[ComparedShape, dict[str, list[Record]]]:
    """Records by shape and strategy; the one-device `single` joins every shape of its workload."""
    strategies: dict[ComparedShape, dict[_Case, list[Record]]] = {}
    singles: dict[ComparedShape, dict[_Case, list[Record]]] = {}
    for record, shape in _with_shapes(run):
        home = singles if record.strategy == BASELINE else strategies
        home.setdefault(shape, {}).setdefault((strategy_label(record), record.case), []).append(record)
    shapes = {shape: _labelled(cases) for shape, cases in strategies.items()}
    beside = {shape: _labelled(cases) for shape, cases in singles.items()}
    lonely = dict(beside)
    for shape, cases in shapes.items():
        best = _nearest(shape, beside)
        if best is not None:
            shapes[shape] = beside[best] | cases
            lonely.pop(best, None)
    return dict(sorted((shapes | lonely).items(), key=lambda item: (_place(run, item[0]), item[0])))


def _labelled(cases: Mapping[_Case, list[Record]]) -> dict[str, list[Record]]:
    """Records by label; of cases with the same label, all but the first get their hash."""
    first = dict(sorted(cases, reverse=True))
    return {
        label if case == first[label] else f"{label} ({case.rpartition('-')[2]})": records
        for (label, case), records in cases.items()
    }


def _with_shapes(run: Run) -> list[tuple[Record, ComparedShape]]:
    """Each record with its shape.

    The batch of a case that failed early is unknown. It belongs to the shape of its other repeats, else to
    one that it does not contradict.
    """
    with_image = _has_images(run)
    own = [(record, shape_of(record, with_image=with_image)) for record in run.records]
    planned = {record.case: shape for record, shape in own if record.batch_size is not None}
    requested: dict[Hashable, list[ComparedShape]] = {}
    for record, shape in own:
        if record.batch_size is not None:
            requested.setdefault(_requested_key(record, shape), []).append(shape)
    pairs = [
        (record, shape)
        if record.batch_size is not None
        else (record, planned.get(record.case) or _beside(record, shape, requested))
        for record, shape in own
    ]
    values = {name: {getattr(shape, name) for _, shape in pairs} for name in _SWEPT}
    swept = frozenset(name for name, of_run in values.items() if len(of_run) > 1)
    return [(record, replace(shape, swept=swept)) for record, shape in pairs] if swept else pairs


def _has_images(run: Run) -> bool:
    cluster = run.experiment.get("cluster")
    return isinstance(cluster, Mapping) and isinstance(cluster.get("image"), list | tuple)


def _requested_key(record: Record, shape: ComparedShape) -> Hashable:
    """Known facts of a case that failed before its batch was known, without its image and links."""
    params = tuple(sorted((name, str(value)) for name, value in record.workload_params.items()))
    return replace(shape.without_batch_and_links(), image=""), params


def _beside(
    record: Record, shape: ComparedShape, requested: Mapping[Hashable, Sequence[ComparedShape]]
) -> ComparedShape:
    """A shape with a batch that a case without one may have, else its own.

    Args:
        requested: shapes with a batch, by `_requested_key`.
    """
    fits = (
        other
        for other in requested.get(_requested_key(record, shape), ())
        if (record.link is None or other.link_mbit == shape.link_mbit) and shape.image in ("", other.image)
    )
    return next(fits, shape)


def _nearest(shape: ComparedShape, singles: Iterable[ComparedShape]) -> ComparedShape | None:
    """Shape of the `single` to compare with.

    With `batch: per-replica` no single has the same batch: the nearest one is used, with a note.
    """
    shared = shared_with_single(shape)
    near = [single for single in singles if shared_with_single(single) == shared]

    def distance(single: ComparedShape) -> tuple[int, bool]:
        return (abs(single.batch_size - shape.batch_size), single.link_mbit != shape.link_mbit)

    return min(near, key=distance, default=None)


def shared_with_single(shape: ComparedShape) -> tuple[str | float, ...]:
    """Circumstances that a strategy shares with the `single` of its comparison."""
    return (
        shape.workload,
        shape.provider,
        shape.device,
        shape.precision,
        shape.xla,
        shape.tf32,
        shape.cores,
        shape.memory_bytes,
        shape.image,
    )


def _place(run: Run, shape: ComparedShape) -> int:
    listed = run.experiment.get("workloads")
    names = [_listed_name(entry) for entry in listed] if isinstance(listed, Sequence) else []
    fits = [i for i, name in enumerate(names) if f"{shape.workload}:".startswith(f"{name}:")]
    return fits[0] if fits else len(names)


def _listed_name(entry: object) -> object:
    return entry.get("name") if isinstance(entry, Mapping) else entry


def strategy_label(record: Record) -> str:
    """Strategy with its parameters, as in `ps:staleness=2,sync=true`."""
    return _label(record.strategy, record.strategy_params)


def strategy_names(record: Record) -> set[str]:
    """Names that an experiment may use for the strategy: with parameters or without, or its file's."""
    if record.is_twin:
        return {strategy_label(record)}
    files = record.provenance.files if record.provenance else {}
    written = {_label(reference, record.strategy_params) for reference in files}
    return {record.strategy, strategy_label(record), *written}


def shape_text(shape: ComparedShape) -> str:
    """Shape in words."""
    workers = f"{shape.workers} worker{'s' if shape.workers != 1 else ''}"
    replicas = (
        f"{shape.replicas} replica{'s' if shape.replicas != 1 else ''}{' each' if shape.workers > 1 else ''}"
    )
    return f"{workers}, {replicas}, {circumstances_text(shape)}"


_USUAL = ("1 replica", "1 replica each", "local provider")
"""Parts of a shape that a reader takes for granted."""


def brief(shape: str) -> str:
    """Shape in words without what is usual, as in `2 workers · CPU · batch 64`."""
    return " · ".join(part for part in shape.split(", ") if part not in _USUAL)


def circumstances_text(shape: ComparedShape) -> str:
    """Shape in words, without its size."""
    pieces = [shape.device.upper(), f"{shape.provider} provider", *_swept_texts(shape)]
    if shape.batch_size:
        pieces.append(f"batch {shape.batch_size}")
    if shape.link_mbit:
        pieces.append(f"link shaped to {link_rate(shape.link_mbit)}")
    if shape.precision:
        pieces.append(f"mixed {shape.precision}")
    if shape.xla:
        pieces.append("XLA")
    if shape.tf32:
        pieces.append(shape.tf32)
    if shape.scenario:
        pieces.append(f"faults: {shape.scenario}")
    if shape.replicas_on_gpus:
        pieces.append(sharing_text(shape.replicas_on_gpus))
    return ", ".join(pieces)


def _swept_texts(shape: ComparedShape) -> Iterator[str]:
    if "cores" in shape.swept:
        plural = "" if shape.cores == 1 else "s"
        yield f"{count(shape.cores)} core{plural} a worker" if shape.cores else "cores not known"
    if "memory_bytes" in shape.swept:
        memory = byte_count(shape.memory_bytes)
        yield f"{memory} of memory a worker" if shape.memory_bytes else "memory not known"
    if "image" in shape.swept:
        yield f"image {shape.image.removeprefix('sha256:')[:12] or 'not known'}"
