"""Passes, and running them in order."""

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Protocol

from strategies.ir.graph_rules import verify
from strategies.ir.train_graph import TrainGraph
from strategies.passes.task_plan import TaskPlan
from strategies.topology import Topology


class Pass(Protocol):
    """A pure, deterministic rewriting of a train graph for one task.

    Its only option is the plan. It returns the same object if nothing changes.
    """

    name: ClassVar[str]

    def __init__(self, *, plan: TaskPlan) -> None: ...

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTiming:
    """Cost of a pass: seconds, and number of nodes after it."""

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
        return sum(timing.seconds for timing in self.timings)


def run_passes(
    passes: Sequence[Pass], step: TrainGraph, topology: Topology, *, check: bool = True
) -> Transformed:
    """Apply passes one after the other.

    Args:
        check: True verifies the graph after each pass; False saves the time.
    Raises:
        GraphError: a pass returned a graph that breaks a rule; the note names the pass.
    """
    timings = []
    for rewrite in passes:
        with _collections_paused():
            started = time.perf_counter()
            step = rewrite.apply(step, topology)
            seconds = time.perf_counter() - started
        timings.append(PassTiming(name=rewrite.name, seconds=seconds, nodes=len(step.graph.nodes)))
        if check:
            try:
                verify(step.graph)
            except Exception as error:
                error.add_note(f"after the pass {rewrite.name!r}")
                raise
    return Transformed(step=step, timings=tuple(timings))


@contextmanager
def _collections_paused() -> Iterator[None]:
    """Pause garbage collection: a pass creates many objects without cycles, and collection would free none.

    Python would start a full collection again and again as the graph grows, each over all that TensorFlow's
    modules hold: up to half of a pass's time, and more per node the larger the graph.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
