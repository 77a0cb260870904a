"""Probe of a kind of machine: fitted costs of exchanges, with their errors, stored with its identity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from harness.atomic_files import json_bytes, write_output
from harness.canonical import JsonValue, canonical_hash
from harness.errors import UsageError
from harness.prediction.costs import Costs
from harness.prediction.fit import fitted
from harness.prediction.observations import observations, profiled_workloads
from harness.records.record import Record
from harness.records.stored_run import StoredRun
from strategies.plan.exchanges.flow import Flow

SCHEMA = 1
_TENSORFLOW = ("tensorflow", "tensorflow-cpu", "tensorflow-tpu")
"""Packages of TensorFlow, one of which is installed."""


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

    def differences(self, other: Identity) -> tuple[str, ...]:
        """Facts in which another identity differs, as text."""
        own, others = (TypeAdapter(Identity).dump_python(identity) for identity in (self, other))
        return tuple(
            f"{name.replace('_', ' ')} {others[name]} instead of {own[name]}"
            for name in own
            if own[name] != others[name]
        )


def identity_of(record: Record) -> Identity:
    """Identity of the machine of a record."""
    machine, method, provenance = record.machine, record.method, record.provenance
    versions = {} if provenance is None else dict(provenance.versions)
    return Identity(
        provider=record.provider,
        device=record.device,
        cores=1.0 if method is None or method.cores_per_worker is None else method.cores_per_worker,
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
        n_steps: number of measured steps. run: name of their run.
    """

    identity: Identity
    costs: Costs
    spreads: Mapping[str, float]
    most_bytes: int
    n_steps: int
    run: str
    schema: int = SCHEMA

    @property
    def cores(self) -> float:
        return self.identity.cores

    def require(self, flows: Sequence[Flow]) -> None:
        """Require costs of all exchanges.

        Raises:
            UsageError: some exchanges were not probed.
        """
        transports = {flow.transport for flow in flows} - {"grpc"}
        codecs = {flow.compressor.name for flow in flows if flow.compressor is not None}
        if "cores" in transports:
            raise UsageError(
                "must not loop over steps, which is not predicted, got tpu loops; `run` measures them",
                field="strategies",
            )
        missing = sorted((transports - set(self.costs.collectives)) | (codecs - set(self.costs.codecs)))
        if missing:
            raise UsageError(
                f"must have costs of {', '.join(missing)}, got a probe without them; make one with "
                "`stratbench probe`, or name one with --probe",
                field="probe",
            )

    def beyond(self, flows: Sequence[Flow]) -> tuple[str, ...]:
        """Quantities of exchanges that are larger than those that were probed."""
        return ("bytes of an exchange",) if _most_bytes(flows) > self.most_bytes else ()

    def to_document(self) -> dict[str, JsonValue]:
        document: dict[str, JsonValue] = TypeAdapter(Probe).dump_python(self, mode="json")
        return document

    def write(self, path: Path) -> None:
        write_output(path, json_bytes(self.to_document()))


def probe_of(run: StoredRun) -> Probe:
    """Fit the costs of exchanges to a run of the experiment `probe`.

    Raises:
        UsageError: the run has no profiles, or no step with exchanges.
    """
    measured = list(observations(run, profiled_workloads(run)))
    if not measured:
        raise UsageError(
            f"{run.path} must have measured steps of strategies with exchanges, got none", field="run"
        )
    fit = fitted(measured)
    flows = [flow for observation in measured for flow in observation.planned.flows]
    return Probe(
        identity=identity_of(run.records[0]),
        costs=fit.costs,
        spreads=fit.spreads,
        most_bytes=int(_most_bytes(flows)),
        n_steps=len(measured),
        run=run.run,
    )


def _most_bytes(flows: Sequence[Flow]) -> float:
    """Largest number of bytes that a task sends or receives in one of the exchanges."""
    ends = (end * flow.period for flow in flows for end in (flow.links.sent(), flow.links.received()))
    return max((float(end.max()) for end in ends), default=0.0)


def read_probe(path: Path) -> Probe:
    """Read a stored probe.

    Raises:
        UsageError: it is not there, or not one.
    """
    try:
        return TypeAdapter(Probe).validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        reason = getattr(error, "strerror", None) or "another content"
        raise UsageError(
            f"{path} must be a probe that `stratbench probe` wrote, got {reason}; make one, or name another",
            field="probe",
        ) from error
