"""A strategy: its description, its parameters, and the function that lays out a step's variables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pydantic import ValidationError

from strategies.errors import StrategyError
from strategies.params import Param, Params
from strategies.plan.schema import PlanNode, StepSummary, StrategyClass, VariableSummary, mistake
from strategies.topology import Device, Topology

Layout: TypeAlias = Callable[[StepSummary, Topology, Params], Sequence[PlanNode]]
Notes: TypeAlias = Callable[[StepSummary, Sequence[PlanNode], Topology, Params], Sequence[str]]
Refusal: TypeAlias = Callable[[Topology, Params], str | None]
Choice: TypeAlias = tuple[int, tuple[int, ...]] | str
"""Axis and sizes of a variable's parts, or the reason why it stays whole."""
Choices: TypeAlias = Callable[[StepSummary, Topology, Params], Mapping[str, Choice]]


DeclaredRunner: TypeAlias = Literal["graph", "baseline", "coordinator"]
Runner: TypeAlias = DeclaredRunner | Literal["replicas"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """An entry of the registry.

    Attributes:
        usual_name: name in the literature; empty if it is the same.
        layout: function that makes the plan nodes for more than one replica.
        single: True if it always runs one worker with one replica.
        runner: `graph` runs rewritten graphs; the others run the workload's own code under TensorFlow's
            strategy, on all replicas in lockstep (`baseline`) or through a coordinator; see `runner_on`.
        parts: function that cuts each shared trainable, for strategies that partition.
        whole: name of the strategy that it equals if nothing is cut.
        notes: function that returns the plan's notes, one sentence each.
        refuses: function that returns the reason why it cannot run on a topology, None if it can; a run skips
            refused cases.
        on_one_host: devices on which it runs only within one host, although plans and graphs exist for
            several hosts.
    """

    name: str
    summary: str
    layout: Layout
    usual_name: str = ""
    strategy_class: StrategyClass = "exact"
    params: tuple[Param, ...] = ()
    single: bool = False
    runner: DeclaredRunner = "graph"
    parts: Choices | None = None
    whole: str | None = None
    notes: Notes | None = None
    refuses: Refusal | None = None
    devices: tuple[Device, ...] = ("cpu", "gpu")
    on_one_host: tuple[Device, ...] = ()

    def lacks(self, device: Device) -> str | None:
        """Reason why a device is not supported, None if it is."""
        if device in self.devices:
            return None
        others = " and ".join(self.devices)
        way_out = "use tpu-replicate or tf-tpu there, or" if device == "tpu" else "leave it out, or"
        return f"has a form for {others} alone, got device {device}; {way_out} take {self.devices[0]}"

    def refuses_to_run(self, device: Device, n_workers: int) -> str | None:
        """Reason why workers cannot run it on a device on which it can be planned, None if they can."""
        if device in self.on_one_host and n_workers > 1:
            return (
                f"is run on the {device} devices of one host, got {n_workers} workers; take a slice of one "
                f"host with workers=1, or see its graphs by `stratbench transform --device {device}`"
            )
        return self.lacks(device)

    def runner_on(self, device: Device) -> Runner:
        return "replicas" if self.runner == "graph" and device == "tpu" else self.runner


def node_of(variable: VariableSummary, **placed: object) -> PlanNode:
    """Make a plan node for a variable; by default every replica has a copy without synchronisation.

    Raises:
        StrategyError: a field is unknown, or a value has the wrong type.
    """
    known = {"synchronizer": "none", **placed}
    fields = {
        "variable": variable.name,
        "shape": variable.shape,
        "dtype": variable.dtype,
        "bytes": variable.bytes,
        "sparse": variable.sparse,
        **known,
    }
    try:
        return PlanNode.model_validate(fields)
    except ValidationError as error:
        way_out = f"fields are {', '.join(PlanNode.model_fields)}"
        raise StrategyError(f"variable {variable.name!r}: {mistake(error)}; {way_out}") from error


def independent(step: StepSummary, topology: Topology, params: Params) -> list[PlanNode]:  # noqa: ARG001 - a Layout
    """Give every replica all variables, without communication."""
    return [node_of(v) for v in step.variables]
