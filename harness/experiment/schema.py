"""The experiment file as a person writes it: its keys, their types, and errors that name the wrong one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from harness.cluster.connection import Accelerator, Placement, is_address, is_network
from harness.cluster.link_limits import MOST_MBIT
from harness.cluster.providers import PROVIDERS, Device
from harness.errors import UsageError
from strategies.errors import suggestion

_UNITS = {
    "": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
}
_MIN_MEMORY_BYTES = 64 * 2**20
_MAX_MEMORY_BYTES = 2**50
_T = TypeVar("_T")


def _as_list(value: object) -> object:
    return value if isinstance(value, list) else [value]


def _each_once(values: list[_T]) -> list[_T]:
    return list(dict.fromkeys(values))


def _memory(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        found = value
    else:
        match = (
            re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B)?", value.strip()) if isinstance(value, str) else None
        )
        if not match or (match[2] or "") not in _UNITS:
            raise PydanticCustomError("memory", "must be bytes or a size such as 4GiB or 512MiB")
        # Only so many, since a float can also be infinite.
        found = int(min(float(match[1]) * _UNITS[match[2] or ""], 2 * _MAX_MEMORY_BYTES))
    if found < _MIN_MEMORY_BYTES:
        raise PydanticCustomError("memory", "must be at least 64MiB; write a unit, such as 4GiB")
    if found > _MAX_MEMORY_BYTES:
        raise PydanticCustomError("memory", "must be at most 1024TiB")
    return found


def _provider(value: object) -> object:
    if value not in list(PROVIDERS):
        raise PydanticCustomError("provider", "must be {names}", {"names": " or ".join(map(repr, PROVIDERS))})
    return value


def _device(value: object) -> object:
    known = {device: None for provider in PROVIDERS.values() for device in provider.devices}
    if value not in list(known):
        raise PydanticCustomError("device", "must be {names}", {"names": " or ".join(map(repr, known))})
    return value


def _by_number(value: object) -> object:
    """Keys as numbers, though JSON and --set write them as text."""
    if not isinstance(value, dict):
        raise PydanticCustomError("mapping", "must be a mapping from a worker's number to its link")
    return {
        int(key) if isinstance(key, str) and key.isdecimal() else key: each for key, each in value.items()
    }


def _address(value: object) -> object:
    if not (isinstance(value, str) and is_address(value)):
        raise PydanticCustomError(
            "address", "must be host:port of Ray's server for clients, such as head:10001"
        )
    return value


def _network(value: object) -> object:
    if not (isinstance(value, str) and is_network(value)):
        raise PydanticCustomError("network", "must be a network of IPv4 as CIDR, such as 10.0.0.0/16")
    return value


def _topology(value: object) -> object:
    if not (isinstance(value, str) and re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,2}", value)):
        raise PydanticCustomError("topology", "must be chips along each axis, such as 2x2x2 or 4x4")
    return value


_Sweep: TypeAlias = Annotated[
    list[_T], BeforeValidator(_as_list), Field(min_length=1), AfterValidator(_each_once)
]
# Each filter is held against every case.
_MAX_FILTERS = 1_000
# What is counted is also listed: a slip of the keyboard must not take all memory.
_Count: TypeAlias = Annotated[int, Field(ge=1, le=10**6)]
_Index: TypeAlias = Annotated[int, Field(ge=0)]
_Memory: TypeAlias = Annotated[int, BeforeValidator(_memory)]
_Provider: TypeAlias = Annotated[str, BeforeValidator(_provider)]
_Device: TypeAlias = Annotated[Device, BeforeValidator(_device)]
_Rate: TypeAlias = Annotated[float, Field(gt=0, le=MOST_MBIT, allow_inf_nan=False)]
_Burst: TypeAlias = Annotated[int, Field(ge=2, le=10**6)]
_Text: TypeAlias = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class WorkerLinkSection(_Section):
    """One item of `cluster.link.workers`: the limit of one worker's link in place of the others'."""

    rate_mbit: _Rate | None
    burst_kb: _Burst | None = None


class LinkSection(_Section):
    """`cluster.link`: what each worker's link carries in either direction; null has no limit."""

    rate_mbit: _Sweep[_Rate | None] = [None]
    burst_kb: _Burst | None = None
    workers: Annotated[dict[_Index, WorkerLinkSection], BeforeValidator(_by_number)] = {}


