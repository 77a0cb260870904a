"""The experiment: one model reads its file, is used by the run, and writes the resolved file.

Each field is declared once: name, type, bounds, default, and its option of `stratbench run`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, TypeAlias, TypeVar, get_args

from pydantic import (
    BeforeValidator,
    Field,
    GetPydanticSchema,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError, core_schema

from harness.canonical import JsonValue, canonical_hash
from harness.cluster import ClusterShape, Device
from harness.errors import UsageError
from harness.experiment.chosen_strategy import merging_rows, with_registered_words
from harness.experiment.cluster import Cluster, DeviceName, Provider
from harness.experiment.references import StrategyRef, WorkloadRef, strategy_from, workload_from
from harness.records.conditions import AS_WRITTEN, BatchRule
from harness.sections import (
    AbsolutePath,
    Count,
    Duration,
    Index,
    ListOf,
    Memory,
    OneOrMore,
    Option,
    Percent,
    Section,
    Sweep,
    Text,
    reading,
    sweeps_of,
)
from harness.written_values import kebab
from strategies.errors import StrategyError, suggestion
from strategies.plan.faults import Fault, check_faults, fault_of

Goal = Literal["fastest", "cheapest", "network"]
InputRule = Literal["staged", "pipeline"]
Precision = Literal["float32", "bfloat16", "float16"]
_MAX_FILTERS = 1_000  # each is compared with every case
_MAX_FAULTS = 1_000
T = TypeVar("T")


def _kebab(value: object) -> object:
    return kebab(value) if isinstance(value, str) else value


def _precision(value: object) -> object:
    known: tuple[str, ...] = get_args(Precision)
    if value not in known:
        close = f" ({suggestion(value, known)})" if isinstance(value, str) else ""
        names = " or ".join(map(repr, known))
        raise PydanticCustomError("precision", "must be {names}{close}", {"names": names, "close": close})
    return value


def _strategy(value: object) -> StrategyRef:
    return value if isinstance(value, StrategyRef) else with_registered_words(strategy_from(value, field=""))


def _workload(value: object) -> WorkloadRef:
    return value if isinstance(value, WorkloadRef) else workload_from(value, field="")


def _written_reference(ref: StrategyRef | WorkloadRef) -> object:
    """A mapping; or text, if there are no parameters or one of them is called `name`, too."""
    if not ref.params or "name" in ref.params:
        return str(ref)
    name = ref.name if isinstance(ref, StrategyRef) else ref.reference
    return {"name": name, **{key: ref.params[key] for key in sorted(ref.params)}}


Strategy: TypeAlias = Annotated[
    StrategyRef, PlainValidator(reading(_strategy)), PlainSerializer(_written_reference)
]
Workload: TypeAlias = Annotated[
    WorkloadRef, PlainValidator(reading(_workload)), PlainSerializer(_written_reference)
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Computation:
    """Precision and compilation of a case's steps: one point of the sweeps of `measure`.

    Attributes:
        tf32: None unless the device is a GPU.
    """

    precision: Precision = AS_WRITTEN
    xla: bool = False
    tf32: bool | None = None

    def __str__(self) -> str:
        precision = [] if self.precision == AS_WRITTEN else [self.precision]
        return " ".join([*precision, *["XLA"] * self.xla, *["TF32 off"] * (self.tf32 is False)])


AS_USUAL = Computation()


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """Named faults of a case's workers; usually none."""

    name: str = ""
    faults: tuple[Fault, ...] = ()


NO_FAULTS = Scenario()


class Until(Section):
    """`measure.until`: condition that ends further repeats.

    Attributes:
        ratio_ci: largest distance of a ratio's confidence limits from the ratio, as a fraction of it.
        at_most_s: seconds from the run's start; no repeat begins that would end later.
    """

    always_written: ClassVar[frozenset[str]] = frozenset({"at_most_s"})

    ratio_ci: Annotated[
        Percent,
        Option(name="until-ci", metavar="3%", help="Add repeats until all intervals are narrower than this."),
    ]
    at_most_s: Duration = Field(default=20 * 60.0, alias="at_most")


