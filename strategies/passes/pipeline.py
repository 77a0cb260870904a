"""What a pass is, and running passes in order."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from strategies.ir.train_graph import TrainGraph
from strategies.ir.verify import verify
from strategies.topology import Topology


class Pass(Protocol):
    """A pure, deterministic rewriting of a train graph for one task; the same object comes back if nothing changes."""

    name: ClassVar[str]

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        """The rewritten step."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTiming:
    """What a pass cost: seconds, and nodes after it."""

    name: str
    seconds: float
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformed:
    """The step of one task after all passes."""

    step: TrainGraph
    timings: tuple[PassTiming, ...]

    @property
    def seconds(self) -> float:
        """Sum over the passes."""
        return sum(timing.seconds for timing in self.timings)


def run_passes(
    passes: Sequence[Pass], step: TrainGraph, topology: Topology, *, check: bool = True
) -> Transformed:
    """Apply passes one after the other.

    Args:
        check: verify the graph after each pass; off where the time counts.
    Raises:
        GraphError: when a pass leaves a graph that breaks a rule; the note names the pass.
    """
    timings = []
    for each in passes:
        started = time.perf_counter()
        step = each.apply(step, topology)
        timings.append(
            PassTiming(name=each.name, seconds=time.perf_counter() - started, nodes=len(step.graph.nodes))
        )
        if check:
            try:
                verify(step.graph)
            except Exception as error:
                error.add_note(f"after the pass {each.name!r}")
                raise
    return Transformed(step=step, timings=tuple(timings))
