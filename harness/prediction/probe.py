"""Probe of a kind of machine: fitted costs of exchanges, with their errors, stored with its identity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from harness.atomic_files import json_bytes, write_output
from harness.canonical import JsonValue, canonical_hash
from harness.errors import UsageError, first_line
from harness.experiment.cases import CONTROL
from harness.prediction.costs import Costs
from harness.prediction.fit import fitted
from harness.prediction.observations import (
    cores_of,
    is_usable,
    observations,
    profiled_records,
    profiled_workloads,
)
from harness.records.predictions import PROBES
from harness.records.record import Record
from harness.records.stored_run import StoredRun
from strategies.plan import compressors
from strategies.plan.exchanges.flow import Flow

_FEWEST_STEPS = 4
"""Fewest measured steps to which costs are fitted."""
_TRANSPORTS = {"collectives": "ring"}
"""Carrier of an exchange → value of the parameter `transport`, if they differ."""
_TENSORFLOW = ("tensorflow", "tensorflow-cpu", "tensorflow-tpu")
"""Packages that contain TensorFlow; a machine has one of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Facts on which the costs of exchanges depend.

    Attributes:
        cores: cores of each worker.
        n_cores: cores of the host.
        tensorflow: version of TensorFlow.
    """

    provider: str
    device: str
    cores: float
    cpu_model: str | None
    n_cores: int | None
    kernel: str | None
    tensorflow: str | None

    @property
    def name(self) -> str:
        """Short name, different for other facts."""
        return f"{self.provider}-{self.device}-{canonical_hash(TypeAdapter(Identity).dump_python(self))[:8]}"

    @property
    def probe_path(self) -> Path:
        """Path at which the probe of these machines is stored; the file may not exist."""
        return PROBES / f"{self.name}.json"

    def differences(self, other: Identity) -> tuple[str, ...]:
        """Facts in which another identity differs, as text."""
        facts, others = (TypeAdapter(Identity).dump_python(identity) for identity in (self, other))
        return tuple(
            f"{name.replace('_', ' ')} {others[name]} instead of {fact}"
            for name, fact in facts.items()
            if fact != others[name]
        )


def identity_of(run: StoredRun) -> Identity:
    """Identity of the machines on which a run's steps were profiled.

    Args:
        run: run with a profile.
    Raises:
        UsageError: they are of several kinds.
    """
    identities = list(dict.fromkeys(map(machine_of, profiled_records(run))))
    if len(identities) > 1:
        facts = ", ".join(identities[0].differences(identities[1]))
        raise UsageError(
            f"{run.path} must be profiled on workers of one kind, got {facts}; run {CONTROL} on each kind in "
            "a folder of its own",
            field="run",
        )
    return identities[0]


def machine_of(record: Record) -> Identity:
    """Identity of the machine of a record."""
    machine, provenance = record.machine, record.provenance
    versions = {} if provenance is None else dict(provenance.versions)
    return Identity(
        provider=record.provider,
        device=record.device,
        cores=cores_of(record),
        cpu_model=None if machine is None else machine.cpu_model,
        n_cores=None if machine is None else machine.n_cores,
        kernel=None if machine is None else machine.kernel,
        tensorflow=next((versions[name] for name in _TENSORFLOW if name in versions), None),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """Costs of exchanges between machines of one kind.

    Attributes:
        spreads: family of exchanges → standard deviation of the logarithm of measured ÷ predicted step.
        most_bytes: largest number of bytes that a task sent or received in one exchange.
        most_workers: largest number of workers of a measured step.
        n_steps: number of measured steps. run: name of their run.
    """

    identity: Identity
    costs: Costs
    spreads: Mapping[str, float]
    most_bytes: int
    most_workers: int
    n_steps: int
    run: str
    schema: Literal[5] = 5

    def missing(self, flows: Sequence[Flow]) -> Sequence[str]:
        """Transports and compressors of some exchanges that have no costs."""
        transports = {flow.transport for flow in flows} - {"grpc"}
        codecs = {flow.compressor.name for flow in flows if flow.compressor is not None}
        return sorted((transports - set(self.costs.collectives)) | (codecs - set(self.costs.codecs)))

    def require(self, flows: Sequence[Flow]) -> None:
        """Require costs of all exchanges of a step.

        Raises:
            UsageError: some exchanges were not probed.
        """
        missing = self.missing(flows)
        if missing:
            raise UsageError(
                f"must have costs of {', '.join(missing)}, got a probe without them; make one by "
                f"`{probe_command_for(missing)}`, and name it with --probe FILE",
                field="probe",
            )

    def beyond(self, flows: Sequence[Flow], n_workers: int) -> tuple[str, ...]:
        """Quantities of exchanges that are larger than those that were probed."""
        beyond = {
            "workers": bool(flows) and n_workers > self.most_workers,
            "bytes of an exchange": _most_bytes(flows) > self.most_bytes,
        }
        return tuple(name for name, is_beyond in beyond.items() if is_beyond)

    def to_document(self) -> dict[str, JsonValue]:
        document: dict[str, JsonValue] = TypeAdapter(Probe).dump_python(self, mode="json")
        return document

    def write(self, path: Path) -> None:
        write_output(path, json_bytes(self.to_document()))


def probe_command_for(missing: Iterable[str]) -> str:
    """The command that probes some transports and compressors."""
    params = (
        f"compressor={name}" if name in compressors.BY_NAME else f"transport={_TRANSPORTS.get(name, name)}"
        for name in missing
    )
    strategies = "".join(f', "all-reduce:{param}"' for param in params)
    return f"stratbench probe --set 'strategies=[{CONTROL}{strategies}]' --out FILE"


def probe_of(run: StoredRun) -> Probe:
    """Fit the costs of exchanges to the correct cases of a run of the experiment `probe`.

    Raises:
        UsageError: the run has no profiles, or too few steps with exchanges.
    """
    measured = list(observations(run, profiled_workloads(run)))
    bad = [record for record in run.records if not is_usable(record)]
    if len(measured) < _FEWEST_STEPS or 2 * len(bad) > len(run.records):
        error = next((record.error for record in bad if record.error is not None), None)
        reason = "" if error is None else f"; the first of them: {first_line(error.message)}"
        raise UsageError(
            f"{run.path} must have {_FEWEST_STEPS} measured steps with exchanges or more, and at most half "
            f"of its cases may fail, got {len(measured)} steps, and {len(bad)} of {len(run.records)} cases "
            f"failed{reason}; run `stratbench probe` again",
            field="run",
        )
    fit = fitted(measured)
    flows = [flow for observation in measured for flow in observation.planned.flows]
    return Probe(
        identity=identity_of(run),
        costs=fit.costs,
        spreads=fit.spreads,
        most_bytes=int(_most_bytes(flows)),
        most_workers=max(len(observation.planned.plan.replicas_per_task) for observation in measured),
        n_steps=len(measured),
        run=run.run,
    )


def _most_bytes(flows: Sequence[Flow]) -> float:
    """Largest number of bytes that a task sends or receives in one of the exchanges."""
    ends = (end * flow.period for flow in flows for end in (flow.links.sent(), flow.links.received()))
    return max((float(end.max()) for end in ends), default=0.0)


def read_probe(path: Path, way_out: str = "make one by `stratbench probe`") -> Probe:
    """Read a stored probe.

    Args:
        way_out: advice for its error.
    Raises:
        UsageError: it is not there, or not one.
    """
    try:
        return TypeAdapter(Probe).validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        reason = getattr(error, "strerror", None) or "another content"
        if isinstance(error, ValidationError) and any(item["loc"] == ("schema",) for item in error.errors()):
            reason = "a probe of another version"
        raise UsageError(
            f"{path} must be a probe that `stratbench probe` wrote, got {reason}; {way_out}",
            field="probe",
        ) from error