class Measure(Section):
    """`measure`: how each case is timed; a list is a sweep.

    Attributes:
        steps: least number of counted steps per repeat, in all rounds together.
        rounds: rounds per repeat; every case takes one window in each.
        window_s: length of a window in seconds; 0 for no longer than its share of `steps`.
        interleave: True if cases take their windows in turn; False times each by itself.
        trace: True to trace a step after the last window.
        evaluate: True to call the workload's `evaluate` after the last step.
        precision: dtypes of the computation.
        xla: True if XLA compiles the steps.
        tf32: True if GPUs may round products to TensorFloat-32, as TensorFlow does by default.
        merge_rows: True sets `merge_rows=true` for every strategy that has it, and is then reset to False.
    """

    always_written: ClassVar[frozenset[str]] = frozenset(
        ("warmup_steps", "steps", "repeats", "interleave", "seed", "batch")
    )

    warmup_steps: Annotated[
        Literal["auto"] | Annotated[int, Field(ge=0, le=10**6)],
        Option(name="warmup", metavar="N", help="Steps before timing; auto: until steps are stable."),
    ] = "auto"
    steps: Annotated[
        Count, Option(name="steps", metavar="N", help="Least number of timed steps per repeat.")
    ] = 50
    repeats: Annotated[
        Count, Option(name="repeats", metavar="N", help="Repeats per case, each in new processes.")
    ] = 4
    interleave: bool = True
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    batch: Annotated[BatchRule, BeforeValidator(_kebab)] = "global"
    trace: bool = True
    rounds: Annotated[int, Field(ge=1, le=1000)] = 10
    window_s: Annotated[float, Field(ge=0, le=3600)] = 0.2
    until: Until | None = None
    aa: Annotated[
        bool,
        Option(name="aa", help="A/A test: time the baseline against itself."),
    ] = False
    observer: Annotated[
        bool,
        Option(name="observer", help="Also measure the overhead of the instrumentation."),
    ] = False
    exposed_comm: Annotated[
        bool,
        Option(name="exposed-comm", help="Also measure `none`, to show the cost of communication."),
    ] = False
    evaluate: bool = False
    precision: Sweep[Annotated[Precision, BeforeValidator(_precision)]] = (AS_WRITTEN,)
    xla: Sweep[bool] = (False,)
    tf32: Sweep[bool] = (True,)
    input: Annotated[
        InputRule,
        Option(
            name="input",
            metavar="staged|pipeline",
            help="Source of batches: memory, or the dataset's own tf.data pipeline.",
        ),
    ] = "staged"
    merge_rows: bool = False

    @property
    def n_rounds(self) -> int:
        """Rounds of a repeat: the requested number, but no more than steps."""
        return min(self.rounds, self.steps)

    @property
    def computations(self) -> Sequence[Computation]:
        sweeps = sweeps_of(self)
        points = itertools.product(*sweeps.values())
        return [Computation(**dict(zip(sweeps, point, strict=True))) for point in points]

    def of_one(self, computation: Computation) -> Measure:
        point = {name: getattr(computation, name) for name in sweeps_of(self)}
        return self.model_copy(update={name: (value,) for name, value in point.items() if value is not None})


class CaseFilter(Section):
    """One item of `matrix.include` or `matrix.exclude`.

    A missing key matches all cases; given parameters must be among the case's.
    """

    workload: Workload | None = None
    strategy: Strategy | None = None
    faults: Text | None = None
    provider: Provider | None = None
    workers: Count | None = None
    replicas_per_worker: Count | None = None
    device: DeviceName | None = None
    cores_per_worker: Count | None = None
    memory_bytes: Memory | None = Field(default=None, alias="memory_per_worker")
    image: Text | None = None

    def is_written(self, name: str) -> bool:
        """True if the key is given; cases without an image of their own have the provider's."""
        return name in self.model_fields_set

    @property
    def shape(self) -> dict[str, object]:
        """Fields of a `ClusterShape` → values that a case must have."""
        others = {"workload", "strategy", "faults"}
        return {name: getattr(self, name) for name in self.model_fields_set - others}


_Filters: TypeAlias = Annotated[ListOf[CaseFilter], Field(max_length=_MAX_FILTERS)]


class Matrix(Section):
    """`matrix`: filters of combinations."""

    always_written: ClassVar[frozenset[str]] = frozenset(("include", "exclude"))

    include: _Filters = ()
    exclude: _Filters = ()


class Compare(Section):
    """`compare`: baseline of the comparison, and goal of the report's headline."""

    baseline: Annotated[Strategy, PlainSerializer(str)] | None = None
    goal: Goal = "fastest"


class Checkpoints(Section):
    """`checkpoint`: checkpoint to begin with, and folder for new ones."""

    always_written: ClassVar[frozenset[str]] = frozenset(("save", "restore"))

    save: Annotated[
        bool, Option(name="checkpoint", help="Save the final weights of each repeat in the run folder.")
    ] = False
    restore: Annotated[
        AbsolutePath | None,
        Option(name="restore", metavar="PATH", help="Start from a checkpoint."),
    ] = None


