"""The experiment file as a person writes it: its keys, their types, and errors that name the wrong one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from typing import Annotated, Literal, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
)
from pydantic_core import ErrorDetails

from harness.cluster.connection import Placement
from harness.errors import UsageError
from harness.experiment.field_types import (
    Address,
    BatchName,
    Burst,
    ChipTopology,
    Count,
    DeviceName,
    Duration,
    Index,
    Memory,
    Network,
    Percent,
    PrecisionName,
    Prices,
    Provider,
    Rate,
    Sweep,
    Text,
    as_list,
    by_number,
)
from harness.experiment.spec import USUAL_ROUNDS, USUAL_WINDOW_S, Goal
from harness.records.facts.circumstances import AS_WRITTEN
from strategies.errors import suggestion
from strategies.slices.tpu_slice import Accelerator

# Each filter is held against every case.
_MAX_FILTERS = 1_000
_MAX_FAULTS = 1_000


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class WorkerLinkSection(_Section):
    """One item of `cluster.link.workers`: the limit of one worker's link in place of the others'."""

    rate_mbit: Rate | None
    burst_kb: Burst | None = None


class LinkSection(_Section):
    """`cluster.link`: what each worker's link carries in either direction; null has no limit."""

    rate_mbit: Sweep[Rate | None] = [None]
    burst_kb: Burst | None = None
    workers: Annotated[dict[Index, WorkerLinkSection], BeforeValidator(by_number)] = {}


class SliceSection(_Section):
    """`cluster.slice`: the TPU slice that workers are on, one on each of its hosts."""

    accelerator: Accelerator
    topology: ChipTopology


class ClusterSection(_Section):
    """`cluster`: where cases run and their shape; a list is a sweep."""

    provider: Sweep[Provider] = ["local"]
    workers: Sweep[Count] = [2]
    replicas_per_worker: Sweep[Count] = [1]
    device: Sweep[DeviceName] = ["cpu"]
    cores_per_worker: Sweep[Count] = [1]
    memory_per_worker: Sweep[Memory] = [4 * 2**30]
    image: Sweep[Text | None] = [None]
    share_gpus: bool = False
    address: Address | None = None
    token_file: Text | None = None
    data_network: Network | None = None
    placement: Placement = "spread"
    slice: SliceSection | None = None
    link: LinkSection = LinkSection()
    price_per_hour: Prices | None = None


class UntilSection(_Section):
    """`measure.until`: how closely ratios are to be known, and after how long to stop at any rate."""

    ratio_ci: Percent
    at_most: Duration = 20 * 60.0


class MeasureSection(_Section):
    """`measure`: how each case is timed; a list is a sweep."""

    warmup_steps: Literal["auto"] | Annotated[int, Field(ge=0, le=10**6)] = "auto"
    steps: Count = 50
    repeats: Count = 4
    interleave: bool = True
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    batch: BatchName = "global"
    trace: bool = True
    rounds: Annotated[int, Field(ge=1, le=1000)] = USUAL_ROUNDS
    window_s: Annotated[float, Field(ge=0, le=3600)] = USUAL_WINDOW_S
    until: UntilSection | None = None
    aa: bool = False
    observer: bool = False
    exposed_comm: bool = False
    evaluate: bool = False
    precision: Sweep[PrecisionName] = [AS_WRITTEN]
    xla: Sweep[bool] = [False]
    tf32: Sweep[bool] = [True]
    input: Literal["staged", "pipeline"] = "staged"
    merge_rows: bool = False


class FilterSection(_Section):
    """One item of `matrix.include` or `matrix.exclude`: what a case must have to match."""

    workload: object = None
    strategy: object = None
    provider: Provider | None = None
    workers: Count | None = None
    replicas_per_worker: Count | None = None
    device: DeviceName | None = None
    cores_per_worker: Count | None = None
    memory_per_worker: Memory | None = None
    image: Text | None = None
    faults: Text | None = None


_Filters: TypeAlias = Annotated[list[FilterSection], Field(max_length=_MAX_FILTERS)]


class MatrixSection(_Section):
    """`matrix`: which of all combinations are run."""

    include: _Filters = []
    exclude: _Filters = []


class CompareSection(_Section):
    """`compare`: what the others are compared with, and what for."""

    baseline: object = None
    goal: Goal = "fastest"


class CheckpointSection(_Section):
    """`checkpoint`: what repeats begin with and what they leave."""

    save: bool = False
    restore: Text | None = None


class FaultSection(_Section):
    """One item of `faults`, or of one of its scenarios: what goes wrong with one worker."""

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


_Faults: TypeAlias = Annotated[list[FaultSection], Field(max_length=_MAX_FAULTS)]


def _scenario_key(value: object) -> str | None:
    return "scenarios" if isinstance(value, dict) else "faults" if isinstance(value, list) else None