class SliceSection(_Section):
    """`cluster.slice`: the TPU slice that workers are on, one on each of its hosts."""

    accelerator: Accelerator
    topology: Annotated[str, BeforeValidator(_topology)]


class ClusterSection(_Section):
    """`cluster`: where cases run and their shape; a list is a sweep."""

    provider: _Sweep[_Provider] = ["local"]
    workers: _Sweep[_Count] = [2]
    replicas_per_worker: _Sweep[_Count] = [1]
    device: _Sweep[_Device] = ["cpu"]
    cores_per_worker: _Sweep[_Count] = [1]
    memory_per_worker: _Sweep[_Memory] = [4 * 2**30]
    image: _Sweep[_Text | None] = [None]
    address: Annotated[str, BeforeValidator(_address)] | None = None
    token_file: _Text | None = None
    data_network: Annotated[str, BeforeValidator(_network)] | None = None
    placement: Placement = "spread"
    slice: SliceSection | None = None
    link: LinkSection = LinkSection()


class MeasureSection(_Section):
    """`measure`: how each case is timed."""

    warmup_steps: Literal["auto"] | Annotated[int, Field(ge=0, le=10**6)] = "auto"
    steps: _Count = 50
    repeats: _Count = 3
    interleave: bool = True
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    batch: Literal["global", "per-replica"] = "global"
    trace: bool = True


class FilterSection(_Section):
    """One item of `matrix.include` or `matrix.exclude`: what a case must have to match."""

    workload: object = None
    strategy: object = None
    provider: _Provider | None = None
    workers: _Count | None = None
    replicas_per_worker: _Count | None = None
    device: _Device | None = None
    cores_per_worker: _Count | None = None
    memory_per_worker: _Memory | None = None


_Filters: TypeAlias = Annotated[list[FilterSection], Field(max_length=_MAX_FILTERS)]


class MatrixSection(_Section):
    """`matrix`: which of all combinations are run."""

    include: _Filters = []
    exclude: _Filters = []


class CompareSection(_Section):
    """`compare`: what the others are compared with."""

    baseline: object = None


class CheckpointSection(_Section):
    """`checkpoint`: what repeats begin with and what they leave."""

    save: bool = False
    restore: _Text | None = None


class ExperimentModel(_Section):
    """The whole file."""

    name: _Text
    workloads: Annotated[list[object], BeforeValidator(_as_list), Field(min_length=1)]
    strategies: Annotated[list[object], BeforeValidator(_as_list), Field(min_length=1)]
    cluster: ClusterSection = ClusterSection()
    measure: MeasureSection = MeasureSection()
    matrix: MatrixSection = MatrixSection()
    compare: CompareSection = CompareSection()
    checkpoint: CheckpointSection = CheckpointSection()


_SECTIONS: dict[tuple[str, ...], type[_Section]] = {
    (): ExperimentModel,
    ("cluster",): ClusterSection,
    ("cluster", "link"): LinkSection,
    ("cluster", "slice"): SliceSection,
    ("cluster", "link", "workers"): WorkerLinkSection,
    ("measure",): MeasureSection,
    ("matrix",): MatrixSection,
    ("matrix", "include"): FilterSection,
    ("matrix", "exclude"): FilterSection,
    ("compare",): CompareSection,
    ("checkpoint",): CheckpointSection,
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
        known = _SECTIONS[
            tuple(str(piece) for piece in location[:-1] if not isinstance(piece, int))
        ].model_fields
        key = str(location[-1])
        return UsageError(f"unknown key, {suggestion(key, sorted(known))}", field=_path(location, document))
    if first["type"] == "missing":
        return UsageError(
            "must be given, got nothing; see the quickstart experiment", field=_path(location, document)
        )
    if first["type"] == "invalid_key":
        got = first["input"]
        path = _path(location[:-1], document) or "experiment"
        return UsageError(f"keys must be text, got {got!r} ({type(got).__name__}); quote it", field=path)
    path = _path(location, document)
    if first["type"] == "model_type":
        rule = "must be a mapping"
    else:
        # A value that may be one of two kinds gives one error for each.
        rules = [_rule(item["msg"]) for item in errors if _path(item["loc"], document) == path]
        rule = " or ".join(dict.fromkeys(rules)).replace(" or must be", " or")
    received = first["input"]
    kind = "" if received is None else f" ({type(received).__name__})"
    return UsageError(f"{rule}, got {'null' if received is None else repr(received)[:80]}{kind}", field=path)


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