class FaultItem(Section):
    """One item of `faults`, or of one of its scenarios, as it is written; `Fault` is the value."""

    worker: Index
    kind: Text
    from_step: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    to_step: Annotated[int, Field(ge=1, lt=2**53)] | None = None
    scale: Annotated[float, Field(ge=0, le=1e30)] | None = None
    rate: Annotated[float, Field(gt=0, le=1)] | None = None
    delay_steps: Annotated[int, Field(ge=1, le=100)] | None = None
    delay_ms: Annotated[float, Field(ge=0, le=600_000)] | None = None
    classes: Annotated[int, Field(ge=2, lt=2**31)] | None = None
    component: Text | None = None
    target: Index | None = None


def _fault(item: FaultItem) -> Fault:
    fields = {name: getattr(item, name) for name in FaultItem.model_fields}
    try:
        return fault_of(fields, seed=0)
    except StrategyError as error:
        raise PydanticCustomError("usage", "{message}", {"message": str(error), "below": ""}) from None


def _scenarios(value: object, read: ValidatorFunctionWrapHandler) -> object:
    """A plain list is one scenario."""
    if isinstance(value, list):
        return read({"faults": value}) if value else {"": ()}
    if not isinstance(value, dict):
        raise PydanticCustomError("faults", "must be a list of faults or a mapping of names to such lists")
    if not value:
        message = "must have a scenario, got an empty mapping; drop it"
        raise PydanticCustomError("usage", "{message}", {"message": message, "below": ""})
    return read(value)


_Fault: TypeAlias = Annotated[
    Fault,
    GetPydanticSchema(
        lambda _, schema_of: core_schema.no_info_after_validator_function(_fault, schema_of(FaultItem))
    ),
    PlainSerializer(lambda fault: dict(fault.document())),
]
_Scenarios: TypeAlias = Annotated[
    dict[Text, Annotated[ListOf[_Fault], Field(max_length=_MAX_FAULTS)]], WrapValidator(_scenarios)
]


class Experiment(Section):
    """The whole experiment file.

    Attributes:
        faults: name of a scenario → its faults; each case runs in every scenario.
    """

    always_written: ClassVar[frozenset[str]] = frozenset(("cluster", "measure", "matrix", "compare"))

    name: Text
    workloads: Annotated[
        OneOrMore[Workload],
        Option(
            name="workloads",
            metavar="A,B",
            help="Workloads in place of the experiment's; a name listed there keeps its parameters.",
        ),
    ]
    strategies: Annotated[
        OneOrMore[Strategy],
        Option(name="strategies", metavar="A,B", help="Strategies in place of the experiment's."),
    ]
    cluster: Cluster = Cluster()
    measure: Measure = Measure()
    matrix: Matrix = Matrix()
    compare: Compare = Compare()
    checkpoint: Checkpoints = Checkpoints()
    faults: _Scenarios = Field(default={"": ()})
    _notes: tuple[str, ...] = PrivateAttr(())

    @property
    def notes(self) -> tuple[str, ...]:
        """Changes made while resolving, one line each for the user; not part of the experiment."""
        return self._notes

    def with_notes(self, *notes: str) -> Experiment:
        noted = self.model_copy()
        noted._notes = (*self._notes, *notes)  # noqa: SLF001 - of its own class
        return noted

    @property
    def baseline(self) -> StrategyRef:
        singles = (ref for ref in self.strategies if ref.name == "single")
        return self.compare.baseline or next(singles, self.strategies[0])

    def with_strategies(self, *strategies: StrategyRef, baseline: StrategyRef) -> Experiment:
        compare = self.compare.model_copy(update={"baseline": baseline})
        return self.model_copy(update={"strategies": tuple(dict.fromkeys(strategies)), "compare": compare})

    @property
    def scenarios(self) -> tuple[Scenario, ...]:
        """Faults of each scenario, with independent random draws."""
        seed = self.measure.seed
        return tuple(
            Scenario(
                name=name,
                faults=tuple(
                    replace(fault, seed=seed + 1_000_003 * index) for index, fault in enumerate(faults)
                ),
            )
            for name, faults in self.faults.items()
        )

    def price_per_hour(self, device: Device) -> float | None:
        """Price of one worker with a device; None if it is not set."""
        return (self.cluster.price_per_hour or {}).get(device)

    def of_one(self, shape: ClusterShape, computation: Computation, scenario: Scenario) -> Experiment:
        return self.model_copy(
            update={
                "cluster": self.cluster.of_one(shape),
                "measure": self.measure.of_one(computation),
                "matrix": Matrix(),
                "faults": {scenario.name: self.faults.get(scenario.name, ())},
            }
        )

    def to_document(self) -> dict[str, JsonValue]:
        """The resolved file, from which the same experiment can be read."""
        return self.model_dump(mode="json", by_alias=True)

    @property
    def spec_hash(self) -> str:
        """Canonical hash of the resolved file; 64 hex digits, equal for equal experiments."""
        return canonical_hash(self.to_document())