_Scenarios: TypeAlias = Annotated[
    Annotated[_Faults, Tag("faults")] | Annotated[dict[Text, _Faults], Tag("scenarios")],
    Discriminator(
        _scenario_key,
        custom_error_type="faults_type",
        custom_error_message="Input should be a list of faults or a mapping of names to such lists",
    ),
]


class ExperimentModel(_Section):
    """The whole file."""

    name: Text
    workloads: Annotated[list[object], BeforeValidator(as_list), Field(min_length=1)]
    strategies: Annotated[list[object], BeforeValidator(as_list), Field(min_length=1)]
    cluster: ClusterSection = ClusterSection()
    measure: MeasureSection = MeasureSection()
    matrix: MatrixSection = MatrixSection()
    compare: CompareSection = CompareSection()
    checkpoint: CheckpointSection = CheckpointSection()
    faults: _Scenarios = []


_SECTIONS: dict[tuple[str, ...], type[_Section]] = {
    (): ExperimentModel,
    ("cluster",): ClusterSection,
    ("cluster", "link"): LinkSection,
    ("cluster", "slice"): SliceSection,
    ("cluster", "link", "workers"): WorkerLinkSection,
    ("measure",): MeasureSection,
    ("measure", "until"): UntilSection,
    ("matrix",): MatrixSection,
    ("matrix", "include"): FilterSection,
    ("matrix", "exclude"): FilterSection,
    ("compare",): CompareSection,
    ("checkpoint",): CheckpointSection,
    ("faults",): FaultSection,
}


def validate(document: Mapping[str, object]) -> ExperimentModel:
    """Check a document against the file's keys and types.

    Raises:
        UsageError: for the first thing wrong, with its dotted path.
    """
    try:
        return ExperimentModel.model_validate(document)
    except ValidationError as error:
        raise _usage_error(error.errors(include_url=False), document) from None


def _usage_error(errors: list[ErrorDetails], document: object) -> UsageError:
    # A misspelt key often leaves a required one missing: the misspelling is what the person must hear of.
    first = min(errors, key=lambda item: item["type"] != "extra_forbidden")
    location = first["loc"]
    if first["type"] == "extra_forbidden":
        known = _section_at(location[:-1]).model_fields
        key = str(location[-1])
        return UsageError(f"unknown key, {suggestion(key, sorted(known))}", field=_path(location, document))
    if first["type"] == "missing":
        return UsageError(
            "must be given, got nothing; see the quickstart experiment", field=_path(location, document)
        )
    is_key_text = location[-1:] == ("[key]",) and first["type"].startswith("string_")
    if first["type"] == "invalid_key" or is_key_text:
        got = first["input"]
        above = location[:-2] if is_key_text else location[:-1]
        path = _path((*above, "[key]"), document) or "experiment"
        if isinstance(got, str):
            return UsageError(f"keys {_rule(first['msg'])}, got {got!r}; name it", field=path)
        return UsageError(f"keys must be text, got {got!r} ({type(got).__name__}); quote it", field=path)
    path = _path(location, document)
    if first["type"] == "model_type":
        rule = "must be a mapping"
    else:
        # A value that may be one of two kinds gives one error for each.
        rules = [_rule(item["msg"]) for item in errors if _path(item["loc"], document) == path]
        rule = " or ".join(dict.fromkeys(rules)).replace(" or must be", " or")
    received = first["input"]
    is_unquoted = first["type"] == "string_type" and isinstance(received, int | float | date)
    kind = "" if received is None else f" ({type(received).__name__})"
    got = f"{'null' if received is None else repr(received)[:80]}{kind}"
    return UsageError(f"{rule}, got {got}{'; quote it' if is_unquoted else ''}", field=path)


def _section_at(location: tuple[int | str, ...]) -> type[_Section]:
    """The section that a location is in; scenarios have names of their own."""
    keys = tuple(str(piece) for piece in location if not isinstance(piece, int))
    return _SECTIONS[keys[:1] if keys[:1] == ("faults",) else keys]


def _rule(message: str) -> str:
    rule = re.sub(r"^(Input|List|String|Value) should", "must", message)
    return re.sub(r" after validation, not \d+$", "", rule)


def _path(location: tuple[int | str, ...], document: object) -> str:
    """Spell a location as the person would, leaving out steps that only the model has."""
    path = ""
    here = document
    for position, piece in enumerate(location):
        last = position == len(location) - 1
        if isinstance(piece, int):
            if isinstance(here, list):
                path += f"[{piece}]"
                here = here[piece] if piece < len(here) else None
            elif isinstance(here, Mapping) and (piece in here or str(piece) in here):
                path += f".{piece}"
                here = here.get(piece, here.get(str(piece)))
        elif isinstance(here, Mapping) and piece != "[key]" and (piece in here or last):
            path += f".{piece}" if path else piece
            here = here.get(piece)
    return path
