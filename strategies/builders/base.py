"""What a strategy is: its description, its parameters, and the function that lays out a step's variables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from strategies.plan import PlanNode, StepSummary, StrategyClass, VariableSummary
from strategies.topology import Topology

ParamValue: TypeAlias = bool | int | float | str | None
Params: TypeAlias = Mapping[str, ParamValue]
Layout: TypeAlias = Callable[[StepSummary, Topology, Params], Sequence[PlanNode]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """A knob of a strategy; `minimum` bounds numbers, and one whose default is None may be none."""

    name: str
    type: type[bool] | type[int] | type[float] | type[str]
    default: ParamValue
    minimum: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """An entry of the registry.

    Attributes:
        layout: what happens to each variable when there is more than one replica.
        single: always one worker and one replica.
    """

    name: str
    summary: str
    strategy_class: StrategyClass
    layout: Layout
    params: tuple[Param, ...] = ()
    single: bool = False


def node_of(variable: VariableSummary, **placed: object) -> PlanNode:
    """The plan's entry for a variable; what is not given says that every replica keeps it to itself."""
    known = {"synchronizer": "none", **placed}
    return PlanNode.model_validate(
        {
            "variable": variable.name,
            "shape": variable.shape,
            "dtype": variable.dtype,
            "bytes": variable.bytes,
            "sparse": variable.sparse,
            **known,
        }
    )