def settled(experiment: Experiment, *, strategies_replaced: bool, runs: bool = True) -> Experiment:
    """Check a model's parts against each other, and settle its strategies and baseline.

    Args:
        strategies_replaced: True if options replaced the file's list, so that its baseline may be missing.
        runs: False for cases that are only predicted, on workers that no provider need be able to start.
    Raises:
        UsageError: for the first broken rule, with the path of the field.
    """
    if experiment.measure.merge_rows:
        experiment = _merging_rows(experiment)
    baseline, notes = _baseline(experiment, replaced=strategies_replaced)
    if runs:
        experiment.cluster.require_possible()
    measure = experiment.measure
    for name, is_given in (("until", measure.until is not None), ("aa", measure.aa)):
        if is_given and not measure.interleave:
            raise UsageError(
                "must be used with measure.interleave: ratios are formed within rounds; drop one of them",
                field=f"measure.{name}",
            )
    if False in measure.tf32 and "gpu" not in experiment.cluster.device:
        notes += ("measure.tf32 changes nothing here: TF32 is of GPUs, and cluster.device names none",)
    _require_workloads(experiment)
    for field, filters in (
        ("matrix.include", experiment.matrix.include),
        ("matrix.exclude", experiment.matrix.exclude),
    ):
        _require_filters(field, filters)
    _require_scenarios(experiment)
    return experiment.with_strategies(*experiment.strategies, baseline=baseline).with_notes(*notes)


def _merging_rows(experiment: Experiment) -> Experiment:
    baseline = experiment.compare.baseline
    return experiment.model_copy(
        update={
            "strategies": tuple(dict.fromkeys(map(merging_rows, experiment.strategies))),
            "compare": experiment.compare.model_copy(
                update={"baseline": None if baseline is None else merging_rows(baseline)}
            ),
            "measure": experiment.measure.model_copy(update={"merge_rows": False}),
        }
    )


def _baseline(experiment: Experiment, *, replaced: bool) -> tuple[StrategyRef, tuple[str, ...]]:
    baseline, strategies = experiment.baseline, experiment.strategies
    if baseline in strategies:
        return baseline, ()
    if not replaced:
        names = ", ".join(map(str, strategies))
        raise UsageError(
            f"must be one of the strategies ({names}), got {str(baseline)!r}", field="compare.baseline"
        )
    note = f"baseline {baseline} is not among the strategies given; comparing with {strategies[0]} instead"
    return strategies[0], (note,)


def _require_workloads(experiment: Experiment) -> None:
    for index, ref in enumerate(experiment.workloads):
        batch_size = ref.params.get("batch_size", 1)
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise UsageError(
                f"must be a whole number of examples, at least 1, got {batch_size!r}",
                field=f"workloads[{index}].batch_size",
            )
        # Nodes of a cluster have user files in another folder, where only relative paths work.
        if experiment.cluster.address is not None and ref.is_path and ref.reference.startswith("/"):
            raise UsageError(
                f"must be relative to the current folder for the cluster provider, got {ref.reference!r}; "
                "start the command in a folder above it",
                field=f"workloads[{index}]",
            )


def _require_filters(field: str, filters: Sequence[CaseFilter]) -> None:
    for index, item in enumerate(filters):
        fields = item.model_fields_set
        if not fields:
            raise UsageError(
                "must have at least one key, got an empty mapping; drop it", field=f"{field}[{index}]"
            )
        empty = next((key for key in sorted(fields - {"image"}) if getattr(item, key) is None), None)
        if empty is not None:
            raise UsageError(
                "must say which cases are meant, got null; drop it", field=f"{field}[{index}].{empty}"
            )


def _require_scenarios(experiment: Experiment) -> None:
    n_workers = max(experiment.cluster.workers)
    names: dict[tuple[Fault, ...], str] = {}
    for name, faults in experiment.faults.items():
        field = "faults" if name == "faults" else f"faults.{name}"
        for index, fault in enumerate(faults):
            if fault.worker >= n_workers:
                raise UsageError(
                    f"must be one of {n_workers} workers, counted from 0, got {fault.worker}; raise "
                    "cluster.workers",
                    field=f"{field}[{index}].worker",
                )
        other = names.setdefault(faults, name)
        if other != name:
            raise UsageError(
                f"must differ from other scenarios, got the faults of {other!r}; drop one of them",
                field=field,
            )
        try:
            check_faults(faults, n_workers)
        except StrategyError as error:
            raise UsageError(str(error), field=field) from error
